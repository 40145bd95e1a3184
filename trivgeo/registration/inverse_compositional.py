r"""Descent of the differences between two images on grids of any dimension, inverse compositional.

The element h of the restored image :math:`p \mapsto I(h\,p)` is improved by steps :math:`h \leftarrow h \exp(v)`. At
:math:`v = 0` the fixed image :math:`I_0` stands for the restored one, so that the derivative of pixel p along v is
:math:`\nabla I_0(p) \cdot \xi_v(p)`, with the vector fields :math:`\xi` of the group: the same in every step (Baker and
Matthews 2004). A step takes one interpolation of the moving image, and sums over pixels.

The vector fields hardly change within a few pixels. Pixels are therefore summed in small square cells, and the fields
are taken at the centres of cells; equations whose fields are off by a little have the same solution.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from trivgeo.errors import ConfigurationError
from trivgeo.groups import LieGroup, PointAction
from trivgeo.registration.blocks import BlockSums, squares_left

_MAX_CELLS, _MIN_PIXELS_IN_CELL = 4096, 8  # cells of a grid, at whose centres the vector fields are taken
_MAX_NUMBERS_IN_STRIP = 2**17  # numbers of the fixed image that are worked on at once
_MAX_NUMBERS_AT_ONCE = 2**20  # numbers of restored images that are worked on at once
_MAX_NUMBERS_KEPT = 2**24  # numbers of strips that are kept between steps; else they are made anew
HALO = 2  # pixels on each side that a slope reads
_EDGE_IN_PIXELS = 1e-3  # distance beyond the outermost centres of pixels at which an image still shows something
_MIN_CUBIC_SIDE = 16  # sides of images whose outermost pixels cubic interpolation leaves out
EXACT_FOR_PARABOLAS, _SHARPEST = -0.5, 0.75  # parameter of the cubic kernel; the size of that of torch and OpenCV
_LEAST_COVER = 0.999  # value of an interpolated mask from which on all pixels around are in the mask
LEAST_OVERLAP = 0.1  # share of the fixed image that is compared, below which an element is not found
_FIRST_DAMPING, _MAX_DAMPING = 1e-3, 1e8  # damping of Levenberg and Marquardt, in units of the diagonal
_RIDGE = 1e-10  # addition to the squares of the functions of an exposure, in units of these
_MIN_STD = 1e-3  # standard deviation of an image for its tone, in units of the contrast
# a tone curve bends halfway between where such shares of pixels are darker, and such shares of the range of most pixels
_TONE_KNOTS, _TONE_ENDS = (0.05, 0.2, 0.4, 0.6, 0.8, 0.95), (0.01, 0.99)
_BLOCKS_PER_SIDE, MIN_BLOCK_SIDE = 16, 8  # blocks along the longer side, and pixels along a block, for checks
_NUM_TERMS = 6  # terms of a series
CORRELATION_REACH = 4  # pixels on each side in which scores of blurred noise are correlated


Interpolation = Literal["linear", "smoothing"] | float
SPLINE_VARIANCE = 1.0 / 3.0  # by which cubic B-splines with values as coefficients widen a picture, in pixels squared


class Grid(NamedTuple):
    """Pixels of an image of n dimensions, and where they are.

    Attributes:
        size: numbers of pixels, in the order of the array, ``[d, h, w]`` or ``[h, w]``.
        matrix: the map from indices (x, y, ..., 1), x that of the last dimension, to coordinates, ``[n + 1, n + 1]``,
            affine.
    """

    size: tuple[int, ...]
    matrix: Float[Tensor, "k k"]

    def resized(self, size: Sequence[int]) -> Grid:
        """Return the grid of another number of pixels on the same frame."""
        n = len(size)
        to_ours = torch.eye(n + 1, dtype=torch.float64, device=self.matrix.device)
        for axis, (ours, theirs) in enumerate(zip(self.size[::-1], tuple(size)[::-1], strict=True)):
            factor = ours / theirs
            to_ours[axis, axis], to_ours[axis, n] = factor, 0.5 * (factor - 1.0)
        return Grid(tuple(size), self.matrix @ to_ours)


class Picture(NamedTuple):
    """An image on a grid, with the pixels that count.

    Attributes:
        image: values ``[c, *size]``.
        grid: where the pixels are.
        mask: pixels that count, ones and zeros ``[*size]``; ``None`` for all.
        margin: pixels along each edge that do not count, of an image that is large enough.
    """

    image: Float[Tensor, "c *size"]
    grid: Grid
    mask: Float[Tensor, " *size"] | None = None
    margin: int = 0

    def resized(self, factor: float) -> Picture:
        """Return the picture with so many times the pixels along each side, each the mean of what it covers."""
        old = self.grid.size
        size = tuple(max(1, round(factor * n)) for n in old)
        if size == old:
            return self
        image = means_of_parts(self.image, size)
        mask = None
        if self.mask is not None:
            mask = (means_of_parts(self.mask[None], size)[0] > _LEAST_COVER).to(image.dtype)
        margin = max(min(self.margin, HALO), math.ceil(factor * self.margin))
        return Picture(image, self.grid.resized(size), mask, margin)

    def to(self, dtype: torch.dtype) -> Picture:
        """Return the picture in another dtype."""
        return self._replace(image=self.image.to(dtype), mask=None if self.mask is None else self.mask.to(dtype))

    @property
    def kept_margin(self) -> int:
        """The margin, at most a sixth of the shorter side, and two of 17 pixels."""
        return min(self.margin, max((min(self.grid.size) - 1) // 8, (min(self.grid.size) - 20) // 6))

    def number(self) -> float:
        """Return the number of pixels that count, but for the margin."""
        return math.prod(self.grid.size) if self.mask is None else float(self.mask.sum())

    def counted(self, axes: Sequence[Tensor]) -> Float[Tensor, " *part"]:
        """Return ones at pixels that count, at indices along each dimension."""
        ones = self.image.new_ones([len(axis) for axis in axes])
        counted = ones if self.mask is None else pixels_at(self.mask[None], axes)[0]
        if margin := self.kept_margin:
            for dim, (axis, length) in enumerate(zip(axes, self.grid.size, strict=True)):
                inside = (axis >= margin) & (axis < length - margin)
                counted = counted * inside.reshape(-1, *[1] * (len(axes) - dim - 1)).to(counted.dtype)
        return counted


def means_of_parts(image: Float[Tensor, "c *size"], size: Sequence[int]) -> Float[Tensor, "c *new"]:
    """Return the means of an image over as many equal parts of its frame, with shares of the pixels that cross an edge.

    Pixels that count in whole or not at all would move the parts, by up to a quarter of a pixel.
    """
    for axis, number in enumerate(size, start=1):
        old = image.shape[axis]
        if old % number == 0:
            first, *others = image.unflatten(axis, (number, -1)).unbind(axis + 1)
            image = first * (number / old)
            for part in others:
                image.add_(part, alpha=number / old)
            continue
        edges = torch.arange(number + 1, dtype=torch.float64, device=image.device) * (old / number)
        lower, upper = edges[:-1], edges[1:]
        total: Tensor | None = None
        for k in range(math.ceil(old / number) + 1):
            pixel = lower.floor() + k
            cover = (torch.minimum(upper, pixel + 1.0) - torch.maximum(lower, pixel)).clamp(min=0.0) * (number / old)
            part = image.index_select(axis, pixel.long().clamp(max=old - 1))
            part = part * cover.to(image).reshape(-1, *[1] * (image.ndim - axis - 1))
            total = part if total is None else total + part
        assert total is not None
        image = total
    return image


class Exposure(NamedTuple):
    r"""The exposure :math:`\sum_q \theta_{cq} f_q(m_c, p)` of values m of a channel c at places p.

    The functions are products of functions of the value, the tones, and of fields over the frame. They are one and the
    value, or more: a tone curve, and a gain and an offset quadratic over the frame.

    Attributes:
        theta: coefficients ``[c, q]``.
        uneven: means, standard deviations and knots of tones ``[c, 2 + knots]``; ``None`` for a gain and an offset.
    """

    theta: Tensor
    uneven: Float[Tensor, "c q"] | None = None

    @classmethod
    def none(cls, channels: int, reference: Tensor) -> Exposure:
        """Return the exposure that changes nothing."""
        return cls(reference.new_tensor([0.0, 1.0]).repeat(channels, 1))

    def to(self, dtype: torch.dtype) -> Exposure:
        """Return the exposure in another dtype."""
        return Exposure(self.theta.to(dtype), None if self.uneven is None else self.uneven.to(dtype))

    @property
    def _num_fields(self) -> int:
        """The number of quadratic functions of the place, for the gain and for the offset."""
        return (self.theta.shape[1] - len(_TONE_KNOTS)) // 2

    def bent(self, values: Float[Tensor, "c p"], n: int) -> Exposure:
        """Return the same exposure among functions for an uneven one.

        Args:
            values: values of pixels, for the places of the bends.
            n: number of coordinates of places.
        """
        fields = (n + 1) * (n + 2) // 2
        mean, std = values.mean(1, keepdim=True), values.std(1, correction=0, keepdim=True).clamp(min=_MIN_STD)
        # edges may have values that few pixels have
        shares, tones = values.new_tensor(_TONE_KNOTS), (values - mean) / std
        low, high = torch.quantile(tones, values.new_tensor(_TONE_ENDS), dim=1)
        even = low.unsqueeze(1) + (high - low).unsqueeze(1) * shares
        knots = 0.5 * (torch.quantile(tones, shares, dim=1).mT + even)
        theta = self.theta.new_zeros(len(values), 2 * fields + len(_TONE_KNOTS))
        offset, gain = self.theta.unbind(-1)
        theta[:, 0], theta[:, fields] = offset + gain * mean[:, 0], gain * std[:, 0]
        return Exposure(theta, torch.cat([mean, std, knots], 1))

    def tones(self, m: Float[Tensor, "c *p"], further: int = 0) -> Float[Tensor, "c b *p"]:
        """Return functions of values, and so many rows that are to be filled."""
        tone, knots = (m, []) if self.uneven is None else self._tone(m)
        tones = m.new_empty(len(m), 2 + len(knots) + further, *m.shape[1:])
        tones[:, 0], tones[:, 1] = 1.0, tone
        for number, knot in enumerate(knots, start=2):
            torch.sub(tone, knot, out=tones[:, number]).clamp_(min=0.0)
        return tones

    def fields(self, place: Float[Tensor, "n p"]) -> Float[Tensor, "p q b"] | None:
        """Return the fields by which tones are multiplied, at places of about unit size; ``None`` for the identity."""
        if self.uneven is None:
            return None
        knots, n = len(_TONE_KNOTS), self._num_fields
        fields = place.new_zeros(place.shape[1], 2 * n + knots, 2 + knots)
        fields[:, :n, 0] = fields[:, n : 2 * n, 1] = _quadratics(place).mT
        fields[:, 2 * n :, 2:] = torch.eye(knots).to(place)
        return fields

    def functions(self, m: Float[Tensor, "c p"], place: Float[Tensor, "n p"]) -> Float[Tensor, "c q p"]:
        """Return the products of tones and fields at pixels."""
        tones = self.tones(m)
        if self.uneven is None:
            return tones
        fields = _quadratics(place).expand(len(m), -1, -1)
        return torch.cat([fields, fields * tones[:, 1:2], tones[:, 2:]], 1)

    def exposed(self, m: Float[Tensor, "c *p"], place: Float[Tensor, "n *p"]) -> Float[Tensor, "c *p"]:
        """Return values under the exposure, at places of about unit size."""
        theta = self.theta.to(m.dtype).reshape(*self.theta.shape, *[1] * (m.ndim - 1))
        if self.uneven is None:
            return torch.addcmul(theta[:, 0], m, theta[:, 1])
        offset, gain = self._offset_and_gain(place, m)
        tone, knots = self._tone(m)
        exposed = torch.addcmul(offset, gain, tone)
        for number, knot in enumerate(knots):
            exposed += theta[:, 2 * self._num_fields + number] * (tone - knot).clamp_(min=0.0)
        return exposed

    def gain(self, m: Float[Tensor, "c *p"], place: Float[Tensor, "n *p"]) -> Float[Tensor, "c *p"]:
        """Return the derivative of exposed values by the values."""
        theta = self.theta.to(m.dtype).reshape(*self.theta.shape, *[1] * (m.ndim - 1))
        if self.uneven is None:
            return theta[:, 1].expand(m.shape)
        gain = self._offset_and_gain(place, m)[1]
        tone, knots = self._tone(m)
        for number, knot in enumerate(knots):
            gain = gain + theta[:, 2 * self._num_fields + number] * (tone > knot)
        return gain / self.uneven[:, 1].to(m.dtype).reshape(-1, *[1] * (m.ndim - 1))

    def _tone(self, m: Float[Tensor, "c *p"]) -> tuple[Float[Tensor, "c *p"], list[Tensor]]:
        """Return values in units of their standard deviation, and the knots."""
        assert self.uneven is not None
        mean, std, *knots = (part.reshape(-1, *[1] * (m.ndim - 1)) for part in self.uneven.to(m.dtype).unbind(1))
        return (m - mean).div_(std), knots

    def _offset_and_gain(self, place: Tensor, m: Tensor) -> Float[Tensor, "2 c *p"]:
        theta = self.theta[:, : 2 * self._num_fields].to(m.dtype).unflatten(1, (2, self._num_fields))
        both = theta.transpose(0, 1) @ _quadratics(place.flatten(1))
        return both.reshape(2, len(m), *place.shape[1:])


def _quadratics(place: Float[Tensor, "n p"]) -> Float[Tensor, "q p"]:
    first, second = torch.triu_indices(len(place), len(place))
    return torch.cat([torch.ones_like(place[:1]), place, place[first] * place[second]])


class Strip(NamedTuple):
    """Some rows of cells of the fixed picture: m cells of q pixels.

    Attributes:
        cells: first and last cell.
        image: values ``[c, m, q]``.
        slopes: derivatives by the indices x, y, ..., ``[c, n, m, q]``.
        products: sums over channels of products of slopes, ``[a, m, q]``, a pair of dimensions each.
        counted: ones where pixels count, ``[m, q]``.
        indices: indices x, y, ... of pixels, ``[n, m * q]``.
    """

    cells: slice
    image: Tensor
    slopes: Tensor
    products: Tensor
    counted: Tensor
    indices: Tensor


class Sums(NamedTuple):
    """Sums over pixels for k elements.

    Attributes:
        energy: mean loss where both show something, infinite below the least overlap, ``[k]``.
        overlap: pixels that are compared, in units of those of the smaller picture, ``[k]``.
        slope: derivative of half the sum of losses along the basis, ``[k, n]``.
        curvature: Gauss and Newton's, ``[k, n, n]``.
        gram: of the functions of the exposure of each channel, ``[k, c, q, q]``.
        mixed: of these functions and the basis, ``[k, c, q, n]``.
        ahead: derivative along these functions, ``[k, c, q]``.
        moments: numbers of pixels that are compared, and sums of values of the fixed picture and of their squares,
            ``[k, c, 3]``; for squares only.
    """

    energy: Tensor
    overlap: Tensor
    slope: Tensor
    curvature: Tensor
    gram: Tensor
    mixed: Tensor
    ahead: Tensor
    moments: Tensor

    def reduced(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return slope and curvature that the exposure leaves (variable projection), and its parts ``[k, c, q, n]``."""
        parts = torch.linalg.solve(ridged(self.gram), torch.cat([self.mixed, self.ahead.unsqueeze(-1)], -1))
        slope = self.slope - torch.einsum("kcqn,kcq->kn", self.mixed, parts[..., -1])
        curvature = self.curvature - torch.einsum("kcqn,kcqm->knm", self.mixed, parts[..., :-1])
        return slope, 0.5 * (curvature + curvature.mT), parts


