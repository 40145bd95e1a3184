"""The stage that draws a weighted sample of the posterior."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._random import keyed
from trivgeo.checks import check_arguments, check_count, check_positive, check_type
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.generative.base_distributions import group_mean
from trivgeo.generative.law import ConditionalLaw, ModelDistribution
from trivgeo.generative.measure import sum_over_compact
from trivgeo.groups import LieGroup
from trivgeo.groups.harmonic import log_haar_volume
from trivgeo.inversion.population import EvaluatedPopulation, Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.rows import rows_like
from trivgeo.inversion.sampling.annealing import LogPosterior, anneal, effective_size, starting_draws
from trivgeo.inversion.sampling.ascent import ascend, with_wells
from trivgeo.inversion.sampling.importance import (
    WeightedDraws,
    adaptive_importance_sampling,
    mixture_of_particles,
    thinned,
)
from trivgeo.inversion.sampling.mixture import StudentMixture
from trivgeo.inversion.sampling.tails import LARGEST_SHAPE, pareto_shape
from trivgeo.inversion.sampling.weighted import ImportanceWeights, WeightedPopulation
from trivgeo.inversion.stage import Stage
from trivgeo.inversion.stages.warm_start import WarmStart

__all__ = ["ImportanceSampling", "Prior"]

_ASCENT_STEPS, _MOVES = 6, 6
_ROUNDS = (0.2, 0.2)
"""Shares of the draws in rounds that adapt the proposal; the rest are the sample."""
_LEAST_EFFICIENCY = 0.05
"""Effective share of the draws below which a sample is not trusted."""
_LEAST_SIZE = 10.0
"""Effective number of draws below which a sample is not trusted."""
_ROUGHEST = 0.05
"""Error of the logarithm of a weight, by the rounding of the energy, above which a sample is not trusted."""
_FEWEST_DRAWS, _EVEN = 100, 0.9
"""Number of draws below which the tail of their weights is not looked at; effective share above which it is small."""
_NUM_PRIOR_DRAWS = 512
_STARTING_SCALES = (1.0, 2.0, 0.4)
"""Spreads of the first proposal, in units of the basis, or of the prior."""
_HYPOTHESIS_SPREAD = 0.3
_MOST_HYPOTHESES = 8
_PROPOSED_SHARE = 0.8
"""Share of the first proposal that hypotheses or a density of theirs get."""


@runtime_checkable
class Prior(Protocol):
    """A distribution of transformations: what base distributions and `GroupDiffusion.distribution` are.

    Densities are for the measure of `trivgeo.generative.base_distributions.BaseDistribution`, and `torch.func` can
    differentiate them.
    """

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw independent elements of the prior, ``[num_samples, *element_shape]``.

        Args:
            num_samples: number of elements.
            generator: random numbers; ``None`` is torch's.
        """


@dataclass(frozen=True)
class _Budget:
    """Evaluations of each part, for one datum.

    Attributes:
        draws: elements of the first proposal.
        ascents: their number, of `_ASCENT_STEPS` gradients each.
        particles: their number, of `_MOVES` and one gradients each.
        wells: components about ends of ascents.
    """

    draws: int
    ascents: int
    particles: int
    wells: int

    @staticmethod
    def of(total: int, num_samples: int, dim: int) -> _Budget:
        """Return the parts of a budget that leave enough draws for the sample."""
        exploration = min(0.62 * total, total - 1.0 * num_samples / (1.0 - sum(_ROUNDS)))
        draws = int(0.3 * exploration)
        ascents = int(0.2 * exploration / _ASCENT_STEPS)
        particles = int(0.45 * exploration / (_MOVES + 1))
        return _Budget(draws, ascents, particles, min(4, int(0.05 * exploration / dim)))


