"""A Metropolis-adjusted move on a group: momenta, the leapfrog scheme, and the exact rule of acceptance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import Constant
from trivgeo._random import normal, uniform
from trivgeo._text import Described
from trivgeo.groups import LieGroup

_MIN_EIGENVALUE_IN_ROUNDINGS = 10.0  # least eigenvalue of a precision matrix, in units of the rounding of its trace


@dataclass(frozen=True, repr=False)
class DensityAt(Described):
    """Elements with the log-density of a target for left Haar measure, and its slopes.

    Attributes:
        elements: ``[*batch, *element_shape]``.
        log_densities: up to a constant, ``[*batch]``; minus infinity or NaN where the target is not defined.
        slopes: their derivatives by v in ``g exp(v)``, ``[*batch, n]``.
        record: by-products of the evaluation.
    """

    elements: Tensor
    log_densities: Float[Tensor, "*batch"]
    slopes: Float[Tensor, "*batch n"]
    record: Any = None


@dataclass(frozen=True, repr=False)
class Move(Described):
    """A proposal, and what the rule of Metropolis says to it.

    Attributes:
        proposed: the proposal; not to be used where it is not accepted.
        accepted: mask of the chains that move, ``[*batch]``.
        log_ratios: logarithms of the ratio of acceptance, ``[*batch]``; NaN or minus infinity where the proposal is
            outside of the domain of the group or of the target.
    """

    proposed: DensityAt
    accepted: Bool[Tensor, "*batch"]
    log_ratios: Float[Tensor, "*batch"]


def slope_precision(square: Float[Tensor, "*batch n n"], max_std: float) -> Float[Tensor, "*batch n n"]:
    """Return a mean outer product of slopes, about the curvature of wells, as a positive definite precision matrix.

    The result is at least the precision of a normal distribution with the standard deviation ``max_std``.
    """
    # the least precision keeps a large one positive definite in its dtype
    size = _MIN_EIGENVALUE_IN_ROUNDINGS * torch.finfo(square.dtype).eps * square.diagonal(dim1=-2, dim2=-1).sum(-1)
    unit = torch.eye(square.shape[-1]).to(square)
    return square + (1.0 / max_std**2 + size[..., None, None]) * unit


def leapfrog(
    group: LieGroup,
    evaluate: Callable[[Tensor], DensityAt],
    start: DensityAt,
    momenta: Float[Tensor, "*batch n"],
    step_size: Tensor,
    factor: Float[Tensor, "*s n n"],
    num_steps: int,
) -> tuple[DensityAt, Float[Tensor, "*batch n"], Float[Tensor, "*batch"]]:
    r"""Follow the motion :math:`\dot g = d(L_g)_e[F z], \dot z = F^T (\nabla \log p - a)` by the leapfrog scheme.

    A step is half a kick :math:`z \leftarrow z + \tfrac12 h F^T (\nabla \log p - a)`, the drift
    :math:`g \leftarrow g \exp(h F z)`, and half a kick. Each is undone by the same with -z for z, so that the scheme is
    reversible wherever exp is defined, one to one or not. A kick keeps volumes. A drift multiplies left Haar measure by
    :math:`\lambda(\exp(h F z)) = e^{-h\, a \cdot F z}, a_i = \mathrm{tr}\, \mathrm{ad}(e_i)`: in other words it keeps
    right Haar measure, for which the density is :math:`p \lambda`, of slope :math:`\nabla \log p - a`. The motion
    keeps :math:`\log (p \lambda) - \tfrac12 |z|^2` on every group. No coadjoint term is needed for this, and the
    exponential need not be a geodesic (Barp, Kennedy and Girolami 2019 treat the canonical flow).

    Args:
        group: the group.
        evaluate: the target at elements.
        start: the target at the first elements.
        momenta: z, in coordinates in which their distribution is standard normal.
        step_size: h, one or one for each chain.
        factor: F, such that :math:`F F^T` is the inverse of the mass matrix; broadcasts with ``[*batch[:-1], n, n]``.
        num_steps: number of steps.

    Returns:
        The target at the end, NaN where the path leaves the domain of the group, the momenta there, and the logarithm
        of the modular function of the way.
    """
    algebra, places = group.algebra, (1,) * len(group.element_shape)
    a = None if algebra.is_unimodular else Constant(algebra.trace_ad).matching(momenta)
    h = torch.as_tensor(step_size).to(momenta).unsqueeze(-1)

    def kicked(z: Tensor, at: DensityAt, share: float) -> Tensor:
        force = at.slopes if a is None else at.slopes - a
        return z + share * h * matmul(force, factor)

    g = start.elements
    good = torch.ones_like(start.log_densities, dtype=torch.bool)
    log_modular = torch.zeros_like(start.log_densities)
    end, z = start, kicked(momenta, start, 0.5)
    for k in range(num_steps):
        xi = h * matmul(z, factor.mT)
        g = group.retract(g, xi)
        good = good & torch.isfinite(g).flatten(good.ndim).all(-1)
        g = torch.where(good.reshape(good.shape + places), g, start.elements)  # evaluations see elements only
        if a is not None:
            log_modular = log_modular - matmul(xi, a)
        end = evaluate(g)
        z = kicked(z, end, 1.0 if k < num_steps - 1 else 0.5)
    value = torch.where(good, end.log_densities, torch.nan)
    return DensityAt(end.elements, value, end.slopes, end.record), z, log_modular


def metropolis_move(
    group: LieGroup,
    evaluate: Callable[[Tensor], DensityAt],
    start: DensityAt,
    step_size: Tensor,
    factor: Float[Tensor, "*s n n"],
    num_steps: int,
    generator: torch.Generator | None,
) -> Move:
    """Draw momenta, follow a `leapfrog` path, and accept its end by the rule that keeps the target.

    One step of the path is a Metropolis-adjusted Langevin step (MALA), several are Hamiltonian Monte Carlo. Detailed
    balance is exact for every step size, since the path is reversible and its change of volume is known.
    """
    shape = (*start.log_densities.shape, group.dim)
    momenta = normal(shape, start.log_densities, generator)
    end, last, log_modular = leapfrog(group, evaluate, start, momenta, step_size, factor, num_steps)
    log_ratios = (
        end.log_densities
        - start.log_densities
        - 0.5 * last.square().sum(-1)
        + 0.5 * momenta.square().sum(-1)
        + log_modular
    )
    accepted = uniform(log_ratios.shape, log_ratios, generator).log() < log_ratios
    return Move(end, accepted, log_ratios)
