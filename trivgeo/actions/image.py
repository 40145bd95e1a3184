"""The action of transformations of the plane on images, and of space on volumes: the warp, the coordinates of its
frame, interpolation with derivatives, and the cost of what leaves the frame.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from trivgeo._autocast import matmul
from trivgeo._numerics import Constant, abs_det, broadcast_shapes, is_abstract
from trivgeo._torch import in_forward_mode
from trivgeo.actions.volume import Volume, check_volume
from trivgeo.checks import check_count, check_tensor, check_type, checked, promoted
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import Action, LieGroup, PointAction
from trivgeo.groups.action import ContentGuard

__all__ = ["ImageContent", "ImageGuard"]

Interpolation = Literal["bilinear", "bicubic"]
Padding = Literal["zeros", "border", "reflection"]

_CHANNEL_COUNTS = (3, 4)  # last sizes that are taken for channels if both sizes before are above `_MAX_CHANNELS`
_MAX_CHANNELS = 16
_MATRIX_TOLERANCE = 1e-4  # distance of a matrix from the group, in units of half the longer side of a frame
_MARGIN_IN_PIXELS = 2  # width of the border of zeros around an image that is sampled with its slopes
_MAX_CELLS = 16  # cells of the content along a side of the frame
_EDGE_WIDTH = 0.1  # distance beyond the frame, in units of half its longer side, at which content costs log 2
_MIN_SIDE_IN_PIXELS = 2.0  # an image of a smaller area, or a volume of a smaller volume, has shrunk to nothing
_LAYOUTS = {2: "c, h, w", 3: "c, d, h, w"}  # dimensions of an image of the plane, and of space
_SIZES = {2: "height and width", 3: "depth, height and width"}


@checked
class ImageWarp(Action):
    r"""A transformation of the plane applied to images, or of space to volumes: :math:`(g \cdot I)(p) = I(g^{-1} p)`.

    Points are p = (x right, y down), in the same unit: the longer side of the frame is [-1, 1], the shorter one is
    smaller in proportion, and centres of pixels are at x = ((2 i + 1) - w) / max(h, w). So rotations do not shear
    images of any shape; `from_pixels` makes elements of the matrices in pixels that other libraries have. Data are
    ``[*batch, c, h, w]``, of any size and number of channels; images of several sizes are a list of ``[c, h, w]``, here
    and in an inverter. Outside its frame an image is zero, or ``fill``, the value of the background (which is not zero
    in normalised images), or given by the padding. `coverage` tells which pixels show the image.

    A group of space acts in the same way on volumes ``[*batch, c, d, h, w]``, whose voxels are cubes: points are
    p = (x, y, z) along w, h, d, and the longest side is [-1, 1]. A volume of a file, with its affine, is a `Volume`.
    Elements then act on its millimetres: they move the affine, and nothing is interpolated.

    Between pixels the image is interpolated, so ``(g h).I`` and ``g.(h.I)`` differ by the error of resampling. For a
    smooth image the error is second order in the size of a pixel with bilinear interpolation, and first order with
    torch's bicubic kernel (a = -3/4; Keys 1981 shows that only a = -1/2 is better), which looks sharper. A homography
    is defined on an image if its denominator has one sign on the frame; otherwise the whole image is NaN, as it is for
    elements that hold NaN, or whose points overflow.

    Contrast that a warp moves out of the frame costs in an inversion, see `ImageGuard`; without this cost an image that
    shows nothing minimises many energies. A restored image that shows less than half of the contrast of the given one
    is not usable, see `trivgeo.inversion.InversionResult.has_usable`. Both are right where clean images are moved,
    by g, within a frame on a background of zeros or ``fill``; where given images show more than clean ones, such as
    clutter around them, take ``guarded=False``.

    Second derivatives, ``jacrev``, and ``vmap`` of ``torch.func.grad``, need torch 2.12, whose ``grid_sample`` has
    them; older versions raise a ``RuntimeError``. Derivatives in forward mode are those of bilinear interpolation.

    Args:
        group: a group with an action on points of the plane or of space: ``Affine(2)``, ``Projective(2)``, ``SE(2)``,
            ``SO(2)``, ``SE(3)``, ``Similarity(3)``.
        mode: interpolation, ``"bilinear"`` (linear along each axis), or on the plane ``"bicubic"``.
        padding: ``"zeros"`` for ``fill`` outside the frame, ``"border"`` for the nearest pixel, ``"reflection"`` for
            the image mirrored at the edge of its frame.
        fill: the value outside the frame, one for all channels or one each; with ``padding="zeros"``.
        guarded: whether contrast that leaves the frame costs in an inversion; only with ``padding="zeros"``.

    Raises:
        ConfigurationError: the group acts neither on the plane nor on space, an unknown mode or padding, a bicubic
            one in space, or a fill that is not finite or goes with another padding.
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
        check_type("group", group, LieGroup)  # type: ignore[type-abstract]
        for name, value, known in (("mode", mode, get_args(Interpolation)), ("padding", padding, get_args(Padding))):
            if value not in known:
                raise ConfigurationError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
        point_action = group.action()
        dims = next((n for n in _LAYOUTS if n in point_action.point_dims), None)
        if dims is None:
            raise ConfigurationError(
                f"group: expected one that acts on points (x, y) or (x, y, z), got {group!r}, which acts on points of "
                f"{' or '.join(map(str, point_action.point_dims))} coordinates"
            )
        if dims == 3 and mode != "bilinear":
            raise ConfigurationError(f"mode: expected bilinear for volumes, got {mode!r}")
        self.dims = dims
        self.group = group
        self.point_action = point_action
        self.mode = mode
        self.padding = padding
        self.fill = _check_fill(fill, padding)
        self.guarded = guarded
        is_zero = all(value == 0 for value in self.fill)
        self._fill = None if is_zero else Constant(torch.tensor(self.fill, dtype=torch.float64))
        identity = group.identity(1)
        self._local = point_action._denominator(identity, identity.new_zeros(1, dims)) is not None

    def __repr__(self) -> str:
        outside = "" if self.padding == "zeros" else f", padding={self.padding!r}"
        if self._fill is not None:
            outside = f", fill={self.fill[0] if len(self.fill) == 1 else list(self.fill)}"
        outside += "" if self.guarded else ", guarded=False"
        return f"ImageWarp({self.group!r}, {self.mode!r}{outside})"

    @property
    def noise_range(self) -> tuple[float, float]:
        """Range of diffusion coefficients of a search without a schedule: below a pixel to a third of half a frame."""
        return 0.01, 0.35

    @property
    def guard(self) -> ContentGuard | None:
        """Cost of elements that move an image out of its frame; ``None`` without ``guarded`` or with a padding."""
        return ImageGuard(self.point_action, self.fill, self.dims) if self.guarded and self.padding == "zeros" else None

    def __call__(self, g: Tensor, x: Any) -> Any:
        """The warped images, NaN where the transformation is not defined on the frame.

        Images keep their dtype; the computation is in the wider dtype of elements and images. An image that is moved by
        many elements is not copied for them: the last batch dimensions of ``x`` may have size one.

        Returns:
            Images ``[*out, c, h, w]`` or volumes ``[*out, c, d, h, w]``, or a list of them. A `Volume` keeps its data
            and has a moved affine.

        Raises:
            ConfigurationError: a `Volume`, and the group moves points by no matrices.
            ShapeError: an element or an image has the wrong shape, or the batches do not broadcast.
        """
        if isinstance(x, Volume):
            self._out_shape(g, x)
            affine = self.point_action.homogeneous(g) @ x.affine
            return Volume(x.data.expand(*affine.shape[:-2], *x.data.shape[-4:]), affine)
        # a tuple of types, not their union: see `trivgeo._torch`
        return self._warp_each(g, x) if isinstance(x, (list, tuple)) else self._warp(g, x)

    def _warp_each(self, g: Tensor, images: Sequence[Tensor]) -> list[Float[Tensor, "..."]]:
        """Return the images of a list, each warped by its element."""
        batch = self.group.batch_shape(self.group.check_elements(g))
        for image in images:
            self.check_data(image)
            if image.ndim != 1 + self.dims:
                layout = _LAYOUTS[self.dims]
                raise ShapeError(f"x: expected a list of images [{layout}], got one of shape {list(image.shape)}")
        if batch not in ((), (len(images),)):
            raise ShapeError(f"g: expected one element, or one for each of {len(images)} images, got {list(batch)}")
        elements = g.expand(len(images), *self.group.element_shape) if batch == () else g
        return [self._warp(h, image) for h, image in zip(elements, images, strict=True)]

    def _warp(self, g: Tensor, x: Float[Tensor, "*batch"]) -> Float[Tensor, "*out"]:
        batch, dtype = self._out_shape(g, x), x.dtype
        g, x = promoted(g=self.group.check_elements(g), x=x)
        channels, *size = x.shape[-1 - self.dims :]
        inverse = self.group.inverse(g)
        event = len(self.group.element_shape)
        # at NaN, and at numbers that overflow in pixels, torch reads some pixel of the border, and in the backward pass
        # memory outside of the image
        bound = torch.finfo(g.dtype).max / (16 * max(size))
        kept = (
            self._keeps_frame(inverse, size) if self._local else inverse.detach().flatten(-event).abs().amax(-1) < bound
        )
        inverse = torch.where(kept[..., *[None] * event], inverse, self.group.identity(dtype=g.dtype, device=g.device))
        source = self.point_action(inverse, pixel_centres(size, g))
        if not self.point_action._is_affine:  # affine images are bounded by the entries of the matrix
            kept = kept & (source.detach().flatten(-2).abs().amax(-1) < bound)
            source = torch.where(kept[..., None, None], source, 0.0)
        padded = x.reshape(*(1,) * (len(batch) - (x.ndim - 1 - self.dims)), *x.shape)
        images = len(batch)
        while images and padded.shape[images - 1] == 1:
            images -= 1
        chains = math.prod(batch[images:])
        rows = padded.reshape(*padded.shape[:images], channels, *size)
        rows = rows.expand(*batch[:images], *(-1,) * (1 + self.dims)).reshape(-1, channels, *size)
        # images of one datum lie below each other
        grid = source.expand(*batch, -1, -1).reshape(rows.shape[0], chains * size[0], *size[1:], self.dims)
        fill = self._background(rows)
        if len(set(size)) > 1:  # each side is [-1, 1] to torch
            grid = torch.stack([part / half for part, half in zip(grid.unbind(-1), half_sides(*size), strict=True)], -1)
        # the difference from the background is zero outside the frame
        rows = rows if fill is None else rows - fill
        warped = sample_images(rows, grid, self.mode, self.padding)
        warped = warped if fill is None else warped + fill
        warped = warped.unflatten(2, (chains, size[0])).transpose(1, 2).reshape(*batch, channels, *size)
        return torch.where(kept[..., *[None] * (1 + self.dims)], warped, math.nan).to(dtype)

    def source_points(self, g: Tensor, *size: int) -> Float[Tensor, "*out"]:
        """Return the points :math:`g^{-1} p` of the original image at which the pixels p of ``g.I`` are read.

        Args:
            g: elements ``[*batch, *element_shape]``.
            size: height and width of the images; depth, height and width of volumes.

        Returns:
            Points (x, y) of the frame, ``[*batch, height, width, 2]``, or (x, y, z), ``[*batch, depth, height, width,
            3]``; NaN where g is undefined on part of the frame.
        """
        size = check_sides(size, self.dims)
        g = self.group.check_elements(g)
        inverse = self.group.inverse(g)
        source = self.point_action(inverse, pixel_centres(size, g))
        if self._local:
            source = torch.where(self._keeps_frame(inverse, size)[..., None, None], source, math.nan)
        return source.unflatten(-2, size)

    def coverage(self, g: Tensor, size: Sequence[int]) -> Bool[Tensor, "*out"]:
        """Return True at the pixels of ``g.I`` that are interpolated from pixels of I alone.

        The other pixels hold padding, or a mixture with padding. A comparison with a moved image is meaningful only at
        covered pixels.

        Args:
            g: elements ``[*batch, *element_shape]``.
            size: see `source_points`.

        Returns:
            Truth values ``[*batch, *size]``.

        Example:
            >>> warp = ImageWarp(Translation(2))
            >>> warp.coverage(torch.tensor([0.5, 0.0]), (1, 4))  # by one pixel
            tensor([[False,  True,  True,  True]])
        """
        size = check_sides(size, self.dims)
        source = self.source_points(g, *size).detach()
        last = source.new_tensor([side - 1 for side in reversed(size)])
        pixels = 0.5 * (max(size) * source + last)
        # pixels that the kernel reads beyond the two neighbours, less rounding
        beyond = (1 if self.mode == "bicubic" else 0) - 16 * torch.finfo(source.dtype).eps * max(size)
        return ((pixels >= beyond) & (pixels <= last - beyond)).all(-1)

    def to_pixels(self, g: Tensor, size: Sequence[int]) -> Float[Tensor, "*batch k k"]:
        """The homography in pixels that maps positions in I to positions in ``g.I``.

        Matrices act on (x, y, 1), with the centres of pixels at integers, as in ``warpPerspective`` of OpenCV and
        kornia, and ``ProjectiveTransform`` of scikit-image. Those of volumes act on (x, y, z, 1), along w, h, d. The
        last entry is one unless it is zero.

        Args:
            g: elements ``[*batch, *element_shape]``.
            size: height and width in pixels; depth, height and width of volumes.

        Raises:
            ConfigurationError: the elements of the group are no homographies, or there are no pixels.
        """
        to_frame = frame_from_pixels(check_sides(size, self.dims), g := self.group.check_elements(g))
        matrix = torch.linalg.inv(to_frame) @ self.point_action.homogeneous(g).double() @ to_frame
        last = matrix[..., -1:, -1:]
        return (matrix / torch.where(last == 0, 1.0, last)).to(g.dtype)

    def from_pixels(self, matrix: Float[Tensor, "*batch k k"], size: Sequence[int]) -> Tensor:
        """The element of a homography in pixels, the inverse of `to_pixels`.

        Args:
            matrix: any multiple of the matrix of a homography.
            size: see `to_pixels`.

        Raises:
            ConfigurationError: see `to_pixels`.
            ShapeError: the matrices are not 3 x 3, or 4 x 4 for volumes.
            DomainError: a matrix is not in the group, such as a shear in ``SE(2)``, or a rotation about a corner in
                ``SO(2)``, whose elements turn about the middle of the frame.
        """
        matrix = check_tensor("matrix", matrix)
        k = self.dims + 1
        if matrix.ndim < 2 or matrix.shape[-2:] != (k, k):
            raise ShapeError(f"matrix: expected [*batch, {k}, {k}], got {list(matrix.shape)}")
        to_frame = frame_from_pixels(check_sides(size, self.dims), matrix)
        inside = to_frame @ matrix.double() @ torch.linalg.inv(to_frame)
        last = inside[..., -1:, -1:]
        inside = inside / torch.where(last == 0, 1.0, last)
        g = self.point_action.from_homogeneous(inside)
        if not is_abstract(g):
            found = self.point_action.homogeneous(g)
            scale = (found * inside).sum((-2, -1), keepdim=True) / found.square().sum((-2, -1), keepdim=True)
            off = (scale * found - inside).abs().amax((-2, -1)) / inside.abs().amax((-2, -1)).clamp(min=1.0)
            wrong = ~(off <= _MATRIX_TOLERANCE)
            if bool(wrong.any()):
                first = [[x.item() for x in row] for row in matrix[wrong][0]]  # tolist is not for tensors of torch.func
                raise DomainError(
                    f"matrix: expected matrices of {self.group!r}, got {int(wrong.sum())} that are not in the group, "
                    f"the first of them {first}"
                )
        return g.to(matrix.dtype)

    def is_valid(self, g: Tensor, x: Any) -> Bool[Tensor, "*out"]:
        """Return True where g is defined and finite on the whole frame."""
        batch = self._out_shape(g, x)
        if isinstance(x, Volume):
            return torch.isfinite(self.point_action.homogeneous(g)).all(-1).all(-1).expand(batch)
        inverse = self.group.inverse(g)
        size = x.shape[-self.dims :]
        corners = inverse.new_tensor(frame_corners(*size))
        finite = self.point_action.is_valid(inverse, corners).all(-1)
        return (self._keeps_frame(inverse, size) & finite).expand(batch)

    def log_abs_det_jacobian(self, g: Tensor, x: Any) -> Float[Tensor, "*out"]:
        r"""Return half the sum over pixels and channels of :math:`\log |\det D g(p)|`, one number for each image,
        ``[*batch]``.

        On square-integrable functions :math:`I \mapsto I \circ g^{-1}` is an isometry followed by a multiplication by
        :math:`|\det D g|^{1/2}`. The result is the logarithm of the determinant of that multiplication on the lattice
        of pixels. The result is additive over products up to the frame, and NaN where g is not defined on the frame.
        """
        batch = self._out_shape(g, x)
        g = self.group.check_elements(g)
        if isinstance(x, Volume):
            total = self.point_action.log_abs_det_jacobian(g, x.data.new_zeros(1, 3))
            return 0.5 * math.prod(x.data.shape[-4:]) * total.expand(batch)
        channels, *size = x.shape[-1 - self.dims :]
        total = 0.5 * channels * self.point_action.log_abs_det_jacobian(g, pixel_centres(size, g))
        kept = self._keeps_frame(self.group.inverse(g), size)
        return torch.where(kept, total, math.nan).expand(batch)

    def batch_shape(self, x: Any) -> torch.Size:
        if isinstance(x, Volume):
            return x.data.shape[:-4]
        if not isinstance(x, Tensor):
            self.check_data(x)
        return x.shape[: -1 - self.dims]

    def check_data(self, x: Any, name: str = "x") -> None:
        if isinstance(x, Volume):
            check_volume(name, x)
            if self.dims != 3:
                raise ConfigurationError(
                    f"{name}: expected images, since {self.group!r} acts on the plane, got a Volume"
                )
            return
        if not isinstance(x, Tensor) or not x.is_floating_point():
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            hint = f"{got}; see image / 255.0" if got == torch.uint8 else got
            raise ConfigurationError(f"{name}: expected a floating-point tensor of images, got {hint}")
        layout = f"[*batch, {_LAYOUTS[self.dims]}]"
        if x.ndim < 1 + self.dims or 0 in x.shape[-1 - self.dims :]:
            hint = "; see Tensor.unsqueeze for one channel" if x.ndim == self.dims else ""
            raise ShapeError(f"{name}: expected images {layout}, got {list(x.shape)}{hint}")
        if x.shape[-1] in _CHANNEL_COUNTS and min(x.shape[-1 - self.dims : -1]) > _MAX_CHANNELS:
            raise ShapeError(f"{name}: expected {layout}, channels first, got {list(x.shape)}; see Tensor.movedim")

    def _background(self, rows: Tensor) -> Tensor | None:
        """The value of each channel outside the frame; ``None`` for zero."""
        if self._fill is None:
            return None
        if len(self.fill) not in (1, rows.shape[1]):
            raise ShapeError(f"x: expected images of {len(self.fill)} channels, as the fill, got {rows.shape[1]}")
        return self._fill.matching(rows).reshape(-1, *(1,) * self.dims)

    def _keeps_frame(self, inverse: Tensor, size: Sequence[int]) -> Bool[Tensor, "*batch"]:
        """Whether the denominator of the inverse has one sign at the corners of the frame, and so on all of it."""
        d = self.point_action.denominator(inverse, inverse.new_tensor(frame_corners(*size)))
        return (d > 0).all(-1) | (d < 0).all(-1)

    def _out_shape(self, g: Tensor, x: Any) -> torch.Size:
        self.group.check_elements(g)
        self.check_data(x)
        batch, own = self.group.batch_shape(g), self.batch_shape(x)
        try:
            return broadcast_shapes(batch, own)
        except RuntimeError as error:
            raise ShapeError(
                f"expected batches of elements and images that broadcast, got {list(batch)} and {list(own)}"
            ) from error


