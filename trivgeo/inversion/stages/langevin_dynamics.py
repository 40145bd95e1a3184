"""Langevin dynamics of the transformation posterior."""

from __future__ import annotations

import torch

from trivgeo.checks import check_count, check_positive, checked
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.stage import Population, Stage
from trivgeo.sde import solve, uniform_grid
from trivgeo.sde.processes import KineticLangevinSDE


@checked
class Langevin(Stage):
    r"""Lets every chain follow `KineticLangevinSDE` for :math:`p(g \mid \tilde x) \propto e^{-E(g) / T}`.

    The ends of the chains are draws of the posterior only once they have mixed, which nothing checks.

    Args:
        steps: number of steps of the splitting scheme.
        step_size: time of a step.
        friction: decay rate of the momentum, see `trivgeo.sde.processes.KineticLangevinSDE`.
        temperature: T, positive.
        coadjoint: keep the coadjoint term, see `trivgeo.sde.processes.KineticLangevinSDE`.

    Raises:
        ConfigurationError: a setting out of its range.
    """

    def __init__(
        self, steps: int, step_size: float, friction: float = 1.0, temperature: float = 1.0, coadjoint: bool = True
    ) -> None:
        self.steps = check_count("steps", steps)
        self.step_size = check_positive("step_size", step_size)
        self.friction = check_positive("friction", friction)
        self.temperature = check_positive("temperature", temperature)
        self.coadjoint = coadjoint

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        process = KineticLangevinSDE(
            posterior.group, posterior.differentiable, self.friction, self.temperature, self.coadjoint
        )
        solution = solve(
            process,
            process.start(population.elements, generator=generator),
            uniform_grid(self.steps, 0.0, self.steps * self.step_size),
            generator=generator,
            observe=lambda index, t, state: posterior.step() if index else None,
        )
        return population.moved(solution.final.elements, masked=solution.num_masked_steps)
