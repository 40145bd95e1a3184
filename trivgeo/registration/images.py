"""Registration of photographs, from coarse to fine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from trivgeo._random import normal
from trivgeo.actions import ImageWarp
from trivgeo.actions.image import frame_from_pixels
from trivgeo.groups import Projective
from trivgeo.inversion.energies.least_squares import GemanMcClure
from trivgeo.inversion.transformations import sample_elements
from trivgeo.registration.blocks import BlockEstimate, block_estimate
from trivgeo.registration.inverse_compositional import (
    EXACT_FOR_PARABOLAS,
    CloseComparison,
    Comparison,
    Exposure,
    Grid,
    Interpolation,
    Picture,
    box_sums,
    ridged,
    slopes_of,
)
from trivgeo.registration.keypoints import MISSING, consensus
from trivgeo.registration.look_alikes import in_group, look_alikes
from trivgeo.registration.record import (
    NORMAL_MEDIAN,
    Registration,
    RegistrationMethod,
    doubts,
    modes_at,
    nothing,
    rivals,
    robust_std,
    rounding_std,
)
from trivgeo.verdict import Verdict

_COARSEST_SIDE = 24  # longer side of the coarsest images, in pixels
_MIN_SHORTER_SIDE = 5  # shorter side of the coarsest images, in pixels
_FIRST_STEPS, _NUM_KEPT_FIRST = 4, 32  # steps of all hypotheses at the coarsest level, and how many of them go on
_NUM_STEPS = (12, 8, 6, 5, 4)  # steps at each level
_NUM_KEPT = (12, 8, 6, 4, 4)  # distinct hypotheses that go on from each level
_LEAST_STEP_IN_PIXELS = 0.1  # length of steps at which descents end at a level
_MIN_SHARED_NEAR = 0.8  # shared contrast at the end of the nearest hypotheses from which on others are not looked for
_LOSS_WIDTH_IN_STDS = 5.0  # width of the robust loss, in standard deviations of the residuals
_FIRST_WIDTH = 2.0  # width of the loss at the coarsest size, in units of the contrast; half of it at the next
_NUM_EXPOSURES = 6  # estimates of gain and offset, each with outliers by the one before
_MIN_STD = 1e-3  # standard deviation of residuals for the robust loss, in units of the contrast
_NOISY_STD = 0.02  # standard deviation of residuals from which on images are blurred, in units of the contrast
BLUR_REACH, _HALO = 2, 2  # pixels on each side that a blur, and a slope, reads
_MIN_SHARED_CONTRAST = 0.5  # share of the contrast that both images must have in common
MEAN_SIDE, _NUM_MEANS = 4, 2**12  # pixels along squares whose means show an uneven exposure, and the number of these
_MAX_LEFT_BY_EXPOSURE = 0.5  # share of squares of residuals of means that an uneven exposure may leave
_MIN_REFINED_STD = 1e-5  # standard deviation of residuals from which on the last steps fit the loss to them
_ROUNDING = 2.0  # standard deviation of elements, in units of the last digit
_LEAST_CURVATURE = 1e-12  # curvature that is rounding, in units of the largest
_MAX_LAST_STEPS = 40  # last steps
_MAX_LAST_STEP_IN_STDS, _MAX_LAST_STEP_IN_DIGITS = 1.5, 4.0  # length of the last step, in either unit
_MAX_LEFT_IN_STDS, _FIRST_LEFT = 1.0, 0.1  # length that is expected for the last step, and of that after the first one
_MIN_SHARE_OF_STEP = 0.25  # least share of the curvature that is taken for shared, and of its inverse
_MAX_NEWTON_STEP_IN_PIXELS = 0.5  # length of a step up to which curvature that both pictures share is that of the end
_MAX_LEFT = 0.5  # length of a step, in units of that before, from which on curvatures are computed anew
_NUM_SAMPLES = 2**13  # pixels by which exposures and the spread of residuals are estimated
_MAX_SIDE_OF_HIDDEN = 320  # longer side of the images in which hidden parts are looked for, in pixels
_HIDDEN_REACH, _MIN_HIDDEN_SHARE = 2, 0.5  # pixels on each side of which so many disagree where an image is hidden
_NUM_FITS_OF_KERNEL = (12, 2)  # fits of the kernel, and those of it to blurred pictures
_MIN_CHANGE_OF_KERNEL = 0.001  # change of the parameter of the kernel that counts
_MAX_LEFT_BY_KERNEL = 0.5  # share of squares that a kernel leaves where residuals of another one are no noise
_SHARE_OF_KERNEL = 0.1  # share of what the fit of the kernel changed that is a standard deviation
BLURS = 2  # blurs of one pixel before gradients are taken, and of classes
_GRADIENT_WINDOW = 5  # pixels on each side, over which the mean length of gradients is taken
_MIN_GRADIENT = 0.02  # gradient by a pixel that counts as noise, in units of the contrast
_MAX_SIDE_OF_DESCENTS = 1024  # longer side of images at which a single hypothesis descends, in pixels
_NUM_CONSENSUS = 3  # elements that matches of keypoints support, from which descents start
_LEAST_SIDE_OF_MATCHED = 192  # longer side of the images at which descents from them begin, in pixels
NUM_LOOK_ALIKES = 10  # other places that are tried, where pictures look alike
_NUM_STEPS_OF_OTHERS, _LEAST_SIDE_OF_OTHERS = (10, 4), 80  # steps at a size of at least so much, and the largest
MAX_SIDE_OF_OTHERS = 256  # longer side of the images on which others are compared with what was found, in pixels
_MAX_ENERGY_RATIO = 10.0  # energy of another element, in units of that of the best one, at which it is compared closely
_SAME_IN_STDS = 6.0  # distance of ends of descents that are one element
_MAX_EVIDENCE_IN_STDS = 6.0  # evidence against another element, in standard deviations, that does not yet count
_INTERPOLATED_SHARE = 0.15  # share of the squares of residuals by which interpolation may differ
# standard deviations of residuals over squares that an element explains; share of an image beyond these from which on
# it is registered by itself; contrast that it must share, of so much of it; loss there in units of that of the element
_MAX_STDS_OF_EXPLAINED, _MIN_SHARE_OF_OTHER = 3.0, 0.15
_MIN_SHARED_BY_PART, _MIN_OVERLAP_OF_PART, _MAX_RATIO = 0.7, 0.5, 0.9
_NUM_STARTS_OF_PART = 64  # elements near the identity from which it begins
# distance of that element from the other, in pixels at the size of the comparison, and in units of the longer side
_MIN_MOVE_IN_PIXELS, _MAX_MOVE_IN_SIDES = 0.5, 0.15
_MIN_SHARE_OF_SLOPES = 0.7  # share of the squares of slopes that combinations of channels have, which are then enough
# pixels of images from which on the exposure of each channel is known well, and one combination is enough
_MIN_PIXELS_COMBINED, _MAX_PIXELS_IN_COLOUR = 2**16, 2**22
_OTHER_SCALE = math.sqrt(2.0)  # pixels of one image along one of the other from which on that one is shrunk
_SCALES = (0.5, 0.7, 1.0, 1.4, 2.0)  # at which rotations and shifts are looked for by correlation
_START_STD = 0.15  # standard deviation of the first elements in each direction, in units of the natural basis


SIMILARITIES = ("intensity", "gradient", "mutual_information")


@dataclass(eq=False)
class ImageRegistration(RegistrationMethod["Found"]):
    """Registration of two images: descents from coarse sizes to fine ones, the last steps, and checks.

    Args:
        similarity: what both show alike, their intensities or where they have gradients.
        masks: ones at pixels that count, ``[h, w]``, of both images; ``None`` for all.
        side_of_unit: pixels whose half is the unit of coordinates; ``None`` for the longer side of the fixed image.
    """

    comparison: ClassVar[type[Comparison]] = Comparison

    hints: ClassVar[tuple[str, ...]] = (
        "the search began near the identity: give transformations if the transformation may be larger",
    )

    matches_keypoints = True

    similarity: str = "intensity"
    masks: tuple[Tensor | None, ...] = (None, None)
    side_of_unit: int | None = None

    def __post_init__(self) -> None:
        self.action = ImageWarp(self.group, guarded=False)
        blurred = self._prepare()
        self.contrast, self.middle = float(self.fixed.std(correction=0)) or 1.0, float(self.fixed.mean())
        self.longer = max(self.fixed.shape[-2:])
        unit = self.longer if self.side_of_unit is None else self.side_of_unit
        self._data = tuple(
            Picture(
                image, Grid(tuple(image.shape[-2:]), frame_from_pixels(image.shape[-2:], image, unit)), mask, margin
            )
            # beside what the moving image covers, the fixed one may show nothing, from which slopes are not to be taken
            for image, mask, margin in (
                (self.moving, self.masks[0], _HALO + blurred),
                (self.fixed, self.masks[1], blurred),
            )
        )
        self.factors = _factors(self.fixed.shape[-2:], self.moving.shape[-2:])
        self._comparisons: dict[float, Comparison] = {}

    def _prepare(self) -> int:
        """Take what both images show alike for them, and return the pixels along edges with which others are mixed."""
        if self.similarity != "gradient":
            return 0
        self.moving, self.fixed = normalized_gradients(self.moving), normalized_gradients(self.fixed)
        return BLURS * BLUR_REACH + _GRADIENT_WINDOW

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What two images alone do not show."""
        return (
            "most of what both photographs show moves as one",
            "noise and dirt of one are not those of the other",
        )

    @cached_property
    def pictures(self) -> tuple[Picture, ...]:
        """Both images at their full sizes, in units of the contrast of the fixed one, whose mean is zero."""
        return tuple(self._in_contrast(picture) for picture in self._data)

    def _in_contrast(self, picture: Picture) -> Picture:
        return picture._replace(image=(picture.image - self.middle).div_(self.contrast))

    @property
    def frames(self) -> tuple[Tensor, Tensor]:
        """The maps from pixels of both images to coordinates."""
        moving, fixed = self._data
        return moving.grid.matrix, fixed.grid.matrix

    def _comparison(self, factor: float) -> Comparison:
        """Return the comparison of both images at so many times their sizes."""
        if factor not in self._comparisons:
            larger = next((f for f in self.factors if f > factor), None)
            if larger is None:
                moving, fixed = (picture.to(torch.float32) for picture in self.pictures)
            elif larger * self.longer > _MAX_SIDE_OF_DESCENTS:  # which may not be needed
                moving, fixed = (self._in_contrast(picture.resized(factor)).to(torch.float32) for picture in self._data)
            else:
                finer = self._comparison(larger)
                moving, fixed = (picture.resized(factor / larger) for picture in (finer.moving, finer.fixed))
            self._comparisons[factor] = self._compared(moving, fixed)
        return self._comparisons[factor]

    def _compared(self, moving: Picture, fixed: Picture, interpolation: Interpolation = "linear") -> Comparison:
        return self.comparison(self.group, self.action.point_action, moving, fixed, interpolation)

    def _factor_within(self, side: int) -> float:
        """Return the largest size in units of the full one with at most so many pixels a side; else the smallest."""
        return max((f for f in self.factors if f * self.longer <= side), default=self.factors[0])

    @property
    def _sources(self) -> list[Source]:
        """Where transformations may come from, the likeliest and least costly ones first."""
        matched = Source(self._matched, self._improved, _MIN_SHARED_CONTRAST)
        if self.transformations is not None:
            return [Source(self._identity), matched, Source(self._drawn)]
        identity = Source(self._identity, self._descended, _MIN_SHARED_NEAR)
        return [identity, matched, Source(self._correlated), Source(self._drawn)]

    def _identity(self) -> Tensor:
        return self.group.identity(1, dtype=torch.float64, device=self.moving.device)

    def _matched(self) -> Tensor:
        """Return elements that matches of keypoints support, inverted; none without OpenCV."""
        group = self.group
        found = consensus(group, self.moving, self.fixed, self.frames, _NUM_CONSENSUS)
        self.matches_keypoints = found is not None
        return self._identity()[:0] if found is None else group.inverse(group.project(found))

    def _drawn(self) -> Tensor:
        """Return elements that were given or are near the identity, inverted."""
        group, number = self.group, self.num_starts - 1
        if self.transformations is None:
            v = _START_STD * normal((number, group.dim), self.moving.double(), self.generator)
            drawn = group.with_scale(None).exp(v)
        else:
            drawn = sample_elements(group, self.transformations, number, self.generator)
        return group.inverse(group.project(drawn.to(self.moving.device, torch.float64)))

    def searched(self) -> Iterable[Found]:
        starts = []
        for source in self._sources:
            starts.append(elements := source.elements())
            if source.descended is not None:
                alone = (source.descended(start[None]) for start in elements)
                yield from (found for found in alone if found.shared >= source.least)
        yield self._descended(torch.cat(starts), together=True)

    def _correlated(self) -> Tensor:
        """Return scalings, rotations and shifts at which edges of both images correlate, inverted.

        Matches of keypoints fail in blurred and noisy pictures, and in those of other modalities.
        """
        comparison = self._comparison(self._factor_within(MAX_SIDE_OF_OTHERS))
        fixed, scales = comparison.fixed.image, self.moving.new_tensor(_SCALES).double()
        matrices = torch.diag_embed(torch.stack([scales, scales, torch.ones_like(scales)], -1))
        starts = self.action.point_action.from_homogeneous(matrices[in_group(self.action, matrices)])
        found = [starts]
        for h in starts:
            moved, seen = comparison.image(h, Exposure.none(len(fixed), fixed))
            both = torch.cat([normalized_gradients(moved), seen[None]])
            alike = look_alikes(self.action, both, normalized_gradients(fixed), NUM_LOOK_ALIKES, 0.0)
            found.append(self.group.compose(h, alike.double()))
        return torch.cat(found)

    def _in_few_channels(self, found: Found) -> tuple[ImageRegistration, Found]:
        """Return the registration of the combinations of channels in which images have nearly all of their slopes.

        Most photographs have one, their brightness. Channels are first brought to each other by the exposure that was
        found: one that varies over the frame is not fitted to combinations.
        """
        channels, pixels = len(self.fixed), math.prod(self.fixed.shape[1:])
        if channels == 1 or pixels < _MIN_PIXELS_COMBINED or not found.found or found.width is None:
            return self, found
        coarse = self._comparison(self._factor_within(MAX_SIDE_OF_OTHERS))
        slopes = slopes_of(coarse.fixed.image).transpose(0, 1).flatten(1).double()
        shares, directions = torch.linalg.eigh(slopes @ slopes.mT)
        least = 1.0 - (_MIN_SHARE_OF_SLOPES if pixels < _MAX_PIXELS_IN_COLOUR else 0.0)
        rest = shares.cumsum(0) / shares.sum().clamp(min=torch.finfo(shares.dtype).tiny)
        number = max(int((rest > least).sum()), 1)
        width, found = found.width, found._replace(uneven=self._is_uneven(found))
        if found.uneven:  # a tone curve is of one channel
            energy = (slopes @ slopes.mT).diagonal()
            directions = torch.eye(channels).to(energy)[:, energy.argsort()]
            number = 1
        elif number == channels:
            return self, found
        side = self.longer if pixels < _MAX_PIXELS_IN_COLOUR else _MAX_SIDE_OF_DESCENTS
        fine = self._comparison(self._factor_within(side))
        exposure, _ = _exposure(*fine.sample(found.elements[0], _NUM_SAMPLES))
        offset, gain = exposure.theta.to(self.fixed).unbind(-1)
        chosen = directions[:, -number:].mT.to(self.fixed)  # [k, c]
        added = chosen @ (self.contrast * offset + self.middle * (1.0 - gain))
        images = (
            torch.tensordot(chosen * gain, self.moving, 1) + added[:, None, None],
            torch.tensordot(chosen, self.fixed, 1),
        )
        some = replace(self, moving=images[0], fixed=images[1])
        some.matches_keypoints = self.matches_keypoints
        width *= self.contrast / some.contrast * math.sqrt(number / channels)
        return some, found._replace(exposure=Exposure.none(number, self.fixed.float()), width=width)

    def _improved(self, start: Tensor) -> Found:
        """Return the end of descents from an element that is off by some pixels, with the loss that it calls for."""
        last = len(self.factors) - 1
        level = next((k for k, f in enumerate(self.factors) if f * self.longer >= _LEAST_SIDE_OF_MATCHED), last)
        exposure, width = self._exposed(self._comparison(self.factors[level]), start[0])
        return self._descended(start, first=level, found=Found(start, exposure, width))

    def _descended(self, starts: Tensor, together: bool = False, first: int = 0, found: Found | None = None) -> Found:
        """Return the ends of descents at all sizes but the full one.

        Args:
            starts: elements to begin with.
            together: whether there are no others, so that descents go on also where little of the contrast is shared.
            first: the level to begin at.
            found: what is known of the first element, with its exposure.
        """
        if found is None:
            found = self._level(first, Found(starts, Exposure.none(len(self.fixed), self.fixed.float())))
            standardised = None if found.shared >= _MIN_SHARED_CONTRAST else self._standardised()
            if standardised is not None:  # the exposures may be very different
                alike = self._level(first, Found(starts, standardised))
                found = alike if alike.shared > found.shared else found
            first += 1
        for level in range(first, len(self.factors)):
            large = level == len(self.factors) - 1 or self.factors[level] * self.longer > _MAX_SIDE_OF_DESCENTS
            if large and len(found.elements) == 1 and found.shared >= _MIN_SHARED_CONTRAST:
                break  # the last steps are at the full size
            found = self._level(level, found)
            if not together and not found.shared >= _MIN_SHARED_CONTRAST:
                break
        return found

    def _standardised(self) -> Exposure | None:
        """Return the exposure that gives each channel the mean and the standard deviation of the fixed image."""
        coarse = self._comparison(self.factors[0])
        (std, mean), (wanted, middle) = (
            torch.std_mean(picture.image.flatten(1), 1, correction=0) for picture in (coarse.moving, coarse.fixed)
        )
        known = torch.minimum(std, wanted) > _MIN_STD * torch.maximum(std, wanted)
        gain = torch.where(known, wanted / torch.where(known, std, 1.0), 1.0)
        return Exposure(torch.stack([middle - gain * mean, gain], -1))

    def _level(self, level: int, before: Found) -> Found:
        """Return the ends of descents at a size, and the exposure there."""
        place, comparison = min(level, len(_NUM_STEPS) - 1), self._comparison(self.factors[level])
        least = _LEAST_STEP_IN_PIXELS * 2.0 / max(comparison.fixed.grid.size)
        h, exposure, width = before.elements, before.exposure, before.width
        # outliers come to count for less and less, as edges that lie beside each other come together
        width = max(width or 0.0, 0.5**level * _FIRST_WIDTH * math.sqrt(len(self.fixed)))
        if len(h) > _NUM_KEPT_FIRST:
            h, sums = comparison.descended(h, exposure, width, _FIRST_STEPS, least)
            h = h[sums.energy.argsort()[:_NUM_KEPT_FIRST]]
        h, sums = comparison.descended(h, exposure, width, _NUM_STEPS[place], least)
        order = sums.energy.argsort()
        h, energy = h[order], sums.energy[order]
        if not bool(torch.isfinite(energy[0])):
            return before._replace(elements=h[:1], shared=0.0, found=False)
        h = self._distinct(h[:_NUM_KEPT_FIRST], 2.0 / max(comparison.fixed.grid.size))[: _NUM_KEPT[place]]
        exposure, width = self._exposed(comparison, h[0])
        return Found(h, exposure, width, self._shared_at(comparison, h[0], exposure, width))

    def _exposed(self, comparison: Comparison, h: Tensor) -> tuple[Exposure, float]:
        """Return the exposure beside an element, and the width of the next robust loss."""
        return _exposure(*comparison.sample(h, _NUM_SAMPLES))

    def _shared_at(self, comparison: Comparison, h: Tensor, exposure: Exposure, width: float) -> float:
        """Return the share of the contrast that both images have in common."""
        return _shared_contrast(*comparison.sample(h, _NUM_SAMPLES, exposure), width)

    def _distinct(self, elements: Tensor, distance: float) -> Tensor:
        """Return elements that are no nearer than a distance to one before."""
        if len(elements) == 1:
            return elements
        group = self.group
        v = group.log(group.compose(group.inverse(elements).unsqueeze(1), elements.unsqueeze(0)))
        near = (v.norm(dim=-1) < distance).tolist()
        kept: list[int] = []
        for i in range(len(elements)):
            if not any(near[j][i] for j in kept):
                kept.append(i)
        return elements[kept]

    def judged(self, found: Found) -> Registration:
        some, found = self._in_few_channels(found)
        return some._checked(found)

    def _checked(self, found: Found) -> Registration:
        group, dtype = self.group, self.moving.dtype
        if not found.found or found.width is None:
            return self._nothing(found)
        hidden, hidden_share = self._hidden(found)
        uneven = self._is_uneven(found) if found.uneven is None else found.uneven
        comparison = sharp = self._full(found.elements[0], hidden)
        if noisy := self._is_noisy(found):
            comparison = self._blurred(sharp, found.elements[0])
        if not bool(comparison.sample(found.elements[0], _NUM_SAMPLES)[2].any()):
            return self._nothing(found)
        solution = self._solved(comparison, found, uneven)
        left = 1.0
        if not uneven and isinstance(sharp.interpolation, float):
            if noisy and (clear := self._without_blur(sharp, solution)) is not None:
                noisy, solution = False, clear
            if not noisy:
                _, left = self._kernel(solution.comparison, solution)
        close, estimate = solution.close, self._estimated(solution.close)
        ended = solution.ended
        if uneven and not len(estimate.free):
            # a tone curve of blurred images is not that of sharp ones: edges move towards the side that it makes darker
            softer = self._solved(
                self._blurred(comparison, solution.element), found._replace(elements=solution.element[None]), uneven
            )
            second = self._estimated(softer.close)
            ended = ended and softer.ended and not len(second.free)
            v = group.log(group.compose(group.inverse(solution.element), softer.element))
            square = v @ torch.linalg.solve(estimate.covariance, v)
            estimate = estimate._replace(covariance=(1.0 + square / len(v)) * estimate.covariance)
        # how the images were interpolated is not known: a part of what another kernel changes is a standard deviation
        if not len(estimate.free):
            square = torch.zeros(()).to(estimate.covariance)
            for share, kernel in _other_kernels(solution.comparison.interpolation, math.sqrt(left)):
                v = share * self._step(solution.comparison.interpolated(kernel), solution)
                square = square + v @ torch.linalg.solve(estimate.covariance, v)
            estimate = estimate._replace(covariance=(1.0 + square / len(estimate.covariance)) * estimate.covariance)
        h = solution.element
        element, adjoint = group.inverse(h), group.Ad(h)
        covariance = adjoint @ estimate.covariance @ adjoint.mT
        covariance.diagonal().add_((_ROUNDING * torch.finfo(dtype).eps) ** 2)
        reasons = list(doubts(covariance, 0.0, (1.0 - hidden_share) * close.agreement, estimate.free @ adjoint.mT))
        if not ended:
            reasons.append("the last steps have not ended")
        shared = self._shared(solution.comparison, solution, found)
        if not shared >= _MIN_SHARED_CONTRAST:
            reasons.append(f"{shared:.0%} of the contrast is shared: less than {_MIN_SHARED_CONTRAST:.0%}")
        modes = modes_at(element[None], element.new_ones(1))
        least_width = _LOSS_WIDTH_IN_STDS * math.sqrt(len(self.fixed)) * _MIN_STD
        if not reasons:
            others = self._others(solution, found.elements[1:], least_width, estimate.covariance, noisy, hidden)
            modes = modes_at(torch.cat([element[None], group.inverse(others)]), element.new_ones(1 + len(others)))
            reasons += rivals(modes)
        if reasons and self.transformations is None:
            reasons += [*self.hints, *(() if self.matches_keypoints else (MISSING,))]
        elif not reasons:
            reasons += self._unexplained(solution, least_width, hidden)
        return Registration(
            ImageWarp(group),
            element.to(dtype),
            (0.5 * (covariance + covariance.mT)).to(dtype),
            modes,
            close.rms * self.contrast / math.sqrt(len(self.fixed)),
            True,
            Verdict(tuple(dict.fromkeys(reasons)), self.assumptions),
            mask=_at_size(close.agrees, self.fixed.shape[1:]),
            frames=self.frames,
        )

    def _nothing(self, found: Found) -> Registration:
        """Return the registration where nothing of both images lies on each other."""
        elements = self.group.inverse(found.elements).to(self.moving.dtype)
        return replace(nothing(self.action, elements), action=ImageWarp(self.group), frames=self.frames)

    def _is_noisy(self, found: Found) -> bool:
        """Return whether images are to be blurred, of whose noise interpolation takes a part."""
        assert found.width is not None
        return found.width > self._noisy_width

    @property
    def _noisy_width(self) -> float:
        return _LOSS_WIDTH_IN_STDS * math.sqrt(len(self.fixed)) * _NOISY_STD

    def _without_blur(self, sharp: Comparison, solution: Solution) -> Solution | None:
        """Return the solution of sharp pictures where their residuals are not noise, but those of another kernel."""
        kernel, left = self._kernel(sharp, solution)
        if not left < _MAX_LEFT_BY_KERNEL:
            return None
        width = min(solution.width, self._noisy_width)
        found = Found(solution.element[None], solution.exposure, width)
        clear = self._solved(sharp.interpolated(kernel), found, False)
        return clear if clear.ended and clear.width < self._noisy_width else None

    def _kernel(self, comparison: Comparison, solution: Solution) -> tuple[Interpolation, float]:
        """Return the interpolation by which pictures agree best, and the share of squares that it leaves."""
        return comparison.kernel(solution.element, _NUM_SAMPLES, solution.exposure, solution.width)

    def _blurred(self, comparison: Comparison, h: Tensor) -> Comparison:
        """Return a comparison of blurred pictures near an element."""
        return _blurred(comparison)

    def _estimated(self, close: CloseComparison) -> BlockEstimate:
        """Return what a close comparison says of the element."""
        return block_estimate(close.sums, rounding_std(self.moving.dtype))

    def _hidden(self, found: Found) -> tuple[Float[Tensor, "h w"], float]:
        """Return ones where something hides one of the images, at a reduced size, and their share of what both show.

        These are regions in most of which residuals do not agree, and what a slope or a blur mixes with them.
        """
        assert found.width is not None
        comparison = self._comparison(self._factor_within(_MAX_SIDE_OF_HIDDEN))
        image, seen = comparison.image(found.elements[0], found.exposure)
        square = (image - comparison.fixed.image).square().sum(0)
        off = seen * (square > max(found.width, _LOSS_WIDTH_IN_STDS * math.sqrt(len(image)) * _NOISY_STD) ** 2)
        off_around, seen_around = box_sums(torch.stack([off, seen]), _HIDDEN_REACH)
        core = (off > 0) & (off_around > _MIN_HIDDEN_SHARE * seen_around)
        hidden = _widened(core).to(off.dtype)
        return hidden, float((seen * hidden).sum() / seen.sum().clamp(min=1.0))

    def _full(self, h: Tensor, hidden: Float[Tensor, "h w"]) -> Comparison:
        """Return the comparison at the full size; the image with the smaller pixels is shrunk."""
        moving, fixed = self.pictures
        scale = self._compared(moving, fixed).scale(h)
        if math.isfinite(scale) and not 1.0 / _OTHER_SCALE < scale < _OTHER_SCALE:
            moving, fixed = moving.resized(min(1.0, 1.0 / scale)), fixed.resized(min(1.0, scale))
        fixed = _uncovered(fixed._replace(margin=max(fixed.margin, _HALO)), hidden)
        return self._compared(moving, fixed, EXACT_FOR_PARABOLAS)

    def _solved(self, comparison: Comparison, found: Found, uneven: bool) -> Solution:
        """Return the solution of the equations of the inverse compositional steps, gain and offset among them."""
        group, h = self.group, found.elements[:1]
        exposure, width, ended = found.exposure, found.width, False
        assert width is not None
        dtype = comparison.fixed.image.dtype
        exposure = exposure.to(dtype)
        if uneven:
            values, _, seen = comparison.sample(h[0], _NUM_SAMPLES)
            exposure = exposure.bent(values[:, seen > 0], comparison.n)
        least = max(_MAX_LAST_STEP_IN_DIGITS * torch.finfo(dtype).eps, 1e-9)
        steep, held, root = comparison.steep(_NUM_SAMPLES), h, math.sqrt(len(self.fixed))
        inverse: Tensor | None = None
        before, far, grown, stale = math.inf, False, False, False
        noisy, fits_kernel = self._is_noisy(found), isinstance(comparison.interpolation, float) and not uneven
        fits = _NUM_FITS_OF_KERNEL[noisy] if fits_kernel else 0
        for _ in range(_MAX_LAST_STEPS):
            values, fixed, seen = comparison.sample(h[0], _NUM_SAMPLES, exposure)
            if not bool(seen.any()):  # the last step led out of the frame
                h, ended = held, False
                break
            held = h
            std = self._residual_std((values - fixed).mT, seen, steep)
            if std > _MIN_REFINED_STD:
                width = min(width, _LOSS_WIDTH_IN_STDS * root * std)
            if fits and inverse is not None:  # after the first step
                fits, (kernel, _) = fits - 1, comparison.kernel(h[0], _NUM_SAMPLES, exposure, width)
                if _differ(kernel, comparison.interpolation):
                    comparison, stale, grown, before = comparison.interpolated(kernel), not noisy, False, math.inf
            if stale or ended:
                close = comparison.closely(h[0], exposure, width, max(width, self._noisy_width))
                slope, curvature, parts = -close.sums.scores.sum(0), close.curvature, close.parts
                inverse = _newton_inverse(curvature, curvature)
                # noise has curvature, too, which makes steps too short; what both share is that of the place nearby
                far = not float((inverse @ slope).norm()) * self.longer < 2.0 * _MAX_NEWTON_STEP_IN_PIXELS
                if not (far or grown):
                    inverse = _newton_inverse(curvature, close.sums.descent[0])
            else:
                slope, curvature, parts = (part[0] for part in comparison.sums(h, exposure, width).reduced())
                if inverse is None:
                    inverse = _newton_inverse(curvature, curvature)
                    far = not float((inverse @ slope).norm()) * self.longer < 2.0 * _MAX_NEWTON_STEP_IN_PIXELS
            step = -inverse @ slope
            stds = math.sqrt(max(float(step @ curvature @ step), 0.0)) / max(std, _MIN_REFINED_STD)
            if not math.isfinite(stds):
                ended = False
                break
            change = -(parts[..., -1] + torch.einsum("cqn,n->cq", parts[..., :-1], step))
            h = group.project(group.perturb(h, step[None]))
            exposure = exposure._replace(theta=exposure.theta + change.to(dtype))
            short = float(step.norm()) < least
            if ended and (short or stds < _MAX_LAST_STEP_IN_STDS):  # a tenth of this step is left
                break
            # as much of this step is left as of the one before
            left = min(stds / max(before, _MIN_REFINED_STD), 1.0) or _FIRST_LEFT
            ended = short or left * stds < _MAX_LEFT_IN_STDS
            grown = grown or left == 1.0
            near = float(step.norm()) * self.longer < 2.0 * _MAX_NEWTON_STEP_IN_PIXELS
            stale = near if far else left > _MAX_LEFT and not grown
            before = stds
        else:
            ended = False
        if not ended:
            close = comparison.closely(h[0], exposure, width, max(width, self._noisy_width))
        assert inverse is not None
        return Solution(h[0], exposure, width, close, ended, inverse, comparison)

    def _residual_std(self, off: Float[Tensor, "p c"], seen: Tensor, steep: Tensor) -> float:
        """Return the standard deviation of residuals that agree."""
        # what is left by interpolation is as large as the slopes, by which alone elements are told apart
        return max(robust_std(off, part) for part in (seen, seen * steep) if bool(part.any()))

    def _shared(self, comparison: Comparison, solution: Solution, found: Found) -> float:
        """Return the share of the contrast that both images have in common."""
        return self._shared_at(comparison, solution.element, solution.exposure, solution.width)

    def _step(self, comparison: Comparison, solution: Solution) -> Tensor:
        """Return the step from a solution to that of another comparison."""
        slope, _, _ = comparison.sums(solution.element[None], solution.exposure, solution.width).reduced()
        return -solution.inverse @ slope[0]

    def _is_uneven(self, found: Found, most: float = _MAX_LEFT_BY_EXPOSURE) -> bool:
        """Return whether an exposure that varies over the frame and with brightness leaves half of what a gain leaves.

        Of means over squares of pixels: there is little noise in them, for which such an exposure would fit less.
        """
        assert found.width is not None
        comparison = self._of_means(found.elements[0])
        values, fixed, seen = comparison.sample(found.elements[0], _NUM_MEANS)
        place = comparison.sampled_places(_NUM_MEANS)
        plain = found.exposure.to(values.dtype)
        bent = plain.bent(values[:, seen > 0], comparison.n)
        weight = seen
        left = []
        for exposure in (plain, bent):
            functions = exposure.functions(values, place)
            r = functions.new_zeros(())
            for _ in range(2 if exposure is plain else 1):
                theta = _fitted(functions, fixed, weight)
                r = torch.einsum("cq,cqp->cp", theta, functions) - fixed
                if exposure is plain:
                    weight = seen / (1.0 + r.square().sum(0) / found.width**2) ** 2
            left.append(float((weight * r.square().sum(0)).sum()))
        return left[1] < most * left[0] and left[0] > _MIN_STD**2 * float(seen.sum())

    def _of_means(self, h: Tensor) -> Comparison:
        """Return the comparison of means over squares of pixels near an element."""
        return self._comparison(next((f for f in self.factors if f >= 1.0 / MEAN_SIDE), 1.0))

    def _others(
        self, solution: Solution, met: Tensor, least_width: float, covariance: Tensor, noisy: bool, hidden: Tensor
    ) -> Float[Tensor, "k *e"]:
        """Return elements that fit as well, from those that descents met, and where the restored image looks like the
        fixed one.
        """
        group, h, exposure = self.group, solution.element, solution.exposure
        largest = min(1.0, MAX_SIDE_OF_OTHERS / self.longer)
        sides = [factor for factor in self.factors if factor <= max(largest, self.factors[0])]
        full = self._comparison(sides[-1])
        full = self._compared(full.moving, _uncovered(full.fixed, hidden))
        full = self._blurred(full, h) if noisy else full
        moved, seen = full.image(h, exposure)
        # what the size of these images adds to the residuals
        own = float(((moved - full.fixed.image).square().sum(0) * seen).sum() / seen.sum().clamp(min=1.0))
        width = max(solution.width, least_width, _LOSS_WIDTH_IN_STDS * math.sqrt(own))
        alike = self._look_alikes(moved, seen, full)
        candidates = torch.cat([met, group.compose(h, alike.double())])
        if not len(candidates):
            return candidates
        small = next((f for f in sides if f * self.longer >= _LEAST_SIDE_OF_OTHERS), sides[-1])
        for comparison, steps in zip((self._comparison(small), full), _NUM_STEPS_OF_OTHERS, strict=True):
            least = _LEAST_STEP_IN_PIXELS * 2.0 / max(comparison.fixed.grid.size)
            candidates, sums = comparison.descended(candidates, exposure, width, steps, least)
            best = comparison.sums(h[None], exposure, width).energy
            low = sums.energy < _MAX_ENERGY_RATIO * best + 2.0 * _MIN_STD**2
            candidates = candidates[low & self._are_other(candidates, h, covariance)]
            if not len(candidates):
                return candidates
        kept: list[Tensor] = []
        for one in candidates:
            if self._fits_as_well(full, h, one, exposure, width) and (
                not kept or bool(self._are_other(one[None], torch.stack(kept), covariance).all())
            ):
                kept.append(one)
        return torch.stack(kept) if kept else candidates[:0]

    def _look_alikes(self, moved: Tensor, seen: Tensor, full: Comparison) -> Float[Tensor, "k *e"]:
        """Return elements at which the restored image looks like the fixed one."""
        return look_alikes(self.action, torch.cat([moved, seen[None]]), full.fixed.image, NUM_LOOK_ALIKES)

    def _fits_as_well(self, full: Comparison, h: Tensor, other: Tensor, exposure: Exposure, width: float) -> bool:
        """Return whether another element fits as well as h."""
        return _fits_as_well(full, h, other, exposure, GemanMcClure(width))

    def _unexplained(self, solution: Solution, least_width: float, hidden: Tensor) -> tuple[str, ...]:
        """Return what both images show that the element found does not explain, though something else does: all of
        what was compared by a homography beyond the group, or a part of the image by another element.
        """
        h, exposure = solution.element, solution.exposure
        comparison = self._comparison(factor := self._factor_within(MAX_SIDE_OF_OTHERS))
        fixed = comparison.fixed
        image, seen = comparison.image(h, exposure)
        none = Exposure.none(len(image), image)
        off = (image - fixed.image).square().sum(0)
        std = max(robust_std((image - fixed.image).flatten(1).mT, seen.flatten()), _MIN_STD)
        if not isinstance(self.group, Projective):
            width = max(least_width, _LOSS_WIDTH_IN_STDS * math.sqrt(len(image)) * std)
            beside = self.comparison(
                larger := Projective(2),
                larger.action(),
                fixed._replace(image=image, mask=seen),
                _uncovered(fixed, hidden),
            )
            identity = larger.identity(1, dtype=torch.float64, device=image.device)
            least = _LEAST_STEP_IN_PIXELS * 2.0 / max(fixed.grid.size)
            g, _ = beside.descended(identity, none, width, _NUM_STEPS_OF_OTHERS[0], least)
            if not self._fits_as_well(beside, g[0], identity[0], none, width):
                return (f"a homography that is not of {self.group!r} fits better",)
        return self._moved_otherwise(comparison, solution, off, seen, std, factor)

    def _moved_otherwise(
        self, comparison: Comparison, solution: Solution, off: Tensor, seen: Tensor, std: float, factor: float
    ) -> tuple[str, ...]:
        """Return whether a part of the image moves otherwise than the rest."""
        h, fixed, image = solution.element, comparison.fixed, comparison.fixed.image
        # twice what linear interpolation may be off by: neither picture of a reduced size is that of the other
        bends = (0.25 * _bends(fixed.image, -1)).square().sum(0) + (0.25 * _bends(fixed.image, -2)).square().sum(0)
        expected = _MAX_STDS_OF_EXPLAINED**2 * std**2 * len(image) + bends
        total, allowed = box_sums(torch.stack([off * seen, expected * seen]), _HIDDEN_REACH)
        beyond = _widened((seen > 0) & (total > allowed)) * seen
        share = float(beyond.sum() / seen.sum().clamp(min=1.0))
        if share < _MIN_SHARE_OF_OTHER:
            return ()
        masks = self.masks[0], _uncovered(self._data[1], 1.0 - (beyond > 0).to(image)).mask
        part = replace(self, similarity="intensity", masks=masks, num_starts=min(self.num_starts, _NUM_STARTS_OF_PART))
        found = part._descended(torch.cat([h[None], self._identity(), part._drawn()]), together=True)
        if found.width is None or not found.shared >= _MIN_SHARED_BY_PART:
            return ()
        v = self.group.log(self.group.compose(self.group.inverse(h[None]), found.elements[:1]))
        # far away there is something that looks alike
        if not _MIN_MOVE_IN_PIXELS * 2.0 / max(fixed.grid.size) < float(v.norm()) < 2.0 * _MAX_MOVE_IN_SIDES:
            return ()
        comparison, energies = part._comparison(factor), []
        for element in (h, found.elements[0]):  # each beside the exposure that is best for it
            own, _ = _exposure(*comparison.sample(element, _NUM_SAMPLES))
            sums = comparison.sums(element[None], own, found.width)
            energies.append(float(sums.energy[0]))
        if not float(sums.overlap[0]) >= _MIN_OVERLAP_OF_PART or not energies[1] < _MAX_RATIO * energies[0]:
            return ()
        return (f"{share:.0%} of the image moves otherwise than the rest",)

    def _are_other(self, candidates: Tensor, h: Tensor, covariance: Tensor) -> Tensor:
        """Return a mask of elements that are no estimates of an element, or of some."""
        group = self.group
        v = group.log(group.compose(group.inverse(h).reshape(-1, 1, *group.element_shape), candidates.unsqueeze(0)))
        stds = torch.einsum("kci,ij,kcj->kc", v, torch.linalg.inv(covariance), v).sqrt()
        near = (stds < _SAME_IN_STDS) | (v.norm(dim=-1) < 1.0 / self.longer)
        return torch.isfinite(candidates).flatten(1).all(-1) & ~near.any(0)


