"""What a registration found, and how far it is to be trusted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._text import Described
from trivgeo.groups import Action, LieGroup
from trivgeo.inversion.energies.least_squares import LeastSquares
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.posterior import InverseProblem
from trivgeo.inversion.result import PosteriorModes, modes_of
from trivgeo.inversion.stage import Population
from trivgeo.inversion.stages.laplace import Laplace

__all__ = ["Registration", "fit_of", "robust_std"]

_MODE_SAMPLES = 256
_MODE_RADIUS = 0.1
"""Distance within which elements are one mode, in units of the basis of the group on conditioned data."""
_LEAST_RIVAL = 0.05
"""Weight of a second mode, in units of the first one's, from which on a registration is ambiguous."""
_LEAST_AGREEMENT = 0.5
"""Share of pixels or points that must agree."""
_MAX_DECREMENT = 0.25
"""Distance from the minimum of the energy at the end of the descent, in standard deviations."""
_MAX_STEP = 3e-5
"""Length of a step to the minimum, in units of the basis on conditioned data, that is too short to matter: a hundredth
of a pixel in 512, where standard deviations may be less."""
_MAX_STD = 0.5
"""Standard deviation of an element from which on it is not determined, in units of the basis on conditioned data."""
_NO_CURVATURE = 1024.0
"""Curvature, in units of the last digit of the curvature along the basis, that is rounding."""
_UNKNOWN_STD = 1e3
"""Standard deviation in a direction of no curvature, in units of the basis on conditioned data."""
_ROUNDING = 1024.0
"""Standard deviation of residuals that are all rounding, in units of the last digit of one."""
_NORMAL_MEDIAN = 0.6744897501960817
"""Median of the size of a standard normal number."""


@dataclass(frozen=True, repr=False)
class Registration(Described):
    r"""The transformation g that takes ``moving`` to ``fixed``: ``action(r.element, moving)`` lies on ``fixed``.

    Attributes:
        action: of the group on the data.
        element: g, ``[*element_shape]``; NaN if none was `found`.
        covariance: of v in :math:`g \exp(v)`, in the basis of the group, ``[n, n]``: that of the estimate, whose errors
            are about normal, from the residuals at the end.
        modes: elements that fit about as well, g among them, for one datum, with their weights.
        residual: the root of the mean square of what agrees, in units of the data.
        found: whether there is an element of finite energy.
        reasons: why the registration is not to be trusted; empty where it is.
    """

    action: Action
    element: Tensor
    covariance: Float[Tensor, "n n"]
    modes: PosteriorModes
    residual: float
    found: bool
    reasons: tuple[str, ...]

    @property
    def group(self) -> LieGroup:
        """The group of the element."""
        return self.action.group

    @property
    def trusted(self) -> bool:
        """True if the registration passes its own checks; `reasons` says which failed."""
        return not self.reasons

    def __repr__(self) -> str:
        """The group, the residual and the trust."""
        said = "trusted" if self.trusted else f"not to be trusted: {'; '.join(self.reasons)}"
        return f"Registration(of {self.group!r}; residual {self.residual:.3g}; {said})"


def robust_std(residuals: Float[Tensor, "q n"], part: Float[Tensor, " q"] | None = None) -> float:
    """Return the standard deviation of normal residuals, estimated by the median of their lengths.

    Args:
        residuals: ``[q, n]``; rows that are not finite are left out.
        part: rows with zero are left out, ``[q]``; None for none.
    """
    r = residuals if part is None else residuals[part > 0]
    r = r[torch.isfinite(r).all(-1)]
    # the median of |r|^2 / n is about that of one component for one, and 1 for many
    n = residuals.shape[-1]
    middle = _NORMAL_MEDIAN**2 if n == 1 else (1 - 2 / (9 * n)) ** 3
    return math.sqrt(float(r.square().sum(-1).median()) / (n * middle)) if len(r) else math.nan


def fit_of(
    action: Action,
    energy: Callable[[float], LeastSquares],
    x: Any,
    elements: Tensor,
    *,
    smooth: Callable[[Tensor, Any], Tensor] | None = None,
    part: Callable[[Any], Float[Tensor, " q"]] | None = None,
    digits: float | None = None,
) -> Registration:
    """Return the registration of elements h at which descents have ended: h^-1 with covariance, modes and checks.

    Args:
        action: the action.
        energy: standard deviations to energies with the robust loss of the descents.
        x: the data, one row.
        elements: of the inverter, ``[k, *element_shape]``.
        smooth: (residuals ``[q, n]``, restored data) to sums over those that each is correlated with; ``None`` for
            none.
        part: restored data to the mask of the residuals that count; ``None`` for all.
        digits: last digit of one in the data as they were given; ``None`` for that of ``x``.
    """
    group, unit = action.group, energy(1.0)
    result = Inverter(action, unit, [])(x, initial=elements[None])
    if not bool(result.found):
        return _nothing(action, elements)
    h = result.best()
    y = action(group.inverse(h), x)
    mask = None if part is None else part(y)
    r = unit.residuals(y)[0]
    around = None if smooth is None else lambda psi: smooth(psi, y)
    variance, agreement, rms = _variance(unit, r, mask, group.dim, around)
    variance = max(variance, (_ROUNDING * (torch.finfo(r.dtype).eps if digits is None else digits)) ** 2)
    given = InverseProblem(action, energy(math.sqrt(variance))).given(x, max_evaluations=1)
    curvature = given.curvature(h.unsqueeze(1))[0, 0]
    slope = given.gradient(lambda v: group.perturb(h.unsqueeze(1), v), h.new_zeros(1, 1, group.dim))[0][0, 0]
    inverse = _inverse(curvature)
    step = inverse @ slope
    # of NaN and zero `max` returns the first
    decrement = math.sqrt(max(float(slope @ step), 0.0)) if not float(step.norm()) < _MAX_STEP else 0.0
    start = Population(elements[None], torch.zeros(1, len(elements), dtype=torch.long, device=h.device))
    sample = Laplace(_MODE_SAMPLES)(given, start, torch.Generator(h.device).manual_seed(0)).elements
    kept = torch.ones(sample.shape[:2], dtype=torch.bool, device=h.device)
    modes = modes_of(group, group.inverse(sample), kept, _MODE_RADIUS)
    adjoint = group.Ad(h[0])
    covariance = adjoint @ inverse @ adjoint.mT
    return Registration(
        action,
        group.inverse(h[0]),
        0.5 * (covariance + covariance.mT),
        modes,
        rms,
        True,
        _reasons(inverse, decrement, agreement, modes),
    )