def _check_fill(fill: float | Sequence[float], padding: str) -> tuple[float, ...]:
    """The fill as a tuple of one number, or one for each channel."""
    values = tuple(fill) if isinstance(fill, Sequence) else (fill,)
    if not values or not all(isinstance(value, int | float | np.number) and math.isfinite(value) for value in values):
        raise ConfigurationError(f"fill: expected a finite number, or one for each channel, got {fill!r}")
    if padding != "zeros" and any(value != 0 for value in values):
        raise ConfigurationError(f"fill: expected none with padding {padding!r}, got {fill!r}")
    return tuple(float(value) for value in values)


def half_sides(*size: int) -> tuple[float, ...]:
    """Return half the sides along x, y, and z of a frame of ``size`` pixels; the longest half side is 1.

    Args:
        size: height and width, or depth, height and width.
    """
    longest = max(size)
    return tuple(side / longest for side in reversed(size))


def pixel_centres(size: Sequence[int], reference: Tensor) -> Float[Tensor, "p n"]:
    """Return the centres (x, y) or (x, y, z) of the pixels of a frame, row by row, ``[pixels, n]``.

    Args:
        size: height and width, or depth, height and width, in pixels.
        reference: gives dtype and device.
    """
    axes = [
        (2 * torch.arange(side, dtype=reference.dtype, device=reference.device) + (1 - side)) / max(size)
        for side in size
    ]
    parts = [part.reshape(-1, *(1,) * (len(size) - 1 - axis)).expand(*size) for axis, part in enumerate(axes)]
    return torch.stack(parts[::-1], -1).flatten(0, -2)


