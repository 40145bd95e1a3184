"""Ordinary equations by symmetries, beside numerical solutions and SymPy's own check of formulas."""

from functools import lru_cache

import numpy as np
import pytest
import sympy as sp
from scipy.integrate import solve_ivp

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry import find_symmetries
from trivgeo.symmetry.equations.equation import EvolutionSystem, residuals_of
from trivgeo.symmetry.order_reduction import integrate_by_symmetries, reduce_order

X, Y = sp.symbols("x y")
MORE = pytest.mark.slow(reason="more equations")
integrated = lru_cache(integrate_by_symmetries)


@pytest.mark.parametrize(
    ("equation", "start", "constants", "branches"),
    [
        ("y' = y/x + y^2/x^2", (1.0, 0.5), (), 1),
        ("y' = (x + y)/x", (1.0, 0.5), (), 1),
        pytest.param("y'' = y'^2/y + y'/x", (1.0, 1.0), (-0.7,), 1, marks=MORE),
        ("y'' = y^(-3)", (0.3, 1.0), (0.1,), 2),
        ("y'' = y'", (0.0, 0.5), (-0.7,), 1),
        ("y'' = y'^2", (0.0, 0.5), (-0.7,), 1),
        pytest.param("y'' = exp(y)", (0.0, 0.1), (1 / 3,), 2, marks=MORE),
        pytest.param("y'' = exp(y)", (0.0, 0.1), (-1 / 3,), 2, marks=MORE),  # the energy has either sign
        pytest.param("y'' = y^2", (0.0, 1.0), (1 / 3,), 2, marks=MORE),
        pytest.param("y'' = y^2", (0.0, 1.0), (-1 / 3,), 2, marks=MORE),
        pytest.param("y'' = 2*y*y'", (0.0, 0.2), (3.0,), 1, marks=MORE),
        pytest.param("y''' = y''^2/y'", (0.0, 1.0), (0.8, 0.4), 1, marks=MORE),
    ],
)
def test_along_numerical_solutions(
    equation: str, start: tuple[float, float], constants: tuple[float, ...], branches: int
) -> None:
    """A numerical solution that starts with the slope of a relation keeps it, and its last constant."""
    system = EvolutionSystem(residuals_of(equation), None)
    # solutions that no constants of these give have fewer
    found = [family for family in integrated(equation) if len(family.constants) > len(constants)]
    assert len(found) == branches
    for quadrature in found:
        order = len(quadrature.constants)
        assert order == len(constants) + 1
        values = dict(zip(quadrature.constants, constants, strict=False))
        rates = [quadrature.slope.subs(values)]
        while len(rates) < order:
            rates.append(sp.diff(rates[-1], X) + rates[0] * sp.diff(rates[-1], Y))
        first = [complex(rate.subs({X: start[0], Y: start[1]})) for rate in rates[: order - 1]]
        assert max((abs(value.imag) for value in first), default=0.0) < 1e-12
        right = sp.lambdify([X, *(system.jet(0, (k,)) for k in range(order))], system.right[0])
        solved = solve_ivp(
            lambda x, state, right=right: [*state[1:], right(x, *state)],
            (start[0], start[0] + 0.3),
            [start[1], *(value.real for value in first)],
            rtol=1e-11,
            atol=1e-12,
            t_eval=np.linspace(start[0], start[0] + 0.3, 7),
        )
        slopes = sp.lambdify([X, Y], rates[0])
        expected = solved.y[1] if order > 1 else [right(x, y) for x, y in zip(solved.t, solved.y[0], strict=True)]
        measured = [complex(slopes(x, complex(y))).real for x, y in zip(solved.t, solved.y[0], strict=True)]
        assert np.allclose(measured, expected, rtol=1e-8)
        if not quadrature.relation.has(sp.Integral):
            relation = sp.lambdify([X, Y], quadrature.relation.subs(values | {quadrature.constants[-1]: 0}))
            kept = [complex(relation(x, complex(y))).real for x, y in zip(solved.t, solved.y[0], strict=True)]
            assert np.ptp(kept) < 1e-8


@pytest.mark.parametrize(
    "equation",
    [
        "y' = y/x + y^2/x^2",
        pytest.param("y'' = y'^2/y + y'/x", marks=MORE),
        pytest.param("y''' = y''^2/y'", marks=MORE),
    ],
)
def test_explicit_solutions(equation: str) -> None:
    system = EvolutionSystem(residuals_of(equation), None)
    for quadrature in integrated(equation):
        for formula in quadrature.explicit():
            assert len(formula.free_symbols & set(quadrature.constants)) == len(quadrature.constants)
            assert system.holds({Y: formula})


def test_blasius() -> None:
    """Two symmetries leave an equation of first order; the shift of x gives y' as a function of y, as in textbooks."""
    blasius = "y''' + y*y'' = 0"
    found = find_symmetries(blasius)
    shift = next(g for g in found if g.text == "∂_x")
    reduction = reduce_order(blasius, shift)
    assert reduction.coordinates == (Y, X)
    r, z = reduction.variables
    # p(y) = y' = 1/z solves p p'' + p'^2 + y p' = 0
    p = sp.Function("p")(r)
    (second,) = sp.solve(p * p.diff(r, 2) + p.diff(r) ** 2 + r * p.diff(r), p.diff(r, 2))
    slope = sp.Symbol("slope")
    inside = {p.diff(r): slope, p: 1 / z}
    # z = 1/p: z'' = 2 p'^2 / p^3 - p'' / p^2, and p' = -z'/z^2
    expected = (2 * slope**2 * z**3 - z**2 * second.subs(inside)).subs(slope, -reduction.jets[1] / z**2)
    assert sp.simplify(reduction.equation - expected) == 0
    assert "where r = y, s = x, z = ds/dr" in repr(reduction)
    with pytest.raises(AlgebraError, match="2 symmetries, which leave an equation of order 1"):
        integrate_by_symmetries(blasius)


def test_refused() -> None:
    heat = find_symmetries("u_t = u_xx")
    with pytest.raises(ConfigurationError, match="one ordinary equation"):
        reduce_order("u_t = u_xx", heat[0])
    with pytest.raises(ConfigurationError, match="one ordinary equation"):
        integrate_by_symmetries(["y' = z", "z' = y"])
    with pytest.raises(ConfigurationError, match="expected a symmetry of the equation"):
        reduce_order("y'' = exp(y)", find_symmetries("y'' = x*y^2")[0])
    with pytest.raises(ConfigurationError, match="generator"):
        reduce_order("y'' = exp(y)", "x")  # type: ignore[arg-type]
    with pytest.raises(AlgebraError, match="expected a relation that is solved for y"):
        integrated("y'' = y^(-3)")[0].explicit()


@pytest.mark.parametrize("equation", ["y'^2 = x", "y''^2 = y' + y"])
def test_equations_of_several_branches_are_refused(equation: str) -> None:
    with pytest.raises(ConfigurationError, match="write the equation of each branch"):
        integrate_by_symmetries(equation)


@pytest.mark.parametrize("equation", ["y' = sqrt(y^2)", "y'' = (x*y'^2)^(1/2)"])
def test_roots_of_squares_are_refused(equation: str) -> None:
    """In place of the solutions of one sign, for all."""
    with pytest.raises(ConfigurationError, match="write the equation of each sign"):
        integrate_by_symmetries(equation)
