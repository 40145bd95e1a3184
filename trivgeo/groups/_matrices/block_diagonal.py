"""Matrices with blocks along the diagonal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trivgeo._numerics import broadcast_shapes
from trivgeo.groups._matrices.components import flatten_array

__all__ = ["block_diagonal", "spread_blocks"]


def spread_blocks(blocks: Tensor) -> Tensor:
    """``[*batch, count, d, d]`` along the diagonal of ``[*batch, count d, count d]``."""
    count = blocks.shape[-3]
    if count == 1:
        return blocks.squeeze(-3)
    places = torch.eye(count, dtype=blocks.dtype, device=blocks.device)[:, None, :, None]
    spread = flatten_array(blocks.unsqueeze(-2) * places)  # [*batch, count, d, count d]
    return flatten_array(spread.movedim(-1, -3)).mT  # the rows of the result, last


def block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    """Matrices ``[*batch, d_i, d_i]`` along the diagonal of one; batches broadcast."""
    batch = broadcast_shapes(*(b.shape[:-2] for b in blocks))
    total = sum(b.shape[-1] for b in blocks)
    rows, start = [], 0
    for block in blocks:
        size = block.shape[-1]
        block = block.expand(*batch, -1, -1)
        left = block.new_zeros(*batch, size, start)
        right = block.new_zeros(*batch, size, total - start - size)
        rows.append(torch.cat([left, block, right], -1))
        start += size
    return torch.cat(rows, -2)
