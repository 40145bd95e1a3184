"""Least squares for coefficients that are often zero or simple fractions."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["least_squares", "snap"]

_ROUNDING = 1e-13  # of an equation, relative to the size of its terms
_RANK = 1e-15  # singular values below this share of the largest are rounding errors
_NEAR_FRACTION = 1e-11  # relative distance of a number from the fraction that it is taken for


def least_squares(design: Tensor, target: Tensor, size: Tensor, denominator: int = 1) -> Tensor:
    """Coefficients with ``design x = target``, without those that are rounding errors, ``[k, c]``.

    The rounding error of a coefficient depends on the condition of the design: far from the origin, where 1, x and
    x^2 are nearly dependent, it is much larger than that of the target. A coefficient that near to zero, or to a simple
    fraction, is set to it if the others then fit the target as well; a small one that the target needs is kept.

    Args:
        design: ``[e, k]``.
        target: ``[e, c]``.
        size: the sizes of the terms whose sum each target is, as norms over the equations, ``[c]``.
        denominator: that of simple fractions.
    """
    length = design.norm(dim=0)
    length = torch.where(length > 0, length, 1.0).unsqueeze(-1)
    unit = design / length.T
    _, singular, rows = torch.linalg.svd(unit, full_matrices=False)
    kept = singular > _RANK * singular[0]
    # the shift of each coefficient by a shift of length one of the target
    spread = (rows[kept] / singular[kept, None]).norm(dim=0).unsqueeze(-1) / length
    x = _solve(unit, target) / length
    missed = (design @ x - target).norm(dim=0)
    allowed = _ROUNDING * (size + (x.abs() * length).sum(0)) + 2.0 * missed
    for d in (0, denominator):
        near = (d * x).round() / max(1, d)
        close = (x - near).abs() <= spread * allowed
        trial = torch.where(close, near, 0.0)
        rest = target - design @ trial
        patterns, of = torch.unique(close, dim=1, return_inverse=True)
        for index, pattern in enumerate(patterns.T):
            columns, free = (of == index).nonzero().squeeze(-1), (~pattern).nonzero().squeeze(-1)
            if len(free):
                trial[free[:, None], columns] = _solve(unit[:, free], rest[:, columns]) / length[free]
        x = torch.where((design @ trial - target).norm(dim=0) <= allowed, trial, x)
    return snap(x, denominator)


def _solve(design: Tensor, target: Tensor) -> Tensor:
    return torch.linalg.lstsq(design, target, driver="gelsd").solution


def snap(x: Tensor, denominator: int = 1) -> Tensor:
    """Round entries of x that are within rounding of an integer over ``denominator``; only zero becomes zero."""
    near = (denominator * x).round() / denominator
    return torch.where((x - near).abs() < _NEAR_FRACTION * x.abs(), near, x)
