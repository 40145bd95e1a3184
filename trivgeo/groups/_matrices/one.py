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

__all__ = ["PHI1_RADIUS", "PHI1_SHORT", "One", "phi1_pair", "phi1_regimes", "phi1_scalar"]

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


def phi1_regimes(m: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of eigenvalues m +- sqrt(q): where phi_1 is (e^A - I) / A, and a and b of phi_1 = a + b sqrt(q) elsewhere.

    Small ones by a series in the ring spanned by I and B, B^2 = q I, real ones apart by divided differences; what is
    left is away from zero.
    """
    size = torch.maximum(m.abs(), q.abs().sqrt())
    small = size < 0.5 * PHI1_RADIUS
    apart = ~small & (q > 0.04)  # less than small ones reach, so that m^2 - q is at least 0.02 for the rest

    m_near, q_near = torch.where(small, m, 0.0), torch.where(small, q, 0.0)
    a_near, b_near = torch.full_like(m, PHI1_SHORT[-1]), torch.zeros_like(m)
    for coefficient in reversed(PHI1_SHORT[:-1]):
        a_next = torch.addcmul(m_near * a_near + coefficient, q_near, b_near)
        a_near, b_near = a_next, torch.addcmul(a_near, m_near, b_near)

    r = torch.where(apart, q, 1.0).sqrt()
    m_apart = torch.where(apart, m, 0.0)
    high, low = phi1_scalar(torch.stack([m_apart + r, m_apart - r], -1)).unbind(-1)
    a_apart, b_apart = 0.5 * (high + low), 0.5 * (high - low) / r
    return ~small & ~apart, torch.where(small, a_near, a_apart), torch.where(small, b_near, b_apart)


def phi1_pair(m: Tensor, q: Tensor, even: Tensor, odd: Tensor) -> tuple[Tensor, Tensor]:
    """a and b with ``phi_1 = a + b sqrt(q)`` at eigenvalues m +- sqrt(q), the exponentials even +- odd sqrt(q)."""
    rest, a, b = phi1_regimes(m, q)
    m, q = torch.where(rest, m, 1.0), torch.where(rest, q, 0.0)
    even, odd = torch.where(rest, even, 0.0) - 1.0, torch.where(rest, odd, 0.0)
    unit = 1.0 / (m * m - q)
    return torch.where(rest, unit * (m * even - q * odd), a), torch.where(rest, unit * (m * odd - even), b)
