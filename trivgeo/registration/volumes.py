"""Registration of volumes: from any rotation, in millimetres, also of one modality to another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from trivgeo._random import normal
from trivgeo.actions import ImageWarp, Volume
from trivgeo.actions.image import frame_from_pixels
from trivgeo.actions.volume import check_volume
from trivgeo.checks import check_tensor, promoted
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.inversion.transformations import Transformations, sample_elements
from trivgeo.registration.images import MEAN_SIDE, Found, ImageRegistration, Solution
from trivgeo.registration.inverse_compositional import (
    SPLINE_VARIANCE,
    Comparison,
    Exposure,
    Grid,
    Picture,
    Sums,
    indices_of,
)
from trivgeo.registration.mutual_information import (
    MAX_RIVAL_LEFT,
    MIN_DIFFERENCE,
    MutualComparison,
    MutualRegistration,
)
from trivgeo.registration.record import Registration
from trivgeo.verdict import Verdict

Similarity = Literal["intensity", "mutual_information"]

_COARSEST_SIDE = 24  # longest side of the coarsest volumes on which descents run, in voxels
_SEARCHED_SIDE = 12  # longest side of the volumes on which first elements are compared, in voxels
_ANGLES_IN_DEGREES = (20.0, 40.0)  # rotations of first elements, about each of 26 axes
_NUM_KEPT_FIRST = 12  # first elements from which descents begin
_NUM_KEPT = (4, 2)  # distinct hypotheses that go on from each level
_NUM_STEPS = (12, 8, 5)  # steps at each level
_NUM_LAST_STEPS = 30  # steps after which elements are told from the best one
_LEAST_STEP_IN_VOXELS = 0.02  # length of steps at which descents end at a level
_LEAST_COVER = 0.999  # mean of a mask from which on a larger voxel counts
_MATRIX_TOLERANCE = 1e-6  # distance of a matrix from the group
_LEAST_VARIANCE, _MAX_VARIANCE = 1e-3, 0.5  # variance of a kernel of three voxels
BLUR_VARIANCE = 0.5  # of the blur after which splines between voxels have the noise of those at voxels, in voxels
_REACH_IN_STDS = 2.0  # distance from an edge at which a kernel hardly reads what is beyond it, in standard deviations
_NUM_SAMPLES = 2**13  # voxels by which it is known whether anything is compared
_SIDE_OF_SAMPLE = 24  # voxels along the longest side at which places between voxels are looked at
_MARGIN = 2  # voxels along each edge that slopes and blurs read
_WIDTH_IN_STDS = 5.0  # width of the first robust loss, in standard deviations of the residuals
_MIN_LEFT = 1e-6  # share of the variance that is left, for the width of a loss
_MAX_LEFT_BY_FIELD = 0.8  # share of the squares of residuals that an uneven exposure may leave at a solution without it


@dataclass(eq=False)
class VolumeRegistration(ImageRegistration):
    """Registration of two volumes: many places on a coarse grid, descents from coarse to fine, last steps and checks.

    Steps are in coordinates of about unit size, with the middle of the fixed volume at zero where the group has shifts.

    Args:
        matrices: maps from voxels (i, j, k, 1) of both volumes to points, ``[4, 4]``.
        unit: map from coordinates of about unit size to points; ``None`` for that of the fixed volume.
    """

    hints: ClassVar[tuple[str, ...]] = ()

    matrices: tuple[Tensor, ...] = ()
    unit: Tensor | None = None

    def __post_init__(self) -> None:
        self.action = ImageWarp(self.group, guarded=False)
        self.contrast = float(self.fixed.std(correction=0)) or 1.0
        middle = self.fixed.mean()
        if self.unit is None:
            self.unit = _unit(self.group, self.fixed.shape[1:], self.matrices[1])
        back = torch.linalg.inv(self.unit)
        moving, fixed = (
            Picture((image - middle) / self.contrast, Grid(tuple(image.shape[1:]), back @ matrix), mask)
            for image, matrix, mask in zip((self.moving, self.fixed), self.matrices, self.masks, strict=True)
        )
        self._own = moving.grid.matrix, fixed.grid.matrix
        self.spacing = max(_spacing(moving), _spacing(fixed))
        self.pictures = tuple(_with_spacing(picture, self.spacing) for picture in (moving, fixed))
        self.longer = max(self.pictures[1].grid.size)
        number = 1 + max(0, math.floor(math.log2(self.longer / _COARSEST_SIDE)))
        self.factors = [0.5**level for level in range(number)][::-1]
        self._comparisons: dict[float, Comparison] = {}

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            "most of what both volumes show moves as one",
            "noise of one is not that of the other",
            "the best place is near one of the coarse search",
        )

    @property
    def frames(self) -> tuple[Tensor, Tensor]:
        return self.matrices[0], self.matrices[1]

    def _comparison(self, factor: float) -> Comparison:
        """Return the comparison at voxels of so many times the spacing, in single precision."""
        if factor not in self._comparisons:
            moving, fixed = self._with_spacing(self.spacing / factor)
            self._comparisons[factor] = self._compared(moving, fixed)
        return self._comparisons[factor]

    def _with_spacing(self, spacing: float) -> list[Picture]:
        """Return both volumes on voxels of a spacing, in single precision."""
        return [_with_spacing(picture.to(torch.float32), spacing) for picture in self.pictures]

    def _first(self) -> Float[Tensor, "k *e"]:
        """Return first elements, for the inverse: of what was given, or rotations with centres on each other."""
        group, action = self.group, self.action.point_action
        identity = group.identity(1, dtype=torch.float64, device=self.moving.device)
        if self.transformations is not None:
            assert self.unit is not None
            given = sample_elements(group, self.transformations, self.num_starts, self.generator).to(identity)
            return group.inverse(torch.cat([identity, conjugated(group, torch.linalg.inv(self.unit), given)]))
        moving, fixed = (_centre(picture) for picture in self.pictures)
        turns = torch.cat([_small_rotations(), _random_rotations(self.num_starts, self.generator)]).to(identity)
        matrices = torch.eye(4).to(identity).repeat(2 * len(turns) + 1, 1, 1)
        matrices[:-1, :3, :3] = turns.repeat(2, 1, 1)
        matrices[: len(turns), :3, 3] = moving - turns @ fixed
        matrices[-1, :3, 3] = moving - fixed
        found = action.from_homogeneous(matrices)
        near = (action.homogeneous(found) - matrices).abs().amax((-2, -1)) < _MATRIX_TOLERANCE
        return torch.cat([identity, found[near]])

    def searched(self) -> tuple[Found]:
        comparison = self._comparison(min(1.0, _SEARCHED_SIDE / self.longer))
        exposure, h = self._exposure(), self._first()
        h = h[self._left(comparison.sums(h, exposure, None)).argsort()[:_NUM_KEPT_FIRST]]
        for level, factor in enumerate(self.factors[: max(1, len(self.factors) - 1)]):  # the last steps are at the last
            comparison = self._comparison(factor)
            h, sums = self._descended_beside(comparison, h, exposure, _NUM_STEPS[min(level, len(_NUM_STEPS) - 1)])
            h = h[self._left(sums).argsort()]
            h = self._distinct(h, 2.0 / max(comparison.fixed.grid.size))[: _NUM_KEPT[min(level, len(_NUM_KEPT) - 1)]]
        return (self._beside(comparison, h, exposure),)

    def _beside(self, comparison: Comparison, h: Tensor, exposure: Exposure) -> Found:
        """Return the first element with its exposure, and others that leave about as little of the variance."""
        sums = comparison.sums(h, exposure, None)
        left = self._left(sums)
        if not math.isfinite(float(left[0])):
            return Found(h[:1], exposure, found=False)
        parts = sums.reduced()[2][0, ..., -1]
        exposure = exposure._replace(theta=exposure.theta - parts.to(exposure.theta.dtype))
        width = _WIDTH_IN_STDS * math.sqrt(max(float(left[0]), _MIN_LEFT))
        alike = left < MAX_RIVAL_LEFT * left[0] + MIN_DIFFERENCE
        if len(h := h[alike]) > 1:  # descents that have not ended are no other places
            ends, _ = self._descended_beside(comparison, h[1:], exposure, _NUM_LAST_STEPS)
            h = self._distinct(torch.cat([h[:1], ends]), 2.0 / max(comparison.fixed.grid.size))
        return Found(h, exposure, width, 1.0 - float(left[0]))

    def _left(self, sums: Sums) -> Float[Tensor, " k"]:
        """Return the share of the variance of the fixed volume that the moving one does not explain."""
        return _left(sums)

    def _exposure(self) -> Exposure:
        """Return the exposure that changes nothing."""
        return Exposure.none(len(self.fixed), self.pictures[1].image.float())

    def _descended_beside(
        self, comparison: Comparison, h: Tensor, exposure: Exposure, steps: int
    ) -> tuple[Tensor, Sums]:
        """Return elements after steps that leave less and less of the variance, each beside its own exposure."""
        least = _LEAST_STEP_IN_VOXELS * 2.0 / max(comparison.fixed.grid.size)
        return comparison.descended(h, exposure, None, steps, least, self._left)

    def _hidden(self, found: Found) -> tuple[Tensor, float]:
        return self.fixed.new_zeros(1), 0.0

    def _full(self, h: Tensor, hidden: Tensor) -> Comparison:
        return self._close(self.pictures, h)

    def _close(self, pictures: Sequence[Picture], h: Tensor) -> Comparison:
        """Return a comparison near an element, in which the fixed volume is as wide as an interpolated one."""
        moving, fixed = pictures
        margin = min(_MARGIN, (min(fixed.grid.size) - 1) // 8)
        return self._alike(moving, fixed._replace(margin=margin, mask=_eroded(fixed.mask, margin)), h)

    def _alike(self, moving: Picture, fixed: Picture, h: Tensor) -> Comparison:
        """Return the comparison in which both volumes are as wide near an element."""
        # means over voxels and splines widen the moving volume, and means the fixed one
        means = [
            torch.diag((1.0 - (own[:3, :3].norm(dim=0) / picture.grid.matrix[:3, :3].norm(dim=0)).square()) / 12.0)
            for picture, own in zip((moving, fixed), self._own, strict=True)
        ]
        widened = means[0] + SPLINE_VARIANCE * torch.eye(3).to(means[0])
        fixed = soft(fixed, _pulled_back(widened, self._compared(moving, fixed), h) - means[1])
        return self._compared(moving, fixed, "smoothing")

    def _blurred(self, comparison: Comparison, h: Tensor) -> Comparison:
        moving, fixed = comparison.moving, comparison.fixed
        kernel = BLUR_VARIANCE * torch.diag((self.spacing / moving.grid.matrix[:3, :3].norm(dim=0)).square())
        # the motion stretches the kernel on the moving volume
        pictures = soft(moving, kernel), soft(fixed, _pulled_back(kernel, comparison, h))
        return self._compared(*pictures, comparison.interpolation)

    def _step(self, comparison: Comparison, solution: Solution) -> Tensor:
        return torch.zeros(self.group.dim).to(solution.element)  # volumes are interpolated in one way

    def _of_means(self, h: Tensor) -> Comparison:
        factor = next((f for f in self.factors if f >= 1.0 / MEAN_SIDE), 1.0)
        # means of few voxels have noise, of which an exposure that is flat where a volume shows nothing takes a part
        return self._coarse(1.0 / factor, h) if factor < 1.0 else super()._of_means(h)

    def _coarse(self, factor: float, h: Tensor) -> Comparison:
        """Return a comparison near an element on voxels of so many times the spacing."""
        return self._close(self._with_spacing(factor * self.spacing), h)

    def _others(
        self, solution: Solution, met: Tensor, least_width: float, covariance: Tensor, noisy: bool, hidden: Tensor
    ) -> Float[Tensor, "k *e"]:
        return met[self._are_other(met, solution.element[None], covariance)] if len(met) else met

    def _unexplained(self, solution: Solution, least_width: float, hidden: Tensor) -> tuple[str, ...]:
        found = Found(solution.element[None], solution.exposure, solution.width)
        if solution.exposure.uneven is None and self._is_uneven(found, _MAX_LEFT_BY_FIELD):
            return ("a smooth field or a curve makes the one brighter, and moves it: correct it first (such as by N4)",)
        return ()

    def judged(self, found: Found) -> Registration:
        r = self._checked(found)
        return self._with_interpolation(r, found) if r.found else r

    def _with_interpolation(self, r: Registration, found: Found) -> Registration:
        """Return the registration with a covariance that admits errors of interpolation.

        Between volumes of one width they fall with the fourth power of the side of a voxel: they are a fifteenth
        of the distance to what voxels of twice the side give.
        """
        group, h = self.group, self.group.inverse(r.element.double())
        comparison = self._blurred(self._coarse(2.0, h), h)
        if not bool(comparison.sample(h, _NUM_SAMPLES)[2].any()):
            return replace(r, verdict=r.verdict & Verdict(("too few voxels count for the error of interpolation",)))
        found = found._replace(elements=h[None])
        other = self._solved(comparison, found, self._is_uneven(found))
        v = group.log(group.compose(group.inverse(r.element.double()), group.inverse(other.element))) / 15.0
        return replace(r, covariance=(r.covariance.double() + torch.outer(v, v)).to(r.covariance.dtype))

    def registered(self) -> Registration:
        assert self.unit is not None
        r = super().registered()
        group, unit, dtype = self.group, self.unit, r.element.dtype
        change = _adjoint(group, unit)
        covariance = change @ r.covariance.double() @ change.mT
        modes = replace(r.modes, elements=conjugated(group, unit, r.modes.elements))
        element = conjugated(group, unit, r.element)
        return replace(r, element=element.to(dtype), covariance=covariance.to(dtype), modes=modes)


class MutualVolumeComparison(MutualComparison):
    """A comparison of volumes by mutual information."""

    num_windows = 2.4  # as long as their few sums leave a variance


@dataclass(eq=False)
class MutualVolumeRegistration(MutualRegistration, VolumeRegistration):
    """Registration of two volumes by mutual information."""

    comparison: ClassVar[type[Comparison]] = MutualVolumeComparison

    def _the_other_way(self) -> MutualRegistration:
        masks, matrices = self.masks[::-1], self.matrices[::-1]
        return replace(self, moving=self.fixed, fixed=self.moving, masks=masks, matrices=matrices, unit=self.unit)

    def _found_at(self, h: Tensor) -> Found:
        return self._beside(self._comparison(self.factors[max(0, len(self.factors) - 2)]), h, self._exposure())

    def _with_spacing(self, spacing: float) -> list[Picture]:
        # labels have slopes beside their edges, too
        return [soft(picture, torch.eye(3)) for picture in super()._with_spacing(spacing)]

    def _left(self, sums: Sums) -> Float[Tensor, " k"]:
        return sums.energy

    def _alike(self, moving: Picture, fixed: Picture, h: Tensor) -> Comparison:
        # what is wider has edges of two tissues elsewhere in another modality
        plain = self._compared(moving, fixed)
        return self._compared(moving, soft(fixed, _pulled_back(_interpolated(plain, h), plain, h)))


def _left(sums: Sums) -> Float[Tensor, " k"]:
    """Return the share of the variance of the fixed volume that the exposure of the moving one does not explain."""
    explained = (sums.ahead * sums.reduced()[2][..., -1]).sum((1, 2))
    weight, fixed, square = sums.moments.unbind(-1)
    variance = (square - fixed.square() / weight.clamp(min=1.0)).sum(1)
    rest = sums.energy * weight[:, 0] - explained
    return torch.where(variance > 0, rest.clamp(min=0.0) / variance, torch.inf)


def conjugated(group: LieGroup, unit: Float[Tensor, "4 4"], g: Tensor) -> Tensor:
    """Return the element that acts on points as g does on points before ``unit`` moved them."""
    action = group.action()
    matrix = unit @ action.homogeneous(g.double()) @ torch.linalg.inv(unit)
    return action.from_homogeneous(matrix / matrix[..., -1:, -1:])


def _adjoint(group: LieGroup, unit: Float[Tensor, "4 4"]) -> Float[Tensor, "n n"]:
    """Return the matrix from v to v' where `conjugated` takes ``exp(v)`` to ``exp(v')``."""
    zero = torch.zeros(group.dim, dtype=unit.dtype, device=unit.device)
    basis = torch.func.jacrev(lambda v: group.action().homogeneous(group.exp(v)))(zero)
    moved = torch.einsum("ij,jkn,kl->iln", unit, basis, torch.linalg.inv(unit))
    return torch.linalg.pinv(basis.flatten(0, 1)) @ moved.flatten(0, 1)


def _unit(group: LieGroup, size: Sequence[int], matrix: Float[Tensor, "4 4"]) -> Float[Tensor, "4 4"]:
    """Return the map from coordinates of about unit size to points; zero is the middle, if the group has shifts."""
    sides = matrix[:3, :3].norm(dim=0) * matrix.new_tensor(size[::-1])
    unit = torch.diag(torch.stack([*(0.5 * sides.max()).expand(3), torch.ones_like(sides[0])]))
    middle = matrix[:3, :3] @ (0.5 * (matrix.new_tensor(size[::-1]) - 1.0)) + matrix[:3, 3]
    shifted = unit.clone()
    shifted[:3, 3] = middle
    some = group.exp(0.1 * torch.eye(group.dim).to(matrix))
    wanted = shifted @ group.action().homogeneous(some) @ torch.linalg.inv(shifted)
    off = (group.action().homogeneous(conjugated(group, shifted, some)) - wanted).abs().amax()
    return shifted if bool(off < _MATRIX_TOLERANCE * (middle.abs().amax() + sides.max())) else unit


def _spacing(picture: Picture) -> float:
    """Return the side of a cube as large as a voxel."""
    return float(torch.linalg.det(picture.grid.matrix[:3, :3]).abs()) ** (1.0 / 3.0)


def _with_spacing(picture: Picture, spacing: float) -> Picture:
    """Return the picture of means over whole numbers of voxels, whose sides are about a spacing or larger."""
    size, matrix = picture.grid.size, picture.grid.matrix
    own = matrix[:3, :3].norm(dim=0).tolist()[::-1]
    whole = [min(max(1, round(spacing / side)), n) for n, side in zip(size, own, strict=True)]
    if max(whole) == 1:
        return picture
    # the last means are of fewer voxels where a side is no multiple
    image, mask = (
        None if part is None else functional.avg_pool3d(part[None], whole, ceil_mode=True, count_include_pad=False)[0]
        for part in (picture.image, None if picture.mask is None else picture.mask[None])
    )
    assert image is not None
    to_ours = torch.diag(matrix.new_tensor([*whole[::-1], 1.0]))
    to_ours[:3, 3] = 0.5 * (matrix.new_tensor(whole[::-1]) - 1.0)
    counted = None if mask is None else (mask[0] > _LEAST_COVER).to(image.dtype)
    return Picture(image, Grid(tuple(image.shape[1:]), matrix @ to_ours), counted)


def soft(picture: Picture, covariance: Float[Tensor, "3 3"]) -> Picture:
    """Return the picture under a kernel of a given covariance along w, h and d, in voxels.

    The kernel is a product of kernels of three voxels along axes and diagonals, whose covariances add up exactly. No
    such product has a covariance between two axes that is larger than the variance along either.
    """
    image, size = picture.image, picture.grid.size[::-1]
    along = covariance.diagonal().clamp(min=0.0).tolist()
    directions: list[tuple[tuple[int, ...], float]] = []
    for a, b in itertools.combinations(range(3), 2):
        both = min(abs(float(covariance[a, b])), along[a], along[b])
        if both > _LEAST_VARIANCE and min(size[a], size[b]) > 1:
            sign = int(math.copysign(1.0, float(covariance[a, b])))
            directions.append((tuple(1 if axis == a else sign if axis == b else 0 for axis in range(3)), both))
            along[a], along[b] = along[a] - both, along[b] - both
    directions += [
        (tuple(int(other == axis) for other in range(3)), along[axis]) for axis in range(3) if size[axis] > 1
    ]
    for direction, variance in directions:
        passes = math.ceil(variance / _MAX_VARIANCE)
        for _ in range(passes):
            image = _between_neighbours(image, direction, 0.5 * variance / passes)
    reach = math.ceil(_REACH_IN_STDS * math.sqrt(max(0.0, *covariance.diagonal().tolist())))
    margin = max(picture.margin, reach) if min(size) > 8 * reach else picture.margin
    return Picture(image, picture.grid, _eroded(picture.mask, reach), margin)


def _between_neighbours(image: Float[Tensor, "c d h w"], direction: Sequence[int], share: float) -> Tensor:
    """Return the image with a share of the neighbour on either side, along w, h and d.

    Beyond the outermost voxels the image goes on as a straight line: repeated, they would draw edges inwards.
    """
    pads = [abs(step) for step in direction for _ in range(2)]
    repeated, mirrored = (functional.pad(image, pads, mode=mode) for mode in ("replicate", "reflect"))
    padded = 2.0 * repeated - mirrored
    beside = []
    for sign in (1, -1):
        other = padded
        for dim, (step, length) in enumerate(zip(direction[::-1], image.shape[1:], strict=True), 1):
            other = other.narrow(dim, abs(step) + sign * step, length)
        beside.append(other)
    return torch.add((1.0 - 2.0 * share) * image, beside[0] + beside[1], alpha=share)


def _interpolated(comparison: Comparison, h: Tensor) -> Float[Tensor, "3 3"]:
    """Return the covariance by which linear interpolation of the moving volume widens it, in voxels.

    Between two voxels, at a part f of the way, the variance is f (1 - f).
    """
    n = comparison.n
    fixed, moving = comparison.fixed.grid, comparison.moving.grid
    matrix = torch.linalg.inv(moving.matrix) @ comparison.action.homogeneous(h) @ fixed.matrix
    step = max(1, max(fixed.size) // _SIDE_OF_SAMPLE)
    index = indices_of([torch.arange(0, side, step).to(matrix) for side in fixed.size]).flatten(1)
    part = (matrix[:n, :n] @ index + matrix[:n, n:]) % 1.0
    return torch.diag((part * (1.0 - part)).mean(1))


def _pulled_back(covariance: Float[Tensor, "3 3"], comparison: Comparison, h: Tensor) -> Float[Tensor, "3 3"]:
    """Return the covariance of a kernel on the moving volume, in voxels, as one on the fixed volume, in voxels."""
    n = comparison.n
    matrix = torch.linalg.inv(comparison.moving.grid.matrix) @ comparison.action.homogeneous(h)
    back = torch.linalg.inv((matrix @ comparison.fixed.grid.matrix)[:n, :n])
    return back @ covariance.to(back) @ back.mT


def _eroded(mask: Float[Tensor, "d h w"] | None, reach: int) -> Float[Tensor, "d h w"] | None:
    """Return the voxels that are so many away from those that do not count."""
    if mask is None or reach == 0:
        return mask
    return 1.0 - functional.max_pool3d(1.0 - mask[None, None], 2 * reach + 1, 1, reach)[0, 0]


def _centre(picture: Picture) -> Float[Tensor, " 3"]:
    """Return the centre of the squares of differences from the background, the median of the faces."""
    image = picture.image.double()
    faces = torch.cat([image.select(dim, side).flatten(1) for dim in (1, 2, 3) for side in (0, -1)], 1)
    weight = (image - faces.median(1).values.reshape(-1, 1, 1, 1)).square().sum(0)
    weight = weight if picture.mask is None else weight * picture.mask
    total = weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
    along = [
        (weight.sum([axis for axis in range(3) if axis != dim]) * torch.arange(n).to(weight)).sum() / total
        for dim, n in enumerate(weight.shape)
    ]
    return picture.grid.matrix[:3, :3] @ torch.stack(along[::-1]) + picture.grid.matrix[:3, 3]


def _small_rotations() -> Float[Tensor, "r 3 3"]:
    """Return rotations about 26 axes, and the identity."""
    axes = torch.tensor([v for v in itertools.product((-1.0, 0.0, 1.0), repeat=3) if any(v)], dtype=torch.float64)
    v = torch.cat([functional.normalize(axes, dim=1) * math.radians(angle) for angle in (0.0, *_ANGLES_IN_DEGREES)])
    v = v[len(axes) - 1 :]
    eye = torch.eye(3, dtype=v.dtype)
    return torch.linalg.matrix_exp(torch.linalg.cross(v[:, None].expand(-1, 3, 3), eye.expand(len(v), 3, 3)).mT)


def _random_rotations(number: int, generator: torch.Generator) -> Float[Tensor, "r 3 3"]:
    """Return uniform rotations, from normal quaternions."""
    q = functional.normalize(normal((number, 4), torch.zeros(1, dtype=torch.float64), generator), dim=1)
    w, x, y, z = q.unbind(1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def register_volumes(
    moving: Volume | Tensor,
    fixed: Volume | Tensor,
    group: LieGroup,
    similarity: str,
    masks: tuple[Tensor | None, Tensor | None],
    transformations: Transformations | None,
    num_starts: int,
    generator: torch.Generator,
) -> Registration:
    """Return the registration of two volumes, both with the affine of a file or both without, see `register`.

    Raises:
        ConfigurationError: numbers that are not floating-point, one `Volume` and one tensor, a group that does not
            act on space by matrices, or an unknown similarity.
        ShapeError: several volumes, different numbers of channels, or masks of other sizes.
        NonFiniteError: the data hold NaN or infinity.
    """
    if isinstance(moving, Volume) != isinstance(fixed, Volume):
        raise ConfigurationError(f"fixed: expected a {type(moving).__name__}, as moving, got {type(fixed).__name__}")
    if 3 not in group.action().point_dims:
        raise ConfigurationError(
            f"group: expected one that acts on points of 3 coordinates, got {group!r}, for volumes [c, d, h, w] "
            "(photographs are [c, h, w])"
        )
    group.action().homogeneous(group.identity(1))  # raises where the group has no matrices
    if similarity not in get_args(Similarity):
        raise ConfigurationError(f"similarity: expected one of {', '.join(get_args(Similarity))}, got {similarity!r}")
    data = [_checked(name, volume) for name, volume in (("moving", moving), ("fixed", fixed))]
    if len(data[0]) != len(data[1]):
        raise ShapeError(f"fixed: expected {len(data[0])} channels, as moving, got {len(data[1])}")
    x, y = promoted(moving=data[0], fixed=data[1])
    if isinstance(moving, Volume) and isinstance(fixed, Volume):
        matrices = tuple(volume.affine.detach().to(x.device, torch.float64) for volume in (moving, fixed))
        for name, matrix in zip(("moving", "fixed"), matrices, strict=True):
            if not bool(torch.isfinite(matrix).all()) or not float(torch.linalg.det(matrix[:3, :3]).abs()) > 0.0:
                raise DomainError(f"{name}.affine: expected a finite regular matrix, got {matrix}")
    else:  # voxels of one size, in the frame of the fixed volume
        matrices = tuple(
            torch.diag(whole.new_tensor([*([max(own) / max(y.shape[1:])] * 3), 1.0])) @ whole
            for own, whole in ((part.shape[1:], frame_from_pixels(part.shape[1:], x)) for part in (x, y))
        )
    unknown = [data.isnan().any(0) for data in (x, y)]
    shown = [
        mask if not bool(nan.any()) else ~nan if mask is None else _shown(mask, nan)
        for mask, nan in zip(masks, unknown, strict=True)
    ]
    x, y = (torch.where(data.isnan(), data.nanmedian(), data) for data in (x, y))
    counted = [_checked_mask(*part) for part in zip(("moving_mask", "fixed_mask"), shown, (x, y), strict=True)]
    kind = MutualVolumeRegistration if similarity == "mutual_information" else VolumeRegistration
    settings = (group, transformations, num_starts, generator, similarity, tuple(counted))
    return kind(x, y, *settings, matrices=matrices).registered()


def _checked(name: str, volume: Volume | Tensor) -> Float[Tensor, "c d h w"]:
    """Return the data of one finite volume, in single precision at least."""
    data = volume.data if isinstance(volume, Volume) else volume
    if isinstance(data, Tensor) and not data.dtype.is_floating_point and not data.dtype.is_complex:
        data = data.to(torch.float32)  # such as CT in Hounsfield units, and labels
    if isinstance(volume, Volume):
        check_volume(name, volume._replace(data=data))
    data = check_tensor(name, data).detach()
    if data.ndim != 4 or 0 in data.shape:
        raise ShapeError(f"{name}: expected one volume [c, d, h, w], got {list(data.shape)}")
    if bool(torch.isinf(data).any()) or bool(torch.isnan(data).all()):
        raise NonFiniteError(f"{name}: expected finite numbers, but for voxels of NaN that show nothing")
    return data.to(torch.promote_types(data.dtype, torch.float32))


def _shown(mask: Tensor, nan: Bool[Tensor, "d h w"]) -> Tensor:
    """Return a mask without voxels of NaN; one of another size is refused later."""
    fits = isinstance(mask, Tensor) and mask.shape == nan.shape
    return (mask.to(nan.device) > 0) & ~nan if fits else mask


def _checked_mask(name: str, mask: Tensor | None, data: Float[Tensor, "c d h w"]) -> Float[Tensor, "d h w"] | None:
    """Return ones where voxels count, or ``None`` for all."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.shape != data.shape[1:]:
        got = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ShapeError(f"{name}: expected a tensor {list(data.shape[1:])}, as the volume, got {got}")
    counted = mask.to(data.device) > 0
    if not bool(counted.any()):
        raise DomainError(f"{name}: expected some voxels that count, got none")
    return counted.to(data.dtype)
