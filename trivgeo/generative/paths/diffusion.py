"""Diffusion: noise of growing variance, and its score."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from trivgeo.checks import checked
from trivgeo.generative.paths.base import Network, TrainingBatch
from trivgeo.generative.paths.noising import (
    MAX_USUAL_FACTORS,
    MIN_STD_RATIO,
    NoisingPath,
    level_groups,
    num_noise_factors,
    rows_at_once,
    stratified,
)
from trivgeo.groups import LieGroup
from trivgeo.groups.harmonic import heat_kernel
from trivgeo.sde.noise.schedule import GeometricSchedule, Schedule
from trivgeo.sde.noise.target import noise_with_target
from trivgeo.sde.processes.reverse import probability_flow, reverse_process
from trivgeo.sde.processes.trivialized import TrivializedSDE
from trivgeo.sde.solvers.runge_kutta import GeometricHeun
from trivgeo.sde.solvers.time_loop import solve

PathT = TypeVar("PathT", bound="DiffusionPath")

_MIN_FACTORS = 3  # exponentials of one noise sample, where it has to be simulated
_MAX_TARGET_FACTORS = 128  # exponentials of a noise sample that enter its target


@checked
@dataclass(frozen=True)
class DiffusionPath(NoisingPath):
    r"""Noise of growing variance, and its score: the network predicts the noise at g_t, divided by its size.

    The score is minus the prediction divided by :math:`\sigma`. With a geometric schedule and uniform times the loss
    :math:`\sigma^2 |s - T|^2` has the weights of the likelihood (Song et al. 2021b). Noise without a known
    `heat_kernel` is simulated to weak order 2, see `noise_with_target`.

    Attributes:
        group: the group of the elements.
        schedule: the diffusion coefficient of the noise.
        start_time: the time that stands for the data.
    """

    group: LieGroup
    schedule: Schedule
    start_time: float = 0.02
    end_time: ClassVar[float] = 1.0  # type: ignore[misc]

    @classmethod
    def of_terminal_std(cls: type[PathT], group: LieGroup, std: float) -> PathT:
        """Return the path on ``group`` with a geometric schedule and noise of standard deviation ``std`` at t = 1."""
        top = std * math.sqrt(-2.0 * math.log(MIN_STD_RATIO))
        return cls(group, GeometricSchedule(MIN_STD_RATIO * top, top))

    def training_batch(self, data: Tensor, generator: torch.Generator | None) -> TrainingBatch:
        """Draw increasing times, one from each of b equal intervals of [0, 1], and noise of their variances."""
        t = self.start_time + (1.0 - self.start_time) * stratified(len(data), data, generator)
        variance = self.schedule.variance(0.0, t)
        simulated = heat_kernel(self.group) is None

        def num_factors(level: float) -> int:
            return self._num_factors(self.start_time + (1.0 - self.start_time) * level) if simulated else 1

        noise = [self._noise(variance[rows], steps, generator) for rows, steps in level_groups(len(data), num_factors)]
        elements, scores = (torch.cat(x) for x in zip(*noise, strict=True))
        target = -variance.sqrt().unsqueeze(-1) * scores
        return TrainingBatch(self.group.compose(data, elements), t, None, target, torch.ones_like(t))

    def sample_terminal(self, data: Tensor, generator: torch.Generator | None) -> Tensor:
        variance = torch.full((len(data),), self.schedule.variance(0.0, 1.0)).to(data)
        factors = 1 if heat_kernel(self.group) is not None else self._num_factors(1.0)
        blocks = variance.split(rows_at_once(len(data), min(factors, _MAX_TARGET_FACTORS)))
        return self.group.compose(data, torch.cat([self._noise(block, factors, generator)[0] for block in blocks]))

    def spread(self, level: Tensor) -> Tensor:
        return (self.group.dim * self.schedule.variance(0.0, level)).sqrt()

    def _noise(self, variance: Tensor, num_factors: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Noise elements and their denoising targets.

        Above `_MAX_TARGET_FACTORS` exponentials, the first ones are simulated coarsely and count as part of the data:
        the target stays unbiased, and has the variance of a target for the smaller rest of the noise.
        """
        share = min(1.0, _MAX_TARGET_FACTORS / num_factors)
        draw = functools.partial(noise_with_target, self.group, order=2, generator=generator)
        last = draw(share * variance, steps=min(num_factors, _MAX_TARGET_FACTORS))
        if share == 1.0:
            return last.elements, last.target
        first = draw((1.0 - share) * variance, steps=MAX_USUAL_FACTORS)
        return self.group.compose(first.elements, last.elements), last.target

    def _num_factors(self, t: float) -> int:
        return num_noise_factors(self.group, self.schedule.variance(0.0, t), _MIN_FACTORS)

    def score(self, network: Network) -> Callable[[Tensor, float], Tensor]:
        """Return the score of p_t as a function of element and time, for any process of this library.

        The function ``network`` (g, level, momentum) was trained on the targets of `training_batch`.
        """

        def score(g: Tensor, t: float) -> Tensor:
            level = g.new_full(self.group.batch_shape(g), t)
            return network(g, level, None) * (-1.0 / math.sqrt(self.schedule.variance(0.0, t)))

        return score

    def flow(self, network: Network) -> TrivializedSDE:
        """Return the probability flow by the score of ``network``, a function (g, level, momentum) to ``[b, dim]``."""
        return probability_flow(self.group, self.schedule, self.score(network))

    def sample_in_steps(self, network: Network, start: Tensor, generator: torch.Generator | None, steps: int) -> Tensor:
        grid = [1.0 + (self.start_time - 1.0) * k / steps for k in range(steps)] + [self.start_time]
        process = reverse_process(self.group, self.schedule, self.score(network))
        return solve(process, start, grid, stepper=GeometricHeun(), generator=generator).final_or_nan
