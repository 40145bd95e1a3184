"""The action of transformations of the plane on images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._numerics import Constant, broadcast_shapes, is_abstract
from trivgeo.actions.frame import check_sides, frame_corners, frame_from_pixels, half_sides, pixel_centres
from trivgeo.actions.image_guard import ImageGuard
from trivgeo.actions.sampling import Interpolation, Padding, sample_images
from trivgeo.checks import check_tensor, promoted
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import Action, LieGroup
from trivgeo.groups.action import ContentGuard

__all__ = ["ImageWarp"]

_MODES = ("bilinear", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")
_CHANNELS, _MAX_CHANNELS = (3, 4), 16
"""Last sizes that are channels, not a width, of images that have more than so many of everything else."""
_MATRIX_TOLERANCE = 1e-4
"""By how much a matrix may differ from one of the group, in units of half the longer side of a frame."""


class ImageWarp(Action):
    r"""A transformation of the plane applied to images: :math:`(g \cdot I)(p) = I(g^{-1} p)`.

    Points p = (x right, y down), in one unit for both: the longer side of the frame is [-1, 1], the shorter one as
    much less as it has fewer pixels, with the centres of pixels at ((2 i + 1) - w) / max(h, w). So rotations turn what
    is on an image of any shape, and do not shear it; elements in pixels, as other libraries have them, are made by
    `from_pixels`. Data are ``[*batch, c, h, w]``, of any size and number of channels; images of several sizes are a
    list of ``[c, h, w]``, here and in an inverter. Outside its frame an image is zero, or ``fill``: the value of the
    background, which is not zero in normalised images; or what the padding says. Which pixels show the image is said
    by `coverage`.

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

    Second derivatives, ``jacrev``, and ``vmap`` of ``torch.func.grad``, need torch 2.12, whose ``grid_sample`` has
    them; older versions raise a ``RuntimeError``. Derivatives in forward mode are those of bilinear interpolation.

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

    Example:
        >>> warp = ImageWarp(SE(2))
        >>> right = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])  # by one pixel
        >>> warp(warp.from_pixels(right, (1, 4)), torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]))
        tensor([[[0., 1., 2., 3.]]])
    """

    def __init__(
        self,
        group: LieGroup,
        mode: Interpolation = "bilinear",
        padding: Padding = "zeros",
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
        is_zero = all(value == 0 for value in self.fill)
        self._fill = None if is_zero else Constant(torch.tensor(self.fill, dtype=torch.float64))
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
    def noise_range(self) -> tuple[float, float]:
        """Diffusion coefficients of a search without a schedule: from below a pixel to a third of half a frame."""
        return 0.01, 0.35

    @property
    def guard(self) -> ContentGuard | None:
        """Cost of elements that move an image out of its frame; ``None`` without ``guarded`` or with a padding."""
        return ImageGuard(self.point_action, self.fill) if self.guarded and self.padding == "zeros" else None

    def __call__(self, g: Tensor, x: Any) -> Any:
        """The warped images, NaN where the transformation is not defined on the frame.

        Images keep their dtype; the computation is in the wider one of both. Images that share many transformations
        are read in place: the last batch dimensions in which ``x`` has size one cost no copies of it.

        Args:
            g: elements ``[*batch, *element_shape]``; for a list one element, or as many as images.
            x: images ``[*batch, c, h, w]``, or a list of images ``[c, h, w]`` of several sizes.

        Returns:
            Images ``[*out, c, h, w]``, or a list of them.

        Raises:
            ShapeError: an element or an image has the wrong shape, or the batches do not broadcast.
        """
        # a tuple of types: torch.compile of 2.8 does not know their union
        return self._warp_each(g, x) if isinstance(x, (list, tuple)) else self._warp(g, x)

    def _warp_each(self, g: Tensor, images: Sequence[Tensor]) -> list[Float[Tensor, "..."]]:
        """Return the images of a list, each warped by its element."""
        batch = self.group.batch_shape(self.group.check_elements(g))
        for image in images:
            self.check_data(image)
            if image.ndim != 3:
                raise ShapeError(f"x: expected a list of images [c, h, w], got one of shape {list(image.shape)}")
        if batch not in ((), (len(images),)):
            raise ShapeError(f"g: expected one element, or one for each of {len(images)} images, got {list(batch)}")
        elements = g.expand(len(images), *self.group.element_shape) if batch == () else g
        return [self._warp(h, image) for h, image in zip(elements, images, strict=True)]

    def _warp(self, g: Tensor, x: Float[Tensor, "*batch c h w"]) -> Float[Tensor, "*out c h w"]:
        """Return the warped images."""
        batch, dtype = self._out_shape(g, x), x.dtype
        g, x = promoted(g=self.group.check_elements(g), x=x)
        channels, height, width = x.shape[-3:]
        inverse = self.group.inverse(g)
        event = len(self.group.element_shape)
        # at NaN torch reads some pixel of the border, and outside memory in the backward pass; at numbers that
        # overflow when they are counted in pixels, too
        bound = torch.finfo(g.dtype).max / (16 * max(height, width))
        kept = (
            self._keeps_frame(inverse, height, width)
            if self._local
            else inverse.detach().flatten(-event).abs().amax(-1) < bound
        )
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
        if height != width:  # each side is [-1, 1] to torch
            across, down = half_sides(height, width)
            grid = torch.stack([grid[..., 0] / across, grid[..., 1] / down], -1)
        # what is zero outside the frame is the difference from the background
        rows = rows if fill is None else rows - fill
        warped = sample_images(rows, grid, self.mode, self.padding)
        warped = warped if fill is None else warped + fill
        warped = rearrange(warped, "b c (k h) w -> (b k) c h w", k=chains, h=height).reshape(
            *batch, channels, height, width
        )
        return torch.where(kept[..., None, None, None], warped, math.nan).to(dtype)

    def source_points(self, g: Tensor, height: int, width: int) -> Float[Tensor, "*batch h w 2"]:
        """Return the points :math:`g^{-1} p` of the original image at which the pixels p of ``g.I`` are read.

        Args:
            g: elements ``[*batch, *element_shape]``.
            height: number of rows of the images.
            width: number of columns.

        Returns:
            Points (x, y) of the frame, ``[*batch, height, width, 2]``; NaN where g is undefined on part of the frame.
        """
        g = self.group.check_elements(g)
        inverse = self.group.inverse(g)
        source = self.point_action(inverse, pixel_centres(height, width, g))
        if self._local:
            source = torch.where(self._keeps_frame(inverse, height, width)[..., None, None], source, math.nan)
        return source.unflatten(-2, (height, width))

    def coverage(self, g: Tensor, size: tuple[int, int]) -> Bool[Tensor, "*batch h w"]:
        """Return True at the pixels of ``g.I`` that are interpolated from pixels of I alone.

        The other pixels hold padding, or a mixture with padding. A comparison with a moved image is meaningful only at
        covered pixels.

        Args:
            g: elements ``[*batch, *element_shape]``.
            size: height and width of the images.

        Returns:
            Truth values ``[*batch, height, width]``.

        Example:
            >>> warp = ImageWarp(Translation(2))
            >>> warp.coverage(torch.tensor([0.5, 0.0]), (1, 4))  # by one pixel
            tensor([[False,  True,  True,  True]])
        """
        height, width = check_sides(size)
        source = self.source_points(g, height, width).detach()
        pixels = 0.5 * (max(height, width) * source + source.new_tensor([width - 1, height - 1]))
        # pixels that the kernel reads beyond both neighbours, less rounding
        beyond = (1 if self.mode == "bicubic" else 0) - 16 * torch.finfo(source.dtype).eps * max(height, width)
        inside = (pixels >= beyond) & (pixels <= source.new_tensor([width - 1, height - 1]) - beyond)
        return inside.all(-1)

    def to_pixels(self, g: Tensor, size: tuple[int, int]) -> Float[Tensor, "*batch 3 3"]:
        """The homography in pixels: from where something is in I to where it is in ``g.I``.

        Matrices on (x, y, 1), with the centres of pixels at whole numbers, as of ``warpPerspective`` of OpenCV, of
        kornia, and of ``ProjectiveTransform`` of scikit-image. The last entry is one, where it can be.

        Args:
            g: elements ``[*batch, *element_shape]``.
            size: height and width in pixels.

        Raises:
            ConfigurationError: the elements of the group are no homographies, or there are no pixels.
        """
        to_frame = frame_from_pixels(*check_sides(size), g := self.group.check_elements(g))
        matrix = torch.linalg.inv(to_frame) @ self.point_action.homogeneous(g).double() @ to_frame
        last = matrix[..., -1:, -1:]
        return (matrix / torch.where(last == 0, 1.0, last)).to(g.dtype)

    def from_pixels(self, matrix: Float[Tensor, "*batch 3 3"], size: tuple[int, int]) -> Tensor:
        """The element of a homography in pixels, the inverse of `to_pixels`.

        Args:
            matrix: any multiple of the matrix of a homography.
            size: height and width in pixels.

        Raises:
            ConfigurationError: see `to_pixels`.
            ShapeError: the matrices are not 3 x 3.
            DomainError: a matrix is not in the group, such as a shear in ``SE(2)``, or a rotation about a corner in
                ``SO(2)``, whose elements turn about the middle of the frame.
        """
        matrix = check_tensor("matrix", matrix)
        if matrix.ndim < 2 or matrix.shape[-2:] != (3, 3):
            raise ShapeError(f"matrix: expected [*batch, 3, 3], got {list(matrix.shape)}")
        to_frame = frame_from_pixels(*check_sides(size), matrix)
        inside = to_frame @ matrix.double() @ torch.linalg.inv(to_frame)
        last = inside[..., -1:, -1:]
        inside = inside / torch.where(last == 0, 1.0, last)
        g = self.point_action.from_homogeneous(inside)
        if not is_abstract(g):
            found = self.point_action.homogeneous(g)
            scale = (found * inside).sum((-2, -1), keepdim=True) / found.square().sum((-2, -1), keepdim=True)
            off = (scale * found - inside).abs().amax((-2, -1)) / inside.abs().amax((-2, -1)).clamp(min=1.0)
            if wrong := int((~(off <= _MATRIX_TOLERANCE)).sum()):
                raise DomainError(
                    f"matrix: expected matrices of {self.group!r}, got {wrong} that are not in the group: {matrix}"
                )
        return g.to(matrix.dtype)

    def is_valid(self, g: Tensor, x: Float[Tensor, "*batch c h w"]) -> Bool[Tensor, "*out"]:
        """Return True where g is defined and finite on the whole frame.

        Args:
            g: elements ``[*batch, *element_shape]``.
            x: images ``[*batch, c, h, w]``; batches broadcast.

        Returns:
            Truth values ``[*batch]``, one for each image.
        """
        batch = self._out_shape(g, x)
        inverse = self.group.inverse(g)
        height, width = x.shape[-2:]
        corners = inverse.new_tensor(frame_corners(height, width))
        finite = self.point_action.is_valid(inverse, corners).all(-1)
        return (self._keeps_frame(inverse, height, width) & finite).expand(batch)

    def log_abs_det_jacobian(self, g: Tensor, x: Float[Tensor, "*batch c h w"]) -> Float[Tensor, "*out"]:
        r"""Return half the sum over pixels and channels of :math:`\log |\det D g(p)|`, one number for each image,
        ``[*batch]``.

        On square-integrable functions :math:`I \mapsto I \circ g^{-1}` is an isometry followed by a multiplication by
        :math:`|\det D g|^{1/2}`. The result is the logarithm of the determinant of that multiplication on the lattice
        of pixels. The result is additive over products up to the frame, and NaN where g is not defined on the frame.

        Args:
            g: elements ``[*batch, *element_shape]``.
            x: images ``[*batch, c, h, w]``, of which only the shape is read.
        """
        batch = self._out_shape(g, x)
        g = self.group.check_elements(g)
        channels, height, width = x.shape[-3:]
        total = 0.5 * channels * self.point_action.log_abs_det_jacobian(g, pixel_centres(height, width, g))
        kept = self._keeps_frame(self.group.inverse(g), height, width)
        return torch.where(kept, total, math.nan).expand(batch)

    def batch_shape(self, x: Any) -> torch.Size:
        """Return the batch shape of images ``x``, ``[*batch, c, h, w]``, without channels, height and width."""
        if not isinstance(x, Tensor):
            self.check_data(x)
        return x.shape[:-3]

    def check_data(self, x: Any, name: str = "x") -> None:
        """Raise a typed error unless ``x`` is a floating-point tensor ``[*batch, c, h, w]``; messages call it ``name``.

        Raises:
            ConfigurationError: ``x`` has another type.
            ShapeError: ``x`` has fewer than three dimensions, images without pixels, or channels last: 3 or 4 columns
                of more than 16 rows and channels.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point():
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            hint = f"{got}; see image / 255.0" if got == torch.uint8 else got
            raise ConfigurationError(f"{name}: expected a floating-point tensor of images, got {hint}")
        if x.ndim < 3 or 0 in x.shape[-3:]:
            raise ShapeError(f"{name}: expected images [*batch, c, h, w], got {list(x.shape)}")
        if x.shape[-1] in _CHANNELS and min(x.shape[-3:-1]) > _MAX_CHANNELS:
            raise ShapeError(
                f"{name}: expected [*batch, c, h, w], channels first, got {list(x.shape)}; see Tensor.movedim"
            )

    def _background(self, rows: Tensor) -> Tensor | None:
        """The value outside the frame of each channel; ``None`` for zero."""
        if self._fill is None:
            return None
        if len(self.fill) not in (1, rows.shape[1]):
            raise ShapeError(f"x: expected images of {len(self.fill)} channels, as the fill, got {rows.shape[1]}")
        return self._fill.like(rows).reshape(-1, 1, 1)

    def _keeps_frame(self, inverse: Tensor, height: int, width: int) -> Bool[Tensor, "*batch"]:
        """Whether the denominator of the inverse has one sign at the corners of the frame, and so on all of it."""
        d = self.point_action.denominator(inverse, inverse.new_tensor(frame_corners(height, width)))
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
