"""The contract of functions of batches of matrices of one size."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import augmented_exp
from trivgeo.groups.linalg.components import concatenate, confirmed, is_small_batch, matvec, product

_MAX_EXPONENT_SHARE = 0.9  # largest exponent that is used, over the largest one with a finite exponential


def largest_exponent(dtype: torch.dtype) -> float:
    """Return a bound of norms of matrices, below which exponentials and their products do not overflow."""
    return _MAX_EXPONENT_SHARE * math.log(torch.finfo(dtype).max)


class MatrixFunctions(ABC):
    """Functions of matrices ``[*batch, k, k]`` of one size k."""

    @abstractmethod
    def determinant(self, matrix: Tensor) -> Tensor:
        """The determinant, ``[*batch]``."""

    @abstractmethod
    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        """The inverse; infinite or NaN where singular. A ``unimodular`` matrix is known to have determinant one."""

    @abstractmethod
    def exp(self, matrix: Tensor) -> Tensor:
        """The exponential."""

    @abstractmethod
    def exp_phi1(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        r"""The exponential and :math:`\varphi_1(A) = \int_0^1 e^{sA} ds = \sum_j A^j / (j + 1)!`."""

    def phi1(self, matrix: Tensor, exponential: Tensor | None = None) -> Tensor:
        r""":math:`\varphi_1(A)` alone; the known ``exponential`` of the matrix may save computing it."""
        return self.exp_phi1(matrix)[1]

    def affine_exp(self, matrix: Tensor, vector: Tensor) -> Tensor:
        r"""The upper rows :math:`[e^A \mid \varphi_1(A) b]` of the exponential of ``[[A, b], [0, 0]]``."""
        if is_small_batch(matrix):
            return augmented_exp(matrix, vector)
        e, phi = self.exp_phi1(matrix)
        return concatenate([e, product(phi, vector.unsqueeze(-1))], rank=2)

    @abstractmethod
    def log(self, matrix: Tensor) -> Tensor:
        """The principal real logarithm; NaN where there is none."""

    def affine_log(self, matrix: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        r"""The logarithm of ``[[A, b], [0, 1]]``: the logarithm of A, and `translation_log`."""
        log = self.log(matrix)
        return log, self.translation_log(log, matrix, vector)

    def translation_log(self, log: Tensor, matrix: Tensor, vector: Tensor) -> Tensor:
        r"""z with :math:`\varphi_1(\log A) z = b`; NaN where rounding leaves no correct digit."""
        return self.solved(self.phi1(log, matrix), vector)

    @final
    def solved(self, matrix: Tensor, vector: Tensor) -> Tensor:
        """x with A x = b; NaN where rounding leaves no correct digit."""
        x = matvec(self.inverse(matrix), vector)
        return confirmed(x, matvec(matrix, x), vector)
