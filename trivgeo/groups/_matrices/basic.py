"""Entries, products with vectors and points."""

from __future__ import annotations

import torch
from torch import Tensor

from trivgeo._numerics import is_traced
from trivgeo.groups._matrices.batches import is_small_batch
from trivgeo.groups._matrices.components import entry_rows, from_rows, leading_entries, multiply_rows

__all__ = [
    "add_to_diagonal",
    "confirmed",
    "identity_like",
    "matvec",
    "product",
    "transform_points",
]

_UNROLLED_ACTION = 4  # up to this size, sums over columns beat batched matrix products
_MAX_MULTIPLIED_BATCH = 1000  # matrices, up to which the library's batched product is faster than sums
_MAX_SUMMED_SIZE = 4  # up to which sums of products over a large batch beat batched matrix products


def identity_like(matrix: Tensor) -> Tensor:
    """The unit matrix ``[k, k]`` of the dtype and device of ``matrix``."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def add_to_diagonal(matrix: Tensor, a: Tensor) -> Tensor:
    """``matrix + a I`` for numbers a ``[*batch]``."""
    return matrix + torch.diag_embed(a.unsqueeze(-1).expand(matrix.shape[:-1]))


def matvec(a: Tensor, x: Tensor) -> Tensor:
    """``a x`` for a ``[*batch, m, n]`` and x ``[*batch, n]``; batches broadcast."""
    return product(a, x.unsqueeze(-1)).squeeze(-1)


def product(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """Multiply matrices, ``a @ b``, and add c; batches broadcast.

    Small matrices of a large batch by sums over the batch, entry by entry; others, and those that lie in memory one
    after the other, by the library's batched product.

    Args:
        a: ``[*batch, k, l]``.
        b: ``[*batch, l, m]``.
        c: ``[*batch, k, m]`` or none.
    """
    larger = a if a.numel() > b.numel() else b
    is_large = a.shape[-1] <= _MAX_SUMMED_SIZE and not is_small_batch(larger, _MAX_MULTIPLIED_BATCH)
    if is_large and (is_traced() or not (_is_interleaved(a) and _is_interleaved(b))):
        return _summed_product(a, b, c)
    if a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0]:  # of a hundred small matrices a third of the time of `@`
        return torch.bmm(a, b) if c is None else torch.baddbmm(c, a, b)
    return a @ b if c is None else a @ b + c


def _is_interleaved(matrix: Tensor) -> bool:
    """Whether the entries of a matrix are neighbours in memory, as the library's product wants them."""
    return 1 in matrix.stride()[-2:]


def _summed_product(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
    if is_traced():
        rows = multiply_rows(entry_rows(a), entry_rows(b))
        if c is not None:
            rows = [[x + y for x, y in zip(*pair, strict=True)] for pair in zip(rows, entry_rows(c), strict=True)]
        return from_rows(rows)
    # the same sums, of all entries at once, [k, m, *batch]: fewer kernels
    dims = max(a.ndim, b.ndim)
    left, right, *rest = (leading_entries(x[(None,) * (dims - x.ndim)]) for x in (a, b, c) if x is not None)
    total = rest[0] if rest else None
    for j in range(a.shape[-1]):
        x, y = left[:, j, None], right[None, j]
        total = x * y if total is None else torch.addcmul(total, x, y)
    assert total is not None
    return total.movedim((0, 1), (-2, -1))


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
