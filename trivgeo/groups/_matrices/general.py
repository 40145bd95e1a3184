"""Matrices of size 4 and beyond: library routines, but for exponentials of size 4."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import augmented_exp, dense_exp
from trivgeo.groups._matrices.kernel import Kernel
from trivgeo.groups._matrices.logarithm import iterative_log
from trivgeo.groups._matrices.polynomial import PolynomialKernel
from trivgeo.groups._matrices.series import series_exp_phi1

__all__ = ["Four", "General"]


@final
class Four(PolynomialKernel):
    """The size k = 4."""

    def determinant(self, matrix: Tensor) -> Tensor:
        """By `lu_determinant`."""
        return lu_determinant(matrix)

    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        """By `torch.linalg.inv_ex`."""
        return torch.linalg.inv_ex(matrix)[0]


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
        """By `torch.linalg.matrix_exp`."""
        return dense_exp(matrix)

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