class Comparison:
    """The comparison of a moving picture with a fixed one, at their sizes, for elements h of a group.

    Args:
        group: the group.
        action: its action on points of n coordinates.
        moving: the picture that is read at h p.
        fixed: the picture with pixels p.
        interpolation: between pixels of the moving picture: linear, by the cubic kernel of this parameter a (Keys
            1981), for two dimensions only, or ``"smoothing"``, which widens the picture, as much between pixels as at
            them.
    """

    # energy after a step that is taken, in units of that before: the equations of steps are no derivatives of energies
    max_rise: ClassVar[float] = 1.02

    def __init__(
        self,
        group: LieGroup,
        action: PointAction,
        moving: Picture,
        fixed: Picture,
        interpolation: Interpolation = "linear",
    ) -> None:
        self.group, self.action, self.moving, self.fixed = group, action, moving, fixed
        self.interpolation = interpolation
        size = fixed.grid.size
        self.n, self.channels, self.num_pixels = len(size), len(fixed.image), math.prod(size)
        sides = (s for s in range(1, max(size) + 1) if s == 1 or s**self.n >= _MIN_PIXELS_IN_CELL)
        self.side = next((s for s in sides if math.prod(-(-n // s) for n in size) <= _MAX_CELLS), max(size))
        self.cells = tuple(-(-n // self.side) for n in size)
        self._kept: list[Strip] = []

    def interpolated(self, interpolation: Interpolation) -> Comparison:
        """Return the comparison with another interpolation of the moving picture."""
        other = copy.copy(self)
        other.interpolation = interpolation
        return other

    # -- the grid ------------------------------------------------------------------------------------------------------

    @cached_property
    def _centres(self) -> Float[Tensor, "n m"]:
        """The indices x, y, ... of the centres of cells."""
        centres = []
        for cells, pixels in zip(self.cells, self.fixed.grid.size, strict=True):
            first = torch.arange(cells, dtype=torch.float64, device=self.fixed.image.device) * self.side
            centres.append(0.5 * (first + (first + self.side).clamp(max=pixels) - 1.0))
        return torch.stack(torch.meshgrid(*centres, indexing="ij")[::-1]).flatten(1)

    @cached_property
    def fields(self) -> Float[Tensor, "m n d"]:
        """The vector fields of the basis at the centres of cells, in pixels of the fixed picture."""
        matrix = self.fixed.grid.matrix
        points = self._centres.mT @ matrix[:-1, :-1].mT + matrix[:-1, -1]
        fields = _vector_fields(self.group, self.action, points)  # [m, d, n]
        return (torch.linalg.inv(matrix[:-1, :-1]) @ fields.mT).to(self.fixed.image.dtype)

    @cached_property
    def _slopes_along(self) -> Float[Tensor, "c m d"]:
        """The derivatives of the fixed picture along the basis at its pixels, where each is a cell."""
        (strip,) = self._strips()
        return torch.einsum("cnm,mnd->cmd", strip.slopes.squeeze(-1), self.fields)

    @cached_property
    def _products_along(self) -> Float[Tensor, "m d*d"]:
        """Products of these derivatives, summed over channels."""
        along = self._slopes_along
        return torch.einsum("cmi,cmj->mij", along, along).flatten(1)

    def _fields_of(self, exposure: Exposure, cells: slice) -> Float[Tensor, "m q b"] | None:
        """Return the fields of an exposure at the centres of cells."""
        return exposure.fields(self._place(self._centres[:, cells].to(self.fixed.image.dtype)))

    def _strips(self) -> Iterator[Strip]:
        """Yield the strips of the fixed picture."""
        if self._kept:
            yield from self._kept
            return
        kept = self.fixed.image.numel() * (2 * self.n + 4) <= _MAX_NUMBERS_KEPT
        for first, last in self._ranges():
            strip = self._strip(first, last)
            if kept:
                self._kept.append(strip)
            yield strip

    def _ranges(self) -> list[tuple[int, int]]:
        """Return first and last row of cells of strips."""
        in_row = self.fixed.image.numel() * self.side // self.fixed.grid.size[0]
        rows = max(1, _MAX_NUMBERS_IN_STRIP // max(in_row, 1))
        return [(first, min(first + rows, self.cells[0])) for first in range(0, self.cells[0], rows)]

    def _strip(self, first: int, last: int) -> Strip:
        image = self.fixed.image
        axes = self._axes(first, last, 0)
        slopes = slopes_of(pixels_at(image, self._axes(first, last, HALO)))
        counted = self.fixed.counted(axes)
        slopes, values = self._in_cells(slopes.transpose(0, 1)), self._in_cells(pixels_at(image, axes))
        products = torch.stack([(slopes[:, a] * slopes[:, b]).sum(0) for a, b in _pairs(self.n)])
        indices = self._in_cells(indices_of(axes).to(image.dtype)).flatten(1)
        return Strip(self._numbers(first, last), values, slopes, products, self._in_cells(counted), indices)

    def _axes(self, first: int, last: int, halo: int) -> list[Tensor]:
        """Return the indices along each dimension of rows of cells and pixels around; those outside are the nearest."""
        size, device = self.fixed.grid.size, self.fixed.image.device
        bounds = [(first * self.side, min(last * self.side, size[0])), *((0, n) for n in size[1:])]
        return [
            torch.arange(low - halo, high + halo, device=device).clamp(0, n - 1)
            for (low, high), n in zip(bounds, size, strict=True)
        ]

    def _in_cells(self, values: Float[Tensor, "*b *size"]) -> Float[Tensor, "*b m q"]:
        """Return values at pixels by cells; pixels beyond the image are zero."""
        n, s = self.n, self.side
        if s == 1:
            return values.flatten(-n).unsqueeze(-1)
        pads = [pad for length in values.shape[: -n - 1 : -1] for pad in (0, -length % s)]
        values = functional.pad(values, pads) if any(pads) else values
        lead, numbers = values.shape[:-n], [length // s for length in values.shape[-n:]]
        split = values.reshape(*lead, *(part for number in numbers for part in (number, s)))
        b = len(lead)
        order = [*range(b), *range(b, b + 2 * n, 2), *range(b + 1, b + 2 * n, 2)]
        return split.permute(order).reshape(*lead, math.prod(numbers), s**n)

    def _matrices(self, h: Tensor) -> tuple[Tensor, Bool[Tensor, " k"]] | None:
        """Return maps from indices of the fixed picture to those of the moving one, for homographies that are defined
        on the frame, ``[k, n + 1, n + 1]``, and which are; ``None`` for other groups.
        """
        try:
            matrix = self.action.homogeneous(h).double()
        except ConfigurationError:
            return None
        matrix = self._to_moving @ matrix @ self.fixed.grid.matrix
        corners = self._corners
        last = corners @ matrix[:, -1, :-1].unsqueeze(-1) + matrix[:, -1:, -1:]  # [k, corners, 1]
        valid = torch.isfinite(matrix).flatten(1).all(1) & ((last > 0).all(1) | (last < 0).all(1)).squeeze(1)
        eye = torch.eye(self.n + 1, dtype=matrix.dtype, device=matrix.device)
        matrix = torch.where(valid[:, None, None], matrix, eye)
        return matrix.to(self.moving.image.dtype), valid

    @cached_property
    def _to_moving(self) -> Float[Tensor, "i i"]:
        """The map from coordinates to indices of the moving picture."""
        return torch.linalg.inv(self.moving.grid.matrix)

    @cached_property
    def _corners(self) -> Float[Tensor, "corners n"]:
        """The indices x, y, ... of the corners of the fixed picture."""
        matrix = self.fixed.grid.matrix
        return torch.cartesian_prod(*matrix.new_tensor([[0.0, n - 1.0] for n in self.fixed.grid.size[::-1]]))

    @cached_property
    def _is_projective(self) -> bool:
        identity = self.group.identity(1, dtype=torch.float64, device=self.fixed.image.device)
        return self.action._denominator(identity[:, None], identity.new_zeros(1, 1, self.n)) is not None

    def _places(self, h: Tensor, index: Float[Tensor, "n p"]) -> tuple[list[Float[Tensor, "k p"]], Tensor]:
        """Return the indices x, y, ... in the moving picture of pixels of the fixed one, and what elements are
        defined.
        """
        found = self._matrices(h)
        if found is None:
            matrix = self.fixed.grid.matrix
            places = self.action(h, index.mT.to(h) @ matrix[:-1, :-1].mT + matrix[:-1, -1])
            valid = torch.isfinite(places).flatten(1).all(1)
            places = torch.where(valid[:, None, None], places, 0.0)
            places = places @ self._to_moving[:-1, :-1].mT + self._to_moving[:-1, -1]
            return list(places.to(self.moving.image.dtype).unbind(-1)), valid
        matrix, valid = found
        rows = matrix[:, : self.n + self._is_projective]
        places = torch.addmm(rows[..., -1:].flatten(0, 1), rows[..., :-1].flatten(0, 1), index)
        places = places.unflatten(0, rows.shape[:2])
        if self._is_projective:
            places[:, :-1] *= places[:, -1:].reciprocal_()
        return list(places[:, : self.n].unbind(1)), valid

    def restored(self, h: Tensor, index: Float[Tensor, "n p"]) -> tuple[Float[Tensor, "c k p"], Float[Tensor, "k p"]]:
        """Return the moving picture at pixels of the fixed one, and ones where it shows something.

        Args:
            h: elements ``[k, *element_shape]``.
            index: indices x, y, ... of pixels.
        """
        image, mask, size = self.moving.image, self.moving.mask, self.moving.grid.size[::-1]
        places, valid = self._places(h, index)
        outermost = self.interpolation != "linear" and min(size) > _MIN_CUBIC_SIDE
        margin = self.moving.kept_margin + outermost
        # the share of a pixel fades out along a pixel beside the margin, so that solutions are no jumps between shares
        fade = max(min(margin, 1), _EDGE_IN_PIXELS)
        seen: Tensor | None = None
        for place, length in zip(places, size, strict=True):
            middle = 0.5 * (length - 1)
            inside = torch.rsub((place - middle).abs_(), fade + middle - margin)
            seen = inside if seen is None else torch.minimum(seen, inside, out=seen)
        assert seen is not None
        seen = seen.clamp_(0.0, fade).mul_(valid.unsqueeze(-1) / fade)
        places = [
            place.clamp_(-0.5 * length - 0.5, 1.5 * length - 0.5) for place, length in zip(places, size, strict=True)
        ]
        grid = _grid(places, size)
        if self.interpolation == "linear":
            sampled = _sampled(image, grid, "bilinear")
        elif self.interpolation == "smoothing":
            sampled = smoothed(image, places)
        else:
            sampled = _cubic(image, grid, places, self.interpolation)
        if mask is not None:
            cover = functional.grid_sample(mask[None, None], grid, padding_mode="zeros", align_corners=False)
            seen.mul_((cover > _LEAST_COVER).reshape(seen.shape))
        return sampled.reshape(len(image), *seen.shape), seen

    def image(self, h: Tensor, exposure: Exposure) -> tuple[Float[Tensor, "c *size"], Float[Tensor, " *size"]]:
        """Return the exposed restored picture of one element, and ones where it shows something that counts."""
        axes = [torch.arange(n, device=self.fixed.image.device) for n in self.fixed.grid.size]
        index = indices_of(axes).flatten(1).to(self.fixed.image.dtype)
        values, seen = (part[..., 0, :] for part in self.restored(h[None], index))
        values = exposure.exposed(values, self._place(index))
        size = self.fixed.grid.size
        return values.unflatten(1, size), seen.unflatten(0, size) * self.fixed.counted(axes)

    def sample(
        self, h: Tensor, number: int, exposure: Exposure | None = None
    ) -> tuple[Float[Tensor, "c p"], Float[Tensor, "c p"], Float[Tensor, " p"]]:
        """Return values of both pictures at some pixels of the fixed one, and ones where both count.

        Args:
            h: one element.
            number: about the number of pixels.
            exposure: that of the moving picture; ``None`` for its values as they are.
        """
        place = self._sampled(number)
        index = self._index(place)
        values, seen = (part[..., 0, :] for part in self.restored(h[None], index))
        if self.fixed.mask is not None:
            seen = seen * self.fixed.mask.flatten()[place]
        if margin := self.fixed.kept_margin:
            for along, length in zip(index, self.fixed.grid.size[::-1], strict=True):
                seen = seen * ((along >= margin) & (along < length - margin))
        values = values if exposure is None else exposure.exposed(values, self._place(index))
        return values, self.fixed.image.flatten(1)[:, place], seen

    def kernel(self, h: Tensor, number: int, exposure: Exposure, width: float) -> tuple[Interpolation, float]:
        """Return the interpolation that leaves least of the squares at a sample, and the share that it leaves.

        The fixed picture may have been interpolated itself, by a kernel that is not known: the linear one, or a cubic
        one. The share is that of the squares that the other one leaves.
        """
        soft, sharp = (self.interpolated(a).sample(h, number, exposure) for a in (0.0, -_SHARPEST))
        off, change = soft[1] - soft[0], sharp[0] - soft[0]
        off_by_linear = soft[1] - self.interpolated("linear").sample(h, number, exposure)[0]
        before = self.interpolation
        square = (off + before / _SHARPEST * change if isinstance(before, float) else off_by_linear).square().sum(0)
        weight = soft[2] / (1.0 + square / width**2) ** 2
        curvature, product = ((weight * change * part).sum().double() for part in (change, off))
        own = _MIN_STD**2 * weight.sum().double()  # kernels hardly differ where pixels lie on pixels
        tiny = torch.finfo(own.dtype).tiny
        usual = -EXACT_FOR_PARABOLAS / _SHARPEST
        share = min(max(float((product + usual * own) / (curvature + own).clamp(min=tiny)), 0.0), 1.0)
        cubic, linear = (
            float((weight * r.square()).sum().double().clamp(min=tiny)) for r in (off - share * change, off_by_linear)
        )
        return ("linear", linear / cubic) if linear < cubic else (-_SHARPEST * share, cubic / linear)

    def steep(self, number: int) -> Float[Tensor, " p"]:
        """Return ones at the pixels of a sample at which the slope of the fixed picture is above its mean square."""
        image, place = self.fixed.image.flatten(1), self._sampled(number)
        square, stride = torch.zeros_like(image[0, place]), 1
        for length in self.fixed.grid.size[::-1]:
            at = place // stride % length
            after, before = torch.where(at < length - 1, stride, 0), torch.where(at > 0, stride, 0)
            square = square + (image[:, place + after] - image[:, place - before]).square().sum(0)
            stride *= length
        return (square > square.mean()).to(image.dtype)

    def sampled_places(self, number: int) -> Float[Tensor, "n p"]:
        """Return the places of the pixels of a sample."""
        return self._place(self._index(self._sampled(number)))

    def _sampled(self, number: int) -> Tensor:
        """Return numbers of pixels, evenly over the picture."""
        step = max(1, self.num_pixels // number)
        step += step > 1 and self.fixed.grid.size[-1] % step == 0  # not one column
        return torch.arange(step // 2, self.num_pixels, step, device=self.fixed.image.device)

    def _index(self, place: Tensor) -> Float[Tensor, "n p"]:
        """Return the indices x, y, ... of pixels by their numbers."""
        parts = []
        for length in self.fixed.grid.size[::-1]:
            parts.append(place % length)
            place = place // length
        return torch.stack(parts).to(self.fixed.image.dtype)

    def scale(self, h: Tensor) -> float:
        """Return the length in pixels of the moving picture of one in the middle of the fixed one."""
        middle = torch.tensor([[0.5 * (n - 1) for n in self.fixed.grid.size[::-1]]], dtype=torch.float64)
        matrix = self.fixed.grid.matrix
        points = middle.to(matrix) @ matrix[:-1, :-1].mT + matrix[:-1, -1]
        jacobian = self.action.jacobian(h.double(), points)[0]
        whole = torch.linalg.inv(self.moving.grid.matrix[:-1, :-1]) @ jacobian @ matrix[:-1, :-1]
        return float(torch.linalg.det(whole).abs()) ** (1.0 / self.n)

    # -- sums ----------------------------------------------------------------------------------------------------------

    def sums(self, h: Tensor, exposure: Exposure, width: float | None) -> Sums:
        """Return sums over pixels for elements ``[k, *element_shape]``.

        Args:
            h: elements.
            exposure: that of the moving picture.
            width: width of the loss of Geman and McClure; ``None`` for squares.
        """
        parts = []
        together = max(1, _MAX_NUMBERS_AT_ONCE // max(1, min(_MAX_NUMBERS_IN_STRIP, self.fixed.image.numel())))
        for rows in h.split(together):
            total: list[Tensor] | None = None
            for strip in self._strips():
                found = [part.double() for part in self._strip_sums(strip, rows, exposure, width)]
                total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
            assert total is not None
            parts.append(total)
        loss, count, slope, products, gram, mixed, ahead, moments = (torch.cat(p) for p in zip(*parts, strict=True))
        dim = self.group.dim
        curvature = products.unflatten(1, (dim, dim))
        # of the smaller one
        most = min(
            math.prod(part.grid.size) if part.mask is None else float(part.mask.sum())
            for part in (self.fixed, self.moving)
        )
        overlap = count / max(most, 1.0)
        energy = torch.where(overlap >= LEAST_OVERLAP, loss / count.clamp(min=1.0), torch.inf)
        return Sums(energy, overlap, slope, curvature, gram, mixed, ahead, moments)

    def _place(self, index: Float[Tensor, "n *p"]) -> Float[Tensor, "n *p"]:
        """Return places of about unit size, for an uneven exposure."""
        first = zip(index, self.fixed.grid.size[::-1], strict=True)
        return torch.stack([part * (2.0 / max(length - 1, 1)) - 1.0 for part, length in first])

    def _strip_sums(self, strip: Strip, h: Tensor, exposure: Exposure, width: float | None) -> tuple[Tensor, ...]:
        k, (m, q), n = len(h), strip.counted.shape, self.n
        values, seen = self.restored(h, strip.indices)  # [c, k, m * q]
        seen = seen.mul_(strip.counted.flatten())
        fixed = strip.image.flatten(1).unsqueeze(1)
        place = self._place(strip.indices).unsqueeze(1) if exposure.uneven is not None else values
        tones = exposure.tones(values, 1)  # [c, b + 1, k, m * q]
        r = torch.sub(exposure.exposed(values, place), fixed, out=tones[:, -1])
        square = _sum_of_squares(r)
        if width is None:
            weight, loss = seen, (seen * square).sum(1)
            moments = torch.stack([(weight * part).sum(-1) for part in (torch.ones_like(fixed), fixed, fixed.square())])
            moments = moments.permute(2, 1, 0)
        else:
            shrink = (square * width**-2).add_(1.0).reciprocal_()
            first = seen * shrink
            weight, loss = shrink.mul_(first), (first.mul_(square)).sum(1)
            moments = loss.new_zeros(k, len(fixed), 3)
        b = tones.shape[1] - 1
        spread = self._fields_of(exposure, strip.cells)
        # in place: memory for as many numbers anew takes longer than their products
        root = weight.sqrt()
        tones *= root
        if spread is None:
            inner = tones.transpose(1, 2) @ tones.permute(0, 2, 3, 1)  # [c, k, b + 1, b + 1]
        else:
            by_cells = tones.view(-1, b + 1, k * m, q)
            grams = torch.stack([products_in_cells(one, one).view(k, m, b + 1, b + 1) for one in by_cells])
        weighted = tones.mul_(root)
        if q == 1 and spread is None:
            along = weighted.flatten(1, 2) @ self._slopes_along  # [c, (b + 1) * k, d]
            along = along.unflatten(1, (b + 1, k))
            curvature = weight @ self._products_along
            return self._parted(loss, seen, along, curvature, inner, moments)
        fields = self.fields[strip.cells]  # [m, n, d]
        pairs = products_in_cells(weight.view(k, m, q), strip.products)  # [m, k, pairs]
        symmetric = pairs[..., self._pair_of].unflatten(-1, (n, n)).transpose(0, 1)  # [k, m, n, n]
        curvature = fields.flatten(0, 1).mT @ (symmetric @ fields).flatten(1, 2)
        parts = zip(weighted.view(-1, (b + 1) * k, m, q), strip.slopes, strict=True)
        along = torch.stack([products_in_cells(*part) for part in parts])
        along = along.unflatten(2, (b + 1, k))  # [c, m, b + 1, k, n]
        if spread is None:
            along = along.permute(0, 2, 3, 1, 4).flatten(-2) @ fields.flatten(0, 1)
            return self._parted(loss, seen, along, curvature.flatten(1), inner, moments)
        spread = functional.pad(spread, (0, 1, 0, 1))  # [m, q + 1, b + 1]
        spread[:, -1, -1] = 1.0
        grams = (spread @ grams @ spread.mT).sum(2)
        along = torch.einsum("mqb,cmbka,mai->cqki", spread, along, fields)
        return self._parted(loss, seen, along, curvature.flatten(1), grams, moments)

    @cached_property
    def _pair_of(self) -> list[int]:
        """The number of the pair of each two dimensions."""
        pairs = _pairs(self.n)
        return [pairs.index((min(a, b), max(a, b))) for a in range(self.n) for b in range(self.n)]

    @staticmethod
    def _parted(
        loss: Tensor, seen: Tensor, along: Tensor, curvature: Tensor, inner: Tensor, moments: Tensor
    ) -> tuple[Tensor, ...]:
        """Return sums in the order of `Sums`; the residual is the last of the functions."""
        along, inner = along.transpose(0, 2).transpose(1, 2), inner.transpose(0, 1)  # [k, c, q + 1, ...]
        return (
            loss,
            seen.sum(1),
            along[:, :, -1].sum(1),
            curvature,
            inner[:, :, :-1, :-1],
            along[:, :, :-1],
            inner[:, :, :-1, -1],
            moments,
        )

    # -- descents ------------------------------------------------------------------------------------------------------

    def descended(
        self,
        h: Tensor,
        exposure: Exposure,
        width: float | None,
        steps: int,
        least_step: float,
        energy: Callable[[Sums], Tensor] | None = None,
    ) -> tuple[Tensor, Sums]:
        """Return elements after steps of Levenberg and Marquardt, ``[k, *element_shape]``, and their sums.

        Args:
            h: elements to begin with.
            exposure: that of the moving picture.
            width: width of the loss; ``None`` for squares.
            steps: largest number of steps.
            least_step: length of steps, in units of the basis, at which all descents have ended.
            energy: what falls in each step; default the mean loss, which may rise a little.
        """
        group = self.group
        energies, most = (lambda sums: sums.energy, self.max_rise) if energy is None else (energy, 1.0)
        sums = self.sums(h, exposure, width)
        damping = sums.energy.new_full((len(h),), _FIRST_DAMPING)
        for _ in range(steps):
            slope, curvature, _ = sums.reduced()
            step = -_solved(curvature, slope, damping)
            trial = group.project(group.perturb(h, step))
            if not bool((step.norm(dim=-1) > least_step).any()):
                return trial, sums  # energies hardly change
            new = self.sums(trial, exposure, width)
            better = energies(new) < most * energies(sums)
            h = torch.where(better.reshape(-1, *[1] * len(group.element_shape)), trial, h)
            sums = Sums(
                *(torch.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(new, sums, strict=True))
            )
            damping = torch.where(better, 0.2 * damping, 8.0 * damping).clamp(max=_MAX_DAMPING)
            if not bool((better & (step.norm(dim=-1) > least_step) | ~better & (damping < 1e3)).any()):
                break
        return h, sums

    # -- the last comparison -------------------------------------------------------------------------------------------

    def closely(self, h: Tensor, exposure: Exposure, width: float, agreeing: float) -> CloseComparison:
        """Return sums for steps, covariances and checks of one element ``[*element_shape]``.

        Args:
            h: the element.
            exposure: that of the moving picture.
            width: width of the loss.
            agreeing: residual up to which pixels agree.
        """
        n, image, dim = self.n, self.fixed.image, self.group.dim
        strips: list[tuple[Tensor, ...]] = []
        count = number = square_sum = 0.0
        agrees = torch.zeros(self.fixed.grid.size, dtype=torch.bool, device=image.device)
        for (first, last), strip in zip(self._ranges(), self._strips(), strict=True):
            r, tones, shrink, seen, ours, rough = self._around(first, last, h, exposure, width)
            rows = torch.cat([ours, strip.slopes, tones], 1)
            # in place: memory for as many numbers anew takes longer than their products
            rows *= shrink * seen.sqrt()
            products = torch.stack([products_in_cells(one, one) for one in rows], 1)  # [m, c, 2n + b, 2n + b]
            rows *= (r * shrink.sqrt()).unsqueeze(1)
            # of the slopes of the restored picture, of the fixed one, and of the functions of the exposure
            along = rows[0] if len(rows) == 1 else torch.cat([rows[:, : 2 * n].sum(0), rows[:, 2 * n :].flatten(0, 1)])
            bent = (-4.0 / width**2) * products_in_cells(along, along[n:])
            weighed = along[n:].mul_((shrink * seen).sqrt_())
            strips.append(
                (
                    weighed.sum(-1).mT,
                    products_in_cells(weighed, weighed),
                    torch.cat([bent[:, :n], bent[:, 2 * n :]], 1),
                    torch.stack([products_in_cells(one, one) for one in rough]).sum(0),
                    products[:, :, : 2 * n, : 2 * n].sum(1),
                    products[:, :, 2 * n :],
                )
            )
            square = _sum_of_squares(r)
            good = seen * (square < agreeing**2)
            count, number = count + float(seen.sum()), number + float(good.sum())
            square_sum += float((good * square).sum())
            rows = self._axes(first, last, 0)[0]
            agrees[rows] = self._from_cells(good, [len(rows), *self.fixed.grid.size[1:]]) > 0.5
        scores, alone, bends, noise, of_slopes, of_tones = (torch.cat(part) for part in zip(*strips, strict=True))
        of_both, of_tones = of_tones.split([2 * n, of_tones.shape[-1] - 2 * n], -1)
        fields, spread = self.fields, self._fields_of(exposure, slice(None))
        # what the exposure explains of the derivatives by the basis
        if spread is not None:
            of_both = spread.unsqueeze(1) @ of_both
            of_tones = spread.unsqueeze(1) @ of_tones @ spread.mT.unsqueeze(1)
        gram = of_tones.double().sum(0)
        mixed = [
            (part.permute(1, 2, 0, 3).flatten(2) @ fields.flatten(0, 1)).double()  # [c, q, d]
            for part in (of_both[..., :n], of_both[..., n:])  # with slopes of the restored picture, and the fixed one
        ]
        ahead = scores[:, n:].unflatten(1, (len(image), -1))
        ahead = ahead if spread is None else (spread.unsqueeze(1) @ ahead.unsqueeze(-1)).squeeze(-1)
        solved = torch.linalg.solve(ridged(gram), torch.cat([*mixed, ahead.double().sum(0).unsqueeze(-1)], -1))
        parts = solved[..., dim:]
        taken = -parts[..., :-1].mT.to(image.dtype).unsqueeze(1)  # [c, 1, d, q]
        taken = taken.expand(-1, len(fields), -1, -1) if spread is None else taken @ spread
        along = torch.cat([fields.mT, *taken], -1)  # [m, d, a]
        scores = (along @ scores.unsqueeze(-1)).squeeze(-1)
        parts_of_cells = fields.mT @ of_slopes[:, n:, n:] @ fields
        own = contracted(of_slopes[:, :n, :n], fields.mT, fields.mT) - torch.einsum(
            "cxi,cxj->ij", mixed[0], solved[..., :dim]
        )
        descent = contracted(of_slopes[:, :n, n:], fields.mT, fields.mT) - torch.einsum(
            "cxi,cxj->ij", mixed[0], parts[..., :-1]
        )
        theirs = parts_of_cells.sum(0, dtype=torch.float64) - torch.einsum("cxi,cxj->ij", mixed[1], parts[..., :-1])
        descent, theirs = (0.5 * (part + part.mT) for part in (descent, theirs))
        reach = -(-CORRELATION_REACH // self.side)
        windows = box_sums(parts_of_cells.flatten(1).mT.unflatten(1, self.cells), reach).flatten(1).mT
        windows = windows.unflatten(1, (dim, dim))
        freed = without_own_pull(scores, windows, parts_of_cells.sum(0, dtype=torch.float64))
        number_of_sets = max(count / ((2 * reach + 1) * self.side) ** n, 1.0)
        bend = contracted(bends, along, along) / squares_left(number_of_sets)  # of squares of residuals
        around = freed.mT @ box_sums(freed.mT.unflatten(1, self.cells), reach).flatten(1).mT
        sums = BlockSums(
            -scores.double(),
            descent[None],
            (descent + 0.5 * (bend + bend.mT))[None],
            own[None],
            self._by_blocks(fields.mT @ noise @ fields).double(),
            contracted(alone, along, along),
            0.5 * (around + around.mT).double(),
            number_of_sets,
            variance_of_squares(parts_of_cells, windows),
        )
        rms = math.sqrt(square_sum / max(number, 1.0))
        return CloseComparison(sums, number / max(count, 1.0), rms, count / self.num_pixels, agrees, theirs, parts)

    def _numbers(self, first: int, last: int) -> slice:
        """Return the numbers of the cells of rows of cells."""
        per_row = math.prod(self.cells[1:])
        return slice(first * per_row, last * per_row)

    def _around(self, first: int, last: int, h: Tensor, exposure: Exposure, width: float) -> tuple[Tensor, ...]:
        """Return what `closely` sums, of rows of cells and by cells: residuals, tones of the exposure, roots of weights
        of the loss, what counts, and the slopes of the restored picture and of weighted residuals.
        """
        axes, n = self._axes(first, last, HALO), self.n
        index = indices_of(axes).to(self.fixed.image.dtype)
        size = list(index.shape[1:])
        values, seen = (part[..., 0, :].unflatten(-1, size) for part in self.restored(h[None], index.flatten(1)))
        seen = seen * self.fixed.counted(axes)
        place = self._place(index) if exposure.uneven is not None else index
        r = exposure.exposed(values, place) - pixels_at(self.fixed.image, axes)
        shrink = (_sum_of_squares(r).mul_(width**-2)).add_(1.0).reciprocal_()
        weight = seen * shrink.square()
        # outliers, which weigh nothing, have no slopes beside them
        inner, gain = without_halo(values, n), exposure.gain(without_halo(values, n), without_halo(place, n))
        slopes = (slopes_of(values) * gain).transpose(0, 1), slopes_of(weight * r).transpose(0, 1)
        within = (without_halo(part, n) for part in (r, shrink, seen))
        r, shrink, seen, ours, rough = (self._in_cells(part) for part in (*within, *slopes))
        return r, exposure.tones(self._in_cells(inner)), shrink, seen, ours, rough

    def _from_cells(self, values: Float[Tensor, "m q"], size: Sequence[int]) -> Float[Tensor, " *size"]:
        """Return values by cells as an image, the inverse of `_in_cells`."""
        n, s = self.n, self.side
        numbers = [-(-length // s) for length in size]
        split = values.reshape(*numbers, *[s] * n)
        order = [axis for pair in zip(range(n), range(n, 2 * n), strict=True) for axis in pair]
        whole = split.permute(order).reshape([number * s for number in numbers])
        return whole[tuple(slice(length) for length in size)]

    @property
    def side_of_blocks(self) -> int:
        """The number of pixels along blocks by which the picture is checked."""
        return max(MIN_BLOCK_SIDE, -(-max(self.fixed.grid.size) // _BLOCKS_PER_SIDE))

    def _by_blocks(self, values: Float[Tensor, "m *r"]) -> Float[Tensor, "b *r"]:
        """Return sums over blocks of cells."""
        side = self.side_of_blocks
        label = torch.zeros(1, dtype=torch.long, device=values.device)
        for cells, pixels in zip(self.cells, self.fixed.grid.size, strict=True):
            blocks = -(-pixels // side)
            place = (torch.arange(cells, device=values.device) * self.side + self.side // 2).clamp(
                max=pixels - 1
            ) // side
            label = (label.unsqueeze(-1) * blocks + place).flatten()
        total = values.new_zeros(int(label.max()) + 1, *values.shape[1:])
        return total.index_add_(0, label, values)


class CloseComparison(NamedTuple):
    """A close comparison of a restored picture with the fixed one.

    Attributes:
        sums: sums over blocks, for covariances.
        agreement: share of the compared pixels that agree.
        rms: root mean square of their residuals.
        overlap: share of the fixed picture that is compared.
        agrees: the pixels that agree, ``[*size]``.
        curvature: that of the fixed picture, with its noise, ``[n, n]``.
        parts: parts of the functions of the exposure, as those of `Sums.reduced`, ``[c, q, n + 1]``.
    """

    sums: BlockSums
    agreement: float
    rms: float
    overlap: float
    agrees: Bool[Tensor, " *size"]
    curvature: Float[Tensor, "n n"]
    parts: Float[Tensor, "c q k"]


def indices_of(axes: Sequence[Tensor]) -> Tensor:
    """Return the indices x, y, ... at the places of a grid, ``[n, *size]``."""
    return torch.stack(torch.meshgrid(*axes, indexing="ij")[::-1])


def _grid(places: Sequence[Float[Tensor, "k p"]], size: Sequence[int]) -> Tensor:
    """Return indices x, y, ... in [-1, 1] along each side, as torch samples, ``[1, *1, k, p, n]``."""
    shifts = [place.new_tensor(1.0 / n - 1.0) for place, n in zip(places, size, strict=True)]
    scaled = [shift.add(place, alpha=2.0 / n) for shift, place, n in zip(shifts, places, size, strict=True)]
    # complex numbers are pairs that are written several times as fast as by `stack`
    grid = torch.view_as_real(torch.complex(*scaled)) if len(scaled) == 2 else torch.stack(scaled, -1)
    return grid.reshape(1, *[1] * (len(size) - 2), *grid.shape)


def _sampled(image: Float[Tensor, "c *size"], grid: Tensor, mode: str) -> Tensor:
    return functional.grid_sample(image[None], grid, mode=mode, padding_mode="border", align_corners=False)


def _cubic(image: Float[Tensor, "c h w"], grid: Tensor, places: Sequence[Float[Tensor, "k p"]], a: float) -> Tensor:
    """Return values between pixels by the cubic kernel of a parameter a.

    Kernels are linear in a. That of torch has a = -3/4, and that with a = 0 is linear interpolation at other places.
    The rest of the product of two kernels is a product of two small differences.
    """
    smooth = []
    for place in places:
        first = place.floor()
        part = place - first
        smooth.append(first.addcmul_(torch.rsub(part, 3.0, alpha=2.0), part.square_()))
    linear = _sampled(image, _grid(smooth, image.shape[:0:-1]), "bilinear")
    return linear.lerp_(_sampled(image, grid, "bicubic"), -a / _SHARPEST)


def smoothed(image: Float[Tensor, "c *size"], places: Sequence[Float[Tensor, "k p"]]) -> Tensor:
    """Return sums of cubic B-splines at pixels, with the values as coefficients.

    The variance of the kernel is a third of a pixel wherever it is read. That of linear interpolation is f (1 - f) at a
    part f of the way to the next pixel: a picture is wider there, in beats as long as f stays alike. Two neighbours
    are read at once, between them (Sigg and Hadwiger 2005).
    """
    along = []
    for place in places:
        first = place.floor()
        part = place - first
        weight = ((part - 2.0) * part.square()).mul_(0.5).add_(2.0 / 3.0)  # of the first pixel
        before = (1.0 - part).pow_(3).div_(6.0)
        lower = weight + before
        after = part.pow_(3).div_(6.0)
        upper = 1.0 - lower
        along.append(((lower, first - before / lower), (upper, first.add_(1.0).add_(after / upper))))
    total: Tensor | None = None
    for corner in itertools.product(*along):
        value = _sampled(image, _grid([place for _, place in corner], image.shape[:0:-1]), "bilinear")
        for weight, _ in corner:
            value.mul_(weight)
        total = value if total is None else total.add_(value)
    assert total is not None
    return total


def _vector_fields(group: LieGroup, action: PointAction, points: Float[Tensor, "p n"]) -> Float[Tensor, "p d n"]:
    """Return the vector fields of the basis at points; those of homographies from their matrices."""
    try:
        matrices = _matrices_of_basis(group, action).to(points)
    except ConfigurationError:
        return _along_basis(group, points, lambda g: action(g, points)).transpose(0, 1)
    lifted = torch.cat([points, torch.ones_like(points[:, :1])], 1)
    moved = torch.einsum("dij,pj->pdi", matrices, lifted)
    return moved[..., :-1] - points.unsqueeze(1) * moved[..., -1:]


@lru_cache(maxsize=16)
def _matrices_of_basis(group: LieGroup, action: PointAction) -> Float[Tensor, "d i i"]:
    """Return the matrices of the basis of the algebra; all sizes of two pictures have the same."""
    return _along_basis(group, torch.zeros(1, dtype=torch.float64), action.homogeneous)


def _along_basis(group: LieGroup, reference: Tensor, f: Callable[[Tensor], Tensor]) -> Float[Tensor, "d *r"]:
    """Return derivatives of a function of elements along the basis, at the identity."""
    identity = group.identity(dtype=reference.dtype, device=reference.device)
    zero = torch.zeros(group.dim, dtype=reference.dtype, device=reference.device)
    eye = torch.eye(group.dim, dtype=reference.dtype, device=reference.device)
    moved = lambda v: f(group.perturb(identity, v))  # noqa: E731
    return torch.func.vmap(lambda t: torch.func.jvp(moved, (zero,), (t,))[1])(eye)


def _solved(curvature: Tensor, slope: Tensor, damping: Float[Tensor, " k"]) -> Tensor:
    """Return damped steps, scaled to a diagonal of one; zero where a matrix is none."""
    diagonal = curvature.diagonal(dim1=-2, dim2=-1)
    scale = (diagonal.clamp(min=0.0) + 1e-12 * diagonal.amax(-1, keepdim=True).clamp(min=1e-30)).rsqrt()
    scaled = scale.unsqueeze(-1) * curvature * scale.unsqueeze(-2)
    scaled = scaled + damping[:, None, None] * torch.eye(curvature.shape[-1]).to(curvature)
    known = torch.isfinite(scaled).flatten(1).all(1) & torch.isfinite(slope).all(1)
    scaled = torch.where(known[:, None, None], scaled, torch.eye(curvature.shape[-1]).to(curvature))
    step, info = torch.linalg.solve_ex(scaled, torch.where(known[:, None], scale * slope, 0.0))
    return torch.where((info == 0)[:, None], scale * step, 0.0).nan_to_num(0.0)


def without_own_pull(
    scores: Float[Tensor, "m d"], windows: Float[Tensor, "m d d"], curvature: Float[Tensor, "d d"]
) -> Float[Tensor, "m d"]:
    """Return scores as they would be at an estimate that knows nothing of the pixels around.

    The estimate follows what windows with much of the curvature say, as the corners do, and makes their scores small
    (MacKinnon and White 1985; Bell and McCaffrey 2002).
    """
    values, vectors = torch.linalg.eigh(curvature)
    least = 1e-9 * values[-1].clamp(min=torch.finfo(values.dtype).tiny)
    inverse = ((vectors / values.clamp(min=least)) @ vectors.mT).to(scores.dtype)
    # the binomial series of (1 - pull)^(-1/2), which makes variances right on average
    pull = (windows.flatten(0, 1) @ inverse).unflatten(0, windows.shape[:2])
    pulled = scores
    for k in range(_NUM_TERMS, 0, -1):
        pulled = scores + (1.0 - 0.5 / k) * (pull @ pulled.unsqueeze(-1)).squeeze(-1)
    return pulled


def variance_of_squares(cells: Float[Tensor, "m d d"], windows: Float[Tensor, "m d d"]) -> float:
    r"""Return the relative variance of :math:`\sum_c s_c \cdot s_{w(c)}`, normal scores s of cells c and windows w(c).

    Their covariances are in proportion to the curvatures, whose sum over cells is that of the unit of the product.
    """
    dim = cells.shape[-1]
    inverse = torch.linalg.pinv(cells.sum(0, dtype=torch.float64), hermitian=True)
    products = (cells.flatten(1).mT @ windows.flatten(1)).double().view([dim] * 4)
    both = torch.einsum("ij,kl,jkli->", inverse, inverse, products)
    return 2.0 * float(both) / dim**2


def ridged(gram: Float[Tensor, "*b q q"]) -> Float[Tensor, "*b q q"]:
    """Return sums of products of functions with an addition that makes them independent."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    least = diagonal.amax(-1, keepdim=True).clamp(min=torch.finfo(gram.dtype).tiny)
    return gram + _RIDGE * torch.diag_embed(diagonal + least)


def _sum_of_squares(values: Float[Tensor, "c *p"]) -> Float[Tensor, " *p"]:
    """Return sums of squares over channels."""
    return values[0].square() if len(values) == 1 else values.square().sum(0)


def products_in_cells(one: Float[Tensor, "a m q"], other: Float[Tensor, "b m q"]) -> Float[Tensor, "m a b"]:
    """Return sums over the pixels of a cell of products of what varies in it."""
    return torch.bmm(one.transpose(0, 1), other.permute(1, 2, 0))


def contracted(
    products: Float[Tensor, "m a b"], one: Float[Tensor, "m d a"], other: Float[Tensor, "m d b"]
) -> Float[Tensor, "d d"]:
    """Return sums over cells of products along directions."""
    return ((one @ products).transpose(0, 1).flatten(1) @ other.transpose(0, 1).flatten(1).mT).double()


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(n) for b in range(a, n)]


def pixels_at(image: Float[Tensor, "c *size"], axes: Sequence[Tensor]) -> Float[Tensor, "c *part"]:
    """Return an image at indices along each dimension."""
    for dim, axis in enumerate(axes):
        image = image.index_select(dim + 1, axis)
    return image


def without_halo(image: Float[Tensor, "*b *size"], n: int) -> Tensor:
    """Return an image without its halo."""
    for dim in range(image.ndim - n, image.ndim):
        image = image.narrow(dim, HALO, image.shape[dim] - 2 * HALO)
    return image


def slopes_of(image: Float[Tensor, "c *size"]) -> Float[Tensor, "n c *inner"]:
    """Return central differences of fourth order by the indices x, y, ..., of an image with a halo, without it."""
    n = image.ndim - 1
    found = image.new_empty(n, len(image), *(length - 2 * HALO for length in image.shape[1:]))
    for dim in range(n, 0, -1):
        other = image
        for across in range(1, n + 1):
            if across != dim:
                other = other.narrow(across, HALO, image.shape[across] - 2 * HALO)
        length = image.shape[dim] - 2 * HALO
        at = [other.narrow(dim, start, length) for start in range(5)]
        torch.sub(at[3], at[1], out=found[n - dim]).mul_(2.0 / 3.0).sub_(at[4] - at[0], alpha=1.0 / 12.0)
    return found


def box_sums(values: Float[Tensor, "c *size"], reach: int) -> Float[Tensor, "c *size"]:
    """Return sums over windows of so many places on each side."""
    for dim in range(1, values.ndim):
        moved = values.movedim(dim, -1)
        padded = functional.pad(moved, (reach + 1, reach)).cumsum(-1)
        values = (padded[..., 2 * reach + 1 :] - padded[..., : -2 * reach - 1]).movedim(-1, dim)
    return values
