"""Rows of batches: data and elements of several batch dimensions, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trivgeo._torch import pytree
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.resampling import take_rows


def in_blocks(
    f: Callable[[Tensor, Any], Tensor], group: LieGroup, g: Tensor, x: Any, bound: int | None
) -> Float[Tensor, "b *chains ..."]:
    """``f(g, x)`` with no more than ``bound`` pairs of an element and a datum at once.

    Args:
        f: elements ``[b, *chains, *element_shape]`` and b data to ``[b, *chains, ...]``, each pair by itself.
        bound: largest number of pairs at once; ``None`` for all.
    """
    shape = group.batch_shape(g)
    chains = shape[1:].numel()
    if bound is None or shape.numel() <= bound or chains == 0:
        return f(g, x)
    g = g.reshape(shape[0], chains, *group.element_shape)
    data, together = max(1, bound // chains), min(chains, bound)
    rows = []
    for i in range(0, shape[0], data):
        part = pytree.tree_map(lambda leaf, i=i: leaf[i : i + data], x)
        blocks = [f(g[i : i + data, j : j + together], part) for j in range(0, chains, together)]
        rows.append(torch.cat(blocks, 1))
    out = torch.cat(rows)
    return out.reshape(*shape, *out.shape[2:])


def lift(x: Any, chains: int) -> Any:
    """Insert ``chains`` dimensions of size one after the batch dimension of all tensors of data x."""
    return pytree.tree_map(lambda leaf: leaf.reshape(leaf.shape[0], *(1,) * chains, *leaf.shape[1:]), x)


def flat_rows(x: Any, rank: int) -> Any:
    """Flatten the first ``rank`` dimensions of all tensors of data x to one."""
    return pytree.tree_map(lambda leaf: leaf.flatten(0, rank - 1), x)


def one_per_datum(name: str, values: Tensor, shape: torch.Size) -> Tensor:
    """Reshape values ``[batch]`` of a user's function, which messages call ``name``, to ``shape``, batch and chains.

    Raises:
        ConfigurationError: the values are no tensor of real numbers.
        ShapeError: the values have another shape.
    """
    if not isinstance(values, Tensor) or values.is_complex():
        got = f"{values.dtype}" if isinstance(values, Tensor) else f"{values!r:.200}"
        raise ConfigurationError(f"{name}: expected a function to a tensor of real numbers, got {got}")
    if values.shape != (shape.numel(),):
        raise ShapeError(f"{name}: expected one number per datum [{shape.numel()}], got {list(values.shape)}")
    return values.reshape(shape)


def rows_like(mask: Tensor, x: Tensor) -> Tensor:
    """Return ``mask``, ``[b, ...]``, with dimensions of size one appended, up to the number of dimensions of ``x``."""
    return mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))


def where_rows(mask: Tensor, x: Tensor, other: Tensor | float) -> Tensor:
    """Return ``x`` in the rows where ``mask``, ``[b, ...]``, is true, and ``other``, tensor or number, elsewhere."""
    return torch.where(rows_like(mask, x), x, other)


def lower_rows(x: Tensor, energies: Tensor, other: Tensor, other_energies: Tensor) -> tuple[Tensor, Tensor]:
    """Return, row by row, the candidate ``[b, k, ...]`` of lower energy, and its energy."""
    lower = other_energies < energies
    return where_rows(lower, other, x), torch.where(lower, other_energies, energies)


def farthest_first(
    places: Float[Tensor, "b m n"], counted: Bool[Tensor, "b m"], number: int, first: Int[Tensor, "b 1"] | None = None
) -> Int[Tensor, "b k"]:
    """Return sorted indices of a first place and others, each the farthest from those before (Gonzalez 1985).

    Args:
        counted: mask of the places that may be chosen; where they are too few some are chosen again.
        first: index of the first place; default zero.
    """
    index = torch.zeros_like(places[:, :1, 0], dtype=torch.long) if first is None else first
    nearest = torch.where(counted, torch.inf, -1.0).to(places)
    chosen = [index]
    for _ in range(number - 1):
        nearest = torch.minimum(nearest, (places - take_rows(places, index)).square().sum(-1))
        index = nearest.argmax(1, keepdim=True)
        chosen.append(index)
    return torch.cat(chosen, 1).sort(dim=1).values


def highest_apart(
    heights: Float[Tensor, "b m"], number: int, near: Callable[[Int[Tensor, " b"]], Bool[Tensor, "b m"]]
) -> tuple[Int[Tensor, "b k"], Bool[Tensor, "b k"]]:
    """Return indices of a ``number`` of places, each the highest that is near none before, and whether there is one.

    Args:
        heights: minus infinity at places that are not chosen.
        near: index of a place of each datum to a mask of those near it.
    """
    rows = torch.arange(len(heights), device=heights.device)
    free, chosen, used = heights > -torch.inf, [], []
    for _ in range(number):
        best = torch.where(free, heights, -torch.inf).argmax(-1)
        used.append(free.any(-1))
        chosen.append(best)
        free = free & ~near(best)
        free[rows, best] = False
    return torch.stack(chosen, 1), torch.stack(used, 1)
