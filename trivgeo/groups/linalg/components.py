"""Entries of small arrays, and arrays of entries in component-first memory.

An array ``[*batch, k, l]`` of a large batch is kept as k l vectors over the batch one after the other, the layout of
``torch.stack(entries)`` with the entries' dimension moved to the end. Arithmetic on entries then reads and writes
consecutive numbers, which eager kernels, compilers and GPUs need to use their full bandwidth. Any strides are accepted
as input; none are promised to callers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from trivgeo._numerics import broadcast_shapes, is_abstract, is_traced, is_transformed

Rows = Sequence[Sequence[Tensor]]
"""The entries of a matrix, row by row, each ``[*batch]``."""

SMALL_BATCH = 200  # matrices, up to which one library kernel beats closed forms, whose cost is their number of kernels
_MIN_COPIED_NUMBERS = 1024  # numbers of an entry, below which one more kernel costs more than reading with strides
_MAX_UNROLLED_SIZE = 4  # size of matrices, up to which sums of products over a large batch beat batched products
_MAX_MULTIPLIED_BATCH = 1000  # matrices, up to which the library's batched product is faster than sums


def is_small_batch(matrix: Tensor, largest: int = SMALL_BATCH) -> bool:
    """Whether a batch ``[*batch, k, l]`` on the CPU has at most ``largest`` matrices.

    For so few, a few library kernels are faster than many elementwise ones. False in compiled code and under ``vmap``,
    where the size of the batch is not known.
    """
    if is_traced() or matrix.device.type != "cpu":
        return False
    return matrix.numel() <= largest * matrix.shape[-1] * matrix.shape[-2] and not is_abstract(matrix)


def last_entries(x: Tensor) -> tuple[Tensor, ...]:
    """Split the last dimension of ``[*batch, k]`` into k tensors ``[*batch]``, consecutive in memory if large."""
    return tuple([_consecutive(entry) for entry in x.movedim(-1, 0).unbind(0)])


def entry_rows(matrix: Tensor) -> Rows:
    """Split a matrix ``[*batch, k, l]`` into k rows of l tensors ``[*batch]``, consecutive in memory if large."""
    moved = matrix.movedim((-2, -1), (0, 1))
    if is_traced():  # all entries at once: the derivative of each `unbind` is a stack, which compilers write to memory
        entries, columns = moved.flatten(0, 1).unbind(0), matrix.shape[-1]
        return [entries[i : i + columns] for i in range(0, len(entries), columns)]
    return [[_consecutive(entry) for entry in row.unbind(0)] for row in moved.unbind(0)]


def leading_entries(matrix: Tensor) -> Tensor:
    """Move the dimensions of a matrix ``[*batch, k, l]`` to the front, ``[k, l, *batch]``; a copy as `entry_rows`."""
    moved = matrix.movedim((-2, -1), (0, 1))
    if _is_consecutive(moved[0, 0]):
        return moved
    return torch.stack([entry for row in entry_rows(matrix) for entry in row]).unflatten(0, matrix.shape[-2:])


def _consecutive(entry: Tensor) -> Tensor:
    """Copy an entry whose numbers are apart in memory, unless it is too small for the copy to pay, or traced."""
    return entry if _is_consecutive(entry) else entry.contiguous()


def _is_consecutive(entry: Tensor) -> bool:
    """Whether an entry can be read as it is: the last stride is 1 (0: one number for all), or a copy does not pay."""
    return is_traced() or entry.numel() < _MIN_COPIED_NUMBERS or entry.stride(-1) in (0, 1)


def from_entries(entries: Sequence[Tensor], shape: Sequence[int] | None = None) -> Tensor:
    """Join tensors ``[*batch]`` to ``[*batch, k]``, or row by row to ``[*batch, *shape]``; see `last_entries`."""
    stacked = torch.stack(tuple(entries)).movedim(0, -1)
    return stacked if shape is None else stacked.unflatten(-1, tuple(shape))


def from_rows(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    """Join the rows of a matrix, each a sequence of tensors ``[*batch]``; the inverse of `entry_rows`."""
    return from_entries([entry for row in rows for entry in row], (len(rows), len(rows[0])))


def concatenate(parts: Sequence[Tensor], dim: int = -1, rank: int = 1) -> Tensor:
    """Concatenate arrays ``[*batch, ...]`` of ``rank`` dimensions and one batch shape along the dimension ``dim``."""
    trailing, leading = tuple(range(-rank, 0)), tuple(range(rank))
    return torch.cat([part.movedim(trailing, leading) for part in parts], rank + dim).movedim(leading, trailing)


def flatten_array(array: Tensor, rank: int = 2) -> Tensor:
    """Join the last ``rank`` dimensions of an array ``[*batch, ...]`` to one, row by row.

    A derivative in forward mode may have other strides than its value, but torch takes the same view of both, or
    raises. There rows are copied instead.
    """
    if not (is_traced() or is_transformed(array)) and forward_ad.unpack_dual(array).tangent is None:
        return array.flatten(-rank)
    rows = [array]
    for dim in range(rank, 1, -1):
        rows = [part for row in rows for part in row.unbind(-dim)]
    return concatenate(rows)


def multiply_rows(a: Rows, b: Rows) -> list[list[Tensor]]:
    """Multiply two matrices given by their entries."""
    columns = list(zip(*b, strict=True))
    return [[dot(row, column) for column in columns] for row in a]


def polynomial_rows(coefficients: Sequence[Tensor], powers: Sequence[Rows]) -> list[list[Tensor]]:
    """Evaluate ``f0 I + sum_j f_j B_j`` for coefficients f_j, ``[*batch]``, and entries of matrices B_j."""
    first, *others = coefficients
    size = len(powers[0])
    rows = []
    for i in range(size):
        row = []
        for j in range(size):
            entry = first + others[0] * powers[0][i][j] if i == j else others[0] * powers[0][i][j]
            for f, power in zip(others[1:], powers[1:], strict=True):
                entry = torch.addcmul(entry, f, power[i][j])
            row.append(entry)
        rows.append(row)
    return rows


def dot(x: Sequence[Tensor], y: Sequence[Tensor]) -> Tensor:
    """Inner product of two vectors given by their entries."""
    total, traced = x[0] * y[0], is_traced()
    for p, q in zip(x[1:], y[1:], strict=True):
        total = total + p * q if traced else torch.addcmul(total, p, q)  # eager, one kernel; compilers fuse both
    return total


def cross(x: Sequence[Tensor], y: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Cross product of two vectors of space given by their entries."""
    return x[1] * y[2] - x[2] * y[1], x[2] * y[0] - x[0] * y[2], x[0] * y[1] - x[1] * y[0]


