"""Densities and fluxes of conservation laws from their multipliers, by a homotopy, exactly."""

from __future__ import annotations

from collections.abc import Sequence

import sympy as sp

from trivgeo.errors import AlgebraError
from trivgeo.symmetry.equation import EvolutionSystem, Index
from trivgeo.symmetry.numeric import vanishes

__all__ = ["divergence", "fluxes"]

_MAX_REDUCTIONS = 200  # integrations by parts of one density


def divergence(system: EvolutionSystem, components: Sequence[sp.Expr]) -> sp.Expr:
    """Return the total divergence of ``components``, one for each variable of ``system``."""
    return sp.Add(*(system.total_off_solutions(c, i) for i, c in enumerate(components)))


def fluxes(system: EvolutionSystem, expression: sp.Expr, time: int) -> list[sp.Expr]:
    r"""Components P with Div P = expression, where the Euler operators of the expression vanish; density first reduced.

    Along :math:`u_s = b + s (u - b)` the derivative of the expression is, by parts, a divergence (Olver 1993, section
    5.4), which is integrated over s; constants b are 0 or else 1. Derivatives in space that stand alone in the density
    are integrated by parts, so that its order is low. The result is checked.

    Args:
        system: the equations, for their jets.
        expression: in jets.
        time: the place of the variable of the density.

    Raises:
        AlgebraError: an integral has no closed form.
    """
    for base in (sp.S.Zero, sp.S.One):
        components = _homotopy(system, expression, base, time)
        if components is None:
            continue
        components = [_without_constants(system, c, i) for i, c in enumerate(_reduced(system, components, time))]
        if vanishes(sp.expand(divergence(system, components) - expression)):
            return components
    raise AlgebraError(f"expected a divergence whose flux has a closed form, got {expression}")


def _homotopy(system: EvolutionSystem, expression: sp.Expr, base: sp.Expr, time: int) -> list[sp.Expr] | None:
    s = sp.Dummy("s", positive=True)
    unknowns = set(system.unknowns)
    every = system.jets_in(expression)
    components = [sp.S.Zero] * len(system.variables)
    for symbol, a, index in every:
        factor = sp.diff(expression, symbol)
        current = index
        while any(current):
            direction = max(i for i, k in enumerate(current) if k)
            current = _moved(current, direction, -1)
            lower = system.jet(a, current)
            components[direction] += (lower - base if lower in unknowns else lower) * _scaled(system, factor, base, s)
            factor = -system.total_off_solutions(factor, direction)
    result = [_integrated(c, s) for c in components]
    start = expression.xreplace({z: base if z in unknowns else sp.S.Zero for z, _, _ in every})
    if start.has(sp.nan, sp.zoo, sp.oo) or any(c is None for c in result):
        return None
    found = [c for c in result if c is not None]
    if start != 0:
        found[time] += sp.integrate(start, system.variables[time])
    return [sp.expand(c) for c in found]


def _scaled(system: EvolutionSystem, factor: sp.Expr, base: sp.Expr, s: sp.Symbol) -> sp.Expr:
    unknowns = set(system.unknowns)
    return factor.xreplace({z: base + s * (z - base) if z in unknowns else s * z for z, _, _ in system.jets_in(factor)})


def _integrated(expression: sp.Expr, s: sp.Symbol) -> sp.Expr | None:
    """The integral over s from 0 to 1; ``None`` without a closed form."""
    positive = {z: sp.Dummy(z.name, positive=True) for z in expression.free_symbols if z != s}
    total, others = sp.S.Zero, sp.S.Zero
    for term in sp.Add.make_args(sp.expand(expression.xreplace(positive))):
        constant, moving = term.as_independent(s, as_Add=False)
        power = moving.as_base_exp()[1] if moving.as_base_exp()[0] == s else sp.S.Zero if moving == 1 else None
        if power is not None and not power.has(s) and power != -1:
            total += constant / (power + 1)
        else:
            others += term
    if others != 0:
        integral = sp.integrate(sp.factor_terms(others), s)
        if integral.has(sp.Integral, sp.Piecewise):
            return None
        ends = [integral.subs(s, end) for end in (1, 0)]
        if any(e.has(sp.nan, sp.zoo, sp.oo) for e in ends):
            return None
        total += sp.expand(sp.simplify(ends[0] - ends[1]))
    return total.xreplace({dummy: z for z, dummy in positive.items()})


def _without_constants(system: EvolutionSystem, component: sp.Expr, direction: int) -> sp.Expr:
    """Without terms that do not depend on the unknowns nor on the variable in which they are differentiated."""
    symbols = [z for z, _, _ in system.jets_in(component)]
    gathered: dict[sp.Expr, sp.Expr] = {}
    for term in sp.Add.make_args(component):
        constant, moving = term.as_independent(*symbols, *system.variables, as_Add=False)
        gathered[moving] = gathered.get(moving, sp.S.Zero) + constant
    kept = (e for e in gathered if system.jets_in(e) or e.has(system.variables[direction]))
    return sp.Add(*(sp.cancel(gathered[e]) * e for e in kept))


def _reduced(system: EvolutionSystem, components: list[sp.Expr], time: int) -> list[sp.Expr]:
    """The same divergence, with a density of lower order: less total derivatives in space, which go to the fluxes."""
    for _ in range(_MAX_REDUCTIONS):
        step = _by_parts(system, components[time], time)
        if step is None:
            break
        direction, part = step
        components = list(components)
        components[time] = sp.expand(components[time] - system.total_off_solutions(part, direction))
        components[direction] = sp.expand(components[direction] + system.total_off_solutions(part, time))
    return components


def _by_parts(system: EvolutionSystem, density: sp.Expr, time: int) -> tuple[int, sp.Expr] | None:
    """A direction of space and what has the highest terms of a density as part of its derivative."""
    for term in sp.Add.make_args(density):
        jets = system.jets_in(term, derivatives=True)
        if not jets:
            continue
        symbol, a, index = max(jets, key=lambda jet: _rank(jet[1], jet[2]))
        if sp.diff(term, symbol, 2) != 0:
            continue
        for direction, count in enumerate(index):
            if direction == time or not count:
                continue
            lower_index = _moved(index, direction, -1)
            lower = system.jet(a, lower_index)
            rest = sp.diff(term, symbol)
            if all(_rank(b, j) <= _rank(a, lower_index) for _, b, j in system.jets_in(rest)):
                part = sp.integrate(rest, lower)
                if not part.has(sp.Integral, sp.Piecewise):
                    return direction, part
    return None


def _rank(a: int, index: Index) -> tuple[int, int, Index]:
    return sum(index), a, index


def _moved(index: Index, direction: int, by: int) -> Index:
    return tuple(k + by if i == direction else k for i, k in enumerate(index))
