"""Exploration of a posterior: particles annealed to it, ascents to its maxima, and a mixture that covers both."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trivgeo._autocast import einsum, matmul
from trivgeo._random import uniform
from trivgeo._text import Described
from trivgeo.groups import LieGroup
from trivgeo.inversion.curvature import absolute_eigh, safe_cholesky
from trivgeo.inversion.posterior import Posterior, where_defined
from trivgeo.inversion.rows import highest_apart, where_rows
from trivgeo.inversion.sampling.mixture import Charts, StudentMixture, reach_of_normal
from trivgeo.sde.mcmc.metropolis import DensityAt, metropolis_move, slope_precision
from trivgeo.sde.resampling import next_inverse_temperature, normalized_weights, resample, take_rows
from trivgeo.sde.scores.gradient import trivialized_grad_and_value

_TARGET_ACCEPTANCE = 0.6  # accepted share of Langevin moves; .574 in high dimensions (Roberts and Rosenthal 1998)
_KEPT_EFFICIENCY = 0.4  # effective share of the particles after one change of the inverse temperature
# power of the weights by which particles are resampled: below one it keeps narrow wells, which weigh little until the
# last temperatures
_RESAMPLING_POWER = 0.5
_MAX_STD = 3.0  # standard deviation, in units of the basis, at which slopes are taken to vanish
_FIRST_LOG_STEP = 0.2  # logarithm of the first step of a Langevin move, in standard deviations of the particles

_NUM_COMPONENTS = 8  # components of a proposal, beside the broad one
_BROAD_SHARE = 0.05  # share of the draws from the broad component, which finds what the particles have missed

_FIRST_ASCENT_LENGTH, _MAX_ASCENT_LENGTH = 0.2, 0.7  # lengths of the steps of an ascent, in units of the basis
_DIFFERENCE_IN_WIDTHS = 0.1  # step of a difference of slopes, in estimated widths of the well
_MIN_STEP_IN_WIDTHS = 0.02  # shortest step that measures the width of a well, in such widths
_MIN_RELATIVE_CURVATURE = 0.01  # least curvature of a component, in units of the largest
_PARTICLES_PER_DIMENSION = 5.0  # particles, for each dimension, that are enough to tell the shape of a well
_MAX_COVER_IN_WIDTHS = 3.0  # size of a component that covers a well, in widths; its centre is within about one width
_SHARE_OF_MAXIMA = 0.3  # share of the first draws that components about maxima get
_MAX_SHARE_OF_A_PRODUCT = 0.05  # largest share of the first draws that a component about a product gets
_MAX_FALL = 3.0  # log-density of the highest centre over that of a product, above which it is no mode like others
_MIN_LOG_EXCESS = 1.0  # log-density over that of a mixture, above those of its centres, of elements that it misses
_MIN_WIDTH, _MAX_WIDTH = 1e-4, 1.0  # widths of wells, in units of the basis


@dataclass(frozen=True, repr=False)
class WeightedDraws(Described):
    """Independent draws of a mixture, and their importance weights for a posterior.

    Attributes:
        proposal: the mixture.
        elements: ``[b, m, *element_shape]``.
        energies: posterior energies, ``[b, m]``.
        log_weights: logarithms of density over proposal, ``[b, m]``, minus infinity where undefined; the mean of the
            weights is the evidence.
        charts: the elements about the centres of the mixture.
        component_log_densities: `StudentMixture.log_densities` there, ``[b, m, j]``.
    """

    proposal: StudentMixture
    elements: Tensor
    energies: Float[Tensor, "b m"]
    log_weights: Float[Tensor, "b m"]
    charts: Charts
    component_log_densities: Float[Tensor, "b m j"]

    @property
    def labels(self) -> Int[Tensor, "b m"]:
        """The component that is the most probable origin of each element."""
        return self.component_log_densities.argmax(-1)

    @property
    def log_densities(self) -> Float[Tensor, "b m"]:
        """Log-densities of the posterior, unnormalised, minus infinity where undefined."""
        return self.log_weights + self.component_log_densities.logsumexp(-1)

    @property
    def log_evidence(self) -> Float[Tensor, " b"]:
        """Logarithm of the mean weight."""
        return self.log_weights.logsumexp(-1) - math.log(self.log_weights.shape[1])


def weighted_draws(
    target: Posterior, proposal: StudentMixture, num_draws: int, generator: torch.Generator | None
) -> WeightedDraws:
    """Draw ``num_draws`` elements of a mixture for each datum, and weight them for a posterior."""
    elements, principal = proposal.sample(num_draws, generator)
    value, energies = target.log_prob_and_energy(elements, principal)
    charts = proposal.charts(elements)
    densities = proposal.log_densities(charts)
    log_weights = value - densities.logsumexp(-1)
    log_weights = torch.where(torch.isfinite(log_weights), log_weights, -torch.inf)
    return WeightedDraws(proposal, elements, energies, log_weights, charts, densities)


def choose_starts(draws: WeightedDraws, num_elements: int, generator: torch.Generator | None) -> Tensor:
    """Choose elements ``[b, k, *element_shape]`` to search from, half of them anywhere, half by the posterior at a high
    temperature.
    """
    defined = torch.where(torch.isfinite(draws.log_weights), 0.0, -torch.inf)
    zero = torch.zeros_like(draws.log_weights)
    _, likely = next_inverse_temperature(draws.log_weights, zero, zero[:, 0], 0.5 * num_elements)
    half = num_elements // 2
    anywhere, _ = resample(defined, half, generator, power=_RESAMPLING_POWER)
    chosen, _ = resample(likely, num_elements - half, generator, power=_RESAMPLING_POWER)
    return take_rows(draws.elements, torch.cat([anywhere, chosen], 1))


@dataclass(frozen=True, repr=False)
class Particles(Described):
    """Weighted elements between a mixture and a posterior, with their densities and slopes.

    Attributes:
        elements: ``[b, p, *element_shape]``.
        log_weights: unnormalised, ``[b, p]``.
        log_densities: log-densities of the posterior, unnormalised, ``[b, p]``.
        slopes: their derivatives by v in ``g exp(v)``, ``[b, p, n]``.
        start_log_densities: log-densities of the mixture, ``[b, p]``.
        start_slopes: derivatives of ``start_log_densities``.
    """

    elements: Tensor
    log_weights: Float[Tensor, "b p"]
    log_densities: Float[Tensor, "b p"]
    slopes: Float[Tensor, "b p n"]
    start_log_densities: Float[Tensor, "b p"]
    start_slopes: Float[Tensor, "b p n"]

    @staticmethod
    def at(target: Posterior, start: StudentMixture, g: Tensor, log_weights: Tensor) -> Particles:
        """Return particles at elements ``g`` with ``log_weights``, between ``start`` and ``target``."""
        start_slope, start_value = trivialized_grad_and_value(target.group, start.log_density, g)
        return Particles(g, log_weights, *target.log_prob_and_gradient(g), *where_defined(start_value, start_slope))

    def bridge(self, beta: Float[Tensor, " b"]) -> Float[Tensor, "b p"]:
        """Return log-densities of the mixture to the power 1 - beta times the posterior to the power ``beta``."""
        b = beta.unsqueeze(-1)
        value = (1.0 - b) * self.start_log_densities + b * self.log_densities
        return torch.where(torch.isfinite(self.log_densities), value, -torch.inf)

    def bridge_slopes(self, beta: Float[Tensor, " b"]) -> Float[Tensor, "b p n"]:
        """Return the derivatives of `bridge` at ``beta``."""
        b = beta[:, None, None]
        return (1.0 - b) * self.start_slopes + b * self.slopes

    def precision(self, beta: Float[Tensor, " b"]) -> Float[Tensor, "b n n"]:
        """Return the `slope_precision` of the average outer product of `bridge_slopes` at ``beta``."""
        slope = self.bridge_slopes(beta)
        square = einsum("bp,bpi,bpj->bij", normalized_weights(self.log_weights), slope, slope)
        return slope_precision(square, _MAX_STD)

    def where(self, mask: Bool[Tensor, "b p"], other: Particles) -> Particles:
        """Return the particles of ``other`` where the mask says so."""
        pairs = zip(vars(other).values(), vars(self).values(), strict=True)
        return Particles(*(where_rows(mask, theirs, mine) for theirs, mine in pairs))

    def resampled(self, log_weights: Float[Tensor, "b p"], generator: torch.Generator | None) -> Particles:
        """Return as many particles drawn by ``log_weights``, with the weights that resampling leaves to them."""
        index, left = resample(log_weights, log_weights.shape[1], generator, power=_RESAMPLING_POWER)
        chosen = Particles(*(take_rows(x, index) for x in vars(self).values()))
        return replace(chosen, log_weights=left)


def anneal(
    target: Posterior,
    start: StudentMixture,
    draws: WeightedDraws,
    num_particles: int,
    num_moves: int,
    generator: torch.Generator | None,
) -> Particles:
    r"""Carry particles from a mixture to a posterior by bridges :math:`q^{1 - \beta} p^\beta` (Del Moral et al. 2006).

    Each inverse temperature keeps two fifths of the effective particles; then they are resampled and moved once by a
    Metropolis-adjusted Langevin step in the metric of their average squared slope (`trivgeo.sde.mcmc`). After
    ``num_moves`` moves the rest of the bridge is one step.
    """
    wanted = _KEPT_EFFICIENCY * num_particles
    zero = torch.zeros_like(draws.log_weights)
    beta, log_weights = next_inverse_temperature(draws.log_weights, zero, zero[:, 0], wanted)
    index, log_weights = resample(log_weights, num_particles, generator, power=_RESAMPLING_POWER)
    particles = Particles.at(target, start, take_rows(draws.elements, index), log_weights)
    log_step = torch.full_like(beta, _FIRST_LOG_STEP).unsqueeze(-1)
    for move in range(num_moves):
        particles, accepted = _moved(target, start, particles, beta, log_step, generator)
        log_step = (log_step + 2.0 * (accepted.unsqueeze(-1) - _TARGET_ACCEPTANCE)).clamp(-3.0, 1.0)
        target.step()
        if move == num_moves - 1:
            break
        log_ratios = particles.log_densities - particles.start_log_densities
        beta, log_weights = next_inverse_temperature(log_ratios, particles.log_weights, beta, wanted)
        particles = particles.resampled(log_weights, generator)
    rest = (1.0 - beta).unsqueeze(-1) * (particles.log_densities - particles.start_log_densities)
    return replace(particles, log_weights=torch.where(torch.isfinite(rest), particles.log_weights + rest, -torch.inf))


def _moved(
    target: Posterior,
    start: StudentMixture,
    particles: Particles,
    beta: Tensor,
    log_step: Tensor,
    generator: torch.Generator | None,
) -> tuple[Particles, Float[Tensor, " b"]]:
    """Return the particles after one Metropolis-adjusted Langevin step, and the share of accepted ones."""
    group = target.group

    def at(p: Particles) -> DensityAt:
        return DensityAt(p.elements, p.bridge(beta), p.bridge_slopes(beta), p)

    step = log_step.exp() * group.dim ** (-1.0 / 6.0)  # [b, 1]
    factor = torch.linalg.inv(torch.linalg.cholesky(particles.precision(beta))).mT
    move = metropolis_move(
        group,
        lambda g: at(Particles.at(target, start, g, particles.log_weights)),
        at(particles),
        step,
        factor,
        1,
        generator,
    )
    return particles.where(move.accepted, move.proposed.record), move.accepted.to(step.dtype).mean(-1)


def mixture_of_particles(particles: Particles, broad: StudentMixture) -> tuple[StudentMixture, Float[Tensor, "b j"]]:
    """Return a mixture that covers particles, and the numbers of particles of its components.

    A component is about the particle of highest density that no other has reached, and reaches as far as a normal
    distribution of the particles' precision. A particle belongs to the component whose centre is nearest. The
    first component of ``broad`` becomes the last one, with a small share.
    """
    group, g = broad.group, particles.elements
    root = torch.linalg.cholesky(particles.precision(torch.ones_like(particles.log_weights[:, 0])))
    centre, member = _clusters(group, particles, root)
    v = group.log(group.compose(group.inverse(centre).unsqueeze(1), g.unsqueeze(2)))
    v = torch.where((member > 0.0).unsqueeze(-1), v, 0.0).nan_to_num(0.0)
    number = member.sum(1)
    mean = einsum("bpj,bpji->bji", member, v) / number.clamp(min=1.0).unsqueeze(-1)
    off = torch.where((member > 0.0).unsqueeze(-1), v - mean.unsqueeze(1), 0.0)
    spread = einsum("bpj,bpjk,bpjl->bjkl", member, off, off) / number.clamp(min=1.0)[..., None, None]
    trust = (number / (number + group.dim + 1.0))[..., None, None]
    narrow = torch.linalg.inv(root).mT.unsqueeze(1)  # a factor of the inverse of the precision matrix
    triangle = torch.linalg.qr(narrow.mT).R.mT
    triangle = triangle * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    factors, _ = safe_cholesky(trust * spread + (1.0 - trust) * matmul(narrow, narrow.mT), triangle)
    weight = normalized_weights(particles.log_weights)
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


def _clusters(group: LieGroup, particles: Particles, root: Tensor) -> tuple[Tensor, Float[Tensor, "b p j"]]:
    """Return centres of components, ``[b, j, *element_shape]``, and the component of each particle, one-hot or zero."""
    g, height = particles.elements, particles.log_densities
    rows = torch.arange(len(g), device=g.device)
    distances = []

    def near(index: Tensor) -> Tensor:
        v = group.log(group.compose(group.inverse(g[rows, index]).unsqueeze(1), g))
        distance = matmul(v, root).square().sum(-1)
        distance = torch.where(torch.isfinite(distance), distance, torch.inf)
        distance[rows, index] = 0.0
        distances.append(distance)
        return distance <= reach_of_normal(group.dim)

    heights = torch.where(torch.isfinite(height), height, -torch.inf)
    index, used = highest_apart(heights, _NUM_COMPONENTS, near)
    centres = take_rows(g, index)
    away = torch.where(used.unsqueeze(1), torch.stack(distances, -1), torch.inf)
    member = torch.nn.functional.one_hot(away.argmin(-1), _NUM_COMPONENTS).to(g.dtype)
    known = torch.isfinite(height) & torch.isfinite(away).any(-1)
    return centres, torch.where(known.unsqueeze(-1), member, 0.0)


@dataclass(frozen=True, repr=False)
class LocalMaxima(Described):
    """End points of ascents of a log-density; ``widths`` of the wells along the last steps, in units of the basis."""

    elements: Tensor
    log_densities: Float[Tensor, "b d"]
    slopes: Float[Tensor, "b d n"]
    widths: Float[Tensor, "b d"]


def ascend(target: Posterior, elements: Tensor, num_steps: int) -> LocalMaxima:
    """Climb from elements ``[b, d, *element_shape]`` by ``num_steps`` steps as long as Barzilai and Borwein (1988) say.

    A step that goes down is taken back, and the next one is shorter.
    """
    group = target.group
    g = elements
    value, slope = target.log_prob_and_gradient(g)
    size = (_FIRST_ASCENT_LENGTH / slope.norm(dim=-1).clamp(min=1e-12)).clamp(max=1.0)
    width = torch.full_like(size, _FIRST_ASCENT_LENGTH)
    for _ in range(num_steps - 1):
        v = size.unsqueeze(-1) * slope
        v = v * (_MAX_ASCENT_LENGTH / v.norm(dim=-1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
        moved = group.retract(g, v)
        finite = torch.isfinite(moved).flatten(2).all(-1)
        moved = where_rows(finite, moved, g)
        new_value, new_slope = target.log_prob_and_gradient(moved)
        higher = finite & (new_value >= value)
        bend = (v * (slope - new_slope)).sum(-1)
        concave = bend > 0.0
        exact = concave & (v.norm(dim=-1) > _MIN_STEP_IN_WIDTHS * width)  # shorter ones measure rounding
        length = v.square().sum(-1) / bend.clamp(min=1e-30)
        width = torch.where(exact, length.sqrt().clamp(_MIN_WIDTH, _MAX_WIDTH), width)
        size = torch.where(concave, length, torch.where(higher, 2.0, 0.25) * size)
        g, slope = where_rows(higher, moved, g), where_rows(higher, new_slope, slope)
        value = torch.where(higher, new_value, value)
    return LocalMaxima(g, value, slope, width)


def with_maxima(
    target: Posterior, proposal: StudentMixture, particles: Float[Tensor, "b j"], ends: LocalMaxima, num_further: int
) -> StudentMixture:
    """Return a mixture with further components about the ends of ascents that it does not cover.

    Such a component has the inverse of minus the second derivative of the log-density as its covariance, by differences
    of slopes; all of them share a fixed part of the draws.

    Args:
        proposal: the mixture, whose last component is broad and covers nothing.
        particles: numbers of particles of which its components were made; small numbers tell no shape.
        num_further: the largest number of further components.
    """
    index, usable = _uncovered(proposal, particles, ends, num_further)
    centre, slope = take_rows(ends.elements, index), take_rows(ends.slopes, index)
    width = ends.widths.gather(1, index)
    covariance = _curvature(target, centre, slope, width).inverse()
    factors, positive = safe_cholesky(covariance)
    newton = matmul(covariance, slope.unsqueeze(-1)).squeeze(-1)
    newton = newton * (width.unsqueeze(-1) / newton.norm(dim=-1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
    share = torch.where(usable & positive, _SHARE_OF_MAXIMA / num_further, 0.0).to(factors.dtype)
    return proposal.with_components(target.group.retract(centre, newton.nan_to_num(0.0)), factors, share, first=True)


def with_products(
    target: Posterior,
    proposal: StudentMixture,
    num_products: int,
    num_further: int,
    generator: torch.Generator | None,
) -> tuple[StudentMixture, Tensor, Float[Tensor, "b m"]]:
    r"""Return a mixture with further components about products :math:`c_i c_j^{-1} c_k` of its centres.

    The modes of an object with symmetries S are g S for one g, and such products are others of them. A product that is
    about as high as a centre, and that the mixture covers less than any centre, gets a component with the covariance of
    :math:`c_i`, which multiplication from the right has turned: :math:`c_i e^v c_j^{-1} c_k = p \, e^{\mathrm{Ad} v}`
    with Ad of the inverse of :math:`c_j^{-1} c_k`.

    Args:
        proposal: the mixture, whose last component is broad and has no part in products.
        num_products: number of products, drawn at random.
        num_further: the largest number of further components, which share a fixed part of the draws.

    Returns:
        The mixture; the products, ``[b, m, *element_shape]``; their log-densities.
    """
    group, centres = proposal.group, proposal.centres[:, :-1]
    used = torch.isfinite(proposal.log_shares[:, :-1])
    order = used.to(torch.int8).argsort(dim=-1, descending=True, stable=True)  # those in use first
    draw = uniform((len(used), 3 * num_products), proposal.factors, generator)
    index = order.gather(1, (draw * used.sum(-1, keepdim=True).clamp(min=1)).long())
    first, second, third = (take_rows(centres, part) for part in index.chunk(3, 1))
    turn = group.compose(group.inverse(second), third)
    products = group.compose(first, turn)
    unit = group.identity(dtype=products.dtype, device=products.device)
    finite = torch.isfinite(products).flatten(2).all(-1)
    turn, products = where_rows(finite, turn, unit), where_rows(finite, products, unit)
    elements = torch.cat([products, centres], 1)
    values, _ = target.log_prob_and_energy(elements)
    excess = values - proposal.log_density(elements)
    heights, known = (torch.where(used, x[:, num_products:], -torch.inf) for x in (values, excess))
    values, excess = values[:, :num_products], excess[:, :num_products]
    free = finite & (excess > known.amax(-1, keepdim=True) + _MIN_LOG_EXCESS)
    free = free & (values > heights.amax(-1, keepdim=True) - _MAX_FALL)
    factors = matmul(group.Ad(group.inverse(turn)), take_rows(proposal.factors, index[:, :num_products]))
    factors, positive = safe_cholesky(matmul(factors, factors.mT))
    free = free & positive
    rows = torch.arange(len(used), device=used.device)

    def near(index: Tensor) -> Tensor:
        v = group.log(group.compose(group.inverse(products[rows, index]).unsqueeze(1), products))
        away = torch.linalg.solve_triangular(factors[rows, index], v.mT, upper=False).square().sum(-2)
        return away < reach_of_normal(group.dim)

    at, kept = highest_apart(torch.where(free, values, -torch.inf), num_further, near)
    needed = kept.any(0)  # components that no datum uses would only take time
    if not bool(needed.any()):
        return proposal, products, values
    at, share = at[:, needed], kept[:, needed].to(factors.dtype)
    share = share * (_SHARE_OF_MAXIMA / share.sum(-1, keepdim=True).clamp(min=1.0)).clamp(max=_MAX_SHARE_OF_A_PRODUCT)
    mixture = proposal.with_components(take_rows(products, at), take_rows(factors, at), share, first=True)
    return mixture, products, values


def _uncovered(
    proposal: StudentMixture, particles: Float[Tensor, "b j"], ends: LocalMaxima, number: int
) -> tuple[Tensor, Tensor]:
    """Return indices of the highest ends apart from each other and from a mixture, and whether there are so many."""
    group, n, g = proposal.group, proposal.group.dim, ends.elements
    rows = torch.arange(len(g), device=g.device)
    reach = reach_of_normal(n)
    sizes = proposal.factors.diagonal(dim1=-2, dim2=-1).log().mean(-1).exp()  # [b, j]
    charts = proposal.charts(g)
    away = torch.where(torch.isfinite(charts.log_volumes), charts.vectors.square().sum(-1), torch.inf)  # [b, d, j]
    width = ends.widths.unsqueeze(-1)
    covers = (away < (n + 1) * width.square()) & (sizes.unsqueeze(1) < _MAX_COVER_IN_WIDTHS * width)
    shaped = torch.isfinite(proposal.log_shares) & (particles > _PARTICLES_PER_DIMENSION * n)
    covers = covers & shaped.unsqueeze(1)
    free = torch.isfinite(ends.log_densities) & ~covers[..., :-1].any(-1)
    log_mass = ends.log_densities + n * ends.widths.log()

    def near(index: Tensor) -> Tensor:
        distance = group.log(group.compose(group.inverse(g[rows, index]).unsqueeze(1), g)).square().sum(-1)
        return distance < reach * ends.widths[rows, index].square().unsqueeze(-1)

    return highest_apart(torch.where(free, log_mass, -torch.inf), number, near)


def _curvature(target: Posterior, centre: Tensor, slope: Tensor, width: Tensor) -> Float[Tensor, "b k n n"]:
    """Return minus the second derivative of the log-density, positive definite; by the width where undefined."""
    n = slope.shape[-1]
    unit = torch.eye(n).to(slope)
    h = (_DIFFERENCE_IN_WIDTHS * width)[..., None, None]
    _, slopes = target.log_prob_and_gradient(target.group.retract(centre.unsqueeze(2), h * unit).flatten(1, 2))
    bend = (slope.unsqueeze(2) - slopes.unflatten(1, (-1, n))) / h
    by_width = unit / width[..., None, None].square()
    values, vectors = absolute_eigh(0.5 * (bend + bend.mT), _MIN_RELATIVE_CURVATURE, by_width)
    return matmul(vectors, values.clamp(min=1.0).unsqueeze(-1) * vectors.mT)
