r"""Exponentials :math:`e^{iH}` of Hermitian 3 x 3 matrices, by the eigenvalues of `trivgeo.groups._matrices.three`.

All of them are real. With B the part of trace zero, :math:`B^3 = 3 p B + 2 q I`, cosine and sine are polynomials
in B with real coefficients: where all eigenvalues meet by their series, elsewhere by one eigenvalue and its projection.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trivgeo.groups._matrices.basic import stack_rows
from trivgeo.groups._matrices.circular import circular
from trivgeo.groups._matrices.three import (
    SERIES_RADIUS,
    assembled,
    eigenvalues_meet,
    in_ring,
    projection_of,
    separate_root,
)

__all__ = ["hermitian_exp"]

_TERMS = range(15)
_COSINE = tuple((0.0 if j % 2 else (-1.0) ** (j // 2)) / math.factorial(j) for j in _TERMS)
_SINE = tuple((1.0 if j % 2 else 0.0) * (-1.0) ** (j // 2) / math.factorial(j) for j in _TERMS)

Complex = tuple[Tensor, Tensor]


def hermitian_exp(real: Tensor, imaginary: Tensor) -> Complex:
    """Real and imaginary part of exp(i H).

    Args:
        real: of H, symmetric ``[*batch, 3, 3]``.
        imaginary: of H, skew-symmetric.
    """
    diagonal = real.diagonal(dim1=-2, dim2=-1)
    mean = diagonal.mean(-1)
    a, b, c = (diagonal - mean.unsqueeze(-1)).unbind(-1)
    above = [((real[..., i, j]), imaginary[..., i, j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    u, v, w = above
    uu, vv, ww = (x * x + y * y for x, y in above)
    p = (a * a + b * b + c * c + 2.0 * (uu + vv + ww)) / 6.0
    uw = _times(u, w)
    q = 0.5 * (a * b * c - a * ww - b * vv - c * uu) + uw[0] * v[0] + uw[1] * v[1]
    # the square of B, on the diagonal and above
    square = [(a * a + uu + vv, None), (b * b + uu + ww, None), (c * c + vv + ww, None)]
    vw, uv = _times(v, _conjugate(w)), _times(_conjugate(u), v)
    product = [_plus(u, a + b, vw), _plus(v, a + c, uw), _plus(w, b + c, uv)]

    coefficients = _turned(mean, *_cosine_and_sine(p, q))
    (c0, s0), (c1, s1), (c2, s2) = coefficients
    on = [(c0 + c1 * x + c2 * y, s0 + s1 * x + s2 * y) for x, (y, _) in zip((a, b, c), square, strict=True)]
    upper, lower = [], []
    for (x, y), (s, t) in zip(above, product, strict=True):
        # the coefficients times (x + i y) and, below the diagonal, (x - i y)
        rr, ii = c1 * x + c2 * s, s1 * y + s2 * t
        ri, ir = c1 * y + c2 * t, s1 * x + s2 * s
        upper.append((rr - ii, ir + ri))
        lower.append((rr + ii, ir - ri))
    re, im = (
        stack_rows(
            [
                [on[0][k], upper[0][k], upper[1][k]],
                [lower[0][k], on[1][k], upper[2][k]],
                [lower[1][k], lower[2][k], on[2][k]],
            ]
        )
        for k in (0, 1)
    )
    return re, im


def _cosine_and_sine(p: Tensor, q: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The coefficients of I, B and B^2."""
    near = eigenvalues_meet(p, q, torch.ones_like(p), SERIES_RADIUS)
    p_near, q_near = torch.where(near, p, 0.0), torch.where(near, q, 0.0)
    p, q = torch.where(near, 1.0, p), torch.where(near, 1.0, q)
    x = separate_root(p, q)
    projection = projection_of(x, p)
    square = (3.0 * p - 0.75 * x * x).clamp(min=0.0)  # real eigenvalues: below zero by rounding alone
    c1, c2, _ = circular(square)
    cos_pair, cos_half, sin_half = 1.0 - square * c2, (0.5 * x).cos(), (0.5 * x).sin()
    result = []
    for series, even, odd, value in (
        (_COSINE, cos_half * cos_pair, sin_half * c1, x.cos()),
        (_SINE, -sin_half * cos_pair, cos_half * c1, x.sin()),
    ):
        spectral = assembled(projection, x, even, value - even, odd)
        ring = in_ring(series, p_near, q_near)
        result.append(tuple(torch.where(near, s, t) for s, t in zip(ring, spectral, strict=True)))
    return result[0], result[1]


def _turned(mean: Tensor, cosine: tuple[Tensor, ...], sine: tuple[Tensor, ...]) -> list[Complex]:
    phase = mean.cos(), mean.sin()
    return [_times(phase, f) for f in zip(cosine, sine, strict=True)]


def _times(a: Complex, b: Complex) -> Complex:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _conjugate(a: Complex) -> Complex:
    return a[0], -a[1]


def _plus(a: Complex, factor: Tensor, b: Complex) -> Complex:
    """``factor a + b``."""
    return factor * a[0] + b[0], factor * a[1] + b[1]
