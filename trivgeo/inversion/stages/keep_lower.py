"""Stages that no chain leaves at a higher energy."""

from __future__ import annotations

from dataclasses import replace

import torch

from trivgeo.errors import ConfigurationError
from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.stage import Stage, StageLike, check_stage, run_stages, steps_of

__all__ = ["KeepLower"]


class KeepLower(Stage):
    """Stages after which every chain that ends at a higher energy goes back to where it was.

    Args:
        stages: stages that run one after another; they keep the number of chains.

    Raises:
        ConfigurationError: an argument is not a stage; or (when run) the number of chains changes.
    """

    def __init__(self, *stages: StageLike) -> None:
        self.stages = tuple(check_stage(stage) for stage in stages)
        self.steps = steps_of(self.stages)

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """Return each chain as the stages leave it, or as it was if its energy was lower."""
        before = population.evaluated(posterior)
        after = run_stages(self.stages, posterior, before, generator).evaluated(posterior)
        if after.size != before.size:
            raise ConfigurationError(f"stages: expected {before.size} chains to stay as many, got {after.size}")
        start = replace(before, num_masked_steps=after.num_masked_steps, time=after.time)
        return start.or_lower(after.elements, after.energies)
