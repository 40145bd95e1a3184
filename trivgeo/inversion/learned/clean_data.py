"""Clean data of a training: drawn with repetition, and a part held out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trivgeo._random import integers, keyed, permutation
from trivgeo._torch import pytree
from trivgeo.errors import ShapeError
from trivgeo.groups import Action
from trivgeo.inversion.learned.noise_network import leaves_length
from trivgeo.inversion.posterior_energy import check_batch

__all__ = ["Draw", "checked_draw", "held_out", "picker"]

Draw = Callable[[int, torch.Generator], Any]
"""(count, generator) to clean data."""

_HELD_OUT, _MOST_HELD_OUT = 6, 4096
"""One in so many is held out, up to a number."""


def picker(clean: Any) -> Draw:
    """Return a function (count, generator) that draws rows of ``clean`` with repetition."""
    first: Tensor = pytree.tree_leaves(clean)[0]

    def draw(count: int, generator: torch.Generator) -> Any:
        index = integers(leaves_length(clean), (count,), torch.empty(0), generator).to(first.device)
        return pytree.tree_map(lambda leaf: leaf[index], clean)

    return draw


def checked_draw(action: Action, clean: Draw) -> Draw:
    """Wrap a user's function that draws clean data, so that its results are checked.

    Args:
        action: the data must fit it.
        clean: function (count, generator) to data.

    Returns:
        A function that returns tensors, and raises `ShapeError` for another number of data than asked for.
    """

    def draw(count: int, generator: torch.Generator) -> Any:
        some, given = check_batch(action, clean(count, generator))
        if given != count:
            raise ShapeError(f"clean: expected a function that draws the {count} data asked for, got {given}")
        return some

    return draw


def held_out(action: Action, clean: Any, seed: int) -> tuple[Any, Draw]:
    """Separate a sixth of clean data from those of the training.

    Args:
        action: the data must fit it.
        clean: data, or a function that draws them; a function, and less than six data, stay whole.
        seed: of the choice.

    Returns:
        The data of the training, and a function that draws from the others.
    """
    if callable(clean):
        return clean, checked_draw(action, clean)
    clean, number = check_batch(action, clean)
    held = min(_MOST_HELD_OUT, number // _HELD_OUT)
    if held == 0:
        return clean, picker(clean)
    order = permutation((number,), torch.empty(0), keyed(seed, 11))
    first: Tensor = pytree.tree_leaves(clean)[0]
    order = order.to(first.device)
    train, rest = (pytree.tree_map(lambda leaf, rows=rows: leaf[rows], clean) for rows in (order[held:], order[:held]))
    return train, picker(rest)
