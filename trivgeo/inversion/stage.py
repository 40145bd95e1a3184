"""The contract of a stage: a part of a method of inversion."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trivgeo._text import Described
from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.result import InversionResult, PosteriorSample
from trivgeo.inversion.rows import lower_rows
from trivgeo.sde.resampling import take_rows
from trivgeo.verdict import Verdict

__all__ = ["CheckedPopulation", "Population", "Stage"]


@checked
@dataclass(frozen=True, repr=False)
class Population(Described):
    """K hypotheses, or chains, for each of b data, between two stages of an `Inverter`.

    Attributes:
        elements: ``[b, K, *element_shape]``.
        num_masked_steps: masked steps of each chain so far, ``[b, K]``.
        energies: posterior energies of the elements, ``[b, K]``; ``None`` until a stage evaluates them.
        time: the time in [0, 1] of the noise on the elements; 0 without noise.
    """

    elements: Tensor
    num_masked_steps: Int[Tensor, "b k"]
    energies: Float[Tensor, "b k"] | None = None
    time: float = 0.0

    @staticmethod
    def at(elements: Tensor) -> Population:
        """Return chains that have not moved, at ``elements``, ``[b, K, *element_shape]``."""
        return Population(elements, torch.zeros(elements.shape[:2], dtype=torch.long, device=elements.device))

    @property
    def size(self) -> int:
        """Number K of chains of each datum."""
        return self.num_masked_steps.shape[1]

    def evaluated(self, posterior: Posterior) -> EvaluatedPopulation:
        """Return the population with its energies; ``posterior`` evaluates them if they are not known."""
        energies = posterior.energies(self.elements) if self.energies is None else self.energies
        return EvaluatedPopulation(self.elements, self.num_masked_steps, energies, self.time)

    def moved(
        self, elements: Tensor, energies: Float[Tensor, "b k"] | None = None, masked: Int[Tensor, "b k"] | None = None
    ) -> Population:
        """Return the chains at other elements.

        Args:
            elements: the elements, ``[b, K, *element_shape]``.
            energies: energies of the elements, if known.
            masked: further masked steps, if any.
        """
        steps = self.num_masked_steps if masked is None else self.num_masked_steps + masked
        return Population(elements, steps, energies, self.time)

    def take(self, index: Int[Tensor, "b m"]) -> Population:
        """Return the chains with numbers ``index``, ``[b, m]``, with their energies and counts."""
        return replace(
            self,
            elements=take_rows(self.elements, index),
            num_masked_steps=self.num_masked_steps.gather(1, index),
            energies=None if self.energies is None else self.energies.gather(1, index),
        )

    def copies(self, num_copies: int) -> Population:
        """Return a population with every chain ``num_copies`` times, the copies of a chain side by side."""
        index = torch.arange(self.size, device=self.elements.device).repeat_interleave(num_copies)
        return self.take(index.expand(self.elements.shape[0], -1))


@dataclass(frozen=True, repr=False)
class EvaluatedPopulation(Population):
    """Population whose energies are known; attributes are those of `Population`."""

    energies: Float[Tensor, "b k"]

    def or_lower(self, elements: Tensor, energies: Float[Tensor, "b k"]) -> EvaluatedPopulation:
        """Return the chains, each at another element if its energy is lower there."""
        elements, energies = lower_rows(self.elements, self.energies, elements, energies)
        return replace(self, elements=elements, energies=energies)

    @staticmethod
    def joined(*parts: EvaluatedPopulation) -> EvaluatedPopulation:
        """Return the chains of several populations of the same data, in the order of their energies."""
        everyone = EvaluatedPopulation(
            torch.cat([part.elements for part in parts], 1),
            torch.cat([part.num_masked_steps for part in parts], 1),
            torch.cat([part.energies for part in parts], 1),
        )
        return replace(everyone, **vars(everyone.take(everyone.energies.argsort(dim=1, stable=True))))

    def result(self, posterior: Posterior) -> InversionResult:
        """Return this population as the result of an inverter, with the numbers of evaluations of ``posterior``."""
        return InversionResult(
            posterior.action,
            self.elements,
            self.energies,
            self.num_masked_steps,
            posterior.energy_evaluations,
            posterior.gradient_evaluations,
            posterior.network_evaluations,
            posterior.kept(self.elements),
            posterior.added_energies(self.elements),
            report="\n".join(posterior.notes),
        )


@dataclass(frozen=True, repr=False, kw_only=True)
class CheckedPopulation(EvaluatedPopulation):
    """Population whose data were checked; an inverter that ends with one returns their verdicts.

    Elements that a later stage moves or chooses were not checked: they are a `Population` without verdicts.

    Attributes:
        verdicts: one for each datum. All other attributes (``elements``, ``num_masked_steps``, ``energies``, ``time``)
            are those of `Population`.
    """

    verdicts: tuple[Verdict, ...]

    def evaluated(self, posterior: Posterior) -> EvaluatedPopulation:
        return self

    def take(self, index: Int[Tensor, "b m"]) -> Population:
        return self.unchecked().take(index)

    def unchecked(self) -> EvaluatedPopulation:
        """Return the elements with their energies alone."""
        return EvaluatedPopulation(self.elements, self.num_masked_steps, self.energies, self.time)

    def result(self, posterior: Posterior) -> InversionResult:
        return replace(super().result(posterior), stage_verdicts=self.verdicts)


@dataclass(frozen=True, repr=False, kw_only=True)
class WeightedPopulation(CheckedPopulation):
    """Population that is a weighted sample; an inverter that ends with one returns a `PosteriorSample`.

    Elements that a later stage moves or chooses are no longer such a sample: they are a `Population` without weights.

    Attributes:
        weights: weights of the elements, ``[b, K]``, with sum one.
        effective_sample_size: see `PosteriorSample`, ``[b]``.
        log_evidence: see `PosteriorSample`, ``[b]``. All other attributes are those of `CheckedPopulation`.
    """

    weights: Float[Tensor, "b k"]
    effective_sample_size: Float[Tensor, " b"]
    log_evidence: Float[Tensor, " b"]

    def result(self, posterior: Posterior) -> PosteriorSample:
        return PosteriorSample(
            **vars(super().result(posterior)),
            weights=self.weights,
            effective_sample_size=self.effective_sample_size,
            log_evidence=self.log_evidence,
        )


@checked
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
    """Number of calls of `Posterior.step` by the stage, for progress bars."""
    costs: Sequence[float] | None = None
    """Times of these steps in any unit; ``None`` where all take as long."""

    @abstractmethod
    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        """Return the next population.

        Args:
            posterior: energies of elements for the data at hand.
            population: population after the stages before.
            generator: the source of randomness, on the device of the data.
        """


StageLike = Stage | Callable[[Posterior, Population, torch.Generator | None], Population]


def check_stage(stage: StageLike) -> StageLike:
    """Return ``stage`` if it is one, else raise `ConfigurationError`."""
    if not (isinstance(stage, Stage) or callable(stage)) or isinstance(stage, type):
        raise ConfigurationError(
            f"stages: expected a Stage, or a function (posterior, population, generator) to a population, got {stage!r}"
        )
    return stage


def run_stages(
    stages: Sequence[StageLike],
    posterior: Posterior,
    population: Population,
    generator: torch.Generator | None,
) -> Population:
    """Return the population after all stages."""
    for stage in stages:
        population = stage(posterior, population, generator)
    return population


def costs_of(stages: Sequence[StageLike]) -> list[float]:
    """Return the times of the steps of all stages together, in any unit."""
    known = [(stage.steps, stage.costs) for stage in stages if isinstance(stage, Stage)]
    return [cost for steps, costs in known for cost in (costs or [1.0] * steps)]
