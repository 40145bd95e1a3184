"""TIED: the search of this library, for any action and any energy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from trivgeo._timing import deadline_after
from trivgeo.checks import check_positive, checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.energies.wrapped import PriorEnergy
from trivgeo.inversion.energy_check import KnownSearch, measured_search
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.posterior import check_action
from trivgeo.inversion.stages.adaptive_search import AdaptiveSearch
from trivgeo.inversion.transformations import Transformations, spread_of
from trivgeo.verdict import Verdict

_SEED = 0  # of the trial on clean data


@checked
class TIED(Inverter):
    r"""Searches for the transformation of lowest energy, with a given number of evaluations.

    It solves the problem of transformation-inverting energy diffusion (Kim et al. 2026) without settings that depend on
    the energy. Elements are drawn at random, quasi-Newton descents go on from the best of them, and fewer and fewer of
    these go on: the stage `AdaptiveSearch`. ``result.report`` says what was chosen. The published algorithm is
    `ReverseDiffusionSearch`. The number of descents that end in a well is not its posterior weight: for weights use
    `PosteriorSampler`.

    With ``transformations`` elements are drawn from this distribution, and lengths are in units of its spread. With
    ``clean`` data as well the search is tried on them before, as by `check_energy`, and again with its own
    ``evaluations`` if the trial fails with fewer: where it does not find their transformations no result is
    ``trusted``, and ``reasons`` say so. A datum whose energy stays nearer to those of
    moved data than to those of clean ones is not trusted either. The energy then has a `PriorEnergy` added, as wide as
    the transformations, which penalises transformations that erase a datum.

    ```python
    TIED(action, energy)
    TIED(action, energy, transformations, clean, evaluations=2000)
    ```

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        transformations: function (count, generator) to elements ``[count, *element_shape]``, such as those of
            `trivgeo.inversion.transformations`; ``None`` if nothing is known of them.
        clean: clean data, one batch dimension.
        evaluations: number of energies, with or without gradient, of each datum.
        seconds: time of a call; where it is short fewer energies are evaluated. The measurement of clean data and the
            trial on them, both together, take no longer either: on fewer data, or none, and then no result is trusted.
        max_memory: memory in GiB that energies may take at once, see `Inverter`.
        scales: standard deviations of the draws without ``transformations``, in units of the group's basis; by default
            0.1, 0.3 and 1.
        num_hypotheses: number of descents that begin; by default as many as the evaluations allow.
        temperature: weight of the prior, see `PriorEnergy`; 0 for none; by default one measured on ``clean`` data,
            none without them.

    Raises:
        ConfigurationError: a setting is out of its range, or an argument is not an action or an energy; clean data or a
            prior without transformations; or as `check_energy`, also for other errors.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        transformations: Transformations | None = None,
        clean: Any = None,
        *,
        evaluations: int = 1000,
        seconds: float | None = None,
        max_memory: float | None = None,
        scales: Sequence[float] | None = None,
        num_hypotheses: int | None = None,
        temperature: float | None = None,
    ) -> None:
        stage = AdaptiveSearch(evaluations, transformations, scales, num_hypotheses)
        given, expected = check_action(action), as_energy(energy)
        known: KnownSearch | None = None
        if seconds is not None:
            check_positive("seconds", seconds)
        if transformations is None:
            for name, value in (("clean", clean), ("temperature", temperature or None)):
                if value is not None:
                    raise ConfigurationError(f"transformations: expected a distribution beside {name}, got None")
        else:
            spread = spread_of(action.group, transformations, _SEED)
            given = action.with_scale(spread)
            if clean is not None:
                profile, trial = measured_search(
                    action,
                    energy,
                    clean,
                    transformations,
                    None,
                    _SEED,
                    max_memory,
                    deadline_after(seconds),
                    evaluations,
                )
                if profile is not None:
                    given = action.with_scale(profile.scale)
                    temperature = profile.temperature if temperature is None else temperature
                if profile is None or trial is None:
                    known = KnownSearch(Verdict((f"{seconds:g} s were too short to try the search on clean data",)))
                else:
                    known = trial.known(profile.depth)
            if temperature:
                expected = PriorEnergy(expected, spread, temperature)
        super().__init__(given, expected, [stage], max_memory=max_memory, seconds=seconds)
        self.known = known
