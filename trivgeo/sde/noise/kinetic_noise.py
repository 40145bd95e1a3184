"""Kinetic noise: noise of a momentum in the algebra, which moves the element."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import einsum
from trivgeo._random import normal
from trivgeo._text import described
from trivgeo.checks import check_count, check_positive, checked
from trivgeo.groups import LieGroup


class KineticSample(NamedTuple):
    r"""Kinetic noise, and the target of its denoising score matching.

    Attributes:
        elements: w in :math:`g_t = g_0 w`, ``[*batch, *element_shape]``.
        momentum: xi at the same time, ``[*batch, dim]``.
        target: T with :math:`E[T \mid g_0 w, \xi] = \nabla_\xi \log p_t`, ``[*batch, dim]``.
    """

    elements: Tensor
    momentum: Float[Tensor, "*batch n"]
    target: Float[Tensor, "*batch n"]

    def __repr__(self) -> str:
        return described(self)


@checked
@dataclass(frozen=True)
class KineticNoise:
    r"""Kinetic noise: trivialized kinetic diffusion from a momentum at equilibrium (Zhu et al. 2025).

    .. math:: dg = d(L_g)_e[\xi]\,dt, \quad d\xi = -\gamma \xi\,dt + \sqrt{2 \gamma}\,dw, \quad \xi_0 \sim N(0, 1)

    The momentum stays standard normal. On abelian groups the displacement and the momentum are jointly normal, and are
    drawn so. Elsewhere the element moves with the mean momenta of equal steps, whose joint distribution with the
    momentum at the end is exact: :math:`w = x_1 \cdots x_m, x_k = \exp(h \bar\xi_k)`, weak order 2.

    The target. Moving :math:`x_k \to x_k \exp(c_k \mathrm{Ad}_{x_{k+1} \cdots x_m} \eta)` leaves w as it is, to first
    order, where :math:`\sum c_k = 0`, and changes no volume; with :math:`\xi \to \xi + \eta` integration by parts gives

    .. math:: T = \nabla_\xi \log p + \sum_k c_k \mathrm{Ad}_{x_{k+1} \cdots x_m}^T s(x_k),

    p the joint density of all momenta and s(x_k) its trivialized score in x_k. The c_k are those of least variance on
    abelian groups, where T is then the score of the joint normal distribution.

    Attributes:
        group: the group of the elements.
        friction: gamma, positive.
        steps: number m of steps, on groups that are not abelian.
    """

    group: LieGroup
    friction: float = 1.0
    steps: int = 8

    def __post_init__(self) -> None:
        check_positive("friction", self.friction)
        check_count("steps", self.steps)

    def moments(self, t: Float[Tensor, "*batch"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return Var x, Cov(x, xi) and Var(xi | x) of displacement x and momentum xi on a line.

        Args:
            t: times ``[*batch]``.

        Returns:
            Three tensors ``[*batch]`` in double precision.
        """
        s = self.friction * t.double()
        decayed = -torch.expm1(-s)
        small = s < 0.02
        # s - 1 + e^-s and the determinant cancel to second and third order
        series = s * s * (0.5 - s / 6.0 + s**2 / 24.0 - s**3 / 120.0)
        variance = 2.0 * torch.where(small, series, s - decayed) / self.friction**2
        covariance = decayed / self.friction
        near = 2.0 / 3.0 * s - s**2 * 5.0 / 18.0 + s**3 * 23.0 / 270.0 - s**4 * 67.0 / 3240.0
        given = torch.where(small, near, 1.0 - covariance**2 / torch.where(small, 1.0, variance))
        return variance, covariance, given

    def time_of(self, variance: float) -> float:
        """Return the time at which a displacement has the given ``variance``, found by bisection."""
        low, high = 0.0, 1.0
        while float(self.moments(torch.tensor(high))[0]) < variance:
            high *= 2.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if float(self.moments(torch.tensor(middle))[0]) < variance else (low, middle)
        return high

    def sample(self, t: Float[Tensor, "*batch"], generator: torch.Generator | None = None) -> KineticSample:
        """Draw noise at a time of its own in every row, in the dtype and on the device of the times.

        Args:
            t: times, positive, ``[*batch]``.
            generator: random numbers; ``None`` is torch's.
        """
        return self._joint(t, generator) if self.group.algebra.is_abelian else self._simulated(t, generator)

    def _joint(self, t: Tensor, generator: torch.Generator | None) -> KineticSample:
        variance, covariance, given = (x.to(t.dtype).unsqueeze(-1) for x in self.moments(t))
        shift = variance.sqrt() * normal((*t.shape, self.group.dim), t, generator)
        rest = normal(shift.shape, t, generator)
        momentum = covariance / variance * shift + given.sqrt() * rest
        return KineticSample(self.group.exp(shift), momentum, -rest / given.sqrt())

    def _simulated(self, t: Tensor, generator: torch.Generator | None) -> KineticSample:
        m, group = self.steps, self.group
        joint = self._covariance(t.double() / m)
        factor, unknown = torch.linalg.cholesky_ex(joint)
        factor = factor.masked_fill(unknown[..., None, None] != 0, math.nan)  # unknown at times that are not positive
        inverse = torch.linalg.solve_triangular(factor, torch.eye(m + 1).to(joint), upper=False)
        z = normal((m + 1, *t.shape, group.dim), t, generator)
        means = einsum("...jk,k...n->j...n", factor.to(t.dtype), z)
        # the gradient of their joint log-density
        slopes = -einsum("...kj,k...n->j...n", inverse.to(t.dtype), z)
        # regression of the mean momenta on the momentum at the end, given their sum
        with_end, with_sum = joint[..., :m, m], joint[..., :m, :m].sum(-1)
        a, b = with_sum.sum(-1, keepdim=True), with_end.sum(-1, keepdim=True)
        shares = ((a * with_end - b * with_sum) / (a - b * b)).to(t.dtype)
        h = (t / m).unsqueeze(-1)
        x, scores = group.exp_with_score(h * means[:m], slopes[:m], h)
        w, total = x[0], shares[..., :1] * scores[0]
        for k in range(1, m):
            w = group.compose(w, x[k])
            total = group.coadjoint(x[k], total) + shares[..., k : k + 1] * scores[k]
        return KineticSample(w, means[m], slopes[m] + total)

    def _covariance(self, h: Tensor) -> Tensor:
        """The covariance of the mean momenta over m steps of length h and of the momentum at the end."""
        m = self.steps
        variance, covariance, _ = (x[..., None, None] for x in self.moments(h))
        h = h[..., None, None]
        order = torch.arange(m, dtype=torch.float64, device=h.device)
        between = (order.unsqueeze(-1) - order).abs()
        among = torch.exp(-self.friction * h * (between - 1.0).clamp(min=0.0)) * (covariance / h) ** 2
        among = torch.where(between == 0, variance / h**2, among)
        with_end = torch.exp(-self.friction * h * (m - 1.0 - order)) * covariance / h
        one = torch.ones_like(h)
        return torch.cat([torch.cat([among, with_end.mT], -1), torch.cat([with_end, one], -1)], -2)
