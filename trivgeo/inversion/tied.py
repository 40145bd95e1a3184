"""Transformation-inverting energy diffusion, and the stage that it is made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from trivgeo.checks import check_choice, check_count, check_positive, check_type
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action, LieGroup
from trivgeo.inversion.check import EnergyCheck, check_energy
from trivgeo.inversion.descent import Adam, Descend
from trivgeo.inversion.energy import DataEnergy, as_energy
from trivgeo.inversion.inverter import Inverter, Stage, StageLike
from trivgeo.inversion.law import Law, spread_of
from trivgeo.inversion.posterior import GivenPosterior, lower_rows, rows_like
from trivgeo.inversion.prior import PriorEnergy
from trivgeo.inversion.result import Population
from trivgeo.inversion.search import DRAWN_TOGETHER, Draw
from trivgeo.inversion.stages import Choose, Noise, Side, Start
from trivgeo.sde import (
    Accumulator,
    EnergyScore,
    GeometricSchedule,
    NoiseKernel,
    Schedule,
    StepState,
    reverse_process,
    solve,
    uniform_grid,
)
from trivgeo.sde.scores import EnergySamples

__all__ = ["TIED", "Reverse"]

_TIME_TOLERANCE = 1e-9

# for each chain of the diffusion: elements drawn, and of the best of them how many descend, so many steps of a size
_DRAWS, _TRIED = 128, ((8, 6, 0.1), (3, 10, 0.07))
_STEPS, _NUM_MC, _REHEAT, _HALVED = 10, 2, 0.3, 0.2
_LAST, _LAST_STEP = 30, 0.03
_OF_CHAIN = 130  # gradients, and what its draws take, in gradients
_MOST = 8
_CAREFUL = 0.6  # share of the time that is planned
_TOGETHER = 1024


class Reverse(Stage):
    r"""Takes the noise off a population by the reverse diffusion with the Monte Carlo score of :math:`e^{-E(g) / T}`.

    From the time of the population (see `Noise`) to 0, E the posterior energy. A step :math:`g \exp v` moves the
    restored datum, :math:`(g \exp v)^{-1} \tilde x = \exp(-v)\, g^{-1} \tilde x`: the noise is small or large against
    what the restored data look like. With ``side="given"`` the steps are :math:`\exp(v)\, g`, which move the given
    datum, :math:`g^{-1} \exp(-v)\, \tilde x`: the same diffusion for :math:`h = g^{-1}`, whose density for left Haar
    measure is :math:`p(h^{-1}) / \lambda(h)`, so that T is sampled all the same. Where the noise is
    narrow against the transformation the side decides how much is found; where it is wide it does not.

    Where only the best is wanted, ``keep_seen`` and ``pruning`` get more from every evaluation: a search, no longer a
    sample of the posterior.

    Args:
        schedule: see `TIED`.
        steps: number M of steps.
        num_mc: number N of noise samples of one score. With few of them the wells that are found are right, but wide
            ones get more than their share: for weights of modes take dozens.
        temperature: T, positive.
        max_score_norm: longer scores are shortened to this length; ``None`` for no bound.
        side: which datum a step moves, ``"restored"`` or ``"given"``; that of the noise.
        keep_seen: return of each chain the element of lowest energy among all that were evaluated for its scores, in
            place of its end.
        pruning: pairs (t, k): when the noise has fallen to time t, go on with those k chains of each datum that have
            met the lowest energies.
        published: as printed in Kim et al. (2026), algorithm 1: without the correction on non-unimodular groups (see
            `trivgeo.sde.reverse_process`), and with one set of noise samples for the whole batch of data.

    Raises:
        ConfigurationError: a count below one, a temperature or bound that is not positive, an unknown side, or
            ``pruning`` is not decreasing; or (when run) the population has no noise on it, or fewer chains than that.
    """

    def __init__(
        self,
        schedule: Schedule | None = None,
        steps: int = 50,
        num_mc: int = 2,
        temperature: float = 1.0,
        max_score_norm: float | None = 100.0,
        side: Side = "restored",
        keep_seen: bool = False,
        pruning: Sequence[tuple[float, int]] = (),
        published: bool = False,
    ) -> None:
        self.schedule = check_type("schedule", schedule or GeometricSchedule(0.1, 1.0), Schedule)  # type: ignore[type-abstract]
        self.steps = check_count("steps", steps)
        self.num_mc = check_count("num_mc", num_mc)
        self.temperature = check_positive("temperature", temperature)
        self.max_score_norm = None if max_score_norm is None else check_positive("max_score_norm", max_score_norm)
        self.side = check_choice("side", side, ("restored", "given"))
        self.keep_seen = keep_seen
        self.pruning = _check_pruning(pruning)
        self.published = published
        self._segments(1.0)

    def __call__(
        self, posterior: GivenPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The population without noise.

        Raises:
            ConfigurationError: the population has no noise on it, or too few chains to prune.
        """
        if population.time == 0.0:
            raise ConfigurationError("Reverse: expected a population with noise on it; put Noise before it")
        self.check_size(population.size)
        chain = _Chain(posterior, self.temperature, self.side)
        kernel = NoiseKernel(chain.group, self.schedule, self.steps)
        score = EnergyScore(chain.energy, kernel, self.num_mc, shared_noise=self.published)
        process = reverse_process(
            chain.group,
            self.schedule,
            score,
            modular_drift=not self.published,
            max_score_norm=self.max_score_norm,
        )
        population = population.moved(chain.swapped(population.elements))
        nothing = population.elements.new_full(population.failures.shape, torch.inf)
        seen = _Seen(chain, population.elements, nothing) if self.keep_seen or self.pruning else None
        for size, times in self._segments(population.time):
            if seen is not None and size is not None:
                index = seen.lowest(size)
                population, seen = population.take(index), seen.take(index)
            solution = solve(
                process,
                population.elements,
                times,
                generator=generator,
                accumulator=seen,
                observe=lambda index, t, g: posterior.step() if index else None,
            )
            population = population.moved(solution.final, masked=solution.num_masked_steps)
            if seen is not None:
                seen = _Seen(chain, *solution.accumulated)
        population = replace(population.moved(chain.swapped(population.elements)), time=0.0)
        if not self.keep_seen:
            return population
        assert seen is not None
        return population.evaluated(posterior).or_lower(chain.swapped(seen.elements), seen.energies)

    def check_size(self, number: int) -> None:
        """Raise `ConfigurationError` unless so many chains can be pruned."""
        if self.pruning and self.pruning[0][1] >= number:
            raise ConfigurationError(
                f"pruning: expected numbers below num_hypotheses = {number}, got {[k for _, k in self.pruning]}"
            )

    def _segments(self, start: float) -> list[tuple[int | None, list[float]]]:
        """The parts of the grid between prunings, and the number of chains of each; ``None`` for all."""
        times = uniform_grid(self.steps, start, 0.0)
        starts: list[int] = [0]
        for t, _ in self.pruning:
            place = next((i for i, node in enumerate(times) if node <= t + _TIME_TOLERANCE), 0)
            if not starts[-1] < place < len(times) - 1:
                raise ConfigurationError(
                    f"pruning: expected falling times in (0, {start:g}) on different steps, got {list(self.pruning)}"
                )
            starts.append(place)
        ends = [*starts[1:], len(times) - 1]
        sizes = [None, *(k for _, k in self.pruning)]
        return [(k, times[a : b + 1]) for k, a, b in zip(sizes, starts, ends, strict=True)]


