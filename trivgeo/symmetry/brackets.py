"""Structure constants of exact fields, whatever functions they hold."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import sympy as sp

from trivgeo.errors import AlgebraError
from trivgeo.symmetry.linear import Fixed, reconstruct
from trivgeo.symmetry.modular import Evaluator, Values, echelon, irrational, usable_primes

__all__ = ["structure_constants"]

Field = Sequence[sp.Expr]

_POINTS = 6  # more than are needed


def structure_constants(
    fields: Sequence[Field], variables: Sequence[sp.Symbol], parameters: Sequence[sp.Symbol], names: Sequence[str]
) -> list[list[list[sp.Expr]]]:
    """The constants of ``[X_i, X_j]`` as vector fields, ``DX_j X_i - DX_i X_j``; nested lists ``[n][n][n]``.

    They are found from values at random points modulo primes, so that identities such as sin^2 + cos^2 = 1 need not be
    seen.

    Raises:
        AlgebraError: a bracket leaves the span (named), or the fields are dependent, or a constant is not rational in
            the parameters, of low degree.
    """
    n = len(fields)
    pairs = list(itertools.combinations(range(n), 2))
    every = [*fields, *(_bracket(fields[i], fields[j], variables) for i, j in pairs)]
    entries = [entry for field in every for entry in field]
    primes = usable_primes(entries)
    symbols = (*parameters, *irrational(entries))
    count = (n + _POINTS - 1) // len(variables) + _POINTS

    def solved(prime: int, fixed: Sequence[Fixed]) -> list[tuple[Values, list[int]]]:
        numbers = {s: np.repeat([f[s] for f in fixed], count) for s in symbols}
        e = Evaluator((), 0, count * len(fixed), prime, prime % 1000, numbers, parameters)
        table = np.stack([np.stack([e(entry)[:, 0] for entry in field]) for field in every])
        parts = [slice(i * count, (i + 1) * count) for i in range(len(fixed))]
        return [echelon(table[:, :, part][:, :, e.valid[part]].reshape(len(every), -1).T, prime) for part in parts]

    random = np.random.default_rng(3)
    generic: Fixed = {s: int(random.integers(2, primes[0] - 1)) for s in symbols}
    ((reduced, pivots),) = solved(primes[0], [generic])
    if pivots[:n] != list(range(n)):
        raise AlgebraError("fields: expected independent ones over the constants, got a linear relation between them")
    if len(pivots) > n:
        i, j = pairs[pivots[n] - n]
        raise AlgebraError(f"[{names[i]}, {names[j]}] is off the span of the fields")
    places = np.argwhere(reduced[:, n:])

    def values(prime: int, fixed: Sequence[Fixed]) -> list[list[int] | None]:
        closed = [(rows, found) for rows, found in solved(prime, fixed)]
        return [[int(rows[k, n + p]) for k, p in places] if found == list(range(n)) else None for rows, found in closed]

    found = reconstruct(values, symbols, primes)
    if found is None:
        raise AlgebraError(f"expected structure constants rational in {tuple(parameters)}, of low degree; got others")
    constants: list[list[list[sp.Expr]]] = [[[sp.S.Zero] * n for _ in range(n)] for _ in range(n)]
    for (k, p), value in zip(places, found, strict=True):
        i, j = pairs[p]
        constants[i][j][k], constants[j][i][k] = value, -value
    return constants


def _bracket(x: Field, y: Field, variables: Sequence[sp.Symbol]) -> list[sp.Expr]:
    return [
        sp.Add(*(x[b] * sp.diff(y[a], z) - y[b] * sp.diff(x[a], z) for b, z in enumerate(variables)))
        for a in range(len(variables))
    ]
