r"""The universal cover of SL(2, R): a matrix together with its angle, which counts turns.

An element is a = R(theta) P with a rotation and a symmetric positive matrix; the angle theta is any real number, and
the matrix knows it up to full turns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trivgeo._numerics import plane_log_ratio
from trivgeo.errors import AlgebraError
from trivgeo.groups.algebra import LieAlgebra

__all__ = [
    "angle_of_exp",
    "angle_of_product",
    "is_split_form",
    "log_of",
    "plane_representation",
    "principal_angle",
    "turn",
]


def is_split_form(algebra: LieAlgebra) -> bool:
    """Return True if a semisimple algebra is sl(2, R): of dimension three, and not so(3)."""
    return algebra.dim == 3 and bool((torch.linalg.eigvalsh(algebra.killing_form) > 0).any())


def plane_representation(algebra: LieAlgebra) -> Tensor:
    """Matrices ``[3, 2, 2]`` of the basis of an algebra sl(2, R), by an orthonormal basis of its Killing form.

    Raises:
        AlgebraError: it is another algebra.
    """
    if not is_split_form(algebra):
        raise AlgebraError(f"expected sl(2, R), got {algebra!r}")
    values, vectors = torch.linalg.eigh(algebra.killing_form)  # the negative one first
    rows = vectors.T * (values.abs() / 8.0).rsqrt().unsqueeze(-1)
    compact, first, second = rows
    # [p1, p2] = -2 k, for the matrices diag(1, -1), [[0, 1], [1, 0]] and k = [[0, -1], [1, 0]]
    bracket = algebra.bracket(first, second)
    if float(bracket @ compact) > 0:
        rows = torch.stack([-compact, first, second])
    standard = torch.tensor([[0.0, -1.0, 1.0, 0.0], [1.0, 0.0, 0.0, -1.0], [0.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    return (torch.linalg.inv(rows) @ standard).unflatten(-1, (2, 2))


def turn(matrix: Tensor, angle: Tensor) -> Tensor:
    """Return rotations by angles ``[*batch]`` times matrices ``[*batch, 2, 2]``.

    Args:
        matrix: right factors ``[*batch, 2, 2]``.
        angle: angles of the left factors, in radians.
    """
    c, s = torch.cos(angle), torch.sin(angle)
    return torch.stack([c, -s, s, c], -1).unflatten(-1, (2, 2)) @ matrix


def principal_angle(matrix: Tensor) -> Tensor:
    """Return the angle of the rotation in a ``matrix``, ``[*batch, 2, 2]``, between -pi and pi, ``[*batch]``."""
    return torch.atan2(matrix[..., 1, 0] - matrix[..., 0, 1], matrix[..., 0, 0] + matrix[..., 1, 1])


def angle_of_product(product: Tensor, total: Tensor) -> Tensor:
    """The angle of an element ``a b``: turned back by both angles it is a product of two symmetric positive matrices.

    Such a product has a positive trace, and so an angle of less than a quarter turn.

    Args:
        product: the matrix of ``a b``.
        total: the sum of the angles of a and b.
    """
    return total + principal_angle(turn(product, -total))


def angle_of_exp(y: Tensor) -> Tensor:
    """Return the angle of ``exp(y)`` for trace-free matrices ``y``, ``[*batch, 2, 2]``, continuous along
    ``exp(s y)``.
    """
    x, b, c = y[..., 0, 0], y[..., 0, 1], y[..., 1, 0]
    q, half = x * x + b * c, 0.5 * (c - b)
    elliptic = q < 0
    w = torch.where(elliptic, -q, 1.0).sqrt()
    turns = (w.detach() / math.pi).round()
    rest = w - math.pi * turns
    sign = torch.where(half < 0, -1.0, 1.0).to(y.dtype)
    elliptic_angle = sign * math.pi * turns + torch.atan2(half / w * torch.sin(rest), torch.cos(rest))
    r = torch.where(elliptic, 0.0, q)
    small = r < 1e-6
    root = torch.where(small, 1.0, r).sqrt()
    slope = torch.where(small, 1.0 - r / 3.0 + 2.0 * r * r / 15.0, torch.tanh(root) / root)
    return torch.where(elliptic, elliptic_angle, torch.atan(half * slope))


def log_of(matrix: Tensor, angle: Tensor) -> Tensor:
    """Return the trace-free logarithm of an element of the cover, ``[*batch, 2, 2]``; NaN where none exists.

    Args:
        matrix: the matrix ``[*batch, 2, 2]``.
        angle: the angle of its rotation, with all turns, ``[*batch]``.
    """
    halves = (angle.detach() / math.pi).round()
    sign = torch.where(halves % 2 == 0, 1.0, -1.0).to(matrix.dtype)
    near = sign[..., None, None] * matrix
    a, b, c, d = near[..., 0, 0], near[..., 0, 1], near[..., 1, 0], near[..., 1, 1]
    x = 0.5 * (a - d)
    f, square = plane_log_ratio(a, b, c, d)
    principal = f[..., None, None] * torch.stack([x, b, c, -x], -1).unflatten(-1, (2, 2))
    # further half turns about the same axis, which only rotations have
    elliptic = square < 0
    w = torch.where(elliptic, -square, 1.0).sqrt()  # |sin of the angle that is left|
    unit = torch.where(c - b < 0, -1.0, 1.0).to(matrix.dtype) / w
    axis = unit[..., None, None] * torch.stack([x, b, c, -x], -1).unflatten(-1, (2, 2))
    zero, one = torch.zeros_like(a), torch.ones_like(a)
    quarter = torch.stack([zero, -one, one, zero], -1).unflatten(-1, (2, 2))
    identity = (square == 0) & (b == 0) & (c == 0)
    axis = torch.where(elliptic[..., None, None], axis, torch.where(identity[..., None, None], quarter, math.nan))
    more = math.pi * halves[..., None, None] * axis
    return torch.where((halves == 0)[..., None, None], principal, principal + more)
