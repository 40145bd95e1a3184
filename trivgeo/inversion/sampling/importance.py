"""Adaptive importance sampling of a posterior, from particles on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trivgeo._autocast import einsum, matmul
from trivgeo._numerics import eigh
from trivgeo._random import keyed, uniform
from trivgeo._text import Described
from trivgeo.checks import check_arguments, check_count, check_positive, check_type
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.generative.distribution_fitting import group_mean
from trivgeo.generative.distributions import sum_over_compact
from trivgeo.generative.model import GroupDiffusion, ModelDistribution
from trivgeo.groups import LieGroup
from trivgeo.groups.harmonic import log_haar_volume
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.rows import rows_like
from trivgeo.inversion.sampling.annealing import Annealed, LogPosterior, anneal, effective_size, starting_draws
from trivgeo.inversion.sampling.mixture import StudentMixture, reach_of_normal
from trivgeo.inversion.sampling.weighted import ImportanceWeights, WeightedPopulation
from trivgeo.inversion.stage import EvaluatedPopulation, Population, Stage
from trivgeo.inversion.stages.chains import WarmStart

__all__ = [
    "LARGEST_SHAPE",
    "Ascents",
    "ImportanceSampling",
    "Prior",
    "WeightedDraws",
    "adaptive_importance_sampling",
    "ascend",
    "mixture_of_particles",
    "pareto_shape",
    "thinned",
    "with_wells",
]

LARGEST_SHAPE = 0.7
"""Pareto shape above which averages with weights are not reliable (Vehtari et al. 2024, section 3.2)."""
_FEWEST = 5
"""Number of weights in a tail below which nothing is said of it."""
_PRIOR_WEIGHT, _PRIOR_SHAPE = 10.0, 0.5
_SPREAD_OF_RATES = 3.0
"""Quartiles of the tail that candidates of the rate reach (Zhang and Stephens 2009, section 3)."""


def pareto_shape(log_weights: Float[Tensor, "b m"]) -> Float[Tensor, " b"]:
    r"""Return the shape k of the generalised Pareto distribution of the largest importance weights.

    Weights of shape k have :math:`1 / k` moments. Above one half their variance is infinite, above one their mean: then
    the effective sample size says nothing, since what is rare and heavy was not drawn. The tail are the
    :math:`\min(m / 5, 3 \sqrt m)` largest weights (Vehtari et al. 2024, Pareto smoothed importance sampling). The fit
    is that of Zhang and Stephens (2009), drawn towards one half as if by ten more weights.

    Args:
        log_weights: logarithms of the weights; minus infinity for none.

    Returns:
        Shapes; minus infinity where the largest weights are equal, or less than five of a tail are positive.
    """
    weights = torch.softmax(log_weights.double(), -1).nan_to_num(0.0)
    number = log_weights.shape[-1]
    size = min(number // 5, math.ceil(3.0 * math.sqrt(number)))
    if size < _FEWEST:
        return log_weights.new_full(log_weights.shape[:-1], -torch.inf)
    falling = weights.sort(-1, descending=True).values
    excess = (falling[..., :size] - falling[..., size : size + 1]).flip(-1)  # rising
    largest = excess[..., -1:]
    known = (falling[..., _FEWEST - 1] > 0.0) & (largest.squeeze(-1) > 1e-9 * falling[..., 0])
    x = excess / torch.where(known.unsqueeze(-1), largest, 1.0)
    quartile = x[..., int(size / 4 + 0.5) - 1].clamp(min=1e-6).unsqueeze(-1)
    count = 30 + int(math.sqrt(size))
    place = torch.arange(1, count + 1, dtype=x.dtype, device=x.device) - 0.5
    rates = 1.0 + (1.0 - (count / place).sqrt()) / (_SPREAD_OF_RATES * quartile)  # [b, c]
    rates = torch.where(rates.abs() < 1e-12, 1e-12, rates).clamp(max=1.0 - 1e-12)
    shapes = torch.log1p(-rates.unsqueeze(-1) * x.unsqueeze(-2)).mean(-1)
    heights = size * ((-rates / shapes).log() - shapes - 1.0)
    rate = (heights.nan_to_num(nan=-torch.inf).softmax(-1) * rates).sum(-1, keepdim=True)
    shape = torch.log1p(-rate * x).mean(-1)
    shape = (size * shape + _PRIOR_WEIGHT * _PRIOR_SHAPE) / (size + _PRIOR_WEIGHT)
    return torch.where(known, shape, -torch.inf).to(log_weights)


_NUM_COMPONENTS = 8
"""Components of a proposal, beside the broad one."""
_BROAD_SHARE = 0.05
"""Share of the draws from the broad component, which finds what the particles have missed."""
_LEAST_SHARE = 0.005


@dataclass(frozen=True, repr=False)
class WeightedDraws(Described):
    """Elements and their importance weights.

    Attributes:
        elements: ``[b, m, *element_shape]``.
        energies: posterior energies, ``[b, m]``.
        log_weights: logarithms of density over proposal, ``[b, m]``; their mean is the evidence.
        labels: the component of the last proposal that is the most probable origin of each element, ``[b, m]``.
    """

    elements: Tensor
    energies: Float[Tensor, "b m"]
    log_weights: Float[Tensor, "b m"]
    labels: Int[Tensor, "b m"]


def mixture_of_particles(particles: Annealed, broad: StudentMixture) -> tuple[StudentMixture, Float[Tensor, "b j"]]:
    """Return a mixture that covers particles, from the one of highest density on, and numbers of them by component.

    A component has the particles within the reach of a normal distribution of the particles' precision about the
    highest one that no other has; the last one takes what is left, and the nearest component every other.

    Args:
        particles: ends of `anneal`.
        broad: whose first component becomes the last one, with a small share.
    """
    group, g = broad.group, particles.elements
    root = torch.linalg.cholesky(particles.precisions)
    centre, member = _clusters(group, particles, root)
    v = group.log(group.compose(group.inverse(centre).unsqueeze(1), g.unsqueeze(2)))
    v = torch.where((member > 0.0).unsqueeze(-1), v, 0.0).nan_to_num(0.0)
    number = member.sum(1)
    mean = einsum("bpj,bpji->bji", member, v) / number.clamp(min=1.0).unsqueeze(-1)
    off = torch.where((member > 0.0).unsqueeze(-1), v - mean.unsqueeze(1), 0.0)
    spread = einsum("bpj,bpjk,bpjl->bjkl", member, off, off) / number.clamp(min=1.0)[..., None, None]
    trust = (number / (number + group.dim + 1.0))[..., None, None]
    narrow = torch.linalg.inv(root).mT.unsqueeze(1)  # a factor of the inverse of the precision
    factors, fault = torch.linalg.cholesky_ex(trust * spread + (1.0 - trust) * matmul(narrow, narrow.mT))
    usable = (fault == 0) & torch.isfinite(factors).flatten(2).all(-1)
    triangle = torch.linalg.qr(narrow.mT).R.mT
    triangle = triangle * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    factors = torch.where(usable[..., None, None], factors, triangle)
    weight = torch.softmax(particles.log_weights, -1).nan_to_num(0.0)
    shares = torch.where(number > 0, einsum("bp,bpj->bj", weight, member) + 0.2 / _NUM_COMPONENTS, 0.0)
    total = shares.sum(-1, keepdim=True)
    shares = (1.0 - _BROAD_SHARE) * shares / total.clamp(min=1e-12)
    rest = torch.where(total > 0.0, _BROAD_SHARE, 1.0).to(shares)  # all of it where there are no particles
    mixture = StudentMixture(
        group,
        torch.cat([group.retract(centre, mean), broad.centres[:, :1]], 1),
        torch.cat([factors, broad.factors[:, :1]], 1),
        torch.cat([shares, rest], 1).log(),
    )
    return mixture, torch.cat([number, torch.zeros_like(rest)], 1)


def _clusters(group: LieGroup, particles: Annealed, root: Tensor) -> tuple[Tensor, Float[Tensor, "b p j"]]:
    """Centres of components, ``[b, j, *element_shape]``, and one for the component of each particle, else zero."""
    g, height = particles.elements, particles.log_densities
    rows = torch.arange(len(g), device=g.device)
    free = torch.isfinite(height)
    centres, distances = [], []
    for _ in range(_NUM_COMPONENTS):
        index = torch.where(free, height, -torch.inf).argmax(-1)
        centre = g[rows, index]
        v = group.log(group.compose(group.inverse(centre).unsqueeze(1), g))
        distance = matmul(v, root).square().sum(-1)
        distance = torch.where(torch.isfinite(distance) & free.any(-1, keepdim=True), distance, torch.inf)
        distance[rows, index] = torch.where(free.any(-1), 0.0, torch.inf).to(distance)
        centres.append(centre)
        distances.append(distance)
        free = free & (distance > reach_of_normal(group.dim))
    away = torch.stack(distances, -1)
    member = torch.nn.functional.one_hot(away.argmin(-1), _NUM_COMPONENTS).to(g.dtype)
    known = torch.isfinite(height) & torch.isfinite(away).any(-1)
    return torch.stack(centres, 1), torch.where(known.unsqueeze(-1), member, 0.0)


def adaptive_importance_sampling(
    target: LogPosterior, proposal: StudentMixture, numbers: Sequence[int], generator: torch.Generator | None
) -> WeightedDraws:
    """Draw in rounds from mixtures, each refitted to the weighted draws of the round before (Cappe et al. 2008).

    The draws of the last round alone are returned: given its proposal they are independent, so that their mean weight
    is the evidence without bias.

    Args:
        target: the posterior.
        proposal: the first mixture.
        numbers: draws of each round.
        generator: the source of noise.
    """
    for place, number in enumerate(numbers):
        draws = proposal.sample(number, generator)
        value, energy = target(draws.elements, draws.principal)
        charts = proposal.charts(draws.elements)
        densities = proposal.log_densities(charts)
        height = densities.logsumexp(-1)
        log_weights = torch.where(torch.isfinite(value) & torch.isfinite(height), value - height, -torch.inf)
        if place < len(numbers) - 1:
            proposal = proposal.refitted(charts, densities, log_weights, _LEAST_SHARE)
        target.posterior.step()
    return WeightedDraws(draws.elements, energy, log_weights, densities.argmax(-1))


def thinned(
    draws: WeightedDraws, number: int, generator: torch.Generator | None
) -> tuple[Int[Tensor, "b k"], Float[Tensor, "b k"]]:
    """Draw indices of ``number`` draws, each once, and their weights, which sum to about one and are right on average.

    Weights above a bound c stay. A draw of weight w below c is taken with probability w / c, and has then the weight c
    (Fearnhead and Clifford 2003). Draws are taken along the components, so that each component keeps its share.

    Args:
        draws: weighted elements.
        number: how many are kept.
        generator: random numbers; None is torch's.

    Returns:
        Indices ``[b, number]``, and weights ``[b, number]``.
    """
    weights = torch.softmax(draws.log_weights.double(), -1).nan_to_num(0.0)
    order = draws.labels.argsort(dim=-1, stable=True)
    weights = weights.gather(1, order)
    raised = weights + 1e-12 / weights.shape[-1]  # so that enough are positive
    probability = (raised / _bound(raised, number)).clamp(max=1.0)
    cumulative = probability.cumsum(-1)
    cumulative = cumulative * (number / cumulative[:, -1:])
    shift = uniform((len(weights), 1), cumulative, generator)
    position = torch.arange(number, dtype=torch.float64, device=weights.device) + shift
    index = torch.searchsorted(cumulative, position, right=True).clamp(max=weights.shape[-1] - 1)
    kept = weights.gather(1, index) / probability.gather(1, index)
    return order.gather(1, index), kept


def _bound(weights: Tensor, number: int) -> Tensor:
    """The c for which the weights, each over c but one at most, sum to ``number``, ``[b, 1]``."""
    falling = weights.sort(-1, descending=True).values
    rest = falling.flip(-1).cumsum(-1).flip(-1)  # of each and all smaller ones
    kept = torch.arange(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    c = rest / (number - kept).clamp(min=1.0)
    possible = (falling <= c) & (kept < number)
    first = possible.to(torch.int64).argmax(-1, keepdim=True)
    return c.gather(1, first)


_FIRST_STEP, _LONGEST_STEP = 0.2, 0.7
"""Of an ascent, in units of the basis."""
_DIFFERENCE = 0.1
"""Step of a difference of slopes, in estimated widths of the well."""
_SHORTEST_STEP = 0.02
"""Step that measures the width of a well, in such widths."""
_LEAST_CURVATURE = 0.01
"""Least curvature of a component, as a share of the largest."""
_PARTICLES_OF_A_SHAPE = 5.0
"""Number of particles, for each dimension, of which the shape of a well is known."""
_COVERING = 3.0
"""Size of a component that covers a well, in widths of the well, at most; its centre is within about one width."""
_SHARE = 0.3
"""Share of the first draws that the further components get."""
_SMALLEST_WIDTH, _LARGEST_WIDTH = 1e-4, 1.0
"""In units of the basis."""


@dataclass(frozen=True, repr=False)
class Ascents(Described):
    """End points of ascents of a log-density.

    Attributes:
        elements: ``[b, d, *element_shape]``.
        log_densities: ``[b, d]``.
        slopes: ``[b, d, n]``.
        widths: of the wells along the last steps, in units of the basis, ``[b, d]``.
    """

    elements: Tensor
    log_densities: Float[Tensor, "b d"]
    slopes: Float[Tensor, "b d n"]
    widths: Float[Tensor, "b d"]


def ascend(target: LogPosterior, elements: Tensor, steps: int) -> Ascents:
    """Climb from each of ``[b, d, *element_shape]`` by steps of the length of Barzilai and Borwein (1988).

    A step that goes down is taken back, and the next one is shorter.

    Args:
        target: the posterior.
        elements: where to begin.
        steps: gradients of each.
    """
    group = target.group
    g = elements
    value, slope = target.with_gradient(g)
    size = (_FIRST_STEP / slope.norm(dim=-1).clamp(min=1e-12)).clamp(max=1.0)
    width = torch.full_like(size, _FIRST_STEP)
    for _ in range(steps - 1):
        v = size.unsqueeze(-1) * slope
        v = v * (_LONGEST_STEP / v.norm(dim=-1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
        moved = group.retract(g, v)
        finite = torch.isfinite(moved).flatten(2).all(-1)
        moved = torch.where(rows_like(finite, moved), moved, g)
        new_value, new_slope = target.with_gradient(moved)
        higher = finite & (new_value >= value)
        bend = (v * (slope - new_slope)).sum(-1)
        concave = bend > 0.0
        exact = concave & (v.norm(dim=-1) > _SHORTEST_STEP * width)  # shorter ones measure rounding
        length = v.square().sum(-1) / bend.clamp(min=1e-30)
        width = torch.where(exact, length.sqrt().clamp(_SMALLEST_WIDTH, _LARGEST_WIDTH), width)
        size = torch.where(concave, length, torch.where(higher, 2.0, 0.25) * size)
        g = torch.where(rows_like(higher, g), moved, g)
        slope = torch.where(higher.unsqueeze(-1), new_slope, slope)
        value = torch.where(higher, new_value, value)
    return Ascents(g, value, slope, width)


def with_wells(
    target: LogPosterior, proposal: StudentMixture, particles: Float[Tensor, "b j"], ends: Ascents, number: int
) -> StudentMixture:
    """Return a mixture with further components about the ends of ascents that it does not cover.

    Such a component has the inverse of the second derivative of the log-density as its covariance, by differences of
    slopes; all of them share a fixed part of the draws.

    Args:
        target: the posterior.
        proposal: the mixture, whose last component is broad and covers nothing.
        particles: of which each of its components was made; few of them tell no shape.
        ends: of ascents.
        number: the largest number of further components.
    """
    index, usable = _uncovered(proposal, particles, ends, number)
    centre = torch.take_along_dim(ends.elements, rows_like(index, ends.elements), 1)
    width = ends.widths.gather(1, index)
    slope = torch.take_along_dim(ends.slopes, index.unsqueeze(-1), 1)
    covariance = _curvature(target, centre, slope, width).inverse()
    factors, fault = torch.linalg.cholesky_ex(covariance)
    usable = usable & (fault == 0)
    factors = torch.where(usable[..., None, None], factors, torch.eye(target.group.dim).to(factors))
    newton = matmul(covariance, slope.unsqueeze(-1)).squeeze(-1)
    newton = newton * (width.unsqueeze(-1) / newton.norm(dim=-1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
    share = torch.where(usable, _SHARE / number, 0.0).to(factors.dtype)
    return StudentMixture(
        target.group,
        torch.cat([target.group.retract(centre, newton.nan_to_num(0.0)), proposal.centres], 1),
        torch.cat([factors, proposal.factors], 1),
        torch.cat([share.log(), proposal.log_shares + torch.log1p(-share.sum(-1, keepdim=True))], 1),
    )


def _uncovered(
    proposal: StudentMixture, particles: Float[Tensor, "b j"], ends: Ascents, number: int
) -> tuple[Tensor, Tensor]:
    """Indices of the highest ends apart from each other and from a mixture, and whether there are so many."""
    group, n, g = proposal.group, proposal.group.dim, ends.elements
    rows = torch.arange(len(g), device=g.device)
    reach = reach_of_normal(n)
    sizes = proposal.factors.diagonal(dim1=-2, dim2=-1).log().mean(-1).exp()  # [b, j]
    charts = proposal.charts(g)
    away = torch.where(torch.isfinite(charts.log_volumes), charts.vectors.square().sum(-1), torch.inf)  # [b, d, j]
    width = ends.widths.unsqueeze(-1)
    covers = (away < (n + 1) * width.square()) & (sizes.unsqueeze(1) < _COVERING * width)
    shaped = torch.isfinite(proposal.log_shares) & (particles > _PARTICLES_OF_A_SHAPE * n)
    covers = covers & shaped.unsqueeze(1)
    free = torch.isfinite(ends.log_densities) & ~covers[..., :-1].any(-1)
    log_mass = ends.log_densities + n * ends.widths.log()
    chosen, used = [], []
    for _ in range(number):
        best = torch.where(free, log_mass, -torch.inf).argmax(-1)
        used.append(free.any(-1))
        chosen.append(best)
        away = group.log(group.compose(group.inverse(g[rows, best]).unsqueeze(1), g)).square().sum(-1)
        free = free & ~(away < reach * ends.widths[rows, best].square().unsqueeze(-1))
        free[rows, best] = False
    return torch.stack(chosen, 1), torch.stack(used, 1)


def _curvature(target: LogPosterior, centre: Tensor, slope: Tensor, width: Tensor) -> Float[Tensor, "b k n n"]:
    """Minus the second derivative of the log-density, made positive definite; by the width where it is undefined."""
    n = slope.shape[-1]
    unit = torch.eye(n).to(slope)
    h = (_DIFFERENCE * width)[..., None, None]
    _, slopes = target.with_gradient(target.group.retract(centre.unsqueeze(2), h * unit).flatten(1, 2))
    bend = (slope.unsqueeze(2) - slopes.unflatten(1, (-1, n))) / h
    bend = 0.5 * (bend + bend.mT)
    defined = torch.isfinite(bend).flatten(2).all(-1)[..., None, None]
    values, vectors = eigh(torch.where(defined, bend, unit / width[..., None, None].square()))
    largest = values.abs().amax(-1, keepdim=True)
    values = torch.maximum(values.abs(), _LEAST_CURVATURE * largest).clamp(min=1.0)
    return matmul(vectors, values.unsqueeze(-1) * vectors.mT)


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
    """A distribution of transformations, such as a `GroupDistribution`.

    Densities are for the measure of `trivgeo.generative.distributions.GroupDistribution`, and `torch.func` can
    differentiate them.
    """

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw independent elements of the prior, ``[num_samples, *element_shape]``.

        Args:
            num_samples: number of elements.
            generator: random numbers; ``None`` is torch's.
        """

    def log_prob(self, g: Tensor) -> Tensor:
        """Return log-densities of elements g, ``[*batch, *element_shape]``, as ``[*batch]``."""


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
        if posterior.reference.dtype not in (torch.float32, torch.float64):
            raise ConfigurationError(
                "x_tilde: expected data in float32 or float64, for weights of a sample, got "
                f"{posterior.reference.dtype}"
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
    reference = start.factors
    return _joined(
        start,
        known.centres.to(reference),
        known.scales[0] * known.factors.to(reference),
        known.log_shares.exp().to(reference),
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
