"""Inversion of images of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from trivgeo._random import NoiseStreams, streams_for
from trivgeo.actions import ImageWarp
from trivgeo.checks import check_tensor
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import Action
from trivgeo.inversion.result import InversionResult


def is_list_of_images(action: Action, x: Any) -> bool:
    """Return True if data are a list of images, which may be of several sizes."""
    return isinstance(x, (list, tuple)) and isinstance(action, ImageWarp)


def places_by_size(name: str, images: Sequence[Tensor]) -> list[list[int]]:
    """Return the places in the list ``name`` that hold images ``[c, h, w]`` or volumes of one size, for each size.

    Raises:
        ShapeError: there is no image, or one of another number of dimensions.
        ConfigurationError: an image is no tensor.
    """
    if not images:
        raise ShapeError(f"{name}: expected at least one image in a list, got none")
    places: dict[tuple[int, ...], list[int]] = {}
    for place, image in enumerate(images):
        if check_tensor(name, image).ndim not in (3, 4):
            raise ShapeError(
                f"{name}: expected a list of images [c, h, w] or volumes [c, d, h, w], got one of shape "
                f"{list(image.shape)}"
            )
        places.setdefault(tuple(image.shape), []).append(place)
    return list(places.values())


def stacked(images: Sequence[Tensor], places: Sequence[int]) -> Tensor:
    """Return the images at some places, of one size, as a batch ``[b, c, h, w]``."""
    return torch.stack([torch.as_tensor(images[place]) for place in places])


def in_order(parts: Sequence[Tensor], places: Sequence[Sequence[int]]) -> Tensor | list[Tensor]:
    """Return rows that were computed size by size in the order of the images; a list where rows differ in shape."""
    order = _order(places)
    if len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(list(parts))[order.to(parts[0].device)]
    rows = [row for part in parts for row in part]
    return [rows[place] for place in order.tolist()]


def invert_by_size(
    invert: Callable[..., InversionResult],
    images: Sequence[Tensor],
    generator: torch.Generator | None,
    initial: Tensor | None,
) -> InversionResult:
    """Return the result of images ``[c, h, w]`` of several sizes, inverted together where they are of one size.

    Each image has the noise of its place in a batch.

    Raises:
        ShapeError: there is no image, or one of another number of dimensions, or ``initial`` is for others.
        ConfigurationError: an image is no tensor, or the result is of a kind that cannot be put together.
    """
    places = places_by_size("x_tilde", images)
    if initial is not None and len(initial) != len(images):
        raise ShapeError(f"initial: expected elements for {len(images)} images, got {len(initial)}")
    streams = streams_for(len(images), torch.as_tensor(images[0]), generator)
    results = []
    for index in places:
        rows = torch.tensor(index)
        results.append(
            invert(
                stacked(images, index),
                generator=streams.rows(rows) if isinstance(streams, NoiseStreams) else streams,
                initial=None if initial is None else initial[rows.to(initial.device)],
            )
        )
    order = _order(places)
    merged = {entry.name: _merge([getattr(r, entry.name) for r in results], order) for entry in fields(results[0])}
    return type(results[0])(**merged)


def result_of_rows(result: InversionResult, places: Sequence[int]) -> InversionResult:
    """Return the result of some of the data that were inverted."""
    return _rows(result, torch.tensor(places), len(result.energies))


def _rows(value: Any, places: Tensor, count: int) -> Any:
    """Return a value of a result of ``count`` data for those at some places."""
    if isinstance(value, tuple) and len(value) == count:
        return tuple(value[place] for place in places.tolist())
    if isinstance(value, Tensor) and value.ndim and len(value) == count:
        return value[places.to(value.device)]
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{entry.name: _rows(getattr(value, entry.name), places, count) for entry in fields(value)})
    return value


def _order(places: Sequence[Sequence[int]]) -> Tensor:
    """Return, for each image of a list, its row among the rows of all sizes one after the other."""
    return torch.tensor([place for index in places for place in index]).argsort()


def _as_wide(parts: list[Tensor]) -> list[Tensor]:
    """Return tensors ``[b, K, ...]`` of as many hypotheses: the last of fewer stands several times."""
    if parts[0].ndim < 2 or len({part.shape[1] for part in parts}) == 1:
        return parts
    most = max(part.shape[1] for part in parts)
    return [torch.cat([part, *[part[:, -1:]] * (most - part.shape[1])], 1) for part in parts]


def _merge(parts: list[Any], order: Tensor) -> Any:
    """Return a value of all sizes, rows in the order of the images; counts for each datum are the largest."""
    first = parts[0]
    if first is None or isinstance(first, Action):
        return first
    if isinstance(first, int):
        return max(parts)
    if isinstance(first, str):
        return "\n".join(dict.fromkeys(parts))
    if isinstance(first, tuple) and sum(map(len, parts)) == len(order):
        rows = [row for part in parts for row in part]
        return tuple(rows[place] for place in order.tolist())
    if isinstance(first, Tensor) and first.ndim and sum(map(len, parts)) == len(order):
        return torch.cat(_as_wide(parts))[order.to(first.device)]
    if is_dataclass(first) and not isinstance(first, type):
        return type(first)(**{e.name: _merge([getattr(part, e.name) for part in parts], order) for e in fields(first)})
    raise ConfigurationError(f"x_tilde: expected images of one size for a result that has {type(first).__name__}")