class Source(NamedTuple):
    """A source of transformations that may take one image to the other.

    Attributes:
        elements: function to their inverses, ``[k, *element_shape]``.
        descended: function from one of them to the end of descents; ``None`` where all descend together.
        least: share of the contrast at such an end from which on it is judged before further sources are asked.
    """

    elements: Callable[[], Tensor]
    descended: Callable[[Tensor], Found] | None = None
    least: float = 0.0


class Found(NamedTuple):
    """Ends of descents.

    Attributes:
        elements: inverses of elements, the best one first, ``[k, *element_shape]``.
        exposure: the exposure of the moving image that is that of the fixed one.
        width: width of the next robust loss; ``None`` before the first descent.
        shared: share of the contrast that both images have in common.
        found: whether there is an element of finite energy.
        uneven: whether the exposure varies over the frame; ``None`` where nobody asked.
    """

    elements: Tensor
    exposure: Exposure
    width: float | None = None
    shared: float = 0.0
    found: bool = True
    uneven: bool | None = None


class Solution(NamedTuple):
    """The end of the last steps: an inverse element, the exposure, the width of the loss, sums, whether steps ended,
    the inverse of the curvature for steps, and the comparison, with the kernel that fits best.
    """

    element: Tensor
    exposure: Exposure
    width: float
    close: CloseComparison
    ended: bool
    inverse: Float[Tensor, "n n"]
    comparison: Comparison


