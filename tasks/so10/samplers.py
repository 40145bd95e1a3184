"""Samplers that the task can be given: a sample, and |mean of X_11| on the way."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from tqdm import tqdm

from trivgeo.checks import check_count
from trivgeo.groups import SO
from trivgeo.sde import EnergyScore, NoiseKernel, Schedule, Stepper, solve, uniform_grid
from trivgeo.sde.processes import KineticLangevinSDE, KineticLangevinState, reverse_process
from trivgeo.sde.solvers import ExponentialEuler

from .corner_distribution import CornerDistribution


@dataclass
class Draw:
    """Samples and their cost.

    Attributes:
        elements: the sample, `[count, n, n]`.
        gradient_evaluations: energies evaluated with their gradient, for each sample.
        trace: X_11 of all samples after some of the steps, by the number of the step.
    """

    elements: Tensor
    gradient_evaluations: int
    trace: dict[int, Tensor] = field(default_factory=dict)


class Sampler(ABC):
    """Draws from a `CornerDistribution`."""

    @abstractmethod
    def sample(self, distribution: CornerDistribution, count: int, generator: torch.Generator) -> Draw:
        """`count` samples, on the device of the generator."""


class ReverseDiffusion(Sampler):
    """Trivialized diffusion sampling with the Monte Carlo score of the energy.

    Args:
        schedule: the noise.
        steps: reverse steps.
        num_mc: noise samples of one score.
        stepper: the scheme.
        uniform_start: start from the Haar-uniform distribution, which k_1 approaches on a compact group, instead of
            k_1.
        pool: distinct noise paths of a run, dealt to the chains; `None` gives each chain its own.
        antithetic: noise in pairs.
    """

    def __init__(
        self,
        schedule: Schedule,
        steps: int,
        num_mc: int,
        stepper: Stepper | None = None,
        uniform_start: bool = True,
        pool: int | None = 4096,
        antithetic: bool = True,
    ) -> None:
        self.schedule = schedule
        self.steps = check_count("steps", steps)
        self.num_mc = check_count("num_mc", num_mc)
        self.stepper = ExponentialEuler() if stepper is None else stepper
        self.uniform_start = uniform_start
        self.pool = pool
        self.antithetic = antithetic

    def sample(self, distribution: CornerDistribution, count: int, generator: torch.Generator) -> Draw:
        group, evaluations = SO(distribution.n), 0

        def energy(g: Tensor) -> Tensor:
            nonlocal evaluations
            evaluations += g.shape[:-2].numel()
            return distribution.energy(g)

        kernel = NoiseKernel(group, self.schedule, self.steps)
        score = EnergyScore(energy, kernel, self.num_mc, pool=self.pool, antithetic=self.antithetic)
        device = generator.device
        initial = (
            group.random_haar(count, generator=generator, device=device)
            if self.uniform_start
            else kernel.sample(count, t=1.0, generator=generator, device=device)[0]
        )
        trace: dict[int, Tensor] = {}
        with _recorder(trace, self.steps, lambda g: g[:, 0, 0]) as observe:
            process, times = reverse_process(group, self.schedule, score), uniform_grid(self.steps, 1.0, 0.0)
            solution = solve(process, initial, times, stepper=self.stepper, generator=generator, observe=observe)
        return Draw(solution.final, evaluations // count, trace)


class Langevin(Sampler):
    """Kinetic Langevin dynamics (Kong and Tao 2024), every chain from the identity.

    Args:
        steps: steps of a chain.
        step_size: time of a step.
        friction: gamma.
    """

    def __init__(self, steps: int, step_size: float = 0.01, friction: float = 5.0) -> None:
        self.steps = check_count("steps", steps)
        self.step_size = step_size
        self.friction = friction

    def sample(self, distribution: CornerDistribution, count: int, generator: torch.Generator) -> Draw:
        group = SO(distribution.n)
        process = KineticLangevinSDE(group, distribution.energy, friction=self.friction)
        start = process.start(group.identity(count, device=generator.device), generator=generator)
        times = [self.step_size * m for m in range(self.steps + 1)]
        trace: dict[int, Tensor] = {}
        with _recorder(trace, self.steps, lambda state: state.elements[:, 0, 0]) as observe:
            final = solve(process, start, times, generator=generator, observe=observe).final
        assert isinstance(final, KineticLangevinState)
        return Draw(group.project(final.elements), self.steps + 1, trace)


@contextmanager
def _recorder(trace: dict[int, Tensor], steps: int, corner: Callable) -> Iterator[Callable]:
    """An observer that keeps X_11 at about two hundred of the steps, and shows on a terminal how far the run is."""
    every = max(1, steps // 200)
    with tqdm(total=steps, desc="steps", leave=False, disable=None) as bar:

        def observe(index: int, t: float, state: Tensor) -> None:
            if index % every == 0 or index == steps:
                trace[index] = corner(state).detach().clone()
                bar.update(index - bar.n)

        yield observe