def block_lower(first: Tensor, corner: Tensor, second: Tensor) -> Tensor:
    """Join blocks A ``[*batch, k, k]``, C ``[*batch, l, k]``, B ``[*batch, l, l]`` to ``[[A, 0], [C, B]]``."""
    return from_rows(block_lower_rows(*(entry_rows(x) for x in (first, corner, second))))


def block_lower_rows(first: Rows, corner: Rows, second: Rows) -> list[list[Tensor]]:
    """Join the entries of blocks to those of the matrix ``[[A, 0], [C, B]]``."""
    zero = torch.zeros_like(first[0][0])
    top = [[*row, *[zero] * len(second)] for row in first]
    return [*top, *([*left, *right] for left, right in zip(corner, second, strict=True))]


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
    """Multiply matrices ``[*batch, k, l]`` and ``[*batch, l, m]``, and add c ``[*batch, k, m]``; batches broadcast.

    Small matrices of a large batch are multiplied by sums over the batch, entry by entry. The library's batched product
    takes other matrices, and those that lie in memory one after the other.
    """
    larger = a if a.numel() > b.numel() else b
    is_large = a.shape[-1] <= _MAX_UNROLLED_SIZE and not is_small_batch(larger, _MAX_MULTIPLIED_BATCH)
    if is_large and (is_traced() or not (_is_interleaved(a) and _is_interleaved(b))):
        return _summed_product(a, b, c)
    if a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0]:  # takes a third of the time of `@` for 100 small matrices
        return torch.bmm(a, b) if c is None else torch.baddbmm(c, a, b)
    return a @ b if c is None else a @ b + c


def _is_interleaved(matrix: Tensor) -> bool:
    """Whether the entries of a matrix are neighbours in memory, as the library's product needs them."""
    return 1 in matrix.stride()[-2:]


def _summed_product(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
    if is_traced():
        rows = multiply_rows(entry_rows(a), entry_rows(b))
        if c is not None:
            rows = [[x + y for x, y in zip(*pair, strict=True)] for pair in zip(rows, entry_rows(c), strict=True)]
        return from_rows(rows)
    # the sums of all entries at once, [k, m, *batch]: fewer kernels
    dims = max(a.ndim, b.ndim)
    left, right, *rest = (leading_entries(x[(None,) * (dims - x.ndim)]) for x in (a, b, c) if x is not None)
    total = rest[0] if rest else None
    for j in range(a.shape[-1]):
        x, y = left[:, j, None], right[None, j]
        total = x * y if total is None else torch.addcmul(total, x, y)
    assert total is not None
    return total.movedim((0, 1), (-2, -1))


def confirmed(log: Tensor, back: Tensor, target: Tensor) -> Tensor:
    """``log [*batch, d]`` where its exponential ``back [*batch, n]`` is ``target`` to a third of the digits, else NaN.

    The logarithm of an element whose entries are e^(+-r) has lost 2r / log 10 of its digits, at some r all.
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
    if n > _MAX_UNROLLED_SIZE:
        return x @ a.squeeze(-3).mT
    return _sum_columns(a, x)


def spread_blocks(blocks: Tensor) -> Tensor:
    """The matrix ``[*batch, count d, count d]`` with blocks ``[*batch, count, d, d]`` along its diagonal."""
    count = blocks.shape[-3]
    if count == 1:
        return blocks.squeeze(-3)
    places = torch.eye(count, dtype=blocks.dtype, device=blocks.device)[:, None, :, None]
    spread = flatten_array(blocks.unsqueeze(-2) * places)  # [*batch, count, d, count d]
    return flatten_array(spread.movedim(-1, -3)).mT  # last, the rows of the result


def block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    """One matrix with matrices ``[*batch, d_i, d_i]`` along its diagonal; batches broadcast."""
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
