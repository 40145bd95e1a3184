"""Wells of a posterior that particles may miss: short ascents from many places, and curvatures where they end."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._linalg import eigh
from trivgeo._text import Described
from trivgeo.inversion.rows import rows_like
from trivgeo.inversion.sampling.annealing import LogPosterior
from trivgeo.inversion.sampling.mixture import StudentMixture, reach_of_normal

__all__ = ["Ascents", "ascend", "with_wells"]

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
