"""Search whose parts follow from the number of evaluations, the time that one takes, and how rough the energy is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._timing import EvaluationTime, seconds_until, time_evaluations
from trivgeo.checks import check_count, check_fraction, checked
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.posterior import ENERGIES_OF_A_GUARD, MissingGradientError, Posterior
from trivgeo.inversion.stage import EvaluatedPopulation, Population, Stage
from trivgeo.inversion.stages.chains import Select
from trivgeo.inversion.stages.evolution_strategy import EvolutionStrategy
from trivgeo.inversion.stages.gaussian_search import (
    DRAWN_TOGETHER,
    DistributionSearch,
    Drawn,
    GaussianSearch,
    RandomElements,
    check_stds,
)
from trivgeo.inversion.stages.quasi_newton import QuasiNewton
from trivgeo.inversion.transformations import Transformations
from trivgeo.sde.resampling import take_rows

SCALES = (0.1, 0.3, 1.0)
"""Standard deviations of elements drawn where no distribution is known, in units of the group's basis."""
_SHARE_DRAWN = 0.3  # share of the evaluations that are draws
_ROUND_STEPS, _NUM_ROUNDS = 3, 4  # steps before the first halving, twice as many before the next; halvings and one
_CANDIDATES = 2  # number of elements of which chains begin at those that lie apart, in units of the chains
_MIN_CHAINS_APART = 32  # chains below which they begin at the lowest elements
_SHARE_KEPT, _MIN_KEPT = 0.25, 16  # share of the descents that are hypotheses: others were left on their way


_PROBES, _NEIGHBOURS = 8, 4  # elements whose gradients are compared with the energies of their nearest draws
_MIN_EVALUATIONS_PROBED = 200  # evaluations below which ripples are not looked for
_MIN_TREND, _MAX_PREDICTED = 0.75, 0.4  # rank correlations of an energy that has ripples on a wide well
_MAX_FLAT = 0.5  # share of gradients that vanish above which descents stand still
_MAX_ROUNDS = 8  # times that descents begin
# generations that are enough, so that more evaluations make larger ones, and the largest in units of the usual
_GENERATIONS, _MAX_GENERATION = 40, 4
_EVOLUTION_STD, _POLISH_SHARE = 0.5, 0.1  # deviation of the first generation; share of the evaluations that polish

