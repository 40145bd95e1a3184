"""Symmetries of an equation as augmentation of the data that a network is trained on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trivgeo._torch import pytree
from trivgeo.actions.field import Field, FieldAction, Grid
from trivgeo.checks import check_type, checked
from trivgeo.errors import DomainError, ShapeError

_MAX_DRAWS = 20  # elements that are drawn for a field


@checked
def augment(
    u: Field,
    action: FieldAction,
    transformations: Callable[[int, torch.Generator | None], Tensor],
    *,
    grid: Grid | None = None,
    generator: torch.Generator | None = None,
) -> Field:
    r"""Augment data: move solutions by random symmetries of their equation (Brandstetter, Welling, Worrall 2022).

    A transform for a data loader: of one solution or of a batch, each moved by an element of its own.

    ```python
    action = FieldAction(KdVSymmetry(scale=[0.2, 1.0, 0.5, 2.0]))
    transformations = lambda count, generator: action.group.random(count, generator=generator)
    moved = augment(block, action, transformations)  # exact, each on a grid of its own
    on_grid = augment(block, action, transformations, grid=grid)  # on one grid for all
    ```

    Args:
        u: solutions, slices or blocks.
        action: action of the symmetry group of the equation, or of a subgroup.
        transformations: distribution of the elements, a function (count, generator) to ``[count, *element_shape]``.
        grid: grid of the moved solutions, ``[s, ...]`` or with the batch of ``u``; default: the moved grids.
        generator: random numbers of ``transformations``.

    Returns:
        The moved solutions, known at all of their points: elements that leave some of the grid uncovered are drawn
        again.

    Raises:
        ConfigurationError: ``action`` is no `FieldAction`.
        ShapeError: the field does not fit the action, or ``transformations`` returns no elements or another number.
        DomainError: hardly any element covers the grid.
    """
    check_type("action", action, FieldAction)
    action.check_data(u, "u")
    batch = action.batch_shape(u)
    result: Field | None = None
    for _ in range(_MAX_DRAWS):
        count = max(1, batch.numel())
        g = transformations(count, generator)
        action.group.check_elements(g, "transformations")
        if action.group.batch_shape(g) != (count,):
            raise ShapeError(f"transformations: expected {count} elements, got {list(action.group.batch_shape(g))}")
        moved = action(g.to(u.values).reshape(*batch, *action.group.element_shape), u)
        if grid is not None:
            wanted = Grid(*(leaf.to(u.values).expand(*batch, *_own(leaf, action)) for leaf in grid))
            moved = action.resample(moved, wanted)
        result = moved if result is None else _first_known(result, moved, len(batch))
        if bool(torch.isfinite(result.values).all()):
            return result
    assert result is not None
    bad = ~torch.isfinite(result.values).flatten(len(batch)).all(-1)
    raise DomainError(
        f"transformations: expected elements that leave the grid covered, got none for {int(bad.sum())} of "
        f"{bad.numel()} fields in {_MAX_DRAWS} draws"
    )


def _own(leaf: Tensor, action: FieldAction) -> torch.Size:
    """The shape of origins (s, d + 1) or steps (s, d, d) without batch dimensions."""
    return leaf.shape[-2:] if leaf.shape[-1] == action.dims + 1 else leaf.shape[-3:]


def _first_known(first: Field, second: Field, dims: int) -> Field:
    """Rows of the first field where all their values are finite, else rows of the second."""
    known = torch.isfinite(first.values).flatten(dims).all(-1)
    return pytree.tree_map(
        lambda a, b: torch.where(known.reshape(*known.shape, *[1] * (a.ndim - dims)), a, b), first, second
    )
