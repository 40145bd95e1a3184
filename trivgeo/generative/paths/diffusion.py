"""Diffusion: noise of growing variance, and its score."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo.generative.paths.base import Network, ProbabilityPath, TrainingBatch, followed
from trivgeo.generative.paths.levels import _FEWEST, _MOST, _SCORED, _together, graded, noise_parts, stratified
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.heat import heat_kernel
from trivgeo.sde.noise.schedule import Schedule
from trivgeo.sde.noise.target import noise_with_target
from trivgeo.sde.processes.flow import probability_flow
from trivgeo.sde.processes.reverse import reverse_process
from trivgeo.sde.processes.trivialized import TrivializedSDE
from trivgeo.sde.solvers.runge_kutta import GeometricHeun
from trivgeo.sde.solvers.time_loop import solve

__all__ = ["DiffusionPath"]


@dataclass(frozen=True)
class DiffusionPath(ProbabilityPath):
    r"""Noise of growing variance, and its score: the network is to tell the noise in units of its size, from g_t.

    The score is minus that over :math:`\sigma`; the loss :math:`\sigma^2 |s - T|^2`, at times that are uniform, is with
    a geometric schedule that of the likelihood (Song et al. 2021b). Noise whose `heat_kernel` is not known is simulated
    to weak order 2, see `noise_with_target`.

    Attributes:
        group: see `TrivializedSDE`, also for ``schedule``.
        schedule: the noise.
        first: the time that stands for the data.
    """

    group: LieGroup
    schedule: Schedule
    first: float = 0.02

    def lesson(self, clean: Tensor, generator: torch.Generator | None) -> TrainingBatch:
        """At stratified times."""
        t = self.first + (1.0 - self.first) * stratified(len(clean), clean, generator)
        variance = self.schedule.variance(0.0, t)
        simulated = heat_kernel(self.group) is None

        def parts(level: float) -> int:
            return self._parts(self.first + (1.0 - self.first) * level) if simulated else 1

        noise = [self._noise(variance[rows], steps, generator) for rows, steps in graded(len(clean), parts)]
        elements, targets = (torch.cat(x) for x in zip(*noise, strict=True))
        answers = -variance.sqrt().unsqueeze(-1) * targets
        return TrainingBatch(self.group.compose(clean, elements), t, None, answers, torch.ones_like(t))

    def noised(self, clean: Tensor, generator: torch.Generator | None) -> Tensor:
        """At t = 1."""
        variance = torch.full((len(clean),), self.schedule.variance(0.0, 1.0)).to(clean)
        steps = 1 if heat_kernel(self.group) is not None else self._parts(1.0)
        rows = variance.split(_together(len(clean), min(steps, _SCORED)))
        return self.group.compose(clean, torch.cat([self._noise(part, steps, generator)[0] for part in rows]))

    def _noise(self, variance: Tensor, steps: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Elements and targets; of more steps than these are worth, the first ones, in fewer, are taken for the data's.

        So the target is unbiased, and as noisy as if the noise were as much smaller.
        """
        share = min(1.0, _SCORED / steps)
        make = functools.partial(noise_with_target, self.group, order=2, generator=generator)
        last = make(share * variance, steps=min(steps, _SCORED))
        if share == 1.0:
            return last.elements, last.target
        return self.group.compose(make((1.0 - share) * variance, steps=_MOST).elements, last.elements), last.target

    def _parts(self, t: float) -> int:
        return noise_parts(self.group, self.schedule.variance(0.0, t), _FEWEST)

    def score(self, network: Network) -> Callable[[Tensor, float], Tensor]:
        """The score of p_t as a function of element and time, for any process of this library."""

        def score(g: Tensor, t: float) -> Tensor:
            level = g.new_full(self.group.batch_shape(g), t)
            return network(g, level, None) * (-1.0 / math.sqrt(self.schedule.variance(0.0, t)))

        return score

    def flow(self, network: Network) -> TrivializedSDE:
        """The probability flow."""
        return probability_flow(self.group, self.schedule, self.score(network))

    def sample(
        self, network: Network, start: Tensor, generator: torch.Generator | None, tolerance: float, steps: int | None
    ) -> Tensor:
        """Steps are those of `GeometricHeun` for the `reverse_process`, two evaluations each."""
        if steps is None:
            return followed(self.flow(network), start, 1.0, self.first, tolerance)
        grid = [1.0 + (self.first - 1.0) * k / steps for k in range(steps)] + [self.first]
        process = reverse_process(self.group, self.schedule, self.score(network))
        return solve(process, start, grid, stepper=GeometricHeun(), generator=generator).followed