def frame_corners(*size: int) -> tuple[tuple[float, ...], ...]:
    """Return the corners (x, y) or (x, y, z) of the frame of ``size`` pixels, at the outer edges of its pixels."""
    return tuple(itertools.product(*((-half, half) for half in half_sides(*size))))


def frame_from_pixels(size: Sequence[int], reference: Tensor, longest: int | None = None) -> Float[Tensor, "k k"]:
    """Return the matrix that maps pixel coordinates (x, y, 1) or (x, y, z, 1) to coordinates of the frame.

    Args:
        size: height and width, or depth, height and width; pixel centres lie at whole numbers.
        reference: a tensor on the device of the result, which has dtype float64.
        longest: pixels whose half is the unit of coordinates; default those along the longest side.
    """
    longest, n = max(size) if longest is None else longest, len(size)
    rows = [
        [2 / longest if i == j else 0.0 for j in range(n)] + [(1 - side) / longest]
        for i, side in enumerate(reversed(size))
    ]
    return torch.tensor([*rows, [0.0] * n + [1.0]], dtype=torch.float64, device=reference.device)


def check_sides(size: Sequence[int], dims: int = 2) -> tuple[int, ...]:
    """Return ``size`` as height and width, or depth, height and width.

    Raises:
        ConfigurationError: ``size`` is not ``dims`` integers of at least one.
    """
    if not isinstance(size, Sequence) or isinstance(size, str | bytes) or len(size) != dims:
        raise ConfigurationError(f"size: expected {_SIZES[dims]}, got {size!r}")
    names = ("depth", "height", "width")[-dims:]
    return tuple(check_count(name, side) for name, side in zip(names, size, strict=True))


