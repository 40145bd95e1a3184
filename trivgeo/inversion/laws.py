"""Distributions of transformations of the plane, as their users name them: degrees, scales, shares of a frame.

```python
law = composed(rotations(group, 30.0), scales(group, 0.8, 1.25), shifts(group, 0.1))
LearnedInverter(action).fit(clean, law)
register(moving, fixed, group, law=law)
```
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._random import keyed, uniform
from trivgeo._signatures import check_calls
from trivgeo.actions.frame import check_sides, frame_corners
from trivgeo.checks import check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import LieGroup
from trivgeo.inversion.law import Law
from trivgeo.inversion.point_alignment import fit_homographies

__all__ = ["PlaneLaw", "composed", "homographies", "rotations", "scales", "shifts"]

_DOUBLE = torch.zeros((), dtype=torch.float64)
_LEAST_DENOMINATOR = 1e-2
"""Of homographies that are drawn: the smallest denominator on a frame, in units of the largest."""
_MEMBER_TOLERANCE = 1e-6
"""By how much a matrix may differ from one of the group."""


@dataclass(frozen=True)
class PlaneLaw:
    """A distribution of elements that knows their group.

    Attributes:
        group: of the elements.
        draw: (count, generator) to elements ``[count, *element_shape]``.
    """

    group: LieGroup
    draw: Callable[[int, torch.Generator | None], Tensor]

    def __call__(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw elements."""
        return self.draw(count, generator)


def rotations(group: LieGroup, degrees: float = 180.0) -> Law:
    """Return the uniform distribution of rotations about the middle of the frame, by up to ``degrees`` either way.

    Args:
        group: of transformations of the plane that has rotations.
        degrees: the bound, at most 180.

    Returns:
        A function of (count, generator) to elements ``[count, *element_shape]``, float64 on the CPU.

    Raises:
        ConfigurationError: a bound out of its range, or a group without such transformations.

    Example:
        >>> law = rotations(SO(2), 45.0)
        >>> law(3, torch.Generator().manual_seed(0)).shape
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

    return _law(group, matrices, "rotations")


def scales(group: LieGroup, low: float, high: float) -> Law:
    """Return the distribution of scales about the middle of the frame, uniform in their logarithm.

    Args:
        group: of transformations of the plane that has scalings.
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

    return _law(group, matrices, "scalings")


def shifts(group: LieGroup, share: float) -> Law:
    """Return the uniform distribution of shifts by up to a share of the longer side of the frame, in x and in y.

    Args:
        group: of transformations of the plane that has translations.
        share: the bound.

    Raises:
        ConfigurationError: a bound out of its range, or a group without such transformations.
    """
    check_positive("share", share)

    def matrices(u: Tensor) -> Tensor:
        matrix = _units(len(u))
        matrix[:, :2, 2] = 2.0 * share * (2.0 * u[:, :2] - 1.0)  # the frame is two wide
        return matrix

    return _law(group, matrices, "shifts")


def homographies(group: LieGroup, share: float = 0.25, size: tuple[int, int] = (1, 1)) -> Law:
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

    return _law(group, matrices, "homographies", lambda found: _keeps(found, corners))


def composed(group: LieGroup, *laws: Law) -> Law:
    """Return the distribution of products of independent elements, the first one on the left.

    Args:
        group: of the elements.
        laws: their distributions.

    Raises:
        ConfigurationError: no distribution.
    """
    if not isinstance(group, LieGroup):
        raise ConfigurationError(f"group: expected a LieGroup, got {group!r}")
    if not laws or not all(callable(law) for law in laws):
        raise ConfigurationError(f"laws: expected at least one function of (count, generator), got {laws!r}")

    def draw(count: int, generator: torch.Generator | None) -> Tensor:
        first, *others = (each(count, generator) for each in laws)  # type: ignore[arg-type]
        for other in others:
            first = group.compose(first, other)
        return first

    return PlaneLaw(group, draw)


def _units(count: int) -> Tensor:
    return torch.eye(3, dtype=torch.float64).repeat(count, 1, 1)


def _keeps(matrix: Float[Tensor, "b 3 3"], corners: Float[Tensor, "4 2"]) -> Bool[Tensor, " b"]:
    """Whether homographies and their inverses are far from infinity on the quadrilateral of some corners."""
    kept = []
    for each in (matrix, torch.linalg.inv(matrix)):
        denominator = corners @ each[:, 2, :2].unsqueeze(-1) + each[:, 2, 2:].unsqueeze(-1)
        size = denominator.abs().squeeze(-1)
        one_sign = denominator.squeeze(-1).sign().sum(-1).abs() == 4
        kept.append(one_sign & (size.amin(-1) > _LEAST_DENOMINATOR * size.amax(-1)))
    return kept[0] & kept[1]


def _law(
    group: LieGroup,
    matrices: Callable[[Tensor], Tensor],
    what: str,
    accepts: Callable[[Tensor], Tensor] | None = None,
) -> Law:
    """The distribution of matrices made of uniform numbers ``[count, 8]``, if they are in the group.

    Args:
        group: the group.
        matrices: uniform numbers to matrices.
        what: name of the transformations, for messages.
        accepts: matrices to truth values; matrices that it refuses are drawn again. ``None`` to accept all.
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
    return PlaneLaw(group, draw)


check_calls(__name__, __all__)
