"""The published search of transformation-inverting energy diffusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from torch import Tensor

from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.posterior import check_action
from trivgeo.inversion.stages.chains import AddNoise, Replicate
from trivgeo.inversion.stages.reverse_diffusion import ReverseDiffusion, ReverseDiffusionOptions, ScoreBound
from trivgeo.sde import GeometricSchedule, Schedule, Stepper

_SETTINGS = ("schedule", "steps", "num_mc", "num_hypotheses", "temperature", "max_score_norm")


@checked
class ReverseDiffusionSearch(Inverter):
    r"""Searches the transformation posterior by reversing a trivialized diffusion (Kim et al. 2026, algorithm 1).

    For each datum K independent chains start from noise, and follow the score of :math:`p(g \mid \tilde x) \propto
    e^{-E(g) / T}`. The result has the ends of all chains; `InversionResult.best` is the element of lowest energy. The
    method is a search: the share of chains in a well is not the posterior weight of the well, since few noise samples
    estimate the score (see `ReverseDiffusion`). For weights use `PosteriorSampler`. ``keep_best``, ``pruning``, and a
    `Descend` after the method make the search more precise. `TIED` finds more by as many evaluations on most energies.
    Stages: `Replicate`, `AddNoise`, `ReverseDiffusion`.

    ```python
    search = ReverseDiffusionSearch(action, energy, GeometricSchedule(0.05, 0.7), keep_best=True, pruning=[(0.5, 8)])
    sharper = search.then(Descend(50))
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
                    f"{', '.join(sorted(unknown))}: expected no stepper: this is a search, also with resampled chains; "
                    "samples with weights come from PosteriorSampler, other steppers are for `trivgeo.sde.solve`"
                )
            raise ConfigurationError(
                f"settings: expected some of {', '.join((*_SETTINGS, *known))}, got {', '.join(sorted(unknown))}; "
                "replace(...) sets what all inverters share, such as max_evaluations"
            )
        schedule = GeometricSchedule(*check_action(action).noise_range) if schedule is None else schedule
        stage = ReverseDiffusion(schedule, steps, num_mc, temperature, max_score_norm, **reverse)
        start = Replicate(num_hypotheses)
        stage.check_size(num_hypotheses)
        super().__init__(action, as_energy(energy), [start, AddNoise(schedule, steps, side=stage.side), stage])
