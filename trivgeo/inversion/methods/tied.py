"""Transformation-inverting energy diffusion (TIED)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.checks import check_positive, checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.energies.wrapped import PriorEnergy
from trivgeo.inversion.energy_measurement import EnergyProfile, measure_energy
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.posterior import Posterior, check_action
from trivgeo.inversion.stage import Population, Stage, StageLike, run_stages
from trivgeo.inversion.stages.chains import AddNoise, Replicate, Select
from trivgeo.inversion.stages.descend import Adam, Descend
from trivgeo.inversion.stages.gaussian_search import DRAWN_TOGETHER, GaussianSearch
from trivgeo.inversion.stages.reverse_diffusion import ReverseDiffusion, ReverseDiffusionOptions, ScoreBound
from trivgeo.inversion.transformations import Transformations, spread_of
from trivgeo.sde import GeometricSchedule, Schedule, Stepper

_SETTINGS = ("schedule", "steps", "num_mc", "num_hypotheses", "temperature", "max_score_norm")
# a chain of the search of `TIED.for_data`
_NUM_DRAWS = 128  # elements drawn
_DESCENTS = ((8, 6, 0.1), (3, 10, 0.07))  # (number of the best elements, steps, learning rate) of each descent
_DIFFUSION_STEPS, _NUM_NOISE_SAMPLES = 10, 2
_REHEAT_TIME, _PRUNING_TIME = 0.3, 0.2  # times of the noise, in [0, 1]
_LAST_STEPS, _LAST_LEARNING_RATE = 30, 0.03
_COST_PER_CHAIN = 130  # gradient evaluations, draws included
_MAX_CHAINS = 8
_PLANNED_SHARE = 0.6  # share of the time that is planned
_MAX_EVALUATIONS = 1024  # energies evaluated at once


@checked
class TIED(Inverter):
    r"""Searches the transformation posterior by reversing a trivialized diffusion (Kim et al. 2026, algorithm 1).

    For each datum K independent chains start from noise, and follow the score of :math:`p(g \mid \tilde x) \propto
    e^{-E(g) / T}`. The result has the ends of all chains; `InversionResult.best` is the element of lowest energy. The
    method is a search: the share of chains in a well is not the posterior weight of the well, since few noise samples
    estimate the score (see `ReverseDiffusion`). For weights use `PosteriorSampler`. ``keep_best``, ``pruning``, and a
    `Descend` after the method make the search more precise. Stages: `Replicate`, `AddNoise`, `ReverseDiffusion`.

    ```python
    TIED(action, energy, GeometricSchedule(0.05, 0.7), keep_best=True, pruning=[(0.5, 8)]).then(Descend(50))
    ```

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        schedule: the noise; by default geometric over `Action.noise_range`, from 0.1 to 1 for points and from 0.01 to
            0.35 for images. Its largest coefficient should reach the transformations that are expected.
        steps: number M of reverse steps.
        num_mc: number N of noise samples of one score, see `ReverseDiffusion`.
        num_hypotheses: number K of chains.
        temperature: T of the density :math:`e^{-E(g) / T}`, see `ReverseDiffusion`.
        max_score_norm: longer scores are shortened to this length, see `ReverseDiffusion`.
        reverse: see `ReverseDiffusion`: ``side``, ``keep_best``, ``pruning``, ``published``. Settings of
            every inverter, such as ``max_evaluations``, come by `Inverter.replace`.

    Raises:
        ConfigurationError: a setting is unknown or out of its range, or an argument is not an action or an energy.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        schedule: Schedule | None = None,
        steps: int = 50,
        num_mc: int = 2,
        num_hypotheses: int = 16,
        temperature: float = 1.0,
        max_score_norm: ScoreBound = "adaptive",
        **reverse: Unpack[ReverseDiffusionOptions],
    ) -> None:
        known = ReverseDiffusionOptions.__annotations__
        if unknown := reverse.keys() - known.keys():
            if any(isinstance(value, Stepper) for value in reverse.values()):
                raise ConfigurationError(
                    f"{', '.join(sorted(unknown))}: expected no stepper: TIED is a search, also with resampled chains; "
                    "samples with weights come from PosteriorSampler, other steppers are for `trivgeo.sde.solve`"
                )
            raise ConfigurationError(
                f"settings: expected some of {', '.join((*_SETTINGS, *known))}, got {', '.join(sorted(unknown))}; "
                "TIED(...).replace(...) sets what all inverters share, such as max_evaluations"
            )
        schedule = GeometricSchedule(*check_action(action).noise_range) if schedule is None else schedule
        stage = ReverseDiffusion(schedule, steps, num_mc, temperature, max_score_norm, **reverse)
        start = Replicate(num_hypotheses)
        stage.check_size(num_hypotheses)
        super().__init__(action, as_energy(energy), [start, AddNoise(schedule, steps, side=stage.side), stage])

    @staticmethod
    def for_data(
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        clean: Any,
        transformations: Transformations,
        *,
        seconds: float = 60.0,
        seed: int = 0,
    ) -> Inverter:
        """Return a search with the settings that `check_energy` suggests; a call takes about the given time.

        `check_energy` tells whether it finds the transformations, and whether a network is right after it.

        The energy has a `PriorEnergy` added, as wide as the transformations, at the temperature suggested. Stages:
        `GaussianSearch` many elements, `Descend` from fewer and fewer of the best, go on from there by `AddNoise` and
        `ReverseDiffusion` (``keep_best``, ``pruning``), `Select` the lowest, and `Descend`; as many of them as the time
        allows for the data at hand.

        The prior penalises transformations that erase a datum, for every action. The frame weight suggested for images
        is left to searches without a distribution: beside the prior, or in its place, it also penalises the right
        transformation where transformations move much out of the frame; a tenth fewer of the digits of the examples
        are then recognised.

        Args:
            action: the action on data.
            energy: function or module from a batch of data to energies ``[batch]``, see `Inverter`.
            clean: clean data, one batch dimension.
            transformations: function (count, generator) to elements ``[count, *element_shape]``, see
                `LearnedInverter.fit`.
            seconds: time of one call, on this machine as busy as it is now; small batches take less.
            seed: seed of all random numbers.

        Raises:
            ConfigurationError: the time is not positive, or as `check_energy`, also for other errors.
        """
        check_positive("seconds", seconds)
        profile = measure_energy(action, energy, clean, transformations, seed=seed)
        return TimedSearch(profile, seconds).inverter(action, energy, spread_of(action.group, transformations, seed))


