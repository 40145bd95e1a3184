"""What sizes have in common whose exponentials are polynomials in the matrix."""

from __future__ import annotations

from torch import Tensor

from trivgeo._numerics import dense_exp
from trivgeo.groups._matrices.affine import affine_exp
from trivgeo.groups._matrices.batches import is_small_batch
from trivgeo.groups._matrices.kernel import Kernel
from trivgeo.groups._matrices.logarithm import iterative_log
from trivgeo.groups._matrices.series import polynomial_exp, shifted_exp

__all__ = ["PolynomialKernel"]


class PolynomialKernel(Kernel):
    """Sizes 3 and 4."""

    def exp(self, matrix: Tensor) -> Tensor:
        """A polynomial in the matrix."""
        return dense_exp(matrix) if is_small_batch(matrix) else shifted_exp(matrix)

    def exp_phi1(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Polynomials in the matrix."""
        e, phi = polynomial_exp(matrix, with_phi1=True)
        assert phi is not None
        return e, phi

    def phi1(self, matrix: Tensor, exponential: Tensor | None = None) -> Tensor:
        """From `exp_phi1`."""
        return self.exp_phi1(matrix)[1]

    def affine_exp(self, matrix: Tensor, vector: Tensor) -> Tensor:
        """From `exp_phi1`."""
        return affine_exp(self, matrix, vector)

    def log(self, matrix: Tensor) -> Tensor:
        """By square roots."""
        return iterative_log(matrix, self)
