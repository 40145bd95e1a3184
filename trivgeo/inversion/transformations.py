"""Distributions of transformations: those of the plane in degrees, scales, shares of a frame; draws and spreads of any.

A distribution is a function of a count and a generator that draws elements, `Transformations`.

```python
transformations = composed(group, rotations(group, 30.0), scales(group, 0.8, 1.25), shifts(group, 0.1))
LearnedInverter(action).fit(clean, transformations)
register(moving, fixed, group, transformations=transformations)
```
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._random import keyed, normal, uniform
from trivgeo._torch import pytree
from trivgeo.actions.image import check_sides, frame_corners
from trivgeo.checks import check_arguments, check_count, check_positive, checked
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import Action, LieAlgebra, LieGroup
from trivgeo.groups.group import is_near
from trivgeo.inversion.point_alignment import fit_homographies
from trivgeo.inversion.rows import where_rows
from trivgeo.sde import GeometricSchedule

__all__ = ["PlaneTransformations", "composed", "homographies", "rotations", "scales", "shifts"]

Transformations = Callable[[int, torch.Generator], Tensor]
"""(count, generator) to elements ``[count, *element_shape]``."""

_NUM_SAMPLES = 4096
_GUESS_ERROR = 0.05  # share of a transformation that a first guess may leave
_MIN_RELATIVE_SPREAD = 1e-3  # spread in units of the largest below which transformations do not move in a direction
_MAX_TURN = 0.95  # length of a logarithm, as a share of the way to the nearest element where exp is singular
_MIN_NOISE_FACTORS = 2  # exponentials whose product is noise of level one
_MAX_TURNING_VARIANCE = 2.5  # variance of one exponential: a full turn is four standard deviations
_MIN_DENOMINATOR = 1e-2  # denominator of drawn homographies on a frame, in units of the largest
_NUM_TRIED = 64  # draws of a distribution of another group, to see whether they are elements
_MEMBER_TOLERANCE = 1e-6  # largest difference of a matrix from one of the group
_DOUBLE = torch.zeros((), dtype=torch.float64)


@checked
@dataclass(frozen=True)
class PlaneTransformations:
    """A distribution of elements that knows their group.

    Attributes:
        group: group of the elements.
        draw: (count, generator) to elements ``[count, *element_shape]``.
    """

    group: LieGroup
    draw: Callable[[int, torch.Generator | None], Tensor]

    def __call__(self, count: int, generator: torch.Generator | None) -> Tensor:
        return self.draw(count, generator)


@checked
def rotations(group: LieGroup, degrees: float = 180.0) -> Transformations:
    """Return the uniform distribution of rotations about the middle of the frame, by up to ``degrees`` either way.

    Args:
        group: a group of transformations of the plane that has rotations.
        degrees: the bound, at most 180.

    Returns:
        A function of (count, generator) to elements ``[count, *element_shape]``, float64 on the CPU.

    Raises:
        ConfigurationError: a bound out of its range, or a group without such transformations.

    Example:
        >>> transformations = rotations(SO(2), 45.0)
        >>> transformations(3, torch.Generator().manual_seed(0)).shape
        torch.Size([3, 2, 2])
    """
    if check_positive("degrees", degrees) > 180.0:
        raise ConfigurationError(f"degrees: expected at most 180, got {degrees}")
    bound = math.radians(degrees)

    def matrices(u: Tensor) -> Tensor:
        angle = bound * (2.0 * u[:, 0] - 1.0)
        cos, sin = angle.cos(), angle.sin()
        matrix = _units(len(u))
        matrix[:, :2, :2] = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
        return matrix

    return _plane_transformations(group, matrices, "rotations")


@checked
def scales(group: LieGroup, low: float, high: float) -> Transformations:
    """Return the distribution of scales about the middle of the frame, uniform in their logarithm.

    Args:
        group: a group of transformations of the plane that has scalings.
        low: the smallest scale.
        high: the largest scale.

    Raises:
        ConfigurationError: not 0 < low <= high, or a group without such transformations.
    """
    if not check_positive("low", low) <= check_positive("high", high):
        raise ConfigurationError(f"high: expected at least low, {low}, got {high}")

    def matrices(u: Tensor) -> Tensor:
        s = (math.log(low) + math.log(high / low) * u[:, 0]).exp()
        return torch.diag_embed(torch.stack([s, s, torch.ones_like(s)], -1))

    return _plane_transformations(group, matrices, "scalings")


@checked
def shifts(group: LieGroup, share: float) -> Transformations:
    """Return the uniform distribution of shifts by up to a share of the longer side of the frame, in x and in y.

    Args:
        group: a group of transformations of the plane that has translations.
        share: the bound.

    Raises:
        ConfigurationError: a bound out of its range, or a group without such transformations.
    """
    check_positive("share", share)

    def matrices(u: Tensor) -> Tensor:
        matrix = _units(len(u))
        matrix[:, :2, 2] = 2.0 * share * (2.0 * u[:, :2] - 1.0)  # the frame is two wide
        return matrix

    return _plane_transformations(group, matrices, "shifts")


@checked
def homographies(group: LieGroup, share: float = 0.25, size: tuple[int, int] = (1, 1)) -> Transformations:
    """Return the distribution of homographies that move each corner of the frame independently.

    Uniformly, in x and in y by up to a share of that side. Homographies that send a line of the frame to infinity, or
    whose inverses do, are drawn again: `ImageWarp` is not defined for them. At a share of a quarter that is one in a
    thousand.

    Args:
        group: ``Projective(2)``.
        share: the bound, below one half: the moved corners are then those of a convex quadrilateral.
        size: height and width in pixels.

    Raises:
        ConfigurationError: a bound out of its range, or a group without such transformations.
    """
    if not check_positive("share", share) < 0.5:
        raise ConfigurationError(f"share: expected less than one half, got {share}")
    corners = torch.tensor(frame_corners(*check_sides(size)), dtype=torch.float64)
    reach = 2.0 * share * corners.amax(0)

    def matrices(u: Tensor) -> Tensor:
        moved = corners + reach * (2.0 * u.unflatten(-1, (4, 2)) - 1.0)
        return fit_homographies(corners.expand_as(moved), moved)

    return _plane_transformations(group, matrices, "homographies", lambda found: _keeps(found, corners))


@checked
def composed(group: LieGroup, *transformations: Transformations) -> Transformations:
    """Return the distribution of products of independent elements, the first one on the left.

    Args:
        group: group of the elements.
        transformations: distributions of the factors. Draws of every call are checked; some of a
            `PlaneTransformations` of another group are tried here.

    Raises:
        ConfigurationError: no distribution.
        DomainError: draws are no elements of the group, such as scalings for ``SE(2)``.
    """
    if not isinstance(group, LieGroup):
        raise ConfigurationError(f"group: expected a LieGroup, got {group!r}")
    if not transformations or not all(callable(each) for each in transformations):
        raise ConfigurationError(
            f"transformations: expected at least one function of (count, generator), got {transformations!r}"
        )

    def draw(count: int, generator: torch.Generator | None) -> Tensor:
        first, *others = (sample_elements(group, each, count, generator) for each in transformations)
        for other in others:
            first = group.compose(first, other)
        return first

    for each in transformations:
        if isinstance(each, PlaneTransformations) and each.group is not group:
            sample_elements(group, each, _NUM_TRIED, keyed(0))
    return PlaneTransformations(group, draw)


def _units(count: int) -> Tensor:
    return torch.eye(3, dtype=torch.float64).repeat(count, 1, 1)


def _keeps(matrix: Float[Tensor, "b 3 3"], corners: Float[Tensor, "4 2"]) -> Bool[Tensor, " b"]:
    """Return whether homographies and their inverses are far from infinity on a quadrilateral of ``corners``."""
    kept = []
    for each in (matrix, torch.linalg.inv(matrix)):
        denominator = corners @ each[:, 2, :2].unsqueeze(-1) + each[:, 2, 2:].unsqueeze(-1)
        size = denominator.abs().squeeze(-1)
        one_sign = denominator.squeeze(-1).sign().sum(-1).abs() == 4
        kept.append(one_sign & (size.amin(-1) > _MIN_DENOMINATOR * size.amax(-1)))
    return kept[0] & kept[1]


def _plane_transformations(
    group: LieGroup,
    matrices: Callable[[Tensor], Tensor],
    what: str,
    accepts: Callable[[Tensor], Tensor] | None = None,
) -> Transformations:
    """Return the distribution of matrices made of uniform numbers ``[count, 8]``, if they are in the group.

    Args:
        accepts: matrices to truth values; refused matrices are drawn again. ``None`` to accept all.
    """
    if not isinstance(group, LieGroup):
        raise ConfigurationError(f"group: expected a LieGroup, got {group!r}")
    point_action = group.action()
    if 2 not in point_action.point_dims:
        raise ConfigurationError(f"group: expected one that acts on points (x, y), got {group!r}")

    def draw(count: int, generator: torch.Generator | None) -> Tensor:
        found = matrices(uniform((count, 8), _DOUBLE, generator))
        while accepts is not None and len(again := (~accepts(found)).nonzero().flatten()):
            found[again] = matrices(uniform((len(again), 8), _DOUBLE, generator))
        return point_action.from_homogeneous(found)

    some = matrices(uniform((4, 8), _DOUBLE, keyed(0)))
    found = point_action.homogeneous(point_action.from_homogeneous(some))
    found = found * (some[:, -1:, -1:] / found[:, -1:, -1:])
    if not bool(((found - some).abs() <= _MEMBER_TOLERANCE).all()):
        raise ConfigurationError(f"group: expected one that has {what}, got {group!r}")
    return PlaneTransformations(group, draw)


@checked
def sample_elements(
    group: LieGroup, transformations: Transformations, count: int, generator: torch.Generator | None
) -> Tensor:
    """Draw elements ``[count, *element_shape]`` from a user's distribution, and check them.

    Raises:
        ConfigurationError: the draws are no floating-point numbers.
        ShapeError: the draws are no elements of the group, or another number of them.
        NonFiniteError: elements hold NaN or infinity.
        DomainError: draws are far from the group: their shape is that of elements, their entries are not.
    """
    check_arguments("transformations", transformations, "count", "generator")
    g = group.check_elements(transformations(count, generator), "transformations")  # type: ignore[arg-type]
    wanted = [count, *group.element_shape]
    if list(g.shape) != wanted:
        raise ShapeError(f"transformations: expected elements {wanted}, got {list(g.shape)}")
    finite = torch.isfinite(g)
    if not bool(finite.all()):
        bad = int((~finite).sum())
        raise NonFiniteError(
            f"transformations: expected elements that have a logarithm, got {bad} NaN or infinite entries"
        )
    if not bool((near := is_near(group, g, group.project(g))).all()):
        raise DomainError(
            f"transformations: expected elements of {group!r}, got {int((~near).sum())} draws of {count} that are not"
        )
    return g


@checked
def moving_elements(
    action: Action, x: Any, count: int, transformations: Transformations | None, generator: torch.Generator | None
) -> tuple[Tensor, Bool[Tensor, "m b"]]:
    """Draw elements that move data, and return them with the mask of where they are defined.

    Args:
        transformations: distribution of the elements; ``None`` for exp of standard normal vectors in the group's basis.

    Returns:
        Elements ``[m, b, *element_shape]``, the identity where not defined, and the mask ``[m, b]``; m is the count.

    Raises:
        DomainError: no element is defined on any datum.
    """
    group, reference, batch = action.group, pytree.tree_leaves(x)[0], action.batch_shape(x).numel()
    check_count("num_elements", count)
    if transformations is None:
        h = group.exp(normal((count, group.dim), torch.empty(0, dtype=torch.float64), generator))
    else:
        h = sample_elements(group, transformations, count, generator or torch.Generator().manual_seed(0))
    h = h.to(reference).unsqueeze(1)
    valid = action.is_valid(h, x).reshape(count, batch, -1).all(-1)
    if not bool(valid.any()):
        raise DomainError(f"transformations: expected elements that are defined on some datum, got none of {count}")
    unit = group.identity(dtype=h.dtype, device=h.device)
    return where_rows(valid, h.expand(count, batch, *group.element_shape), unit), valid


@checked
def spread_of(group: LieGroup, transformations: Transformations, seed: int = 0) -> Tensor:
    r"""Return a basis ``[n, n]``, for the ``scale`` of the group, in which transformations have unit spread.

    The root of the second moment of :math:`\log g`, without what logarithms of large rotations exaggerate (see
    `_bounded`). A guess that is off by a twentieth leaves undone what moves along :math:`[\log g, \log g'] / 20`, too,
    of two elements drawn: no direction has less than that. A direction in which they do not move, with less than
    a thousandth of the largest spread, has a twentieth of it; all others do not depend on units.

    Raises:
        ShapeError: the draws are no elements, or too few.
        DomainError: fewer than half of them have a logarithm, or all are the identity.
    """
    g = sample_elements(group, transformations, _NUM_SAMPLES, keyed(seed, 3))
    natural = group.with_scale(None)
    v = natural.log(g.double().cpu())
    v = v[torch.isfinite(v).all(-1)]
    if len(v) < _NUM_SAMPLES // 2:
        raise DomainError(
            f"transformations: expected elements most of which have a logarithm, got {len(v)} of {_NUM_SAMPLES}"
        )
    v = _bounded(natural, v)
    values, vectors = torch.linalg.eigh(v.mT @ v / len(v))
    largest = float(values[-1])
    if not largest > 0:
        raise DomainError("transformations: expected transformations, got the identity alone")
    half = len(v) // 2
    brackets = natural.algebra.bracket(v[:half], v[half : 2 * half]) @ vectors
    values = torch.maximum(values, _GUESS_ERROR**2 * brackets.square().mean(0))
    values = torch.where(values < _MIN_RELATIVE_SPREAD**2 * largest, _GUESS_ERROR**2 * largest, values)
    return vectors @ torch.diag(values.sqrt()) @ vectors.mT


def _bounded(group: LieGroup, v: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    r"""Return logarithms in the natural basis of a group, with bounded shears beside large rotations.

    On affine maps and homographies exp is singular where an eigenvalue of ad(v) is :math:`2 \pi i`: at a rotation by
    :math:`\pi`. The logarithm of such a rotation with a little shear has a shear without bound, and the second moment
    of any rotation and small shears is infinite. Of a logarithm more than half as far,
    :math:`v = k + \delta` with k where the Killing form is negative, :math:`k + J_r(k) \delta` is kept, as
    :math:`\exp v \approx \exp(k) \exp(J_r(k) \delta)`.
    """
    far = _turning(group.algebra, v) > math.pi * (1 + 1e-9)
    if not bool(far.any()):
        return v
    form, axes = torch.linalg.eigh(group.algebra.killing_form.to(v))
    axes = axes[:, form < -_MIN_RELATIVE_SPREAD * form.abs().max()]
    turn = v[far] @ axes @ axes.mT
    rest = v[far] - turn
    turn = turn * (_MAX_TURN * 2 * math.pi / _turning(group.algebra, turn)).clamp(max=1.0).unsqueeze(-1)
    v = v.clone()
    v[far] = turn + (group.right_jacobian(turn) @ rest.unsqueeze(-1)).squeeze(-1)
    return v


def _turning(algebra: LieAlgebra, v: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
    """Return the largest imaginary part of an eigenvalue of ad(v)."""
    if algebra.is_abelian:
        return v.new_zeros(len(v))
    ad = algebra.ad(v).numpy(force=True)
    return torch.from_numpy(np.abs(np.linalg.eigvals(ad).imag).max(-1))  # torch fails at some repeated eigenvalues


@checked
def num_noise_factors(group: LieGroup) -> int:
    r"""Return the number of exponentials whose product is noise of level 1, so that exp is one to one where they fall.

    With m factors the largest imaginary part of an eigenvalue of ad(v), of one of them, has a standard deviation of a
    quarter of :math:`2 \pi`, where exp becomes singular. The target of `trivgeo.sde.noise.noise_with_target` has
    infinite variance if factors often reach it.
    """
    z = normal((_NUM_SAMPLES, group.dim), torch.empty(0, dtype=torch.float64), keyed(0, 4))
    variance = float(_turning(group.algebra, z).square().mean())
    return max(_MIN_NOISE_FACTORS, math.ceil(variance / _MAX_TURNING_VARIANCE))


@checked
def noise_between(lowest: float, highest: float) -> tuple[GeometricSchedule, float]:
    r"""Return a geometric schedule of level ``highest`` at time 1, and the time at which its level is ``lowest``.

    Its ratio is that of the levels: :math:`\sigma_1^2 = \gamma_{\min}^2 (r^2 - 1) / (2 \log r)`.
    """
    ratio = 2.0 * highest / lowest
    rate = math.log(ratio)
    minimum = highest * math.sqrt(2.0 * rate / (ratio**2 - 1.0))
    time = 0.5 * math.log1p(2.0 * rate * (lowest / minimum) ** 2) / rate
    return GeometricSchedule(minimum, ratio * minimum), time
