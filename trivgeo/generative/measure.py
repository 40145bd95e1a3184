"""Haar measure of a group, factor by factor of a product: volumes of compact factors, and bases of equal axes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from trivgeo.checks import check_type
from trivgeo.errors import ConfigurationError
from trivgeo.groups import DirectProduct, LieGroup
from trivgeo.groups.product import scaled_factors

__all__ = ["check_connected", "is_isotropic", "log_torus_volume", "sum_over_compact"]


def check_connected(group: LieGroup) -> LieGroup:
    """Return the group of a model whose paths begin anywhere.

    Args:
        group: the group.

    Raises:
        ConfigurationError: the argument is not a group, or the group is not connected.
    """
    check_type("group", group, LieGroup)  # type: ignore[type-abstract]
    if group.num_components > 1:
        raise ConfigurationError(f"group: expected a connected one, as no path leaves a component, got {group!r}")
    return group


def is_isotropic(group: LieGroup) -> bool:
    """Return True if the basis of ``group`` is a rotation of the natural basis times one factor."""
    axes = torch.linalg.svdvals(group.basis.rows)
    return bool(axes[0] - axes[-1] <= 1e-9 * axes[0])


def sum_over_compact(group: LieGroup, log_size: Callable[[LieGroup], float]) -> float:
    """Return the sum of ``log_size`` over the compact factors of ``group``, or its value for a compact group."""
    if group.is_compact:
        return log_size(group)
    factors = scaled_factors(group) if isinstance(group, DirectProduct) else []
    return math.fsum(sum_over_compact(factor, log_size) for factor in factors)


def log_torus_volume(group: LieGroup) -> float:
    r"""Return the logarithm of the volume of the angles of a compact ``group``: :math:`(2 \pi)^n` for n angles, else
    1.
    """
    periods = group._periods().double()
    return float(periods[periods > 0].log().sum())
