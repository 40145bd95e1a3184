"""What a warp pushes out of the frame of an image, and what that costs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from trivgeo.actions.frame import half_sides, pixel_centres
from trivgeo.groups import PointAction
from trivgeo.groups.action import ContentGuard

__all__ = ["ImageContent", "ImageGuard"]

_MOST_CELLS = 16
"""Largest number of cells of the content along a side of the frame."""
_WIDTH = 0.1
"""Distance beyond the edge of the frame, in units of half its longer side, at which content costs log 2."""
_LEAST_PIXELS = 4.0
"""Area, in pixels, below which an image has shrunk to nothing."""
_CORNERS = ((1.0, 1.0), (1.0, -1.0), (-1.0, -1.0), (-1.0, 1.0))


class ImageContent(NamedTuple):
    """Distribution of the contrast of images over the frame.

    Attributes:
        points: centre of the contrast of each cell of the frame, ``[*batch, cells, 2]``.
        shares: share of the contrast that lies in each cell, ``[*batch, cells]``; zero for an image without any.
        box: corners of a box of two standard deviations of the contrast each way, ``[*batch, 4, 2]``.
        pixels: number of pixels that are as large as a square of area one, ``[*batch]``.
        half_sides: half the width and the height of the frame, ``[*batch, 2]``.
    """

    points: Float[Tensor, "*batch cells 2"]
    shares: Float[Tensor, "*batch cells"]
    box: Float[Tensor, "*batch 4 2"]
    pixels: Float[Tensor, " *batch"]
    half_sides: Float[Tensor, "*batch 2"]


class ImageGuard(ContentGuard):
    r"""The cost of the contrast of an image that a warp moves out of its frame, or shrinks to nothing.

    .. math:: \sum_c m_c \sum_{i=1}^{2} \log(1 + \max(|(g.q_c)_i| - s_i, 0)^2 / 0.1^2) + 2 \max(\log(4 / a(g)), 0)

    with m_c the share of the contrast (the squared difference from the background) in a cell, q_c its centre, s_i half
    the sides of the frame, one for the longer, and a(g) the area in pixels of the box of the content. Zero while the
    content stays in the frame on more than four pixels, since a cell lies with its centre in the convex hull of its
    content. Of an image with no contrast nothing is lost.

    Args:
        point_action: of the group on points of the plane.
        fill: the background, one number for all channels or one for each.
    """

    def __init__(self, point_action: PointAction, fill: tuple[float, ...]) -> None:
        self.point_action = point_action
        self.fill = fill

    def content(self, x: Float[Tensor, "*batch c h w"]) -> ImageContent:
        """Return the distribution of the contrast of images ``x``, ``[*batch, c, h, w]``; one record serves all
        elements.
        """
        batch, (height, width) = x.shape[:-3], x.shape[-2:]
        contrast = (x.detach() - self._background(x)).square().sum(-3)
        contrast = contrast / contrast.amax((-2, -1), keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
        across, down = pixel_centres(height, width, x).unflatten(0, (height, width)).unbind(-1)
        moments = torch.stack([contrast, contrast * across, contrast * down], -3)
        sizes = min(height, _MOST_CELLS), min(width, _MOST_CELLS)
        cells = functional.adaptive_avg_pool2d(moments.reshape(-1, 3, height, width), sizes)
        weight, first = cells[:, 0].flatten(1), cells[:, 1:].flatten(2).mT
        points = torch.where(weight.unsqueeze(-1) > 0, first / weight.unsqueeze(-1), 0.0)
        total = weight.sum(-1, keepdim=True)
        shares = torch.where(total > 0, weight / total, 0.0)
        middle = (shares.unsqueeze(-1) * points).sum(-2, keepdim=True)
        pixel = x.new_tensor(2.0 / max(height, width))
        half = x.new_tensor(half_sides(height, width))
        spread = (shares.unsqueeze(-1) * (points - middle).square()).sum(-2, keepdim=True) + pixel.square() / 12
        box = (middle + x.new_tensor(_CORNERS) * spread.sqrt()).clamp(-half, half)
        pixels = torch.where(total[:, 0] > 0, max(height, width) ** 2 / 4.0, torch.inf)
        parts = (points, shares, box, pixels, half.expand(points.shape[0], 2))
        return ImageContent(*(part.reshape(*batch, *part.shape[1:]) for part in parts))

    def departure(self, g: Tensor, content: ImageContent) -> Float[Tensor, "*out"]:
        """Return the cost of contrast that g moves out of the frame, ``[*batch]``; zero if all contrast stays inside.

        Args:
            g: elements ``[*batch, *element_shape]``.
            content: record of the contrast, see `content`; batches broadcast.
        """
        beyond = torch.relu(self.point_action(g, content.points).abs() - content.half_sides.unsqueeze(-2)) / _WIDTH
        outside = 2 * torch.hypot(torch.ones_like(beyond), beyond).log().sum(-1)
        area = self._area(g, content).clamp(min=torch.finfo(g.dtype).tiny)
        return (content.shares * outside).sum(-1) + 2 * torch.relu((_LEAST_PIXELS / area).log())

    def kept(self, g: Tensor, content: ImageContent) -> Float[Tensor, "*out"]:
        """Return the share of the contrast that g leaves in the frame, ``[*batch]``, in [0, 1].

        The share is reduced where the contrast covers less than four pixels after g has acted.

        Args:
            g: elements ``[*batch, *element_shape]``.
            content: record of the contrast, see `content`; batches broadcast.
        """
        inside = (self.point_action(g, content.points).abs() <= content.half_sides.unsqueeze(-2)).all(-1)
        lost = (content.shares * (~inside).to(content.shares.dtype)).sum(-1)
        return (1 - lost) * (self._area(g, content) / _LEAST_PIXELS).clamp(max=1.0)

    def empty(self, x: Float[Tensor, "*batch c h w"]) -> Float[Tensor, "*batch c h w"]:
        """Return images that show the background alone, of the shape of ``x``, ``[*batch, c, h, w]``."""
        return torch.zeros_like(x) + self._background(x)

    def _background(self, x: Tensor) -> Tensor:
        return x.new_tensor(self.fill).reshape(-1, 1, 1)

    def _area(self, g: Tensor, content: ImageContent) -> Tensor:
        """The area of the moved box of the content, in pixels."""
        box = self.point_action(g, content.box)
        first, second = box[..., 2, :] - box[..., 0, :], box[..., 3, :] - box[..., 1, :]
        return 0.5 * (first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]).abs() * content.pixels