def _differ(one: Interpolation, other: Interpolation) -> bool:
    """Return whether two kernels differ by more than counts."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) > _MIN_CHANGE_OF_KERNEL
    return one != other


def _other_kernels(kernel: Interpolation, left: float) -> Iterator[tuple[float, Interpolation]]:
    """Yield other kernels, with the shares of the steps to them that are standard deviations.

    Args:
        left: the residuals that this one leaves, in units of those of another one.
    """
    if not isinstance(kernel, float):
        yield max(0.5 * left, _SHARE_OF_KERNEL), EXACT_FOR_PARABOLAS
    if kernel != "linear":
        yield 0.5 * left, "linear"
    if isinstance(kernel, float) and kernel != EXACT_FOR_PARABOLAS:  # along a short step: its residuals are no outliers
        std = _MIN_CHANGE_OF_KERNEL + min(left, _SHARE_OF_KERNEL) * abs(kernel - EXACT_FOR_PARABOLAS)
        yield std / _MIN_CHANGE_OF_KERNEL, kernel + _MIN_CHANGE_OF_KERNEL


def _newton_inverse(curvature: Float[Tensor, "n n"], shared: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Return the inverse of a shared curvature, within bounds by the whole one; zero where that one is rounding."""
    scale = curvature.diagonal().clamp(min=torch.finfo(curvature.dtype).tiny).rsqrt()
    values, vectors = torch.linalg.eigh(scale.unsqueeze(-1) * curvature * scale)
    known = values > _LEAST_CURVATURE * values[-1]
    basis = scale.unsqueeze(-1) * vectors * torch.where(known, values, torch.inf).rsqrt()
    shares, turn = torch.linalg.eigh(basis.mT @ shared @ basis)
    basis = basis @ turn
    return (basis / shares.clamp(_MIN_SHARE_OF_STEP, 1.0 / _MIN_SHARE_OF_STEP)) @ basis.mT


