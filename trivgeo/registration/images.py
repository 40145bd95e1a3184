"""Registration of photographs, from coarse to fine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from trivgeo._random import normal
from trivgeo.actions import ImageWarp
from trivgeo.inversion.energies.least_squares import GemanMcClure, LeastSquares
from trivgeo.inversion.energies.paired_images import PairedImages, with_coverage
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.posterior import InverseProblem
from trivgeo.inversion.stage import Stage
from trivgeo.inversion.stages.chains import Select
from trivgeo.inversion.stages.levenberg_marquardt import LevenbergMarquardt
from trivgeo.inversion.transformations import sample_elements
from trivgeo.registration.blocks import BlockEstimate, BlockSums, block_estimate
from trivgeo.registration.look_alikes import look_alikes, shrunk
from trivgeo.registration.record import (
    NORMAL_MEDIAN,
    Registration,
    RegistrationMethod,
    assess,
    modes_at,
    rivals,
    robust_std,
    rounding_std,
    undetermined,
)
from trivgeo.verdict import Verdict

_COARSEST_SIDE = 24  # longer side of the coarsest images, in pixels
_MIN_SHORTER_SIDE = 5  # shorter side of the coarsest images, in pixels
_NUM_KEPT = (12, 4, 2, 1, 1)  # hypotheses that go on from each level
_FIRST_STEPS, _NUM_KEPT_FIRST = 5, 64  # steps of all hypotheses at the coarsest level, and how many of them go on
_NUM_STEPS = (15, 8, 6, 5, 4)  # steps at each level
_REFINING_STEPS = 6  # steps of a round of refinement, in double precision
_MAX_LAST_STEP = 1e-6  # length of all steps of a round at which refinement ends
_MAX_NUMBERS_IN_MEMORY = 2**23  # numbers of restored images at once
_LOSS_WIDTH_IN_STDS = 5.0  # width of the robust loss, in standard deviations of the residuals
_NUM_EXPOSURES = 6  # estimates of gain and offset, each with outliers by the one before
_MAX_ROUNDS = 30  # rounds of descents and exposures in turn, and of refinement
_MAX_EXPOSURE_CHANGE = 1e-4  # change of the exposure at which descents and exposures end
_MIN_STD = 1e-3  # standard deviation of residuals for the robust loss, in units of the contrast
_NOISY_STD = 0.02  # standard deviation of residuals from which on images are blurred, in units of the contrast
_BLUR_REACH = 2  # pixels on each side that a blur reads
_CORRELATION_REACH = 4  # pixels on each side in which blurred noise is correlated
_MIN_SHARED_CONTRAST = 0.5  # share of the contrast that both images must have in common
_BEGAN_NEAR = "the search began near the identity: give transformations if the transformation may be larger"
_NUM_REWEIGHTINGS = 2  # fits of the exposure, each with the outliers of the one before
_TONE_KNOTS = (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)  # shares of darker pixels at which a tone curve bends
_MEAN_SIDE = 4  # pixels along squares whose means show an uneven exposure
_MAX_LEFT_BY_EXPOSURE = 0.5  # share of squares of residuals of means that an uneven exposure may leave
_RIDGE = 1e-10  # addition to the squares of the functions of an exposure, in units of these
_MIN_REFINED_STD = 1e-5  # standard deviation of residuals from which on the last steps fit the loss to them
_BLOCKS_PER_SIDE = 16  # blocks along the longer side, of whose sums checks are made
_MIN_BLOCK_SIDE = 8  # pixels along a block
_MAX_POLISHING_STEPS = 40  # last steps, beside an exposure that varies
_MAX_LAST_STEP_IN_STDS, _MAX_LAST_STEP_OF_POLISHING = 0.03, 1e-8  # length of a last step, in either unit
_NUM_LOOK_ALIKES = 10  # other places that are tried, where pictures look alike
_NUM_STEPS_OF_OTHERS, _LEAST_SIDE_OF_OTHERS = 10, 80  # steps from each, at a size of at least so much, and at the full
_MAX_ENERGY_RATIO = 10.0  # energy of another element, in units of that of the best one, at which it is compared closely
_SAME_IN_STDS = 6.0  # distance of ends of descents that are one element
_MAX_EVIDENCE_IN_STDS = 6.0  # evidence against another element, in standard deviations, that does not yet count
_INTERPOLATED_SHARE = 0.15  # share of the squares of residuals by which interpolation may differ
# what two photographs alone do not show
_ASSUMPTIONS = ("most of what both photographs show moves as one", "noise and dirt of one are not those of the other")
_START_STD = 0.15  # standard deviation of the first elements in each direction, in units of the natural basis


@dataclass(eq=False)
class ImageRegistration(RegistrationMethod["_Level"]):
    """Registration of two images: descents from coarse sizes to fine ones."""

    def __post_init__(self) -> None:
        self.action = ImageWarp(self.group, guarded=False)
        self.contrast = float(self.fixed.std(correction=0)) or 1.0
        self.moving, self.fixed = self.moving / self.contrast, self.fixed / self.contrast
        self.sides = _sides(*self.fixed.shape[-2:])

    def _starts(self) -> Tensor:
        """Return the identity, and elements that were given or near it; for the inverter, so their inverses."""
        group, number = self.group, self.num_starts - 1
        if self.transformations is None:
            v = _START_STD * normal((number, group.dim), self.moving.double(), self.generator)
            drawn = group.with_scale(None).exp(v)
        else:
            drawn = sample_elements(group, self.transformations, number, self.generator)
        first = group.identity(1, dtype=self.moving.dtype, device=self.moving.device)
        return group.inverse(torch.cat([first, drawn.to(first)]))

    def searched(self) -> _Level:
        """Descend at all sizes, then at the full one until the exposure no longer changes."""
        starts = self._starts()
        found = self._descended(0, _Level(starts, self.moving))
        if not found.shared >= _MIN_SHARED_CONTRAST:  # the exposures may be very different
            alike = self._descended(0, _Level(starts, _standardised(self.moving, self.fixed)))
            found = alike if alike.shared > found.shared else found
        for level in range(1, len(self.sides)):
            found = self._descended(level, found)
        for _ in range(_MAX_ROUNDS):  # exposure and scale depend on each other
            if found.change < _MAX_EXPOSURE_CHANGE or not found.shared > 0.0:  # what shares nothing has no exposure
                break
            found = self._descended(len(self.sides), found)
        return found

    def _descended(self, level: int, before: _Level) -> _Level:
        """Return descents on images of a level, and the exposure; the loss is of squares without a width."""
        place, side = min(level, len(_NUM_KEPT) - 1), self.sides[min(level, len(self.sides) - 1)]
        h, action, group = before.elements, self.action, self.group
        residuals, x = PairedImages(shrunk(self.fixed, side)), with_coverage(shrunk(before.moving, side))[None]
        energy = LeastSquares(residuals, None if before.width is None else GemanMcClure(before.width))
        stages: list[Stage] = [LevenbergMarquardt(_NUM_STEPS[place]), Select(min(_NUM_KEPT[place], len(h)))]
        if len(h) > _NUM_KEPT_FIRST:
            stages = [LevenbergMarquardt(_FIRST_STEPS), Select(_NUM_KEPT_FIRST), *stages]
        together = max(1, _MAX_NUMBERS_IN_MEMORY // (x.numel() * (group.dim + 1)))
        result = Inverter(action, energy, stages, max_evaluations=together, progress=False)(x, initial=h[None])
        moved = action(group.inverse(result.best()), x)
        gain, offset, width = _exposure(residuals, moved[0])
        moved[:, :-1] = gain * moved[:, :-1] + offset * moved[:, -1:]
        shared = _shared_contrast(residuals, GemanMcClure(width), moved[0])
        change = float(torch.maximum((gain - 1).abs(), offset.abs()).max())
        return _Level(result.elements[0], gain * before.moving + offset, width, shared, change)

    def judged(self, found: _Level) -> Registration:
        assert found.width is not None
        group, action, dtype = self.group, self.action, self.moving.dtype
        # energies that differ in the last digits order steps
        fixed, moving = self.fixed.double(), found.moving.double()
        full, x = PairedImages(fixed), with_coverage(moving)[None]
        if found.width > _LOSS_WIDTH_IN_STDS * math.sqrt(len(fixed)) * _NOISY_STD:
            full, x = PairedImages(_blurred(fixed)), _inner(with_coverage(_blurred(moving)))[None]
        loss = GemanMcClure(found.width)
        stages = [LevenbergMarquardt(_REFINING_STEPS)]
        refine = Inverter(action, LeastSquares(full, loss), stages, max_evaluations=1, progress=False)
        # the element is off the group in single precision, where differences have no logarithm
        h = group.project(found.elements.double())
        for _ in range(_MAX_ROUNDS):
            before, h = h, refine(x, initial=h[None]).elements[0]
            if not float(group.distance(before[0], h[0])) > _MAX_LAST_STEP:
                break
        fit = assess(
            action,
            lambda std: LeastSquares(full, loss, std=std),
            x,
            h,
            smooth=lambda r, _: _around(r, fixed.shape[-2:]),
            part=lambda y: (y[0, -1] > 1.0 - 1e-3).flatten(),
            dtype=dtype,
        )
        if not fit.found:
            return replace(
                fit, action=ImageWarp(group), element=fit.element.to(dtype), covariance=fit.covariance.to(dtype)
            )
        h, estimate, ended = self._polished(full, x[0], group.inverse(fit.element), found.width)
        element, adjoint = group.inverse(h), group.Ad(h)
        covariance = adjoint @ estimate.covariance @ adjoint.mT
        reasons = [*fit.reasons, *undetermined(covariance, estimate.free @ adjoint.mT)]
        if not ended:
            reasons.append("the last steps have not ended")
        shared = _shared_contrast(full, loss, action(element, x)[0])
        if not shared >= _MIN_SHARED_CONTRAST:
            reasons.append(f"{shared:.0%} of the contrast is shared: less than {_MIN_SHARED_CONTRAST:.0%}")
        modes = modes_at(element[None], element.new_ones(1))
        if not reasons:
            others = self._others(full, x, h, loss, covariance=estimate.covariance)
            modes = modes_at(torch.cat([element[None], group.inverse(others)]), element.new_ones(1 + len(others)))
            reasons += rivals(modes)
        if reasons and self.transformations is None:
            reasons.append(_BEGAN_NEAR)
        return replace(
            fit,
            action=ImageWarp(group),
            modes=modes,
            verdict=Verdict(tuple(dict.fromkeys(reasons)), _ASSUMPTIONS),
            element=element.to(dtype),
            covariance=(0.5 * (covariance + covariance.mT)).to(dtype),
            residual=fit.residual * self.contrast,
        )

    def _others(
        self, full: PairedImages, x: Float[Tensor, "1 d h w"], h: Tensor, loss: GemanMcClure, covariance: Tensor
    ) -> Float[Tensor, "k *e"]:
        """Return elements beside h that fit as well, found from where the restored image looks like the fixed one."""
        group, action = self.group, self.action
        moved = action(group.inverse(h), x[0])
        alike = look_alikes(action, moved, full.reference, _NUM_LOOK_ALIKES)
        if not len(alike):
            return alike
        candidates = group.compose(h, alike)
        side = next((side for side in self.sides if side >= _LEAST_SIDE_OF_OTHERS), self.sides[-1])
        small = PairedImages(shrunk(full.reference, side)), with_coverage(shrunk(x[0, :-1], side))[None]
        stages: list[Stage] = [LevenbergMarquardt(_NUM_STEPS_OF_OTHERS)]
        for residuals, data in (small, (full, x)):
            search = Inverter(action, LeastSquares(residuals, loss), stages, max_evaluations=4, progress=False)
            candidates = search(data, initial=candidates[None]).elements[0]
            posterior = InverseProblem(action, LeastSquares(residuals, loss)).given(data, max_evaluations=1)
            energies = posterior.energies(torch.cat([h[None], candidates])[None])[0]
            low = energies[1:] < _MAX_ENERGY_RATIO * energies[0] + _MIN_STD**2 * data[0, 0].numel()
            candidates = candidates[low & self._are_other(candidates, h, covariance)]
            if not len(candidates):
                return candidates
        kept: list[Tensor] = []
        for one in candidates:
            if _fits_as_well(full, action, x[0], h, one, loss) and (
                not kept or bool(self._are_other(one[None], torch.stack(kept), covariance).all())
            ):
                kept.append(one)
        return torch.stack(kept) if kept else candidates[:0]

    def _are_other(self, candidates: Tensor, h: Tensor, covariance: Tensor) -> Tensor:
        """Return a mask of elements that are no estimates of an element, or of some."""
        group = self.group
        v = group.log(group.compose(group.inverse(h).reshape(-1, 1, *group.element_shape), candidates.unsqueeze(0)))
        stds = torch.einsum("kci,ij,kcj->kc", v, torch.linalg.inv(covariance), v).sqrt()
        pixel = 2.0 / max(self.fixed.shape[-2:])
        near = (stds < _SAME_IN_STDS) | (v.norm(dim=-1) < 0.5 * pixel)
        return torch.isfinite(candidates).flatten(1).all(-1) & ~near.any(0)

    def _polished(
        self, full: PairedImages, x: Float[Tensor, "d h w"], h: Tensor, width: float
    ) -> tuple[Tensor, BlockEstimate, bool]:
        """Return the solution of the equations of `_compared` near an element, what is known, and if steps ended."""
        uneven = _is_uneven(full, self.action(self.group.inverse(h), x), width)
        h, estimate, ended = self._solved(full, x, h, width, uneven)
        if uneven and not len(estimate.free):
            # a tone curve of blurred images is not that of sharp ones: edges move towards the side that it makes darker
            softer = PairedImages(_blurred(full.reference)), _inner(torch.cat([_blurred(x[:-1]), x[-1:]]))
            other, second, second_ended = self._solved(*softer, h, width, uneven)
            ended = ended and second_ended and not len(second.free)
            v = self.group.log(self.group.compose(self.group.inverse(h), other))
            square = v @ torch.linalg.solve(estimate.covariance, v)
            estimate = estimate._replace(covariance=(1.0 + square / len(v)) * estimate.covariance)
        return h, estimate, ended

    def _solved(
        self, full: PairedImages, x: Float[Tensor, "d h w"], h: Tensor, width: float, uneven: bool
    ) -> tuple[Tensor, BlockEstimate, bool]:
        """Return the end of steps of `_compared`, its estimate, and if steps ended."""
        least_std = rounding_std(self.moving.dtype)
        for _ in range(_MAX_POLISHING_STEPS):
            estimate = block_estimate(_compared(full, self.action, h, x, width, uneven), least_std)
            step = estimate.step
            square = float(step @ torch.linalg.solve(estimate.covariance, step))
            if square < _MAX_LAST_STEP_IN_STDS**2 or float(step.norm()) < _MAX_LAST_STEP_OF_POLISHING:
                return h, estimate, True
            h = self.group.perturb(h, step)
        return h, estimate, False


class _Level(NamedTuple):
    """Ends of descents at one size of the images.

    Attributes:
        elements: elements of the inverter, the best one first, ``[k, *element_shape]``.
        moving: the moving image, with the exposure of the fixed one.
        width: width of the next robust loss; ``None`` before the first descent.
        shared: share of the contrast that both images have in common.
        change: change of the exposure, in units of the contrast.
    """

    elements: Tensor
    moving: Tensor
    width: float | None = None
    shared: float = 0.0
    change: float = math.inf


def _exposure(residuals: PairedImages, moved: Float[Tensor, "d h w"]) -> tuple[Tensor, Tensor, float]:
    """Return gain and offset of each channel that take an image to the fixed one where both agree, ``[c, 1, 1]``.

    Also returns the width of a loss that takes the remaining residuals for normal ones with outliers. The gain is the
    ratio of standard deviations: least squares would make it small where both have noise.
    """
    image, fixed = moved[:-1].flatten(1), residuals.reference.flatten(1)
    covered = (moved[-1] > 0.5).flatten()
    gain, offset, width = torch.ones_like(image[:, :1]), torch.zeros_like(image[:, :1]), 1e3
    for step in range(_NUM_EXPOSURES):
        difference = gain * image + offset - fixed
        std = robust_std(difference.mT, covered)
        if not math.isfinite(std):
            break
        width = _LOSS_WIDTH_IN_STDS * math.sqrt(len(image)) * max(std, _MIN_STD)
        if step == _NUM_EXPOSURES - 1:
            break
        weight = covered / (1.0 + difference.square().sum(0) / width**2) ** 2
        total = weight.sum()
        means = [(weight * part).sum(1, keepdim=True) / total for part in (image, fixed)]
        spread = [
            (weight * (part - mean).square()).sum(1, keepdim=True) / total
            for part, mean in zip((image, fixed), means, strict=True)
        ]
        known = torch.minimum(*spread) > _MIN_STD**2
        gain = torch.where(known, (spread[1] / torch.where(known, spread[0], 1.0)).sqrt(), 1.0)
        offset = means[1] - gain * means[0]
    return gain.unsqueeze(-1), offset.unsqueeze(-1), width


def _standardised(moving: Tensor, fixed: Tensor) -> Tensor:
    """Return the image with the mean and the standard deviation of the fixed one in each channel."""
    (std, mean), (wanted, middle) = (
        torch.std_mean(image, (-2, -1), correction=0, keepdim=True) for image in (moving, fixed)
    )
    known = torch.minimum(std, wanted) > _MIN_STD * torch.maximum(std, wanted)
    return (moving - mean) * torch.where(known, wanted / torch.where(known, std, 1.0), 1.0) + middle


def _sides(height: int, width: int) -> list[int]:
    """Return longer sides of the images of a pyramid, from the coarsest to the full one."""
    longer = max(height, width)
    sides = [longer]
    while sides[-1] >= 2 * max(_COARSEST_SIDE, _MIN_SHORTER_SIDE * longer / min(height, width)):
        sides.append(sides[-1] // 2)
    return sides[::-1]


def _shared_contrast(residuals: PairedImages, loss: GemanMcClure, moved: Float[Tensor, "d h w"]) -> float:
    r"""Return one minus the ratio of :math:`|I - I_0|^2` to the sum of both variances, where the images agree.

    The result is one for equal images and zero on average for unrelated ones, which the spread of the residuals alone
    would take for images with much noise. ``loss`` says where the images agree.
    """
    image, fixed = moved[:-1].flatten(1), residuals.reference.flatten(1)
    square = (image - fixed).square().sum(0)
    covered = (moved[-1] > 1.0 - 1e-3).flatten()
    weight = torch.func.grad(lambda s: loss(s).sum())(square) * covered
    total = weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
    means = [(weight * part).sum(1, keepdim=True) / total for part in (image, fixed)]
    spread = [(weight * (part - mean).square()).sum() for part, mean in zip((image, fixed), means, strict=True)]
    both = float(spread[0] + spread[1])
    if not both > _MIN_STD**2 * float(total):
        return 0.0
    return max(1.0 - float((weight * square).sum()) / both, 0.0)


def _blurred(image: Tensor) -> Tensor:
    """Return the image under a kernel of standard deviation one pixel.

    Interpolation between pixels removes a part of white noise, most halfway between them, so that the sum of squares
    would draw images there. It removes little of noise that is alike in neighbours.
    """
    if min(image.shape[-2:]) <= _BLUR_REACH:
        return image
    kernel = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0], dtype=image.dtype, device=image.device) / 16.0
    channels = len(image)
    padded = functional.pad(image[None], (_BLUR_REACH,) * 4, mode="reflect")
    rows = functional.conv2d(padded, kernel.reshape(1, 1, 1, 5).expand(channels, -1, -1, -1), groups=channels)
    return functional.conv2d(rows, kernel.reshape(1, 1, 5, 1).expand(channels, -1, -1, -1), groups=channels)[0]


def _inner(x: Tensor) -> Tensor:
    """Return the image without a margin, into which the blur has mixed what lay beside it."""
    if min(x.shape[-2:]) <= 8 * _BLUR_REACH:
        return x
    inside = x[..., 2 * _BLUR_REACH : -2 * _BLUR_REACH, 2 * _BLUR_REACH : -2 * _BLUR_REACH]
    return functional.pad(inside, (2 * _BLUR_REACH,) * 4)


def _inside(size: torch.Size, prototype: Tensor) -> Float[Tensor, " p"]:
    """Return the mask of pixels that a blur and slopes read no border for."""
    least = max(0, min(_BLUR_REACH, (min(size) - 1) // 8))
    mask = prototype.new_zeros(tuple(size))
    mask[least : size[0] - least, least : size[1] - least] = 1.0
    return mask.flatten()


def _around(r: Float[Tensor, "p c"], size: torch.Size) -> Float[Tensor, "p c"]:
    """Return sums over squares of pixels as far as blurred noise is correlated."""
    images = r.mT.unflatten(-1, tuple(size)).unsqueeze(0)
    side = 2 * _CORRELATION_REACH + 1
    return side**2 * functional.avg_pool2d(images, side, 1, _CORRELATION_REACH)[0].flatten(1).mT


def _compared(
    residuals: PairedImages, action: ImageWarp, h: Tensor, x: Float[Tensor, "d h w"], width: float, uneven: bool
) -> BlockSums:
    r"""Return sums over blocks that compare a restored image with the fixed one, beside an exposure.

    The equations :math:`\sum_p w_p r_p \nabla I_0(p) \xi_i(p) = 0` have the slopes of the fixed image, as the inverse
    compositional algorithm (Baker and Matthews 2004). They know nothing of the interpolation of the moving image, by
    which the sum of squares is drawn to where noise and detail are lost. Residuals and slopes are what the exposure
    leaves of them (variable projection).

    Args:
        uneven: whether the exposure varies over the frame and with brightness; else a gain and an offset.
    """
    size = x.shape[-2:]
    side = max(_MIN_BLOCK_SIDE, -(-max(size) // _BLOCKS_PER_SIDE))
    values, along, fields = residuals.slopes(action, h, x)
    image, fixed = values[:-1], residuals.reference.flatten(1)
    counted = _inside(size, x) * (values[-1] > 1.0 - 1e-3)
    half = 0.5 * max(size)
    plain = (image - fixed) * counted
    r = plain
    for _ in range(_NUM_REWEIGHTINGS):
        weight = _loss_slopes(GemanMcClure(width), r)[0] * counted
        exposures = [_Exposure.fitted(m, part, weight, size, uneven) for m, part in zip(image, plain, strict=True)]
        r = torch.stack([exposure.residual for exposure in exposures]) * counted
        std = robust_std(r.mT, counted)
        if std > _MIN_REFINED_STD:
            width = min(width, _LOSS_WIDTH_IN_STDS * math.sqrt(len(image)) * std)
    weight, bend = (counted * part for part in _loss_slopes(GemanMcClure(width), r))
    slopes = half * _differences(residuals.reference).flatten(2)
    # outliers, which weigh nothing, have no slopes beside them
    rough = half * _differences((weight * r).reshape(residuals.reference.shape)).flatten(2)
    score, towards_ours, towards_theirs = (torch.zeros_like(fields[:, 0]) for _ in range(3))
    descent = own = noise = torch.zeros((), dtype=x.dtype, device=x.device)
    for c, exposure in enumerate(exposures):
        ours = exposure.left(exposure.gain * (fields * along[:, c]).sum(1), weight)
        theirs = exposure.left((fields * slopes[:, c]).sum(1), weight)
        rough_part = (fields * rough[:, c]).sum(1)
        score = score + weight * r[c] * theirs
        towards_ours, towards_theirs = towards_ours + r[c] * ours, towards_theirs + r[c] * theirs
        descent = descent + _block_products(weight * ours, theirs, size, side)
        own = own + _block_products(weight * ours, ours, size, side)
        noise = noise + _block_products(rough_part, rough_part, size, side)
    # where residuals are large and along the slopes, the loss bends
    shared = descent + _block_products(2.0 * bend * towards_ours, towards_theirs, size, side)
    around = score @ _around(score.mT, size)
    return BlockSums(
        -_in_blocks(score, size, side).sum(-1).mT,
        0.5 * (descent + descent.mT),
        0.5 * (shared + shared.mT),
        own,
        noise,
        score @ score.mT,
        0.5 * (around + around.mT),
        max(float(counted.sum()) / (2 * _CORRELATION_REACH + 1) ** 2, 1.0),
    )


def _is_uneven(residuals: PairedImages, moved: Float[Tensor, "d h w"], width: float) -> bool:
    """Return whether an exposure that varies over the frame and with brightness leaves half of what one gain leaves.

    Of means over squares of pixels: there is little noise in them, for which such an exposure would fit less.
    """
    small = functional.avg_pool2d(torch.cat([moved, residuals.reference])[None], min(_MEAN_SIDE, *moved.shape[-2:]))[0]
    channels = len(residuals.reference)
    image, cover, fixed = small[:channels].flatten(1), small[channels].flatten(), small[channels + 1 :].flatten(1)
    counted = (cover > 1.0 - 1e-3).to(image.dtype)
    plain = (image - fixed) * counted
    weight = _loss_slopes(GemanMcClure(width), plain)[0] * counted
    left = []
    for uneven in (False, True):
        r = [
            _Exposure.fitted(m, part, weight, small.shape[-2:], uneven).residual
            for m, part in zip(image, plain, strict=True)
        ]
        left.append(float((weight * torch.stack(r).square().sum(0)).sum()))
    return left[1] < _MAX_LEFT_BY_EXPOSURE * left[0] and left[0] > _MIN_REFINED_STD**2 * float(counted.sum())


def _fits_as_well(
    residuals: PairedImages, action: ImageWarp, x: Float[Tensor, "d h w"], h: Tensor, other: Tensor, loss: GemanMcClure
) -> bool:
    """Return whether another element leaves residuals as small as h, where both show something (Vuong 1989).

    A part of the squares is left out of account, by which two places between pixels differ for one picture: noise and
    bends of the picture are interpolated differently. Evidence beyond it counts in units of its spread between blocks.
    """
    size = x.shape[-2:]
    side = max(_MIN_BLOCK_SIDE, -(-max(size) // _BLOCKS_PER_SIDE))
    images = [residuals.slopes(action, g, x)[0] for g in (h, other)]
    counted = _inside(size, x) * torch.stack([image[-1] > 1.0 - 1e-3 for image in images]).all(0)
    fixed = residuals.reference.flatten(1)
    plain = [image[:-1] - fixed for image in images]
    std = max(robust_std(plain[0].mT, counted), _MIN_STD)
    first, second = (
        0.5 * _in_blocks((counted * loss(r.square().sum(0)))[None], size, side).sum(-1)[0] / std**2 for r in plain
    )
    difference = second - first
    spread = float((difference - difference.median()).abs().median()) / NORMAL_MEDIAN
    allowed = _MAX_EVIDENCE_IN_STDS * spread * math.sqrt(len(first)) + _INTERPOLATED_SHARE * float(first.sum())
    # linear interpolation halfway between pixels is off by an eighth of the second difference
    bends = 0.125 * (_bends(residuals.reference, -1).square() + _bends(residuals.reference, -2).square()).sqrt()
    allowed += float((counted * loss(bends.flatten(1).square().sum(0))).sum()) * 0.5 / std**2
    return float(difference.sum()) < allowed


def _loss_slopes(loss: GemanMcClure, r: Float[Tensor, "c p"]) -> tuple[Tensor, Tensor]:
    """Return both derivatives of the loss by the squares of residuals, ``[p]``."""
    square = r.square().sum(0)
    slope = torch.func.grad(lambda s: loss(s).sum())
    return slope(square), torch.func.grad(lambda s: slope(s).sum())(square)


class _Exposure(NamedTuple):
    """The exposure of a channel: gain and offset, or a tone curve, and a gain and an offset quadratic over the frame.

    Attributes:
        columns: values of the functions at the pixels, ``[q, p]``.
        residual: what they leave of the residual, ``[p]``.
        gain: derivative of the exposed image by the image, ``[p]``.
    """

    columns: Float[Tensor, "q p"]
    residual: Float[Tensor, " p"]
    gain: Float[Tensor, " p"]

    @classmethod
    def fitted(cls, image: Tensor, residual: Tensor, weight: Tensor, size: torch.Size, uneven: bool) -> _Exposure:
        """Return the exposure of an image that leaves the least of a residual, with or without all but both first."""
        total = weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
        mean = (weight * image).sum() / total
        std = ((weight * (image - mean).square()).sum() / total).sqrt().clamp(min=_MIN_STD)
        tone = (image - mean) / std
        field = torch.ones_like(tone)[None]
        columns, slopes = torch.cat([field, tone[None]]), field
        if uneven:
            y, x = (torch.linspace(-1.0, 1.0, n, dtype=image.dtype, device=image.device) for n in size)
            y, x = (part.flatten() for part in torch.meshgrid(y, x, indexing="ij"))
            field = torch.stack([field[0], x, y, x * x, x * y, y * y])
            knots = torch.quantile(torch.where(weight > 0, tone, 0.0), tone.new_tensor(_TONE_KNOTS)).unsqueeze(-1)
            bends = (tone - knots).clamp(min=0.0)
            columns = torch.cat([field, tone * field, bends])
            slopes = torch.cat([field, (bends > 0).to(tone.dtype)])
        parts = _fitted_parts(columns, residual, weight)
        gain = 1.0 - parts[len(field) :] @ slopes / std
        return cls(columns, residual - parts @ columns, gain)

    def left(self, part: Float[Tensor, "*m p"], weight: Tensor) -> Tensor:
        """Return what the functions leave."""
        return part - _fitted_parts(self.columns, part, weight) @ self.columns


def _fitted_parts(columns: Float[Tensor, "q p"], part: Float[Tensor, "*m p"], weight: Tensor) -> Float[Tensor, "*m q"]:
    """Return the coefficients of columns in weighted least squares."""
    weighted = weight * columns
    gram = weighted @ columns.mT
    diagonal = gram.diagonal()
    gram = gram + _RIDGE * torch.diag(diagonal + diagonal.amax().clamp(min=torch.finfo(gram.dtype).tiny))
    return torch.linalg.solve(gram, weighted @ part.reshape(-1, part.shape[-1]).mT).mT.reshape(*part.shape[:-1], -1)


def _block_products(a: Tensor, b: Tensor, size: torch.Size, side: int) -> Float[Tensor, "k n n"]:
    """Return sums over blocks of products of values at the pixels, ``[n, p]``."""
    first, second = (_in_blocks(part, size, side).transpose(0, 1) for part in (a, b))
    return first @ second.mT


def _bends(image: Float[Tensor, "c h w"], axis: int) -> Float[Tensor, "c h w"]:
    """Return second differences along an axis, zero at both ends."""
    bends = torch.zeros_like(image)
    size = image.shape[axis]
    if size > 2:
        bends.narrow(axis, 1, size - 2).copy_(image.diff(n=2, dim=axis))
    return bends


def _in_blocks(part: Float[Tensor, "*m p"], size: torch.Size, side: int) -> Float[Tensor, "*m k q"]:
    """Return values at pixels by square blocks."""
    image = functional.pad(part.unflatten(-1, tuple(size)), (0, -size[1] % side, 0, -size[0] % side))
    return image.unfold(-2, side, side).unfold(-2, side, side).flatten(-2).flatten(-3, -2)


def _differences(image: Tensor) -> Tensor:
    """Return central differences of fourth order by x and y, ``[2, c, h, w]``."""
    kernel = torch.tensor([1.0, -8.0, 0.0, 8.0, -1.0], dtype=image.dtype) / 12.0
    channels = image.unsqueeze(1)
    padded = functional.pad(channels, (2, 2, 2, 2), mode="replicate")
    by_x = functional.conv2d(padded[..., 2:-2, :], kernel.reshape(1, 1, 1, 5))[:, 0]
    by_y = functional.conv2d(padded[..., 2:-2], kernel.reshape(1, 1, 5, 1))[:, 0]
    return torch.stack([by_x, by_y])
