"""Stages that arrange chains: noise on them, copies, a choice of them, or the hypotheses of another inverter."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from trivgeo._random import choice as draw_choice
from trivgeo.checks import check_choice, check_count, check_positive, check_type, checked
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.sampling.mixture import StudentMixture
from trivgeo.inversion.stage import Population, Stage
from trivgeo.sde import GeometricSchedule, NoiseKernel, Schedule

Side = Literal["restored", "given"]
"""Which datum noise moves: g exp(v) the restored one, exp(v) g the given one."""


@checked
class AddNoise(Stage):
    r"""Puts the noise of a diffusion on every chain: :math:`g w`, or :math:`w^{-1} g`, with :math:`w \sim k_t`.

    Args:
        schedule: diffusion coefficient of the noise.
        steps: number of steps of the `trivgeo.sde.NoiseKernel`.
        time: t, in (0, 1].
        side: ``"restored"`` for the first, ``"given"`` for the second, see `ReverseDiffusion`.

    Raises:
        ConfigurationError: the schedule is not a `Schedule`, the number of steps is below one, or the side is unknown.
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

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        group, g = posterior.group, population.elements
        kernel = NoiseKernel(group, self.schedule, self.noise_steps)
        w, _ = kernel.sample(*g.shape[:2], t=self.time, generator=generator, dtype=g.dtype, device=g.device)
        noised = group.compose(g, w) if self.side == "restored" else group.compose(group.inverse(w), g)
        return replace(population.moved(noised), time=self.time)


@checked
class Replicate(Stage):
    """Makes several chains of each hypothesis.

    Args:
        num_hypotheses: number of chains of each hypothesis.

    Raises:
        ConfigurationError: the number is below one.
    """

    def __init__(self, num_hypotheses: int) -> None:
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        return population.copies(self.num_hypotheses)


@checked
class Select(Stage):
    r"""Keeps k of the chains of each datum.

    Those of lowest energy E, or chains drawn with replacement with the weights :math:`e^{-E / T}`. As their number
    grows, these sample the distribution that they came from times :math:`e^{-E / T}`, so that a learned posterior
    (`AmortizedInverter`) is a prior.

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

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
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


@checked
class WarmStart(Stage):
    """The hypotheses of another inverter, in place of those that come in; its evaluations count.

    Args:
        inverter: inverter of the same action, or of one with another scale of the group.

    Raises:
        ConfigurationError: the inverter is none; or (when run) its group is another one.
    """

    def __init__(self, inverter: Inverter) -> None:
        self.inverter = check_type("inverter", inverter, Inverter)

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        """Return the hypotheses of the inverter, without energies: the energies of this posterior may differ."""
        self._check_group(posterior)
        result = self.inverter(posterior.x, generator=generator)
        posterior.count(result.energy_evaluations, result.gradient_evaluations, result.network_evaluations)
        return Population(result.elements, result.num_masked_steps)

    def proposal(self, posterior: Posterior, generator: torch.Generator | None) -> StudentMixture | None:
        """Return the density of the inverter for the data, in the basis of the posterior's group; ``None`` without one.

        Args:
            posterior: posterior of the data.
            generator: random numbers; None is torch's.

        Raises:
            NonFiniteError: the density has centres, factors or shares that are NaN or infinite.
        """
        self._check_group(posterior)
        found = self.inverter.proposal(posterior.x, generator)
        if found is None:
            return None
        mixture, evaluations = found
        numbers = (mixture.centres, mixture.factors, mixture.log_shares.exp())
        if not all(bool(torch.isfinite(part).all()) for part in numbers):
            raise NonFiniteError(
                "inverter: expected a density with finite centres, factors and shares, got NaN or infinity"
            )
        posterior.count(networks=evaluations)
        return mixture.in_basis_of(posterior.group)

    def _check_group(self, posterior: Posterior) -> None:
        if not self.inverter.action.group.is_same_group(posterior.group):
            raise ConfigurationError(
                f"inverter: expected one of {posterior.group!r}, got one of {self.inverter.action.group!r}"
            )
