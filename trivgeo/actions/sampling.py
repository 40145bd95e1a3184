"""Values of images between their pixels."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from trivgeo._torch import in_forward_mode
from trivgeo.errors import ConfigurationError

__all__ = ["Interpolation", "Padding", "sample_images", "sample_with_slopes"]

Interpolation = Literal["bilinear", "bicubic"]
Padding = Literal["zeros", "border", "reflection"]

_ZEROS = 2
"""Pixels of zeros on each side of an image."""


def sample_images(
    x: Float[Tensor, "b c h w"], grid: Float[Tensor, "b p q 2"], mode: Interpolation, padding: Padding
) -> Float[Tensor, "b c p q"]:
    """Interpolate images at points, as torch's ``grid_sample``, with derivatives in forward mode.

    ``grid_sample`` has no derivative in forward mode. Where one is taken, values come from the four pixels around each
    point.

    Args:
        x: images ``[b, c, h, w]``, each on the square [-1, 1]^2.
        grid: points (x, y) of that square, ``[b, p, q, 2]``.
        mode: kernel of the interpolation.
        padding: values outside the image: ``zeros``, ``border`` or ``reflection``.

    Returns:
        Values ``[b, c, p, q]``.

    Raises:
        ConfigurationError: a derivative in forward mode of the bicubic kernel.
    """
    if torch.compiler.is_compiling() or not in_forward_mode():
        return functional.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=False)
    if mode != "bilinear":
        raise ConfigurationError(f"mode: expected bilinear, which has derivatives in forward mode, got {mode}")
    return _bilinear(x, grid, padding)


def sample_with_slopes(
    x: Float[Tensor, "b c h w"], position: Float[Tensor, "b p 2"]
) -> tuple[Float[Tensor, "b c p"], Float[Tensor, "b c p"], Float[Tensor, "b c p"]]:
    """Interpolate images between four pixels, zero outside, and return the derivatives by x and by y as well.

    Args:
        x: images.
        position: points (x, y) in pixels, whose centres are at whole numbers.

    Returns:
        Values and their two derivatives, ``[b, c, p]``, per pixel.
    """
    height, width = x.shape[-2:]
    flat = functional.pad(x, (_ZEROS,) * 4).flatten(2)
    # beyond two pixels of zeros nothing changes
    across = position[..., 0].clamp(-_ZEROS, width)
    down = position[..., 1].clamp(-_ZEROS, height)
    left, top = across.floor(), down.floor()
    right_share, lower_share = (across - left).unsqueeze(1), (down - top).unsqueeze(1)
    corner = ((top.long() + _ZEROS) * (width + 2 * _ZEROS) + left.long() + _ZEROS).unsqueeze(1)
    corner = corner.expand(-1, flat.shape[1], -1)
    upper_left, upper_right = flat.gather(2, corner), flat.gather(2, corner + 1)
    below = corner + (width + 2 * _ZEROS)
    lower_left, lower_right = flat.gather(2, below), flat.gather(2, below + 1)
    upper = upper_left + right_share * (upper_right - upper_left)
    lower = lower_left + right_share * (lower_right - lower_left)
    upper_slope, lower_slope = upper_right - upper_left, lower_right - lower_left
    return upper + lower_share * (lower - upper), upper_slope + lower_share * (lower_slope - upper_slope), lower - upper


def _bilinear(x: Tensor, grid: Tensor, padding: Padding) -> Tensor:
    """The sum over four pixels of value times weight."""
    height, width = x.shape[-2:]
    across, down = (_position(grid[..., axis], size, padding) for axis, size in enumerate((width, height)))
    flat = x.flatten(2)
    total: Tensor | float = 0.0
    for row, row_weight in _taps(down, height):
        for column, column_weight in _taps(across, width):
            index = (row * width + column).flatten(1).unsqueeze(1).expand(-1, flat.shape[1], -1)
            value = flat.gather(2, index).unflatten(2, grid.shape[1:3])
            total = total + value * (row_weight * column_weight).unsqueeze(1)
    assert isinstance(total, Tensor)
    return total


def _position(coordinate: Tensor, size: int, padding: Padding) -> Tensor:
    """The coordinate in pixels, whose centres are at whole numbers, after the padding has brought it inside."""
    position = 0.5 * ((coordinate + 1) * size - 1)
    if padding == "reflection":
        beyond = (position + 0.5).abs()
        turns = (beyond / size).detach().floor()
        rest = beyond - turns * size
        position = torch.where(turns % 2 == 0, rest, size - rest) - 0.5
    return position if padding == "zeros" else position.clamp(0, size - 1)


def _taps(position: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """The pixels on both sides of a position, with their weights: zero outside the image."""
    low = position.detach().floor()
    part = position - low
    taps = []
    for pixel, weight in ((low, 1 - part), (low + 1, part)):
        inside = (pixel >= 0) & (pixel <= size - 1)
        taps.append((pixel.clamp(0, size - 1).long(), torch.where(inside, weight, 0.0)))
    return taps
