"""Arbitrary functions: kernels, and the forms for which there is more, against the classifications of textbooks."""

from __future__ import annotations

import re
from typing import Any

import pytest
import sympy as sp

from trivgeo.errors import ConfigurationError
from trivgeo.symmetry import find_symmetries, special_functions, verify

x, t = sp.symbols("x t")
u = sp.Function("u")(x, t)
f = sp.Function("f")
DIFFUSION, REACTION = "u_t = diff(f(u)*u_x, x)", "u_t = u_xx + f(u)"


SHIFTS = [("1", "0", "0"), ("0", "1", "0")]


@pytest.mark.parametrize(
    ("equation", "fields"),
    [
        (DIFFUSION, [*SHIFTS, ("x", "2*t", "0")]),
        ("u_t = u_xx + f(x)*u", [("0", "1", "0"), ("0", "0", "u")]),
        pytest.param(REACTION, SHIFTS, marks=pytest.mark.slow),
        pytest.param("u_tt = u_xx + f(u)", [*SHIFTS, ("t", "x", "0")], marks=pytest.mark.slow),
        pytest.param("u_t = diff(f(u_x), x)", [*SHIFTS, ("0", "0", "1"), ("x", "2*t", "u")], marks=pytest.mark.slow),
    ],
)
def test_kernels(equation: str, fields: list[tuple[str, ...]]) -> None:
    """By hand; every field of the kernel is a symmetry for forms that are put in."""
    found = find_symmetries(equation)
    assert found.statement.startswith("all: the dimension")
    assert found.statement.endswith(", for an arbitrary function f")
    assert len(found) == len(fields)
    assert all(verify(equation, field) == 0 for field in fields)
    for form in (r"exp(\1)", r"((1 + \1^4)^(1/3))"):
        put = re.sub(r"\bf\((\w+)\)", form, equation)
        assert all(verify(put, field) == 0 for field in found)


@pytest.mark.slow
def test_sympy_says_the_same() -> None:
    as_text = find_symmetries(DIFFUSION)
    for entry in (u.diff(t) - (f(u) * u.diff(x)).diff(x), sp.Eq(u.diff(t), sp.Derivative(f(u) * u.diff(x), x))):
        assert [g.components for g in find_symmetries(entry)] == [g.components for g in as_text]


def test_not_for_all_functions() -> None:
    """What holds for one form is no symmetry for an arbitrary one."""
    assert verify("u_t = diff(exp(u)*u_x, x)", ("x", 0, 2)) == 0
    assert verify(DIFFUSION, ("x", 0, 2)) != 0


@pytest.mark.parametrize(
    ("equation", "candidates", "sizes"),
    [
        (REACTION, ("exp(u)", "sin(u)"), {"exp(u)": 3}),
        # Dorodnitsyn 1982
        pytest.param(REACTION, (), {"1": 6, "u": 6, "exp(u)": 3, "u**n": 3, "u*log(u)": 4}, marks=pytest.mark.slow),
        pytest.param(DIFFUSION, (), {"1": 6, "exp(u)": 4, "u**n": 4, "u**(-4/3)": 5}, marks=pytest.mark.slow),
        # [BK]: potentials of the heat equation
        pytest.param("u_t = u_xx + f(x)*u", (), {"1": 6, "x": 6, "x**2": 6, "x**(-2)": 4}, marks=pytest.mark.slow),
    ],
)
def test_classifications(equation: str, candidates: tuple[str, ...], sizes: dict[str, int]) -> None:
    found = special_functions(equation, "f", candidates)
    assert {str(form): len(symmetries) for form, symmetries in found.items()} == sizes
    assert all(symmetries.is_complete for symmetries in found.values())


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("u_t = u_xx + evil(u)", r"whose name has one letter, such as f\(u\), got evil\(u\)"),
        ("u_t = u_xx + f(u, x)", r"one variable beside the unknowns \['u'\], got f\(u, x\)"),
        ("u_t = f*u_xx + f(u)", "different names"),
        ("u(x, t) = f(x)", "expected"),
    ],
)
def test_refusals(equation: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_symmetries(equation)


def test_no_such_function() -> None:
    for name in ("g", "u"):
        with pytest.raises(ConfigurationError, match="function: expected one of"):
            special_functions(REACTION, name)


@pytest.mark.parametrize("candidate", ["exp(z)", "k", "x + u", "exp(u_x)", "v(u)"])
def test_candidates_of_other_arguments(candidate: str) -> None:
    with pytest.raises(ConfigurationError, match="candidates: expected"):
        special_functions(REACTION, "f", [candidate])


@pytest.mark.parametrize(
    ("equation", "candidate", "size"),
    [
        ("E_t = E_xx + f(E)", "E", 6),
        ("u_t = u_xx + f(u_x)", "u_x", 6),
        ("u_t = diff(f(u^2)*u_x, x)", "u^4", 4),
    ],
)
def test_candidates_by_the_name_of_the_argument(equation: str, candidate: str, size: int) -> None:
    """Also one that is a constant elsewhere, a derivative, or an expression: linear ones, and a power."""
    ((form, found),) = special_functions(equation, "f", [candidate]).items()
    assert str(form).replace("**", "^") == candidate
    assert len(found) == size


@pytest.mark.slow
def test_two_functions() -> None:
    """One stays arbitrary while another takes a form."""
    found: Any = special_functions("u_t = diff(f(u)*u_x, x) + g(u)", "g", ["0"])
    assert {str(form): len(s) for form, s in found.items()} == {"0": 3}
    assert found[sp.S.Zero].statement.endswith(", for an arbitrary function f")


@pytest.mark.parametrize(
    ("rate", "right", "dimension"),
    [
        ("a(t)", "u_xx", 6),
        ("(1 + sin(3*t)/3)", "u_xx", 6),
        ("t", "(u_xx - u*u_x)", 5),
        ("a(t)", "(u_xxx + u*u_x)", 4),
    ],
)
def test_equations_in_a_time_of_their_own(rate: str, right: str, dimension: int) -> None:
    """As many symmetries as with a rate of one, and translations of the integral of the rate among them."""
    found = find_symmetries(f"u_t = {rate}*{right}")
    assert (len(found), found.is_complete) == (dimension, True)
    assert len(find_symmetries(f"u_t = {right}")) == dimension
    own = f"1/{rate}*∂_t" if "a" in rate else None
    assert own is None or any(generator.text == own for generator in found)
    assert own or verify(f"u_t = {rate}*{right}", ("0", f"1/{rate}", "0")) == 0
