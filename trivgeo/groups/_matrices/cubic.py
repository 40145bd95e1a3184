r"""Functions of matrices B with :math:`B^3 = 3 p B + 2 q I`, as polynomials in B of degree two."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "SERIES_RADIUS",
    "Coefficients",
    "eigenvalues_meet",
    "in_ring",
    "in_shifted_ring",
    "separate_root",
    "spectral_coefficients",
    "spectral_projection",
]

SERIES_RADIUS = 0.5  # of eigenvalues about their mean, within which exponentials are power series
_FREE_STEPS, _STEPS = 5, 2  # of Newton's method: before and after derivatives are recorded

Coefficients = tuple[Tensor, Tensor, Tensor]
"""Numbers ``[*batch]`` that multiply I, B and B^2."""


def spectral_projection(x: Tensor, p: Tensor) -> Coefficients:
    """Return the projection P on the eigenvector of the separate eigenvalue x, as a polynomial in B."""
    square = x * x
    weight = (1 / 3) / (square - p)
    return weight * (square - 3.0 * p), weight * x, weight


def spectral_coefficients(projection: Coefficients, x: Tensor, even: Tensor, gap: Tensor, odd: Tensor) -> Coefficients:
    """Return ``even I + gap P + odd N`` as a polynomial in B.

    Args:
        projection: P, see `spectral_projection`.
        x: the separate eigenvalue.
        even: the mean of the function on the other two.
        gap: its value on x less that mean.
        odd: the factor of ``N = B + x I / 2 - 3 x P / 2``.
    """
    p0, p1, p2 = projection
    weight = gap - 1.5 * x * odd
    return torch.addcmul(even, weight, p0) + 0.5 * x * odd, torch.addcmul(odd, weight, p1), weight * p2


def separate_root(p: Tensor, q: Tensor) -> Tensor:
    """The root of ``x^3 = 3 p x + 2 q`` of the sign of q.

    Newton's method from above, where the polynomial is convex, goes down to it. The derivative there,
    ``3 (x^2 - p)``, is the product of the distances to the other two.
    """
    free_p, free_q = p.detach(), q.detach().abs()
    cube = ((2.0 * free_q).log() / 3.0).exp()  # half the time of pow, and exact enough to start with
    tiny = torch.finfo(p.dtype).tiny
    line = torch.minimum(cube, 2.0 * free_q / (-3.0 * free_p).clamp(min=tiny))
    x = torch.where(free_p < 0, line, (3.0 * free_p).clamp(min=0.0).sqrt() + cube)
    for _ in range(_FREE_STEPS):
        x = _newton(x, free_p, free_q)
    x = torch.where(q < 0, -x, x)
    for _ in range(_STEPS):
        x = _newton(x, p, q)
    return x


def _newton(x: Tensor, p: Tensor, q: Tensor) -> Tensor:
    square = x * x
    return torch.addcmul(q, x, square) / (square - p) * (2 / 3)


def eigenvalues_meet(p: Tensor, q: Tensor, unit: Tensor, radius: float) -> Tensor:
    """Whether all eigenvalues are this close to their mean, in these units."""
    bound = 0.5 * (radius * unit.detach()).square()  # |z|^2 <= 3 |p| + |2 q|^(2/3) where z^3 = 3 p z + 2 q
    return (3.0 * p.detach().abs() < bound) & (4.0 * q.detach().square() < bound**3)


def in_ring(coefficients: Sequence[float], p: Tensor, q: Tensor) -> Coefficients:
    """``sum_j c_j B^j`` by Horner's rule, with ``B^3 = 3 p B + 2 q I``."""
    third, constant = 3.0 * p, 2.0 * q
    f0, f1, f2 = (torch.full_like(p, c) for c in coefficients[-3:])
    for c in reversed(coefficients[:-3]):
        f0, f1, f2 = constant * f2 + c, torch.addcmul(f0, third, f2), f1
    return f0, f1, f2


def in_shifted_ring(coefficients: Sequence[float], m: Tensor, p: Tensor, q: Tensor) -> Coefficients:
    """``sum_j c_j (m I + B)^j`` by Horner's rule, see `in_ring`."""
    third, constant = 3.0 * p, 2.0 * q
    f0, f1, f2 = torch.full_like(p, coefficients[-1]), torch.zeros_like(p), torch.zeros_like(p)
    for c in reversed(coefficients[:-1]):
        f0, f1, f2 = (
            torch.addcmul(m * f0 + c, constant, f2),
            torch.addcmul(torch.addcmul(f0, m, f1), third, f2),
            torch.addcmul(f1, m, f2),
        )
    return f0, f1, f2
