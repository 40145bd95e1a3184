"""Symmetries of linear ordinary equations in terms of their solutions, whether or not those have formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy as sp

from trivgeo.symmetry.equation import EvolutionSystem
from trivgeo.symmetry.solutions import fundamental

__all__ = ["from_solutions", "is_linear_ordinary"]

Coefficients = tuple[sp.Expr, ...]


def is_linear_ordinary(system: EvolutionSystem) -> bool:
    """Return True if ``system`` is ordinary, linear, and solved for a highest derivative of each unknown."""
    is_solved = [a for a, _ in system.leaders] == list(range(len(system.unknowns)))
    return len(system.variables) == 1 and is_solved and system.is_linear


def from_solutions(system: EvolutionSystem, found: Sequence[Coefficients], size: int | None) -> list[Coefficients]:
    r"""Return all symmetries of a linear ordinary equation of largest dimension; else those found and superposition.

    With solutions :math:`y_1, y_2` of an equation of second order :math:`y'' = a y' + b y + c`, their Wronskian W, a
    solution p of the equation itself and :math:`v = y - p`, they are (Lie 1883)

    .. math::
        y_i \partial_y, \quad v \partial_y, \quad
        \frac{y_i y_j}{W} \partial_x + \frac{(y_i y_j)'}{2 W} v \partial_v, \quad
        \frac{y_i v}{W} \partial_x + \frac{y_i'}{W} v^2 \partial_v,

    where :math:`\partial_x` in the coordinates x and v is :math:`\partial_x + p' \partial_y` in x and y; for m unknowns
    that all solve it there are as many as in sl(m + 2). One of higher order n has at most n + 4, and then its solutions
    are products of those of one of second order (Mahomed and Leach 1990).

    Args:
        system: the equations.
        found: symmetries that a search found.
        size: the dimension of all symmetries, ``None`` if unknown.
    """
    (x,), m = system.variables, len(system.unknowns)
    n = system.leaders[0][1][0]
    if _is_isotropic(system) and size == ((m + 2) ** 2 - 1 if n == 2 else n + 4 if m == 1 < n else None):
        return _largest(system, found)
    return [*(field for field in found if not _is_solution(system, field)), *_superposition(system, x)]


def _is_isotropic(system: EvolutionSystem) -> bool:
    """Whether all unknowns solve the same equation, up to what is free of them."""
    first = {k: c for (_, k), c in _slopes(system, 0)[0].items()}
    every = ({(a, k): c for k, c in first.items()} for a in range(len(system.unknowns)))
    return all(_slopes(system, a)[0] == slopes for a, slopes in enumerate(every)) and len(set(_orders(system))) == 1


def _orders(system: EvolutionSystem) -> list[int]:
    return [index[0] for _, index in system.leaders]


def _is_solution(system: EvolutionSystem, field: Coefficients) -> bool:
    """Whether a field adds functions of the variable alone."""
    unknowns = set(system.unknowns)
    return field[0] == 0 and not any(component.free_symbols & unknowns for component in field)


def _slopes(system: EvolutionSystem, a: int) -> tuple[dict[tuple[int, int], sp.Expr], sp.Expr]:
    """The coefficients of one right side, by unknown and order, and what is free of all."""
    right = system.right[a]
    jets = system.jets_in(right)
    return {(b, k): sp.diff(right, s) for s, b, (k,) in jets}, right.xreplace({s: sp.S.Zero for s, _, _ in jets})


def _free(system: EvolutionSystem, names: Sequence[str]) -> list[str]:
    """Names that nothing else has."""
    taken = {s.name for s in (*system.variables, *system.unknowns, *system.parameters)}
    return [name if name not in taken else f"{name}_" for name in names]


def _solution(system: EvolutionSystem, number: int = 1, offset: bool = False) -> list[list[sp.Expr]]:
    """A solution of the homogeneous equations, or of the equations themselves, with its derivatives."""
    parts = [_slopes(system, a) for a in range(len(system.unknowns))]

    def rates(values: list[list[sp.Expr]]) -> list[sp.Expr]:
        return [
            sp.Add(*(c * values[b][k] for (b, k), c in slopes.items()), rest if offset else 0) for slopes, rest in parts
        ]

    names = _free(system, [f"p_{u}" if offset else f"{u}{number}" for u in system.unknowns])
    orders = _orders(system)
    equations = "; ".join(
        f"{u}{chr(39) * k} = {sp.Add(*(c * _prime(system, *key) for key, c in slopes.items()), rest if offset else 0)}"
        for u, k, (slopes, rest) in zip(system.unknowns, orders, parts, strict=True)
    )
    return fundamental(names, system.variables[0], orders, rates, f"solution of {equations}")


def _prime(system: EvolutionSystem, a: int, k: int) -> sp.Symbol:
    return sp.Symbol(f"{system.unknowns[a]}{chr(39) * k}")


def _superposition(system: EvolutionSystem, x: sp.Symbol) -> list[Coefficients]:
    """Fields that add each of a fundamental system of solutions."""
    return [(sp.S.Zero, *(row[0] for row in _solution(system, i + 1))) for i in range(sum(_orders(system)))]


def _largest(system: EvolutionSystem, found: Sequence[Coefficients]) -> list[Coefficients]:
    """The symmetries of an equation of second order, or of an iterated one."""
    (x,), n = system.variables, system.leaders[0][1][0]
    slopes, _ = _slopes(system, 0)
    first = slopes.get((0, n - 1), sp.S.Zero)
    wronskian = _exponential(system, "W", first) if n == 2 else sp.S.One
    factor = sp.S.One if n == 2 else _exponential(system, "E", first / n)
    if n == 2:
        linear, zeroth = first, slopes.get((0, 0), sp.S.Zero)
    else:
        # y = factor z takes the derivative of order n - 1 away; then that of order n - 2 says of which equation
        # u'' = q u the solutions are products
        second = slopes.get((0, n - 2), sp.S.Zero)
        second += sp.Rational(n - 1, 2 * n) * first**2 - sp.Rational(n - 1, 2) * sp.diff(first, x)
        linear, zeroth = sp.S.Zero, sp.simplify(second / math.comb(n + 1, 3))
    basis = _known_basis(system, found, wronskian) if n == 2 and len(system.unknowns) == 1 else None
    (one, slope), (two, other) = basis or _abstract_basis(system, linear, zeroth, wronskian)
    offsets = [_slopes(system, a)[1] for a in range(len(system.unknowns))]
    particular = _solution(system, offset=True) if any(offsets) else [[sp.S.Zero, sp.S.Zero] for _ in offsets]
    v = [y - p[0] for y, p in zip(system.unknowns, particular, strict=True)]

    def field(along: sp.Expr, up: Sequence[sp.Expr]) -> Coefficients:
        moved = (e + along * p[1] for e, p in zip(up, particular, strict=True))
        return (sp.factor_terms(along), *map(sp.factor_terms, moved))

    def upward(a: int, value: sp.Expr) -> list[sp.Expr]:
        return [value if b == a else sp.S.Zero for b in range(len(v))]

    every, stretch = range(len(v)), sp.diff(factor, x) / factor
    result = [field(sp.S.Zero, upward(a, factor * one ** (n - 1 - k) * two**k)) for a in every for k in range(n)]
    result += [field(sp.S.Zero, upward(a, v[b])) for a in every for b in every]
    for product in (one**2, one * two, two**2):
        along = product / wronskian
        growth = sp.Rational(n - 1, 2) * sp.diff(product, x) / wronskian + stretch * along
        result.append(field(along, [growth * w for w in v]))
    if n == 2:
        for a in every:
            for f, df in ((one, slope), (two, other)):
                result.append(field(v[a] * f / wronskian, [v[a] * w * df / wronskian for w in v]))
    return result


def _exponential(system: EvolutionSystem, name: str, rate: sp.Expr) -> sp.Expr:
    """The exponential of an integral, as a formula if there is one."""
    (x,) = system.variables
    integral = sp.integrate(sp.together(rate), x)
    if not integral.has(sp.Integral, sp.Piecewise):
        return sp.simplify(sp.exp(integral))
    (name,) = _free(system, [name])
    text = f"solution of {name}' = {rate * sp.Symbol(name)}"
    return fundamental([name], x, [1], lambda z: [rate * z[0][0]], text)[0][0]


def _known_basis(
    system: EvolutionSystem, found: Sequence[Coefficients], wronskian: sp.Expr
) -> list[list[sp.Expr]] | None:
    """Two solutions with their derivatives, if one was found, and the other has a formula."""
    (x,) = system.variables
    for _, one in (field for field in found if _is_solution(system, field)):
        rate = sp.cancel(wronskian / one**2)
        if rate.is_rational_function(x):
            integral = sp.integrate(rate, x)
            if not integral.has(sp.Integral, sp.RootSum, sp.Piecewise):
                # logarithms of squares are real on both sides of a pole
                terms = sp.Add.make_args(integral.replace(sp.log, lambda e: sp.log(e**2) / 2))
                two = sp.Add(*(sp.cancel(one * t) if t.is_rational_function(x) else one * t for t in terms))
                return [[one, sp.diff(one, x)], [two, sp.diff(two, x)]]
    return None


def _abstract_basis(
    system: EvolutionSystem, linear: sp.Expr, zeroth: sp.Expr, wronskian: sp.Expr
) -> list[list[sp.Expr]]:
    """Two solutions of an equation of second order with their derivatives, of a given Wronskian."""
    (x,), stem = system.variables, str(system.unknowns[0])
    if system.leaders[0][1][0] > 2:  # those of another equation
        stem = "v" if stem == "u" else "u"
    first, second = _free(system, [f"{stem}1", f"{stem}2"])
    right = linear * sp.Symbol(f"{stem}'") + zeroth * sp.Symbol(stem)
    text = f"solutions of {stem}'' = {right}, with {first}*{second}' - {first}'*{second} = {wronskian}"
    (one,), (two,) = (
        fundamental([name], x, [2], lambda z: [linear * z[0][1] + zeroth * z[0][0]], text) for name in (first, second)
    )
    type(two[1]).relation = (wronskian + one[1] * two[0]) / one[0]
    return [one, two]
