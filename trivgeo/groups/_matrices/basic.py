"""Entries, products with vectors and points."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "add_to_diagonal",
    "confirmed",
    "identity_like",
    "matvec",
    "product",
    "product_plus",
    "rows_of",
    "stack_rows",
    "transform_points",
]

_UNROLLED_ACTION = 4  # up to this size, sums over columns beat batched matrix products


def rows_of(matrix: Tensor) -> list[tuple[Tensor, ...]]:
    """The entries row by row, each ``[*batch]``."""
    return [row.unbind(-1) for row in matrix.unbind(-2)]


def stack_rows(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    """The matrix of entries."""
    flat = [entry for row in rows for entry in row]
    return torch.stack(flat, -1).unflatten(-1, (len(rows), len(rows[0])))


def identity_like(matrix: Tensor) -> Tensor:
    """The unit matrix ``[k, k]`` of the dtype and device of ``matrix``."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def add_to_diagonal(matrix: Tensor, a: Tensor) -> Tensor:
    """``matrix + a I`` for numbers a ``[*batch]``."""
    return matrix + torch.diag_embed(a.unsqueeze(-1).expand(matrix.shape[:-1]))


def matvec(a: Tensor, x: Tensor) -> Tensor:
    """``a x`` for a ``[*batch, m, n]`` and x ``[*batch, n]``; batches broadcast."""
    return (a @ x.unsqueeze(-1)).squeeze(-1)


def product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b``, with less ado for two batches of one size: of a hundred small matrices a third of the time."""
    return torch.bmm(a, b) if a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0] else a @ b


def product_plus(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """``a @ b + c``, see `product`."""
    return torch.baddbmm(c, a, b) if a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0] else a @ b + c


def confirmed(log: Tensor, back: Tensor, target: Tensor) -> Tensor:
    """``log`` where ``back``, what it stands for, is ``target`` to a third of the digits, and NaN elsewhere.

    The logarithm of an element whose entries are e^(+-r) has lost 2r / log 10 of its digits, at some r all.

    Args:
        log: ``[*batch, d]``.
        back: ``[*batch, n]``.
        target: ``[*batch, n]``.
    """
    back, target = back.detach(), target.detach()
    bound = torch.finfo(target.dtype).eps ** (1 / 3) * target.abs().amax(-1)
    return torch.where(((back - target).abs().amax(-1) <= bound).unsqueeze(-1), log, torch.nan)


def _sum_columns(a: Tensor, x: Tensor) -> Tensor:
    """``sum_j a[..., j] x[..., j]``: faster than a reduction over a short last dimension."""
    result = a[..., 0] * x[..., :1]
    for j in range(1, a.shape[-1]):
        result = torch.addcmul(result, a[..., j], x[..., j : j + 1])
    return result


def transform_points(a: Tensor, x: Tensor) -> Tensor:
    """``a x`` for a ``[*batch, 1, m, n]`` and points x ``[*batch, p, n]``."""
    n = a.shape[-1]
    if n > _UNROLLED_ACTION:
        return x @ a.squeeze(-3).mT
    return _sum_columns(a, x)
