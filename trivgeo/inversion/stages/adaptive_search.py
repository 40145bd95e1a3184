"""Search whose parts follow from the number of evaluations, the time that one takes, and how rough the energy is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo.checks import check_count, check_fraction, checked
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.stage import Population, Stage
from trivgeo.inversion.stages.chains import Select
from trivgeo.inversion.stages.gaussian_search import (
    DRAWN_TOGETHER,
    DistributionSearch,
    GaussianSearch,
    RandomElements,
    check_stds,
)
from trivgeo.inversion.stages.quasi_newton import QuasiNewton
from trivgeo.inversion.transformations import Transformations

SCALES = (0.1, 0.3, 1.0)
"""Standard deviations of elements drawn where no distribution is known, in units of the group's basis."""
_SHARE_DRAWN = 0.3  # share of the evaluations that are draws
_ROUND_STEPS, _NUM_ROUNDS = 3, 4  # steps before the first halving, twice as many before the next; halvings and one
_CANDIDATES = 2  # number of elements of which chains begin at those that lie apart, in units of the chains
_MIN_CHAINS_APART = 32  # chains below which they begin at the lowest elements
_SHARE_KEPT, _MIN_KEPT = 0.25, 16  # share of the descents that are hypotheses: others were left on their way


_FEWER = 0.9  # ratio of numbers of evaluations that are tried one after the other
_PLANNED_SHARE = 0.8  # share of the time that is planned
_TIMED_CHAINS = 16  # chains of each datum whose evaluation is timed beside that of one
_TIMED_SHARE = 0.1  # share of the time that this may take
_FEWEST_EVALUATIONS = 16  # evaluations planned where there is time for fewer


