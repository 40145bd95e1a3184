"""Means on groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trivgeo._numerics import is_abstract

if TYPE_CHECKING:
    from trivgeo.groups.base import LieGroup

__all__ = ["exponential_mean"]


def exponential_mean(group: LieGroup, g: Tensor, weights: Tensor, max_iterations: int) -> Tensor:
    """The mean m of ``g`` along the last batch dimension, NaN where not found; see `LieGroup.mean`.

    Args:
        group: where.
        g: ``[*batch, m, *element_shape]``.
        weights: ``[*batch, m]``, of sum one.
        max_iterations: after which a row is given up.
    """
    places = len(group.element_shape)
    start = weights.argmax(-1)
    index = start[..., None, *[None] * places].expand(*start.shape, 1, *group.element_shape)
    mean = torch.take_along_dim(g, index, -places - 1).squeeze(-places - 1)
    tolerance = torch.finfo(g.dtype).eps ** 0.75
    active = torch.ones_like(start, dtype=torch.bool)
    for _ in range(max_iterations):
        logs = group._log(group._compose(group._inverse(mean).unsqueeze(-places - 1), g))
        step = (weights.unsqueeze(-1) * logs).sum(-2)
        size = step.detach().abs().amax(-1)
        mean = group._compose(mean, group._exp(step))
        # NaN, of an element without a logarithm, stays
        active = active & ~(size <= tolerance * (1.0 + logs.detach().abs().amax((-2, -1))))
        if not is_abstract(g) and not bool((active & torch.isfinite(size)).any()):
            break
    return torch.where(active[..., *[None] * places], torch.nan, mean)
