"""Sequential Monte Carlo on a group: particles from a broad mixture to a posterior, with Langevin moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trivgeo._autocast import einsum
from trivgeo._random import normal, uniform
from trivgeo._text import Described
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.rows import rows_like
from trivgeo.inversion.sampling.mixture import StudentMixture
from trivgeo.sde.resampling import effective_sample_size, systematic_indices
from trivgeo.sde.scores.gradient import trivialized_grad_and_value

__all__ = [
    "Annealed",
    "LogPosterior",
    "StartingDraws",
    "anneal",
    "effective_size",
    "next_beta",
    "resampled",
    "starting_draws",
]

_TARGET_ACCEPTANCE = 0.6
"""Share of Langevin moves that step sizes aim at (Roberts and Rosenthal 1998 have .574 in high dimensions)."""
_KEPT_EFFICIENCY = 0.4
"""Effective share of the particles after one change of the inverse temperature."""
_RESAMPLING_POWER = 0.5
"""Power of the weights by which particles are resampled."""
_BISECTIONS = 30
_ROUNDINGS = 10.0
"""Least eigenvalue of a precision matrix, in units of the rounding of its trace."""
_FIRST_LOG_STEP = 0.2
_BROADEST = 3.0
"""Spread in units of the basis at which slopes are taken to vanish."""


class LogPosterior:
    r"""The log-density :math:`-E(g) / T + \log p_0(g)` for the data at hand, unnormalised, and its gradient.

    Args:
        posterior: energies of elements.
        temperature: T.
        log_prior: :math:`\log p_0` of elements ``[b, m, *element_shape]``.

    Attributes:
        unbounded: whether an energy of minus infinity was met, ``[b]``; such elements count as undefined.
        without_prior: whether a log-density of the prior was NaN or plus infinity, ``[b]``; these count as undefined.
    """

    def __init__(
        self,
        posterior: ConditionalPosterior,
        temperature: float,
        log_prior: Callable[[Tensor], Tensor],
    ) -> None:
        self.posterior = posterior
        self.group = posterior.group
        self.temperature = temperature
        self.log_prior = log_prior
        self.unbounded = torch.zeros(posterior.batch, dtype=torch.bool, device=posterior.reference.device)
        self.without_prior = torch.zeros_like(self.unbounded)

    def __call__(self, g: Tensor, counted: Bool[Tensor, "b m"] | None = None) -> tuple[Tensor, Tensor]:
        """Return log-densities ``[b, m]``, minus infinity where undefined, and energies."""
        energy, prior = self.posterior.energies(g, signed=True), self.log_prior(g)
        counts = torch.ones_like(energy, dtype=torch.bool) if counted is None else counted
        self.unbounded = self.unbounded | (counts & (energy == -torch.inf)).any(-1)
        self._note(prior, counts)
        energy = torch.where(torch.isfinite(energy), energy, torch.inf)
        value = prior - energy / self.temperature
        return torch.where(counts & torch.isfinite(value), value, -torch.inf), energy

    def _note(self, prior: Tensor, counts: Tensor) -> None:
        """Keep in mind for which data a log-density of the prior is none; zero of a density is minus infinity."""
        none = prior.isnan() | (prior == torch.inf)
        self.without_prior = self.without_prior | (counts & none).any(-1)

    def with_gradient(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-densities at elements g, ``[b, m, *element_shape]``, and their derivatives by v in ``g exp(v)``.

        Where the posterior is not defined, the log-density is minus infinity and the derivatives are zero.
        """
        v = g.new_zeros(*self.group.batch_shape(g), self.group.dim)
        slope, energy = self.posterior.gradient(lambda v: self.group.perturb(g, v), v)
        prior_slope, prior = trivialized_grad_and_value(self.group, self.log_prior, g)
        self._note(prior, torch.ones_like(prior, dtype=torch.bool))
        return _where_defined(prior - energy / self.temperature, prior_slope - slope / self.temperature)