@dataclass(frozen=True)
class SearchPlan:
    """Numbers of a search of a datum.

    Attributes:
        draws: elements drawn.
        chains: descents that begin.
        pruning: see `QuasiNewton`.
        steps: see `QuasiNewton`.
    """

    draws: int
    chains: int
    pruning: tuple[tuple[int, int], ...]
    steps: int

    @staticmethod
    def of(evaluations: int, draws: int, chains: int | None) -> SearchPlan:
        """Return the plan of a number of evaluations, at least two.

        Descents halve in rounds, each of twice as many steps, and so of as many evaluations, as the one before: the
        last few go on until they have arrived.

        Args:
            evaluations: number of evaluations, draws included.
            draws: number of draws.
            chains: number of descents; ``None`` for as many as the evaluations allow.
        """
        left = evaluations - draws
        if chains is None:
            chains = left // (1 + _ROUND_STEPS * _NUM_ROUNDS)
        chains = max(1, min(chains, draws, left // 2))
        left -= chains  # the first gradients
        pruning, step, going = [], 0, chains
        for level in range(_NUM_ROUNDS - 1):
            steps = _ROUND_STEPS * 2**level
            if going == 1 or left < steps * going + going // 2:
                break
            step, left, going = step + steps, left - steps * going, going // 2
            pruning.append((step, going))
        steps = max(1, left // going)
        return SearchPlan(draws, chains, tuple(pruning), step + steps)

    def sequence(self) -> list[int]:
        """Return the numbers of elements evaluated one after the other."""
        drawn = [min(DRAWN_TOGETHER, self.draws - done) for done in range(0, self.draws, DRAWN_TOGETHER)]
        ends = [*(step for step, _ in self.pruning), self.steps]
        going = [self.chains, *(number for _, number in self.pruning)]
        starts = [0, *ends[:-1]]
        descents = [k for k, a, b in zip(going, starts, ends, strict=True) for _ in range(b - a)]
        return [*drawn, self.chains, *descents]


@checked
class AdaptiveSearch(Stage):
    r"""Draws elements for each datum, and descends from the best of them, with a given number of evaluations in all.

    Elements are drawn from a distribution of transformations where one is known, else at several scales about the first
    hypothesis (`DistributionSearch`, `GaussianSearch`). Descents begin at some of the best, which lie apart. Every
    few steps the better half of them goes on (`QuasiNewton`).

    Args:
        evaluations: number of energies, with or without gradient, of each datum. Fewer where the time of the call is
            short, see `Inverter`: how many fit is known from a few that are timed first.
        transformations: function (count, generator) to elements ``[count, *element_shape]``, see `LearnedInverter.fit`;
            ``None`` if nothing is known of them.
        scales: standard deviations of the draws without ``transformations``, in units of the group's basis.
        num_hypotheses: number K of descents that begin; by default as many as the evaluations allow.
        share_drawn: share of the evaluations that are draws.

    Raises:
        ConfigurationError: a setting out of its range, or ``scales`` beside ``transformations``.
    """

    def __init__(
        self,
        evaluations: int = 1000,
        transformations: Transformations | None = None,
        scales: Sequence[float] | None = None,
        num_hypotheses: int | None = None,
        share_drawn: float = _SHARE_DRAWN,
    ) -> None:
        self.evaluations = check_count("evaluations", evaluations)
        if evaluations < _FEWEST_EVALUATIONS:
            raise ConfigurationError(f"evaluations: expected at least {_FEWEST_EVALUATIONS}, got {evaluations}")
        self.transformations = transformations
        if scales is not None and transformations is not None:
            raise ConfigurationError(
                "scales: expected none beside transformations, whose draws have scales of their own"
            )
        self.scales = (
            None if transformations is not None else check_stds("scales", SCALES if scales is None else scales)
        )
        self.num_hypotheses = None if num_hypotheses is None else check_count("num_hypotheses", num_hypotheses)
        self.share_drawn = check_fraction("share_drawn", share_drawn)
        self.steps = len(self.plan(evaluations).sequence()) - 1

    def plan(self, evaluations: int) -> SearchPlan:
        """Return the plan of a number of evaluations."""
        draws = min(max(1, round(self.share_drawn * evaluations)), evaluations - 2)
        return SearchPlan.of(evaluations, draws, self.num_hypotheses)

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        timing = Timing.of(posterior, population)
        evaluations = self.evaluations if timing is None else self._affordable(timing)
        plan = self.plan(evaluations)
        drawn = self._draws(plan)(posterior, population, generator)
        if drawn.size < plan.chains:  # the time is up
            return drawn
        descended = QuasiNewton(plan.steps, plan.pruning)(posterior, drawn, generator)
        posterior.notes.append(self._report(plan, posterior, timing))
        kept = min(plan.chains, max(_MIN_KEPT, int(_SHARE_KEPT * plan.chains)))
        return Select(kept)(posterior, descended, generator)

    def _draws(self, plan: SearchPlan) -> RandomElements:
        apart = _CANDIDATES * plan.chains if plan.chains >= _MIN_CHAINS_APART else plan.chains
        candidates = min(apart, plan.draws)
        if self.transformations is not None:
            return DistributionSearch(self.transformations, plan.draws, plan.chains, candidates)
        assert self.scales is not None
        return GaussianSearch(plan.draws, plan.chains, self.scales, candidates)

    def _affordable(self, timing: Timing) -> int:
        """Return the largest number of evaluations whose plan fits into the time."""
        fewer = self.evaluations
        while fewer > _FEWEST_EVALUATIONS and timing.seconds_of(self.plan(fewer).sequence()) > timing.seconds:
            fewer = max(_FEWEST_EVALUATIONS, int(_FEWER * fewer))
        return fewer

    def _report(self, plan: SearchPlan, posterior: Posterior, timing: Timing | None) -> str:
        """Return what was chosen, in sentences."""
        if self.scales is None:
            law = "of the given distribution"
        else:
            law = f"with standard deviations {', '.join(f'{scale:g}' for scale in self.scales)} of the basis"
        going = [plan.chains, *(number for _, number in plan.pruning)]
        lines = [
            f"{plan.draws:,} elements were drawn for each datum {law}",
            f"{plan.chains:,} descents began at the best of them"
            + (" that lie apart" if plan.chains >= _MIN_CHAINS_APART else ""),
        ]
        if plan.pruning:
            steps = ", ".join(f"{number} after {step}" for step, number in plan.pruning)
            lines.append(f"of these went on: {steps} steps; the last {going[-1]} for at most {plan.steps} steps")
        if timing is not None and plan != self.plan(self.evaluations):
            wanted = timing.seconds_of(self.plan(self.evaluations).sequence())
            lines.append(
                f"{self.evaluations:,} evaluations would take about {wanted:.3g} s, {timing.seconds:.3g} s were left"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Timing:
    """Times of evaluations of energies with their gradients.

    Attributes:
        seconds: time left for a search.
        call: time of an evaluation of any size.
        each: further time for each element of every datum.
    """

    seconds: float
    call: float
    each: float

    @staticmethod
    def of(posterior: Posterior, population: Population) -> Timing | None:
        """Return the times of one chain of each datum and of several, ``None`` where time has no bound."""
        if posterior.deadline is None:
            return None
        index = torch.zeros(posterior.batch, _TIMED_CHAINS, dtype=torch.long, device=posterior.reference.device)
        _seconds(posterior, population.take(index[:, :1]).elements)  # what is made once
        one = _seconds(posterior, population.take(index[:, :1]).elements)
        left = posterior.deadline - time.perf_counter()
        several = one * _TIMED_CHAINS
        if several < _TIMED_SHARE * left:
            several = _seconds(posterior, population.take(index).elements)
            left = posterior.deadline - time.perf_counter()
        each = max(0.0, several - one) / (_TIMED_CHAINS - 1)
        return Timing(_PLANNED_SHARE * max(0.0, left), max(0.0, one - each), each)

    def seconds_of(self, sequence: Sequence[int]) -> float:
        """Return the time of evaluations of some numbers of elements one after the other."""
        return sum(self.call + self.each * number for number in sequence)


def _seconds(posterior: Posterior, elements: Tensor) -> float:
    """Return the time of one evaluation of energies with their gradients."""
    began = time.perf_counter()
    v = elements.new_zeros(*elements.shape[:2], posterior.group.dim)
    slopes, _ = posterior.gradient(lambda v: posterior.group.perturb(elements, v), v)
    if slopes.is_cuda:
        torch.cuda.synchronize(slopes.device)
    return time.perf_counter() - began
