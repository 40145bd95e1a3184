"""Flows of vector fields by extrapolated steps of controlled length, with error estimates and a mask of validity."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trivgeo._numerics import is_abstract

__all__ = ["extrapolated_flow"]

_MAX_DISPLACEMENT = 4.0  # of a point in one step, relative to one plus its size
_ROUNDING_ULPS = 4.0  # rounding error of a step, in units of the last place
_MIDPOINT_STEPS = (2, 4, 6, 8, 10, 12)  # in one step, which is of order 12 when extrapolated
_FIRST_STEP = 0.25  # of the unit time
_STEP_SAFETY = 0.8  # of the step that would just meet the tolerance
_MIN_STEP_FACTOR, _MAX_STEP_FACTOR = 0.2, 4.0  # of the next step


def extrapolated_flow(
    field: Callable[[Tensor], Tensor], x: Tensor, steps: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The flow of an autonomous field for unit time, of order 12.

    By the explicit midpoint rule, whose error is even in the step, extrapolated to zero (Gragg 1965; Hairer, Norsett,
    Wanner, Solving ODEs I, section II.9). Every point has steps of its own length.

    A step whose last two extrapolations differ by more than ``tolerance`` times (1 + |x|), or which moves a point by
    more than a few times its size, is tried again with a shorter one. A point that has not arrived after as many trials
    as are allowed stops there: a flow that runs off to infinity has no value, and a scheme of fixed steps would return
    a finite number all the same. Derivatives stay finite at such points.

    Args:
        field: ``[*batch, m] -> [*batch, m]``.
        x: the start, ``[*batch, m]``.
        steps: the number of trials.
        tolerance: the bound on the error estimate of one step.

    Returns:
        The points ``[*batch, m]``; a mask of those that are valid ``[*batch]``; the sum of the error estimates of the
        steps relative to 1 + |x|, ``[*batch]``.
    """
    alive = torch.isfinite(x).all(-1)
    x = torch.where(alive.unsqueeze(-1), x, 0.0)
    total, left = torch.zeros_like(x[..., 0]).detach(), alive.to(x.dtype)
    length = _FIRST_STEP * left
    for _ in range(steps):
        if not is_abstract(left) and not bool((left > 0).any()):
            break
        taken = torch.minimum(length, left)
        y, relative, inside = _step(field, x, taken.unsqueeze(-1))
        good = inside & (relative <= tolerance) & (left > 0)
        x = torch.where(good.unsqueeze(-1), y, x)
        total = total + torch.where(good, relative + _ROUNDING_ULPS * torch.finfo(x.dtype).eps, 0.0)
        left = torch.where(good, torch.where(taken < left, left - taken, 0.0), left)
        factor = _STEP_SAFETY * (tolerance / relative.clamp(min=1e-300)) ** (1.0 / (2 * len(_MIDPOINT_STEPS) - 1))
        factor = torch.where(inside, factor.clamp(_MIN_STEP_FACTOR, _MAX_STEP_FACTOR), _MIN_STEP_FACTOR)
        length = torch.where(left > 0, taken * factor, length)
    return x, alive & (left <= 0), total


def _step(field: Callable[[Tensor], Tensor], x: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The end of one step of lengths ``[*batch, 1]``, its error estimate, and whether its displacement is bounded."""
    size = 1.0 + x.detach().abs().amax(-1, keepdim=True)
    slope = _finite(field(x))
    near = torch.ones_like(x[..., 0], dtype=torch.bool)
    table: list[Tensor] = []
    for count in _MIDPOINT_STEPS:
        before, y = x, x
        for part in range(count):
            step = slope * (h / count) if part == 0 else _finite(field(y)) * (2.0 * h / count)
            following = before + step
            inside = ((following - x).detach().abs() <= _MAX_DISPLACEMENT * size).all(-1)
            near = near & inside
            before, y = y, torch.where(inside.unsqueeze(-1), following, x)
        row = [y]
        for back, value in enumerate(table):
            ratio = (count / _MIDPOINT_STEPS[len(table) - 1 - back]) ** 2 - 1.0
            row.append(row[back] + (row[back] - value) / ratio)
        table = row
    return table[-1], ((table[-1] - table[-2]).detach().abs() / size).amax(-1), near


def _finite(k: Tensor) -> Tensor:
    """The field, with values that the bound of displacements rejects where it is not finite."""
    return torch.where(torch.isfinite(k), k, 1e30 if k.dtype == torch.float64 else 1e20)
