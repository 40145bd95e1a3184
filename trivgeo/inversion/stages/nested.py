"""Stages that run other stages: as long as the energy falls, in double precision, under another energy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.stage import Population, Stage, StageLike, check_stage, costs_of, run_stages


@checked
class NestedStages(Stage):
    """Base class of stages that run others one after another.

    Raises:
        ConfigurationError: an argument is not a stage.
    """

    def __init__(self, *stages: StageLike) -> None:
        self.stages = tuple(check_stage(stage) for stage in stages)
        self.costs = costs_of(self.stages)
        self.steps = len(self.costs)

    def run_under(
        self,
        other: Posterior,
        posterior: Posterior,
        population: Population,
        generator: torch.Generator | None,
    ) -> Population:
        """Return the population after the stages under another posterior, whose evaluations count for the first.

        The stages forget the energies of ``population``.
        """
        population = run_stages(self.stages, other, population.moved(population.elements), generator)
        posterior.count(other.energy_evaluations, other.gradient_evaluations, other.network_evaluations)
        return population.moved(population.elements)


@checked
class KeepLower(NestedStages):
    """Stages after which every chain that ends at a higher energy goes back to where it was.

    Args:
        stages: stages that run one after another; they keep the number of chains.

    Raises:
        ConfigurationError: an argument is not a stage; or (when run) the number of chains changes.
    """

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        before = population.evaluated(posterior)
        after = run_stages(self.stages, posterior, before, generator).evaluated(posterior)
        if after.size != before.size:
            raise ConfigurationError(f"stages: expected {before.size} chains to stay as many, got {after.size}")
        start = replace(before, num_masked_steps=after.num_masked_steps, time=after.time)
        return start.or_lower(after.elements, after.energies)


@checked
class InDoublePrecision(NestedStages):
    """Stages that compute in double precision, whatever the data are in.

    The place of a minimum is known to the square root of the precision of the energy: in single precision descents end
    1e-4 to 1e-2 apart, at places that depend on where they began. A prediction made from them is equivariant to that.

    ```python
    TIED(action, energy).then(InDoublePrecision(Newton(6)))
    ```

    Args:
        stages: see `Inverter`; the networks of the energy are copied in double precision, those of stages are not. An
            energy that calls a network of single precision without being one must convert what it is given.

    Raises:
        ConfigurationError: an argument is not a stage.
    """

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        wide = population.moved(population.elements.double())
        found = self.run_under(posterior.in_double(), posterior, wide, generator)
        return found.moved(found.elements.to(population.elements.dtype))


@checked
class WithEnergy(NestedStages):
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
        super().__init__(*stages)
        self.energy = as_energy(energy)

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        return self.run_under(posterior.under(self.energy), posterior, population, generator)
