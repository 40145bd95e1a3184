"""A TIED search with settings that were measured, in a given time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy
from trivgeo.inversion.energies.prior import PriorEnergy
from trivgeo.inversion.energy_measurement import EnergyMeasurement
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.law import Law, spread_of
from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.stage import Stage, StageLike, run_stages
from trivgeo.inversion.stages.add_noise import AddNoise
from trivgeo.inversion.stages.descend import Descend
from trivgeo.inversion.stages.descent_rules import Adam
from trivgeo.inversion.stages.gaussian_search import DRAWN_TOGETHER, GaussianSearch
from trivgeo.inversion.stages.reverse_diffusion import ReverseDiffusion
from trivgeo.inversion.stages.select import Select

__all__ = ["TimedSearch", "num_affordable", "timed_search"]

# for each chain of the diffusion: elements drawn, and of the best of them how many descend, so many steps of a size
_DRAWS, _TRIED = 128, ((8, 6, 0.1), (3, 10, 0.07))
_STEPS, _NUM_MC, _REHEAT, _HALVED = 10, 2, 0.3, 0.2
_LAST, _LAST_STEP = 30, 0.03
_OF_CHAIN = 130  # gradients, and what its draws take, in gradients
_MOST = 8
_CAREFUL = 0.6  # share of the time that is planned
_TOGETHER = 1024
"""Energies evaluated at once."""


def timed_search(
    action: Action,
    energy: DataEnergy | Callable[[Any], Tensor],
    law: Law,
    measured: EnergyMeasurement,
    seconds: float,
    seed: int,
) -> Inverter:
    """Return the inverter of `TIED.for_data`.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, see `Inverter`.
        law: function (count, generator) to elements ``[count, *element_shape]``, see `LearnedInverter.fit`.
        seconds: time of one call.
        seed: of all random numbers.
        measured: of the energy.
    """
    suggested = measured.suggested
    expected = PriorEnergy(energy, spread_of(action.group, law, seed), suggested.temperature)
    return Inverter(
        action.with_scale(suggested.scale), expected, [TimedSearch(measured, seconds)], max_evaluations=_TOGETHER
    )


def num_affordable(measured: EnergyMeasurement, seconds: float) -> int:
    """Return the number of data that `timed_search` can invert in ``seconds`` by its shortest search.

    Args:
        measured: of the energy.
        seconds: the time.
    """
    return int(_CAREFUL * seconds / ((_OF_CHAIN + _LAST) * measured.seconds))


class TimedSearch(Stage):
    """The stages of `TIED.for_data`, with the chains of each datum that a time allows.

    Args:
        measured: of the energy.
        seconds: for all data together.
    """

    def __init__(self, measured: EnergyMeasurement, seconds: float) -> None:
        self.measured = measured
        self.seconds = seconds
        self.steps = -(-_MOST * _DRAWS // DRAWN_TOGETHER) + sum(steps for _, steps, _ in _TRIED) + _STEPS + _LAST

    def stages(self, batch: int) -> list[StageLike]:
        """Return the stages of a search in ``batch`` data that takes the given time."""
        gradients = _CAREFUL * self.seconds / (batch * self.measured.seconds)
        chains = min(_MOST, max(1, int((gradients - _LAST) / _OF_CHAIN)))
        temperature, schedule = self.measured.suggested.temperature, self.measured.suggested.schedule
        pruning = [(_HALVED, chains // 2)] if chains > 1 else []
        tried: list[StageLike] = []
        for number, steps, step in _TRIED:
            tried += [Select(number * chains), Descend(steps, Adam(step))]
        return [
            GaussianSearch(_DRAWS * chains, _TRIED[0][0] * chains, 1.0),
            *tried,
            Select(chains),
            AddNoise(schedule, _STEPS, _REHEAT),
            ReverseDiffusion(schedule, _STEPS, _NUM_MC, temperature, None, keep_best=True, pruning=pruning),
            Select(1),
            Descend(_LAST, Adam(_LAST_STEP)),
        ]

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The best that was found for each datum."""
        return run_stages(self.stages(posterior.batch), posterior, population, generator)
