"""Rotations of space by quaternions and by Euler angles.

Rotation vectors (axis times angle) are algebra vectors: ``SO(3).exp(v)`` and ``SO(3).log(r)``. Homogeneous matrices of
rigid motions are ``SE(3).homogeneous(g)`` and ``SE(3).from_homogeneous(matrix)``.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo.checks import check_tensor, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups.orthogonal import SO, quaternion, where_rotation

__all__ = [
    "rotation_from_euler",
    "rotation_from_quaternion",
    "rotation_to_euler",
    "rotation_to_quaternion",
]

_ROTATIONS = SO(3)
_GIMBAL_LOCK_ULPS = 8.0  # distance in radians from gimbal lock within which the third angle is set to zero


@checked
def rotation_from_quaternion(q: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3 3"]:
    """Return the rotations of quaternions q = (w, x, y, z), scalar first, of any length but zero (NaN there).

    Args:
        q: quaternions ``[*batch, 4]``.

    Returns:
        Rotation matrices ``[*batch, 3, 3]``.

    Raises:
        ShapeError: ``q`` has no four numbers in its last dimension.

    Example:
        >>> rotation_from_quaternion(torch.tensor([1.0, 0.0, 0.0, 1.0]))  # a quarter turn about z
        tensor([[ 0., -1.,  0.],
                [ 1.,  0.,  0.],
                [ 0.,  0.,  1.]])
    """
    q = _check_last("q", q, 4)
    q = q / q.detach().abs().amax(-1, keepdim=True)  # scaled, its squares are in range; the length cancels
    w, x, y, z = q.unbind(-1)
    double = 2.0 / (q * q).sum(-1)
    rows = [
        1.0 - double * (y * y + z * z), double * (x * y - w * z), double * (x * z + w * y),
        double * (x * y + w * z), 1.0 - double * (x * x + z * z), double * (y * z - w * x),
        double * (x * z - w * y), double * (y * z + w * x), 1.0 - double * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


@checked
def rotation_to_quaternion(r: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 4"]:
    """Return the unit quaternions (w, x, y, z), scalar first, of rotations; of the two, the one with w >= 0.

    Accurate at every angle; at a half turn, where w = 0, either of the two.

    Args:
        r: rotation matrices ``[*batch, 3, 3]``.

    Returns:
        Quaternions ``[*batch, 4]``; NaN for other matrices, such as a reflection, see `LieGroup.project`.

    Raises:
        ShapeError: ``r`` holds no 3 x 3 matrices.
    """
    r = _check_rotations(r)
    q = torch.stack(quaternion(r), -1)
    return q / q.norm(dim=-1, keepdim=True)


@checked
def rotation_from_euler(angles: Float[Tensor, "*batch 3"], axes: str = "xyz") -> Float[Tensor, "*batch 3 3"]:
    """The rotation by three angles in radians about three axes, in this order.

    Args:
        angles: three angles, one for each axis.
        axes: three of ``x``, ``y``, ``z``, neighbours different. Lower case: fixed axes of space; capitals:
            axes that turn with the body. The convention of ``scipy.spatial.transform.Rotation``.

    Raises:
        ConfigurationError: ``axes`` are no such letters.
        ShapeError: ``angles`` has no three numbers in its last dimension.
    """
    order, fixed = _check_axes(axes)
    angles = _check_last("angles", angles, 3)
    units = torch.eye(3, dtype=angles.dtype, device=angles.device)
    first, second, third = (_ROTATIONS.exp(angles[..., k, None] * units[axis]) for k, axis in enumerate(order))
    return matmul(matmul(third, second), first) if fixed else matmul(matmul(first, second), third)


@checked
def rotation_to_euler(r: Float[Tensor, "*batch 3 3"], axes: str = "xyz") -> Float[Tensor, "*batch 3"]:
    r"""Three angles in radians about three axes, the inverse of `rotation_from_euler`, whose conventions hold.

    The first and the third are in :math:`[-\pi, \pi]`, the second in :math:`[-\pi/2, \pi/2]` for three different axes
    and in :math:`[0, \pi]` for others. Within rounding of an end of the range of the second (gimbal lock) only the sum
    or difference of the other two is determined: the third is set to zero, and derivatives there mean nothing. NaN for
    matrices that are no rotations. Computed by the quaternion (Bernardes and Viollet 2022).

    Args:
        r: rotations.
        axes: three letters such as ``"xyz"``, see `rotation_from_euler`.

    Raises:
        ConfigurationError: ``axes`` are no three such letters.
        ShapeError: ``r`` holds no 3 x 3 matrices.
    """
    order, fixed = _check_axes(axes)
    r = _check_rotations(r)
    i, j, k = order if fixed else order[::-1]
    proper = i == k
    k = 3 - i - j if proper else k
    sign = float((i - j) * (j - k) * (k - i) // 2)
    w, *u = quaternion(r)
    a, b, c, d = w, u[i], u[j], sign * u[k]
    if not proper:
        a, b, c, d = a - c, b + d, c + a, d - b
    middle = 2.0 * torch.atan2(torch.hypot(c, d), torch.hypot(a, b))
    half_sum, half_difference = torch.atan2(b, a), torch.atan2(d, c)
    lock = _GIMBAL_LOCK_ULPS * torch.finfo(r.dtype).eps
    low, high = middle <= lock, middle >= math.pi - lock
    # locked: only the sum, or the difference, of the outer angles is known, and the third is set to zero
    first, last = half_sum - half_difference, half_sum + half_difference
    if fixed:
        first = torch.where(low, 2.0 * half_sum, torch.where(high, -2.0 * half_difference, first))
        last = torch.where(low | high, 0.0, last)
    else:
        last = torch.where(low, 2.0 * half_sum, torch.where(high, 2.0 * half_difference, last))
        first = torch.where(low | high, 0.0, first)
    if not proper:
        last, middle = sign * last, middle - 0.5 * math.pi
    turn = 2.0 * math.pi
    first, last = (x - turn * torch.round(x / turn) for x in (first, last))
    return torch.stack([first, middle, last] if fixed else [last, middle, first], -1)


def _check_axes(axes: str) -> tuple[tuple[int, int, int], bool]:
    """The axes as numbers, and whether they are fixed."""
    letters = axes.lower() if isinstance(axes, str) else ""
    known = len(letters) == 3 and set(letters) <= set("xyz") and axes in (letters, letters.upper())
    if not known or letters[0] == letters[1] or letters[1] == letters[2]:
        raise ConfigurationError(f"axes: expected three of x, y, z (or of X, Y, Z), neighbours different, got {axes!r}")
    i, j, k = ("xyz".index(letter) for letter in letters)
    return (i, j, k), axes == letters


def _check_rotations(r: Tensor) -> Tensor:
    """Check matrices ``[*batch, 3, 3]``, and replace those that are no rotations by NaN."""
    r = check_tensor("r", r)
    if r.ndim < 2 or r.shape[-2:] != (3, 3):
        raise ShapeError(f"r: expected rotations [*batch, 3, 3], got {list(r.shape)}")
    return where_rotation(r, r)


def _check_last(name: str, x: Tensor, size: int) -> Tensor:
    x = check_tensor(name, x)
    if x.ndim < 1 or x.shape[-1] != size:
        raise ShapeError(f"{name}: expected [*batch, {size}], got {list(x.shape)}")
    return x
