"""The contract of a stage: a part of a method of inversion."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import nn

from trivgeo._text import Described
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior

__all__ = ["Stage"]


class Stage(Described, ABC):
    """A part of a method: from a population of hypotheses to another one.

    Any function of this form is one too. A stage that holds networks is a `torch.nn.Module` as well.

    ```python
    class Shrink(Stage):  # keeps the better half
        def __call__(self, posterior, population, generator):
            population = population.evaluated(posterior)
            half = population.energies.topk(population.size // 2, dim=1, largest=False).indices
            return population.take(half)
    ```
    """

    steps: int = 0
    """How often the stage calls `ConditionalPosterior.step`, for progress bars."""

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


def steps_of(stages: Sequence[StageLike]) -> int:
    """How many steps some stages have together."""
    return sum(stage.steps for stage in stages if isinstance(stage, Stage))


def networks_of(stages: Sequence[StageLike]) -> nn.ModuleList:
    """The stages that hold networks, to be found by `torch.nn.Module`."""
    return nn.ModuleList(stage for stage in stages if isinstance(stage, nn.Module))
