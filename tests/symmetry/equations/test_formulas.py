"""Flows, invariants, new solutions and subalgebras, against numbers that do not use the formulas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import sympy as sp

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry import find_symmetries
from trivgeo.symmetry.equations.formulas import flow, invariants
from trivgeo.symmetry.equations.vector_fields import Symmetry
from trivgeo.symmetry.result import Symmetries

x, y, t, u, k = sp.symbols("x y t u k")
s = sp.Symbol("s", real=True)
VARIABLES = (x, y, t, u)
FIELDS: list[tuple[sp.Expr, ...]] = [
    (sp.S.One, 0, 0, 0),
    (x, 0, 3 * t, -2 * u),
    (y, -x, sp.S.One, 0),
    (t, 0, x, 0),
    (4 * t * x, 0, 4 * t**2, -u * (2 * t + x**2)),
    (t * x, 0, t**2, x - t * u),
    (sp.S.One, 0, 0, x * sp.exp(t)),
    (0, 0, sp.sqrt(t), u**3),
    (k * x, 0, sp.S.One, u + 1),
]


@pytest.fixture(scope="module")
def heat() -> Symmetries:
    return find_symmetries("u_t = u_xx")


def _followed(field: Sequence[sp.Expr], point: np.ndarray, time: float, steps: int = 200) -> np.ndarray:
    """By the Runge-Kutta method."""
    rate = sp.lambdify(VARIABLES, [sp.sympify(c).subs(k, 0.7) for c in field], "math")

    def at(z: np.ndarray) -> np.ndarray:
        return np.array(rate(*z), dtype=float)

    h = time / steps
    for _ in range(steps):
        a = at(point)
        b = at(point + h / 2 * a)
        c = at(point + h / 2 * b)
        point = point + h / 6 * (a + 2 * b + 2 * c + at(point + h * c))
    return point


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_flows_and_invariants(field: tuple[sp.Expr, ...]) -> None:
    """Formulas of flows against steps along the field; invariants do not change on the way and are independent."""
    start = np.array([0.4, 0.8, 0.7, 0.3])
    end = _followed(field, start, 0.15)
    formulas = flow(tuple(map(sp.sympify, field)), VARIABLES, s)
    values = sp.lambdify((*VARIABLES, s), [f.subs(k, 0.7) for f in formulas], "numpy")
    np.testing.assert_allclose(values(*start, 0.15), end, rtol=1e-9)
    found = sp.Matrix(invariants(tuple(map(sp.sympify, field)), VARIABLES)).subs(k, 0.7)
    constant = sp.lambdify(VARIABLES, found, "numpy")
    np.testing.assert_allclose(constant(*start), constant(*end), rtol=1e-8)
    slopes = sp.lambdify(VARIABLES, found.jacobian(VARIABLES), "numpy")
    assert np.linalg.matrix_rank(slopes(*start).astype(float), tol=1e-6) == len(VARIABLES) - 1


def test_no_formula_is_an_error() -> None:
    with pytest.raises(AlgebraError, match="closed form"):
        flow((sp.exp(x) + x, sp.S.Zero), (x, y), s)
    with pytest.raises(AlgebraError, match="invariants"):
        invariants((sp.S.Zero, sp.S.Zero), (x, y))


def test_new_solutions(heat: Symmetries) -> None:
    """Of the constant one the projective symmetry makes the fundamental solution; each solves the equation."""
    (new,) = heat.new_solution(heat[3], 1)
    assert sp.simplify(new - sp.exp(-s * x**2 / (4 * s * t + 1)) / sp.sqrt(4 * s * t + 1)) == 0
    for generator in heat[1:4]:
        (moved,) = heat.new_solution(generator, "x^2 + 2*t", "a")
        left = sp.lambdify((x, t, sp.Symbol("a", real=True)), sp.diff(moved, t) - sp.diff(moved, x, 2), "numpy")
        assert np.abs(left(np.linspace(-1, 1, 7), 0.4, 0.1)).max() < 1e-10
    with pytest.raises(ConfigurationError, match="solution of the equations"):
        heat.new_solution(heat[0], "x^2")
    with pytest.raises(ConfigurationError, match="one expression for each"):
        heat.new_solution(heat[0], ["x", "t"])
    burgers = find_symmetries("u_t + u*u_x = u_xx")
    assert burgers.new_solution(burgers[3], 0) == (s * x / (s * t + 1),)


@pytest.mark.parametrize("sign", [1, -1])
def test_new_solutions_start_at_the_old_one(sign: int) -> None:
    """Both roots of u^2 + t u - x solve Burgers' equation without viscosity; u d_x leads from one to itself."""
    found = find_symmetries("u_t + u*u_x = 0", 1)
    old = (-t + sign * sp.sqrt(t**2 + 4 * x)) / 2
    (new,) = found.new_solution(Symmetry("H", (u, sp.S.Zero, sp.S.Zero), (x, t, u)), old)
    # by hand: u d_x leads to the equation with t + s in place of t
    assert sp.simplify(new - old.subs(t, t + s)) == 0


