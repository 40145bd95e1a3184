"""Ordinary equations by symmetries, beside numerical solutions and SymPy's own check of formulas."""

from functools import lru_cache

import numpy as np
import pytest
import sympy as sp
from scipy.integrate import solve_ivp

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry import find_symmetries, order_reduction
from trivgeo.symmetry.equations.equation import EvolutionSystem, residuals_of
from trivgeo.symmetry.equations.unnamed_functions import Arbitrary, Particular, Solution
from trivgeo.symmetry.order_reduction import (
    Solutions,
    _equation,
    _num_not_passed,
    _SolutionFamily,
    integrate_by_symmetries,
    reduce_order,
)
from trivgeo.verdict import Verdict

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


def curves(equation: str) -> set[str]:
    """The solutions as formulas."""
    return {str(sp.expand(h)) for family in integrated(equation) for h in family.explicit()}


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("y*y' + y = 0", {"C1 - x", "0"}),
        ("(y - x)*(y' - y) = 0", {"C1*exp(x)", "x", "0"}),
        ("(y' - y)*(y' + y) = 0", {"C1*exp(x)", "C1*exp(-x)", "0"}),
        ("y'*y'' + y' = 0", {"C1*x + C2 - x**2/2", "C1"}),
        pytest.param("(y' - 1)*(y'' + y'^2) = 0", {"log(C1 - x) + C2", "-C1 + x", "C1"}, marks=MORE),
        # of the curves y = C, on which the factor of y'' vanishes, one is a solution
        pytest.param("y'*(y'' - y') + y*(y - 1) = 0", None, marks=MORE),
    ],
)
def test_no_factor_of_an_equation_is_lost(equation: str, expected: set[str] | None) -> None:
    """The solved form of an equation has the solutions of one of its factors."""
    if expected is None:
        with pytest.raises(AlgebraError, match="symmetries"):
            integrated(equation)
        return
    found = curves(equation)
    assert len(found) == len(expected)
    assert {e for e in expected if "log" not in e} <= found
    (residual,) = residuals_of(equation)
    for h in found:
        assert sp.simplify(residual.subs(sp.Function("y")(X), sp.sympify(h)).doit()) == 0
    assert integrated(equation).verdict


@pytest.mark.parametrize("equation", ["y'' = x*y'", pytest.param("y'' = -y'/x", marks=MORE)])
def test_no_function_without_a_formula(equation: str) -> None:
    """Symmetries of linear equations hold their solutions, whose formulas are not known."""
    found = integrated(equation)
    assert found.verdict
    for family in found:
        assert not family.relation.atoms(Arbitrary, Particular, Solution)
        (formula,) = family.explicit()
        assert sp.simplify(EvolutionSystem(residuals_of(equation), None).residuals_at({Y: formula})[0]) == 0
        assert len(formula.free_symbols & set(family.constants)) == 2


def test_unknown_solutions_are_no_quadrature() -> None:
    with pytest.raises(AlgebraError, match="got 1 symmetry"):
        integrated("y'' = x*y")


@pytest.mark.slow(reason="a general solution that is not real takes half a minute; other verdicts are quick")
def test_real_branches_alone() -> None:
    """Four relations for sqrt(-C^2) were no solutions for any real constant."""
    found = integrated("y'' = y'^2/y - y^2")
    assert len(found) == 2
    assert found.verdict
    # y'^2 = y^2 (C - 2 y)
    for family in found:
        square = sp.simplify(family.slope**2 - Y**2 * (family.constants[0] - 2 * Y))
        assert square == 0


def test_some_solutions_are_said_to_be_some() -> None:
    """A family too few is noticed: the other root, or the curve that the general solution lacks."""
    equation = _equation("y'' = y^(-3)")
    families = [_SolutionFamily(f.slope, f.relation, f.constants) for f in integrated("y'' = y^(-3)")]
    assert _num_not_passed(equation, families) == 0
    assert _num_not_passed(equation, families[:1]) > 3
    square = _equation("y' = y^2")
    both = [_SolutionFamily(f.slope, f.relation, f.constants) for f in integrated("y' = y^2")]
    assert (_num_not_passed(square, both), _num_not_passed(square, both[:1])) == (0, 1)
    said = Solutions(list(integrated("y' = y^2"))[:1], Verdict(("some solutions",)))
    assert repr(said).startswith("not known to be all solutions (some solutions):")
    assert repr(integrated("y' = y^2")).startswith("all solutions:")


def test_symmetries_of_a_reduced_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it inherits, by Lie's condition for z' = f(r, z), and no others."""
    equation = _equation("y'' = exp(y)")
    shift, scaling = (sp.S.One, sp.S.Zero), (X, sp.Integer(-2))
    used: list[tuple[sp.Expr, ...]] = []

    def record(lower: object, fields: list[tuple[sp.Expr, ...]], *rest: object) -> list[object]:
        used.extend(fields)
        return []

    monkeypatch.setattr(order_reduction, "_solutions", record)
    for first, other, count in ((shift, scaling, 1), (scaling, shift, 0)):
        reduction = order_reduction._reduction(equation, first, 1)
        r, z = reduction.variables
        used.clear()
        list(order_reduction._integrands(reduction, equation.plane, first, [other], sp.symbols("C1 C2"), 1))
        assert len(used) == count
        for a, b in used:
            f = reduction.equation
            grows = b.diff(r) + (b.diff(z) - a.diff(r)) * f - a.diff(z) * f**2
            assert sp.simplify(grows - a * f.diff(r) - b * f.diff(z)) == 0


@pytest.mark.parametrize(
    ("equation", "field", "slope"),
    [
        ("y'' = y'^2", (sp.S.One, sp.S.Zero), sp.S.Zero),  # y = C, along the shift of x
        ("y'' = x*y'^2 - y*y'", (X, Y), Y / X),  # y = C x, along the scaling
    ],
)
def test_orbits_that_a_quadrature_leaves_out(equation: str, field: tuple[sp.Expr, sp.Expr], slope: sp.Expr) -> None:
    """Curves along which r is constant: no function z(r) gives them."""
    constants = sp.symbols("C1 C2")
    found = [each for each, _ in order_reduction._solutions(_equation(equation), [field], constants, 1) if each]
    (orbits,) = (each for each in found if sp.simplify(each[0] - slope) == 0)
    left = orbits[1] + constants[1]
    assert not (left.diff(X) + slope * left.diff(Y)).simplify()
    assert sp.simplify(left.diff(Y)) != 0
