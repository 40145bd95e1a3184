"""Inversion of images of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from trivgeo._random import NoiseStreams, streams_for
from trivgeo.checks import check_tensor
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import Action
from trivgeo.inversion.result import InversionResult

__all__ = ["invert_by_size"]


def invert_by_size(
    invert: Callable[..., InversionResult],
    images: Sequence[Tensor],
    generator: torch.Generator | None,
    initial: Tensor | None,
) -> InversionResult:
    """Return the result of images ``[c, h, w]`` of several sizes, inverted together where they are of one size.

    Each has the noise that it has at its place in a batch.

    Args:
        invert: inverts a batch of one size, see `Inverter.forward`.
        images: at least one.
        generator: see `Inverter.forward`, like ``initial``.
        initial: elements of all images.

    Raises:
        ShapeError: there is no image, or one of another number of dimensions, or ``initial`` is for others.
        ConfigurationError: the result is of a kind that cannot be put together.
    """
    images = [check_tensor("x_tilde", image) for image in images]
    if not images:
        raise ShapeError("x_tilde: expected at least one image in a list, got none")
    places: dict[tuple[int, ...], list[int]] = {}
    for place, image in enumerate(images):
        if image.ndim != 3:
            raise ShapeError(f"x_tilde: expected a list of images [c, h, w], got one of shape {list(image.shape)}")
        places.setdefault(tuple(image.shape), []).append(place)
    if initial is not None and len(initial) != len(images):
        raise ShapeError(f"initial: expected elements for {len(images)} images, got {len(initial)}")
    streams = streams_for(len(images), images[0], generator)
    results = []
    for index in places.values():
        rows = torch.tensor(index)
        results.append(
            invert(
                torch.stack([images[place] for place in index]),
                generator=streams.rows(rows) if isinstance(streams, NoiseStreams) else streams,
                initial=None if initial is None else initial[rows.to(initial.device)],
            )
        )
    order = torch.tensor([place for index in places.values() for place in index]).argsort()
    merged = {entry.name: _merge([getattr(r, entry.name) for r in results], order) for entry in fields(results[0])}
    return type(results[0])(**merged)


def _merge(parts: list[Any], order: Tensor) -> Any:
    """One value of those of all sizes, rows in the order of the images; counts for each datum are the largest."""
    first = parts[0]
    if first is None or isinstance(first, Action):
        return first
    if isinstance(first, int):
        return max(parts)
    if isinstance(first, tuple) and sum(map(len, parts)) == len(order):
        rows = [row for part in parts for row in part]
        return tuple(rows[place] for place in order.tolist())
    if isinstance(first, Tensor) and first.ndim and sum(map(len, parts)) == len(order):
        return torch.cat(parts)[order.to(first.device)]
    if is_dataclass(first) and not isinstance(first, type):
        return type(first)(**{e.name: _merge([getattr(part, e.name) for part in parts], order) for e in fields(first)})
    raise ConfigurationError(f"x_tilde: expected images of one size for a result that has {type(first).__name__}")
