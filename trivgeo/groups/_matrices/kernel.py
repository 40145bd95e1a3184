"""What is computed of batches of matrices of one size."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

__all__ = ["Kernel"]


class Kernel(ABC):
    """Functions of matrices ``[*batch, k, k]`` of one size k."""

    @abstractmethod
    def determinant(self, matrix: Tensor) -> Tensor:
        """The determinant, ``[*batch]``."""

    @abstractmethod
    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        """The inverse; infinite or NaN where singular.

        Args:
            matrix: ``[*batch, k, k]``.
            unimodular: the determinant is known to be one.
        """

    @abstractmethod
    def exp(self, matrix: Tensor) -> Tensor:
        """The exponential."""

    @abstractmethod
    def exp_phi1(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        r"""The exponential and :math:`\varphi_1(A) = \int_0^1 e^{sA} ds = \sum_j A^j / (j + 1)!`."""

    @abstractmethod
    def phi1(self, matrix: Tensor, exponential: Tensor | None = None) -> Tensor:
        """The latter alone.

        Args:
            matrix: ``[*batch, k, k]``.
            exponential: that of the matrix, where it is known, which may save computing it.
        """

    @abstractmethod
    def affine_exp(self, matrix: Tensor, vector: Tensor) -> Tensor:
        r"""The upper rows :math:`[e^A \mid \varphi_1(A) b]` of the exponential of ``[[A, b], [0, 0]]``.

        Args:
            matrix: A, ``[*batch, k, k]``.
            vector: b, ``[*batch, k]``.
        """

    @abstractmethod
    def log(self, matrix: Tensor) -> Tensor:
        """The principal real logarithm; NaN where there is none."""