class ImportanceSampling(Stage):
    r"""Draws a weighted sample of :math:`p_0(g)\, e^{-E(g) / T}` by adaptive importance sampling.

    In order: elements of a broad first proposal; sequential Monte Carlo from it to the posterior, with Langevin moves;
    ascents from many places, for wells that are narrow; a mixture of Student distributions in exponential coordinates
    about what was found, refitted to its own weighted draws twice; and the sample, independent draws of the last
    mixture, whose weights are right on average whatever was found before. See `anneal`, `ascend`,
    `adaptive_importance_sampling`.

    Args:
        num_samples: number K of elements returned; more draws than that are weighted if the budget allows.
        budget: the largest number of energies and gradients, together, for each datum.
        temperature: T, positive.
        prior: :math:`p_0`, see `Prior`; ``None`` for left Haar measure.
        proposals: a stage whose hypotheses say where to look, beside the first proposal; of a `WarmStart` whose
            inverter has a density, `Inverter.proposal`, that.

    Raises:
        ConfigurationError: a number out of its range, a budget below twice the number of samples, or a prior without
            densities.
    """

    def __init__(
        self,
        num_samples: int = 256,
        budget: int = 2000,
        temperature: float = 1.0,
        prior: Any = None,
        proposals: Stage | None = None,
    ) -> None:
        self.num_samples = check_count("num_samples", num_samples)
        self.budget = check_count("budget", budget)
        if budget < max(2 * num_samples, 100):
            raise ConfigurationError(
                f"budget: expected at least {max(2 * num_samples, 100)} evaluations for {num_samples} samples, "
                f"got {budget}"
            )
        self.temperature = check_positive("temperature", temperature)
        self.prior = check_prior(prior)
        self.proposals = proposals
        self.steps = _MOVES + len(_ROUNDS) + 1

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> WeightedPopulation:
        """The sample.

        Raises:
            ConfigurationError: the stage before, or the proposals, have left too few of the budget, or the data are in
                half precision.
        """
        group = posterior.group
        if posterior.like.dtype not in (torch.float32, torch.float64):
            raise ConfigurationError(
                f"x_tilde: expected data in float32 or float64, for weights of a sample, got {posterior.like.dtype}"
            )
        start = self._start(group, population.elements)
        target = LogPosterior(posterior, self.temperature, self._log_prior(group))
        known = self.proposals.proposal(posterior, generator) if isinstance(self.proposals, WarmStart) else None
        if known is not None:
            start = _with_density(start, known)
        elif self.proposals is not None:
            found = self.proposals(posterior, population, generator)
            start = _with_hypotheses(start, found.evaluated(posterior))
        spent = posterior.energy_evaluations + posterior.gradient_evaluations
        if self.budget - spent < 2 * self.num_samples:
            raise ConfigurationError(
                f"budget: expected at least {spent + 2 * self.num_samples} evaluations, since {spent} are taken by the "
                f"proposals, got {self.budget}"
            )
        parts = _Budget.of(self.budget - spent, self.num_samples, group.dim)
        first = starting_draws(target, start, parts.draws, generator)
        particles = anneal(target, start, first, parts.particles, _MOVES, generator)
        proposal, numbers = mixture_of_particles(particles, start)
        if parts.wells and parts.ascents:
            ends = ascend(target, first.spread(parts.ascents, generator), _ASCENT_STEPS)
            proposal = with_wells(target, proposal, numbers, ends, parts.wells)
        left = self.budget - posterior.energy_evaluations - posterior.gradient_evaluations
        rounds = [int(share * left) for share in _ROUNDS]
        draws = adaptive_importance_sampling(target, proposal, [*rounds, left - sum(rounds)], generator)
        return self._sample(group, draws, target, generator)

    def _start(self, group: LieGroup, elements: Tensor) -> StudentMixture:
        """The first proposal: broad about what the stage is given, or about the mean of the prior."""
        batch = len(elements)
        factor = torch.eye(group.dim).to(elements)
        if self.prior is not None:
            drawn = self.prior.sample(_NUM_PRIOR_DRAWS, keyed(0, device=elements.device))
            drawn = check_type("prior.sample", drawn, Tensor).to(elements)
            if drawn.shape[1:] != elements.shape[2:]:
                raise ShapeError(
                    f"prior: expected elements of {group!r} [n, {', '.join(map(str, elements.shape[2:]))}], "
                    f"got {list(drawn.shape)}"
                )
            drawn = drawn[torch.isfinite(drawn.flatten(1)).all(-1)]  # a model may lose some
            if not len(drawn):
                raise NonFiniteError(f"prior: expected finite elements of {group!r}, got NaN or infinity")
            centre, v = group_mean(group, drawn)
            covariance = matmul(v.mT, v) / max(1, len(v)) + 1e-6 * factor
            factor = torch.linalg.cholesky(covariance)
            elements = centre.expand(batch, 1, *centre.shape)
        size = elements.shape[1]
        shares = elements.new_full((batch, size), -math.log(size))
        factors = factor.expand(batch, size, *factor.shape)
        return StudentMixture(group, elements, factors, shares, _STARTING_SCALES)

    def _log_prior(self, group: LieGroup) -> Callable[[Tensor], Tensor]:
        """Log-density of the prior for the measure of the proposals, which is Lebesgue measure of the algebra."""
        if self.prior is None:
            whole = sum_over_compact(group, log_haar_volume)
            return lambda g: g.new_full(group.batch_shape(g), -whole)
        density, size = density_of(self.prior), _log_measure(self.prior, group)

        def log_prior(g: Tensor) -> Tensor:
            shape = group.batch_shape(g)
            values = density(g.reshape(-1, *group.element_shape))
            if values.shape != (shape.numel(),):
                raise ShapeError(
                    f"prior: expected a log-density for each of {shape.numel()} elements, got {list(values.shape)}"
                )
            return values.reshape(shape).to(g) - size

        return log_prior

    def _sample(
        self, group: LieGroup, draws: WeightedDraws, target: LogPosterior, generator: torch.Generator | None
    ) -> WeightedPopulation:
        """The draws, thinned to the number of samples, and what they say of themselves."""
        number = draws.log_weights.shape[1]
        size = effective_size(draws.log_weights)
        index, weights = thinned(draws, self.num_samples, generator)
        total = weights.sum(-1, keepdim=True)
        weights = torch.where(total > 0.0, weights / total, 1.0 / self.num_samples).to(draws.energies.dtype)
        evidence = draws.log_weights.logsumexp(-1) - math.log(number)
        effective = torch.minimum(1.0 / weights.square().sum(-1), size)
        return WeightedPopulation(
            elements=torch.take_along_dim(draws.elements, rows_like(index, draws.elements), 1),
            num_masked_steps=torch.zeros_like(index),
            energies=draws.energies.gather(1, index),
            checks=ImportanceWeights(
                weights=weights,
                effective_sample_size=effective,
                log_evidence=evidence,
                reasons=_reasons(draws, target, size, effective, self.num_samples),
            ),
        )


