"""Stages in double precision."""

from __future__ import annotations

from dataclasses import replace

import torch

from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.stage import Stage, StageLike, check_stage, run_stages, steps_of

__all__ = ["Promote"]


class Promote(Stage):
    """Stages that compute in double precision, whatever the data are in.

    The place of a minimum is known to the square root of the precision of the energy: in single precision descents end
    1e-4 to 1e-2 apart, at places that depend on where they began. A prediction made from them is equivariant to that.

    ```python
    TIED(action, energy).then(Promote(Newton(6)))
    ```

    Args:
        stages: see `Inverter`; the networks of the energy are copied in double precision, those of stages are not. An
            energy that calls a network of single precision without being one must convert what it is given.

    Raises:
        ConfigurationError: an argument is not a stage.
    """

    def __init__(self, *stages: StageLike) -> None:
        self.stages = tuple(check_stage(stage) for stage in stages)
        self.steps = steps_of(self.stages)

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The population after the stages, in the precision of the data."""
        wide = posterior.in_double()
        moved = replace(population, elements=population.elements.double(), energies=None)
        moved = run_stages(self.stages, wide, moved, generator)
        posterior.count(wide.energy_evaluations, wide.gradient_evaluations, wide.network_evaluations)
        return replace(moved, elements=moved.elements.to(population.elements.dtype), energies=None)
