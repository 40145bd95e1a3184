"""Grids of times."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trivgeo.checks import check_count, check_tensor, checked
from trivgeo.errors import DomainError, ShapeError


@checked
def uniform_grid(steps: int, start: float = 0.0, end: float = 1.0) -> list[float]:
    """Return ``steps + 1`` equally spaced times from ``start`` to ``end``, both included exactly.

    Raises:
        ConfigurationError: fewer than one step.
    """
    check_count("steps", steps)
    return [start + (end - start) * (m / steps) for m in range(steps)] + [end]


def check_grid(times: Any, horizon: float = 1.0) -> list[float]:
    """Return a grid of times as a list of numbers.

    Args:
        times: at least two numbers in [0, horizon], strictly monotone; a sequence, an array or a tensor.

    Raises:
        DomainError: ``times`` holds no numbers, or fewer than two, is not monotone, or leaves the interval.
    """
    if isinstance(times, np.ndarray) or (isinstance(times, Tensor) and not (times.requires_grad or times.is_meta)):
        times = times.tolist()
    if not isinstance(times, Sequence) or not all(isinstance(t, int | float) for t in times):
        raise DomainError(f"times: expected a sequence of numbers, got {times!r}")
    differences = [b - a for a, b in itertools.pairwise(times)]
    monotone = all(d > 0 for d in differences) or all(d < 0 for d in differences)
    if len(times) < 2 or not monotone or min(times) < 0.0 or max(times) > min(horizon, sys.float_info.max):
        raise DomainError(f"times: expected a strictly monotone grid in [0, {horizon:g}], got {list(times)[:8]}")
    return list(times)


def check_row_grids(times: Tensor, horizon: float, batch: Sequence[int], reference: Tensor) -> Tensor:
    """Return grids of times of each chain in the dtype and on the device of ``reference``.

    Args:
        times: at least two times of each chain in [0, horizon], none of which goes back, ``[k, *batch]``.

    Raises:
        ShapeError: there are not as many grids as chains.
        DomainError: a grid has fewer than two times, is not monotone, leaves the interval, or has gradients.
    """
    times = check_tensor("times", times)
    if times.requires_grad or times.is_meta:
        raise DomainError(f"times: expected numbers without gradients, got {times!r}")
    if tuple(times.shape[1:]) != tuple(batch):
        raise ShapeError(
            f"times: expected a grid for all chains [k], or one for each [k, *{list(batch)}], got {list(times.shape)}"
        )
    change = times.diff(dim=0)
    monotone = bool(((change >= 0).all(0) | (change <= 0).all(0)).all())
    inside = bool((torch.isfinite(times) & (times >= 0.0) & (times <= horizon)).all())
    if len(times) < 2 or not monotone or not inside:
        raise DomainError(f"times: expected monotone grids in [0, {horizon:g}], got times that go back or lie outside")
    return times.to(reference)
