"""Stages that every method may use: chains, noise, proposals, choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trivgeo._random import choice as draw_choice
from trivgeo.checks import check_choice, check_count, check_positive, check_type
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.inversion.energy import DataEnergy, as_energy
from trivgeo.inversion.inverter import Inverter, Stage, StageLike, check_stage, networks_of, steps_of
from trivgeo.inversion.posterior import GivenPosterior
from trivgeo.inversion.result import Population
from trivgeo.sde import GeometricSchedule, NoiseKernel, Schedule

__all__ = ["Choose", "KeepLower", "Noise", "Propose", "Side", "Start", "Under"]

Side = Literal["restored", "given"]
"""Which datum noise moves: g exp(v) the restored one, exp(v) g the given one."""


class Start(Stage):
    """Several chains for each hypothesis.

    Args:
        num_hypotheses: chains for each.

    Raises:
        ConfigurationError: the number is below one.
    """

    def __init__(self, num_hypotheses: int) -> None:
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)

    def __call__(
        self, posterior: GivenPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """Copies of the population."""
        return population.copies(self.num_hypotheses)


class Noise(Stage):
    r"""Puts the noise of a diffusion on every chain: :math:`g w`, or :math:`w^{-1} g`, with :math:`w \sim k_t`.

    Args:
        schedule: see `TIED`.
        steps: of the `trivgeo.sde.NoiseKernel`.
        time: t, in (0, 1].
        side: ``"restored"`` for the first, ``"given"`` for the second, see `Reverse`.

    Raises:
        ConfigurationError: the schedule is none, the number of steps is below one, or the side is none of the two.
        DomainError: the time lies outside (0, 1].
    """

    def __init__(
        self, schedule: Schedule | None = None, steps: int = 50, time: float = 1.0, side: Side = "restored"
    ) -> None:
        self.schedule = check_type("schedule", schedule or GeometricSchedule(0.1, 1.0), Schedule)  # type: ignore[type-abstract]
        self.noise_steps = check_count("steps", steps)
        if not 0.0 < time <= 1.0:
            raise DomainError(f"time: expected a time in (0, 1], got {time}")
        self.time = time
        self.side = check_choice("side", side, ("restored", "given"))

    def __call__(
        self, posterior: GivenPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The population at the time of the noise."""
        group, g = posterior.group, population.elements
        kernel = NoiseKernel(group, self.schedule, self.noise_steps)
        w, _ = kernel.sample(*g.shape[:2], t=self.time, generator=generator, dtype=g.dtype, device=g.device)
        noised = group.compose(g, w) if self.side == "restored" else group.compose(group.inverse(w), g)
        return replace(population.moved(noised), time=self.time)


class Propose(nn.Module, Stage):
    """The hypotheses of another inverter, in place of those that come in; its evaluations count.

    Args:
        inverter: of the same action, or of one with another scale of the group.

    Raises:
        ConfigurationError: the inverter is none; or (when run) its group is another one.
    """

    def __init__(self, inverter: Inverter) -> None:
        super().__init__()
        self.inverter = check_type("inverter", inverter, Inverter)

    def forward(
        self, posterior: GivenPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """What the inverter finds, to be weighed by this posterior's energy."""
        if not self.inverter.action.group.same_law(posterior.group):
            raise ConfigurationError(
                f"inverter: expected one of {posterior.group!r}, got one of {self.inverter.action.group!r}"
            )
        result = self.inverter(posterior.x, generator=generator)
        posterior.count(result.energy_evaluations, result.gradient_evaluations, result.network_evaluations)
        return Population(result.elements, result.failures)


class Choose(Stage):
    r"""Goes on with k of the chains of each datum.

    Those of lowest energy E, or drawn with replacement with the weights :math:`e^{-E / T}`: then they are a sample of
    the product of the law that they came from and of :math:`e^{-E / T}` as their number grows, so that a learned
    posterior (`AmortizedInverter`) is a prior.

    Args:
        num_hypotheses: the number k.
        choice: ``"lowest"`` or ``"resample"``.
        temperature: T, positive.

    Raises:
        ConfigurationError: a setting out of its range; or (when run) fewer than k chains are to be among the lowest.
    """

    def __init__(
        self,
        num_hypotheses: int = 1,
        choice: Literal["lowest", "resample"] = "lowest",
        temperature: float = 1.0,
    ) -> None:
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        self.choice = check_choice("choice", choice, ("lowest", "resample"))
        self.temperature = check_positive("temperature", temperature)

    def __call__(
        self, posterior: GivenPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The chains that were chosen."""
        evaluated = population.evaluated(posterior)
        energies, number = evaluated.energies, self.num_hypotheses
        if self.choice == "lowest":
            if population.size < number:
                raise ConfigurationError(f"num_hypotheses: expected at most {population.size} chains, got {number}")
            return evaluated.take(energies.topk(number, dim=1, largest=False).indices)
        finite = torch.isfinite(energies)
        logits = torch.where(finite, -energies / self.temperature, -torch.inf)
        logits = torch.where(finite.any(1, keepdim=True), logits, 0.0)
        return evaluated.take(draw_choice(logits.softmax(1), number, generator))


class KeepLower(nn.Module, Stage):
    """Stages after which every chain that ends at a higher energy goes back to where it was.

    Args:
        stages: see `Inverter`; they keep the number of chains.

    Raises:
        ConfigurationError: a stage that is none; or (when run) the number of chains changes.
    """

    def __init__(self, *stages: StageLike) -> None:
        super().__init__()
        self.stages = tuple(check_stage(stage) for stage in stages)
        self.networks = networks_of(self.stages)
        self.steps = steps_of(self.stages)

    def forward(
        self, posterior: GivenPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """Each chain after the stages, or before."""
        before = population.evaluated(posterior)
        moved: Population = before
        for stage in self.stages:
            moved = stage(posterior, moved, generator)
        after = moved.evaluated(posterior)
        if after.size != before.size:
            raise ConfigurationError(f"stages: expected {before.size} chains to stay as many, got {after.size}")
        start = replace(before, failures=after.failures, time=after.time)
        return start.or_lower(after.elements, after.energies)


class Under(nn.Module, Stage):
    """Stages that see another energy than the inverter's, such as one with wider wells.

    ```python
    Inverter(action, energy(0.03), [Under(energy(0.3), Descend(10)), Under(energy(0.1), Descend(10)), Descend(20)])
    ```

    Args:
        energy: see `Inverter`.
        stages: see `Inverter`.

    Raises:
        ConfigurationError: an energy or a stage that is none.
    """

    def __init__(self, energy: DataEnergy | Callable[[Any], Tensor], *stages: StageLike) -> None:
        super().__init__()
        self.energy = as_energy(energy)
        self.stages = tuple(check_stage(stage) for stage in stages)
        self.networks = networks_of(self.stages)
        self.steps = steps_of(self.stages)

    def forward(
        self, posterior: GivenPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The population after the stages, its energies forgotten; what they evaluated counts."""
        other = posterior.under(self.energy)
        population = population.moved(population.elements)
        for stage in self.stages:
            population = stage(other, population, generator)
        posterior.count(other.energy_evaluations, other.gradient_evaluations, other.network_evaluations)
        return population.moved(population.elements)
