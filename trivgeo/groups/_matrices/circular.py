"""Coefficients of rotations as smooth functions of the square of the angle."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trivgeo._numerics import polynomial

__all__ = ["angle_factor", "circular", "circular_pair", "circular_slopes", "sinc"]

_CIRCULAR_RADIUS = 0.25  # of x^2; seven terms leave out 1e-19
_C2_ALTERNATING = tuple((-1.0) ** j / math.factorial(2 * j + 2) for j in range(7))
_C3_ALTERNATING = tuple((-1.0) ** j / math.factorial(2 * j + 3) for j in range(7))
_SLOPE_RADIUS = 1.0
_C2_SLOPE = tuple((-1.0) ** j * (j + 1) / math.factorial(2 * j + 4) for j in range(9))
_C3_SLOPE = tuple((-1.0) ** j * (j + 1) / math.factorial(2 * j + 5) for j in range(9))
_ATAN_RADIUS = 0.02
# atan(r) / r = sum_k (-r^2)^k / (2k + 1)
_ATAN_SERIES = tuple((-1.0) ** k / (2 * k + 1) for k in range(10))


def circular(square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""sin x / x, (1 - cos x) / x^2 and (x - sin x) / x^3 from x^2 >= 0: c1, c2, c3 of `stumpff` at -x^2.

    Finite derivatives of every order at zero.
    """
    small, c1_far, c3_near, c1, c2 = _circular(square)
    return c1, c2, torch.where(small, c3_near, (1.0 - c1_far) / torch.where(small, 1.0, square))


def circular_pair(square: Tensor) -> tuple[Tensor, Tensor]:
    """c1 and c2 of `circular`."""
    *_, c1, c2 = _circular(square)
    return c1, c2


def _circular(square: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    small = square < _CIRCULAR_RADIUS
    near, far = torch.where(small, square, 0.0), torch.where(small, 1.0, square)
    x = far.sqrt()
    half = torch.sin(0.5 * x)
    c1_far = torch.sin(x) / x
    c3_near = polynomial(near, _C3_ALTERNATING)
    c1 = torch.where(small, 1.0 - near * c3_near, c1_far)
    c2 = torch.where(small, polynomial(near, _C2_ALTERNATING), 2.0 * half * half / far)
    return small, c1_far, c3_near, c1, c2


def sinc(x: Tensor, sine: Tensor) -> Tensor:
    """sin x / x from both, with finite derivatives of every order at zero."""
    square = x * x
    small = square < _CIRCULAR_RADIUS
    near = torch.where(small, square, 0.0)
    return torch.where(small, 1.0 - near * polynomial(near, _C3_ALTERNATING), sine / torch.where(small, 1.0, x))


def circular_slopes(square: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> tuple[Tensor, Tensor]:
    """The derivatives of c2 and c3 by ``-square``: ``c_k' = (c_(k+1) - k c_(k+2)) / 2``."""
    small = square < _SLOPE_RADIUS
    near, far = torch.where(small, square, 0.0), torch.where(small, 1.0, square)
    c4, c5 = (0.5 - c2) / far, (1.0 / 6.0 - c3) / far
    d2 = torch.where(small, polynomial(near, _C2_SLOPE), 0.5 * (c3 - 2.0 * c4))
    d3 = torch.where(small, polynomial(near, _C3_SLOPE), 0.5 * (c4 - 3.0 * c5))
    return d2, d3


def angle_factor(square: Tensor, w: Tensor) -> Tensor:
    """atan2(|u|, w) / |u| for quaternions (w, u) of any length, |u|^2 = ``square``."""
    small = (square < _ATAN_RADIUS * w * w) & (w > 0)
    w_small = torch.where(small, w, 1.0)
    near = polynomial(torch.where(small, square, 0.0) / (w_small * w_small), _ATAN_SERIES) / w_small
    length = torch.where(small, 1.0, square).sqrt()
    far = torch.atan2(length, torch.where(small, 1.0, w)) / length
    return torch.where(small, near, far)
