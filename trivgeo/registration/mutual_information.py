r"""Registration by the mutual information of two images, on grids of any dimension.

Values of one image belong to values of the other with probabilities p(f, m) that are estimated from the joint histogram
of both (Viola and Wells 1997; Mattes et al. 2003). Nothing else is said of how they belong to each other.

Descents move the image of f, whose slopes are those of all steps: the derivative of pixel p along v is
:math:`\partial_f \log p(m \mid f)\, \nabla I_0(p) \cdot \xi_v(p)`. Given f its mean is zero, and its variance is the
Fisher information, a function of f alone. Under changes of volume this is not quite the derivative of the information.
The last equations are: there the image of m is moved. Brightness as a function of the other one draws either image a
little, as in the two regressions of two numbers on each other: each is held fixed in turn.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trivgeo.registration.blocks import BlockEstimate, BlockSums, block_estimate
from trivgeo.registration.images import (
    BLUR_REACH,
    BLURS,
    MAX_SIDE_OF_OTHERS,
    NUM_LOOK_ALIKES,
    Found,
    ImageRegistration,
    Solution,
    soft,
)
from trivgeo.registration.inverse_compositional import (
    CORRELATION_REACH,
    HALO,
    LEAST_OVERLAP,
    MIN_BLOCK_SIDE,
    CloseComparison,
    Comparison,
    Exposure,
    Interpolation,
    Picture,
    Sums,
    box_sums,
    contracted,
    indices_of,
    pixels_at,
    products_in_cells,
    slopes_of,
    variance_of_squares,
    without_halo,
    without_own_pull,
)
from trivgeo.registration.look_alikes import look_alikes
from trivgeo.registration.record import Registration, rounding_std
from trivgeo.verdict import Verdict

_BINS_PER_SIDE, _MIN_BINS, _MAX_BINS = 1.0, 8, 64  # bins of values in units of the side of a cube of all pixels
_OUTER_SHARE = 0.002  # share of the values in the first bin, and in the last one
_MAX_NUMBERS_AT_ONCE = 2**20  # numbers of restored images that are worked on at once
_MIN_IN_BIN = 16.0  # pixels in a bin by which probabilities are estimated
_NUM_VALUES = 2**16  # values by which bins are chosen
_INDEPENDENT_SHARE = 0.01  # share of pixels whose values in both images are taken to be unrelated
_WHITE_SQUARE = 65 / 72  # square of the slope of white noise of variance one
_WHITE_SHARE = 6.0  # shared curvature of white noise in a block of one pixel, in units of that of blurred noise
# values of an image of classes, share of pixels like the next one within all but one, and pairs that are compared
_MAX_NAMES, _MIN_SHARE_ALIKE, _MAX_CLASSES = 256, 0.75, 9
_LEAST_SIDE = 32  # longer side of the coarsest photographs, in pixels
_MAX_LAST_STEPS, _MAX_LAST_STEP_IN_STDS = 15, 0.2  # last steps, and the length of one
_MIN_SHARE_OF_STEP = 0.25  # share of the way to the solution that a step takes at least
_LEAST_STEP, _NUM_STEPS = 0.02, 15  # last step of the last descent of photographs, in pixels, and their number
_SHORTEST = 0.1  # least length of a step in units of that to the solution of linearised equations
# share of the variance that a rival leaves, in units of that of the best one; difference that does not tell them apart
MAX_RIVAL_LEFT, MIN_DIFFERENCE = 1.15, 1e-3
_ONE_WAY = "the image that alone says where the other lies, held fixed, does not draw it: there is no second answer"
_LEAST_ROUGHNESS = 1e-3  # square of the slope of noise, in units of that of white noise
_KERNEL = (0.375, 0.25, 0.0625, 0.0)  # kernel under which a histogram is a density, by distance in bins


class _Bins(NamedTuple):
    """Bins of the values of channels: the middle of the first one, and their distance, ``[c]``."""

    first: Float[Tensor, " c"]
    width: Float[Tensor, " c"]
    number: int

    @classmethod
    def over(cls, picture: Picture, number: int) -> _Bins:
        values = picture.image.flatten(1)
        values = values[:, :: max(1, values.shape[1] // _NUM_VALUES)]
        low, high = torch.quantile(values, values.new_tensor([_OUTER_SHARE, 1.0 - _OUTER_SHARE]), dim=1)
        width = ((high - low) / (number - 1)).clamp(min=torch.finfo(values.dtype).eps)
        return cls(low, width, number)

    def places(self, values: Float[Tensor, "c *p"]) -> tuple[Int[Tensor, "c *p"], Float[Tensor, "c *p"]]:
        """Return the bins below values, but the last one, and how far it is from these to the next ones."""
        first, width = (part.reshape(-1, *[1] * (values.ndim - 1)).to(values) for part in (self.first, self.width))
        along = ((values - first) / width).clamp(0.0, self.number - 1.0)
        below = along.long().clamp(max=self.number - 2)
        return below, along - below


class _Tables(NamedTuple):
    """What the joint histogram of each channel says for k elements, f along the second last dimension.

    Attributes:
        information: mutual information, summed over channels, ``[k]``.
        score: derivative of log p(m | f) by f, between bins of f, ``[k, c, b - 1, b]``.
        fisher: its variance given f, ``[k, c, b - 1]``.
        pull: derivative of log p(f | m) by m, between bins of m, ``[k, c, b, b - 1]``.
        left: variance of f given m, ``[k, c]``.
    """

    information: Tensor
    score: Tensor
    fisher: Tensor
    pull: Tensor
    left: Tensor


def _without_gaps(rows: Float[Tensor, "*k b a"], numbers: Float[Tensor, "*k b"]) -> Float[Tensor, "*k b a"]:
    """Return rows that are linear between those of enough pixels, as those of labels are few."""
    bins = rows.shape[-2]
    number = torch.arange(bins, device=rows.device).expand(numbers.shape)
    known = numbers >= _MIN_IN_BIN
    before = torch.where(known, number, -1).cummax(-1).values
    after = torch.where(known, number, bins).flip(-1).cummin(-1).values.flip(-1)
    before, after = torch.where(before < 0, after, before), torch.where(after == bins, before, after)
    before, after = before.clamp(0, bins - 1), after.clamp(0, bins - 1)
    part = ((number - before) / (after - before).clamp(min=1)).clamp(0.0, 1.0).to(rows).unsqueeze(-1)
    first, last = (rows.gather(-2, at.unsqueeze(-1).expand_as(rows)) for at in (before, after))
    return torch.lerp(first, last, part)


class MutualComparison(Comparison):
    """A comparison by mutual information: exposures and widths of losses are not read."""

    max_rise = 1.0

    # sets of pixels in which scores are summed, or more, if these are so long that noise is not alike beyond them
    num_windows: ClassVar[float] = math.inf

    @cached_property
    def _bins(self) -> tuple[_Bins, _Bins]:
        """The bins of the fixed and of the moving picture."""
        side = min(self.fixed.number(), self.moving.number()) ** (1 / 3)
        number = max(_MIN_BINS, min(_MAX_BINS, round(_BINS_PER_SIDE * side)))
        return _Bins.over(self.fixed, number), _Bins.over(self.moving, number)

    def _tables(self, joint: Float[Tensor, "k c b b"]) -> _Tables:
        """Return what histograms say."""
        bins = joint.shape[-1]
        number = torch.arange(bins, device=joint.device)
        kernel = joint.new_tensor(_KERNEL)[(number - number.unsqueeze(-1)).abs().clamp(max=len(_KERNEL) - 1)]
        kernel = kernel / kernel.sum(0)  # keeps the mass
        density = kernel @ (joint / joint.sum((-2, -1), keepdim=True).clamp(min=1.0)) @ kernel.mT
        of_f, of_m = density.sum(-1, keepdim=True), density.sum(-2, keepdim=True)
        tiny = torch.finfo(joint.dtype).eps
        density = (1.0 - _INDEPENDENT_SHARE) * density + _INDEPENDENT_SHARE * of_f * of_m + tiny**2
        logarithm = _without_gaps(
            (density / density.sum(-1, keepdim=True)).log(), of_f.squeeze(-1) * joint.sum((-2, -1)).unsqueeze(-1)
        )
        given = logarithm.exp()
        excess = logarithm - (of_m + tiny**2).log()
        information = (density * excess).sum((-3, -2, -1))
        width, width_of_m = (bins.width.to(joint) for bins in self._bins)
        pull = excess.diff(dim=-1) / width_of_m[:, None, None]
        score = logarithm.diff(dim=-2) / width[:, None, None]
        fisher = (0.5 * (given[..., 1:, :] + given[..., :-1, :]) * score.square()).sum(-1)
        number = number.to(joint).unsqueeze(-1)
        mass = density.sum(-2).clamp(min=tiny)
        mean = (number * density).sum(-2) / mass
        left = ((number - mean.unsqueeze(-2)).square() * density).sum((-2, -1)) * width.square()
        return _Tables(information, score, fisher, pull, left)

    def _restored(self, h: Tensor) -> tuple[list[Tensor], list[Tensor], Float[Tensor, "k c b b"]]:
        """Return the moving picture at all pixels, what counts, and the joint histograms."""
        fixed, moving = self._bins
        bins, count = fixed.number, len(h)
        joint = h.new_zeros(count * self.channels * bins**2, dtype=torch.float64)
        first = torch.arange(count * self.channels, device=h.device).reshape(count, self.channels).mT * bins**2
        all_values, all_seen = [], []
        for strip in self._strips():
            values, seen = self.restored(h, strip.indices)  # [c, k, p], [k, p]
            seen = seen * strip.counted.flatten()
            below_f, part_f = fixed.places(strip.image.flatten(1))
            below_m, part_m = moving.places(values)
            index = first.unsqueeze(-1) + (below_f * bins).unsqueeze(1) + below_m
            for f, weight_f in ((0, 1.0 - part_f), (1, part_f)):
                for m, weight_m in ((0, 1.0 - part_m), (1, part_m)):
                    weight = seen * weight_f.unsqueeze(1) * weight_m
                    joint += torch.bincount((index + (f * bins + m)).flatten(), weight.flatten(), len(joint))
            all_values.append(values)
            all_seen.append(seen)
        return all_values, all_seen, joint.reshape(count, self.channels, bins, bins)

    def _looked_up(
        self, table: Float[Tensor, "k c a b"], image: Float[Tensor, "c p"], values: Float[Tensor, "c k p"]
    ) -> Float[Tensor, "c k p"]:
        """Return entries of tables, linear between bins of m."""
        fixed, moving = self._bins
        below_f, _ = fixed.places(image)
        below_m, part = moving.places(values)
        k, c, a, b = table.shape
        first = torch.arange(k * c, device=table.device).reshape(k, c).mT * (a * b)
        index = first.unsqueeze(-1) + (below_f.clamp(max=a - 1) * b).unsqueeze(1) + below_m
        flat = table.flatten().to(values)
        return flat[index] * (1.0 - part) + flat[index + 1] * part

    def sums(self, h: Tensor, exposure: Exposure, width: float | None) -> Sums:
        """Return sums for elements, with the `energy` that a normal variable of as much information leaves of one."""
        parts = [self._sums(rows) for rows in h.split(max(1, _MAX_NUMBERS_AT_ONCE // self.fixed.image.numel()))]
        energy, overlap, slope, curvature = (torch.cat(part) for part in zip(*parts, strict=True))
        functions = torch.eye(2).to(slope).expand(len(h), self.channels, 2, 2)
        return Sums(
            energy,
            overlap,
            slope,
            curvature,
            functions,
            slope.new_zeros(len(h), self.channels, 2, self.group.dim),
            slope.new_zeros(len(h), self.channels, 2),
            slope.new_zeros(len(h), self.channels, 3),
        )

    def _sums(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        all_values, all_seen, joint = self._restored(h)
        tables = self._tables(joint)
        dim, k, n = self.group.dim, len(h), self.n
        slope, curvature = joint.new_zeros(k, dim), joint.new_zeros(k, dim, dim)
        count = joint.new_zeros(k)
        for strip, values, seen in zip(self._strips(), all_values, all_seen, strict=True):
            m, q = strip.counted.shape
            fields, image = self.fields[strip.cells], strip.image.flatten(1)
            score = (seen * self._looked_up(tables.score, image, values)).view(-1, k, m, q)
            along = torch.stack([products_in_cells(*part) for part in zip(score, strip.slopes, strict=True)]).sum(0)
            slope += (along.transpose(0, 1).flatten(1) @ fields.flatten(0, 1)).double()
            below = self._bins[0].places(image)[0].unsqueeze(1).expand_as(values)
            fisher = tables.fisher.transpose(0, 1).to(values).gather(2, below)
            fisher = (seen * fisher).mean(0)  # products are sums over channels
            pairs = products_in_cells(fisher.view(k, m, q), strip.products)
            symmetric = pairs[..., self._pair_of].unflatten(-1, (n, n)).transpose(0, 1)  # [k, m, n, n]
            curvature += (fields.flatten(0, 1).mT @ (symmetric @ fields).flatten(1, 2)).double()
            count += seen.sum(-1).double()
        overlap = count / max(min(self.fixed.number(), self.moving.number()), 1.0)
        energy = torch.where(overlap >= LEAST_OVERLAP, (-2.0 * tables.information / self.channels).exp(), torch.inf)
        return energy, overlap, slope, curvature

    def closely(self, h: Tensor, exposure: Exposure, width: float, agreeing: float) -> CloseComparison:
        """Return sums for covariances and checks of one element; see `Comparison.closely`."""
        dim, n, image = self.group.dim, self.n, self.fixed.image
        fixed, moving = self._bins
        _, _, joint = self._restored(h[None])
        tables = self._tables(joint)
        cross = tables.score.diff(dim=-1) / moving.width.to(joint)[:, None, None]
        cells = math.prod(self.cells)
        scores, noise = image.new_zeros(cells, dim), image.new_zeros(cells, n, n)
        own_of_cells = image.new_zeros(cells, dim, dim)
        descent, alone = image.new_zeros(dim, dim).double(), image.new_zeros(dim, dim).double()
        shown = torch.zeros(self.fixed.grid.size, dtype=torch.bool, device=image.device)
        count = square_sum = 0.0
        for (first, last), strip in zip(self._ranges(), self._strips(), strict=True):
            fields = self.fields[strip.cells]
            axes = self._axes(first, last, HALO)
            index = indices_of(axes).to(image.dtype)
            size = list(index.shape[1:])
            values, seen = self.restored(h[None], index.flatten(1))
            seen = seen * self.fixed.counted(axes).flatten()
            around = pixels_at(image, axes).flatten(1)
            (below_f, part), below_m = fixed.places(around), moving.places(values)[0][:, 0]
            channel = torch.arange(self.channels, device=image.device).unsqueeze(-1)
            bend = seen * cross[0].to(values)[channel, below_f, below_m]
            fisher = seen * tables.fisher[0].to(values)[channel, below_f]
            pull = seen * tables.pull[0].to(values)[channel, below_f + (part > 0.5), below_m]
            pull, bend, fisher, values = (part.reshape(self.channels, *size) for part in (pull, bend, fisher, values))
            ours, rough = (self._in_cells(slopes_of(part).transpose(0, 1)) for part in (values, pull))  # [c, n, m, q]
            pull, bend, fisher = (self._in_cells(without_halo(part, n)) for part in (pull, bend, fisher))
            along = -(pull.unsqueeze(1) * ours).sum(0)  # [n, m, q]
            scores[strip.cells] = (fields.mT @ along.sum(-1).mT.unsqueeze(-1)).squeeze(-1)
            alone += contracted(products_in_cells(along, along), fields.mT, fields.mT)
            for bent, known, own_slopes, slopes, one in zip(bend, fisher, ours, strip.slopes, rough, strict=True):
                descent += contracted(products_in_cells(bent * own_slopes, slopes), fields.mT, fields.mT)
                own_of_cells[strip.cells] += fields.mT @ products_in_cells(known * slopes, slopes) @ fields
                noise[strip.cells] += products_in_cells(one, one)
            seen_here = without_halo(seen.reshape(size), n)
            shown[self._axes(first, last, 0)[0]] = seen_here > 0
            count += float(seen_here.sum())
            square_sum += float(pull.square().sum())
        descent = 0.5 * (descent + descent.mT)
        own = own_of_cells.double().sum(0)
        # what one volume shows alone, such as a shift of all edges of one kind, is alike over long distances
        side = (count / self.num_windows) ** (1.0 / n) / self.side
        reach = max(-(-CORRELATION_REACH // self.side), math.floor(0.5 * (side - 1.0)))
        windows = box_sums(own_of_cells.flatten(1).mT.unflatten(1, self.cells), reach).flatten(1).mT
        windows = windows.unflatten(1, (dim, dim))
        freed = without_own_pull(scores, windows, own)
        beside = freed.mT @ box_sums(freed.mT.unflatten(1, self.cells), reach).flatten(1).mT
        # independent noise of pixels shares less curvature in a block than noise that is alike in neighbours
        roughness = float(noise.diagonal(dim1=-2, dim2=-1).sum()) / max(_WHITE_SQUARE * n * square_sum, 1e-30)
        alike = _WHITE_SHARE / (min(max(roughness, _LEAST_ROUGHNESS), 1.0) ** n * math.sqrt(MIN_BLOCK_SIDE**n))
        noise = noise * min(alike, 1.0) * (count / max(square_sum, torch.finfo(image.dtype).tiny))
        sums = BlockSums(
            -scores.double(),
            descent[None],
            descent[None],
            own[None],
            self._by_blocks(self.fields.mT @ noise @ self.fields).double(),
            alone,
            0.5 * (beside + beside.mT).double(),
            max(count / ((2 * reach + 1) * self.side) ** n, 1.0),
            variance_of_squares(own_of_cells, windows),
        )
        none = scores.new_zeros(self.channels, 0, dim + 1)
        return CloseComparison(sums, 1.0, float(tables.left.mean().sqrt()), count / self.num_pixels, shown, own, none)


@dataclass(eq=False)
class MutualRegistration(ImageRegistration):
    """Last steps and checks of a registration by mutual information, with either image held fixed."""

    comparison: ClassVar[type[Comparison]] = MutualComparison

    @property
    def assumptions(self) -> tuple[str, ...]:
        alone = "with either image held fixed the results differ by as much as both may be off"
        return (*super().assumptions, alone)

    def _estimated(self, close: CloseComparison) -> BlockEstimate:
        # slopes of another modality are not expected to be alike
        return block_estimate(close.sums, rounding_std(self.moving.dtype), 0.0)

    def _hidden(self, found: Found) -> tuple[Tensor, float]:
        return self.fixed.new_zeros([1] * (self.fixed.ndim - 1)), 0.0

    def _is_uneven(self, found: Found, most: float = 0.5) -> bool:
        return False

    def _blurred(self, comparison: Comparison, h: Tensor) -> Comparison:
        return comparison  # noise is of the histogram, and does not draw images to where it is interpolated away

    def _solved(self, comparison: Comparison, found: Found, uneven: bool) -> Solution:
        group, h, exposure = self.group, found.elements[0], found.exposure
        pixel = 2.0 / max(comparison.fixed.grid.size)
        longer, before = 1.0, None
        for _ in range(_MAX_LAST_STEPS):
            close = comparison.closely(h, exposure, math.inf, math.inf)
            estimate = self._estimated(close)
            step, precision = estimate.step, torch.linalg.inv(estimate.covariance)
            square = float(step @ precision @ step)
            ended = square < _MAX_LAST_STEP_IN_STDS**2
            if ended or not math.isfinite(square):
                break
            if (
                before is not None
            ):  # probabilities that follow the element make steps too short, and their noise too long
                left = float(before @ precision @ step) / float(before @ precision @ before)
                longer = min(max(longer / max(1.0 - left, _MIN_SHARE_OF_STEP), _SHORTEST), 1.0 / _MIN_SHARE_OF_STEP)
            before = step
            h = group.project(group.perturb(h, step * min(longer, pixel / max(float(step.norm()), 1e-12 * pixel))))
        return Solution(h, exposure, math.inf, close, ended, estimate.covariance, comparison)

    def _shared(self, comparison: Comparison, solution: Solution, found: Found) -> float:
        return found.shared

    def _kernel(self, comparison: Comparison, solution: Solution) -> tuple[Interpolation, float]:
        return comparison.interpolation, 1.0  # how images were interpolated is not asked

    def _step(self, comparison: Comparison, solution: Solution) -> Tensor:
        return torch.zeros(self.group.dim).to(solution.element)

    def judged(self, found: Found) -> Registration:
        r = self._checked(found)
        if not r.found:
            return r
        other = self._the_other_way()
        theirs = other._found_at(r.element[None].double())
        back = _undone(other._checked(theirs), r)
        if r.trusted and back.trusted:
            return _between(r, back)
        one = back if back.trusted or (found.shared < theirs.shared and not r.trusted) else r
        return replace(one, verdict=one.verdict & Verdict((), (_ONE_WAY,))) if one.trusted else one

    @abstractmethod
    def _the_other_way(self) -> MutualRegistration:
        """Return the registration of the fixed image to the moving one, in the same coordinates."""

    @abstractmethod
    def _found_at(self, h: Tensor) -> Found:
        """Return what descents to an element would have found, ``[1, *element_shape]``."""


@dataclass(eq=False)
class MutualImageRegistration(MutualRegistration):
    """Registration of two photographs by mutual information.

    Args:
        num_classes: the classes of that image which has more of them, if one has.
    """

    num_classes: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        # means over large parts of a picture are no function of those of another modality
        self.factors = [f for f in self.factors if f * self.longer >= _LEAST_SIDE] or self.factors[-1:]

    def _prepare(self) -> int:
        if self.similarity == "classes":  # the other way
            return BLURS * BLUR_REACH
        # names of classes are no values: between two of them lie others
        classes = _classes(self.moving), _classes(self.fixed)
        if all(part is None for part in classes):
            return 0
        most = _MAX_CLASSES if any(part is None for part in classes) else math.isqrt(_MAX_CLASSES)
        moving, fixed = (
            image if part is None else part[:most]
            for image, part in zip((self.moving, self.fixed), classes, strict=True)
        )
        self.num_classes = max(len(moving), len(fixed), 2)
        pairs = torch.cartesian_prod(torch.arange(len(moving)), torch.arange(len(fixed))).mT
        # edges without slopes on both sides say little of where they are
        self.moving, self.fixed, self.similarity = soft(moving)[pairs[0]], soft(fixed)[pairs[1]], "classes"
        return BLURS * BLUR_REACH

    def _the_other_way(self) -> MutualRegistration:
        unit = self.longer if self.side_of_unit is None else self.side_of_unit
        return replace(self, moving=self.fixed, fixed=self.moving, masks=self.masks[::-1], side_of_unit=unit)

    def _found_at(self, h: Tensor) -> Found:
        exposure = Exposure.none(len(self.fixed), self.fixed.float())
        comparison = self._comparison(self._factor_within(MAX_SIDE_OF_OTHERS))
        return Found(h, exposure, 1.0, self._shared_at(comparison, h[0], exposure, 1.0))

    def _solved(self, comparison: Comparison, found: Found, uneven: bool) -> Solution:
        least = _LEAST_STEP * 2.0 / max(comparison.fixed.grid.size)
        h, _ = comparison.descended(found.elements[:1], found.exposure, 1.0, _NUM_STEPS, least)
        return super()._solved(comparison, found._replace(elements=h), uneven)

    def _exposed(self, comparison: Comparison, h: Tensor) -> tuple[Exposure, float]:
        return Exposure.none(len(self.fixed), self.fixed.float()), 1.0

    def _standardised(self) -> Exposure | None:
        return None

    def _shared_at(self, comparison: Comparison, h: Tensor, exposure: Exposure, width: float) -> float:
        energy = float(comparison.sums(h[None], exposure, None).energy[0])
        # the mean information of pairs of classes; each class is told from all others
        return 1.0 - energy ** (0.5 * self.num_classes) if self.similarity == "classes" else 1.0 - energy

    def _look_alikes(self, moved: Tensor, seen: Tensor, full: Comparison) -> Float[Tensor, "k *e"]:
        # the fixed image looks otherwise, but alike where the moved one looks like itself
        image = torch.where(seen > 0, moved, 0.0)
        return look_alikes(self.action, torch.cat([image, seen[None]]), image, NUM_LOOK_ALIKES)

    def _fits_as_well(self, full: Comparison, h: Tensor, other: Tensor, exposure: Exposure, width: float) -> bool:
        first, second = full.sums(torch.stack([h, other]), exposure, None).energy.tolist()
        return second < MAX_RIVAL_LEFT * first + MIN_DIFFERENCE

    def _moved_otherwise(
        self, comparison: Comparison, solution: Solution, off: Tensor, seen: Tensor, std: float, factor: float
    ) -> tuple[str, ...]:
        return ()


def _classes(image: Float[Tensor, "c h w"]) -> Float[Tensor, "k h w"] | None:
    """Return ones where an image of one channel has each of its few values, the most frequent first.

    ``None`` for images that are no classes: of most pixels beside the most frequent value the next one has another
    value. Of two values the first says all.
    """
    values, counts = image.unique(return_counts=True)
    if len(image) > 1 or not 1 < len(values) <= _MAX_NAMES:
        return None
    inside = image[..., :-1] != values[counts.argmax()]  # a dark background is alike in any image
    alike = (image.diff(dim=-1) == 0)[inside].float().mean()
    if not alike > _MIN_SHARE_ALIKE:
        return None
    values = values[counts.argsort(descending=True)][: 1 if len(values) == 2 else None]
    return (image == values[:, None, None]).to(image.dtype)


def _undone(back: Registration, r: Registration) -> Registration:
    """Return the registration of the fixed data to the moving ones as one like r, of the moving to the fixed ones."""
    group = back.group
    adjoint = group.Ad(back.element.double())
    covariance = adjoint @ back.covariance.double() @ adjoint.mT
    modes = replace(back.modes, elements=group.inverse(back.modes.elements))
    return replace(
        r,
        element=group.inverse(back.element),
        covariance=covariance.to(back.covariance.dtype),
        modes=modes,
        residual=back.residual,
        verdict=back.verdict,
    )


def _between(r: Registration, other: Registration) -> Registration:
    """Return the registration between two of the same data, with a covariance that admits their distance.

    Each counts as far as it is certain.
    """
    group = r.group
    first, second = r.covariance.double(), other.covariance.double()
    v = group.log(group.compose(group.inverse(r.element.double()), other.element.double()))
    share = torch.linalg.solve(first + second, first, left=False)  # of the way
    covariance = 2.0 * share @ second
    step = share @ v
    square = v @ torch.linalg.solve(covariance, v)  # of the whole way: what draws one draws the other, too
    covariance = (1.0 + square / len(v)) * 0.5 * (covariance + covariance.mT)
    element = group.perturb(r.element.double(), step)
    elements = r.modes.elements.clone()
    elements[0, 0] = element.to(elements.dtype)
    return replace(
        r,
        element=element.to(r.element.dtype),
        covariance=covariance.to(r.covariance.dtype),
        modes=replace(r.modes, elements=elements),
        verdict=r.verdict & other.verdict,
    )
