"""Learned scores: exact denoising targets and implicit score matching in trivialized form, and a network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._numerics import log_abs_det
from trivgeo.checks import check_count
from trivgeo.errors import DomainError
from trivgeo.groups import LieGroup
from trivgeo.sde.process import normal, uniform_grid
from trivgeo.sde.schedule import Schedule, check_time

__all__ = ["ScoreNetwork", "denoising_loss", "implicit_loss", "noised_with_target"]


def noised_with_target(
    group: LieGroup,
    schedule: Schedule,
    clean: Tensor,
    *,
    t: float,
    steps: int = 10,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Float[Tensor, "*batch n"]]:
    r"""Noised elements :math:`g_t = g_0 x_1 \cdots x_m` and a target T, :math:`E[T \mid g_t] = \nabla \log p_t(g_t)`.

    .. math:: T = \frac1{\sum_k \sigma_k^2} \sum_k \sigma_k^2\,\mathrm{Ad}_{x_{k+1} \cdots x_m}^T s_k(x_k), \quad
        s_k(\exp v) = J_r(v)^{-T} \big(-v / \sigma_k^2 - \nabla_v \log |\det J_r(v)|\big).

    :math:`s_k` is the trivialized score of the law of :math:`x_k = \exp(\sigma_k z)` for left Haar measure. A shift of
    g_t by :math:`\exp(\eta)` from the right is one of x_k by :math:`\exp(\mathrm{Ad} \eta)`, so each k gives an
    unbiased target (the modular factors agree, as :math:`a \cdot \mathrm{Ad}_g \eta = a \cdot \eta`); weighted by
    variance they average to one whose own variance is about :math:`1 / \int \gamma^2`, as on a vector space, where T
    is :math:`-w / \int \gamma^2`. Exact for the noise of the exponential Euler scheme on every group, as long as exp is
    one to one where the increments of one step fall; take enough steps for that.

    Args:
        group: the group.
        schedule: the noise.
        clean: g_0, ``[*batch, *element_shape]``.
        t: the time, in (0, 1].
        steps: number m of increments.
        generator: the source of noise.

    Raises:
        DomainError: t is zero or lies outside [0, 1].
        ConfigurationError: ``steps`` is less than one.
    """
    if check_time(t) == 0.0:
        raise DomainError("t: expected a time above zero, got 0")
    g = clean
    total = torch.zeros(*group.batch_shape(clean), group.dim, dtype=clean.dtype, device=clean.device)
    grid = uniform_grid(steps, 0.0, t)
    for start, end in itertools.pairwise(grid):
        variance = schedule.variance(start, end)
        v = math.sqrt(variance) * normal(total.shape, clean, generator)
        x = group.exp(v)
        g = group.compose(g, x)
        total = (group.Ad(x).mT @ total.unsqueeze(-1)).squeeze(-1) + _weighted_score(group, v, variance)
    return g, total / schedule.variance(0.0, t)


def _weighted_score(group: LieGroup, v: Tensor, variance: float) -> Tensor:
    """``sigma^2 s(exp v)`` of `noised_with_target`."""
    if group.algebra.is_abelian:
        return -v
    jacobian = group.right_jacobian(v)
    slope = torch.func.grad(lambda u: log_abs_det(group.right_jacobian(u)).sum())(v)
    # J^-T y by inv_ex: `solve` of torch 2.13 is wrong under some transforms
    inverse = torch.linalg.inv_ex(jacobian)[0]
    return -(inverse.mT @ (v + variance * slope).unsqueeze(-1)).squeeze(-1)


def denoising_loss(
    score: Callable[[Tensor, float], Tensor],
    group: LieGroup,
    schedule: Schedule,
    clean: Tensor,
    *,
    t: float,
    steps: int = 10,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""``int gamma^2 E |s(g_t, t) - T|^2``, smallest at the score of p_t; see `noised_with_target`."""
    g, target = noised_with_target(group, schedule, clean, t=t, steps=steps, generator=generator)
    return schedule.variance(0.0, t) * ((score(g, t) - target) ** 2).sum(-1).mean()


def implicit_loss(score: Callable[[Tensor, float], Tensor], group: LieGroup, g: Tensor, t: float) -> Tensor:
    r"""``E[|s|^2 + 2 sum_i (X_i s_i - a_i s_i)]`` over elements of p_t, smallest at its score (Hyvärinen 2005).

    The term :math:`a_i = \mathrm{tr}\,\mathrm{ad}(e_i)` is that of integration by parts for left Haar measure. The
    divergence is exact, at one forward derivative for each basis direction.

    Args:
        score: (g, t) to ``[*batch, dim]``.
        group: the group.
        g: a sample of p_t, ``[*batch, *element_shape]``.
        t: the time.
    """
    s = score(g, t)
    zero = torch.zeros_like(s)
    divergence = torch.zeros_like(s[..., 0])
    for i in range(group.dim):
        direction = torch.zeros_like(s)
        direction[..., i] = 1.0
        change = torch.func.jvp(lambda v: score(group.perturb(g, v), t), (zero,), (direction,))[1]
        divergence = divergence + change[..., i]
    a = group.algebra.trace_ad_like(s)
    return ((s**2).sum(-1) + 2.0 * divergence - 2.0 * s @ a).mean()


class ScoreNetwork(nn.Module):
    r"""A score that depends on element and time: layers of SiLU on the element's coordinates and Fourier features.

    The output is divided by :math:`(c^2 + \int_0^t \gamma^2)^{1/2}`, the size of a score at noise level t of data of
    width c. A `FunctionScore`, or the module itself, goes into `reverse_diffusion`.

    Args:
        group: the group.
        schedule: the noise.
        width: of the hidden layers.
        depth: number of hidden layers.
        data_std: c.
        frequencies: number of Fourier features of the noise level.
    """

    frequencies: Tensor

    def __init__(
        self,
        group: LieGroup,
        schedule: Schedule,
        width: int = 128,
        depth: int = 3,
        data_std: float = 0.3,
        frequencies: int = 4,
    ) -> None:
        super().__init__()
        check_count("width", width)
        check_count("depth", depth)
        self.group = group
        self.schedule = schedule
        self.data_std = data_std
        self.register_buffer("frequencies", 2.0 ** torch.arange(frequencies))
        size = math.prod(group.element_shape) + 1 + 2 * frequencies
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(size, width), nn.SiLU()]
            size = width
        self.layers = nn.Sequential(*layers, nn.Linear(size, group.dim))

    def forward(self, g: Tensor, t: float) -> Float[Tensor, "*batch n"]:
        """The score at elements ``[*batch, *element_shape]`` and one time."""
        self.group.check_elements(g)
        level = math.sqrt(self.data_std**2 + self.schedule.variance(0.0, t))
        flat = g.flatten(-len(self.group.element_shape))
        angle = math.log(level) * self.frequencies.to(flat.dtype)
        time = torch.cat([angle[:1], angle.sin(), angle.cos()]).expand(*flat.shape[:-1], -1)
        return self.layers(torch.cat([flat, time], -1)) / level
