"""Stages under another energy than the inverter's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.stage import Stage, StageLike, check_stage, run_stages, steps_of

__all__ = ["WithEnergy"]


class WithEnergy(Stage):
    """Stages that see another energy than the inverter's, such as one with wider wells.

    ```python
    wide = WithEnergy(energy(0.3), Descend(10)), WithEnergy(energy(0.1), Descend(10))
    Inverter(action, energy(0.03), [*wide, Descend(20)])
    ```

    Args:
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        stages: stages that run one after another, see `Inverter`.

    Raises:
        ConfigurationError: an argument is not an energy or a stage.
    """

    def __init__(self, energy: DataEnergy | Callable[[Any], Tensor], *stages: StageLike) -> None:
        self.energy = as_energy(energy)
        self.stages = tuple(check_stage(stage) for stage in stages)
        self.steps = steps_of(self.stages)

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The population after the stages, its energies forgotten; what they evaluated counts."""
        other = posterior.under(self.energy)
        population = population.moved(population.elements)
        population = run_stages(self.stages, other, population, generator)
        posterior.count(other.energy_evaluations, other.gradient_evaluations, other.network_evaluations)
        return population.moved(population.elements)
