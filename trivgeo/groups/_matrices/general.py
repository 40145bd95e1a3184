"""Matrices of size 4 and beyond: library routines, but for exponentials of sizes 4 to 6."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import augmented_exp, dense_exp, is_traced
from trivgeo.groups._matrices.batches import is_small_batch
from trivgeo.groups._matrices.components import entry_rows, from_rows
from trivgeo.groups._matrices.kernel import Kernel
from trivgeo.groups._matrices.logarithm import iterative_log
from trivgeo.groups._matrices.polynomial import PolynomialKernel
from trivgeo.groups._matrices.series import series_exp_phi1, shifted_exp

__all__ = ["Four", "General"]

_MOST_OF_POLYNOMIALS, _FEW = 6, 1500  # measured, against the library routine: size, and matrices


@final
class Four(PolynomialKernel):
    """The size k = 4."""

    def determinant(self, matrix: Tensor) -> Tensor:
        """By `lu_determinant`, and in compiled code by minors."""
        return _minors_determinant(matrix) if is_traced() else lu_determinant(matrix)

    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        """By `torch.linalg.inv_ex`, and in compiled code by the same elimination, written out."""
        return _eliminated(matrix) if is_traced() else torch.linalg.inv_ex(matrix)[0]


@final
class General(Kernel):
    """Any size."""

    def determinant(self, matrix: Tensor) -> Tensor:
        """By `lu_determinant`."""
        return lu_determinant(matrix)

    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        """By `torch.linalg.inv_ex`."""
        return torch.linalg.inv_ex(matrix)[0]

    def exp(self, matrix: Tensor) -> Tensor:
        """Up to size 6 a polynomial in the matrix, beyond, and of few, by `torch.linalg.matrix_exp`."""
        if matrix.shape[-1] > _MOST_OF_POLYNOMIALS or is_small_batch(matrix, _FEW):
            return dense_exp(matrix)
        return shifted_exp(matrix)

    def exp_phi1(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """By one series for both."""
        return series_exp_phi1(matrix)

    def phi1(self, matrix: Tensor, exponential: Tensor | None = None) -> Tensor:
        """From `exp_phi1`."""
        return self.exp_phi1(matrix)[1]

    def affine_exp(self, matrix: Tensor, vector: Tensor) -> Tensor:
        """By one exponential of size k + 1."""
        return augmented_exp(matrix, vector)

    def log(self, matrix: Tensor) -> Tensor:
        """By square roots."""
        return iterative_log(matrix, self)


def lu_determinant(matrix: Tensor) -> Tensor:
    """The determinant from an LU decomposition."""
    k = matrix.shape[-1]
    lu, pivots, _ = torch.linalg.lu_factor_ex(matrix)
    swaps = (pivots != torch.arange(1, k + 1, device=pivots.device, dtype=pivots.dtype)).sum(-1)
    return lu.diagonal(dim1=-2, dim2=-1).prod(-1) * (1 - 2 * (swaps % 2)).to(matrix.dtype)


def _minors_determinant(matrix: Tensor) -> Tensor:
    """The determinant of 4 x 4 matrices by the minors of their upper and their lower rows (Laplace)."""
    r0, r1, r2, r3 = entry_rows(matrix)
    total = torch.zeros_like(r0[0])
    for i, j, k, m in ((0, 1, 2, 3), (0, 2, 3, 1), (0, 3, 1, 2), (1, 2, 0, 3), (1, 3, 2, 0), (2, 3, 0, 1)):
        total = total + (r0[i] * r1[j] - r0[j] * r1[i]) * (r2[k] * r3[m] - r2[m] * r3[k])
    return total


def _eliminated(matrix: Tensor) -> Tensor:
    """The inverse by Gauss and Jordan's elimination with partial pivoting, entry by entry."""
    k = matrix.shape[-1]
    entries = entry_rows(matrix)
    zero, one = torch.zeros_like(entries[0][0]), torch.ones_like(entries[0][0])
    rows = [[*row, *(one if i == j else zero for j in range(k))] for i, row in enumerate(entries)]
    for p in range(k):
        for i in range(p + 1, k):  # the largest entry comes up
            swap = rows[i][p].detach().abs() > rows[p][p].detach().abs()
            pairs = [(torch.where(swap, b, a), torch.where(swap, a, b)) for a, b in zip(rows[p], rows[i], strict=True)]
            rows[p], rows[i] = ([pair[side] for pair in pairs] for side in (0, 1))
        inverse = 1.0 / rows[p][p]
        rows[p] = [inverse * x for x in rows[p]]
        for i in range(k):
            if i != p:
                factor = rows[i][p]
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[p], strict=True)]
    return from_rows([row[k:] for row in rows])