def _at_size(mask: Bool[Tensor, "*size"], size: Sequence[int]) -> Bool[Tensor, "*other"]:
    """Return a mask of another size."""
    if mask.shape == tuple(size):
        return mask
    return functional.interpolate(mask[None, None].float(), tuple(size), mode="nearest")[0, 0] > 0


def _uncovered(picture: Picture, hidden: Float[Tensor, "h w"]) -> Picture:
    """Return a picture of which a part, that is given at any size, does not count."""
    if not bool(hidden.any()):
        return picture
    seen = 1.0 - functional.interpolate(hidden[None, None], picture.grid.size, mode="nearest")[0, 0].to(picture.image)
    return picture._replace(mask=seen if picture.mask is None else seen * picture.mask)


def _widened(mask: Bool[Tensor, "h w"]) -> Bool[Tensor, "h w"]:
    """Return the pixels that have one of a mask around."""
    return mask if not bool(mask.any()) else box_sums(mask.float()[None], _HIDDEN_REACH)[0] > 0.5


def _exposure(image: Float[Tensor, "c p"], fixed: Float[Tensor, "c p"], seen: Tensor) -> tuple[Exposure, float]:
    """Return gain and offset of each channel that take an image to the fixed one where both agree.

    Also returns the width of a loss that takes the remaining residuals for normal ones with outliers. The gain is the
    ratio of standard deviations: least squares would make it small where both have noise.
    """
    gain, offset, width = torch.ones_like(image[:, :1]), torch.zeros_like(image[:, :1]), 1e3
    for step in range(_NUM_EXPOSURES):
        difference = gain * image + offset - fixed
        std = robust_std(difference.mT, seen)
        if not math.isfinite(std):
            break
        width = _LOSS_WIDTH_IN_STDS * math.sqrt(len(image)) * max(std, _MIN_STD)
        if step == _NUM_EXPOSURES - 1:
            break
        weight = seen / (1.0 + difference.square().sum(0) / width**2) ** 2
        total = weight.sum()
        means = [(weight * part).sum(1, keepdim=True) / total for part in (image, fixed)]
        spread = [
            (weight * (part - mean).square()).sum(1, keepdim=True) / total
            for part, mean in zip((image, fixed), means, strict=True)
        ]
        known = torch.minimum(*spread) > _MIN_STD**2
        gain = torch.where(known, (spread[1] / torch.where(known, spread[0], 1.0)).sqrt(), 1.0)
        offset = means[1] - gain * means[0]
    return Exposure(torch.cat([offset, gain], 1)), width