class ReverseOptions(TypedDict, total=False):
    """Further options of `Reverse`, which see."""

    side: Side
    keep_seen: bool
    pruning: Sequence[tuple[float, int]]
    published: bool


_SETTINGS = ("schedule", "steps", "num_mc", "num_hypotheses", "temperature", "max_score_norm")


class TIED(Inverter):
    r"""Samples the transformation posterior by reversing a trivialized diffusion (Kim et al. 2026, algorithm 1).

    For each datum K independent chains start from the noise kernel k_1 and follow the score of
    :math:`p(g \mid \tilde x) \propto e^{-E(g) / T}`: the stages `Start`, `Noise`, `Reverse`, whose arguments these
    are. The whole sample is returned; `InversionResult.best` keeps the lowest energy, which is equivariant too. Where
    only that is wanted, ``keep_seen`` and ``pruning``, and a `Descend` after it, make it a search.

    ```python
    TIED(action, energy, GeometricSchedule(0.05, 0.7), keep_seen=True, pruning=[(0.5, 8)]).then(Descend(50))
    ```

    Args:
        action: the action on data.
        energy: see `Inverter`.
        schedule: the noise; default geometric from 0.1 to 1.
        steps: number M of reverse steps.
        num_mc: see `Reverse`.
        num_hypotheses: number K of chains.
        temperature: see `Reverse`.
        max_score_norm: see `Reverse`.
        reverse: see `Reverse`: ``side``, ``keep_seen``, ``pruning``, ``published``. Settings of every inverter, such
            as ``max_evaluations``, come by `Inverter.replace`.

    Raises:
        ConfigurationError: a setting unknown or out of its range, or an action or energy that is none.
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
        max_score_norm: float | None = 100.0,
        **reverse: Unpack[ReverseOptions],
    ) -> None:
        known = ReverseOptions.__annotations__
        if unknown := reverse.keys() - known.keys():
            raise ConfigurationError(
                f"settings: expected some of {', '.join((*_SETTINGS, *known))}, got {', '.join(sorted(unknown))}; "
                "those of every inverter are set by replace(...)"
            )
        stage = Reverse(schedule, steps, num_mc, temperature, max_score_norm, **reverse)
        start = Start(num_hypotheses)
        stage.check_size(num_hypotheses)
        super().__init__(action, as_energy(energy), [start, Noise(schedule, steps, side=stage.side), stage])

    @staticmethod
    def for_data(
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        clean: Any,
        law: Law,
        *,
        seconds: float = 60.0,
        seed: int = 0,
    ) -> Inverter:
        """A search with the settings that `check_energy` suggests, which takes about a given time for a call.

        The energy has a `PriorEnergy` of the law added, at the temperature suggested. Stages: `Draw` many elements,
        `Descend` from fewer and fewer of the best, go on from there by `Noise` and `Reverse` (``keep_seen``,
        ``pruning``), `Choose` the lowest, and `Descend`; as many of them as the time allows for the data at hand.

        The prior holds back what leaves nothing of a datum for every action. The frame weight that is suggested for
        images is left to searches without a law: beside the prior, or in its place, it also holds back the
        transformation that is sought where the law moves much out of the frame: of the digits of the examples a tenth
        fewer are then recognised.

        Args:
            action: see `check_energy`, also for ``energy``, ``clean``, ``law``, ``seed`` and what is raised.
            seconds: of one call, on this machine as busy as it is now; small batches take less.

        Raises:
            ConfigurationError: the time is not positive.
        """
        check_positive("seconds", seconds)
        check = check_energy(action, energy, clean, law, seed=seed)
        suggested = check.suggested
        expected = PriorEnergy(energy, spread_of(action.group, law, seed), suggested.temperature)
        return Inverter(
            action.with_scale(suggested.scale), expected, [Timed(check, seconds)], max_evaluations=_TOGETHER
        )


class Timed(Stage):
    """The stages of `TIED.for_data`, with the chains of each datum that a time allows.

    Args:
        check: of the energy.
        seconds: for all data together.
    """

    def __init__(self, check: EnergyCheck, seconds: float) -> None:
        self.check = check
        self.seconds = seconds
        self.steps = -(-_MOST * _DRAWS // DRAWN_TOGETHER) + sum(steps for _, steps, _ in _TRIED) + _STEPS + _LAST

    def stages(self, batch: int) -> list[StageLike]:
        """What is done for a number of data."""
        gradients = _CAREFUL * self.seconds / (batch * self.check.seconds)
        chains = min(_MOST, max(1, int((gradients - _LAST) / _OF_CHAIN)))
        temperature, schedule = self.check.suggested.temperature, self.check.suggested.schedule
        pruning = [(_HALVED, chains // 2)] if chains > 1 else []
        tried: list[StageLike] = []
        for number, steps, step in _TRIED:
            tried += [Choose(number * chains), Descend(steps, Adam(step))]
        return [
            Draw(_DRAWS * chains, _TRIED[0][0] * chains, 1.0),
            *tried,
            Choose(chains),
            Noise(schedule, _STEPS, _REHEAT),
            Reverse(schedule, _STEPS, _NUM_MC, temperature, None, keep_seen=True, pruning=pruning),
            Choose(1),
            Descend(_LAST, Adam(_LAST_STEP)),
        ]

    def __call__(
        self, posterior: GivenPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The best that was found for each datum."""
        for stage in self.stages(posterior.batch):
            population = stage(posterior, population, generator)
        return population


