"""The search of `TIED.for_data`, whose settings were measured on clean data, and what a trial tells of its results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.groups import Action
from trivgeo.inversion.agreement import UNUSABLE
from trivgeo.inversion.energies.base import DataEnergy
from trivgeo.inversion.energies.wrapped import PriorEnergy
from trivgeo.inversion.energy_measurement import EnergyProfile
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.result import InversionResult
from trivgeo.inversion.stage import Population, Stage, StageLike, run_stages
from trivgeo.inversion.stages.chains import AddNoise, Select
from trivgeo.inversion.stages.descend import Adam, Descend
from trivgeo.inversion.stages.gaussian_search import DRAWN_TOGETHER, GaussianSearch
from trivgeo.inversion.stages.reverse_diffusion import ReverseDiffusion
from trivgeo.verdict import Verdict

_NUM_DRAWS = 128  # elements drawn
_DESCENTS = ((8, 6, 0.1), (3, 10, 0.07))  # (number of the best elements, steps, learning rate) of each descent
_DIFFUSION_STEPS, _NUM_NOISE_SAMPLES = 10, 2
_REHEAT_TIME, _PRUNING_TIME = 0.3, 0.2  # times of the noise, in [0, 1]
_LAST_STEPS, _LAST_LEARNING_RATE = 30, 0.03
_COST_PER_CHAIN = 130  # gradient evaluations, draws included
_MAX_CHAINS = 8
_PLANNED_SHARE = 0.6  # share of the time that is planned
_MAX_EVALUATIONS = 1024  # energies evaluated at once

_TRIAL_CHAINS = 2  # chains of each datum of a trial
_MIN_KNOWN = 8  # restored clean data below which their energies say nothing of others
_DEPTH_SHARE = 0.5  # height above the energies of clean data, in units of the median rise of moved ones

ALIKE = "data are like the clean ones of the search, and moved by such transformations"
"""Assumption of a search for data."""
TOO_HIGH = "the energy of the restored datum is nearer to those of moved data than to those of clean ones"
"""Reason against a result of such a search."""


class DataSearch(Stage):
    """The stages of `TIED.for_data`.

    Args:
        profile: measurement of the energy.
        seconds: time for all data, which says how many chains each has; ``None`` for two, as a trial has on every
            machine.
    """

    def __init__(self, profile: EnergyProfile, seconds: float | None) -> None:
        self.profile = profile
        self.seconds = seconds
        descents = sum(steps for _, steps, _ in _DESCENTS) + _LAST_STEPS
        self.steps = -(-_MAX_CHAINS * _NUM_DRAWS // DRAWN_TOGETHER) + descents + _DIFFUSION_STEPS

    def inverter(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        spread: Float[Tensor, "n n"],
        known: KnownSearch | None = None,
    ) -> Inverter:
        """Return the inverter of this stage, for the energy with a prior of unit spread in the basis ``spread``.

        Args:
            known: what is known of its results.
        """
        expected = PriorEnergy(energy, spread, self.profile.temperature)
        found = Inverter(action.with_scale(self.profile.scale), expected, [self], max_evaluations=_MAX_EVALUATIONS)
        found.known = known
        return found

    def num_chains(self, batch: int) -> int:
        """Return the number of chains of each of ``batch`` data."""
        if self.seconds is None:
            return _TRIAL_CHAINS
        gradients = _PLANNED_SHARE * self.seconds / (max(1, batch) * self.profile.seconds)
        return min(_MAX_CHAINS, max(1, int((gradients - _LAST_STEPS) / _COST_PER_CHAIN)))

    def stages(self, batch: int) -> list[StageLike]:
        """Return the stages of a search in ``batch`` data."""
        chains = self.num_chains(batch)
        temperature, schedule = self.profile.temperature, self.profile.schedule
        pruning = [(_PRUNING_TIME, chains // 2)] if chains > 1 else []
        descents: list[StageLike] = []
        for number, steps, learning_rate in _DESCENTS:
            descents += [Select(number * chains), Descend(steps, Adam(learning_rate))]
        return [
            GaussianSearch(_NUM_DRAWS * chains, _DESCENTS[0][0] * chains, 1.0),
            *descents,
            Select(chains),
            AddNoise(schedule, _DIFFUSION_STEPS, _REHEAT_TIME),
            ReverseDiffusion(
                schedule, _DIFFUSION_STEPS, _NUM_NOISE_SAMPLES, temperature, None, keep_best=True, pruning=pruning
            ),
            Select(1),
            Descend(_LAST_STEPS, Adam(_LAST_LEARNING_RATE)),
        ]

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        return run_stages(self.stages(posterior.batch), posterior, population, generator)


@dataclass(frozen=True)
class KnownSearch:
    """What is known of the results of a search before it runs.

    Attributes:
        verdict: verdict on the search, from a trial on clean data.
        highest: energy of a restored datum above which it is unlike clean ones; infinite where that is not known.
    """

    verdict: Verdict
    highest: float = math.inf

    @staticmethod
    def of_trial(verdict: Verdict, energies: Float[Tensor, " n"], depth: float) -> KnownSearch:
        """Return what a trial tells of other data.

        Args:
            verdict: verdict of the trial.
            energies: energies of the restored data whose transformations were found.
            depth: median rise of the energy of clean data when they are moved.
        """
        known = energies[torch.isfinite(energies)]
        if len(known) < _MIN_KNOWN:
            return KnownSearch(verdict)
        usual, highest = float(known.median()), float(known.max())
        rise = _DEPTH_SHARE * depth if depth > 0.0 else 0.0  # NaN where nothing is known
        return KnownSearch(verdict, max(2.0 * highest - usual, usual + rise))

    def __call__(self, result: InversionResult) -> tuple[Verdict, ...]:
        """Return the verdict on each datum of a result."""
        said = self.verdict & Verdict((), (ALIKE,))
        usable, high = result.has_usable, result.best_energy() > self.highest
        rows = torch.stack([usable, high], -1).tolist()
        return tuple(
            said & Verdict((UNUSABLE,) if not is_usable else (TOO_HIGH,) if is_high else ())
            for is_usable, is_high in rows
        )
