"""Solutions of ordinary equations that a reduction by a symmetry leaves out: its orbits, and where it vanishes.

In coordinates r, s in which the symmetry is d/ds, curves s(r) are found; curves of constant r are not among them.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy as sp

from trivgeo.symmetry.numeric import INFINITE, vanishes

__all__ = ["Plane", "curves_left_out", "orbits_solve", "slope_rates", "slope_solves", "solves"]


Plane = tuple[sp.Symbol, sp.Symbol]


def slope_rates(plane: Plane, slope: sp.Expr, order: int) -> list[sp.Expr]:
    """y', ..., y^(n) in x and y along curves of a slope.

    Args:
        plane: x and y.
        slope: y'.
        order: n.
    """
    rates = [slope]
    while len(rates) < order:
        rates.append(sp.diff(rates[-1], plane[0]) + slope * sp.diff(rates[-1], plane[1]))
    return rates


def orbits_solve(plane: Plane, right: sp.Expr, jets: Sequence[sp.Symbol], field: Sequence[sp.Expr]) -> bool:
    """Return True if all orbits of a field are solutions.

    Args:
        plane: x and y.
        right: y^(n) in terms of the others.
        jets: y, ..., y^(n - 1), as symbols.
        field: its components.
    """
    return field[0] != 0 and slope_solves(plane, right, jets, sp.cancel(field[1] / field[0]))


def curves_left_out(plane: Plane, right: sp.Expr, jets: Sequence[sp.Symbol], field: Sequence[sp.Expr]) -> list[sp.Expr]:
    """Return single solutions y(x) that are orbits of a symmetry, or on which it vanishes.

    Args:
        plane: see `orbits_solve`, like ``right`` and ``jets``.
        field: the components of the symmetry.
    """
    y = plane[1]
    places = [*field]
    if field[0] != 0:
        places.append(_excess(plane, right, jets, sp.cancel(field[1] / field[0])))
    found: list[sp.Expr] = []
    for place in places:
        if place.has(*INFINITE):
            continue
        top = sp.factor(sp.fraction(sp.together(place))[0])
        for factor in sp.Mul.make_args(top):
            if not factor.has(y):
                continue
            try:
                curves = [sp.simplify(sp.expand_log(h, force=True)) for h in sp.solve(factor, y)]
            except NotImplementedError:
                continue
            found.extend(h for h in curves if h not in found and _curve_solves(plane, right, jets, h))
    return found


def solves(plane: Plane, right: sp.Expr, jets: Sequence[sp.Symbol], slope: sp.Expr, relation: sp.Expr) -> bool:
    """Return True if curves of a slope, or the one curve y(x) that a relation is, solve an equation.

    Args:
        plane: see `orbits_solve`, like ``right`` and ``jets``.
        slope: y' of the curves, with constants.
        relation: what vanishes on them.
    """
    if not (relation - plane[1]).has(plane[1]):
        return _curve_solves(plane, right, jets, plane[1] - relation)
    return slope_solves(plane, right, jets, slope)


def slope_solves(plane: Plane, right: sp.Expr, jets: Sequence[sp.Symbol], slope: sp.Expr) -> bool:
    """Return True if curves of a slope solve an equation, whatever its constants.

    Args:
        plane: see `orbits_solve`, like ``right`` and ``jets``.
        slope: y' of the curves.
    """
    return bool(vanishes(_excess(plane, right, jets, slope)))


def _curve_solves(plane: Plane, right: sp.Expr, jets: Sequence[sp.Symbol], curve: sp.Expr) -> bool:
    """Whether a function y(x) solves an equation."""
    if curve.has(*INFINITE, sp.I):
        return False
    x = plane[0]
    there = right.xreplace({jet: sp.diff(curve, x, k) for k, jet in enumerate(jets)})
    return not there.has(*INFINITE) and bool(vanishes(sp.diff(curve, x, len(jets)) - there))


def _excess(plane: Plane, right: sp.Expr, jets: Sequence[sp.Symbol], slope: sp.Expr) -> sp.Expr:
    """How much curves of a slope miss an equation by."""
    rates = slope_rates(plane, slope, len(jets))
    return rates[-1] - right.xreplace(dict(zip(jets[1:], rates[:-1], strict=True)))
