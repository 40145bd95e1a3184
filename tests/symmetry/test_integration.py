"""General solutions of ordinary equations by symmetries pass through each initial value, as numerical ones do."""

import random
from typing import Any

import numpy as np
import pytest
import sympy as sp
from scipy.integrate import solve_ivp

from trivgeo.symmetry.equations.equation import EvolutionSystem, residuals_of
from trivgeo.symmetry.order_reduction import Quadrature, integrate_by_symmetries

X, Y = sp.symbols("x y")
MORE = pytest.mark.slow(reason="more equations")
POINTS, LENGTH, TOLERANCE = 5, 0.2, 1e-6


def solved(equation: str, start: list[float]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """Places ``[m]`` and y, y', ..., y^(n) there, ``[n + 1, m]``, from x, y, ..., y^(n - 1); ``None`` if undefined."""
    system = EvolutionSystem(residuals_of(equation), None)
    order = system.leaders[0][1][0]
    right = sp.lambdify([X, *(system.jet(0, (k,)) for k in range(order))], system.right[0], "cmath")
    try:
        first = complex(right(*map(complex, start)))
    except (ZeroDivisionError, ValueError):
        return None
    if first.imag != 0 or not np.isfinite(first.real):
        return None
    found = solve_ivp(
        lambda x, jet: [*jet[1:], complex(right(x, *jet)).real],
        (start[0], start[0] + LENGTH),
        start[1:],
        rtol=1e-10,
        atol=1e-11,
        t_eval=np.linspace(start[0], start[0] + LENGTH, POINTS),
    )
    last = [complex(right(x, *jet)).real for x, jet in zip(found.t, found.y.T, strict=True)]
    return found.t, np.stack([*found.y, last])


def values(e: sp.Expr, places: np.ndarray[Any, Any], heights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A formula of x and y along a curve, which may be complex there."""
    return np.array([complex(e.subs({X: x, Y: y}).evalf()) for x, y in zip(places, heights, strict=True)])


def rational_exponential(e: sp.Expr) -> sp.Expr:
    """A number near that of an exponential, as SymPy's roots take long with others."""
    return sp.Rational(str(sp.exp(e).evalf(25))) if e.is_number else sp.exp(e)


def member(family: Quadrature, places: np.ndarray[Any, Any], jets: np.ndarray[Any, Any]) -> dict[Any, Any] | None:
    """The constants of the member of a family that a numerical solution is; ``None`` if it is none."""
    free = [c for c in family.constants if family.slope.has(c)]
    rates = [family.slope]
    while len(rates) < len(free):
        rates.append(sp.diff(rates[-1], X) + family.slope * sp.diff(rates[-1], Y))
    candidates: list[dict[Any, Any]] = [] if free else [{}]
    # at the first place, or at the last one, where a root need not vanish
    for place, digits in ((0, 2), (-1, 9)):
        x, *jet = (sp.Rational(str(round(float(v), digits))) for v in (places[place], *jets[: len(free) + 1, place]))
        known = [rate.subs({X: x, Y: jet[0]}) - v for rate, v in zip(rates, jet[1:], strict=False)]
        tops = [sp.fraction(sp.together(e.replace(sp.exp, rational_exponential)))[0] for e in known]
        candidates += sp.solve(tops, free, dict=True) if free and not candidates else []
    for constants in candidates:
        slope, relation = family.slope.subs(constants), family.relation.subs(constants)
        if not np.allclose(values(slope, places, jets[0]), jets[1], atol=1e-4, rtol=TOLERANCE):
            continue
        if relation.has(sp.Integral):
            return constants
        last = [c for c in family.constants if c not in free]
        kept = values(relation.subs(dict.fromkeys(last, 0)), places, jets[0])
        if not np.isfinite(kept).all():
            continue
        if np.abs(kept - kept[0] if last else kept).max() < TOLERANCE:
            return constants | dict.fromkeys(last, kept[0])
    return None


@pytest.mark.parametrize(
    ("equation", "count"),
    [
        ("y' = y", 2),
        ("y' = y - y^2", 3),
        pytest.param("y' = x*y", 2, marks=MORE),
        pytest.param("y' = -x/y", 1, marks=MORE),
        pytest.param("y' = 1 + y^2", 1, marks=MORE),
        pytest.param("y' = x + y", 2, marks=MORE),
        pytest.param("y' = y/x + y^2/x^2", 2, marks=MORE),
        pytest.param("y' = exp(x - y)", 2, marks=MORE),
        pytest.param("y' = sqrt(y)", 2, marks=MORE),
        pytest.param("y' = x*y^3", 2, marks=MORE),
        ("y' = exp(y)*sin(x)", 1),
        ("y' = y/x + y^2*exp(x)", 2),
        pytest.param("y' = y*cos(x) + sin(2*x)", 1, marks=MORE),
        ("y'' = 0", 1),
        ("y'' = y'^2", 2),
        pytest.param("y'' = y", 1, marks=MORE),
        pytest.param("y'' = -y", 1, marks=MORE),
        pytest.param("y'' = y'^2/y", 1, marks=MORE),
        pytest.param("y'' = 2*y*y'", 3, marks=MORE),
        pytest.param("y'' = y^(-3)", 2, marks=MORE),
        pytest.param("y'' = exp(y)", 2, marks=MORE),
        pytest.param("y'' = y'^3", 2, marks=MORE),
        pytest.param("x^2*y'' = 2*y", 1, marks=MORE),
        pytest.param("y'' = exp(y')*sin(x)", 1, marks=MORE),
        pytest.param("y'' = (1 + y'^2)*x^3", 1, marks=MORE),
        pytest.param("y'' = y'/x + exp(x)*x", 1, marks=MORE),
        pytest.param("y'' = y' + x*y'^3", 3, marks=MORE),
        pytest.param("y''' = 0", 1, marks=MORE),
        pytest.param("y''' = y''", 1, marks=MORE),
        pytest.param("y''' = y''^2/y'", 2, marks=MORE),
    ],
)
def test_some_family_passes_through_every_initial_value(equation: str, count: int) -> None:
    """Random ones of either sign, and those whose derivatives or value vanish."""
    families = integrate_by_symmetries(equation)
    assert len(families) == count
    order, numbers = max(len(f.constants) for f in families), random.Random(1)
    starts = [
        [numbers.randint(8, 30) / 20, *(numbers.choice((-1, 1)) * numbers.randint(4, 28) / 20 for _ in range(order))]
        for _ in range(4)
    ]
    starts += [[0.7, *(0.6 if k < zeros else 0.0 for k in range(order))] for zeros in range(order)]
    known = [curve for start in starts if (curve := solved(equation, start)) is not None]
    assert len(known) >= 2
    for curve in known:
        assert any(member(family, *curve) is not None for family in families), curve[1][:, 0]


@pytest.mark.parametrize(("equation", "formula"), [("y' = y", "C1*exp(x)"), ("y'' = 0", "C1*x + C2")])
def test_constants_have_either_sign(equation: str, formula: str) -> None:
    (found,) = integrate_by_symmetries(equation)[0].explicit()
    assert sp.simplify(found - sp.sympify(formula)) == 0
