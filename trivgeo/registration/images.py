"""Registration of photographs, from coarse to fine."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from trivgeo._random import normal
from trivgeo.actions import ImageWarp
from trivgeo.groups import LieGroup
from trivgeo.inversion.energies.least_squares import GemanMcClure, LeastSquares
from trivgeo.inversion.energies.paired_images import PairedImages, with_coverage
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.stage import Stage
from trivgeo.inversion.stages.chains import Select
from trivgeo.inversion.stages.levenberg_marquardt import LevenbergMarquardt
from trivgeo.inversion.transformations import Transformations, sample_elements
from trivgeo.registration.record import Registration, fit_of, robust_std

__all__ = ["register_images"]

_COARSEST_SIDE = 24
"""Longer side of the coarsest images, in pixels."""
_LEAST_SIDE = 5
"""Shorter side of the coarsest images, at least, in pixels."""
_KEPT = (12, 4, 2, 1, 1)
"""Hypotheses that go on from each level."""
_FIRST_STEPS, _TRIED = 5, 64
"""Steps of all hypotheses, and how many of them go on at the coarsest level."""
_STEPS = (15, 8, 6, 5, 4)
"""Steps at each level."""
_LAST_STEPS, _STILL = 6, 1e-6
"""Steps of a round at the end, in double precision, and their length at which the rounds end."""
_MAX_NUMBERS = 2**23
"""Numbers of restored images at once."""
_WIDTH = 5.0
"""Of the robust loss, in standard deviations of the residuals."""
_EXPOSURES = 6
"""Estimates of gain and offset, each with outliers by the one before."""
_ROUNDS, _SETTLED = 30, 1e-4
"""Rounds at the end, at most: of descents and exposures in turn, and of the last steps; and the change of the exposure
at which the former end."""
_LEAST_STD = 1e-3
"""Standard deviation of residuals for the robust loss, at least, in units of the contrast."""
_NOISY_STD = 0.02
"""Standard deviation of residuals from which on images are blurred, in units of the contrast."""
_MARGIN = 2
"""Pixels on each side that a blur reads."""
_CORRELATED = 4
"""Pixels on each side in which blurred noise is correlated."""
_LEAST_SHARED = 0.5
"""Share of the contrast that both images must have in common."""
_NEAR = "the search began near the identity: give transformations if the transformation may be larger"
_SPREAD = 0.15
"""Standard deviation of the first elements in each direction, in units of the natural basis."""


def register_images(
    moving: Float[Tensor, "c h w"],
    fixed: Float[Tensor, "c h w"],
    group: LieGroup,
    transformations: Transformations | None,
    num_starts: int,
    generator: torch.Generator,
) -> Registration:
    """Return the registration of two images whose shapes were checked.

    Args:
        moving: image ``[c, h, w]`` that is moved.
        fixed: image ``[c, h, w]`` to which it is moved.
        group: the group of the transformation.
        transformations: function (count, generator) to elements from which searches start, see `register`.
        num_starts: number of searches.
        generator: random numbers.
    """
    action = ImageWarp(group, guarded=False)
    dtype, contrast = moving.dtype, float(fixed.std(correction=0)) or 1.0
    moving, fixed = moving / contrast, fixed / contrast
    sides = _sides(*fixed.shape[-2:])
    starts = _starts(group, transformations, num_starts, generator, moving)
    found = _descend(action, moving, fixed, starts, 0, sides[0], None)
    if not found.shared >= _LEAST_SHARED:  # or the exposures are very different
        alike = _descend(action, _standardised(moving, fixed), fixed, starts, 0, sides[0], None)
        found = alike if alike.shared > found.shared else found
    for level, side in enumerate(sides[1:], 1):
        found = _descend(action, found.moving, fixed, found.elements, level, side, found.width)
    for _ in range(_ROUNDS):  # exposure and scale depend on each other
        if found.change < _SETTLED:
            break
        found = _descend(action, found.moving, fixed, found.elements, len(sides), sides[-1], found.width)
    h, width = found.elements, found.width
    fixed, moving = fixed.double(), found.moving.double()  # energies that differ in the last digits order steps
    full, x = PairedImages(fixed), with_coverage(moving)[None]
    if width > _WIDTH * math.sqrt(len(fixed)) * _NOISY_STD:
        full, x = PairedImages(_blurred(fixed)), _inner(with_coverage(_blurred(moving)))[None]
    loss = GemanMcClure(width)
    refine = Inverter(
        action, LeastSquares(full, loss), [LevenbergMarquardt(_LAST_STEPS)], max_evaluations=1, progress=False
    )
    h = group.project(h.double())  # in single precision it is off the group, where differences have no logarithm
    for _ in range(_ROUNDS):
        before, h = h, refine(x, initial=h[None]).elements[0]
        if not float(group.distance(before[0], h[0])) > _STILL:
            break
    fit = fit_of(
        action,
        lambda std: LeastSquares(full, loss, std=std),
        x,
        h,
        smooth=lambda r, _: _around(r, fixed.shape[-2:]),
        part=lambda y: (y[0, -1] > 1.0 - 1e-3).flatten(),
        digits=torch.finfo(dtype).eps,
    )
    shared = _shared_contrast(full, loss, action(fit.element, x)[0]) if fit.found else 1.0
    said = f"{shared:.0%} of the contrast is shared: less than {_LEAST_SHARED:.0%}"
    reasons = fit.reasons if shared >= _LEAST_SHARED else (*fit.reasons, said)
    return replace(
        fit,
        action=ImageWarp(group),
        reasons=(*reasons, _NEAR) if reasons and transformations is None else reasons,
        element=fit.element.to(dtype),
        covariance=fit.covariance.to(dtype),
        residual=fit.residual * contrast,
    )


class _Level(NamedTuple):
    """What descents at one size of the images have found.

    Attributes:
        elements: of the inverter, the best one first, ``[k, *element_shape]``.
        moving: the image, with the exposure of the fixed one.
        width: of the next robust loss.
        shared: share of the contrast that both images have in common.
        change: of the exposure, in units of the contrast.
    """

    elements: Tensor
    moving: Tensor
    width: float
    shared: float
    change: float


def _descend(
    action: ImageWarp, moving: Tensor, fixed: Tensor, h: Tensor, level: int, side: int, width: float | None
) -> _Level:
    """Descents from ``h`` on images of this side, then the exposure; without a width the loss is of squares."""
    place = min(level, len(_KEPT) - 1)
    residuals, x = PairedImages(_shrunk(fixed, side)), with_coverage(_shrunk(moving, side))[None]
    energy = LeastSquares(residuals, None if width is None else GemanMcClure(width))
    stages: list[Stage] = [LevenbergMarquardt(_STEPS[place]), Select(min(_KEPT[place], len(h)))]
    if len(h) > _TRIED:
        stages = [LevenbergMarquardt(_FIRST_STEPS), Select(_TRIED), *stages]
    together = max(1, _MAX_NUMBERS // (x.numel() * (action.group.dim + 1)))
    result = Inverter(action, energy, stages, max_evaluations=together, progress=False)(x, initial=h[None])
    moved = action(action.group.inverse(result.best()), x)
    gain, offset, width = _exposure(residuals, moved[0])
    moved[:, :-1] = gain * moved[:, :-1] + offset * moved[:, -1:]
    shared = _shared_contrast(residuals, GemanMcClure(width), moved[0])
    change = float(torch.maximum((gain - 1).abs(), offset.abs()).max())
    return _Level(result.elements[0], gain * moving + offset, width, shared, change)


def _exposure(residuals: PairedImages, moved: Float[Tensor, "d h w"]) -> tuple[Tensor, Tensor, float]:
    """Gain and offset of each channel that take an image to the fixed one where both agree, ``[c, 1, 1]``.

    Returns the width of a loss as well, which takes the residuals that are left for normal ones with outliers. The
    gain is the ratio of standard deviations: least squares would make it small where both have noise.

    Args:
        residuals: to the fixed image.
        moved: image with its coverage.
    """
    image, fixed = moved[:-1].flatten(1), residuals.reference.flatten(1)
    covered = (moved[-1] > 0.5).flatten()
    gain, offset, width = torch.ones_like(image[:, :1]), torch.zeros_like(image[:, :1]), 1e3
    for step in range(_EXPOSURES):
        difference = gain * image + offset - fixed
        std = robust_std(difference.mT, covered)
        if not math.isfinite(std):
            break
        width = _WIDTH * math.sqrt(len(image)) * max(std, _LEAST_STD)
        if step == _EXPOSURES - 1:
            break
        weight = covered / (1.0 + difference.square().sum(0) / width**2) ** 2
        total = weight.sum()
        means = [(weight * part).sum(1, keepdim=True) / total for part in (image, fixed)]
        spread = [
            (weight * (part - mean).square()).sum(1, keepdim=True) / total
            for part, mean in zip((image, fixed), means, strict=True)
        ]
        known = torch.minimum(*spread) > _LEAST_STD**2
        gain = torch.where(known, (spread[1] / torch.where(known, spread[0], 1.0)).sqrt(), 1.0)
        offset = means[1] - gain * means[0]
    return gain.unsqueeze(-1), offset.unsqueeze(-1), width


def _standardised(moving: Tensor, fixed: Tensor) -> Tensor:
    """The image with the mean and the standard deviation of the fixed one in each channel."""
    (std, mean), (wanted, middle) = (
        torch.std_mean(image, (-2, -1), correction=0, keepdim=True) for image in (moving, fixed)
    )
    known = torch.minimum(std, wanted) > _LEAST_STD * torch.maximum(std, wanted)
    return (moving - mean) * torch.where(known, wanted / torch.where(known, std, 1.0), 1.0) + middle


def _sides(height: int, width: int) -> list[int]:
    """Longer sides of the images of a pyramid, from the coarsest to the full one."""
    longer = max(height, width)
    sides = [longer]
    while sides[-1] >= 2 * max(_COARSEST_SIDE, _LEAST_SIDE * longer / min(height, width)):
        sides.append(sides[-1] // 2)
    return sides[::-1]


def _shrunk(image: Tensor, side: int) -> Tensor:
    """The image with another longer side, each pixel the mean of what it covers."""
    height, width = image.shape[-2:]
    longer = max(height, width)
    if side == longer:
        return image
    size = max(1, round(height * side / longer)), max(1, round(width * side / longer))
    return functional.interpolate(image[None], size, mode="area")[0]


def _starts(
    group: LieGroup, transformations: Transformations | None, number: int, generator: torch.Generator, prototype: Tensor
) -> Tensor:
    """The identity, and drawn elements; of the inverter, so inverses of what takes moving to fixed."""
    if transformations is None:
        v = _SPREAD * normal((number - 1, group.dim), prototype.double(), generator)
        drawn = group.with_scale(None).exp(v)
    else:
        drawn = sample_elements(group, transformations, number - 1, generator)
    first = group.identity(1, dtype=prototype.dtype, device=prototype.device)
    return group.inverse(torch.cat([first, drawn.to(first)]))


def _shared_contrast(residuals: PairedImages, loss: GemanMcClure, moved: Float[Tensor, "d h w"]) -> float:
    r"""One minus the ratio of :math:`|I - I_0|^2` to the sum of both variances, where the images agree.

    One for images that are the same, zero on average for images that have nothing to do with each other: by the spread
    of the residuals alone these would be images with much noise.

    Args:
        residuals: to the fixed image.
        loss: says where the images agree.
        moved: image with its coverage.
    """
    image, fixed = moved[:-1].flatten(1), residuals.reference.flatten(1)
    square = (image - fixed).square().sum(0)
    covered = (moved[-1] > 1.0 - 1e-3).flatten()
    weight = torch.func.grad(lambda s: loss(s).sum())(square) * covered
    total = weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
    means = [(weight * part).sum(1, keepdim=True) / total for part in (image, fixed)]
    spread = [(weight * (part - mean).square()).sum() for part, mean in zip((image, fixed), means, strict=True)]
    both = float(spread[0] + spread[1])
    if not both > _LEAST_STD**2 * float(total):
        return 0.0
    return max(1.0 - float((weight * square).sum()) / both, 0.0)


def _blurred(image: Tensor) -> Tensor:
    """The image under a kernel of standard deviation one pixel.

    Interpolation between pixels takes a part of white noise away, most halfway between them, so that the sum of squares
    would draw images there; of noise that is alike in neighbours it takes little.
    """
    if min(image.shape[-2:]) <= _MARGIN:
        return image
    kernel = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0], dtype=image.dtype, device=image.device) / 16.0
    channels = len(image)
    padded = functional.pad(image[None], (_MARGIN,) * 4, mode="reflect")
    rows = functional.conv2d(padded, kernel.reshape(1, 1, 1, 5).expand(channels, -1, -1, -1), groups=channels)
    return functional.conv2d(rows, kernel.reshape(1, 1, 5, 1).expand(channels, -1, -1, -1), groups=channels)[0]


def _inner(x: Tensor) -> Tensor:
    """The image without a margin: what lay beside it in the fixed one has been blurred into that."""
    if min(x.shape[-2:]) <= 8 * _MARGIN:
        return x
    inside = x[..., 2 * _MARGIN : -2 * _MARGIN, 2 * _MARGIN : -2 * _MARGIN]
    return functional.pad(inside, (2 * _MARGIN,) * 4)


def _around(r: Float[Tensor, "p c"], size: torch.Size) -> Float[Tensor, "p c"]:
    """Sums over squares of pixels as far as blurred noise is correlated."""
    images = r.mT.unflatten(-1, tuple(size)).unsqueeze(0)
    side = 2 * _CORRELATED + 1
    return side**2 * functional.avg_pool2d(images, side, 1, _CORRELATED)[0].flatten(1).mT
