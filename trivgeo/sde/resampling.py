"""Sequential Monte Carlo on top of the reverse diffusion: weights that correct it, and resampling by them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trivgeo._numerics import log_abs_det
from trivgeo.errors import ConfigurationError
from trivgeo.groups import LieGroup
from trivgeo.sde.diagnostics import effective_sample_size
from trivgeo.sde.process import Stepper, TrivializedSDE, normal
from trivgeo.sde.schedule import Schedule
from trivgeo.sde.score import EnergyScore, Score, ScoreEstimate

__all__ = ["Population", "Resampling", "noise_log_density", "systematic_indices"]


@dataclass(frozen=True)
class Population:
    """The weights of the chains at one time, before they are resampled.

    Attributes:
        t: the time.
        log_weights: normalised, ``[*batch, K]``; uniform where no chain has a positive weight.
        effective_size: `effective_sample_size` of the weights, ``[*batch]``.
        resampled: which populations are resampled now, ``[*batch]``.
    """

    t: float
    log_weights: Float[Tensor, "*batch k"]
    effective_size: Float[Tensor, "*batch"]
    resampled: Bool[Tensor, "*batch"]


@dataclass(frozen=True)
class Resampling:
    r"""Treats the chains of the last batch dimension as one population, weighted and resampled on the way.

    A reverse step :math:`g' = g \exp(v), v \sim N(m, \sigma^2)` with an estimated score and a finite step does not
    carry p_t to p_t' exactly. Against the noise that undoes it, :math:`g = g' \exp(-v), v \sim N(0, \sigma^2)`, its
    weight is

    .. math:: \frac{\hat p_{t'}(g')}{\hat p_t(g)} \cdot
        \frac{N(v; 0, \sigma^2)}{N(v; m, \sigma^2)} \cdot e^{-a \cdot v}, \quad
        \hat p_t(g) = \frac1N \sum_i e^{-E(g w_i^{-1})} / \lambda(w_i), \quad a_i = \mathrm{tr}\,\mathrm{ad}(e_i).

    The last factor is :math:`d\mu(g') / d\mu(g)` for left Haar measure; no Jacobian of exp is left. These are the
    weights of a sequential Monte Carlo sampler with the noise as backward kernel (Del Moral et al. 2006; for reverse
    diffusions Wu et al. 2023, Phillips et al. 2024). Since :math:`\hat p_t` is unbiased and the same estimate stands
    in two consecutive weights, the samples tend to :math:`p_t`, and at the end to :math:`p_0 \propto e^{-E}`, as
    K grows, **for every N, every number of steps and every drift**: without the modular drift, with shortened scores,
    with a start that is not p_1. What those spoil is the spread of the weights. Every estimate is one that the score
    makes anyway; in addition each chain is evaluated once at the end, at t = 0.

    Populations whose effective size has fallen below ``threshold`` K are resampled systematically, and all at the end,
    so that the samples returned have equal weights (and may repeat). A chain without a finite energy, or that a step
    would have made non-finite, has weight zero; a population of such chains goes on as it is and is weighed anew.
    Sharp energies with few noise samples give :math:`\hat p_t` a heavy spread, and then few chains have descendants:
    lower ``power`` or raise N.

    Args:
        threshold: of the effective size, as a fraction of K in [0, 1]; 0 resamples only at the end.
        power: the intermediate targets are :math:`\hat p_t^{power}`, in [0, 1]; the last one is p_0 in any case.
        start_log_density: log-density for left Haar measure, up to a constant, of the law that the start was drawn
            from, elements ``[*batch, *element_shape]`` to ``[*batch]``; default `noise_log_density`, that of the
            default start :math:`\exp(\sqrt V z)`, which stands for k_1. Zero for the Haar-uniform law of a compact
            group.
        observe: called with the `Population` at the start and after every step.

    Raises:
        ConfigurationError: threshold or power lie outside [0, 1].
    """

    threshold: float = 0.5
    power: float = 1.0
    start_log_density: Callable[[Tensor], Tensor] | None = None
    observe: Callable[[Population], None] | None = None

    def __post_init__(self) -> None:
        for name, value in (("threshold", self.threshold), ("power", self.power)):
            if not 0.0 <= value <= 1.0:
                raise ConfigurationError(f"{name}: expected a number in [0, 1], got {value!r}")

    def attach(
        self, score: Score, group: LieGroup, schedule: Schedule, times: Sequence[float], batch: tuple[int, ...]
    ) -> tuple[EnergyScore, Stepper[TrivializedSDE, Tensor]]:
        """The score and the scheme of one solve: a copy of the score whose estimates the scheme sees.

        Raises:
            ConfigurationError: the score estimates no densities, or there is no population of chains with noise of
                their own.
        """
        if not isinstance(score, EnergyScore):
            raise ConfigurationError(f"resampling: expected an EnergyScore, which estimates densities, got {score!r}")
        if not batch or (score.shared_noise and len(batch) == 1):
            raise ConfigurationError(
                f"resampling: expected a batch of chains whose last dimension does not share its noise, got {batch}"
            )
        stepper = _WeightedEuler(self, group, schedule.variance(0.0, times[0]), times[-1])
        observed = copy.copy(score)
        observed.on_estimate = _both(score.on_estimate, stepper.take)
        return observed, stepper


def noise_log_density(group: LieGroup, variance: float) -> Callable[[Tensor], Tensor]:
    r"""The law of :math:`\exp(\sqrt V z)`: its log-density for left Haar measure where exp is one to one.

    .. math:: -|v|^2 / 2 V - \log |\det J_r(v)|, \quad v = \log g

    `LieGroup.random` with standard deviation :math:`\sqrt V` draws from it. Equal to k_t, V = int gamma^2, on abelian
    groups; on others close to it for small V, but its tails are others. NaN where there is no logarithm.
    """

    def log_density(g: Tensor) -> Tensor:
        v = group.log(g)
        gaussian = -0.5 * (v**2).sum(-1) / variance
        return gaussian if group.algebra.is_abelian else gaussian - log_abs_det(group.right_jacobian(v))

    return log_density


def systematic_indices(
    log_weights: Float[Tensor, "*batch k"], generator: torch.Generator | None = None
) -> Int[Tensor, "*batch k"]:
    """Ancestors by systematic resampling: chain i has floor or ceil of K times its weight descendants."""
    number = log_weights.shape[-1]
    cumulative = torch.softmax(log_weights.double(), -1).cumsum(-1)
    cumulative = cumulative / cumulative[..., -1:]
    shift = torch.rand(*log_weights.shape[:-1], 1, generator=generator, dtype=torch.float64, device=log_weights.device)
    positions = (torch.arange(number, dtype=torch.float64, device=log_weights.device) + shift) / number
    # from the right, below one: a chain of weight zero is never chosen
    positions = positions.clamp(max=1.0 - torch.finfo(torch.float64).eps)
    return torch.searchsorted(cumulative, positions, right=True)


class _WeightedEuler(Stepper[TrivializedSDE, Tensor]):
    """Exponential Euler that evaluates the score where a step ends, weighs the step, and resamples. For one solve."""

    def __init__(self, options: Resampling, group: LieGroup, start_variance: float, last: float) -> None:
        self._options = options
        self._start = options.start_log_density or noise_log_density(group, start_variance)
        self._last = last
        self._rank = len(group.element_shape)
        self._estimated: Tensor | None = None
        self._log_weights: Tensor | None = None

    def take(self, estimate: ScoreEstimate) -> None:
        """The densities that come with a score."""
        self._estimated = estimate.log_density

    def step(
        self, sde: TrivializedSDE, g: Tensor, start: float, end: float, generator: torch.Generator | None
    ) -> Tensor:
        """One score, one exponential."""
        if self._log_weights is None:
            self._evaluate(sde, g, start)
            self._log_weights = _finite_sum(self._target(start), -self._start(g).detach())
            g = self._resample(g, start, generator)
        variance = abs(sde.schedule.variance(start, end))
        mean, before = -variance * self._drift, self._target(start)
        z = normal(mean.shape, g, generator)
        v = mean + math.sqrt(variance) * z
        new = sde.group.retract(g, v)
        self._evaluate(sde, new, end)
        kernels = -(mean * (0.5 * mean / variance + z / math.sqrt(variance))).sum(-1)
        if not sde.group.algebra.is_unimodular:
            kernels = kernels - v @ sde.group.algebra.trace_ad_like(v)
        self._log_weights = _finite_sum(self._log_weights, -before, self._target(end), kernels.detach())
        return self._resample(new, end, generator)

    def _evaluate(self, sde: TrivializedSDE, g: Tensor, t: float) -> None:
        """The drift at g and the estimated density that comes with it."""
        assert sde.score_drift is not None
        self._drift = sde.score_drift(g, t)
        assert self._estimated is not None
        self._density = self._estimated

    def _target(self, t: float) -> Tensor:
        """Logarithm of the target at the present elements."""
        return self._density if t == self._last else self._options.power * self._density

    def _resample(self, g: Tensor, t: float, generator: torch.Generator | None) -> Tensor:
        """Choose ancestors in the populations that need it, of all that belongs to a chain."""
        assert self._log_weights is not None
        alive = torch.isfinite(self._log_weights).any(-1, keepdim=True)
        log_weights = torch.where(alive, self._log_weights, 0.0).log_softmax(-1)
        number = log_weights.shape[-1]
        size = effective_sample_size(log_weights.exp())
        due = alive.squeeze(-1) & ((size < self._options.threshold * number) | (t == self._last))
        if self._options.observe is not None:
            self._options.observe(Population(t, log_weights, size, due))
        due = due.unsqueeze(-1)
        own = torch.arange(number, device=g.device)
        ancestors = torch.where(due, systematic_indices(log_weights, generator), own)
        self._log_weights = torch.where(due, 0.0, log_weights)
        self._density = torch.where(alive, self._density, 0.0).gather(-1, ancestors)
        self._drift = torch.take_along_dim(self._drift, ancestors.unsqueeze(-1), -2)
        return torch.take_along_dim(g, ancestors.reshape(*ancestors.shape, *[1] * self._rank), -1 - self._rank)


def _finite_sum(*terms: Tensor) -> Tensor:
    """The sum; minus infinity, the logarithm of weight zero, where a term is not finite."""
    finite = torch.isfinite(terms[0])
    for term in terms[1:]:
        finite = finite & torch.isfinite(term)
    return torch.where(finite, sum(terms[1:], terms[0]), -torch.inf)


def _both(
    first: Callable[[ScoreEstimate], None] | None, second: Callable[[ScoreEstimate], None]
) -> Callable[[ScoreEstimate], None]:
    if first is None:
        return second

    def call(estimate: ScoreEstimate) -> None:
        first(estimate)
        second(estimate)

    return call
