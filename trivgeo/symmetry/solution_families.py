"""Families of solutions of an ordinary equation, and whether one holds another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import sympy as sp

from trivgeo.symmetry.integration_constants import with_limits
from trivgeo.symmetry.numeric import INFINITE, vanishes
from trivgeo.symmetry.singular_solutions import Plane, slope_rates

__all__ = ["SolutionFamily", "not_held"]


class SolutionFamily(NamedTuple):
    """Solutions, one for each value of the constants.

    Attributes:
        slope: y' in x, y and the constants.
        relation: what vanishes on the solutions.
        constants: those that are held.
    """

    slope: sp.Expr
    relation: sp.Expr
    constants: tuple[sp.Symbol, ...]

    @classmethod
    def of(
        cls, slope: sp.Expr, relation: sp.Expr, constants: Sequence[sp.Symbol], solves: Callable[[sp.Expr], bool]
    ) -> SolutionFamily:
        """Return the family with its constants numbered from one, in a form that has as many members as may be.

        Args:
            slope: y' of the solutions.
            relation: an expression that is zero on them.
            constants: all constants of the order; fewer may occur.
            solves: see `with_limits`.
        """
        # all constants but the last belong to the slope
        held = [c for c in constants if slope.has(c) or relation.has(c)]
        if len(held) == len(constants) and slope.free_symbols.issuperset(constants[:-1]):
            return cls(*with_limits(slope, relation, constants, solves), tuple(constants))
        names = dict(zip(held, constants, strict=False))
        slope, relation = (e.subs(names, simultaneous=True) for e in (slope, relation))
        return cls(slope, relation, tuple(names.values())[: len(constants) - 1])


def not_held(
    plane: Plane, special: Sequence[SolutionFamily], general: Sequence[SolutionFamily]
) -> list[SolutionFamily]:
    """Return those of some families that no others hold.

    Args:
        plane: x and y.
        special: the families, with fewer constants than the general ones.
        general: the others.
    """
    kept: list[SolutionFamily] = []
    for family in sorted(special, key=lambda family: -len(family.constants)):
        if not any(_holds(plane, other, family) for other in (*general, *kept)):
            kept.append(family)
    return kept


def _holds(plane: Plane, general: SolutionFamily, special: SolutionFamily) -> bool:
    """Whether values of the constants of one family give the other."""
    x, y = plane
    if len(special.constants) > len(general.constants):
        return False
    others = {c: sp.Dummy(c.name) for c in special.constants}
    relation, slope = (e.subs(others) for e in (special.relation, special.slope))
    # curves y(x), for values of constants
    on = {} if (relation - y).has(y) else {y: y - relation}
    free = [c for c in general.constants[:-1] if general.slope.has(c)]
    if not on and not free:
        return bool(vanishes(general.slope - slope))
    if not general.constants:
        return bool(vanishes(general.relation.subs(on)))
    mine, theirs = (slope_rates(plane, e, len(free)) for e in (general.slope, slope))
    try:
        equations = [sp.fraction(sp.together(a - b))[0] for a, b in zip(mine, theirs, strict=True)]
        solved = sp.solve(equations, free, dict=True) if free else [{}]
    except NotImplementedError:
        return False
    for values in solved:
        exact = {c: sp.simplify(values.get(c, c).subs(on)) for c in free}
        reached = [*exact.values(), general.slope.subs(exact).subs(on), general.relation.subs(exact).subs(on)]
        if all(map(_is_finite, reached)) and not any(e.has(x, y) for e in exact.values()):
            # another last constant is what is left
            return not on or bool(vanishes(sp.diff(reached[-1], x)))
    return False


def _is_finite(e: sp.Expr) -> bool:
    """Whether an expression has a value, at some point."""
    if e.has(*INFINITE):
        return False
    symbols = sorted(e.free_symbols, key=str)
    value = e.subs({s: sp.Rational(2 * k + 3, 7) for k, s in enumerate(symbols)}).evalf()
    return value.has(sp.Integral) or bool(value.is_number and not value.has(*INFINITE))