def _inverse(curvature: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Return the inverse, with the variance of the unknown in directions whose curvature is rounding."""
    digits = torch.finfo(curvature.dtype).eps
    diagonal = curvature.diagonal()
    root = (diagonal.clamp(min=0.0) + digits * diagonal.amax() + digits**2).sqrt()
    values, vectors = torch.linalg.eigh(curvature / root / root.unsqueeze(-1))
    vectors = vectors / root.unsqueeze(-1)
    # residuals without noise would make any direction certain
    variances = torch.where(values > _NO_CURVATURE * digits, 1.0 / values, _UNKNOWN_STD**2 / vectors.square().sum(0))
    return vectors @ torch.diag(variances) @ vectors.mT


def _variance(
    unit: LeastSquares, r: Tensor, mask: Tensor | None, dim: int, smooth: Callable[[Tensor], Tensor] | None
) -> tuple[float, float, float]:
    r"""The variance that makes the inverse of the curvature :math:`J^T W J` the covariance, the share of the residuals
    that agree, and the root of their mean square.

    :math:`\overline{\psi^2}\, \bar W / \overline{\psi'}^2` (Huber 1981, 7.6), with the sum of :math:`\psi` over
    neighbours in place of one factor where they are correlated.
    """
    square = r.square().sum(-1)
    slope = torch.func.grad(lambda s: unit.robust(s).sum())
    weight = slope(square)
    bend = torch.func.grad(lambda s: slope(s).sum())(square)
    n = r.shape[-1]
    psi = weight.unsqueeze(-1) * r
    steep = weight + 2.0 / n * square * bend
    around = psi if smooth is None else smooth(psi)
    counted = torch.ones_like(weight) if mask is None else mask.to(weight.dtype)
    number = float(counted.sum())
    mean = lambda values: float((counted * values).sum()) / max(number, 1.0)  # noqa: E731
    plain, correlated = mean(psi.square().sum(-1)) / n, mean((psi * around).sum(-1)) / n
    freedom = n * number / max(n * number - dim, 1.0)
    tiny = torch.finfo(r.dtype).tiny ** 0.5
    # where nothing bends the loss, psi' is one
    variance = freedom * max(plain, correlated) * mean(weight) / max(mean(steep), 0.1) ** 2
    agrees = weight / weight.max().clamp(min=tiny) > 0.25
    good = float((counted * agrees).sum())
    rms = math.sqrt(float((counted * agrees * square).sum()) / max(good, 1.0))
    return variance, good / max(number, 1.0), rms


def _reasons(covariance: Tensor, decrement: float, agreement: float, modes: PosteriorModes) -> tuple[str, ...]:
    """Why a fit is not to be trusted."""
    said = []
    if not agreement >= _LEAST_AGREEMENT:
        said.append(f"{agreement:.0%} of the residuals agree: less than {_LEAST_AGREEMENT:.0%}")
    spread = float(torch.linalg.eigvalsh(covariance)[-1].clamp(min=0.0).sqrt())
    if not spread < _MAX_STD:
        said.append(f"standard deviation {spread:.2g} in some direction: the data do not determine the transformation")
    if not decrement < _MAX_DECREMENT:
        said.append(f"{decrement:.2g} standard deviations from the minimum: the descent has not ended")
    if modes.weights.shape[1] > 1 and float(modes.weights[0, 1] / modes.weights[0, 0]) > _LEAST_RIVAL:
        said.append(f"{int(modes.count[0])} modes, a second one of weight {float(modes.weights[0, 1]):.2f}")
    return tuple(said)


def _nothing(action: Action, elements: Tensor) -> Registration:
    group = action.group
    lost = torch.full_like(elements[0], math.nan)
    kept = torch.zeros(1, 1, dtype=torch.bool, device=elements.device)
    modes = modes_of(group, group.identity(1, 1, dtype=elements.dtype, device=elements.device), kept, _MODE_RADIUS)
    covariance = elements.new_full((group.dim, group.dim), math.nan)
    reason = f"none of {len(elements)} elements has a finite energy"
    return Registration(action, lost, covariance, modes, math.nan, False, (reason,))
