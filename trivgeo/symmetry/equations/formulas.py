"""Flows of vector fields, their invariants, and the images of solutions under flows, as formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy as sp

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry.equations.equation import EvolutionSystem
from trivgeo.symmetry.equations.numeric import INFINITE, vanishes

Expressions = tuple[sp.Expr, ...]


def antiderivative(function: sp.Expr, variable: sp.Symbol, **options: Any) -> sp.Expr:
    """Return an integral of a function over a variable; one without a formula stays a `sympy.Integral`.

    SymPy writes exponential integrals with arguments on the Riemann surface of the logarithm. Here they are in the
    plane, if that is an integral, too.

    Args:
        **options: keywords of `sympy.integrate`.
    """
    found = sp.integrate(function, variable, **options)
    if found.has(sp.exp_polar):
        found = found.replace(sp.exp_polar, sp.exp)
        if not vanishes(sp.diff(found, variable) - function):
            return sp.Integral(function, variable)
    return found


def flow(components: Sequence[sp.Expr], variables: Sequence[sp.Symbol], s: sp.Symbol) -> Expressions:
    """Return the flow of a vector field: the solution of dz/ds = X(z) with z(0) = z, checked.

    Variables are taken in an order in which each depends on those before. A variable that depends on itself is
    integrated if the equation is linear, or separable with a power. Several variables that depend on each other are
    integrated if they are linear and the matrix commutes with its integral.

    Raises:
        AlgebraError: no closed form was found.
    """
    found: dict[sp.Symbol, sp.Expr] = {}
    left = list(zip(variables, components, strict=True))
    while left:
        block = _first_block(left, set(found))
        inside = [(z, c) for z, c in left if z in block]
        left = [(z, c) for z, c in left if z not in block]
        current = [c.xreplace(found) for _, c in inside]
        own = [z for z, _ in inside]
        moved = _one(current[0], own[0], s) if len(own) == 1 else _linear(current, own, s)
        if moved is None:
            raise AlgebraError(f"expected a field with a flow in closed form, got d/ds {own} = {current}")
        found |= dict(zip(own, moved, strict=True))
    result = tuple(found[z] for z in variables)
    here = dict(zip(variables, result, strict=True))
    for z, value, component in zip(variables, result, components, strict=True):
        if not vanishes(sp.diff(value, s) - component.xreplace(here)) or not vanishes(value.subs(s, 0) - z):
            raise AlgebraError(f"expected a field with a flow in closed form, got {tuple(components)} of {variables}")
    return result


def _first_block(left: Sequence[tuple[sp.Symbol, sp.Expr]], known: set[sp.Symbol]) -> set[sp.Symbol]:
    """The smallest set of variables whose components depend on this set and on known variables alone."""
    names = {z for z, _ in left}
    needs = {z: (c.free_symbols & names) | {z} for z, c in left}
    blocks = []
    for z in needs:
        block = {z}
        while (grown := set().union(*(needs[w] for w in block))) != block:
            block = grown
        blocks.append(block)
    return min(blocks, key=len)


def _one(rate: sp.Expr, z: sp.Symbol, s: sp.Symbol) -> Expressions | None:
    """The solution of dz/ds = rate(z, s) for rates linear in z, or powers of a linear function of z; else ``None``."""
    slope = sp.simplify(sp.diff(rate, z))
    if not slope.has(z):
        offset = sp.simplify(rate - slope * z)
        # the integral is needed up to a constant: logarithms are taken of the ratio to their argument at s = 0
        grown = antiderivative(slope, s).replace(sp.log, lambda a: sp.log(sp.simplify(a / a.subs(s, 0))))
        factor = sp.simplify(sp.exp(grown - grown.subs(s, 0)))
        total = antiderivative(sp.simplify(offset / factor), s)
        value = factor * (z + total - total.subs(s, 0))
        return None if value.has(sp.Integral, sp.Piecewise) else (sp.simplify(value),)
    if rate.has(s):
        return None
    # the rate is c (z - a)^k, in particular a square
    power = sp.simplify(rate / slope)
    k = sp.simplify(1 / sp.diff(power, z))
    if k.has(z) or k == 1:
        return None
    base = sp.expand(k * power)  # z - a
    factor = sp.simplify(rate / base**k)
    if factor.has(z):
        return None
    # (z - a)^(1 - k) is linear in s
    start = sp.simplify(z - base)
    return (sp.simplify(start + base * (1 + (1 - k) * factor * s * base ** (k - 1)) ** (1 / (1 - k))),)


def _linear(rates: Sequence[sp.Expr], own: Sequence[sp.Symbol], s: sp.Symbol) -> Expressions | None:
    """The solution of dz/ds = A(s) z + b(s) if A commutes with its integral, else ``None``."""
    matrix = sp.Matrix(rates).jacobian(list(own))
    total = matrix.applyfunc(lambda e: sp.integrate(e, (s, 0, s)))
    if matrix.has(*own) or not all(map(vanishes, matrix * total - total * matrix)):
        return None
    offset = (sp.Matrix(rates) - matrix * sp.Matrix(own)).applyfunc(sp.simplify)
    grown = total.exp().applyfunc(lambda e: sp.simplify(e.rewrite(sp.cos) if e.has(sp.I) else e))
    if any(offset):
        r = sp.Dummy("r")
        since = (total - total.subs(s, r)).exp() if matrix.has(s) else grown.subs(s, s - r)
        inside = (since * offset.subs(s, r)).applyfunc(sp.expand)
        offset = inside.applyfunc(lambda e: sp.integrate(e, (r, 0, s)))
    result = (grown * sp.Matrix(own) + offset).applyfunc(sp.simplify)
    return None if result.has(sp.Integral, sp.Piecewise) else tuple(result)


def invariants(components: Sequence[sp.Expr], variables: Sequence[sp.Symbol]) -> Expressions:
    """Return independent invariants of the flow of a field, one less than variables, checked.

    Every point is moved until one variable has a given value, 0 or 1. The values of the other variables there are the
    same for the whole orbit (moving frames; Fels and Olver 1999).

    Raises:
        AlgebraError: no closed form was found, or the field is zero.
    """
    s = sp.Dummy("s", real=True)
    moved = flow(components, variables, s)
    for place in sorted(range(len(variables)), key=lambda i: (components[i] == 0, sp.count_ops(moved[i]))):
        if components[place] == 0:
            break
        for value in (0, 1):
            result = sliced(moved, place, value, s)
            rates = [sum(c * sp.diff(i, z) for c, z in zip(components, variables, strict=True)) for i in result]
            if len(result) == len(variables) - 1 and all(map(vanishes, rates)):
                return result
    raise AlgebraError(f"expected a field with invariants in closed form, got {tuple(components)} of {variables}")


def sliced(moved: Expressions, place: int, value: Any, s: sp.Symbol) -> Expressions:
    """Return the second result of `landing`; empty if there is no formula."""
    found = landing(moved, place, value, s)
    return () if found is None else found[1]


def landing(moved: Expressions, place: int, value: Any, s: sp.Symbol) -> tuple[sp.Expr, Expressions] | None:
    """Return the time when one variable has a given value, and the values of the others then; None without a formula.

    Of several branches it is the one whose time is zero where the variable already has that value.

    Args:
        moved: the flow, an expression for each variable.
        place: number of the variable that has the ``value``.
    """
    # exp(s) is replaced by a positive symbol, so that scaling factors are its powers
    q = sp.Dummy("q", positive=True)
    equation = sp.powsimp(moved[place] - value).subs(s, sp.log(q)) if moved[place].has(sp.exp) else moved[place] - value
    unknown = q if equation.has(q) else s
    try:
        times = sp.solve(sp.simplify(equation), unknown)
    except NotImplementedError:
        return None
    found: list[tuple[sp.Expr, Expressions]] = []
    for time in times:
        at = sp.log(time) if unknown is q else time
        result = tuple(_plain(e.subs(s, at)) for i, e in enumerate(moved) if i != place)
        if not any(e.has(*INFINITE) for e in result):
            found.append((at, result))
    start = [e.subs(s, 0) for e in moved]
    others = [e for i, e in enumerate(start) if i != place]
    for at, result in found:
        rest = (e.subs(start[place], value) - z for e, z in zip(result, others, strict=True))
        if all(not e.has(sp.nan, sp.zoo) and vanishes(e) for e in rest):
            return at, result
    return found[0] if found else None


def _plain(expression: sp.Expr) -> sp.Expr:
    """An expression without hyperbolic functions of logarithms, and without roots in denominators."""
    hyperbolic = sp.sinh, sp.cosh, sp.tanh
    value = expression.rewrite(sp.exp) if expression.has(*hyperbolic) else expression
    value = sp.powdenest(sp.simplify(value), force=True)
    return sp.factor(sp.radsimp(value)) if value.has(sp.Pow) and value.is_algebraic_expr() else value


def moved_solution(
    system: EvolutionSystem, components: Sequence[sp.Expr], solution: Mapping[sp.Symbol, sp.Expr], s: sp.Symbol
) -> Expressions:
    """Return the image of a solution under the flow of a field for the time s, checked, one formula for each unknown.

    Raises:
        ConfigurationError: ``solution`` does not solve the equations.
        AlgebraError: no closed form was found.
    """
    if not system.holds(solution):
        raise ConfigurationError(f"solution: expected a solution of the equations, got {dict(solution)}")
    variables = system.coordinates
    back = dict(zip(variables, (e.subs(s, -s) for e in flow(components, variables, s)), strict=True))
    # a point is on the new graph if the flow for the time -s takes it to the old one
    before = {z: back[z] for z in system.variables}
    equations = [back[u] - f.xreplace(before) for u, f in solution.items()]
    try:
        found = sp.solve(equations, list(solution), dict=True)
    except NotImplementedError:
        found = []
    for candidate in found:
        values = {u: sp.simplify(candidate[u]) for u in solution if u in candidate}
        if len(values) < len(solution):
            continue
        # the branch is taken that is the old solution at s = 0
        start = [_at_zero(values[u], s) - f for u, f in solution.items()]
        if any(e.has(*INFINITE) for e in start) or not all(map(vanishes, start)):
            continue
        if system.holds(values):
            return tuple(values[u] for u in system.unknowns)
    raise AlgebraError(f"expected a new solution in closed form, got the equations {equations} = 0")


def _at_zero(expression: sp.Expr, s: sp.Symbol) -> sp.Expr:
    """The value at s = 0, or the limit where that is 0 / 0; nan if none is found."""
    value = expression.subs(s, 0)
    if not value.has(*INFINITE):
        return value
    try:
        return sp.limit(expression, s, 0)
    except (NotImplementedError, sp.PoleError):
        return sp.nan
