"""Adaptive importance sampling of a posterior, from particles on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._random import keyed
from trivgeo.checks import check_arguments, check_count, check_positive, check_type, checked
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.generative.distribution_fitting import group_mean
from trivgeo.generative.distributions import sum_over_compact
from trivgeo.generative.model import GroupDiffusion, ModelDistribution
from trivgeo.groups import LieGroup
from trivgeo.groups.harmonic import log_haar_volume
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.rows import where_rows
from trivgeo.inversion.sampling.exploration import (
    WeightedDraws,
    anneal,
    ascend,
    choose_starts,
    mixture_of_particles,
    weighted_draws,
    with_maxima,
    with_products,
)
from trivgeo.inversion.sampling.mixture import StudentMixture
from trivgeo.inversion.stage import EvaluatedPopulation, Population, Stage, WeightedPopulation
from trivgeo.inversion.stages.chains import WarmStart
from trivgeo.sde.resampling import (
    LARGEST_SHAPE,
    LARGEST_WEIGHT_ERROR,
    SMALLEST_EFFECTIVE_SIZE,
    effective_sample_size,
    normalized_weights,
    pareto_shape,
    take_rows,
    thinned_indices,
)
from trivgeo.verdict import Verdict

_MIN_SHARE = 0.01  # share that a component of a refitted mixture keeps


def adaptive_importance_sampling(
    target: Posterior, proposal: StudentMixture, num_draws: Sequence[int], generator: torch.Generator | None
) -> list[WeightedDraws]:
    """Draw in rounds from mixtures, each refitted to the weighted draws of the round before (Cappe et al. 2008).

    Returns:
        The draws of each round. Given their mixture those of the last round are independent, so that their mean weight
        is the evidence without bias.
    """
    rounds = [weighted_draws(target, proposal, num_draws[0], generator)]
    target.step()
    for number in num_draws[1:]:
        draws = rounds[-1]
        proposal = proposal.refitted(draws.charts, draws.component_log_densities, draws.log_weights, _MIN_SHARE)
        rounds.append(weighted_draws(target, proposal, number, generator))
        target.step()
    return rounds


_ASCENT_STEPS = 6  # gradients of each ascent
_NUM_MOVES = 6  # Langevin moves of each particle
_ADAPTING_SHARES = (0.2, 0.2)  # shares of the draws in rounds that adapt the proposal; the rest are the sample
_MIN_EFFICIENCY = 0.05  # effective share of the draws below which a sample is not trusted
_LEAST_DRAWS = 64  # draws below which their weights do not show whether some are missing, unless nearly even
_MIN_DRAWS_OF_TAIL = 100  # draws below which the tail of their weights is not looked at
_FAR_SHARE = 0.05  # share of the draws that look far around the proposal
_FAR_SCALES = (4.0, 20.0, 100.0)  # their spreads, in units of those of the proposal
# logarithm of the posterior over a proposal that has missed an element: a constant, and more for each dimension, in
# which proposals fit less well
_MAX_LOG_EXCESS, _LOG_EXCESS_PER_DIMENSION = 2.2, 0.2
_MAX_DEPTH = 12.0  # depth below the highest log-density beyond which an element is too rare to be missed
_EVEN_EFFICIENCY = 0.9  # effective share of the draws above which the tail of their weights is small
_ASSUMPTION = "a search met every well that matters"
_ASSUMPTION_OF_COMPONENTS = "there is no mass in components of the group that it does not name"
_ROUNDS_OF_PRODUCTS = 2  # rounds of products of the centres of components, in which those of the first take part
_MAX_DIM_OF_PRODUCTS = 7  # dimension of a group up to which searches meet several poses of an object
_MIN_PRODUCTS, _MAX_PRODUCTS = 20, 200  # products of a round, if there is one
_MAX_PRODUCTS_KEPT = 32  # products of a round that get a component
_NUM_PRIOR_DRAWS = 512  # draws of a prior that say where it is
_STARTING_SCALES = (1.0, 2.0, 0.4)  # spreads of the first proposal, in units of the basis, or of the prior
_HYPOTHESIS_SCALE = 0.3  # spread about a hypothesis, in units of the first proposal
_MAX_HYPOTHESES = 8  # hypotheses of proposals that get a component
_PROPOSED_SHARE = 0.8  # share of the first proposal that hypotheses or their density get


@runtime_checkable
class Prior(Protocol):
    """A distribution of transformations, such as a `GroupDistribution`.

    Densities are for the measure of `trivgeo.generative.distributions.GroupDistribution`, and `torch.func` can
    differentiate them.
    """

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw ``num_samples`` independent elements of the prior, ``[num_samples, *element_shape]``."""

    def log_prob(self, g: Tensor) -> Tensor:
        """Return log-densities of elements g, ``[*batch, *element_shape]``, as ``[*batch]``."""


