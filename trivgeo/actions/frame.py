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
    """Return half the width and half the height of a frame of ``height`` by ``width`` pixels; the longer half side
    is 1.
    """
    longer = max(height, width)
    return width / longer, height / longer


def pixel_centres(height: int, width: int, like: Tensor) -> Float[Tensor, "p 2"]:
    """Return the centres (x, y) of the pixels of a frame, row by row, ``[height * width, 2]``.

    Args:
        height: number of rows of pixels.
        width: number of columns of pixels.
        like: gives dtype and device.
    """
    longer = max(height, width)
    x = (2 * torch.arange(width, dtype=like.dtype, device=like.device) + (1 - width)) / longer
    y = (2 * torch.arange(height, dtype=like.dtype, device=like.device) + (1 - height)) / longer
    return torch.stack([x.expand(height, width), y.unsqueeze(-1).expand(height, width)], -1).flatten(0, 1)


def frame_corners(height: int, width: int) -> tuple[tuple[float, float], ...]:
    """Return the corners (x, y) of the frame of ``height`` by ``width`` pixels, at the outer edges of its pixels."""
    x, y = half_sides(height, width)
    return (-x, -y), (-x, y), (x, -y), (x, y)


def frame_from_pixels(height: int, width: int, like: Tensor) -> Float[Tensor, "3 3"]:
    """Return the matrix that maps pixel coordinates (x, y, 1) to coordinates of the frame, ``[3, 3]``.

    Args:
        height: number of rows of the image.
        width: number of columns; pixel centres lie at whole numbers.
        like: a tensor on the device of the result, which has dtype float64.
    """
    longer = max(height, width)
    rows = [[2 / longer, 0.0, (1 - width) / longer], [0.0, 2 / longer, (1 - height) / longer], [0.0, 0.0, 1.0]]
    return torch.tensor(rows, dtype=torch.float64, device=like.device)


def check_sides(size: tuple[int, int]) -> tuple[int, int]:
    """Return ``size`` as height and width.

    Raises:
        ConfigurationError: ``size`` is no pair of integers of at least one.
    """
    if not isinstance(size, Sequence) or isinstance(size, str | bytes) or len(size) != 2:
        raise ConfigurationError(f"size: expected height and width, got {size!r}")
    height, width = size
    return check_count("height", height), check_count("width", width)
