"""Structure constants of exact fields, whatever functions they hold."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import sympy as sp

from trivgeo.errors import AlgebraError
from trivgeo.groups.ground_fields import PrimeField
from trivgeo.symmetry.determining.random_points import (
    RandomEvaluator,
    Values,
    irrational_constants,
    random_values,
    usable_primes,
)
from trivgeo.symmetry.determining.reconstruction import ParameterValues, SquareRoots, exact_rows

Field = Sequence[sp.Expr]

_NUM_SPARE_POINTS = 6  # random points beyond the number that determines the coefficients


def structure_constants(
    fields: Sequence[Field], variables: Sequence[sp.Symbol], parameters: Sequence[sp.Symbol], names: Sequence[str]
) -> list[list[list[sp.Expr]]]:
    """Return the constants of ``[X_i, X_j]`` as vector fields, ``DX_j X_i - DX_i X_j``; nested lists ``[n][n][n]``.

    Constants are found from values at random points modulo primes. Identities such as sin^2 + cos^2 = 1 need not be
    recognised. Error messages call the fields by their ``names``.

    Raises:
        AlgebraError: a bracket leaves the span, or the fields are dependent, or a constant is no rational function of
            low degree in the parameters.
    """
    n = len(fields)
    if not n:
        return []
    pairs = list(itertools.combinations(range(n), 2))
    every = [*fields, *(bracket(fields[i], fields[j], variables) for i, j in pairs)]
    entries = [entry for field in every for entry in field]
    primes = usable_primes(entries)
    roots = SquareRoots(irrational_constants(entries))
    symbols = (*parameters, *roots.others)
    count = (n + _NUM_SPARE_POINTS - 1) // len(variables) + _NUM_SPARE_POINTS

    def solved(prime: int, fixed: Sequence[ParameterValues]) -> list[tuple[Values, list[int]]]:
        numbers = {s: np.repeat([f[s] for f in fixed], count) for s in fixed[0]}
        e = RandomEvaluator((), 0, count * len(fixed), prime, prime % 1000, numbers, parameters)
        table = np.stack([np.stack([e(entry)[:, 0] for entry in field]) for field in every])
        parts = [slice(i * count, (i + 1) * count) for i in range(len(fixed))]
        tables = (table[:, :, part][:, :, e.valid[part]].reshape(len(every), -1) for part in parts)
        return [PrimeField(prime).row_echelon(part.T) for part in tables]

    generic = random_values(symbols, primes[0], seed=3)
    ((reduced, pivots),) = solved(primes[0], [generic | roots.values(primes[0])])
    if pivots[:n] != list(range(n)):
        raise AlgebraError("fields: expected independent ones over the constants, got a linear relation between them")
    if len(pivots) > n:
        i, j = pairs[pivots[n] - n]
        raise AlgebraError(
            f"fields: expected brackets in their span, but [{names[i]}, {names[j]}] is off the span of the fields"
        )
    places = np.argwhere(reduced[:, n:])

    def values(prime: int, fixed: Sequence[ParameterValues]) -> list[list[int] | None]:
        return [
            [int(rows[k, n + p]) for k, p in places] if found == list(range(n)) else None
            for rows, found in solved(prime, fixed)
        ]

    numbers = roots.numbers(values, symbols, primes)
    if numbers is None:
        raise AlgebraError(f"expected constants that are rational in {tuple(parameters)}, found none of low degree")
    constants: list[list[list[sp.Expr]]] = [[[sp.S.Zero] * n for _ in range(n)] for _ in range(n)]
    for (k, p), value in zip(places, numbers, strict=True):
        i, j = pairs[p]
        constants[i][j][k], constants[j][i][k] = value, -value
    return constants


def keeping(
    fields: Sequence[Field],
    variables: Sequence[sp.Symbol],
    parameters: Sequence[sp.Symbol],
    surface: Mapping[sp.Symbol, sp.Expr],
) -> list[tuple[sp.Expr, ...]]:
    """Return a basis of the combinations of fields that are tangent to a surface, as coefficients of the fields.

    Args:
        surface: the surface z = e(other variables), as a mapping from z to e.

    Raises:
        AlgebraError: a coefficient is no rational function of low degree in the parameters.
    """

    def across(field: Field, z: sp.Symbol, value: sp.Expr) -> sp.Expr:
        rates = dict(zip(variables, field, strict=True))
        return sp.expand((rates[z] - sum(rates[w] * sp.diff(value, w) for w in variables)).subs(surface))

    entries = [[across(field, z, value) for field in fields] for z, value in surface.items()]
    return _vanishing(entries, parameters)


def moving_grids(
    fields: Sequence[Field],
    variables: Sequence[sp.Symbol],
    parameters: Sequence[sp.Symbol],
    time: sp.Symbol,
    space: Mapping[sp.Symbol, bool],
    *,
    affine: bool = False,
) -> list[tuple[sp.Expr, ...]]:
    """A basis of the combinations that carry grids to grids and keep periods, as coefficients of the fields.

    The component of the time depends on the time alone, components of space depend also on the places, affinely, and
    components of the unknowns do not depend on places along periodic axes. If the fields close under the bracket, so
    do these combinations.

    Args:
        space: whether each variable x is periodic.
        affine: whether components of unknowns must be affine in the unknowns.

    Raises:
        AlgebraError: a coefficient is no rational function of low degree in the parameters.
    """
    unknowns = [z for z in variables if z != time and z not in space]

    def conditions(field: Field) -> list[sp.Expr]:
        rates = dict(zip(variables, field, strict=True))
        free = [sp.diff(rates[time], z) for z in (*space, *unknowns)]
        for x in space:
            free += [sp.diff(rates[x], u) for u in unknowns]
            free += [sp.diff(rates[x], y, z) for y, z in itertools.combinations_with_replacement(space, 2)]
        if affine:
            pairs = list(itertools.combinations_with_replacement(unknowns, 2))
            free += [sp.diff(rates[u], *pair) for u in unknowns for pair in pairs]
        return free + [sp.diff(rates[u], x) for u in unknowns for x, periodic in space.items() if periodic]

    entries = [list(row) for row in zip(*map(conditions, fields), strict=True)]
    return _vanishing(entries, parameters)


def keeping_walls(
    fields: Sequence[Field],
    variables: Sequence[sp.Symbol],
    parameters: Sequence[sp.Symbol],
    unknowns: Sequence[sp.Symbol],
    walls: Mapping[sp.Symbol, str | None],
) -> list[tuple[sp.Expr, ...]]:
    """A basis of the combinations that keep conditions at walls, as coefficients of the fields.

    Args:
        walls: see `trivgeo.symmetry.result.Symmetries.between_walls`.

    Raises:
        AlgebraError: a coefficient is no rational function of low degree in the parameters.
    """
    zero = dict.fromkeys(unknowns, 0)

    def conditions(field: Field) -> list[sp.Expr]:
        rates = dict(zip(variables, field, strict=True))
        free = []
        for x, wall in walls.items():
            free += [sp.diff(rates[x], z) for z in variables if z != x]
            if wall != "dirichlet":
                free += [sp.diff(rates[u], x) for u in unknowns]
            if wall != "neumann":
                free += [rates[u].subs(zero) for u in unknowns]
        return [sp.expand(condition) for condition in free]

    entries = [list(row) for row in zip(*map(conditions, fields), strict=True)]
    return _vanishing(entries, parameters)


def closed_part(fields: Sequence[Field], variables: Sequence[sp.Symbol], parameters: Sequence[sp.Symbol]) -> list[int]:
    """Return positions of fields that close under the bracket, chosen greedily from the first; all if all close."""
    kept: list[int] = []
    left = list(range(len(fields)))
    if closes(fields, variables, parameters):
        return left
    while True:
        added = next((i for i in left if closes([fields[k] for k in (*kept, i)], variables, parameters)), None)
        if added is None:
            return sorted(kept)
        kept.append(added)
        left.remove(added)


def closes(fields: Sequence[Field], variables: Sequence[sp.Symbol], parameters: Sequence[sp.Symbol] = ()) -> bool:
    """Return True if brackets of ``fields`` of ``variables``, with ``parameters``, lie in their span."""
    try:
        structure_constants(fields, variables, parameters, [str(i) for i in range(len(fields))])
    except AlgebraError:
        return False
    return True


def _vanishing(entries: Sequence[Sequence[sp.Expr]], parameters: Sequence[sp.Symbol]) -> list[tuple[sp.Expr, ...]]:
    """A basis of the coefficient vectors w with ``sum(w[j] * row[j]) = 0`` identically for each row of expressions.

    Raises:
        AlgebraError: a coefficient is no rational function of low degree in the parameters.
    """
    flat = [entry for row in entries for entry in row]
    primes = usable_primes(flat)
    roots = SquareRoots(irrational_constants(flat))
    symbols = (*parameters, *roots.others)
    count = 2 * len(entries[0]) + _NUM_SPARE_POINTS

    def solved(prime: int, fixed: ParameterValues) -> Values:
        e = RandomEvaluator((), 0, count, prime, prime % 1000, fixed, parameters)
        rows = [np.stack([e(entry)[:, 0] for entry in row], axis=1) for row in entries]
        return PrimeField(prime).null_space(np.concatenate([block[e.valid] for block in rows]))

    generic = solved(primes[0], random_values(symbols, primes[0], seed=3) | roots.values(primes[0]))
    rows = exact_rows(
        generic,
        lambda prime, fixed: [solved(prime, at) for at in fixed],
        lambda values: roots.numbers(values, symbols, primes),
    )
    if rows is None:
        raise AlgebraError(f"expected coefficients that are rational in {tuple(parameters)}, found none of low degree")
    return list(map(tuple, rows))


def bracket(x: Field, y: Field, variables: Sequence[sp.Symbol]) -> list[sp.Expr]:
    """Return the commutator of the fields x and y, expressions of ``variables``."""
    return [
        sp.Add(*(x[b] * sp.diff(y[a], z) - y[b] * sp.diff(x[a], z) for b, z in enumerate(variables)))
        for a in range(len(variables))
    ]