@dataclass(frozen=True)
class _Budget:
    """Numbers of evaluations of each part, for one datum.

    Attributes:
        draws: elements of the first proposal.
        ascents: ascents, of `_ASCENT_STEPS` gradients each.
        particles: particles, of `_NUM_MOVES` and one gradients each.
        maxima: components about ends of ascents.
        products: products of centres of components in each round.
    """

    draws: int
    ascents: int
    particles: int
    maxima: int
    products: int

    @staticmethod
    def of(total: int, num_samples: int, dim: int) -> _Budget:
        """Return the parts of a budget that leave enough draws for the sample."""
        exploration = min(0.62 * total, total - 1.0 * num_samples / (1.0 - sum(_ADAPTING_SHARES)))
        draws = int(0.3 * exploration)
        ascents = int(0.2 * exploration / _ASCENT_STEPS)
        particles = int(0.45 * exploration / (_NUM_MOVES + 1))
        products = min(_MAX_PRODUCTS, int(0.04 * exploration)) if dim <= _MAX_DIM_OF_PRODUCTS else 0
        products = products if products >= _MIN_PRODUCTS else 0  # the centres take part in each round, too
        return _Budget(draws, ascents, particles, min(4, int(0.05 * exploration / dim)), products)


@checked
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
        self.steps = _NUM_MOVES + len(_ADAPTING_SHARES) + 1

    def __call__(
        self, posterior: Posterior, population: Population, generator: torch.Generator | None
    ) -> WeightedPopulation:
        """Return the sample.

        Raises:
            ConfigurationError: the stage before, or the proposals, have left too few of the budget, or the data are in
                half precision.
        """
        group = posterior.group
        if posterior.reference.dtype not in (torch.float32, torch.float64):
            raise ConfigurationError(
                "x_tilde: expected data in float32 or float64, for weights of a sample, got "
                f"{posterior.reference.dtype}"
            )
        start = self._start(group, population.elements)
        target = posterior.tempered(self.temperature, self._log_prior(group))
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
        first = weighted_draws(target, start, parts.draws, generator)
        particles = anneal(target, start, first, parts.particles, _NUM_MOVES, generator)
        proposal, numbers = mixture_of_particles(particles, start)
        met = [(first.elements, first.log_densities), (particles.elements, particles.log_densities)]
        if parts.maxima and parts.ascents:
            ends = ascend(target, choose_starts(first, parts.ascents, generator), _ASCENT_STEPS)
            proposal = with_maxima(target, proposal, numbers, ends, parts.maxima)
            met.append((ends.elements, ends.log_densities))
        for _ in range(_ROUNDS_OF_PRODUCTS if parts.products else 0):
            proposal, elements, values = with_products(target, proposal, parts.products, _MAX_PRODUCTS_KEPT, generator)
            met.append((elements, values))
        left = self.budget - posterior.energy_evaluations - posterior.gradient_evaluations
        rounds, far = [int(share * left) for share in _ADAPTING_SHARES], int(_FAR_SHARE * left)
        sizes = [*rounds, left - sum(rounds) - far]
        *others, draws = adaptive_importance_sampling(target, proposal, sizes, generator)
        if far:
            others.append(weighted_draws(target, replace(draws.proposal, scales=_FAR_SCALES), far, generator))
        met += [(other.elements, other.log_densities) for other in others]
        return self._sample(draws, _largest_log_excess(draws, met), target, generator)

    def _start(self, group: LieGroup, elements: Tensor) -> StudentMixture:
        """Return the first proposal: broad about the elements of the stage before, or about the mean of the prior, in
        every component of the group.
        """
        batch = len(elements)
        unit = torch.eye(group.dim).to(elements)
        components = group.components(elements.dtype, elements.device)
        if self.prior is not None:
            drawn = self.prior.sample(_NUM_PRIOR_DRAWS, keyed(0, device=elements.device))
            drawn = check_type("prior.sample", drawn, Tensor).to(elements)
            if drawn.shape[1:] != elements.shape[2:]:
                raise ShapeError(
                    f"prior: expected elements of {group!r} [n, {', '.join(map(str, elements.shape[2:]))}], "
                    f"got {list(drawn.shape)}"
                )
            drawn = drawn[torch.isfinite(drawn.flatten(1)).all(-1)]  # a model may return some that are not
            if not len(drawn):
                raise NonFiniteError(f"prior: expected finite elements of {group!r}, got NaN or infinity")
            of_component = [drawn[group.has_log(group.compose(group.inverse(g), drawn))] for g in components]
            parts = [part for part in of_component if len(part)] or [drawn]
            means = [group_mean(group, part) for part in parts]
            spreads = [matmul(v.mT, v) / max(1, len(v)) + 1e-6 * unit for _, v in means]
            factors = torch.stack([torch.linalg.cholesky(spread) for spread in spreads])
            shares = drawn.new_tensor([math.log(len(part)) for part in parts])
            centres = torch.stack([centre for centre, _ in means])
            elements, factors, shares = (x.expand(batch, *x.shape) for x in (centres, factors, shares))
        else:
            elements = group.compose(elements.unsqueeze(2), components).flatten(1, 2)
            factors = unit.expand(batch, elements.shape[1], *unit.shape)
            shares = elements.new_zeros(batch, elements.shape[1])
        return StudentMixture(group, elements, factors, shares.log_softmax(-1), _STARTING_SCALES)

    def _log_prior(self, group: LieGroup) -> Callable[[Tensor], Tensor]:
        """Return the log-density of the prior for the measure of the proposals, Lebesgue measure of the algebra."""
        if self.prior is None:
            whole = sum_over_compact(group, log_haar_volume)
            return lambda g: g.new_full(group.batch_shape(g), -whole)
        density, size = self.prior.log_prob, _log_measure(self.prior, group)

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
        self,
        draws: WeightedDraws,
        log_excess: Float[Tensor, " b"],
        target: Posterior,
        generator: torch.Generator | None,
    ) -> WeightedPopulation:
        """Return the draws, thinned to the number of samples, and their verdicts."""
        size = effective_sample_size(normalized_weights(draws.log_weights))
        index, weights = thinned_indices(draws.log_weights, self.num_samples, generator, labels=draws.labels)
        total = weights.sum(-1, keepdim=True)
        weights = torch.where(total > 0.0, weights / total, 1.0 / self.num_samples).to(draws.energies.dtype)
        effective = torch.minimum(1.0 / weights.square().sum(-1), size)
        return WeightedPopulation(
            elements=take_rows(draws.elements, index),
            num_masked_steps=torch.zeros_like(index),
            energies=draws.energies.gather(1, index),
            verdicts=_verdicts(draws, log_excess, target, size, effective, self.num_samples),
            weights=weights,
            effective_sample_size=effective,
            log_evidence=draws.log_evidence,
        )


