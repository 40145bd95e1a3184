"""Sequential Monte Carlo along the reverse diffusion: importance weights, and resampling by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._random import normal
from trivgeo._text import described
from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError
from trivgeo.sde.noise.kernel import noise_log_density
from trivgeo.sde.processes.base import Stepper, StepState, merge_evaluated
from trivgeo.sde.processes.trivialized import TrivializedSDE, check_reverse
from trivgeo.sde.resampling import effective_sample_size, normalized_log_weights, systematic_indices, take_rows
from trivgeo.sde.scores.base import Score


class PopulationWeights(NamedTuple):
    """Weights of the chains at one time, before they are resampled; a by-product of a step, see `StepState`.

    Attributes:
        t: the time.
        log_weights: normalised log-weights, ``[*batch, K]``; uniform where no chain has a positive weight.
        effective_size: `effective_sample_size` of the weights, ``[*batch]``.
        resampled: mask of populations that are resampled now, ``[*batch]``.
    """

    t: float
    log_weights: Float[Tensor, "*batch k"]
    effective_size: Float[Tensor, "*batch"]
    resampled: Bool[Tensor, "*batch"]

    def __repr__(self) -> str:
        return described(self)


class _Weighed(NamedTuple):
    """Memory of the scheme for each chain: drift and estimated log-density, weight, time."""

    drift: Float[Tensor, "*batch k n"]
    density: Float[Tensor, "*batch k"]
    log_weights: Float[Tensor, "*batch k"]
    time: Float[Tensor, "*batch k"]


@checked
@dataclass(frozen=True)
class Resampling(Stepper[TrivializedSDE, Tensor]):
    r"""Sequential Monte Carlo with exponential Euler steps; the last batch dimension is the population.

    A reverse step :math:`g' = g \exp(v), v \sim N(m, \sigma^2)` with an estimated score and a finite step does not
    carry p_t to p_t' exactly. Relative to the noise that reverses it, :math:`g = g' \exp(-v), v \sim N(0, \sigma^2)`,
    its weight is

    .. math:: \frac{\hat p_{t'}(g')}{\hat p_t(g)} \cdot
        \frac{N(v; 0, \sigma^2)}{N(v; m, \sigma^2)} \cdot e^{-a \cdot v}, \quad
        \hat p_t(g) = \frac1N \sum_i e^{-E(g w_i^{-1})} / \lambda(w_i), \quad a_i = \mathrm{tr}\,\mathrm{ad}(e_i).

    The last factor is :math:`d\mu(g') / d\mu(g)` for left Haar measure; no Jacobian of exp is left. These are the
    weights of a sequential Monte Carlo sampler with the noise as backward kernel (Del Moral et al. 2006; for reverse
    diffusions Wu et al. 2023, Phillips et al. 2024). Since :math:`\hat p_t` is unbiased and the same estimate stands
    in two consecutive weights, the samples tend to :math:`p_t`, and at the end to :math:`p_0 \propto e^{-E}`, as
    K grows, **for every N, every number of steps and every drift**: without the modular drift, with shortened scores,
    with a start that is not p_1. These only spread the weights. The score makes every estimate anyway, except one
    evaluation of each chain at the end, at t = 0.

    Populations whose effective size has fallen below ``threshold`` K are resampled systematically, and all at the end,
    so that the samples returned have equal weights (and may repeat). A chain without a finite energy, or that a step
    would have made non-finite, has weight zero; a population of such chains continues unchanged and is weighed anew.
    For sharp energies and few noise samples :math:`\hat p_t` spreads widely, and then few chains have descendants:
    lower ``power`` or raise N. Of 2,000 chains on SE(2), two wells and N = 64, 26 counted, and the wells
    of .7 and .3 got .42 and .58: `trivgeo.inversion.PosteriorSampler` samples a posterior by far fewer evaluations.

    The density of the start must be known; the density of k_1 is not. ``group.random(K, std=V ** 0.5)`` with
    ``V = schedule.variance(0, 1)`` has the default density, if exp is one to one or `noise_log_density` says that it
    counts all logarithms. On other compact groups start with ``group.random_haar(K)`` and a ``start_log_density`` of
    zero: else the weights are those of another start, unless V is small.

    Args:
        threshold: effective size, as a fraction of K in [0, 1], below which a population is resampled; 0 resamples only
            at the end.
        power: the intermediate targets are :math:`\hat p_t^{power}`, in [0, 1]; the last one is p_0 in any case.
        start_log_density: log-density of the start for left Haar measure, up to a constant, a function of
            elements ``[*batch, *element_shape]`` to ``[*batch]``; default `noise_log_density` of the variance up
            to the first time. Zero for the uniform distribution on a compact group.
        last: the time at which the grid ends, where the target is the estimate itself and all are resampled.

    Raises:
        ConfigurationError: threshold or power lie outside [0, 1]; in a solve: the process is no reverse diffusion, its
            score estimates no densities, or there is no population of chains with noise of their own.
    """

    order: ClassVar[int | None] = 1

    threshold: float = 0.5
    power: float = 1.0
    start_log_density: Callable[[Tensor], Tensor] | None = None
    last: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("threshold", self.threshold), ("power", self.power)):
            if not 0.0 <= value <= 1.0:
                raise ConfigurationError(f"{name}: expected a number in [0, 1], got {value!r}")

    def times(self, grid: Sequence[float]) -> tuple[float, ...]:
        return tuple(grid)

    def init(self, sde: TrivializedSDE, y: Tensor, start: float, generator: torch.Generator | None) -> StepState:
        """Weigh the population at ``start``, and resample it.

        Raises:
            ConfigurationError: the equation is no reversal with an estimated density, or there is no population.
        """
        score, batch = check_reverse(sde, start, start, self), tuple(sde.batch_shape(y))
        if not batch or (score.shares_noise and len(batch) == 1):
            raise ConfigurationError(
                f"resampling: expected a batch of chains whose last dimension does not share its noise, got {batch}"
            )
        start_log_density = self.start_log_density or noise_log_density(sde.group, sde.schedule.variance(0.0, start))
        drift, density, samples = _estimate(score, y, start)
        log_weights = _finite_sum(self._target(density, start), -start_log_density(y).detach())
        memory = _Weighed(drift, density, log_weights, _times(density, start))
        return self._resampled(sde, y, memory, start, generator, samples)

    def step(
        self, sde: TrivializedSDE, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        score, memory = check_reverse(sde, start, end, self), state.memory
        std = sde.noise_std(start, end)
        mean = -(std**2) * memory.drift
        z = normal(mean.shape, state.y, generator)
        v = mean + std * z
        new = sde.group.retract(state.y, v)
        drift, density, samples = _estimate(score, new, end)
        kernels = -(mean * (0.5 * mean / std**2 + z / std)).sum(-1)
        if not sde.group.algebra.is_unimodular:
            kernels = kernels - matmul(v, sde.group.algebra.trace_ad_like(v))
        # a chain whose step was masked is at an earlier time: its weight is zero
        before = torch.where(memory.time == start, memory.log_weights, -torch.inf)
        log_weights = _finite_sum(
            before, -self._target(memory.density, start), self._target(density, end), kernels.detach()
        )
        weighed = _Weighed(drift, density, log_weights, _times(density, end))
        return self._resampled(sde, new, weighed, end, generator, merge_evaluated(state.evaluated, samples))

    def _target(self, density: Tensor, t: float) -> Tensor:
        return density if t == self.last else self.power * density

    def _resampled(
        self,
        sde: TrivializedSDE,
        g: Tensor,
        memory: _Weighed,
        t: float,
        generator: torch.Generator | None,
        evaluated: Any,
    ) -> StepState:
        """Elements and memory, resampled in the populations whose weights are uneven."""
        alive = torch.isfinite(memory.log_weights).any(-1, keepdim=True)
        log_weights = normalized_log_weights(memory.log_weights)
        number = log_weights.shape[-1]
        size = effective_sample_size(log_weights.exp())
        due = alive.squeeze(-1) & ((size < self.threshold * number) | (t == self.last))
        population = PopulationWeights(t, log_weights, size, due)
        due = due.unsqueeze(-1)
        ancestors = torch.where(due, systematic_indices(log_weights, generator), torch.arange(number, device=g.device))
        chosen = _Weighed(
            take_rows(memory.drift, ancestors),
            torch.where(alive, memory.density, 0.0).gather(-1, ancestors),
            torch.where(due, 0.0, log_weights),
            memory.time,
        )
        return StepState(take_rows(g, ancestors), chosen, merge_evaluated(evaluated, population))


def _estimate(score: Score, g: Tensor, t: float) -> tuple[Tensor, Tensor, Any]:
    """Drift and estimated log-density at g, and the samples of both."""
    drift, samples = score.estimate(g, t)
    if samples is None:
        raise ConfigurationError("resampling: expected an EnergyScore, which estimates densities, got none")
    return drift, samples.log_density, samples


def _times(reference: Tensor, t: float) -> Tensor:
    """The time of every chain, in double precision."""
    return torch.full_like(reference, t, dtype=torch.float64)


def _finite_sum(*terms: Tensor) -> Tensor:
    """The sum, or minus infinity (weight zero) where a term is not finite."""
    finite = torch.isfinite(terms[0])
    for term in terms[1:]:
        finite = finite & torch.isfinite(term)
    return torch.where(finite, sum(terms[1:], terms[0]), -torch.inf)
