"""3 x 3 matrices: determinants and inverses by cross products, exponentials as polynomials."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import dense_exp
from trivgeo.groups._matrices.affine import affine_exp
from trivgeo.groups._matrices.kernel import Kernel
from trivgeo.groups._matrices.logarithm import iterative_log
from trivgeo.groups._matrices.series import is_few, polynomial_exp, shifted_exp

__all__ = ["Three"]


@final
class Three(Kernel):
    """The size k = 3."""

    def determinant(self, matrix: Tensor) -> Tensor:
        """The triple product of the rows."""
        r0, r1, r2 = matrix.unbind(-2)
        return (r0 * torch.linalg.cross(r1, r2)).sum(-1)

    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        """By the adjugate."""
        r0, r1, r2 = matrix.unbind(-2)
        first = torch.linalg.cross(r1, r2)
        adjugate = torch.stack([first, torch.linalg.cross(r2, r0), torch.linalg.cross(r0, r1)], -1)
        return adjugate if unimodular else adjugate / (r0 * first).sum(-1)[..., None, None]

    def exp(self, matrix: Tensor) -> Tensor:
        """A polynomial in the matrix."""
        return dense_exp(matrix) if is_few(matrix) else shifted_exp(matrix)

    def exp_phi1(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Polynomials in the matrix."""
        e, phi = polynomial_exp(matrix, with_phi1=True)
        assert phi is not None
        return e, phi

    def phi1(self, matrix: Tensor) -> Tensor:
        """From `exp_phi1`."""
        return self.exp_phi1(matrix)[1]

    def affine_exp(self, matrix: Tensor, vector: Tensor) -> Tensor:
        """From `exp_phi1`."""
        return affine_exp(self, matrix, vector)

    def log(self, matrix: Tensor) -> Tensor:
        """By square roots."""
        return iterative_log(matrix, self)
