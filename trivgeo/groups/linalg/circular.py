"""Coefficients of rotations as smooth functions of the square of the angle."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trivgeo._numerics import polynomial

# 1 / x^2 - cot(x / 2) / (2 x) = sum_k |B_2k+2| / (2k + 2)! x^2k, for |x| < 2 pi
COTANGENT_SERIES = (
    1 / 12,
    1 / 720,
    1 / 30240,
    1 / 1209600,
    1 / 47900160,
    691 / 1307674368000,
    1 / 74724249600,
    3617 / 10670622842880000,
    43867 / 5109094217170944000,
    174611 / 802857662698291200000,
)
_CIRCULAR_RADIUS = 0.25  # largest x^2 of the series, which are exact to 1e-19 with seven terms
_C1_ALTERNATING = tuple((-1.0) ** j / math.factorial(2 * j + 1) for j in range(8))
_C2_ALTERNATING = tuple((-1.0) ** j / math.factorial(2 * j + 2) for j in range(7))
_C3_ALTERNATING = tuple((-1.0) ** j / math.factorial(2 * j + 3) for j in range(7))
_SLOPE_RADIUS = 1.0  # largest x^2 of the series of derivatives
_C2_SLOPE = tuple((-1.0) ** j * (j + 1) / math.factorial(2 * j + 4) for j in range(9))
_C3_SLOPE = tuple((-1.0) ** j * (j + 1) / math.factorial(2 * j + 5) for j in range(9))
_ATAN_RADIUS = 0.02  # largest r^2 of the series of the arc tangent
_ATAN_SERIES = tuple((-1.0) ** k / (2 * k + 1) for k in range(10))  # atan(r) / r in powers of r^2


def circular(square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""sin x / x, (1 - cos x) / x^2 and (x - sin x) / x^3 from x^2 >= 0: c1, c2, c3 of `stumpff` at -x^2.

    Finite derivatives of every order at zero.
    """
    c1, c2, small, far, c1_far = _circular(square)
    near = polynomial(torch.where(small, square, 0.0), _C3_ALTERNATING)
    return c1, c2, torch.where(small, near, (1.0 - c1_far) / far)


def circular_pair(square: Tensor) -> tuple[Tensor, Tensor]:
    """c1 and c2 of `circular`."""
    c1, c2, *_ = _circular(square)
    return c1, c2


def _circular(square: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """c1, c2, a mask of squares for series, the other squares (one in place of the rest), and c1 of these.

    Half the angle has a sine and a cosine that are derivatives of each other.
    """
    small = square < _CIRCULAR_RADIUS
    near, far = torch.where(small, square, 0.0), torch.where(small, 1.0, square)
    half = 0.5 * far.sqrt()
    ratio, cosine = half.sin() / half, half.cos()
    c1_far = ratio * cosine
    c1 = torch.where(small, polynomial(near, _C1_ALTERNATING), c1_far)
    c2 = torch.where(small, polynomial(near, _C2_ALTERNATING), 0.5 * ratio * ratio)
    return c1, c2, small, far, c1_far


def sinc(x: Tensor, sine: Tensor) -> Tensor:
    """sin x / x from x and its sine, with finite derivatives of every order at zero."""
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