def check_prior(prior: Any) -> Any:
    """Return a prior that has samples and densities, or ``None``, else raise `ConfigurationError`.

    A model that is given itself stands for its distribution without a condition, with all particles.
    """
    if prior is None:
        return None
    if isinstance(prior, GroupDiffusion):
        return prior.distribution()
    if isinstance(prior, ModelDistribution) and not prior.has_all_particles:
        raise ConfigurationError(
            "prior: expected a distribution of all particles, got one with a mask, which has no density of absent "
            "particles; trivgeo.generative.posterior_draws.draw_posterior takes it"
        )
    if not isinstance(prior, Prior):
        raise ConfigurationError(
            "prior: expected a distribution of elements with sample(num_samples, generator) and log_prob(g), got "
            f"{type(prior).__name__}"
        )
    check_arguments("prior.sample", prior.sample, "num_samples", "generator")
    return prior


def _log_measure(prior: Any, group: LieGroup) -> float:
    """Return the log of the measure of a prior's densities, in units of Lebesgue measure of the algebra of ``group``.

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
    """Return the first proposal with components about the hypotheses of lowest energy."""
    number = min(_MAX_HYPOTHESES, found.size)
    lowest = found.energies.topk(number, dim=1, largest=False)
    centres = take_rows(found.elements, lowest.indices)
    usable = torch.isfinite(lowest.values) & torch.isfinite(centres).flatten(2).all(-1)
    unit = start.group.identity(dtype=centres.dtype, device=centres.device)
    factors = _HYPOTHESIS_SCALE * start.factors[:, :1].expand(-1, number, -1, -1)
    shares = torch.where(usable, _PROPOSED_SHARE / number, 0.0).to(start.log_shares)
    return start.with_components(where_rows(usable, centres, unit), factors, shares)


def _with_density(start: StudentMixture, known: StudentMixture) -> StudentMixture:
    """Return the first proposal with the components, narrowed, of a mixture that is near the posterior."""
    reference = start.factors
    factors, shares = known.scales[0] * known.factors, _PROPOSED_SHARE * known.log_shares.exp()
    return start.with_components(*(part.to(reference) for part in (known.centres, factors, shares)))


def _largest_log_excess(
    draws: WeightedDraws, met: Sequence[tuple[Tensor, Float[Tensor, "b m"]]]
) -> Float[Tensor, " b"]:
    """Return the logarithm of the largest ratio of the posterior to the proposal of its sample.

    Args:
        draws: the sample.
        met: elements ``[b, m, *element_shape]`` that were met besides, with their log-densities.
    """
    elements, values = (torch.cat(parts, 1) for parts in zip(*met, strict=True))
    highest = torch.maximum(values.amax(-1), draws.log_densities.amax(-1)).unsqueeze(-1)
    excess = values - draws.log_evidence.unsqueeze(-1) - draws.proposal.log_density(elements)
    return torch.where(values > highest - _MAX_DEPTH, excess, -torch.inf).nan_to_num(nan=torch.inf).amax(-1)


def _verdicts(
    draws: WeightedDraws,
    log_excess: Float[Tensor, " b"],
    target: Posterior,
    sizes: Float[Tensor, " b"],
    effective: Float[Tensor, " b"],
    num_kept: int,
) -> tuple[Verdict, ...]:
    """Return whether the samples are to be trusted; the first reason against each that is not."""
    log_weights, energies, temperature = draws.log_weights, draws.energies, target.temperature
    heaviest = energies.gather(1, log_weights.argmax(-1, keepdim=True)).squeeze(1).abs()
    rounding = heaviest.nan_to_num(0.0) * (torch.finfo(energies.dtype).eps / temperature)
    rows = (target.unbounded, target.without_prior, sizes, effective, pareto_shape(log_weights), rounding, log_excess)
    number = log_weights.shape[1]
    data = zip(*(row.tolist() for row in rows), strict=True)
    dim = target.group.dim
    reasons = [_reason(*values, dim=dim, number=number, num_kept=num_kept, temperature=temperature) for values in data]
    named = len(target.group.components()) == target.group.num_components
    assumptions = (_ASSUMPTION,) if named else (_ASSUMPTION, _ASSUMPTION_OF_COMPONENTS)
    return tuple(Verdict((reason,) if reason else (), assumptions) for reason in reasons)


def _reason(
    is_unbounded: bool,
    has_no_prior: bool,
    size: float,
    effective: float,
    shape: float,
    error: float,
    log_excess: float,
    *,
    dim: int,
    number: int,
    num_kept: int,
    temperature: float,
) -> str:
    """Return the first reason against a sample of one datum; empty where there is none."""
    least = _MIN_EFFICIENCY * number
    if is_unbounded:
        return "an energy of minus infinity was met, which has no weight: expected one that is bounded from below"
    if has_no_prior:
        return (
            "a log-density of the prior was NaN or plus infinity at elements that were met, which got no weight: "
            "expected a finite one, or minus infinity outside of the support"
        )
    if size == 0.0:
        return f"none of {number} draws has a finite energy"
    if error > LARGEST_WEIGHT_ERROR:
        return (
            f"energies that are rounded by {error * temperature:.2g}, at temperature {temperature:.3g}: a smaller "
            "constant in the energy, or double precision, may help"
        )
    if size < max(least, SMALLEST_EFFECTIVE_SIZE) or effective < _MIN_EFFICIENCY * num_kept:
        below = (
            f"{_MIN_EFFICIENCY:.0%}"
            if size < least or size >= SMALLEST_EFFECTIVE_SIZE
            else f"{SMALLEST_EFFECTIVE_SIZE:.0f} draws"
        )
        return (
            f"effective sample size {size:.3g} of {number} draws: less than {below}; a larger "
            "budget, proposals or a prior may help"
        )
    if number < _LEAST_DRAWS and size < _EVEN_EFFICIENCY * number:
        return f"{number} draws are too few to show whether others are missing: a larger budget may help"
    if shape > LARGEST_SHAPE and number >= _MIN_DRAWS_OF_TAIL and size < _EVEN_EFFICIENCY * number:
        return (
            f"weights with a tail of Pareto shape {shape:.2f}, above {LARGEST_SHAPE}: draws that are rare and "
            "weigh much are missing, or the posterior has no finite mass; a prior, proposals or a larger budget "
            "may help"
        )
    if log_excess > _MAX_LOG_EXCESS + _LOG_EXCESS_PER_DIMENSION * dim:
        return (
            "elements were met at which the posterior is "
            f"{math.exp(min(log_excess, 99.0)):.2g} times the density of the draws: they miss a part of it, or it has "
            "no finite mass; a larger budget, proposals or a prior may help"
        )
    return ""
