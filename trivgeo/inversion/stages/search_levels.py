"""Levels of a search along one-parameter subgroups."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trivgeo._deprecation import renamed_arguments
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import LieGroup

__all__ = ["SearchLevel", "affine_levels", "basis_levels"]

_LEVELS = 8


@dataclass(frozen=True)
class SearchLevel:
    """Level of a search: the elements exp(s d) of a one-parameter subgroup, s evenly spaced in [-extent, extent].

    Attributes:
        direction: d, in the natural basis of the group, whatever its scale.
        extent: the largest s.

    Raises:
        ConfigurationError: the extent is not positive, or the direction is zero or not finite.
    """

    direction: tuple[float, ...]
    extent: float

    def __post_init__(self) -> None:
        check_positive("extent", self.extent)
        if not all(math.isfinite(c) for c in self.direction) or not any(self.direction):
            raise ConfigurationError(f"direction: expected finite numbers, not all zero, got {self.direction}")


@renamed_arguments(until="0.4", count="num_levels")
def basis_levels(
    group: LieGroup, num_levels: int = _LEVELS, extent: float = 1.0, shrink: float = 0.25
) -> list[SearchLevel]:
    """Levels along the basis directions of a group in turn, the extent ``shrink`` times as large every round.

    Args:
        group: the group; extents are in units of its basis.
        num_levels: number of levels.
        extent: of the first round.
        shrink: factor of the extent from round to round.

    Raises:
        ConfigurationError: fewer than one level, or an extent that is not positive.
    """
    check_positive("extent", extent)
    check_positive("shrink", shrink)
    rows = group.basis.rows.tolist()
    return [
        SearchLevel(tuple(rows[level % group.dim]), extent * shrink ** (level // group.dim))
        for level in range(check_count("num_levels", num_levels))
    ]


def affine_levels(
    translation: float = 0.5,
    rotation: float = math.pi / 6,
    scaling: float = 0.25,
    shear: float = 0.2,
    refinement: float = 0.25,
) -> list[SearchLevel]:
    """Eight levels for `trivgeo.groups.Affine` of the plane: each factor once, then rotation and size again.

    Args:
        translation: extent along each axis.
        rotation: extent, in radians.
        scaling: extent of the logarithm of the scale along each axis.
        shear: extent of the shear along the first axis.
        refinement: factor of the extents of the last two levels.

    Raises:
        ConfigurationError: an extent that is not positive.
    """
    check_positive("refinement", refinement)
    turn, size = (0.0, -1.0, 1.0, 0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    return [
        SearchLevel((0.0, 0.0, 0.0, 0.0, 1.0, 0.0), translation),
        SearchLevel((0.0, 0.0, 0.0, 0.0, 0.0, 1.0), translation),
        SearchLevel(turn, rotation),
        SearchLevel((1.0, 0.0, 0.0, 0.0, 0.0, 0.0), scaling),
        SearchLevel((0.0, 0.0, 0.0, 1.0, 0.0, 0.0), scaling),
        SearchLevel((0.0, 1.0, 0.0, 0.0, 0.0, 0.0), shear),
        SearchLevel(turn, refinement * rotation),
        SearchLevel(size, refinement * scaling),
    ]
