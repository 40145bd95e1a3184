"""What comes in is exact, and every name has one meaning; what goes out passes `verify`."""

from __future__ import annotations

import random
from typing import Any

import pytest
import sympy as sp

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry import find_symmetries, verify
from trivgeo.symmetry.api import solved_form
from trivgeo.symmetry.determining.ansatz import AnsatzSpace

x, t = sp.symbols("x t")
u = sp.Function("u")(x, t)


@pytest.mark.parametrize(
    ("pde", "degree", "count"),
    [
        (u.diff(t) + u * u.diff(x) - 0.1 * u.diff(x, 2), 2, 5),
        (u.diff(t) + u * u.diff(x) + 0.1 * u.diff(x, 3), 1, 4),
        (u.diff(t) - (u**0.3 * u.diff(x)).diff(x), 1, 4),
        (u.diff(t) - (u ** (-4 / 3) * u.diff(x)).diff(x), 2, 5),
        ("u_t + u*u_x = 0.1*u_xx", 2, 5),
        ("u_t = diff(u**0.3*u_x, x)", 1, 4),
        (u.diff(t) - sp.Float(0.37) * u.diff(x, 2) + 1.7e-3 * u.diff(x) ** 2, 2, 6),
    ],
    ids=str,
)
def test_decimals(pde: Any, degree: int, count: int) -> None:
    found = find_symmetries(pde, degree)
    assert len(found) == count
    assert not any(c.atoms(sp.Float) for g in found.generators for c in g.components)
    assert all(verify(pde, g) == 0 for g in found.generators)