def sample_images(
    x: Float[Tensor, "b c *size"], grid: Float[Tensor, "b *points n"], mode: Interpolation, padding: Padding
) -> Float[Tensor, "b c *points"]:
    """Interpolate images at points, as torch's ``grid_sample``, which has no derivative in forward mode.

    Where such a derivative is taken, values come from the pixels around each point.

    Args:
        x: images ``[b, c, h, w]``, each on the square [-1, 1]^2, or volumes ``[b, c, d, h, w]``, each on the cube.
        grid: points (x, y) of that square, ``[b, p, q, 2]``, or (x, y, z), ``[b, p, q, r, 3]``.
        mode: kernel of the interpolation.
        padding: values outside the image: ``zeros``, ``border`` or ``reflection``.

    Returns:
        Values ``[b, c, p, q]`` or ``[b, c, p, q, r]``.

    Raises:
        ConfigurationError: the derivative is taken in forward mode of the bicubic kernel.
    """
    if torch.compiler.is_compiling() or not in_forward_mode():
        return functional.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=False)
    if mode != "bilinear":
        raise ConfigurationError(f"mode: expected bilinear, which has derivatives in forward mode, got {mode}")
    return _bilinear(x, grid, padding)


def sample_with_slopes(
    x: Float[Tensor, "b c *size"], position: Float[Tensor, "b p n"]
) -> tuple[Float[Tensor, "b c p"], ...]:
    """Interpolate images linearly between pixels, zero outside, and return the derivatives along the axes as well.

    Args:
        x: images ``[b, c, h, w]`` or volumes ``[b, c, d, h, w]``.
        position: points (x, y) or (x, y, z) in pixels, whose centres are at integers.

    Returns:
        Values and their derivatives by x, by y, and by z, ``[b, c, p]``, per pixel.
    """
    size, margin = x.shape[2:], _MARGIN_IN_PIXELS
    flat = functional.pad(x, (margin,) * (2 * len(size))).flatten(2)
    # beyond two pixels of zeros nothing changes
    along = [part.clamp(-margin, side) for part, side in zip(position.unbind(-1), reversed(size), strict=True)]
    low = [part.floor() for part in along]
    strides = [math.prod(side + 2 * margin for side in size[len(size) - axis :]) for axis in range(len(size))]
    corner: Tensor | int = 0
    for part, stride in zip(reversed(low), reversed(strides), strict=True):
        corner = corner + (part.long() + margin) * stride
    assert isinstance(corner, Tensor)
    corner = corner.unsqueeze(1).expand(-1, flat.shape[1], -1)
    shares = [(part - start).unsqueeze(1) for part, start in zip(along, low, strict=True)]

    def between(index: Tensor, axes: int) -> tuple[Tensor, ...]:
        """Values and slopes between the pixels on both sides along the first axes."""
        if axes == 0:
            return (flat.gather(2, index),)
        start, end = between(index, axes - 1), between(index + strides[axes - 1], axes - 1)
        share = shares[axes - 1]
        return (*(a + share * (b - a) for a, b in zip(start, end, strict=True)), end[0] - start[0])

    return between(corner, len(size))


