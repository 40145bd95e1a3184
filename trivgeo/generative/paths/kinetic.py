"""Kinetic diffusion, in a frame in which the momentum has little influence."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._random import normal
from trivgeo.checks import checked
from trivgeo.generative.paths.base import Network, TrainingBatch
from trivgeo.generative.paths.noising import (
    MIN_STD_RATIO,
    NoisingPath,
    level_groups,
    num_noise_factors,
    rows_at_once,
    stratified,
)
from trivgeo.groups import LieGroup
from trivgeo.sde.likelihood import Divergence, ExactDivergence, flow_likelihood
from trivgeo.sde.noise.kinetic_noise import KineticNoise
from trivgeo.sde.processes.kinetic_diffusion import (
    KineticAncestralStep,
    KineticDiffusion,
    KineticState,
    join_state,
    split_state,
)
from trivgeo.sde.processes.trivialized import TrivializedSDE
from trivgeo.sde.solvers.runge_kutta import solve_adaptive
from trivgeo.sde.solvers.time_loop import solve

PathT = TypeVar("PathT", bound="KineticPath")

_LOG_DECAY = 6.0  # minus the logarithm of the remainder of the slowest mode under noise, on groups that are not abelian
_NUM_GRID_LEVELS = 256  # levels in the table of their density


@checked
@dataclass(frozen=True)
class KineticPath(NoisingPath):
    r"""Kinetic diffusion (Zhu et al. 2025), whose score is learned at the element extrapolated back by its momentum.

    With :math:`C = \mathrm{Cov}(x, \xi)` and :math:`\sigma^2 = \mathrm{Var}(x \mid \xi)` of a displacement x and its
    momentum, :math:`\hat g = g \exp(-C \xi)` is on abelian groups the clean element with noise :math:`\sigma`
    independent of the momentum, so that

    .. math:: \nabla_\xi \log p_t(g, \xi) = -\xi - C\, \nabla \log \hat p_\sigma(\hat g).

    The network takes :math:`\hat g` and predicts :math:`(\nabla_\xi \log p_t + \xi)\, \sigma / C`, the noise of
    :math:`\hat g`. Where the group is not abelian it also takes the momentum, on which the prediction then depends a
    little, because

    .. math:: g \exp(-C (\xi + \eta)) \approx \hat g \exp(-C J_r(-C \xi)\, \eta), \quad J_r(-C \xi) =
        \mathrm{Ad}_{\exp(C \xi / 2)} \big(1 + \tfrac1{24} \mathrm{ad}_{C \xi}^2 + \dots\big)

    maps a gradient at :math:`\hat g` to one in :math:`\xi`: the network predicts in the frame of :math:`\hat g`, and
    :math:`\mathrm{Ad}_{\exp(C \xi / 2)}^T` turns that into the frame of g, by an angle that a network learns
    with difficulty.

    Brackets make the variance of a target about :math:`v = 1 + \kappa \sigma^2 / 4, \kappa = \sum_{ij}
    |[e_i, e_j]|^2 / n`, in place of 1. Rows are weighted by 1 / v, and levels with a large v are drawn more often.

    Attributes:
        noise: the kinetic noise.
        start_time: the time that stands for the data.
        end_time: the time at which :math:`\hat g` is taken to follow the base distribution, whatever the momentum.
        num_draws: momenta over which a density is averaged.
    """

    noise: KineticNoise
    start_time: float
    end_time: float
    num_draws: int = 1

    @property
    def group(self) -> LieGroup:  # type: ignore[override]
        """Group of the elements on which the noise acts."""
        return self.noise.group

    @classmethod
    def uses_momentum(cls, group: LieGroup) -> bool:
        return not group.algebra.is_abelian

    @property
    def target_version(self) -> int:  # type: ignore[override]
        """Version 2 on groups that are not abelian: version 1 predicted in the frame of g."""
        return 1 if self.group.algebra.is_abelian else 2

    @classmethod
    def log_decay(cls, group: LieGroup) -> float:
        """Return minus the logarithm of the remainder of the slowest mode of a compact ``group`` under noise.

        The value is smaller where the group is not abelian, since brackets make noise costly.
        """
        return _LOG_DECAY if cls.uses_momentum(group) else super().log_decay(group)

    @classmethod
    def of_terminal_std(cls: type[PathT], group: LieGroup, std: float) -> PathT:
        noise = KineticNoise(group, 4.0 / std)
        start = (1.5 * (MIN_STD_RATIO * std) ** 2 / noise.friction) ** (1.0 / 3.0)
        end = noise.time_of(std**2)
        return cls(dataclasses.replace(noise, steps=num_noise_factors(group, std**2, time=end)), start, end)

    def training_batch(self, data: Tensor, generator: torch.Generator | None) -> TrainingBatch:
        r"""Draw noised elements with momenta, at times with stratified logarithms, more often where targets are noisy.

        Returns:
            Elements :math:`\hat g`, levels, momenta on groups that are not abelian, targets ``[b, dim]`` and weights.
        """
        level = self._levels(stratified(len(data), data, generator))
        t = self._time(level)

        def num_factors(fraction: float) -> int:
            return self._num_factors(float(self._time(self._levels(torch.tensor(fraction)))))

        samples = [
            dataclasses.replace(self.noise, steps=steps).sample(t[rows], generator)
            for rows, steps in level_groups(len(data), num_factors)
        ]
        w, momentum, score = (torch.cat(x) for x in zip(*samples, strict=True))
        covariance, std = self._coefficients(t)
        half = self.group.exp(-0.5 * covariance * momentum)
        g = self._extrapolate(self.group.compose(data, w), half)
        target = self.group.coadjoint(half, (score + momentum) * std / covariance)
        used = momentum if self.uses_momentum(self.group) else None
        return TrainingBatch(g, level, used, target, 1.0 / self._target_variance(level))

    def sample_terminal(self, data: Tensor, generator: torch.Generator | None) -> Tensor:
        r"""Draw :math:`\hat g` of noised data at the last time, whose distribution does not depend on the momentum."""
        times = torch.full((len(data),), self.end_time).to(data)
        samples = [self.noise.sample(t, generator) for t in times.split(rows_at_once(len(data), self.noise.steps))]
        w, momentum, _ = (torch.cat(x) for x in zip(*samples, strict=True))
        return self._shift(self.group.compose(data, w), momentum, -self._covariance(self.end_time))

    def with_draws(self: PathT, num_draws: int) -> PathT:
        return dataclasses.replace(self, num_draws=num_draws)

    def process(self, network: Network) -> KineticDiffusion:
        """Return the diffusion whose score is built from ``network`` (g, level, momentum); solve it in falling time."""

        def score(g: Tensor, momentum: Tensor, t: float) -> Tensor:
            times = g.new_full(self.group.batch_shape(g), t)
            covariance, std = self._coefficients(times)
            level = (times / self.start_time).log() / math.log(self.end_time / self.start_time)
            half = self.group.exp(-0.5 * covariance * momentum)
            used = momentum if self.uses_momentum(self.group) else None
            prediction = network(self._extrapolate(g, half), level, used)
            return covariance / std * self.group.coadjoint(self.group.inverse(half), prediction) - momentum

        return KineticDiffusion(self.group, self.noise.friction, score)

    def flow(self, network: Network) -> TrivializedSDE:
        """Return the probability flow on G x R^n, whose state is an element with its momentum."""
        return self.process(network).flow()

    def sample(self, network: Network, start: Tensor, generator: torch.Generator | None, tolerance: float) -> Tensor:
        """Carry elements of the base distribution to data along the flow.

        Momenta are drawn at the last time and dropped at the first.
        """
        state = join_state(self.group, self._with_momentum(start, generator))
        found = solve_adaptive(self.flow(network), state, self.end_time, self.start_time, tolerance=tolerance).final
        return self._without_momentum(split_state(self.group, found))

    def sample_in_steps(self, network: Network, start: Tensor, generator: torch.Generator | None, steps: int) -> Tensor:
        state = self._with_momentum(start, generator)
        ratio = self.start_time / self.end_time
        grid = [self.end_time * ratio ** (k / steps) for k in range(steps)] + [self.start_time]
        process = self.process(network)
        solution = solve(process, state, grid, stepper=KineticAncestralStep(), generator=generator)
        return self._without_momentum(solution.final_or_nan)

    def log_density(
        self,
        network: Network,
        g: Tensor,
        base_log_prob: Callable[[Tensor], Tensor],
        generator: torch.Generator | None,
        tolerance: float,
        divergence: Divergence | None,
    ) -> Float[Tensor, " b"]:
        r"""Return the logarithm of the mean of :math:`p(g, \xi) / N(\xi)` over momenta :math:`\xi \sim N`, by flows.

        With a perfect score the quotient is the same for every momentum. Otherwise the expectation of the result is a
        lower bound of the log-density of the samples, which rises with the number of momenta (Burda et al. 2016).
        """
        group, n = self.group, self.group.dim
        flow = self.flow(network)
        # the velocity of the element is its momentum, so that its divergence vanishes
        divergence = (ExactDivergence() if divergence is None else divergence).within(range(n, 2 * n))
        first, last = self._covariance(self.start_time), self._covariance(self.end_time)

        def log_growth(momentum: Tensor) -> Tensor:
            """Log of the factor by which right translation by exp(xi) scales left Haar measure."""
            return -matmul(momentum, group.algebra.trace_ad_like(momentum))

        def end_log_density(state: Tensor) -> Tensor:
            elements, momentum = split_state(group, state)
            at_base = base_log_prob(self._shift(elements, momentum, -last)) - last * log_growth(momentum)
            return at_base - 0.5 * momentum.square().sum(-1)

        logs = []
        for _ in range(self.num_draws):
            momentum = normal((len(g), n), g, generator)
            state = join_state(group, KineticState(self._shift(g, momentum, first), momentum))
            found = flow_likelihood(
                flow,
                state,
                end_log_density,
                start=self.start_time,
                end=self.end_time,
                divergence=divergence,
                tolerance=tolerance,
                generator=generator,
            )
            logs.append(found.log_density + 0.5 * momentum.square().sum(-1) + first * log_growth(momentum))
        return torch.stack(logs).logsumexp(0) - math.log(self.num_draws)

    def _with_momentum(self, start: Tensor, generator: torch.Generator | None) -> KineticState:
        """The state at the last time: elements of the base distribution with standard normal momenta."""
        momentum = normal((len(start), self.group.dim), start, generator)
        return KineticState(self._shift(start, momentum, self._covariance(self.end_time)), momentum)

    def _without_momentum(self, state: KineticState) -> Tensor:
        """Elements of a state at the first time, extrapolated to the data."""
        return self._shift(state.elements, state.momentum, -self._covariance(self.start_time))

    def _time(self, level: Tensor) -> Tensor:
        """Times from the first to the last, in a geometric sequence for equal steps of the level."""
        return self.start_time * torch.exp(level * math.log(self.end_time / self.start_time))

    @functools.cached_property
    def _curvature(self) -> float:
        r"""The constant :math:`\kappa` of `KineticPath`."""
        area = self.group.algebra.noise_corrections[1].value  # its squared norm is sum_ij |[e_i, e_j]|^2 / 8
        return 8.0 * float(area.square().sum()) / self.group.dim

    def _target_variance(self, level: Tensor) -> Tensor:
        return 1.0 + 0.25 * self._curvature * self._coefficients(self._time(level))[1].squeeze(-1).square()

    @functools.cached_property
    def _level_distribution(self) -> Tensor:
        """Distribution function of the level on a grid; its density is proportional to v^(3/4)."""
        grid = torch.linspace(0.0, 1.0, _NUM_GRID_LEVELS + 1, dtype=torch.float64)
        cumulative = torch.cumulative_trapezoid(self._target_variance(grid) ** 0.75, grid)
        return torch.cat([torch.zeros_like(cumulative[:1]), cumulative / cumulative[-1]])

    def _levels(self, quantile: Tensor) -> Tensor:
        """Quantiles of the distribution of the level."""
        if self._curvature == 0.0:
            return quantile
        table = self._level_distribution.to(quantile)
        right = torch.searchsorted(table, quantile).clamp(1, _NUM_GRID_LEVELS)
        low, high = table[right - 1], table[right]
        return (right - 1 + (quantile - low) / (high - low)) / _NUM_GRID_LEVELS

    def _extrapolate(self, g: Tensor, half: Tensor) -> Tensor:
        r"""The element :math:`\hat g = g \exp(-C \xi)`, from ``half`` = :math:`\exp(-C \xi / 2)`."""
        return self.group.compose(self.group.compose(g, half), half)

    def _num_factors(self, t: float) -> int:
        """Number of exponentials of noise at a time; constant on abelian groups, where one exponential suffices."""
        if self.group.algebra.is_abelian:
            return self.noise.steps
        variance = float(self.noise.moments(torch.tensor(t))[0])
        return min(self.noise.steps, num_noise_factors(self.group, variance, time=t))

    def _shift(self, g: Tensor, momentum: Tensor, covariance: float) -> Tensor:
        """Elements moved along their momenta times a covariance."""
        return self.group.retract(g, covariance * momentum)

    def _covariance(self, t: float) -> float:
        return float(self.noise.moments(torch.tensor(t))[1])

    def _coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        r"""Covariance C and conditional standard deviation :math:`\sigma`, ``[*batch, 1]``."""
        variance, covariance, given = self.noise.moments(t)
        return covariance.to(t.dtype).unsqueeze(-1), (variance * given).sqrt().to(t.dtype).unsqueeze(-1)
