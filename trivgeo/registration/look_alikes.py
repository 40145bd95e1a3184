"""Rotations and shifts under which a picture looks like another: where else two photographs may fit."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.actions import ImageWarp
from trivgeo.actions.image import sample_images
from trivgeo.registration.inverse_compositional import means_of_parts

_NUM_ANGLES = 60  # rotations that are tried
_SIDE_OF_TURNED, _SIDE_OF_SHIFTED = 40, 256  # longest sides of pictures that are turned, and only shifted, in pixels
_MIN_OVERLAP = 0.35  # share of the frame on which pictures are compared
_MIN_CONTRAST = 0.05  # variance on this part, in units of that on the frame
_MIN_CORRELATION = 0.7  # correlation of look-alikes, in units of that of the pictures where they are
_PREFERENCE_OF_NEAR = 0.1  # correlation that a shift by half the longer side costs in the order of look-alikes


def look_alikes(
    action: ImageWarp,
    moved: Float[Tensor, "d h w"],
    fixed: Float[Tensor, "c h w"],
    number: int,
    least: float = _MIN_CORRELATION,
) -> Float[Tensor, "k *e"]:
    """Return elements t, rotations with shifts, at which ``moved``, read at t p, correlates with ``fixed`` at p.

    These are local maxima of the correlation coefficient on what both show (Padfield 2012), the highest ones first, and
    near ones before far ones, but for the identity and shifts by a pixel. Elements that the group does not have are
    left out.

    Args:
        moved: an image, the last channel its coverage.
        fixed: the other image, of the same size.
        number: most elements that are returned.
        least: least correlation, in units of that at the identity, or of itself.
    """
    weights = _brightest(fixed)
    grey = [torch.einsum("c,chw->hw", weights, image) for image in (moved[:-1], fixed)]
    # the sums of squares are of differences from the middle, so that single precision is enough
    middle, spread = grey[1].mean(), grey[1].std(correction=0).clamp(min=torch.finfo(fixed.dtype).tiny)
    both = torch.stack([(grey[0] - middle) / spread, moved[-1], (grey[1] - middle) / spread]).float()
    angles = torch.arange(_NUM_ANGLES).to(both) * (2 * math.pi / _NUM_ANGLES)
    found = [
        _peaks(action, shrunk(both, _SIDE_OF_TURNED), angles, number, least),
        _peaks(action, shrunk(both, _SIDE_OF_SHIFTED), angles[:1], number, least),
    ]
    heights, elements = (torch.cat(parts) for parts in zip(*found, strict=True))
    return elements[heights.argsort(descending=True)[:number]].to(fixed.dtype)


def _peaks(
    action: ImageWarp, both: Float[Tensor, "3 h w"], angles: Float[Tensor, " a"], number: int, share: float
) -> tuple[Tensor, Tensor]:
    """Return the heights ``[k]`` of maxima over angles and shifts, and their elements."""
    height, width = both.shape[-2:]
    cos, sin = angles.cos(), angles.sin()
    turns = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    matrices = torch.eye(3).to(both).repeat(len(angles), 1, 1)
    matrices[:, :2, :2] = turns
    kept = in_group(action, matrices)
    turns = turns[kept]
    shifted = torch.eye(3).to(both)[None]
    shifted[:, 0, 2] = 0.5
    moves = bool(in_group(action, shifted)[0])
    identity = action.group.identity(0, dtype=both.dtype, device=both.device)
    if len(turns) == 0 or (len(turns) == 1 and not moves):
        return both.new_zeros(0), identity
    correlation = _correlations(both, turns)  # [a, h', w'], shifts from -h/2 on
    rows, columns = correlation.shape[-2:]
    if not moves:
        middle = correlation.new_full(correlation.shape, -1.0)
        middle[:, rows // 2, columns // 2] = correlation[:, rows // 2, columns // 2]
        correlation = middle
    circle = torch.cat([correlation[-1:], correlation, correlation[:1]])
    around = _highest_in_windows(_highest_in_windows(circle, 1, 2), 2, 2)
    highest = _highest_in_windows(around, 0, 1)[1:-1]
    # the pictures lie on each other where they are
    least = share * float(correlation[0, rows // 2, columns // 2].clamp(min=share))
    highest[0, rows // 2 - 1 : rows // 2 + 2, columns // 2 - 1 : columns // 2 + 2] = torch.inf
    index = ((correlation >= highest) & (correlation > least)).flatten().nonzero().squeeze(1)
    turn, row, column = index // (rows * columns), index // columns % rows, index % columns
    shift = torch.stack([column - columns // 2, row - rows // 2], -1).to(both) * (2.0 / max(height, width))
    heights = correlation.flatten()[index] - _PREFERENCE_OF_NEAR * shift.norm(dim=-1)
    first = heights.argsort(descending=True)[:number]
    heights, turn, shift = heights[first], turn[first], shift[first]
    matrices = torch.eye(3).to(both).repeat(len(turn), 1, 1)
    matrices[:, :2, :2] = turns[turn]
    matrices[:, :2, 2] = (turns[turn] @ shift.unsqueeze(-1)).squeeze(-1)
    return heights, action.point_action.from_homogeneous(matrices)


def _highest_in_windows(values: Tensor, dim: int, reach: int) -> Tensor:
    """Return the highest values of so many places on each side along a dimension."""
    highest, length = values.clone(), values.shape[dim]
    for shift in range(1, min(reach, length - 1) + 1):
        for to, at in ((0, shift), (shift, 0)):
            part = highest.narrow(dim, to, length - shift)
            torch.maximum(part, values.narrow(dim, at, length - shift), out=part)
    return highest


def _correlations(both: Float[Tensor, "3 h w"], turns: Float[Tensor, "a 2 2"]) -> Float[Tensor, "a h w"]:
    """Return correlation coefficients at all shifts, the middle one at (h // 2, w // 2); -1 where little is shared."""
    height, width = both.shape[-2:]
    size = (
        height + -(-height // 2),
        width + -(-width // 2),
    )  # the correlation at shifts by half a side is not circular
    y, x = (torch.arange(n).to(both) - 0.5 * (n - 1) for n in (height, width))
    pixels = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)  # [h, w, 2]
    grid = torch.einsum("aij,hwj->ahwi", turns, pixels) * both.new_tensor([2.0 / width, 2.0 / height])
    turned = sample_images(both[:2].expand(len(turns), -1, -1, -1), grid, "bilinear", "zeros")
    cover = (turned[:, 1] > 0.99).to(both.dtype)
    moved, fixed = turned[:, 0] * cover, both[2]

    def spectrum(image: Tensor) -> Tensor:
        return torch.fft.rfft2(image, s=size)

    def correlated(a: Tensor, b: Tensor) -> Tensor:
        c = torch.fft.irfft2(a * b.conj(), s=size)
        return torch.roll(c, (height // 2, width // 2), (-2, -1))[..., :height, :width]

    image, square, mask, values = (spectrum(part) for part in (fixed, fixed.square(), cover, moved))
    count, sum_moved, squares = _in_shifted_frames(torch.stack([cover, moved, moved.square()]))
    safe = count.clamp(min=1.0)
    sum_fixed = correlated(mask, image)
    product = correlated(values, image) - sum_moved * sum_fixed / safe
    first = squares - sum_moved.square() / safe
    second = correlated(mask, square) - sum_fixed.square() / safe
    least = _MIN_CONTRAST * fixed.var(correction=0) * safe
    shared = (count > _MIN_OVERLAP * height * width) & (first > least) & (second > least)
    return torch.where(shared, product / torch.where(shared, first * second, 1.0).sqrt(), -1.0)


def _in_shifted_frames(values: Float[Tensor, "*a h w"]) -> Float[Tensor, "*a h w"]:
    """Return sums over what shifted frames have in common with the frame, the middle one at (h // 2, w // 2)."""
    for dim in (-2, -1):
        length, half = values.shape[dim], values.shape[dim] // 2
        total = values.cumsum(dim)
        last = values.narrow(dim, 0, length - half) - total.narrow(dim, 0, length - half)
        values = torch.cat(
            [total.narrow(dim, length - half - 1, half), last.add_(total.narrow(dim, length - 1, 1))], dim
        )
    return values


def _brightest(image: Float[Tensor, "c h w"]) -> Float[Tensor, " c"]:
    """Return the combination of channels of the most variance."""
    values = image.flatten(1)
    values = values - values.mean(1, keepdim=True)
    return torch.linalg.eigh(values @ values.mT)[1][:, -1]


def shrunk(image: Tensor, side: int) -> Tensor:
    """Return the image with a longer side of at most ``side`` pixels, each the mean of what it covers."""
    height, width = image.shape[-2:]
    longer = max(height, width)
    if longer <= side:
        return image
    size = max(1, round(height * side / longer)), max(1, round(width * side / longer))
    return means_of_parts(image, size)


def in_group(action: ImageWarp, matrices: Float[Tensor, "k 3 3"]) -> Tensor:
    """Return a mask of matrices that are transformations of the group."""
    points = action.point_action
    found = points.homogeneous(points.from_homogeneous(matrices))
    found = found / found[:, -1:, -1:]
    return (found - matrices).abs().amax((-2, -1)) < 1e-6
