"""Flows of vector fields by a fixed number of Runge-Kutta steps, with a mask of what can be trusted."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trivgeo._tableau import DEFECT, STAGES

__all__ = ["dormand_prince"]

_LARGEST_STEP = 4.0


def dormand_prince(
    field: Callable[[Tensor], Tensor], x: Tensor, steps: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The flow of an autonomous field for unit time, of order 5.

    A point whose embedded error estimate in one step is above ``tolerance`` times (1 + |x|), or which would move by
    more than a few times its size in one stage, stops there: a flow that runs off to infinity has no value, and a
    fixed-step scheme would return a finite number all the same. Derivatives stay finite at such points.

    Args:
        field: ``[*batch, m] -> [*batch, m]``.
        x: the start, ``[*batch, m]``.
        steps: the number of steps.
        tolerance: the bound on the error estimate of one step.

    Returns:
        The points ``[*batch, m]``, where they are valid, and the sum of the error estimates of the steps relative to
        1 + |x|, ``[*batch]``.
    """
    alive = torch.isfinite(x).all(-1)
    x = torch.where(alive.unsqueeze(-1), x, 0.0)
    total = torch.zeros_like(x[..., 0])
    for _ in range(steps):
        h = torch.where(alive, 1.0 / steps, 0.0).to(x.dtype).unsqueeze(-1)
        size = 1.0 + x.detach().abs().amax(-1, keepdim=True)
        slopes = [_finite(field(x))]
        y = x
        for row in STAGES[1:]:
            shift = h * sum((c * k for c, k in zip(row[1:], slopes[1:], strict=True) if c), start=row[0] * slopes[0])
            inside = (shift.detach().abs() <= _LARGEST_STEP * size).all(-1)
            alive = alive & inside
            y = x + torch.where(inside.unsqueeze(-1), shift, 0.0)
            slopes.append(_finite(field(y)))
        with torch.no_grad():
            pairs = zip(DEFECT[1:], slopes[1:], strict=True)
            error = h * sum((c * k for c, k in pairs if c), start=DEFECT[0] * slopes[0])
            relative = (error.abs() / size).amax(-1)
            alive = alive & (relative <= tolerance)
            total = total + relative
        x = torch.where(alive.unsqueeze(-1), y, x)
    return x, alive, total


def _finite(k: Tensor) -> Tensor:
    """Where the field is not finite, a value that the step check rejects."""
    return torch.where(torch.isfinite(k), k, 1e30 if k.dtype == torch.float64 else 1e20)