def _factors(*sizes: Sequence[int]) -> list[float]:
    """Return sizes of the images of a pyramid in units of the full ones, from the coarsest."""
    longer = max(sizes[0])
    least = max(
        max(_COARSEST_SIDE / max(size), _MIN_SHORTER_SIDE / min(size)) if max(size) > 1 else 1.0 for size in sizes
    )
    sides = [longer]
    while sides[-1] >= 2 * least * longer:
        sides.append(sides[-1] // 2)
    return [side / longer for side in sides[::-1]]


def _shared_contrast(
    image: Float[Tensor, "c p"], fixed: Float[Tensor, "c p"], seen: Float[Tensor, " p"], width: float
) -> float:
    r"""Return one minus the ratio of :math:`|I - I_0|^2` to the sum of both variances, where the images agree.

    The result is one for equal images and zero on average for unrelated ones, which the spread of the residuals alone
    would take for images with much noise.
    """
    square = (image - fixed).square().sum(0)
    weight = seen / (1.0 + square / width**2) ** 2
    total = weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
    means = [(weight * part).sum(1, keepdim=True) / total for part in (image, fixed)]
    spread = [(weight * (part - mean).square()).sum() for part, mean in zip((image, fixed), means, strict=True)]
    both = float(spread[0] + spread[1])
    if not both > _MIN_STD**2 * float(total):
        return 0.0
    return max(1.0 - float((weight * square).sum()) / both, 0.0)


def _blurred(comparison: Comparison) -> Comparison:
    """Return a comparison of blurred pictures, without borders, into which the blur mixes what lay beside them."""
    moving, fixed = comparison.moving, comparison.fixed
    pictures: list[Picture] = []
    for picture in (moving, fixed):
        margin = picture.margin + (BLUR_REACH if picture is moving else 0)
        pictures.append(picture._replace(image=_soft(picture.image), margin=margin))
    moving, fixed = pictures
    return Comparison(comparison.group, comparison.action, moving, fixed, comparison.interpolation)


def normalized_gradients(image: Float[Tensor, "c *size"]) -> Float[Tensor, "1 *size"]:
    r"""Return the lengths of gradients, in units of those around, :math:`|\nabla I| / (|\nabla I| + m + \epsilon)`.

    Edges are where they are in another modality, or in a negative, whatever the values on both sides (Haber and
    Modersitzki 2006 compare directions, too). Gradients are of an image blurred by 1.4 pixels; m is their mean over
    windows.

    Args:
        image: values; gradients of channels are added as squares.
    """
    n, image = image.ndim - 1, soft(image)
    square = torch.zeros_like(image[:1])
    for dim in range(1, n + 1):
        if image.shape[dim] > 1:
            square = square + torch.gradient(image, dim=dim)[0].square().sum(0)
    length = square.sqrt()
    mean = box_sums(length, _GRADIENT_WINDOW) / box_sums(torch.ones_like(length), _GRADIENT_WINDOW)
    least = _MIN_GRADIENT * image.std(correction=0)
    return length / (length + mean + least).clamp(min=torch.finfo(image.dtype).tiny)


def soft(image: Float[Tensor, "c *size"]) -> Float[Tensor, "c *size"]:
    """Return the image blurred by 1.4 pixels."""
    for _ in range(BLURS):
        image = _soft(image)
    return image


def _soft(image: Float[Tensor, "c *size"]) -> Float[Tensor, "c *size"]:
    """Return the image under a kernel of standard deviation one pixel.

    Interpolation between pixels removes a part of white noise, most halfway between them, so that the sum of squares
    would draw images there. It removes little of noise that is alike in neighbours.
    """
    if min(image.shape[1:]) <= BLUR_REACH:
        return image
    soft = torch.empty_like(image)
    for channel, one in zip(soft, image, strict=True):  # one after the other, for the sake of memory
        for dim in range(one.ndim):
            one = _soft_along(one, dim)
        channel.copy_(one)
    return soft


def _soft_along(image: Tensor, dim: int) -> Tensor:
    length, reach = image.shape[dim], BLUR_REACH
    before, after = (image.narrow(dim, first, reach).flip(dim) for first in (1, length - 1 - reach))
    ends = torch.cat([before, image, after], dim)  # mirrored at the outermost pixels
    at = [ends.narrow(dim, start, length) for start in range(5)]
    return (at[0] + at[4]).add_(at[1], alpha=4).add_(at[3], alpha=4).add_(at[2], alpha=6).div_(16)


def _fits_as_well(full: Comparison, h: Tensor, other: Tensor, exposure: Exposure, loss: GemanMcClure) -> bool:
    """Return whether another element leaves residuals as small as h, where both show something (Vuong 1989).

    A part of the squares is left out of account, by which two places between pixels differ for one picture: noise and
    bends of the picture are interpolated differently. Evidence beyond it counts in units of its spread between blocks.
    """
    size, fixed = full.fixed.grid.size, full.fixed.image
    side = full.side_of_blocks
    images = [full.image(g, exposure) for g in (h, other)]
    counted = images[0][1] * images[1][1]
    plain = [image - fixed for image, _ in images]
    std = max(robust_std(plain[0].flatten(1).mT, counted.flatten()), _MIN_STD)
    first, second = (
        0.5 * _in_blocks(counted * loss(r.square().sum(0).flatten()).reshape(size), side).sum(-1) / std**2
        for r in plain
    )
    difference = second - first
    spread = float((difference - difference.median()).abs().median()) / NORMAL_MEDIAN
    allowed = _MAX_EVIDENCE_IN_STDS * spread * math.sqrt(len(first)) + _INTERPOLATED_SHARE * float(first.sum())
    # linear interpolation halfway between pixels is off by an eighth of the second difference
    bends = 0.125 * (_bends(fixed, -1).square() + _bends(fixed, -2).square()).sqrt()
    allowed += float((counted.flatten() * loss(bends.flatten(1).square().sum(0))).sum()) * 0.5 / std**2
    return float(difference.sum()) < allowed


def _fitted(columns: Float[Tensor, "c q p"], part: Float[Tensor, "c p"], weight: Tensor) -> Float[Tensor, "c q"]:
    """Return the coefficients of columns in weighted least squares."""
    weighted = (weight * columns).double()
    gram = weighted @ columns.double().mT
    return torch.linalg.solve(ridged(gram), weighted @ part.double().unsqueeze(-1)).squeeze(-1).to(part.dtype)


def _bends(image: Float[Tensor, "c h w"], axis: int) -> Float[Tensor, "c h w"]:
    """Return second differences along an axis, zero at both ends."""
    bends = torch.zeros_like(image)
    size = image.shape[axis]
    if size > 2:
        bends.narrow(axis, 1, size - 2).copy_(image.diff(n=2, dim=axis))
    return bends


def _in_blocks(image: Float[Tensor, "h w"], side: int) -> Float[Tensor, "k q"]:
    """Return values at pixels by square blocks."""
    image = functional.pad(image, (0, -image.shape[1] % side, 0, -image.shape[0] % side))
    return image.unfold(-2, side, side).unfold(-2, side, side).flatten(-2).flatten(0, 1)