def _check_pruning(pruning: Sequence[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """The pairs, their numbers falling."""
    pairs = []
    for pair in pruning:
        try:
            t, k = pair
        except (TypeError, ValueError):
            raise ConfigurationError(f"pruning: expected pairs (time, hypotheses), got {pair!r}") from None
        pairs.append((float(t), check_count("pruning", k)))
    if any(b[1] >= a[1] for a, b in itertools.pairwise(pairs)):
        raise ConfigurationError(f"pruning: expected falling numbers of hypotheses, got {pairs}")
    return tuple(pairs)


class _Chain:
    """The group on which the steps multiply from the right, and the energy there: g itself, or its inverse."""

    def __init__(self, posterior: GivenPosterior, temperature: float, side: Side) -> None:
        self.group: LieGroup = posterior.group
        self._posterior = posterior
        self._temperature = temperature
        self._inverted = side == "given"
        self._modular = self._inverted and not self.group.algebra.is_unimodular

    def swapped(self, elements: Tensor) -> Tensor:
        """From elements to those of the chain, and back."""
        return self.group.inverse(elements) if self._inverted else elements

    def energy(self, elements: Tensor) -> Tensor:
        """Minus the logarithm of the target's density for left Haar measure, differentiable."""
        energy = self._posterior.differentiable(self.swapped(elements)) / self._temperature
        return energy + self.group.log_modular(elements) if self._modular else energy

    def posterior_energy(self, samples: EnergySamples) -> Tensor:
        """The posterior energies of what a score evaluated; infinite where masked."""
        energy = samples.energy
        if self._modular:
            energy = energy - self.group.log_modular(samples.elements)
        return torch.where(samples.finite, self._temperature * energy, torch.inf)


@dataclass(frozen=True)
class _Seen(Accumulator):
    """The lowest energy that each chain has met, and where; folded over the steps of a solve.

    Attributes:
        chain: of which.
        elements: ``[b, K, *element_shape]``.
        energies: the posterior energies there, ``[b, K]``.
    """

    chain: _Chain
    elements: Tensor
    energies: Tensor

    def init(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """What was seen before the solve."""
        return self.elements, self.energies

    def update(self, seen: tuple[Tensor, Tensor], step: StepState) -> tuple[Tensor, Tensor]:
        """Take in the samples of one score."""
        elements, energies = seen
        for samples in step.parts(EnergySamples):
            energy, index = self.chain.posterior_energy(samples).min(-1)
            wide = rows_like(index.unsqueeze(-1), samples.elements)
            found = torch.take_along_dim(samples.elements, wide, index.ndim).squeeze(index.ndim)
            elements, energies = lower_rows(elements, energies, found, energy)
        return elements, energies

    def lowest(self, number: int) -> Tensor:
        """The chains of each datum that have met the lowest energies, ``[b, number]``."""
        return self.energies.topk(number, dim=1, largest=False).indices

    def take(self, index: Tensor) -> _Seen:
        """What these chains have seen."""
        elements = torch.take_along_dim(self.elements, rows_like(index, self.elements), 1)
        return replace(self, elements=elements, energies=self.energies.gather(1, index))
