"""Least squares for coefficients that are often zero or simple fractions."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["least_squares", "snap"]

_ROUNDING = 1e-13  # of what the terms of an equation measure
_CUT = 1e-15  # singular values of no meaning


def least_squares(design: Tensor, target: Tensor, size: Tensor, parts: int = 1) -> Tensor:
    """Coefficients with ``design x = target``, without those that rounding alone has made, ``[k, c]``.

    How far rounding moves a coefficient depends on the condition of the design: far from the origin, where 1, x and
    x^2 are nearly dependent, by much more than rounding of the target. A coefficient so near to zero, or to a simple
    fraction, becomes it if the others then fit the target as well; a small one that the target needs is kept.

    Args:
        design: ``[e, k]``.
        target: ``[e, c]``.
        size: what the terms measure whose sum each target is, as norms over the equations, ``[c]``.
        parts: the denominator of simple fractions.
    """
    length = design.norm(dim=0)
    length = torch.where(length > 0, length, 1.0).unsqueeze(-1)
    unit = design / length.T
    _, singular, rows = torch.linalg.svd(unit, full_matrices=False)
    kept = singular > _CUT * singular[0]
    # the shift of each coefficient by a shift of length one of the target
    spread = (rows[kept] / singular[kept, None]).norm(dim=0).unsqueeze(-1) / length
    x = _solve(unit, target) / length
    missed = (design @ x - target).norm(dim=0)
    allowed = _ROUNDING * (size + (x.abs() * length).sum(0)) + 2.0 * missed
    for denominator in (0, parts):
        near = (denominator * x).round() / max(1, denominator)
        close = (x - near).abs() <= spread * allowed
        trial = torch.where(close, near, 0.0)
        rest = target - design @ trial
        patterns, of = torch.unique(close, dim=1, return_inverse=True)
        for index, pattern in enumerate(patterns.T):
            columns, free = (of == index).nonzero().squeeze(-1), (~pattern).nonzero().squeeze(-1)
            if len(free):
                trial[free[:, None], columns] = _solve(unit[:, free], rest[:, columns]) / length[free]
        x = torch.where((design @ trial - target).norm(dim=0) <= allowed, trial, x)
    return snap(x, parts)


def _solve(design: Tensor, target: Tensor) -> Tensor:
    return torch.linalg.lstsq(design, target, driver="gelsd").solution


def snap(x: Tensor, parts: int = 1) -> Tensor:
    """Numbers within rounding of an integer over ``parts`` become it; none but zero becomes zero."""
    near = (parts * x).round() / parts
    return torch.where((x - near).abs() < 1e-11 * x.abs(), near, x)
