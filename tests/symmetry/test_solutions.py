"""Linear ordinary equations whose solutions have no formula, and equations that a change of variables makes linear."""

from __future__ import annotations

import pytest
import sympy as sp

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry import find_symmetries, verify
from trivgeo.symmetry.equations.equation import EvolutionSystem, residuals_of
from trivgeo.symmetry.equations.equivalent import simpler
from trivgeo.symmetry.result import Symmetries

x, t = sp.symbols("x t")
AIRY, BESSEL = "y'' = x*y", "x^2*y'' + x*y' + (x^2 - 1/9)*y = 0"


@pytest.fixture(scope="module")
def airy() -> Symmetries:
    return find_symmetries(AIRY)


def test_special_functions(airy: Symmetries) -> None:
    """With Airy's functions, whose values are mpmath's, the fields are symmetries, and no others put in are."""
    assert airy.algebra.name() == "sl(3, R)"
    assert "y1*y2' - y1'*y2 = 1" in repr(airy)
    fields = airy.with_solutions({"y1": sp.airyai(x), "y2": sp.pi * sp.airybi(x)})
    assert not any("y1" in str(field) or "y2" in str(field) for field in fields)
    assert all(verify(AIRY, field) == 0 for field in fields)
    with pytest.raises(AlgebraError, match="no symmetry"):
        airy.with_solutions({"y1": sp.airyai(2 * x)})
    with pytest.raises(ConfigurationError, match="functions: expected some of"):
        airy.with_solutions({"u": x})
    with pytest.raises(ConfigurationError, match="expected functions of known values, got y1, solutions of"):
        airy.group()
    with pytest.raises(ConfigurationError, match=r"settings: expected some of .*got \['n'\]"):
        airy.group(n=2)


@pytest.mark.slow
def test_bessel_functions() -> None:
    """The same with a Wronskian that is no constant."""
    order = sp.Rational(1, 3)
    fields = find_symmetries(BESSEL).with_solutions(
        {"y1": sp.besselj(order, x), "y2": sp.pi / 2 * sp.bessely(order, x)}
    )
    assert all(verify(BESSEL, field) == 0 for field in fields)


@pytest.mark.slow
def test_wronskian_closes() -> None:
    """The brackets are those of elementary solutions in their place: constants do not depend on which."""
    plain = find_symmetries("y'' + 2*y'/x + y = 0")  # sin(x)/x and cos(x)/x
    bessel = find_symmetries(BESSEL)
    assert plain.algebra.name() == bessel.algebra.name()
    c = bessel.algebra.structure_constants
    by_hand = {(0, 2): {0: -1}, (1, 2): {1: -1}, (3, 5): {4: -2}}  # y1 and v; y1 y1 and y2 y2
    for (i, j), expected in by_hand.items():
        assert {k: c[i][j][k] for k in range(8) if c[i][j][k] != 0} == expected


@pytest.mark.parametrize(
    ("equation", "linear", "new"),
    [
        ("y'' + y'^2 = x", "y'' = x*y", "exp(y)"),
        ("y'' = 2*cos(y)/sin(y)*y'^2 + sin(y)*cos(y)", "y'' + y = 0", "-cos(y)/sin(y)"),
        ("y*y'' + y'^2 = x", "y'' = x", "y^2/2"),
        ("y'' = y'^2/y + y*log(y)*x", "y'' = x*y", "log(y)"),
    ],
)
def test_linear_in_another_unknown(equation: str, linear: str, new: str) -> None:
    """The change of the unknown, by hand; a solution of one equation makes one of the other."""
    found = simpler(EvolutionSystem(residuals_of(equation)))
    assert found is not None
    expected = EvolutionSystem(residuals_of(linear))
    assert sp.simplify(found.system.right[0] - expected.right[0]) == 0
    slope = sp.diff(found.new[1] - sp.sympify(new.replace("^", "**")), sp.Symbol("y"))
    assert sp.simplify(slope) == 0


@pytest.mark.parametrize(
    ("equation", "particular"),
    [
        ("u_t = u_xx + sin(x)", "sin(x)"),
        ("u_t = u_xx + exp(2*x - t)", "-exp(2*x - t)/5"),
        ("u_tt = u_xx + x*cos(t)", "-x*cos(t)"),
        ("y'' + y = sin(x)", "-x*cos(x)/2"),
        ("y'' + 4*y = x^2*exp(x)", "(x^2/5 - 4*x/25 - 2/125)*exp(x)"),
    ],
)
def test_particular_solutions(equation: str, particular: str) -> None:
    """By hand, up to solutions of the homogeneous equation; both are checked."""
    system = EvolutionSystem(residuals_of(equation))
    found = simpler(system)
    assert found is not None
    (unknown,) = system.unknowns
    p = unknown - found.new[-1]
    by_hand = system.plain(particular, "particular")
    assert system.holds({unknown: p})
    assert system.holds({unknown: by_hand})
    assert found.system.holds({unknown: sp.expand(by_hand - p)})


def test_particular_solution_without_formula() -> None:
    """Airy's heat, forced: all symmetries of the homogeneous equation about p, of which the equation alone is known."""
    found, free = find_symmetries("u_t = u_xx + x*u + t"), find_symmetries("u_t = u_xx + x*u")
    assert found.is_complete
    assert "p_u: solution of u_t = " in repr(found)
    p, unknown = next(iter(found.solutions)), sp.Symbol("u")
    for field, plain in zip(found, free, strict=True):  # by hand, but for derivatives that the equation replaces
        xi, tau, eta = plain.components
        moved = eta.subs(unknown, unknown - p) + xi * sp.diff(p, x) + tau * sp.diff(p, t)
        assert field.components[:2] == (xi, tau)
        assert sp.expand(field.components[2] - moved) == 0
    assert found.algebra.structure_constants == free.algebra.structure_constants
    with pytest.raises(AlgebraError, match="no symmetry"):
        found.with_solutions({"p_u": x * t})
    with pytest.raises(ConfigurationError, match="with_solutions"):
        found.group()


@pytest.mark.slow
def test_particular_solution_put_in() -> None:
    """One that the search does not find makes symmetries, and others do not."""
    equation, p = "u_t = u_xx + diff(1/(1 + x^2), x, 2)", -1 / (1 + x**2)
    found = find_symmetries(equation)
    assert found.is_complete
    assert all(verify(equation, field) == 0 for field in found.with_solutions({"p_u": p}))
    with pytest.raises(AlgebraError, match="no symmetry"):
        found.with_solutions({"p_u": 2 * p})


@pytest.mark.slow
@pytest.mark.parametrize("force", ["t + x*u", "exp(x^2)", "t*exp(-x^2)", "1/x", "1 - x^2*u", "sin(x*t)"])
def test_forced_heat(force: str) -> None:
    """All six symmetries, whether or not there is a particular solution in closed form."""
    found = find_symmetries(f"u_t = u_xx + {force}")
    assert found.is_complete
    assert len(found) == 6
    assert found.algebra.name() == find_symmetries("u_t = u_xx").algebra.name()


@pytest.mark.slow
def test_no_formula_is_said() -> None:
    """A forced equation without a particular solution in closed form, and one that is not linear in any way."""
    assert "p_y: solution of y'' = x*y + 1/x" in repr(find_symmetries("y'' = x*y + 1/x"))
    assert simpler(EvolutionSystem(residuals_of("y'' = 6*y^2 + x"))) is None
    assert simpler(EvolutionSystem(residuals_of("y'' = x*y"))) is None
