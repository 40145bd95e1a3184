"""The contract of a stage: a part of a method of inversion."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from trivgeo._text import Described
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior

__all__ = ["Stage"]


class Stage(Described, ABC):
    """A step of a method: receives a population of hypotheses, and returns another population.

    A function with the same arguments is a stage as well. Networks that a stage keeps as attributes, by themselves or
    in energies, inverters, other stages, and lists of these, belong to the inverter: they move with it to a device, and
    are in evaluation mode during its calls.

    ```python
    class Shrink(Stage):  # keeps the better half
        def __call__(self, posterior, population, generator):
            population = population.evaluated(posterior)
            half = population.energies.topk(population.size // 2, dim=1, largest=False).indices
            return population.take(half)
    ```
    """

    steps: int = 0
    """Number of calls of `ConditionalPosterior.step` by the stage, for progress bars."""

    @abstractmethod
    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The next population.

        Args:
            posterior: energies of elements for the data at hand.
            population: what the stages before have made.
            generator: the source of randomness, on the device of the data.
        """


StageLike = Stage | Callable[[ConditionalPosterior, Population, torch.Generator | None], Population]


def check_stage(stage: StageLike) -> StageLike:
    """Return ``stage`` if it is one, else raise `ConfigurationError`."""
    if not (isinstance(stage, Stage) or callable(stage)) or isinstance(stage, type):
        raise ConfigurationError(
            f"stages: expected a Stage, or a function (posterior, population, generator) to a population, got {stage!r}"
        )
    return stage


def run_stages(
    stages: Sequence[StageLike],
    posterior: ConditionalPosterior,
    population: Population,
    generator: torch.Generator | None,
) -> Population:
    """Return the population after stages, one after another."""
    for stage in stages:
        population = stage(posterior, population, generator)
    return population


def steps_of(stages: Sequence[StageLike]) -> int:
    """Return the number of steps of all stages together."""
    return sum(stage.steps for stage in stages if isinstance(stage, Stage))
