"""Linear algebra over the fields that Lie algebras and their equations are given over.

`Rationals`, `PrimeField` and `RationalFunctions` are exact; `Reals` are floating-point numbers with a tolerance. Code
written over a `GroundField`, such as the structure theory of `trivgeo.groups.structure`, holds for each of them.

A subspace is a matrix whose rows span it, ``[k, n]``: an array for exact numbers, a float64 tensor for `Reals`. It is
row-reduced, so that subspaces spanned by basis vectors come out as basis vectors. Exact ranks are certain; they need
python-flint, of the extra ``symbolic``.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from fractions import Fraction
from types import ModuleType
from typing import Any, Generic, TypeVar

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from trivgeo.errors import AlgebraError, missing_package
from trivgeo.expressions import require_sympy

Array = NDArray[Any]
"""Exact numbers: objects, or 64-bit integers modulo a prime."""

Rows = TypeVar("Rows", Tensor, Array)

_RANK_TOLERANCE = 1e-9  # singular values below this share of the largest are zero
_ZERO_TOLERANCE = 1e-11  # distance of an entry of reduced rows from an integer, below which it is rounded
_MIN_NEW_PART = 1e-6  # distance of a unit vector from a subspace, above which it is independent of it
_MAX_RESIDUAL = 1e-7  # residual over the right side, above which a linear system has no solution
_MAX_SPARSE_ROW = 6  # average number of nonzero entries of a row, up to which sparse elimination is faster


def has_flint() -> bool:
    """Return whether python-flint is installed, without importing it."""
    return importlib.util.find_spec("flint") is not None


def _flint() -> ModuleType:
    try:
        import flint
    except ImportError as error:
        raise missing_package("exact arithmetic", "python-flint", "symbolic") from error
    return flint


class GroundField(ABC, Generic[Rows]):
    """A field of numbers, and linear algebra over it.

    ``size`` is the expected size of nonzero numbers, relative to which rounding counts as zero; exact fields ignore it.
    """

    @abstractmethod
    def zeros(self, *shape: int) -> Rows:
        """Return an array of zeros of a ``shape``."""

    @abstractmethod
    def identity(self, n: int) -> Rows:
        """Return the identity matrix of size n."""

    @abstractmethod
    def join(self, *parts: Rows) -> Rows:
        """Return the rows of all parts, one after the other."""

    @abstractmethod
    def row_space(self, rows: Rows, size: float = 0.0) -> Rows:
        """Return reduced independent rows with the span of ``rows``, by pivots; for ``size`` see the class."""

    @abstractmethod
    def null_space(self, matrix: Rows, size: float = 1.0) -> Rows:
        """Return rows that span ``{x : matrix x = 0}``; for ``size`` see the class."""

    @abstractmethod
    def complement(self, inside: Rows, candidates: Rows) -> Rows:
        """Return those rows ``candidates`` that complete ``inside`` to the span of both, earlier ones preferred."""

    @abstractmethod
    def coordinates(self, vectors: Rows, basis: Rows) -> Rows:
        """Return the coordinates ``[..., k]`` of vectors ``[..., n]`` in a basis ``[k, n]``.

        Raises:
            AlgebraError: a vector is off the span; `Reals` do not check, and take the nearest vector of the span.
        """

    @abstractmethod
    def solve(self, matrix: Rows, right: Rows) -> Rows:
        """Return a solution x of ``matrix x = right``, vectors ``[n]`` and ``[k]``.

        Raises:
            AlgebraError: there is none.
        """

    @abstractmethod
    def size_of(self, values: Rows) -> float:
        """Return the typical size of nonzero numbers like ``values``; 0 for exact ones."""

    @abstractmethod
    def scaled(self, rows: Rows) -> Rows:
        """Return ``rows``, or a multiple with a norm of at most one."""

    @abstractmethod
    def frame(self, rows: Rows) -> Rows:
        """Return a basis of the span of independent rows in which lengths have a meaning."""

    @abstractmethod
    def tensor(self, values: Rows) -> Tensor:
        """Return ``values`` in floating point."""

    def intersection(self, a: Rows, b: Rows) -> Rows:
        """Return rows that span the intersection of the row spans ``a`` and ``b``."""
        if not (len(a) and len(b)):
            return a[:0]
        relations = self.null_space(self.join(a, -b).T)
        return self.row_space(relations[:, : len(a)] @ a)


class Reals(GroundField[Tensor]):
    """Floating-point numbers; ranks are decided relative to the largest singular value."""

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.float64)

    def identity(self, n: int) -> Tensor:
        return torch.eye(n, dtype=torch.float64)

    def join(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts)

    def row_space(self, rows: Tensor, size: float = 0.0) -> Tensor:
        if not rows.numel():
            return rows[:0]
        _, singular, a = torch.linalg.svd(rows, full_matrices=False)
        rank = int((singular > max(_RANK_TOLERANCE * max(size, float(singular[0])), 1e-300)).sum())
        a, n = a[:rank], rows.shape[-1]
        pivots: list[int] = []
        for done in range(rank):
            # Among entries near the largest, the first: basis vectors that lie in the span are then kept as they are.
            rest = a[done:].abs()
            row, column = divmod(int((rest > 0.999 * rest.max()).flatten().int().argmax()), n)
            row += done
            a[[done, row]] = a[[row, done]]
            a[done] = a[done] / a[done, column]
            others = torch.arange(rank) != done
            a[others] = a[others] - a[others, column : column + 1] * a[done]
            a[others, column] = 0.0
            pivots.append(column)
        a = a[torch.tensor(pivots, dtype=torch.long).argsort()]
        a = torch.where((a - a.round()).abs() < _ZERO_TOLERANCE, a.round(), a)
        return torch.where(a.abs() < _ZERO_TOLERANCE, 0.0, a)

    def null_space(self, matrix: Tensor, size: float = 1.0) -> Tensor:
        n = matrix.shape[-1]
        if n == 0 or matrix.shape[0] == 0:
            return self.identity(n)
        _, singular, rows = torch.linalg.svd(matrix, full_matrices=True)
        rank = int((singular > _RANK_TOLERANCE * max(size, float(singular[0]))).sum())
        return self.row_space(rows[rank:])

    def complement(self, inside: Tensor, candidates: Tensor) -> Tensor:
        chosen: list[Tensor] = []
        frame = self.frame(inside)
        for row in candidates:
            unit = row / row.norm()
            rest = unit - frame.T @ (frame @ unit)
            rest = rest - frame.T @ (frame @ rest)
            if float(rest.norm()) > _MIN_NEW_PART:
                chosen.append(row)
                frame = torch.cat([frame, (rest / rest.norm()).unsqueeze(0)])
        return torch.stack(chosen) if chosen else candidates[:0]

    def coordinates(self, vectors: Tensor, basis: Tensor) -> Tensor:
        return vectors @ torch.linalg.pinv(basis) if basis.numel() else vectors.new_zeros(*vectors.shape[:-1], 0)

    def contains(self, space: Tensor, vectors: Tensor) -> bool:
        """Return True if all ``vectors [..., n]`` lie in the row span ``space``."""
        flat = vectors.reshape(-1, vectors.shape[-1])
        rest = flat - self.coordinates(flat, space) @ space
        return bool((rest.norm(dim=-1) <= 1e-7 * flat.norm(dim=-1).clamp(min=1.0)).all())

    def solve(self, matrix: Tensor, right: Tensor) -> Tensor:
        solution = torch.linalg.pinv(matrix, rtol=1e-10) @ right
        residual = float((matrix @ solution - right).norm()) / max(1.0, float(right.norm()))
        if residual > _MAX_RESIDUAL:
            raise AlgebraError(f"expected linear equations with a solution, got a residual of {residual:.2g}")
        return solution

    def size_of(self, values: Tensor) -> float:
        return float(values.abs().max()) if values.numel() else 0.0

    def scaled(self, rows: Tensor) -> Tensor:
        return rows / max(1.0, float(torch.linalg.matrix_norm(rows, 2))) if rows.numel() else rows

    def frame(self, rows: Tensor) -> Tensor:
        return torch.linalg.qr(rows.T)[0].T if len(rows) else rows

    def tensor(self, values: Tensor) -> Tensor:
        return values


def pivot_columns(rows: NDArray[np.float64]) -> tuple[list[int], float]:
    """Return well-conditioned columns of rows ``[k, n]``, k <= n, and the last pivot relative to the first.

    The columns are the first k of a QR decomposition with pivoting; the rows are dependent where the number is small.
    """
    _, triangle, order = scipy.linalg.qr(rows, mode="economic", pivoting=True)
    last = len(rows) - 1
    first = abs(float(triangle[0, 0]))
    return [int(column) for column in order[: last + 1]], abs(float(triangle[last, last])) / first if first else 0.0


class ExactField(GroundField[Array]):
    """Numbers without rounding: everything follows from the reduced row echelon form."""

    zero: Any = 0
    one: Any = 1

    @abstractmethod
    def row_echelon(self, matrix: Array) -> tuple[Array, list[int]]:
        """Return the reduced row echelon form of ``matrix``, ``[rank, n]``, without zero rows, and its pivots."""

    def negative(self, values: Array) -> Array:
        """Return minus ``values``."""
        return np.asarray(-values)

    def zeros(self, *shape: int) -> Array:
        return np.full(shape, self.zero, dtype=object)

    def identity(self, n: int) -> Array:
        result = self.zeros(n, n)
        result[range(n), range(n)] = self.one
        return result

    def join(self, *parts: Array) -> Array:
        return np.concatenate(parts)

    def row_space(self, rows: Array, size: float = 0.0) -> Array:
        return self.row_echelon(rows)[0]

    def null_space(self, matrix: Array, size: float = 1.0) -> Array:
        return self.row_space(self.kernel(*self.row_echelon(matrix)))

    def kernel(self, reduced: Array, pivots: Sequence[int]) -> Array:
        """Return the null space of a matrix with rows ``reduced``: a row for each column that is not in ``pivots``."""
        width, taken = reduced.shape[1], set(pivots)
        free = [j for j in range(width) if j not in taken]
        basis = self.zeros(len(free), width)
        basis[range(len(free)), free] = self.one
        basis[:, list(pivots)] = self.negative(reduced[:, free].T)
        return basis

    def complement(self, inside: Array, candidates: Array) -> Array:
        _, pivots = self.row_echelon(self.join(inside, candidates).T)
        return candidates[[p - len(inside) for p in pivots if p >= len(inside)]]

    def coordinates(self, vectors: Array, basis: Array) -> Array:
        size, flat = len(basis), vectors.reshape(-1, vectors.shape[-1])
        reduced, pivots = self.row_echelon(self.join(basis, flat).T)
        if pivots != list(range(size)):
            raise AlgebraError("expected vectors in the span of the basis, got a vector off the span")
        return reduced[:, size:].T.reshape(*vectors.shape[:-1], size)

    def solve(self, matrix: Array, right: Array) -> Array:
        reduced, pivots = self.row_echelon(np.concatenate([matrix, right[:, None]], axis=1))
        width = matrix.shape[1]
        if pivots and pivots[-1] == width:
            raise AlgebraError("expected linear equations with a solution, got contradictory ones")
        solution = self.zeros(width)
        solution[pivots] = reduced[:, width]
        return solution

    def size_of(self, values: Array) -> float:
        return 0.0

    def scaled(self, rows: Array) -> Array:
        return rows

    def frame(self, rows: Array) -> Array:
        return rows

    def tensor(self, values: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))


class Rationals(ExactField):
    """Rational numbers: arrays of ``flint.fmpq``."""

    def array(self, values: Any) -> Array:
        """Return ``values``, nested sequences of integers or fractions, as numbers of this field."""
        given = np.array(values, dtype=object)
        fmpq = _flint().fmpq
        numbers = [fmpq(int(x.numerator), int(x.denominator)) for x in given.ravel()]
        result = np.empty(len(numbers), dtype=object)
        result[:] = numbers
        return result.reshape(given.shape)

    def row_echelon(self, matrix: Array) -> tuple[Array, list[int]]:
        if not matrix.size:
            return matrix[:0], []
        reduced, rank = _flint().fmpq_mat(*matrix.shape, matrix.ravel().tolist()).rref()
        rows = np.array(reduced.tolist()[:rank], dtype=object).reshape(rank, matrix.shape[1])
        return rows, [next(j for j, x in enumerate(row) if x) for row in rows]

    def fractions(self, rows: Array) -> list[list[Fraction]]:
        """Return the rows of a matrix as lists of `fractions.Fraction`."""
        return [[Fraction(int(x.numerator), int(x.denominator)) for x in row] for row in rows]

    def semisimple_part(self, matrix: Array) -> Array:
        """Return S of the Jordan decomposition S + N of a matrix ``[n, n]``.

        Newton's iteration for the square-free part of the characteristic polynomial.
        """
        flint, n = _flint(), len(matrix)
        unit, m = (flint.fmpq_mat(n, n, a.ravel().tolist()) for a in (self.identity(n), matrix))

        def at(polynomial: Any, m: Any) -> Any:
            total = 0 * unit
            for coefficient in reversed(polynomial.coeffs()):
                total = total * m + coefficient * unit
            return total

        p = m.charpoly()
        p = p // p.gcd(p.derivative())
        while (value := at(p, m)) != 0 * unit:
            m = m - value * at(p.derivative(), m).inv()
        return np.array(m.tolist(), dtype=object)


class PrimeField(ExactField):
    """Remainders modulo a prime below 2^31: arrays of 64-bit integers.

    Dense matrices are reduced by FLINT, sparse ones by SymPy.
    """

    def __init__(self, prime: int) -> None:
        self.prime = prime

    def zeros(self, *shape: int) -> Array:
        return np.zeros(shape, dtype=np.int64)

    def negative(self, values: Array) -> Array:
        return np.asarray(-values % self.prime)

    def row_echelon(self, matrix: Array) -> tuple[Array, list[int]]:
        if np.count_nonzero(matrix) <= _MAX_SPARSE_ROW * len(matrix):
            return self._sparse_row_echelon(matrix)
        height, width = matrix.shape
        entries = (matrix % self.prime).ravel().tolist()
        reduced, rank = _flint().nmod_mat(height, width, entries, self.prime).rref()
        pivots: list[int] = []
        column = 0
        for i in range(rank):
            while not reduced[i, column]:
                column += 1
            pivots.append(column)
            column += 1
        result = self.zeros(rank, width)
        result[range(rank), pivots] = 1
        for j in sorted(set(range(width)) - set(pivots)):
            result[:, j] = [int(reduced[i, j]) for i in range(rank)]
        return result, pivots

    def _sparse_row_echelon(self, matrix: Array) -> tuple[Array, list[int]]:
        """The row echelon form of a matrix with few nonzero entries."""
        sp = require_sympy()
        field = sp.GF(self.prime, symmetric=False)
        rows, columns = np.nonzero(matrix)
        values = (matrix[rows, columns] % self.prime).tolist()
        entries: dict[int, dict[int, Any]] = {}
        for i, j, value in zip(rows.tolist(), columns.tolist(), values, strict=True):
            if value:
                entries.setdefault(i, {})[j] = field(value)
        reduced, pivots = sp.polys.matrices.DomainMatrix(entries, matrix.shape, field).rref()
        result = self.zeros(len(pivots), matrix.shape[1])
        for (i, j), value in reduced.to_dok().items():
            result[i, j] = int(value)
        return result, list(pivots)

    def characteristic_polynomial(self, matrix: Array) -> list[int]:
        """Return the coefficients of det(z - matrix), the leading one first."""
        entries = (matrix % self.prime).ravel().tolist()
        polynomial = _flint().nmod_mat(len(matrix), len(matrix), entries, self.prime).charpoly()
        return [int(c) for c in reversed(polynomial.coeffs())]


class RationalFunctions(ExactField):
    """Fractions of polynomials in parameters: arrays of SymPy expressions.

    Reduction is done here, since neither SymPy nor FLINT reports divisors: numbers are preferred as pivots, and other
    pivots are assumed not to vanish.

    Attributes:
        assumed: expressions of the parameters that were assumed not to vanish.
    """

    def __init__(self) -> None:
        self._sp = require_sympy()
        self.zero, self.one = self._sp.S.Zero, self._sp.S.One
        self.assumed: set[Any] = set()

    def array(self, rows: Iterable[Sequence[Any]], width: int) -> Array:
        """Return rows of expressions, ``[k, width]``."""
        entries = [[self._sp.sympify(x) for x in row] for row in rows]
        result = np.empty((len(entries), width), dtype=object)
        for i, row in enumerate(entries):
            result[i] = row
        return result

    def product(self, a: Array, b: Array) -> Array:
        """Return a b for matrices, or a vector and a matrix, with common factors cancelled."""
        total = a @ b
        return np.array([self._sp.cancel(x) for x in total.ravel()], dtype=object).reshape(total.shape)

    def row_echelon(self, matrix: Array) -> tuple[Array, list[int]]:
        cancel = self._sp.cancel
        left = [list(row) for row in matrix]
        done: list[list[Any]] = []
        pivots: list[int] = []
        for column in range(matrix.shape[1]):
            candidates = [row for row in left if row[column] != 0]
            if not candidates:
                continue
            chosen = min(candidates, key=lambda row: len(row[column].free_symbols))
            left.remove(chosen)
            if chosen[column].free_symbols:
                self.assumed.add(chosen[column])
            unit = [cancel(c / chosen[column]) for c in chosen]
            for other in (left, done):
                for i, row in enumerate(other):
                    if row[column] != 0:
                        other[i] = [cancel(a - row[column] * b) for a, b in zip(row, unit, strict=True)]
            done.append(unit)
            pivots.append(column)
        return self.array(done, matrix.shape[1]), pivots

    def null_space(self, matrix: Array, size: float = 1.0) -> Array:
        # rows are not reduced further: that would divide by expressions that may vanish
        return self.kernel(*self.row_echelon(matrix))


REALS = Reals()
RATIONALS = Rationals()
