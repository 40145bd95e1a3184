"""Reverse diffusion with the Monte Carlo score of an energy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypedDict

import torch
from torch import Tensor

from trivgeo.checks import check_choice, check_count, check_positive, check_type, checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups import LieGroup
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.rows import lower_rows, rows_like
from trivgeo.inversion.stage import Population, Stage
from trivgeo.inversion.stages.chains import Side
from trivgeo.sde import EnergyScore, GeometricSchedule, NoiseKernel, Schedule, solve, uniform_grid
from trivgeo.sde.processes import reverse_process
from trivgeo.sde.scores import EnergySamples
from trivgeo.sde.solvers import Accumulator, StepState

ScoreBound = float | Literal["adaptive"] | None
"""Longest score; see `ReverseDiffusion`."""

_TIME_TOLERANCE = 1e-9
# bounds of a score, see `score_bound`
_MAX_STEP_IN_NOISE_STDS = 3.0
_MAX_TOTAL_SHIFT = 2.5  # length of all steps, in units of the basis of the group
_MAX_POINT_SCORE = 2.0  # score in units of the typical score of the noise of a single point


@checked
class ReverseDiffusion(Stage):
    r"""Takes the noise off a population by the reverse diffusion with the Monte Carlo score of :math:`e^{-E(g) / T}`.

    From the time of the population (see `AddNoise`) to 0, E the posterior energy. A step :math:`g \exp v` moves the
    restored datum, :math:`(g \exp v)^{-1} \tilde x = \exp(-v)\, g^{-1} \tilde x`: the noise is small or large against
    what the restored data look like. With ``side="given"`` the steps are :math:`\exp(v)\, g`, which move the given
    datum, :math:`g^{-1} \exp(-v)\, \tilde x`: the same diffusion for :math:`h = g^{-1}`, whose density for left Haar
    measure is :math:`p(h^{-1}) / \lambda(h)`, so that T is sampled all the same. Where the noise is
    narrow against the transformation the side decides how much is found; where it is wide it does not.

    As the number N of noise samples grows the ends of the chains become a sample of the posterior. With few they are a
    search: see `num_mc`, and `PosteriorSampler` for samples with weights. Where only the best is wanted, ``keep_best``
    and ``pruning`` get more from every evaluation; with them they are a search whatever N is.

    Args:
        schedule: diffusion coefficient of the noise.
        steps: number M of steps.
        num_mc: number N of noise samples of one score. With few of them the wells that are found are right, but the
            shares of chains in them are not their weights: of two wells of .7 and .3 on SE(2) the first got .49 with
            2 samples, .62 with 64, .66 with 512, .70 with 2,048; wide wells get more than their share.
        temperature: T, positive.
        max_score_norm: longer scores are shortened to this length. ``"adaptive"``, the default, follows the noise, see
            `score_bound`. ``None`` is for no bound: with steep energies, such as those of a group that scales, many
            chains then leave for where no energy is finite. Steps there follow the noise alone and count as masked.
        side: the datum that a step moves, ``"restored"`` or ``"given"``; the same as for the noise.
        keep_best: return of each chain the element of lowest energy among all that were evaluated for its scores, in
            place of its end.
        pruning: pairs (t, k): when the noise has fallen to time t, keep only those k chains of each datum that have met
            the lowest energies.
        published: as printed in Kim et al. (2026), algorithm 1: without the correction on non-unimodular groups (see
            `trivgeo.sde.processes.reverse_process`), and with one set of noise samples for the whole batch of data.

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
        max_score_norm: ScoreBound = "adaptive",
        side: Side = "restored",
        keep_best: bool = False,
        pruning: Sequence[tuple[float, int]] = (),
        published: bool = False,
    ) -> None:
        schedule = GeometricSchedule(0.1, 1.0) if schedule is None else schedule
        self.schedule = check_type("schedule", schedule, Schedule)  # type: ignore[type-abstract]
        self.steps = check_count("steps", steps)
        self.num_mc = check_count("num_mc", num_mc)
        self.temperature = check_positive("temperature", temperature)
        if max_score_norm is not None and max_score_norm != "adaptive":
            check_positive("max_score_norm", max_score_norm)
        self.max_score_norm = max_score_norm
        self.side = check_choice("side", side, ("restored", "given"))
        self.keep_best = keep_best
        self.pruning = _check_pruning(pruning)
        self.published = published
        self._segments(1.0)

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        """Return the population without noise.

        Raises:
            ConfigurationError: the population has no noise on it, or too few chains to prune.
        """
        if population.time == 0.0:
            raise ConfigurationError("ReverseDiffusion: expected a population with noise on it; put AddNoise before it")
        self.check_size(population.size)
        chain = _Chain(posterior, self.temperature, self.side)
        kernel = NoiseKernel(chain.group, self.schedule, self.steps)
        score = EnergyScore(chain.energy, kernel, self.num_mc, shared_noise=self.published)
        process = reverse_process(
            chain.group,
            self.schedule,
            score,
            modular_drift=not self.published,
            max_score_norm=self._bound(chain.group.dim, population.time),
        )
        population = population.moved(chain.swapped(population.elements))
        nothing = population.elements.new_full(population.num_masked_steps.shape, torch.inf)
        blind = torch.zeros_like(population.num_masked_steps)
        seen = _Visited(chain, population.elements, nothing, blind, bool(self.keep_best or self.pruning))
        for size, times in self._segments(population.time):
            if size is not None:
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
            elements, energies, blind = solution.accumulated
            seen = replace(seen, elements=elements, energies=energies, blind=blind)
        population = replace(population.moved(chain.swapped(population.elements), masked=seen.blind), time=0.0)
        if not self.keep_best:
            return population
        return population.evaluated(posterior).or_lower(chain.swapped(seen.elements), seen.energies)

    def check_size(self, number: int) -> None:
        """Check that ``number`` chains are enough to be pruned.

        Raises:
            ConfigurationError: the first pruning keeps as many or more.
        """
        if self.pruning and self.pruning[0][1] >= number:
            raise ConfigurationError(
                f"pruning: expected numbers below num_hypotheses = {number}, got {[k for _, k in self.pruning]}"
            )

    def _bound(self, dim: int, start: float) -> float | Callable[[float], float] | None:
        if self.max_score_norm == "adaptive":
            return partial(score_bound, self.schedule, start / self.steps, dim)
        return self.max_score_norm

    def _segments(self, start: float) -> list[tuple[int | None, list[float]]]:
        """Return the parts of the grid between prunings, and the number of chains of each; ``None`` for all."""
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