class TimedSearch(Stage):
    """The stages of `TIED.for_data`, with the chains of each datum that ``seconds`` for all data allow."""

    def __init__(self, profile: EnergyProfile, seconds: float) -> None:
        self.profile = profile
        self.seconds = seconds
        descents = sum(steps for _, steps, _ in _DESCENTS) + _LAST_STEPS
        self.steps = -(-_MAX_CHAINS * _NUM_DRAWS // DRAWN_TOGETHER) + descents + _DIFFUSION_STEPS

    def inverter(
        self, action: Action, energy: DataEnergy | Callable[[Any], Tensor], spread: Float[Tensor, "n n"]
    ) -> Inverter:
        """Return the inverter of this stage, for the energy with a prior of unit spread in the basis ``spread``."""
        expected = PriorEnergy(energy, spread, self.profile.temperature)
        return Inverter(action.with_scale(self.profile.scale), expected, [self], max_evaluations=_MAX_EVALUATIONS)

    @property
    def num_affordable(self) -> int:
        """The number of data that the shortest search can invert in the time."""
        return int(_PLANNED_SHARE * self.seconds / ((_COST_PER_CHAIN + _LAST_STEPS) * self.profile.seconds))

    def stages(self, batch: int) -> list[StageLike]:
        """Return the stages of a search in ``batch`` data."""
        gradients = _PLANNED_SHARE * self.seconds / (batch * self.profile.seconds)
        chains = min(_MAX_CHAINS, max(1, int((gradients - _LAST_STEPS) / _COST_PER_CHAIN)))
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