def _bilinear(x: Tensor, grid: Tensor, padding: Padding) -> Tensor:
    """Linear interpolation of images at points of the cube, as the sum over the pixels around of value times weight."""
    size, flat = x.shape[2:], x.flatten(2)
    places = [_position(part, side, padding) for part, side in zip(grid.unbind(-1), reversed(size), strict=True)]
    total: Tensor | float = 0.0
    for taps in itertools.product(*(_taps(part, side) for part, side in zip(reversed(places), size, strict=True))):
        index, weight = taps[0]
        for side, (pixel, share) in zip(size[1:], taps[1:], strict=True):
            index, weight = index * side + pixel, weight * share
        index = index.flatten(1).unsqueeze(1).expand(-1, flat.shape[1], -1)
        value = flat.gather(2, index).unflatten(2, grid.shape[1:-1])
        total = total + value * weight.unsqueeze(1)
    assert isinstance(total, Tensor)
    return total


def _position(coordinate: Tensor, size: int, padding: Padding) -> Tensor:
    """A coordinate in pixels, whose centres are at integers, moved inside by a padding other than zeros."""
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


class ImageContent(NamedTuple):
    """Distribution of the contrast of images over the frame.

    Attributes:
        points: centre of the contrast of each cell of the frame, ``[*batch, cells, n]``, n = 2, or 3 for volumes.
        shares: share of the contrast that lies in each cell, ``[*batch, cells]``; zero for an image without contrast.
        box: corners of a box of two standard deviations of the contrast each way, ``[*batch, 2^n, n]``.
        pixels: number of pixels that are as large as a square, or a cube, of size one, ``[*batch]``.
        half_sides: half the sides of the frame along x, y, and z, ``[*batch, n]``.
    """

    points: Float[Tensor, "*batch cells n"]
    shares: Float[Tensor, "*batch cells"]
    box: Float[Tensor, "*batch corners n"]
    pixels: Float[Tensor, " *batch"]
    half_sides: Float[Tensor, "*batch n"]