def score_bound(schedule: Schedule, step: float, dim: int, t: float) -> float:
    r"""Return the length to which `ReverseDiffusion` shortens a score of noise :math:`\gamma` at time t by default.

    .. math:: \sqrt n \min\left(\frac{3}{\gamma \sqrt{\Delta t}},
        \max\left(\frac{2.5}{\gamma^2}, \frac{2}{\sigma_t}\right)\right)

    with :math:`\sigma_t^2` the variance of the noise up to t. A score moves a chain no farther in a step than three
    times the noise of the step, and, while the noise is large, no farther than 2.5 of the basis in all steps; but it
    may always move as far as the noise of a single point asks for, :math:`\sqrt n / \sigma_t`.

    Args:
        step: length :math:`\Delta t` of a step.
        dim: dimension n of the group.
    """
    gamma = float(schedule(t))
    noise = math.sqrt(float(schedule.variance(0.0, max(t, step))))
    return math.sqrt(dim) * min(
        _MAX_STEP_IN_NOISE_STDS / (gamma * math.sqrt(step)),
        max(_MAX_TOTAL_SHIFT / gamma**2, _MAX_POINT_SCORE / noise),
    )


def _check_pruning(pruning: Sequence[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """Return pairs (time, number of hypotheses) whose numbers fall."""
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

    def __init__(self, posterior: Posterior, temperature: float, side: Side) -> None:
        self.group: LieGroup = posterior.group
        self._posterior = posterior
        self._temperature = temperature
        self._inverted = side == "given"
        self._modular = self._inverted and not self.group.algebra.is_unimodular

    def swapped(self, elements: Tensor) -> Tensor:
        """Convert elements to elements of the chain, or back."""
        return self.group.inverse(elements) if self._inverted else elements

    def energy(self, elements: Tensor) -> Tensor:
        """Return minus the log-density of the target for left Haar measure, differentiable."""
        energy = self._posterior.differentiable(self.swapped(elements)) / self._temperature
        return energy + self.group.log_modular(elements) if self._modular else energy

    def posterior_energy(self, samples: EnergySamples) -> Tensor:
        """Return the posterior energies of the elements that a score evaluated; infinite where masked."""
        energy = samples.energy
        if self._modular:
            energy = energy - self.group.log_modular(samples.elements)
        return torch.where(samples.finite, self._temperature * energy, torch.inf)


@dataclass(frozen=True)
class _Visited(Accumulator):
    """Record of the elements that each chain has met; folded over the steps of a solve.

    Attributes:
        chain: group and energy of the chains.
        elements: elements where the energy was lowest, ``[b, K, *element_shape]``.
        energies: the posterior energies there, ``[b, K]``.
        blind: number of steps without a sample of finite energy, ``[b, K]``.
        keeps_lowest: whether elements and energies are wanted.
    """

    chain: _Chain
    elements: Tensor
    energies: Tensor
    blind: Tensor
    keeps_lowest: bool

    def init(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.elements, self.energies, self.blind

    def update(self, seen: tuple[Tensor, Tensor, Tensor], step: StepState) -> tuple[Tensor, Tensor, Tensor]:
        """Add the samples of one score."""
        elements, energies, blind = seen
        for samples in step.parts(EnergySamples):
            blind = blind + (~samples.finite.any(-1)).long()
            if self.keeps_lowest:
                energy, index = self.chain.posterior_energy(samples).min(-1)
                wide = rows_like(index.unsqueeze(-1), samples.elements)
                found = torch.take_along_dim(samples.elements, wide, index.ndim).squeeze(index.ndim)
                elements, energies = lower_rows(elements, energies, found, energy)
        return elements, energies, blind

    def lowest(self, number: int) -> Tensor:
        """Return indices ``[b, number]`` of the chains of each datum that have met the lowest energies."""
        return self.energies.topk(number, dim=1, largest=False).indices

    def take(self, index: Tensor) -> _Visited:
        """Return the record of some chains."""
        elements = torch.take_along_dim(self.elements, rows_like(index, self.elements), 1)
        energies, blind = self.energies.gather(1, index), self.blind.gather(1, index)
        return replace(self, elements=elements, energies=energies, blind=blind)


class ReverseDiffusionOptions(TypedDict, total=False):
    """Options that `ReverseDiffusionSearch` hands on to `ReverseDiffusion`, where each is described."""

    side: Side
    keep_best: bool
    pruning: Sequence[tuple[float, int]]
    published: bool