OTHERS_STAY = pytest.mark.slow(reason="the other forms stay")
FORMS = [
    pytest.param(("u_t + {0}*u*u_x = {1}*u_xx", 2), marks=OTHERS_STAY),
    pytest.param(("u_t + {0}*u*u_x + {1}*u_xxx = 0", 1), marks=OTHERS_STAY),
    ("u_t = {0}*u_xx + {1}*u_x", 2),
    pytest.param(("u_t = diff(u**{0}*u_x, x)", 1), marks=OTHERS_STAY),
    ("u_t = {0}*diff(exp({1}*u)*u_x, x)", 1),
    pytest.param(("u_tt = {0}*u_xx + {1}*u**3", 1), marks=OTHERS_STAY),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_decimals_are_fractions(form: tuple[str, int]) -> None:
    """Random decimals, as text, as floating-point numbers and as fractions, have the same symmetries."""
    text, degree = form
    numbers = random.Random(text)
    for _ in range(3):
        values = [sp.Rational(numbers.randint(1, 10**5), 10 ** numbers.randint(4, 5)) for _ in range(2)]
        decimals = [f"{float(v)!r}" for v in values]
        as_text = find_symmetries(text.format(*decimals), degree)
        as_fractions = find_symmetries(text.format(*(f"({v})" for v in values)), degree)
        assert [g.components for g in as_text.generators] == [g.components for g in as_fractions.generators]
        assert as_text.statement == as_fractions.statement
        assert len(as_text) >= 2
        assert all(verify(text.format(*decimals), g) == 0 for g in as_text.generators)


def test_a_false_field_never_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the elimination were wrong, there would be an error."""
    monkeypatch.setattr(AnsatzSpace, "solve", lambda self: ([(x, t, sp.S.Zero)], []))
    with pytest.raises(AlgebraError, match="is no symmetry"):
        find_symmetries(u.diff(t) - u.diff(x, 2))


xx, xt = sp.symbols("xx xt")


@pytest.mark.parametrize(
    "pde",
    [
        sp.Function("u")(x, xx).diff(x, 2) - sp.Function("u")(x, xx).diff(xx),
        sp.Function("u")(x, t, xt).diff(x) - sp.Function("u")(x, t, xt).diff(xt),
        u.diff(t) - sp.Symbol("u_x") * u.diff(x, 2),
        u.diff(t) - sp.Symbol("u_xxt") * u.diff(x, 2),
        u.diff(t) - sp.Symbol("u") * u.diff(x, 2),
        u.diff(t) - sp.Symbol("x", positive=True) * u.diff(x, 2),
        u.diff(t) - sp.Symbol("t", real=True) * u.diff(x, 2),
        u.diff(t) - sp.Symbol("nu") * u.diff(x, 2) + sp.Symbol("nu", positive=True),
        u.diff(t) - sp.Symbol("exp") * u.diff(x, 2),
        [u.diff(t) - u.diff(x, 2), sp.Function("u_x")(x, t).diff(t) - u],
        sp.Function("x")(x, t).diff(t) - sp.Function("x")(x, t).diff(x, 2),
        [u.diff(t) - u.diff(x, 2), "v_t = v_xx"],
        u.diff(t) - u.diff(x, 2) + sp.I,
        u.diff(t) - u.diff(x, 2) + sp.oo,
        None,
        [],
        3,
        object,
    ],
)
def test_names_that_clash(pde: Any) -> None:
    with pytest.raises(ConfigurationError, match="equation"):
        find_symmetries(pde)


def test_names_that_do_not_clash() -> None:
    """Parameters with underscores, and longer names of variables."""
    theta, tau = sp.symbols("theta tau")
    w = sp.Function("w")(theta, tau)
    found = find_symmetries(w.diff(tau) - sp.Symbol("w_0") * w.diff(theta, 2), 3)
    assert len(found) == 6
    assert [p.name for p in found.parameters] == ["w_0"]


def test_fields_of_verify() -> None:
    """Symbols of any assumptions, text, and functions; nothing that looks like a derivative."""
    heat = u.diff(t) - u.diff(x, 2)
    positive, time = sp.Symbol("x", positive=True), sp.Symbol("t", real=True)
    assert verify(heat, (positive, 2 * time, 0)) == 0
    assert verify(heat, ("x", "2*t", 0)) == 0
    assert verify(heat, ("2*t", 0, "-x*u(x, t)")) == 0
    assert verify(heat, ("2.0*t", 0, "-x*u")) == 0
    assert verify(heat, ("x", "t", 0)) != 0
    for field in ["(x, 2*t, 0)", ("u_x", 0, 0), (sp.Symbol("u_xx"), 0, 0), ("v(x, t)", 0, 0), 5, (None, 0, 0)]:
        with pytest.raises(ConfigurationError, match="field"):
            verify(heat, field)


def test_names_of_constants() -> None:
    """Unknowns and variables E, I and pi are no constants, in equations and fields."""
    assert verify("E_t = E_xx", ("0", "0", "E^2")) != 0
    assert verify("E_t = E_xx", ("0", "0", "E")) == 0
    assert verify(["S' = -S*I", "I' = S*I"], ("x", "-I", "-S")) == 0
    assert verify("n_t = E*n_EE", ("E", "t", "0")) == 0
    assert verify("n_t = E*n_EE", ("1", "0", "0")) != 0
    found = find_symmetries("n_t = E*n_EE")
    renamed = find_symmetries("n_t = w*n_ww")
    as_w = {sp.Symbol("E"): sp.Symbol("w")}
    assert [[c.xreplace(as_w) for c in g] for g in found] == [list(g) for g in renamed]
    assert found.dimension.size == len(found) == 4


def test_verify_is_not_fooled_by_form() -> None:
    """Zeros that simplification may miss are zeros."""
    heat = u.diff(t) - u.diff(x, 2)
    phase = sp.sqrt(2 * sp.sqrt(3) + 4)
    twin = sp.exp(phase * x + phase**2 * t)
    assert verify(heat, (0, 0, twin - sp.exp((1 + sp.sqrt(3)) * x + (4 + 2 * sp.sqrt(3)) * t))) == 0
    assert verify(heat, (0, 0, twin * (1 + sp.Rational(1, 10**30)) + x**2)) != 0


@pytest.mark.parametrize(
    ("pde", "reason"),
    [
        ("u_t^2 = -1", "solvable for real derivatives"),
        ("u_t^2 + u_x^2 + 1 = 0", "solvable for real derivatives"),
        (u.diff(t) - u.diff(x, 20), "order 10 at most, got one of order 20"),
    ],
)
def test_refused_early(pde: Any, reason: str) -> None:
    """Equations without a real solution, and orders for which there is no bound on the time."""
    with pytest.raises(ConfigurationError, match=reason):
        find_symmetries(pde)


@pytest.mark.parametrize(
    ("pde", "reason"),
    [
        ("u_t = u_xx + u*(1 - u", "1 opening and 0 closing"),
        ("u_t = u_xx)", "0 opening and 1 closing brackets"),
        ("u_t + u*u_x =", "a side of an equation is empty"),
        ("", "is empty"),
        ("u_tt = (u^2)_xx", r"of expressions diff\(u\^2, x, 2\)"),
    ],
)
def test_texts_that_are_not_complete(pde: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        find_symmetries(pde)


@pytest.mark.parametrize(
    "right",
    [
        sp.Integral(u, x),
        sp.Sum(u.subs(x, t), (t, 0, 3)),
        sp.Limit(u, x, 0),
        sp.Piecewise((u, x > 0), (0, True)),
        sp.floor(u),
        sp.Symbol("A", commutative=False) * u,
        u.diff((x, sp.Symbol("n"))),
        sp.O(x) * u,
    ],
    ids=str,
)
def test_what_is_no_differential_equation(right: Any) -> None:
    with pytest.raises(ConfigurationError, match="equation: expected"):
        find_symmetries(u.diff(t) - right)


@pytest.mark.parametrize(
    "equation", ["sin(u_t) + u_t = u_x", "u_t*exp(u_t) = u_x", "u_t + exp(u_t) = u_xx", "u_t = u_x + exp(u_t) + u_t^2"]
)
def test_transcendental_in_the_derivative_by_time(equation: str) -> None:
    """Solved for another derivative, without a hang."""
    _, system = solved_form(equation)
    assert system.time == system.variables.index(x)
    values = {sp.Symbol(name): value for name, value in zip(("u_x", "u_t", "u_xx"), (0.3, 0.4, 0.5), strict=True)}
    left, right = (sp.sympify(side).subs(values) for side in equation.split("="))
    leader = system.jet(*system.leaders[0])
    residual = (leader - system.right[0]).subs(values)
    assert abs(abs(float(left - right)) - abs(float(residual))) < 1e-12


@pytest.mark.parametrize("number", ["asin(2)", "log(-1)", "sqrt(-2)", "(-1)^x", "(-1)^(1/3)", "acosh(0)", "I"])
def test_complex_numbers_are_named(number: str) -> None:
    with pytest.raises(ConfigurationError, match="expected real equations"):
        find_symmetries(f"u_t = {number}*u_xx")


@pytest.mark.parametrize(
    "text",
    ["u_t = diff(u_x*abs(u_x), x)", "u_t = diff(abs(u)*u_x, x)", "u_t = abs(u_x)", "u_t = diff(sign(u)*u_x, x)"],
)
def test_corners_are_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"equation: expected functions of the unknowns .* (Abs|sign)"):
        find_symmetries(text)


@pytest.mark.parametrize(
    ("equations", "solutions", "size"),
    [
        # u = a + b x + c t + d x t, so sl(2) + sl(2) + R
        (["u_xx = 0", "u_tt = 0"], "1 x t x*t", 7),
        (["u_t = u_x", "u_t = u_xx"], "1 exp(x+t)", None),
        (["u_x = u", "u_t = 2*u"], "exp(x+2*t)", None),
        (["u_t = u_xx", "u_x = 0"], "1", None),
    ],
)
def test_more_equations_than_unknowns(equations: list[str], solutions: str, size: int | None) -> None:
    """All solutions are known, and what a field adds to any of them is one."""
    found = find_symmetries(equations)
    assert found.dimension.size == size
    known = [sp.sympify(s) for s in solutions.split()]
    value = sum(a * s for a, s in zip(sp.symbols("c:4"), known, strict=False))
    assert len(found) > 2
    for field in found:
        xi, tau, eta = (e.subs(sp.Symbol("u"), value) for e in field.components)
        moved = eta - xi * value.diff(x) - tau * value.diff(t)
        # linear equations with constant coefficients: left sides at what was added
        values = {"u": moved} | {f"u_{w}": moved.diff(*w) for w in ("x", "t", "xx", "tt")}
        for left, right in (e.split("=") for e in equations):
            assert sp.expand(sp.sympify(left, values) - sp.sympify(right, values)) == 0
