"""Sampling of the transformation posterior by Langevin dynamics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trivgeo.checks import check_count, check_positive
from trivgeo.groups import Action
from trivgeo.inversion.energy import DataEnergy, as_energy
from trivgeo.inversion.inverter import Inverter, Stage
from trivgeo.inversion.posterior import GivenPosterior
from trivgeo.inversion.result import Population
from trivgeo.inversion.stages import Start
from trivgeo.sde import KineticLangevinSDE, solve, uniform_grid

__all__ = ["KineticLangevin", "Langevin"]


class Langevin(Stage):
    r"""Lets every chain follow `trivgeo.sde.KineticLangevinSDE` for :math:`p(g \mid \tilde x) \propto e^{-E(g) / T}`.

    The chains are sampled where they end, which is the posterior only once they have mixed.

    Args:
        steps: number of steps of the splitting scheme.
        step_size: time of a step.
        friction: see `trivgeo.sde.KineticLangevinSDE`.
        temperature: T, positive.
        coadjoint: see `trivgeo.sde.KineticLangevinSDE`.

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

    def __call__(
        self, posterior: GivenPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The ends of the chains."""
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


class KineticLangevin(Inverter):
    """Samples the transformation posterior by kinetic Langevin dynamics from the identity (Kong and Tao 2024).

    Stages: `Start`, `Langevin`. The defaults are the published ones for images; those for differential equations are
    1,000 steps of 1e-5 to 1e-4.

    Args:
        action: the action on data.
        energy: see `Inverter`.
        steps: see `Langevin`.
        step_size: see `Langevin`.
        num_hypotheses: number K of chains.
        friction: see `Langevin`.
        temperature: see `Langevin`.
        coadjoint: see `Langevin`.

    Raises:
        ConfigurationError: a setting out of its range, or an action or energy that is none.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        steps: int = 1600,
        step_size: float = 2e-4,
        num_hypotheses: int = 4,
        friction: float = 1.0,
        temperature: float = 1.0,
        coadjoint: bool = True,
    ) -> None:
        stage = Langevin(steps, step_size, friction, temperature, coadjoint)
        super().__init__(action, as_energy(energy), [Start(num_hypotheses), stage])
