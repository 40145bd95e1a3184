"""The action of transformations of the plane on images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from trivgeo._numerics import Constant, broadcast_shapes
from trivgeo.actions.image_guard import ImageGuard
from trivgeo.checks import promoted
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import Action, LieGroup
from trivgeo.groups.action import ContentGuard

__all__ = ["ImageWarp"]

_MODES = ("bilinear", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")
_CORNERS = ((-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0))


class ImageWarp(Action):
    r"""A transformation of the plane applied to images: :math:`(g \cdot I)(p) = I(g^{-1} p)`.

    Points p = (x right, y down); the frame of every image is :math:`[-1, 1]^2`, whatever its size, with the centres
    of its pixels at -1 + (2 i + 1) / w. Data are ``[*batch, c, h, w]``, of any size and number of channels. Outside
    its frame an image is zero, or ``fill``: the value of the background, which is not zero in normalised images;
    or what the padding says.

    Between pixels the image is interpolated, so ``(g h).I`` and ``g.(h.I)`` differ by the error of resampling. For a
    smooth image it is second order in the size of a pixel with bilinear interpolation; only first order with torch's
    bicubic kernel (a = -3/4; Keys 1981 shows that a = -1/2 alone does better), which looks sharper. A homography is
    defined on an image if its denominator keeps its sign on the frame it is read into; the whole image is NaN
    otherwise. So it is for elements that hold NaN, or read beyond all numbers.

    What a warp moves out of the frame costs in an inversion, see `ImageGuard`: else an image that shows nothing is what
    many an energy likes. A restored image that shows less than half of the contrast of the given one is not found, see
    `trivgeo.inversion.InversionResult.found`. Both are right where clean images are moved, by g, within a frame on a
    background of zeros or ``fill``; where the given images show more than the clean ones, such as clutter around
    them, take ``guarded=False``.

    Second derivatives, and ``vmap`` of ``torch.func.grad``, need torch 2.12, whose ``grid_sample`` has them; older
    versions raise a ``RuntimeError``.

    Args:
        group: a group with an action on points of the plane: ``Affine(2)``, ``Projective(2)``, ``SE(2)``, ``SO(2)``.
        mode: interpolation, ``"bilinear"`` or ``"bicubic"``.
        padding: ``"zeros"`` for ``fill`` outside the frame, ``"border"`` for the nearest pixel, ``"reflection"`` for
            the image mirrored at the edge of its frame.
        fill: the value outside the frame, one for all channels or one each; with ``padding="zeros"``.
        guarded: whether what leaves the frame costs in an inversion; never with another padding, which leaves none
            empty.

    Raises:
        ConfigurationError: the group does not act on the plane, an unknown mode or padding, or a fill that is not
            finite or goes with another padding.
        ShapeError: (when called) a fill for another number of channels.
    """

    def __init__(
        self,
        group: LieGroup,
        mode: Literal["bilinear", "bicubic"] = "bilinear",
        padding: Literal["zeros", "border", "reflection"] = "zeros",
        fill: float | Sequence[float] = 0.0,
        guarded: bool = True,
    ) -> None:
        if not isinstance(group, LieGroup):
            raise ConfigurationError(f"group: expected a LieGroup, got {group!r}")
        for name, value, known in (("mode", mode, _MODES), ("padding", padding, _PADDINGS)):
            if value not in known:
                raise ConfigurationError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
        point_action = group.action()
        if 2 not in point_action.point_dims:
            raise ConfigurationError(
                f"group: expected one that acts on points (x, y), got {group!r}, which acts on points of "
                f"{' or '.join(map(str, point_action.point_dims))} coordinates"
            )
        self.group = group
        self.point_action = point_action
        self.mode = mode
        self.padding = padding
        self.fill = _check_fill(fill, padding)
        self.guarded = guarded
        self._fill = None if all(value == 0 for value in self.fill) else Constant(torch.tensor(self.fill).double())
        identity = group.identity(1)
        self._local = point_action._denominator(identity, identity.new_zeros(1, 2)) is not None

    def __repr__(self) -> str:
        """The group, the interpolation and, where it is none of zeros, the padding."""
        outside = "" if self.padding == "zeros" else f", padding={self.padding!r}"
        if self._fill is not None:
            outside = f", fill={self.fill[0] if len(self.fill) == 1 else list(self.fill)}"
        outside += "" if self.guarded else ", guarded=False"
        return f"ImageWarp({self.group!r}, {self.mode!r}{outside})"

    @property
    def guard(self) -> ContentGuard | None:
        """What leaves the frame, and what it costs; ``None`` if the action is not guarded, or has another padding."""
        return ImageGuard(self.point_action, self.fill) if self.guarded and self.padding == "zeros" else None

    def __call__(self, g: Tensor, x: Float[Tensor, "*batch c h w"]) -> Float[Tensor, "*out c h w"]:
        """The warped images, NaN where the transformation is not defined on the frame.

        Images that share many transformations are read in place: the last batch dimensions in which ``x`` has size
        one cost no copies of it.

        Raises:
            ShapeError: an element or an image has the wrong shape, or the batches do not broadcast.
        """
        batch = self._out_shape(g, x)
        g, x = promoted(g=self.group.check_elements(g), x=x)
        channels, height, width = x.shape[-3:]
        inverse = self.group.inverse(g)
        event = len(self.group.element_shape)
        # at NaN torch reads some pixel of the border, and outside memory in the backward pass; at numbers that
        # overflow when they are counted in pixels, too
        bound = torch.finfo(g.dtype).max / (16 * max(height, width))
        kept = self._keeps_frame(inverse) if self._local else inverse.detach().flatten(-event).abs().amax(-1) < bound
        inverse = torch.where(kept[..., *[None] * event], inverse, self.group.identity(dtype=g.dtype, device=g.device))
        source = self.point_action(inverse, pixel_centres(height, width, g))
        if not self.point_action._is_affine:  # else sums of entries of its matrix
            kept = kept & (source.detach().flatten(-2).abs().amax(-1) < bound)
            source = torch.where(kept[..., None, None], source, 0.0)
        padded = x.reshape(*(1,) * (len(batch) - (x.ndim - 3)), *x.shape)
        images = len(batch)
        while images and padded.shape[images - 1] == 1:
            images -= 1
        chains = math.prod(batch[images:])
        rows = padded.reshape(*padded.shape[:images], channels, height, width)
        rows = rows.expand(*batch[:images], -1, -1, -1).reshape(-1, channels, height, width)
        grid = rearrange(source.expand(*batch, -1, -1), "... (h w) xy -> ... h w xy", h=height)
        grid = grid.reshape(rows.shape[0], chains * height, width, 2)
        fill = self._background(rows)
        # what is zero outside the frame is the difference from the background
        rows = rows if fill is None else rows - fill
        warped = functional.grid_sample(rows, grid, mode=self.mode, padding_mode=self.padding, align_corners=False)
        warped = warped if fill is None else warped + fill
        warped = rearrange(warped, "b c (k h) w -> (b k) c h w", k=chains, h=height).reshape(
            *batch, channels, height, width
        )
        return torch.where(kept[..., None, None, None], warped, math.nan)

    def source_points(self, g: Tensor, height: int, width: int) -> Float[Tensor, "*batch h w 2"]:
        """Where the pixels of ``g.I`` are read, :math:`g^{-1} p`; NaN where g is not defined on the frame."""
        g = self.group.check_elements(g)
        inverse = self.group.inverse(g)
        source = self.point_action(inverse, pixel_centres(height, width, g))
        if self._local:
            source = torch.where(self._keeps_frame(inverse)[..., None, None], source, math.nan)
        return source.unflatten(-2, (height, width))

    def is_valid(self, g: Tensor, x: Float[Tensor, "*batch c h w"]) -> Bool[Tensor, "*out"]:
        """Whether g is defined and finite on the whole frame."""
        batch = self._out_shape(g, x)
        inverse = self.group.inverse(g)
        finite = self.point_action.is_valid(inverse, inverse.new_tensor(_CORNERS)).all(-1)
        return (self._keeps_frame(inverse) & finite).expand(batch)

    def log_abs_det_jacobian(self, g: Tensor, x: Float[Tensor, "*batch c h w"]) -> Float[Tensor, "*out"]:
        r"""Half the sum over pixels and channels of :math:`\log |\det D g(p)|`.

        On square-integrable functions :math:`I \mapsto I \circ g^{-1}` is the product of an isometry and of the
        multiplication by :math:`|\det D g|^{1/2}`; this is the determinant of the latter on the lattice of pixels.
        It is additive over products up to the frame. NaN where g is not defined on the frame.
        """
        batch = self._out_shape(g, x)
        g = self.group.check_elements(g)
        channels, height, width = x.shape[-3:]
        total = 0.5 * channels * self.point_action.log_abs_det_jacobian(g, pixel_centres(height, width, g))
        return torch.where(self._keeps_frame(self.group.inverse(g)), total, math.nan).expand(batch)

    def batch_shape(self, x: Any) -> torch.Size:
        """All dimensions but channels, height and width."""
        return x.shape[:-3]

    def check_data(self, x: Any, name: str = "x") -> None:
        """Raise a typed error unless ``x`` is a tensor ``[*batch, c, h, w]`` of floating-point numbers.

        Raises:
            ConfigurationError: another type.
            ShapeError: fewer than three dimensions, or an image without pixels.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point():
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise ConfigurationError(f"{name}: expected a floating-point tensor of images, got {got}")
        if x.ndim < 3 or 0 in x.shape[-3:]:
            raise ShapeError(f"{name}: expected images [*batch, c, h, w], got {list(x.shape)}")

    def _background(self, rows: Tensor) -> Tensor | None:
        """The value outside the frame of each channel; ``None`` for zero."""
        if self._fill is None:
            return None
        if len(self.fill) not in (1, rows.shape[1]):
            raise ShapeError(f"x: expected images of {len(self.fill)} channels, as the fill, got {rows.shape[1]}")
        return self._fill.like(rows).reshape(-1, 1, 1)

    def _keeps_frame(self, inverse: Tensor) -> Bool[Tensor, "*batch"]:
        """Whether the denominator of the inverse has one sign at the corners of the frame, and so on all of it."""
        d = self.point_action.denominator(inverse, inverse.new_tensor(_CORNERS))
        return (d > 0).all(-1) | (d < 0).all(-1)

    def _out_shape(self, g: Tensor, x: Tensor) -> torch.Size:
        self.group.check_elements(g)
        self.check_data(x)
        batch = self.group.batch_shape(g)
        try:
            return broadcast_shapes(batch, x.shape[:-3])
        except RuntimeError as error:
            raise ShapeError(
                f"expected batches of elements and images that broadcast, got {list(batch)} and {list(x.shape[:-3])}"
            ) from error


def _check_fill(fill: float | Sequence[float], padding: str) -> tuple[float, ...]:
    """One number, or one for each channel."""
    values = tuple(fill) if isinstance(fill, Sequence) else (fill,)
    if not values or not all(isinstance(value, int | float | np.number) and math.isfinite(value) for value in values):
        raise ConfigurationError(f"fill: expected a finite number, or one for each channel, got {fill!r}")
    if padding != "zeros" and any(value != 0 for value in values):
        raise ConfigurationError(f"fill: expected none with padding {padding!r}, got {fill!r}")
    return tuple(float(value) for value in values)


def pixel_centres(height: int, width: int, like: Tensor) -> Float[Tensor, "p 2"]:
    """The centres (x, y) of the pixels of the frame, row by row, in the dtype and on the device of ``like``."""
    x = (2 * torch.arange(width, dtype=like.dtype, device=like.device) + (1 - width)) / width
    y = (2 * torch.arange(height, dtype=like.dtype, device=like.device) + (1 - height)) / height
    return torch.stack([x.expand(height, width), y.unsqueeze(-1).expand(height, width)], -1).flatten(0, 1)