def _where_defined(value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    # slopes whose fourth powers overflow have no covariance in their dtype
    defined = torch.isfinite(value) & torch.isfinite(slope.square().sum(-1).square())
    return torch.where(defined, value, -torch.inf), torch.where(defined.unsqueeze(-1), slope, 0.0)


@dataclass(frozen=True, repr=False)
class _Particles(Described):
    """Particles with all that a move reads: elements, and log-densities and slopes of start and target."""

    elements: Tensor
    start: Tensor
    start_slope: Tensor
    target: Tensor
    target_slope: Tensor

    def log_density(self, beta: Float[Tensor, " b"]) -> Tensor:
        """Log-density of the bridge: start to the power 1 - beta times target to the power beta."""
        b = beta.unsqueeze(-1)
        return torch.where(torch.isfinite(self.target), (1.0 - b) * self.start + b * self.target, -torch.inf)

    def slope(self, beta: Float[Tensor, " b"]) -> Tensor:
        """Derivative of `log_density`."""
        b = beta[:, None, None]
        return (1.0 - b) * self.start_slope + b * self.target_slope

    def take(self, index: Tensor) -> _Particles:
        """Return the particles of given indices."""
        parts = {name: torch.take_along_dim(x, rows_like(index, x), 1) for name, x in vars(self).items()}
        return replace(self, **parts)

    def where(self, mask: Tensor, other: _Particles) -> _Particles:
        """Return the particles of ``other`` where the mask says so."""
        mine = vars(self)
        return replace(
            self, **{name: torch.where(rows_like(mask, x), x, mine[name]) for name, x in vars(other).items()}
        )


@dataclass(frozen=True, repr=False)
class Annealed(Described):
    """Particles at the end of `anneal`.

    Attributes:
        elements: ``[b, p, *element_shape]``.
        log_densities: of the target, unnormalised, ``[b, p]``.
        log_weights: of the particles, unnormalised, ``[b, p]``.
        precisions: average outer products of the slopes, ``[b, n, n]``: the curvature of the wells.
    """

    elements: Tensor
    log_densities: Float[Tensor, "b p"]
    log_weights: Float[Tensor, "b p"]
    precisions: Float[Tensor, "b n n"]


@dataclass(frozen=True, repr=False)
class StartingDraws(Described):
    """Elements drawn from a broad mixture, and what is known of the target there.

    Attributes:
        elements: ``[b, m, *element_shape]``.
        gains: log-density of the target minus that of the mixture, ``[b, m]``; minus infinity where undefined.
    """

    elements: Tensor
    gains: Float[Tensor, "b m"]

    def take(self, index: Tensor) -> Tensor:
        """Return the elements with numbers ``index``, ``[b, k]``."""
        return torch.take_along_dim(self.elements, rows_like(index, self.elements), 1)

    def spread(self, number: int, generator: torch.Generator | None) -> Tensor:
        """Choose ``number`` elements by ``generator``: half anywhere, half by the target at a high temperature."""
        defined = torch.where(torch.isfinite(self.gains), 0.0, -torch.inf)
        zero = torch.zeros_like(self.gains)
        _, likely = next_beta(self.gains, zero, zero[:, 0], 0.5 * number)
        anywhere, _ = resampled(defined, number // 2, generator)
        chosen, _ = resampled(likely, number - number // 2, generator)
        return self.take(torch.cat([anywhere, chosen], 1))


def starting_draws(
    target: LogPosterior, start: StudentMixture, number: int, generator: torch.Generator | None
) -> StartingDraws:
    """Draw elements of a mixture and evaluate the target there.

    Args:
        target: log-density of the posterior.
        start: the mixture.
        number: how many elements.
        generator: random numbers; None is torch's.
    """
    draws = start.sample(number, generator)
    value, _ = target(draws.elements, draws.principal)
    gain = value - start.log_density(draws.elements)
    return StartingDraws(draws.elements, torch.where(torch.isfinite(gain), gain, -torch.inf))


def anneal(
    target: LogPosterior,
    start: StudentMixture,
    draws: StartingDraws,
    num_particles: int,
    num_moves: int,
    generator: torch.Generator | None,
) -> Annealed:
    r"""Carry particles from a mixture to a posterior by bridges :math:`q^{1 - \beta} p^\beta` (Del Moral et al. 2006).

    Each inverse temperature keeps two fifths of the effective particles; then they are resampled and moved once by a
    Metropolis-adjusted Langevin step :math:`g \exp \xi` in the metric of their average squared slope. The reverse of
    a move is the vector :math:`-\xi`, and a move changes left Haar measure by the modular function, so that detailed
    balance is exact also where the exponential is not one to one.

    Args:
        target: the posterior.
        start: the mixture.
        draws: from it, of which particles are chosen.
        num_particles: number p of particles.
        num_moves: of each particle; what is left of the bridge after them is one step.
        generator: the source of noise.
    """
    wanted = _KEPT_EFFICIENCY * num_particles
    zero = torch.zeros_like(draws.gains)
    beta, log_weights = next_beta(draws.gains, zero, zero[:, 0], wanted)
    index, log_weights = resampled(log_weights, num_particles, generator)
    particles = _evaluated(target, start, draws.take(index))
    log_step = torch.full_like(beta, _FIRST_LOG_STEP).unsqueeze(-1)
    for move in range(num_moves):
        particles, accepted = _moved(target, start, particles, log_weights, beta, log_step, generator)
        log_step = (log_step + 2.0 * (accepted.unsqueeze(-1) - _TARGET_ACCEPTANCE)).clamp(-3.0, 1.0)
        target.posterior.step()
        if move == num_moves - 1:
            break
        beta, log_weights = next_beta(particles.target - particles.start, log_weights, beta, wanted)
        index, log_weights = resampled(log_weights, num_particles, generator)
        particles = particles.take(index)
    rest = (1.0 - beta).unsqueeze(-1) * (particles.target - particles.start)
    log_weights = torch.where(torch.isfinite(rest), log_weights + rest, -torch.inf)
    last = torch.ones_like(beta)
    return Annealed(
        particles.elements, particles.log_density(last), log_weights, _precision(particles, log_weights, last)
    )


def resampled(
    log_weights: Float[Tensor, "b m"], number: int, generator: torch.Generator | None
) -> tuple[Int[Tensor, "b k"], Float[Tensor, "b k"]]:
    """Draw indices of particles by a power of their weights, and return the weights that are left to them.

    A power below one keeps narrow wells, which weigh little until the last temperatures.

    Args:
        log_weights: logarithms of the weights, ``[b, m]``.
        number: k, how many indices.
        generator: random numbers; None is torch's.

    Returns:
        Indices ``[b, k]``, and logarithms of their weights ``[b, k]``.
    """
    log_weights = torch.where(torch.isfinite(log_weights).any(-1, keepdim=True), log_weights, 0.0)
    index = systematic_indices(_RESAMPLING_POWER * log_weights, generator, number)
    return index, ((1.0 - _RESAMPLING_POWER) * log_weights).gather(1, index)


def _evaluated(target: LogPosterior, start: StudentMixture, g: Tensor) -> _Particles:
    slope, value = trivialized_grad_and_value(target.group, start.log_density, g)
    return _Particles(g, *_where_defined(value, slope), *target.with_gradient(g))


def effective_size(log_weights: Float[Tensor, "b m"]) -> Float[Tensor, " b"]:
    """Return `effective_sample_size` of weights with logarithms ``log_weights``; zero where no weight is finite."""
    return effective_sample_size(torch.softmax(log_weights, -1).nan_to_num(0.0))


def next_beta(
    gains: Float[Tensor, "b m"], log_weights: Float[Tensor, "b m"], beta: Float[Tensor, " b"], wanted: float
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b m"]]:
    """Return the largest inverse temperature that leaves enough effective particles, by bisection, and their weights.

    Args:
        gains: log-density of the target minus that of the start.
        log_weights: before.
        beta: the inverse temperature before.
        wanted: the effective number; seven tenths of the one before if that is less.
    """

    def weights(new: Tensor) -> Tensor:
        step = (new - beta).unsqueeze(-1)
        return torch.where(torch.isfinite(gains), log_weights + step * gains, -torch.inf)

    enough = (0.7 * effective_size(weights(beta))).clamp(max=wanted)
    low, high = beta, torch.ones_like(beta)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        good = effective_size(weights(middle)) >= enough
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
    whole = torch.ones_like(beta)
    new = torch.where(effective_size(weights(whole)) >= enough, whole, low)
    return new, weights(new)


def _precision(particles: _Particles, log_weights: Tensor, beta: Tensor) -> Tensor:
    """Average outer product of the slopes, at least that of a normal distribution of a spread of three."""
    slope = particles.slope(beta)
    unit = torch.eye(slope.shape[-1]).to(slope)
    weight = torch.softmax(log_weights, -1).nan_to_num(0.0)
    square = einsum("bp,bpi,bpj->bij", weight, slope, slope)
    # as much as keeps a large one positive definite in its dtype
    size = _ROUNDINGS * torch.finfo(slope.dtype).eps * square.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return square + (1.0 / _BROADEST**2 + size) * unit


def _moved(
    target: LogPosterior,
    start: StudentMixture,
    particles: _Particles,
    log_weights: Tensor,
    beta: Tensor,
    log_step: Tensor,
    generator: torch.Generator | None,
) -> tuple[_Particles, Float[Tensor, " b"]]:
    """Return the particles after one Metropolis-adjusted Langevin step, and the share of accepted ones."""
    group, n = target.group, target.group.dim
    step = (log_step.exp() * n ** (-1.0 / 6.0)).unsqueeze(-1)  # [b, 1, 1]
    root = torch.linalg.cholesky(_precision(particles, log_weights, beta))  # of the inverse of the covariance
    inverse = torch.linalg.inv(root)
    z = normal((*particles.target.shape, n), particles.target, generator)

    def drift(p: _Particles) -> Tensor:
        """In coordinates in which the noise is white."""
        return 0.5 * step * einsum("bij,bpj->bpi", inverse, p.slope(beta))

    whitened = drift(particles) + z  # xi = step * inverse^T whitened
    xi = step * einsum("bji,bpj->bpi", inverse, whitened)
    turn = group.exp(xi)
    elements = group.compose(particles.elements, turn)
    good = torch.isfinite(elements).flatten(2).all(-1)
    elements = torch.where(rows_like(good, elements), elements, particles.elements)
    proposed = _evaluated(target, start, elements)
    log_ratio = (
        proposed.log_density(beta)
        - particles.log_density(beta)
        - 0.5 * (-whitened - drift(proposed)).square().sum(-1)
        + 0.5 * z.square().sum(-1)
        + group.log_modular(turn)
    )
    accepted = good & (uniform(log_ratio.shape, log_ratio, generator).log() < log_ratio)
    return particles.where(accepted, proposed), accepted.to(z.dtype).mean(-1)
