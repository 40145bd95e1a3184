"""Linear algebra over the prime fields GF(p): FLINT's dense matrices, and SymPy's sparse ones.

Entries are 64-bit integers in NumPy arrays, as the determining equations come; p is a prime below 2^31.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import flint
import numpy as np
import sympy as sp
from numpy.typing import NDArray
from sympy.polys.matrices import DomainMatrix

__all__ = [
    "PRIMES",
    "Values",
    "characteristic_polynomial",
    "more_primes",
    "null_space",
    "rational_reconstruction",
    "row_echelon",
]

Values = NDArray[np.int64]

# (p - 1) / 2 is prime too: every square has roots of all degrees.
PRIMES = (
    2147483579, 2147483123, 2147482763, 2147481563, 2147481143, 2147480927, 2147480327, 2147479823,
    2147479787, 2147478899, 2147478083, 2147477807, 2147477687, 2147477159,
    2147473283, 2147473127, 2147472659, 2147472023, 2147471759, 2147471147,
)  # fmt: skip

_MORE_PRIMES = 140  # beside those, of which one in eight has three given square roots
_MAX_SPARSE_ROW = 6  # nonzero entries a row, on average, up to which sparse elimination is faster
_INVERSE_FALSE_RATE = 1000  # a number that is no small fraction passes for one with this probability at most, inverted


@lru_cache(maxsize=1)
def more_primes() -> tuple[int, ...]:
    """Return further primes p for which (p - 1) / 2 is prime too, below `PRIMES`."""
    primes: list[int] = []
    p = PRIMES[-1] - 12  # all of these are 11 modulo 12
    while len(primes) < _MORE_PRIMES:
        if sp.isprime(p) and sp.isprime(p // 2):
            primes.append(p)
        p -= 12
    return tuple(primes)


def row_echelon(matrix: Values, prime: int) -> tuple[Values, list[int]]:
    """Return the reduced row echelon form of a matrix modulo ``prime``, ``[rank, columns]``, and its pivot columns."""
    if np.count_nonzero(matrix) <= _MAX_SPARSE_ROW * len(matrix):
        return _sparse_row_echelon(matrix, prime)
    height, width = matrix.shape
    reduced, rank = flint.nmod_mat(height, width, (matrix % prime).ravel().tolist(), prime).rref()
    pivots: list[int] = []
    column = 0
    for i in range(rank):
        while not reduced[i, column]:
            column += 1
        pivots.append(column)
        column += 1
    result = np.zeros((rank, width), dtype=np.int64)
    result[range(rank), pivots] = 1
    for j in sorted(set(range(width)) - set(pivots)):
        result[:, j] = [int(reduced[i, j]) for i in range(rank)]
    return result, pivots


def _sparse_row_echelon(matrix: Values, prime: int) -> tuple[Values, list[int]]:
    """The same for a matrix with few nonzero entries."""
    field = sp.GF(prime, symmetric=False)
    rows, columns = np.nonzero(matrix)
    entries: dict[int, dict[int, Any]] = {}
    for i, j, value in zip(rows.tolist(), columns.tolist(), (matrix[rows, columns] % prime).tolist(), strict=True):
        if value:
            entries.setdefault(i, {})[j] = field(value)
    reduced, pivots = DomainMatrix(entries, matrix.shape, field).rref()
    result = np.zeros((len(pivots), matrix.shape[1]), dtype=np.int64)
    for (i, j), value in reduced.to_dok().items():
        result[i, j] = int(value)
    return result, list(pivots)


def null_space(reduced: Values, pivots: Sequence[int], prime: int) -> Values:
    """Return the reduced basis of the null space of a reduced row echelon form, ``[columns - rank, columns]``.

    Args:
        reduced: the matrix.
        pivots: its pivot columns.
        prime: the modulus.
    """
    width = reduced.shape[1]
    free = [j for j in range(width) if j not in set(pivots)]
    basis = np.zeros((len(free), width), dtype=np.int64)
    for i, j in enumerate(free):
        basis[i, j] = 1
        basis[i, pivots] = -reduced[:, j] % prime
    return row_echelon(basis, prime)[0]


def characteristic_polynomial(matrix: Values, prime: int) -> list[int]:
    """Return the coefficients of det(z - matrix) modulo ``prime``, the leading one first."""
    polynomial = flint.nmod_mat(len(matrix), len(matrix), (matrix % prime).ravel().tolist(), prime).charpoly()
    return [int(c) for c in reversed(polynomial.coeffs())]


def rational_reconstruction(value: int, modulus: int) -> sp.Rational | None:
    """Return the fraction with small terms that is congruent to ``value`` for ``modulus``; ``None`` if none exists.

    By the extended Euclidean algorithm (Wang 1981); neither SymPy nor python-flint has a public function for it.
    """
    bound = math.isqrt(modulus // (2 * _INVERSE_FALSE_RATE))
    a, b, s, r = modulus, value % modulus, 0, 1
    while b > bound:
        q = a // b
        a, b, s, r = b, a - q * b, r, s - q * r
    return sp.Rational(b, r) if r and abs(r) <= bound and math.gcd(b, r) == 1 else None
