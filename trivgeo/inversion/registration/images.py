"""Registration of photographs, from coarse to fine."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from trivgeo._random import normal
from trivgeo.actions import ImageWarp
from trivgeo.groups import LieGroup
from trivgeo.inversion.energies.least_squares import LeastSquares
from trivgeo.inversion.energies.paired_images import PairedImages, with_coverage
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.law import Law, sample_elements
from trivgeo.inversion.losses import GemanMcClure
from trivgeo.inversion.registration.record import Registration, fit_of, robust_std
from trivgeo.inversion.stage import Stage
from trivgeo.inversion.stages.levenberg_marquardt import LevenbergMarquardt
from trivgeo.inversion.stages.select import Select

__all__ = ["register_images"]

_COARSEST_SIDE = 24
"""Longer side of the coarsest images, in pixels."""
_KEPT = (12, 4, 2, 1, 1)
"""Hypotheses that go on from each level."""
_FIRST_STEPS, _TRIED = 5, 64
"""Steps of all hypotheses, and how many of them go on at the coarsest level."""
_STEPS = (15, 8, 6, 5, 4)
"""Steps at each level."""
_LAST_STEPS = 6
"""Steps at the end, in double precision."""
_MAX_NUMBERS = 2**23
"""Numbers of restored images at once."""
_WIDTH = 5.0
"""Of the robust loss, in standard deviations of the residuals."""
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
_SPREAD = 0.15
"""Standard deviation of the first elements in each direction, in units of the natural basis."""


def register_images(
    moving: Float[Tensor, "c h w"],
    fixed: Float[Tensor, "c h w"],
    group: LieGroup,
    law: Law | None,
    num_starts: int,
    generator: torch.Generator,
) -> Registration:
    """Return the registration of two images whose shapes were checked.

    Args:
        moving: image ``[c, h, w]`` that is moved.
        fixed: image ``[c, h, w]`` to which it is moved.
        group: the group of the transformation.
        law: function (count, generator) to elements from which searches start, see `register`.
        num_starts: number of searches.
        generator: random numbers.
    """
    action = ImageWarp(group, guarded=False)
    dtype, contrast = moving.dtype, float(fixed.std()) or 1.0
    moving, fixed = moving / contrast, fixed / contrast
    sides = _sides(max(fixed.shape[-2:]))
    h = _starts(group, law, num_starts, generator, moving)
    width: float | None = None
    for level, side in enumerate(sides):
        place = min(level, len(_KEPT) - 1)
        small, x = PairedImages(_shrunk(fixed, side)), with_coverage(_shrunk(moving, side))[None]
        energy = LeastSquares(small, None if width is None else GemanMcClure(width))
        kept = min(_KEPT[place], len(h))
        stages: list[Stage] = [LevenbergMarquardt(_STEPS[place]), Select(kept)]
        if len(h) > _TRIED:
            stages = [LevenbergMarquardt(_FIRST_STEPS), Select(_TRIED), *stages]
        together = max(1, _MAX_NUMBERS // (x.numel() * (group.dim + 1)))
        result = Inverter(action, energy, stages, max_evaluations=together, progress=False)(x, initial=h[None])
        h = result.elements[0]
        width = _width(action, small, x, result.best())
    fixed, moving = fixed.double(), moving.double()  # energies that differ in the last digits order steps
    full, x = PairedImages(fixed), with_coverage(moving)[None]
    if width is not None and width > _WIDTH * math.sqrt(len(fixed)) * _NOISY_STD:
        full, x = PairedImages(_blurred(fixed)), _inner(with_coverage(_blurred(moving)))[None]
    loss = GemanMcClure(width if width is not None else 1.0)
    refine = Inverter(
        action, LeastSquares(full, loss), [LevenbergMarquardt(_LAST_STEPS)], max_evaluations=1, progress=False
    )
    h = refine(x, initial=h.double()[None]).elements[0]
    fit = fit_of(
        action,
        lambda std: LeastSquares(full, loss, std=std),
        x,
        h,
        smooth=lambda r: _around(r, fixed.shape[-2:]),
        part=lambda y: (y[0, -1] > 1.0 - 1e-3).flatten(),
        digits=torch.finfo(dtype).eps,
    )
    shared = _shared_contrast(full, loss, action(fit.element, x)[0]) if fit.found else 1.0
    said = f"{shared:.0%} of the contrast is shared: less than {_LEAST_SHARED:.0%}"
    return replace(
        fit,
        action=ImageWarp(group),
        reasons=fit.reasons if shared >= _LEAST_SHARED else (*fit.reasons, said),
        element=fit.element.to(dtype),
        covariance=fit.covariance.to(dtype),
        residual=fit.residual * contrast,
    )


def _sides(longer: int) -> list[int]:
    """Longer sides of the images of a pyramid, from the coarsest to the full one."""
    sides = [longer]
    while sides[-1] >= 2 * _COARSEST_SIDE:
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


def _starts(group: LieGroup, law: Law | None, number: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """The identity, and elements of the law; of the inverter, so inverses of what takes moving to fixed."""
    if law is None:
        v = _SPREAD * normal((number - 1, group.dim), like.double(), generator)
        drawn = group.with_scale(None).exp(v)
    else:
        drawn = sample_elements(group, law, number - 1, generator)
    first = group.identity(1, dtype=like.dtype, device=like.device)
    return group.inverse(torch.cat([first, drawn.to(first)]))


def _width(action: ImageWarp, residuals: PairedImages, x: Tensor, h: Tensor) -> float:
    """The width of a loss that takes the residuals at an element for normal ones with outliers."""
    y = action(action.group.inverse(h), x)
    std = robust_std(residuals(y)[0], (y[0, -1] > 0.5).flatten())
    return _WIDTH * math.sqrt(x.shape[1] - 1) * max(std, _LEAST_STD) if math.isfinite(std) else 1e3


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
    return 1.0 - float((weight * square).sum()) / both if both > 0 else 0.0


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
