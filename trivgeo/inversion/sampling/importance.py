"""Adaptive importance sampling of a posterior, from particles on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trivgeo._autocast import einsum, matmul
from trivgeo._random import uniform
from trivgeo._text import Described
from trivgeo.groups import LieGroup
from trivgeo.inversion.sampling.annealing import Annealed, LogPosterior
from trivgeo.inversion.sampling.mixture import StudentMixture, reach_of_normal

__all__ = ["WeightedDraws", "adaptive_importance_sampling", "mixture_of_particles", "thinned"]

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
