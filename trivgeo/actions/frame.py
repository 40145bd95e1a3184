"""The frame of an image: coordinates of its pixels, alike in both directions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError

__all__ = ["check_sides", "frame_corners", "frame_from_pixels", "half_sides", "pixel_centres"]


def half_sides(height: int, width: int) -> tuple[float, float]:
    """Return half the width and half the height of the frame: one for the longer side."""
    longer = max(height, width)
    return width / longer, height / longer


def pixel_centres(height: int, width: int, like: Tensor) -> Float[Tensor, "p 2"]:
    """The centres (x, y) of the pixels of the frame, row by row, in the dtype and on the device of ``like``."""
    longer = max(height, width)
    x = (2 * torch.arange(width, dtype=like.dtype, device=like.device) + (1 - width)) / longer
    y = (2 * torch.arange(height, dtype=like.dtype, device=like.device) + (1 - height)) / longer
    return torch.stack([x.expand(height, width), y.unsqueeze(-1).expand(height, width)], -1).flatten(0, 1)


def frame_corners(height: int, width: int) -> tuple[tuple[float, float], ...]:
    """Return the corners (x, y) of the frame, outer edges of its pixels."""
    x, y = half_sides(height, width)
    return (-x, -y), (-x, y), (x, -y), (x, y)


def frame_from_pixels(height: int, width: int, like: Tensor) -> Float[Tensor, "3 3"]:
    """Return the matrix on (x, y, 1) from pixels, whose centres are at whole numbers, to the frame; in float64."""
    longer = max(height, width)
    rows = [[2 / longer, 0.0, (1 - width) / longer], [0.0, 2 / longer, (1 - height) / longer], [0.0, 0.0, 1.0]]
    return torch.tensor(rows, dtype=torch.float64, device=like.device)


def check_sides(size: tuple[int, int]) -> tuple[int, int]:
    """Return a height and a width of at least one pixel, else raise `ConfigurationError`."""
    if not isinstance(size, Sequence) or isinstance(size, str | bytes) or len(size) != 2:
        raise ConfigurationError(f"size: expected height and width, got {size!r}")
    height, width = size
    return check_count("height", height), check_count("width", width)