_GRADIENT_COST = 2.0  # time of an energy with its gradient, in units of one without
_SHORT = 0.9  # share of the evaluations below which the report speaks of the time
_FEWER = 0.9  # ratio of numbers of evaluations that are tried one after the other
_PLANNED_SHARE = 0.8  # share of the time that is planned
_TIMED_CHAINS = 16  # most chains of each datum whose evaluation is timed
_TIMED_SHARE = 0.35  # share of the time that this may take
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

    def costs(self) -> list[float]:
        """Return the times of the steps, in units of an energy without its gradient."""
        number = -(-self.draws // DRAWN_TOGETHER)
        return [
            size * (1.0 if step < number else _GRADIENT_COST)
            for step, size in enumerate(self.sequence())
            if step != number  # the first gradients are no step
        ]

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

    Where the energy has ripples on a wide well, gradients tell little of the next draws, though energies rise with the
    distance from the best. There an `EvolutionStrategy` takes the place of the descents, but for a last one. Both rank
    correlations are measured by the draws and eight gradients, and their medians decide for all data of a call. The
    same holds where most of these gradients vanish, as of counts, and where the energy has none.

    Where all descents have arrived before the evaluations are used, others begin at further draws.

    Args:
        evaluations: number of energies, with or without gradient, of each datum. Fewer where the time of the call is
            short, see `Inverter`: how many fit is known from a few that are timed first.
        transformations: function (count, generator) to elements ``[count, *element_shape]``, see `LearnedInverter.fit`;
            ``None`` if nothing is known of them.
        scales: standard deviations of the draws without ``transformations``, in units of the group's basis.
        num_hypotheses: number K of descents that begin; by default as many as the evaluations allow.
        share_drawn: share of the evaluations that are draws.
        evolution: whether the `EvolutionStrategy` takes the place of the descents; by default where there are ripples.

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
        evolution: bool | None = None,
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
        self.evolution = evolution
        self.costs = self.plan(evaluations).costs()
        self.steps = len(self.costs)

    def plan(self, evaluations: int, probes: int | None = None) -> SearchPlan:
        """Return the plan of a number of ``evaluations``, ``probes`` of which are gradients that look for ripples."""
        draws = min(max(1, round(self.share_drawn * evaluations)), evaluations - 2)
        probes = self._probes(evaluations) if probes is None else probes
        return SearchPlan.of(evaluations - probes, draws, self.num_hypotheses)

    def _probes(self, evaluations: int) -> int:
        """Return the number of gradients by which ripples are looked for."""
        return _PROBES if self.evolution is None and evaluations >= _MIN_EVALUATIONS_PROBED else 0

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        timing = Timing.of(posterior, population)
        if timing is None:
            has_gradient, evaluations = _has_gradient(posterior, population.elements[:, :1]), self.evaluations - 1
        else:
            has_gradient, evaluations = timing.has_gradient, self._affordable(timing)
        if timing is not None and evaluations < _FEWEST_EVALUATIONS:
            return self._hurried(posterior, population, evaluations, generator)
        if posterior.action.guard is not None:
            evaluations -= ENERGIES_OF_A_GUARD
        probes = self._probes(evaluations) if has_gradient else 0
        plan = self.plan(evaluations, probes)
        first = _evaluated(posterior)
        draws = self._draws(plan)
        drawn = draws.drawn(posterior, population, generator, plan.draws)
        starts = draws.chosen(drawn)
        if starts.size < plan.chains or posterior.is_late():
            return starts
        ripples = Ripples.of(posterior, drawn) if probes else None
        evolves = not has_gradient or (ripples.found if ripples is not None else bool(self.evolution))
        posterior.notes.append(self._report(plan, ripples, evolves, timing, has_gradient))
        if evolves:
            left = evaluations - plan.draws - probes
            return self._evolved(posterior, starts, left, generator, has_gradient)
        found = [QuasiNewton(plan.steps, plan.pruning)(posterior, starts, generator)]
        while (left := evaluations - (_evaluated(posterior) - first)) >= _FEWEST_EVALUATIONS:
            if posterior.is_late() or len(found) == _MAX_ROUNDS:
                break
            found.append(self._further(posterior, population, left, generator))
        if len(found) > 1:
            posterior.notes.append(f"descents had arrived early: further ones began {len(found) - 1} times")
        kept = min(plan.chains, max(_MIN_KEPT, int(_SHARE_KEPT * plan.chains)))
        # of all together the lowest may be those of one of several equal wells
        best = [Select(min(kept, part.size))(posterior, part, generator) for part in found]
        return EvaluatedPopulation.joined(*(part.evaluated(posterior) for part in best))

    def _further(
        self, posterior: Posterior, population: Population, evaluations: int, generator: torch.Generator | None
    ) -> Population:
        """Return descents from further draws."""
        plan = self.plan(evaluations, 0)
        draws = self._draws(plan)
        starts = draws.chosen(draws.drawn(posterior, population, generator, plan.draws))
        if starts.size < plan.chains or posterior.is_late():
            return starts
        return QuasiNewton(plan.steps, plan.pruning)(posterior, starts, generator)

    def _hurried(
        self, posterior: Posterior, population: Population, evaluations: int, generator: torch.Generator | None
    ) -> Population:
        """Return the best of so few elements that no descent is worth its time; the first hypothesis alone for one."""
        posterior.notes.append(f"there was time for {max(1, evaluations)} elements of each datum and no descent")
        if evaluations <= 1:
            return Select(1)(posterior, population, generator) if population.size > 1 else population
        draws = self._draws(SearchPlan(evaluations, 1, (), 1))
        return draws.chosen(draws.drawn(posterior, population, generator, 1))

    def _draws(self, plan: SearchPlan) -> RandomElements:
        apart = _CANDIDATES * plan.chains if plan.chains >= _MIN_CHAINS_APART else plan.chains
        candidates = min(apart, plan.draws)
        if self.transformations is not None:
            return DistributionSearch(self.transformations, plan.draws, plan.chains, candidates)
        assert self.scales is not None
        return GaussianSearch(plan.draws, plan.chains, self.scales, candidates)

    @staticmethod
    def _evolved(
        posterior: Posterior,
        starts: Population,
        evaluations: int,
        generator: torch.Generator | None,
        has_gradient: bool,
    ) -> Population:
        """Return the starts beside what evolves from the best of them by a number of evaluations."""
        least = EvolutionStrategy(1).size(posterior.group.dim)
        polish = max(2, int(_POLISH_SHARE * evaluations)) if has_gradient else 0
        size = max(least, min(_MAX_GENERATION * least, (evaluations - polish) // _GENERATIONS))
        strategy = EvolutionStrategy(max(1, (evaluations - polish) // size), _EVOLUTION_STD, size)
        found = strategy(posterior, starts, generator)
        if not has_gradient:
            return EvaluatedPopulation.joined(*(part.evaluated(posterior) for part in (found, starts)))
        best = QuasiNewton(polish - 1)(posterior, Select(1)(posterior, found, generator), generator)
        return EvaluatedPopulation.joined(*(part.evaluated(posterior) for part in (best, found, starts)))

    def _affordable(self, timing: Timing) -> int:
        """Return the largest number of evaluations whose plan fits into the time."""
        fewer = max(_FEWEST_EVALUATIONS, self.evaluations - timing.evaluations)
        while timing.seconds_of(self.plan(fewer).sequence()) > timing.seconds:
            if fewer == _FEWEST_EVALUATIONS:
                return min(fewer, timing.time.number_in(timing.seconds) // max(1, timing.batch))
            fewer = max(_FEWEST_EVALUATIONS, int(_FEWER * fewer))
        return fewer

    def _report(
        self, plan: SearchPlan, ripples: Ripples | None, evolves: bool, timing: Timing | None, has_gradient: bool
    ) -> str:
        """Return what was chosen, in sentences."""
        if self.scales is None:
            source = "of the given distribution"
        else:
            source = f"with standard deviations {', '.join(f'{scale:g}' for scale in self.scales)} of the basis"
        going = [plan.chains, *(number for _, number in plan.pruning)]
        lines = [f"{plan.draws:,} elements were drawn for each datum {source}"]
        if ripples is not None:
            lines.append(str(ripples))
        if not has_gradient:
            return "\n".join([*lines, "the energy has no gradient: an evolution strategy went on from the best"])
        if evolves:
            return "\n".join([*lines, "an evolution strategy went on from the best, and a descent from its best"])
        lines += [
            f"{plan.chains:,} descents began at the best of them"
            + (" that lie apart" if plan.chains >= _MIN_CHAINS_APART else ""),
        ]
        if plan.pruning:
            steps = ", ".join(f"{number} after {step}" for step, number in plan.pruning)
            lines.append(f"of these went on: {steps} steps; the last {going[-1]} for at most {plan.steps} steps")
        if timing is not None and sum(plan.sequence()) < _SHORT * self.evaluations:
            wanted = timing.seconds_of(self.plan(self.evaluations).sequence())
            lines.append(
                f"{self.evaluations:,} evaluations would take about {wanted:.3g} s, {timing.seconds:.3g} s were left"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Ripples:
    """Signs of ripples on a wide well: medians over the data of two rank correlations, and gradients that vanish.

    Attributes:
        trend: of the energies of draws with their distances from the best.
        predicted: of the differences of energy that the gradients at the best draws predict to their neighbours with
            the true ones.
        flat: share of these gradients that are zero where the energies of the neighbours are others.
    """

    trend: float
    predicted: float
    flat: float

    @property
    def found(self) -> bool:
        """True where energies rise with the distance, and gradients predict little of it; or where most vanish."""
        return self.flat > _MAX_FLAT or (self.trend > _MIN_TREND and self.predicted < _MAX_PREDICTED)

    @staticmethod
    def of(posterior: Posterior, drawn: Drawn) -> Ripples:
        """Measure draws, by gradients at the best of them."""
        elements, places, energies = drawn
        energies = torch.where(torch.isfinite(energies), energies, torch.finfo(energies.dtype).max)
        probes = min(_PROBES, energies.shape[1] - 1)
        trend = _rank_correlation((places - places[:, :1]).norm(dim=-1), energies)
        at = elements[:, :probes]
        zero = places.new_zeros(posterior.batch, probes, posterior.group.dim)
        slopes, heights = posterior.gradient(lambda v: posterior.group.perturb(at, v), zero)
        away = places.unsqueeze(1) - places[:, :probes].unsqueeze(2)
        near = away.norm(dim=-1).argsort(dim=-1)[..., 1 : 1 + _NEIGHBOURS]
        expected = (slopes.nan_to_num(nan=0.0).unsqueeze(2) * take_rows(away, near)).sum(-1)
        change = energies.unsqueeze(1).expand(-1, probes, -1).gather(2, near) - energies[:, :probes].unsqueeze(2)
        flat = (slopes == 0.0).all(-1) & torch.isfinite(heights) & (change != 0.0).any(-1)
        predicted = _rank_correlation(expected.flatten(1), change.flatten(1)).median()
        return Ripples(float(trend.median()), float(predicted), float(flat.double().mean()))

    def __str__(self) -> str:
        if self.flat > _MAX_FLAT:
            return f"{self.flat:.0%} of the gradients at the best draws vanish"
        return (
            f"energies rise with the distance from the best (rank correlation {self.trend:.2f}), and gradients predict "
            f"those of the next draws (rank correlation {self.predicted:.2f}): "
            f"{'ripples on a wide well' if self.found else 'no ripples on a wide well'}"
        )


def _has_gradient(posterior: Posterior, elements: Tensor) -> bool:
    """Return whether the energy has a gradient, by an evaluation of the elements ``[b, k, *element_shape]``."""
    v = elements.new_zeros(*elements.shape[:2], posterior.group.dim)
    try:
        posterior.gradient(lambda v: posterior.group.perturb(elements, v), v)
    except MissingGradientError:
        return False
    return True


def _evaluated(posterior: Posterior) -> int:
    """Return the number of energies of each datum so far."""
    return posterior.energy_evaluations + posterior.gradient_evaluations


def _rank_correlation(a: Float[Tensor, "b m"], b: Float[Tensor, "b m"]) -> Float[Tensor, " b"]:
    """Return Spearman's correlation of each row."""
    ranks = [x.argsort(dim=1).argsort(dim=1).double() for x in (a, b)]
    first, second = (rank - rank.mean(1, keepdim=True) for rank in ranks)
    return (first * second).sum(1) / (first.norm(dim=1) * second.norm(dim=1)).clamp(min=1e-12)


@dataclass(frozen=True)
class Timing:
    """Times of evaluations of energies with their gradients.

    Attributes:
        seconds: time left for a search.
        time: time of evaluations of elements of any data.
        batch: number of data.
        at_once: evaluations at once; ``None`` for any number.
        has_gradient: whether the energy has one; else energies alone were timed.
    """

    seconds: float
    time: EvaluationTime
    batch: int
    at_once: int | None
    has_gradient: bool

    @staticmethod
    def of(posterior: Posterior, population: Population) -> Timing | None:
        """Return the times of one chain of each datum and of several, ``None`` where time has no bound."""
        if posterior.deadline is None:
            return None

        seen = [True]

        def evaluate(size: int) -> Tensor:
            some = posterior.of_first(size)
            chains = -(-size // max(1, some.batch))
            index = torch.zeros(some.batch, chains, dtype=torch.long, device=posterior.reference.device)
            elements = take_rows(population.elements[: some.batch], index)
            seen[0] = seen[0] and _has_gradient(some, elements)
            return elements if seen[0] else some.energies(elements)

        most = _TIMED_CHAINS * max(1, posterior.batch)
        found = time_evaluations(evaluate, most, _TIMED_SHARE * seconds_until(posterior.deadline))
        left = _PLANNED_SHARE * seconds_until(posterior.deadline)
        return Timing(left, found, posterior.batch, posterior.max_evaluations, seen[0])

    @property
    def evaluations(self) -> int:
        """The number of energies of the first datum that were timed."""
        return sum(-(-size // max(1, self.batch)) for size in self.time.sizes)

    def seconds_of(self, sequence: Sequence[int]) -> float:
        """Return the time of evaluations of some numbers of elements of each datum one after the other."""
        return sum(self.time.of(self.batch * number, self.at_once) for number in sequence)