def check_prior(prior: Any) -> Any:
    """Return a prior that has samples and densities, or ``None``, else raise `ConfigurationError`.

    A model that is given itself stands for its distribution without a condition, with all bodies.
    """
    if prior is None:
        return None
    if isinstance(prior, ConditionalLaw):
        return prior.distribution()
    if isinstance(prior, ModelDistribution) and not prior.has_all_bodies:
        raise ConfigurationError(
            "prior: expected a distribution of all bodies, got one with a mask, which has no density of absent bodies; "
            "trivgeo.generative.posterior.draw_posterior takes it"
        )
    if not isinstance(prior, Prior) or not callable(density_of(prior)):
        raise ConfigurationError(
            "prior: expected a distribution of elements with sample(num_samples, generator) and log_density(g) or "
            f"log_prob(g), got {type(prior).__name__}"
        )
    check_arguments("prior.sample", prior.sample, "num_samples", "generator")
    return prior


def density_of(prior: Prior) -> Any:
    """Return the log-density of a prior, by either of its names; ``None`` if it has none."""
    return getattr(prior, "log_density", None) or getattr(prior, "log_prob", None)


def _log_measure(prior: Any, group: LieGroup) -> float:
    """Logarithm of the measure of a prior's densities, in units of Lebesgue measure of the algebra of ``group``.

    A prior of `trivgeo.generative` names its group, whose basis may be another one.

    Raises:
        ConfigurationError: the prior is of another group.
    """
    own = getattr(prior, "group", None)
    if not isinstance(own, LieGroup):
        return sum_over_compact(group, log_haar_volume)
    if not own.is_same_group(group):
        raise ConfigurationError(f"prior: expected a distribution on {group!r}, got one on {own!r}")
    unit = torch.eye(group.dim, dtype=torch.float64)
    change = own.basis.from_natural(group.basis.to_natural(unit))
    return sum_over_compact(own, log_haar_volume) - float(torch.linalg.slogdet(change).logabsdet)


