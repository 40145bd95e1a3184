"""Flows of vector fields by a fixed number of Runge-Kutta steps, with a mask of what can be trusted."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["dormand_prince"]

# Dormand and Prince (1980), as in Hairer, Norsett, Wanner, Solving ODEs I, table 5.2
_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
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
        for row in _STAGES:
            shift = h * sum((c * k for c, k in zip(row[1:], slopes[1:], strict=True) if c), start=row[0] * slopes[0])
            inside = (shift.detach().abs() <= _LARGEST_STEP * size).all(-1)
            alive = alive & inside
            y = x + torch.where(inside.unsqueeze(-1), shift, 0.0)
            slopes.append(_finite(field(y)))
        with torch.no_grad():
            pairs = zip(_ERROR[1:], slopes[1:], strict=True)
            error = h * sum((c * k for c, k in pairs if c), start=_ERROR[0] * slopes[0])
            relative = (error.abs() / size).amax(-1)
            alive = alive & (relative <= tolerance)
            total = total + relative
        x = torch.where(alive.unsqueeze(-1), y, x)
    return x, alive, total


def _finite(k: Tensor) -> Tensor:
    """Where the field is not finite, a value that the step check rejects."""
    return torch.where(torch.isfinite(k), k, 1e30 if k.dtype == torch.float64 else 1e20)