def test_new_solutions_that_start_as_zero_over_zero() -> None:
    """Straight lines of the old graph, x' = x + s u: a parabola moved by u d_x solves a quadratic equation in u."""
    found = find_symmetries("u_xx = u_t^3")
    (new,) = found.new_solution(found[2], x**2 / 2 + t)
    assert found[2].components == (u, 0, 0)
    # by hand: u = (x - s u)^2 / 2 + t
    assert sp.simplify(new - ((x - s * new) ** 2 / 2 + t)) == 0
    assert sp.limit(new, s, 0) == x**2 / 2 + t


def test_times_have_a_name_of_their_own(heat: Symmetries) -> None:
    """Else the time of the flow and a variable, a parameter or a constant of the solution would print the same."""
    for equation in ("u_t = s^2*u_ss", "u_t = s*u_xx"):
        found = find_symmetries(equation)
        moving = next(g for g in found if sp.Symbol("s") in {z for c in g.components for z in c.free_symbols})
        with pytest.raises(ConfigurationError, match="parameter: expected a name that nothing else has, got s"):
            moving.flow()
        with pytest.raises(ConfigurationError, match="parameter"):
            found.new_solution(found[0], 1)
        assert len(moving.flow("a")) == 3
    with pytest.raises(ConfigurationError, match="parameter"):
        heat.new_solution(heat[0], "s*x + 2*s^2")


def test_what_keeps_a_curve(heat: Symmetries) -> None:
    """On an initial line all but the translation in time; curves by hand, and the condition at its points."""
    assert {k.text for k in heat.keeping({"t": 0})} == {g.text for g in heat if g.text != "∂_t"}
    kept = heat.keeping({"t": "x^2", "u": "x"})
    assert [k.text for k in kept] == ["x*∂_x + 2*t*∂_t + u*∂_u"]
    assert [k.text for k in heat.keeping({"u": "exp(x)*sin(x) + x^5"})] == ["∂_t"]
    assert heat.keeping({"t": 0, "u": "exp(x)*sin(x) + x^5"}) == ()
    forced = find_symmetries("u_t = nu*u_xx")
    for field in forced.keeping({"t": 0, "u": "exp(-x^2/(4*nu))"}):
        rates = dict(zip(forced.variables, field, strict=True))
        curve = sp.sympify("exp(-x**2/(4*nu))")
        across = rates[u] - rates[x] * sp.diff(curve, x)
        assert sp.simplify(across.subs({u: curve, t: 0})) == 0
        assert rates[t].subs(t, 0) == 0
    assert len(forced.keeping({"t": 0, "u": "exp(-x^2/(4*nu))"})) == 2
    for bad in ({}, {"z": 0}, {"t": "t^2"}, {"t": "x", "x": 1}):
        with pytest.raises(ConfigurationError, match="surface"):
            heat.keeping(bad)


@pytest.mark.parametrize(
    ("equation", "name"),
    [
        ("y'' = 0", "sl(3, R)"),
        ("y'' = y^(-3)", "sl(2, R)"),
        ("u_t + u*u_x = u_xx", "sl(2, R) ⋉ R^2"),
        ("u_t + u*u_x + u_xxx = 0", "solvable of dimension 4, 3 steps"),
        ("u_xx*u_yy - u_xy^2 = (1 + u_x^2 + u_y^2)^2", "so(3) ⋉ R^3"),
        ("u_tt = u_xx + u_yy", "so(3, 2) ⊕ R"),
        ("y'' = x*y^3", "R"),
        ("y'' = y^3", "aff(1)"),
    ],
)
def test_names(equation: str, name: str) -> None:
    """The names of the literature (Olver 1993; Lie 1891)."""
    algebra = find_symmetries(equation).algebra
    assert algebra.name() == name
    assert algebra.numeric().name() == name


def test_display(heat: Symmetries) -> None:
    assert heat[1]._repr_latex_() == r"$X_{2} = x\partial_{x} + 2 t\partial_{t}$"
    assert heat._repr_latex_().startswith(r"$\begin{aligned} X_{1} &= \partial_{x} \\ ")
    page = heat._repr_html_()
    assert "sl(2, R) ⋉ h(3)" in page
    assert page.count("<tr>") == 7
    assert "infinite ideal" in page
    assert "<table>" not in find_symmetries("u_xx + u_yy = 0", 3)._repr_html_()
    named_by_parameter = find_symmetries("u_t = diff(u^n*u_x, x)")
    assert "<table>" in named_by_parameter._repr_html_()
