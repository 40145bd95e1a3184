"""Exponentials of compact matrix groups by eigenangles; all functions depend on their differences, the roots."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd import forward_ad

from trivgeo._numerics import eigh, is_traced, is_transformed, polynomial
from trivgeo.groups.linalg.circular import COTANGENT_SERIES

# cot(x / 2) / 2 - 1 / x = x sum_k c_k x^2k
_SLOPE_SERIES = tuple(-c for c in COTANGENT_SERIES[:7])
_SLOPE_RADIUS = 0.3  # largest |x| of this series


def exp_with_score(tangent: Tensor, gradient: Tensor, weight: Tensor, is_real: bool) -> tuple[Tensor, Tensor]:
    r""":math:`e^A` and :math:`J_r(A)^{-T} (Y - w \nabla \log |\det J_r(A)|)` of skew-Hermitian matrices.

    With :math:`A = V \mathrm{diag}(i a) V^*` the derivative :math:`J_r` multiplies the entry (j, k) of
    :math:`V^* X V` by :math:`\varphi_1(-i (a_j - a_k))`, and the gradient of
    :math:`\log |\det J_r| = \sum \log \mathrm{sinc}(r / 2)`, the sum over the roots r, is a function of A, which J_r
    leaves unchanged. Roots are all :math:`a_j - a_k`, for real matrices the :math:`a_j + a_k`, j < k. Gradients are for
    :math:`-\tfrac12 \mathrm{tr}\, X Y`.

    Args:
        tangent: A, complex ``[*batch, n, n]``.
        gradient: Y, a matrix like A.
        weight: w, which broadcasts against ``[*batch, 1]``.
        is_real: whether the group is that of real matrices.

    Returns:
        Both as complex matrices in double precision; NaN where an argument is not finite.
    """
    good = torch.isfinite(tangent).flatten(-2).all(-1)[..., None, None]
    hermitian = torch.where(good, -1j * tangent.to(torch.complex128), 0.0)  # LAPACK raises for NaN
    angles, vectors = eigh(hermitian)
    phases = torch.polar(torch.ones_like(angles), angles)
    differences = angles.unsqueeze(-1) - angles.unsqueeze(-2)
    # 1 / phi_1(i d) = exp(-i d / 2) / sinc(d / 2)
    half = torch.polar(torch.ones_like(angles), -0.5 * angles)
    factor = half.unsqueeze(-1) * half.conj().unsqueeze(-2) / torch.sinc(differences / (2.0 * math.pi))
    if is_real:
        slope = _slope(angles.unsqueeze(-1) + angles.unsqueeze(-2))
        slope = slope.sum(-1) - slope.diagonal(dim1=-2, dim2=-1)
    else:
        slope = 2.0 * _slope(differences).sum(-1)
    moved = vectors.mH @ gradient.to(torch.complex128) @ vectors * factor
    moved = moved - torch.diag_embed(2j * weight * slope)
    element, score = (vectors * phases.unsqueeze(-2)) @ vectors.mH, vectors @ moved @ vectors.mH
    return torch.where(good, element, math.nan), torch.where(good, score, math.nan)


def _slope(x: Tensor) -> Tensor:
    """The derivative of log |sinc(x / 2)|."""
    small = x.abs() < _SLOPE_RADIUS
    near, far = torch.where(small, x, 0.0), torch.where(small, 1.0, x)
    return torch.where(small, near * polynomial(near * near, _SLOPE_SERIES), 0.5 / (0.5 * far).tan() - 1.0 / far)


def is_differentiated(*arguments: Tensor) -> bool:
    """Whether derivatives may be taken, or values cannot be looked at, so that eigenvectors cannot be used."""
    return is_traced() or any(
        is_transformed(x)
        or (x.requires_grad and torch.is_grad_enabled())
        or forward_ad.unpack_dual(x).tangent is not None
        or x.is_meta
        for x in arguments
    )


def finite(g: Tensor) -> Tensor:
    """Complex matrices of ``[*batch, n, n, 2]`` in double precision, with the unit matrix in place of NaN."""
    keep = torch.isfinite(g).flatten(-3).all(-1)[..., None, None]
    eye = torch.eye(g.shape[-2], dtype=g.dtype, device=g.device)
    return torch.complex(torch.where(keep, g[..., 0], eye).double(), torch.where(keep, g[..., 1], 0.0).double())
