"""Multi-indices: exponents of monomials, and orders of derivatives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy as sp

Index = tuple[int, ...]
"""One number for each variable."""


def multi_indices(length: int, degree: int) -> Iterable[Index]:
    """All exponents of ``length`` variables up to a total ``degree``, by degree."""

    def of_degree(n: int, d: int) -> Iterable[Index]:
        if n == 1:
            yield (d,)
            return
        for first in range(d, -1, -1):
            for rest in of_degree(n - 1, d - first):
                yield (first, *rest)

    if not length and degree >= 0:
        yield ()
    for total in range(degree + 1 if length else 0):
        yield from of_degree(length, total)


def covers(index: Index, other: Index) -> bool:
    """Return True if ``index`` is a derivative of the derivative ``other``: no entry is smaller."""
    return all(k >= j for k, j in zip(index, other, strict=True))


def shifted(index: Index, position: int, by: int = 1) -> Index:
    """Return ``index`` with the entry at ``position`` raised by ``by``."""
    return tuple(k + by if i == position else k for i, k in enumerate(index))


def derivative(function: sp.Expr, variables: Sequence[sp.Symbol], index: Index, kind: Any = sp.diff) -> sp.Expr:
    """Return the derivative ``index`` of a function; unevaluated if ``kind`` is `sympy.Derivative`."""
    counts = [(v, k) for v, k in zip(variables, index, strict=True) if k]
    return kind(function, *counts) if counts else function
