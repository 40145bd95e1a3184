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
from trivgeo.inversion.stage import Stage
from trivgeo.inversion.stages.chains import Select
from trivgeo.inversion.stages.levenberg_marquardt import LevenbergMarquardt
from trivgeo.inversion.transformations import sample_elements
from trivgeo.registration.record import Registration, RegistrationMethod, assess, robust_std
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
        residuals, x = PairedImages(_shrunk(self.fixed, side)), with_coverage(_shrunk(before.moving, side))[None]
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
            digits=torch.finfo(dtype).eps,
        )
        reasons = list(fit.reasons)
        shared = _shared_contrast(full, loss, action(fit.element, x)[0]) if fit.found else 1.0
        if not shared >= _MIN_SHARED_CONTRAST:
            reasons.append(f"{shared:.0%} of the contrast is shared: less than {_MIN_SHARED_CONTRAST:.0%}")
        if reasons and self.transformations is None:
            reasons.append(_BEGAN_NEAR)
        return replace(
            fit,
            action=ImageWarp(group),
            verdict=Verdict(tuple(reasons)),
            element=fit.element.to(dtype),
            covariance=fit.covariance.to(dtype),
            residual=fit.residual * self.contrast,
        )


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


def _shrunk(image: Tensor, side: int) -> Tensor:
    """Return the image with another longer side, each pixel the mean of what it covers."""
    height, width = image.shape[-2:]
    longer = max(height, width)
    if side == longer:
        return image
    size = max(1, round(height * side / longer)), max(1, round(width * side / longer))
    return functional.interpolate(image[None], size, mode="area")[0]


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


def _around(r: Float[Tensor, "p c"], size: torch.Size) -> Float[Tensor, "p c"]:
    """Return sums over squares of pixels as far as blurred noise is correlated."""
    images = r.mT.unflatten(-1, tuple(size)).unsqueeze(0)
    side = 2 * _CORRELATION_REACH + 1
    return side**2 * functional.avg_pool2d(images, side, 1, _CORRELATION_REACH)[0].flatten(1).mT