class ImageGuard(ContentGuard):
    r"""The cost of the contrast of an image that a warp moves out of its frame, or shrinks to nothing.

    .. math:: \sum_c m_c \sum_{i=1}^{n} \log(1 + \max(|(g.q_c)_i| - s_i, 0)^2 / 0.1^2) + 2 \max(\log(2^n / a(g)), 0)

    with m_c the share of the contrast (the squared difference from the background) in a cell, q_c the centre of the
    contrast in it, s_i half the sides of the frame, one for the longest, and a(g) the area (for n = 3 the volume) in
    pixels of the box of the content. The cost is zero while the content stays in the frame on more than four pixels
    (eight voxels), since q_c lies in the convex hull of the content, and for an image without contrast.

    Args:
        point_action: action of the group on points of the plane or of space.
        fill: the background, one number for all channels or one for each.
        dims: n, the number of coordinates of the points.
    """

    def __init__(self, point_action: PointAction, fill: tuple[float, ...], dims: int = 2) -> None:
        self.point_action = point_action
        self.fill = fill
        self.dims = dims
        self._min_area = _MIN_SIDE_IN_PIXELS**dims
        self._signs = Constant(torch.tensor(list(itertools.product((1.0, -1.0), repeat=dims)), dtype=torch.float64))

    def content(self, x: Any) -> ImageContent:
        """Return the distribution of the contrast of images ``x``, ``[*batch, c, h, w]`` or ``[*batch, c, d, h, w]``;
        one record serves all elements.
        """
        n = self.dims
        if isinstance(x, Volume):  # it moves as a whole
            x = self.empty(x.data[..., :1, :1, :1])
        batch, size = x.shape[: -1 - n], x.shape[-n:]
        contrast = (x.detach() - self._background(x)).square().sum(-1 - n)
        peak = contrast.amax(tuple(range(-n, 0)), keepdim=True)
        contrast = contrast / peak.clamp(min=torch.finfo(x.dtype).tiny)
        along = pixel_centres(size, x).unflatten(0, size).unbind(-1)
        moments = torch.stack([contrast, *(contrast * part for part in along)], -1 - n)
        pool: Any = functional.adaptive_avg_pool2d if n == 2 else functional.adaptive_avg_pool3d
        cells = pool(moments.reshape(-1, 1 + n, *size), [min(side, _MAX_CELLS) for side in size])
        weight, first = cells[:, 0].flatten(1), cells[:, 1:].flatten(2).mT
        points = torch.where(weight.unsqueeze(-1) > 0, first / weight.unsqueeze(-1), 0.0)
        total = weight.sum(-1, keepdim=True)
        shares = torch.where(total > 0, weight / total, 0.0)
        middle = (shares.unsqueeze(-1) * points).sum(-2, keepdim=True)
        pixel = x.new_tensor(2.0 / max(size))
        half = x.new_tensor(half_sides(*size))
        spread = (shares.unsqueeze(-1) * (points - middle).square()).sum(-2, keepdim=True) + pixel.square() / 12
        box = (middle + self._signs.matching(x) * spread.sqrt()).clamp(-half, half)
        pixels = torch.where(total[:, 0] > 0, (max(size) / 2.0) ** n, torch.inf)
        parts = (points, shares, box, pixels, half.expand(points.shape[0], n))
        return ImageContent(*(part.reshape(*batch, *part.shape[1:]) for part in parts))

    def departure(self, g: Tensor, content: ImageContent) -> Float[Tensor, "*out"]:
        """Return the cost of contrast that g moves out of the frame, ``[*batch]``; zero if all stays inside."""
        beyond = torch.relu(self.point_action(g, content.points).abs() - content.half_sides.unsqueeze(-2)) / _EDGE_WIDTH
        outside = 2 * torch.hypot(torch.ones_like(beyond), beyond).log().sum(-1)
        area = self._area(g, content).clamp(min=torch.finfo(g.dtype).tiny)
        return (content.shares * outside).sum(-1) + 2 * torch.relu((self._min_area / area).log())

    def kept(self, g: Tensor, content: ImageContent) -> Float[Tensor, "*out"]:
        """Return the share of the contrast that g leaves in the frame, ``[*batch]``, in [0, 1].

        The share is reduced where the contrast covers less than four pixels (eight voxels) after g has acted.
        """
        inside = (self.point_action(g, content.points).abs() <= content.half_sides.unsqueeze(-2)).all(-1)
        lost = (content.shares * (~inside).to(content.shares.dtype)).sum(-1)
        return (1 - lost) * (self._area(g, content) / self._min_area).clamp(max=1.0)

    def empty(self, x: Any) -> Any:
        """Return images that show the background alone, of the shape of ``x``."""
        if isinstance(x, Volume):
            return Volume(self.empty(x.data), x.affine)
        return torch.zeros_like(x) + self._background(x)

    def _background(self, x: Tensor) -> Tensor:
        return x.new_tensor(self.fill).reshape(-1, *(1,) * self.dims)

    def _area(self, g: Tensor, content: ImageContent) -> Tensor:
        """The area of the moved box of the content, in pixels: that of the box of its mean edges."""
        box = self.point_action(g, content.box)
        edges = matmul(self._signs.matching(box).mT, box) / 2 ** (self.dims - 1)
        return abs_det(edges) * content.pixels
