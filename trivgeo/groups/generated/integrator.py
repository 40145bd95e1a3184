"""Flows of vector fields by extrapolated steps of controlled length, with a mask of what can be trusted."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trivgeo.groups._matrices.series import is_unseen

__all__ = ["extrapolated_flow"]

_LARGEST_STEP = 4.0
_ROUNDING = 4.0  # units in the last place that a step costs
_PARTS = (2, 4, 6, 8, 10, 12)  # midpoint steps in one step: of order 12 when extrapolated
_FIRST = 0.25  # the first step
_SAFETY, _SHRINK, _GROW = 0.8, 0.2, 4.0


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
        The points ``[*batch, m]``, where they are valid, and the sum of the error estimates of the steps relative to
        1 + |x|, ``[*batch]``.
    """
    alive = torch.isfinite(x).all(-1)
    x = torch.where(alive.unsqueeze(-1), x, 0.0)
    total, left = torch.zeros_like(x[..., 0]).detach(), alive.to(x.dtype)
    length = _FIRST * left
    for _ in range(steps):
        if not is_unseen(left) and not bool((left > 0).any()):
            break
        taken = torch.minimum(length, left)
        y, relative, inside = _step(field, x, taken.unsqueeze(-1))
        good = inside & (relative <= tolerance) & (left > 0)
        x = torch.where(good.unsqueeze(-1), y, x)
        total = total + torch.where(good, relative + _ROUNDING * torch.finfo(x.dtype).eps, 0.0)
        left = torch.where(good, torch.where(taken < left, left - taken, 0.0), left)
        factor = _SAFETY * (tolerance / relative.clamp(min=1e-300)) ** (1.0 / (2 * len(_PARTS) - 1))
        factor = torch.where(inside, factor.clamp(_SHRINK, _GROW), _SHRINK)
        length = torch.where(left > 0, taken * factor, length)
    return x, alive & (left <= 0), total


def _step(field: Callable[[Tensor], Tensor], x: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of lengths ``[*batch, 1]``: where it ends, its error estimate, and whether it stays near."""
    size = 1.0 + x.detach().abs().amax(-1, keepdim=True)
    slope = _finite(field(x))
    near = torch.ones_like(x[..., 0], dtype=torch.bool)
    table: list[Tensor] = []
    for count in _PARTS:
        before, y = x, x
        for part in range(count):
            step = slope * (h / count) if part == 0 else _finite(field(y)) * (2.0 * h / count)
            following = before + step
            inside = ((following - x).detach().abs() <= _LARGEST_STEP * size).all(-1)
            near = near & inside
            before, y = y, torch.where(inside.unsqueeze(-1), following, x)
        row = [y]
        for back, value in enumerate(table):
            ratio = (count / _PARTS[len(table) - 1 - back]) ** 2 - 1.0
            row.append(row[back] + (row[back] - value) / ratio)
        table = row
    return table[-1], ((table[-1] - table[-2]).detach().abs() / size).amax(-1), near


def _finite(k: Tensor) -> Tensor:
    """Where the field is not finite, a value that the step check rejects."""
    return torch.where(torch.isfinite(k), k, 1e30 if k.dtype == torch.float64 else 1e20)
