"""The stage that adds the noise of a diffusion."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from trivgeo.checks import check_choice, check_count, check_type
from trivgeo.errors import DomainError
from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.stage import Stage
from trivgeo.sde import GeometricSchedule, NoiseKernel, Schedule

__all__ = ["AddNoise", "Side"]

Side = Literal["restored", "given"]
"""Which datum noise moves: g exp(v) the restored one, exp(v) g the given one."""


class AddNoise(Stage):
    r"""Puts the noise of a diffusion on every chain: :math:`g w`, or :math:`w^{-1} g`, with :math:`w \sim k_t`.

    Args:
        schedule: diffusion coefficient of the noise.
        steps: of the `trivgeo.sde.NoiseKernel`.
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

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The population at the time of the noise."""
        group, g = posterior.group, population.elements
        kernel = NoiseKernel(group, self.schedule, self.noise_steps)
        w, _ = kernel.sample(*g.shape[:2], t=self.time, generator=generator, dtype=g.dtype, device=g.device)
        noised = group.compose(g, w) if self.side == "restored" else group.compose(group.inverse(w), g)
        return replace(population.moved(noised), time=self.time)
