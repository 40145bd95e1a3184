"""Numbers as 1 x 1 matrices."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import polynomial
from trivgeo.groups._matrices.affine import affine_exp
from trivgeo.groups._matrices.kernel import Kernel
from trivgeo.groups._matrices.series import PHI1_SERIES

__all__ = ["PHI1_RADIUS", "PHI1_SHORT", "One", "phi1_scalar"]

PHI1_RADIUS = 0.5
PHI1_SHORT = PHI1_SERIES[:14]  # up to one half


@final
class One(Kernel):
    """The size k = 1."""

    def determinant(self, matrix: Tensor) -> Tensor:
        """The entry."""
        return matrix[..., 0, 0]

    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        """The reciprocal."""
        return 1.0 / matrix

    def exp(self, matrix: Tensor) -> Tensor:
        """The exponential of the entry."""
        return matrix.exp()

    def exp_phi1(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Both of the entry."""
        return matrix.exp(), phi1_scalar(matrix)

    def phi1(self, matrix: Tensor, exponential: Tensor | None = None) -> Tensor:
        """Of the entry."""
        return phi1_scalar(matrix)

    def affine_exp(self, matrix: Tensor, vector: Tensor) -> Tensor:
        """From `exp_phi1`."""
        return affine_exp(self, matrix, vector)

    def log(self, matrix: Tensor) -> Tensor:
        """The logarithm of a positive entry."""
        positive = matrix > 0
        return torch.where(positive, torch.where(positive, matrix, 1.0).log(), math.nan)


def phi1_scalar(x: Tensor) -> Tensor:
    """``expm1(x) / x``."""
    small = x.abs() < PHI1_RADIUS
    far = torch.where(small, 1.0, x)
    return torch.where(small, polynomial(torch.where(small, x, 0.0), PHI1_SHORT), torch.expm1(far) / far)