def _with_hypotheses(start: StudentMixture, found: EvaluatedPopulation) -> StudentMixture:
    """The first proposal with components about the hypotheses of lowest energy."""
    number = min(_MOST_HYPOTHESES, found.size)
    lowest = found.energies.topk(number, dim=1, largest=False)
    centres = torch.take_along_dim(found.elements, rows_like(lowest.indices, found.elements), 1)
    usable = torch.isfinite(lowest.values) & torch.isfinite(centres).flatten(2).all(-1)
    unit = start.group.identity(dtype=centres.dtype, device=centres.device)
    centres = torch.where(rows_like(usable, centres), centres, unit)
    factors = _HYPOTHESIS_SPREAD * start.factors[:, :1].expand(-1, number, -1, -1)
    return _joined(start, centres, factors, torch.where(usable, 1.0 / number, 0.0).to(start.log_shares))


def _with_density(start: StudentMixture, known: StudentMixture) -> StudentMixture:
    """The first proposal with the components of a mixture that is near the posterior, of its narrower width."""
    like = start.factors
    return _joined(
        start, known.centres.to(like), known.scales[0] * known.factors.to(like), known.log_shares.exp().to(like)
    )


def _joined(start: StudentMixture, centres: Tensor, factors: Tensor, shares: Tensor) -> StudentMixture:
    """The first proposal with further components, which get four fifths of it."""
    shares = _PROPOSED_SHARE * shares
    rest = start.log_shares + torch.log1p(-shares.sum(-1, keepdim=True))
    return StudentMixture(
        start.group,
        torch.cat([start.centres, centres], 1),
        torch.cat([start.factors, factors], 1),
        torch.cat([rest, shares.log()], 1),
        start.scales,
    )


def _reasons(
    draws: WeightedDraws,
    target: LogPosterior,
    sizes: Float[Tensor, " b"],
    effective: Float[Tensor, " b"],
    kept: int,
) -> tuple[str, ...]:
    """Why the samples are not to be trusted; empty for those that are."""
    said = []
    log_weights, energies, temperature = draws.log_weights, draws.energies, target.temperature
    number, shapes = log_weights.shape[1], pareto_shape(log_weights)
    heaviest = energies.gather(1, log_weights.argmax(-1, keepdim=True)).squeeze(1).abs()
    rounding = heaviest.nan_to_num(0.0) * (torch.finfo(energies.dtype).eps / temperature)
    least = _LEAST_EFFICIENCY * number
    rows = (target.unbounded, target.without_prior, sizes, effective, shapes, rounding)
    for is_unbounded, has_no_prior, size, sample, shape, error in zip(*(row.tolist() for row in rows), strict=True):
        if is_unbounded:
            said.append(
                "an energy of minus infinity was met, which has no weight: expected one that is bounded from below"
            )
        elif has_no_prior:
            said.append(
                "a log-density of the prior was NaN or plus infinity at elements that were met, which got no weight: "
                "expected a finite one, or minus infinity outside of the support"
            )
        elif size == 0.0:
            said.append(f"none of {number} draws has a finite energy")
        elif error > _ROUGHEST:
            said.append(
                f"energies that are rounded by {error * temperature:.2g}, at temperature {temperature:.3g}: a smaller "
                "constant in the energy, or double precision, may help"
            )
        elif size < max(least, _LEAST_SIZE) or sample < _LEAST_EFFICIENCY * kept:
            below = f"{_LEAST_EFFICIENCY:.0%}" if size < least or size >= _LEAST_SIZE else f"{_LEAST_SIZE:.0f} draws"
            said.append(
                f"effective sample size {size:.3g} of {number} draws: less than {below}; a larger "
                "budget, proposals or a prior may help"
            )
        elif shape > LARGEST_SHAPE and number >= _FEWEST_DRAWS and size < _EVEN * number:
            said.append(
                f"weights with a tail of Pareto shape {shape:.2f}, above {LARGEST_SHAPE}: draws that are rare and "
                "weigh much are missing, or the posterior has no finite mass; a prior, proposals or a larger budget "
                "may help"
            )
        else:
            said.append("")
    return tuple(said)
