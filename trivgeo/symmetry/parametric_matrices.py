"""Linear algebra over rational functions of parameters, and in floating point where those have values.

By hand: a pivot that holds parameters vanishes for some of their values, so each has to be recorded. SymPy's matrices
over a field of rational functions divide by it silently.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import sympy as sp
import torch
from numpy.typing import NDArray

__all__ = [
    "Floats",
    "NonzeroFactors",
    "Row",
    "Rows",
    "combination",
    "coordinates",
    "exponential_of_ad",
    "float_coordinates",
    "null_space",
    "row_echelon",
    "to_floats",
    "transpose",
]

Floats = NDArray[np.float64]
Row = list[sp.Expr]
Rows = list[Row]
NonzeroFactors = set[sp.Expr]
"""Expressions of the parameters that were taken not to vanish."""


def combination(weights: Sequence[sp.Expr], rows: Rows) -> Row:
    """Return the sum of ``rows``, each times its factor in ``weights``."""
    columns = zip(*rows, strict=True)
    return [sp.cancel(sp.Add(*(w * c for w, c in zip(weights, column, strict=True)))) for column in columns]


def transpose(rows: Rows) -> Rows:
    """Return the columns of ``rows`` as rows."""
    return [list(column) for column in zip(*rows, strict=True)]


def row_echelon(rows: Rows, assumed: NonzeroFactors) -> tuple[Rows, list[int]]:
    """Return the reduced echelon form without zero rows, and its pivot columns.

    Args:
        rows: the matrix, with parameters.
        assumed: receives pivots with parameters, which are taken as nonzero; numbers are preferred as pivots.
    """
    left = [list(row) for row in rows]
    done: Rows = []
    pivots: list[int] = []
    for column in range(len(left[0]) if left else 0):
        candidates = [row for row in left if row[column] != 0]
        if not candidates:
            continue
        chosen = min(candidates, key=lambda row: len(row[column].free_symbols))
        left.remove(chosen)
        if chosen[column].free_symbols:
            assumed.add(chosen[column])
        unit = [sp.cancel(c / chosen[column]) for c in chosen]
        for other in (left, done):
            for i, row in enumerate(other):
                if row[column] != 0:
                    other[i] = [sp.cancel(a - row[column] * b) for a, b in zip(row, unit, strict=True)]
        done.append(unit)
        pivots.append(column)
    return done, pivots


def null_space(rows: Rows, assumed: NonzeroFactors, width: int = 0) -> Rows:
    """Return a basis of the columns that a matrix sends to zero; a matrix without rows needs its ``width``.

    Args:
        rows: the matrix.
        assumed: factors that are taken not to vanish, see `row_echelon`.
        width: number of columns.
    """
    reduced, pivots = row_echelon(rows, assumed)
    width = len(rows[0]) if rows else width
    basis = []
    for j in (j for j in range(width) if j not in pivots):
        vector = [sp.Integer(i == j) for i in range(width)]
        for row, pivot in zip(reduced, pivots, strict=True):
            vector[pivot] = -row[j]
        basis.append(vector)
    return basis


def coordinates(basis: Rows, target: Row, assumed: NonzeroFactors) -> Row:
    """Return the coordinates of ``target`` in a basis of a space that holds it; see `row_echelon` for ``assumed``."""
    reduced, pivots = row_echelon(transpose([*basis, target]), assumed)
    assert pivots == list(range(len(basis))), "a vector off the space"
    return [row[-1] for row in reduced]


def to_floats(row: Row, numbers: dict[sp.Symbol, float]) -> Floats:
    """Return a row in floating point, at values ``numbers`` of the parameters."""
    return np.array([float(c.subs(numbers) if c.free_symbols else c) for c in map(sp.sympify, row)])


def float_coordinates(basis: Rows, v: Floats, numbers: dict[sp.Symbol, float]) -> Floats:
    """Return the coordinates of v in a basis of rows, at values ``numbers`` of the parameters."""
    matrix = np.stack([to_floats(row, numbers) for row in basis], axis=1)
    return np.asarray(np.linalg.lstsq(matrix, v, rcond=None)[0])


def exponential_of_ad(constants: Floats, y: Floats) -> Floats:
    """Return the matrix of Ad(exp(y)) for structure constants ``constants``."""
    return np.asarray(torch.linalg.matrix_exp(torch.from_numpy(np.einsum("i,ijk->kj", y, constants))).numpy())
