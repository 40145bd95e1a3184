"""Kinetic diffusion: noise on a momentum in the algebra, which moves the element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import normal
from trivgeo._text import described
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.likelihood import with_vectors
from trivgeo.sde.process import Process, Stepper, StepState, TrivializedSDE
from trivgeo.sde.schedule import ConstantSchedule
from trivgeo.sde.score import check_drift

__all__ = [
    "KineticAncestralStep",
    "KineticDiffusion",
    "KineticNoise",
    "KineticPoint",
    "KineticSample",
    "SplittingAOA",
]

MomentumScore = Callable[[Tensor, Tensor, float], Tensor]


class KineticPoint(NamedTuple):
    """The state of a `KineticDiffusion`.

    Attributes:
        elements: g, ``[*batch, *element_shape]``.
        momentum: xi, ``[*batch, dim]``.
    """

    elements: Tensor
    momentum: Float[Tensor, "*batch n"]

    def __repr__(self) -> str:
        return described(self)


class KineticSample(NamedTuple):
    r"""Kinetic noise, and what a network is to learn from it.

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


@dataclass(frozen=True)
class KineticNoise:
    r"""The law of trivialized kinetic diffusion at its times (Zhu et al. 2025), from a momentum at equilibrium.

    .. math:: dg = d(L_g)_e[\xi]\,dt, \quad d\xi = -\gamma \xi\,dt + \sqrt{2 \gamma}\,dw, \quad \xi_0 \sim N(0, 1)

    The momentum stays standard normal. On abelian groups the displacement and the momentum are jointly normal, and are
    drawn so. Elsewhere the element moves with the mean momenta of equal steps, whose joint law with the momentum at the
    end is exact: :math:`w = x_1 \cdots x_m, x_k = \exp(h \bar\xi_k)`, weak order 2.

    The target. Moving :math:`x_k \to x_k \exp(c_k \mathrm{Ad}_{x_{k+1} \cdots x_m} \eta)` leaves w as it is, to first
    order, where :math:`\sum c_k = 0`, and changes no volume; with :math:`\xi \to \xi + \eta` integration by parts gives

    .. math:: T = \nabla_\xi \log p + \sum_k c_k \mathrm{Ad}_{x_{k+1} \cdots x_m}^T s(x_k),

    p the joint law of all momenta and s(x_k) its trivialized score in x_k. The c_k are those of least variance on
    abelian groups, where T is then the score of the joint normal law.

    Attributes:
        group: see `TrivializedSDE`.
        friction: gamma, positive.
        steps: m, on groups that are not abelian.
    """

    group: LieGroup
    friction: float = 1.0
    steps: int = 8

    def __post_init__(self) -> None:
        check_positive("friction", self.friction)
        check_count("steps", self.steps)

    def moments(self, t: Float[Tensor, "*batch"]) -> tuple[Tensor, Tensor, Tensor]:
        r"""Of a displacement x on a line and its momentum: Var x, Cov(x, xi) and Var(xi | x), in double precision."""
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
        """The time at which a displacement has this variance, by bisection."""
        low, high = 0.0, 1.0
        while float(self.moments(torch.tensor(high))[0]) < variance:
            high *= 2.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if float(self.moments(torch.tensor(middle))[0]) < variance else (low, middle)
        return high

    def sample(self, t: Float[Tensor, "*batch"], generator: torch.Generator | None = None) -> KineticSample:
        """Noise at a time of its own in every row; dtype and device are those of the times.

        Args:
            t: times, positive.
            generator: see `solve`.
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
        law = self._law(t.double() / m)
        factor, unknown = torch.linalg.cholesky_ex(law)
        factor = factor.masked_fill(unknown[..., None, None] != 0, math.nan)  # of times that are not positive
        inverse = torch.linalg.solve_triangular(factor, torch.eye(m + 1).to(law), upper=False)
        z = normal((m + 1, *t.shape, group.dim), t, generator)
        means = torch.einsum("...jk,k...n->j...n", factor.to(t.dtype), z)
        # the gradient of their joint log-density
        slopes = -torch.einsum("...kj,k...n->j...n", inverse.to(t.dtype), z)
        # how they follow the momentum at the end, given their sum
        with_end, with_sum = law[..., :m, m], law[..., :m, :m].sum(-1)
        a, b = with_sum.sum(-1, keepdim=True), with_end.sum(-1, keepdim=True)
        shares = ((a * with_end - b * with_sum) / (a - b * b)).to(t.dtype)
        h = (t / m).unsqueeze(-1)
        x, scores = group.exp_with_score(h * means[:m], slopes[:m], h)
        w, total = x[0], shares[..., :1] * scores[0]
        for k in range(1, m):
            w = group.compose(w, x[k])
            total = group.coadjoint(x[k], total) + shares[..., k : k + 1] * scores[k]
        return KineticSample(w, means[m], slopes[m] + total)

    def _law(self, h: Tensor) -> Tensor:
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


@dataclass(frozen=True, repr=False)
class KineticDiffusion(Process):
    r"""Kinetic diffusion forwards in time, and with a score backwards: an equation for `solve`.

    .. math:: dg = d(L_g)_e[\xi]\,dt, \quad d\xi = -(\gamma \xi + 2 \gamma \nabla_\xi \log p_t)\,dt
        + \sqrt{2 \gamma}\,d\bar w

    is the time reversal of `KineticNoise`: noise enters in the momentum alone, so that its score is all that is needed,
    on every group: the divergence of :math:`\xi \cdot X`, a constant on the group, is reversed with it.

    Attributes:
        group: where g lives.
        friction: gamma, positive.
        score: elements, momentum and a time to ``[*batch, dim]``; without one the process runs forwards only.
    """

    group: LieGroup
    friction: float = 1.0
    score: MomentumScore | None = None

    def __post_init__(self) -> None:
        check_positive("friction", self.friction)

    @property
    def horizon(self) -> float:
        """Infinite."""
        return math.inf

    def check_state(self, state: KineticPoint, name: str) -> None:
        """A `KineticPoint`."""
        if not isinstance(state, KineticPoint):
            raise ConfigurationError(f"{name}: expected a KineticPoint, got {type(state)}")
        self.group.check_elements(state.elements, f"{name}.elements")
        expected = (*self.group.batch_shape(state.elements), self.group.dim)
        if state.momentum.shape != expected:
            raise ShapeError(f"{name}.momentum: expected {list(expected)}, got {list(state.momentum.shape)}")

    def batch_shape(self, state: KineticPoint) -> torch.Size:
        """The batch shape of the elements."""
        return self.group.batch_shape(state.elements)

    def default_stepper(self) -> Stepper[KineticDiffusion, KineticPoint]:
        """`SplittingAOA`."""
        return SplittingAOA()

    def pull(self, g: Tensor, momentum: Float[Tensor, "*batch n"], t: float) -> Float[Tensor, "*batch n"]:
        r"""What pulls backwards, :math:`\nabla_\xi \log p_t + \xi`: zero at equilibrium.

        Raises:
            ConfigurationError: there is no score.
            ShapeError: it returns no vector for each element.
        """
        if self.score is None:
            raise ConfigurationError("score: expected one to run backwards, got none")
        return check_drift(self.score(g, momentum, t), self.group, g) + momentum

    def flow(self) -> TrivializedSDE:
        r"""The ordinary equation with the same laws, :math:`\dot\xi = -\gamma (\xi + \nabla_\xi \log p_t)`.

        On G x R^dim, the elements flat with their momentum after them.

        Raises:
            ConfigurationError: there is no score.
        """
        group = self.group
        if self.score is None:
            raise ConfigurationError("score: expected one for the probability flow, got none")

        def drift(state: Tensor, t: float) -> Tensor:
            g, momentum = split_state(group, state)
            return torch.cat([momentum, -self.friction * self.pull(g, momentum, t)], -1)

        return TrivializedSDE(with_vectors(group, group.dim), ConstantSchedule(0.0), drift, noisy=False)


def split_state(group: LieGroup, state: Tensor) -> KineticPoint:
    """Element and momentum of a state of `KineticDiffusion.flow`."""
    flat, momentum = state[..., : -group.dim], state[..., -group.dim :]
    return KineticPoint(flat.unflatten(-1, group.element_shape), momentum)


def join_state(group: LieGroup, point: KineticPoint) -> Tensor:
    """The inverse of `split_state`."""
    return torch.cat([point.elements.flatten(-len(group.element_shape)), point.momentum], -1)


class SplittingAOA(Stepper[KineticDiffusion, KineticPoint]):
    r"""Half a drift, the noise, half a drift: a palindrome of exact flows; one score and two exponentials a step.

    The momentum is exact for a constant :math:`r = \nabla_\xi \log p_t + \xi`, which is zero at equilibrium:
    :math:`\xi \leftarrow e^{-\gamma h} \xi + 2 (1 - e^{-\gamma h}) r + (1 - e^{-2 \gamma h})^{1/2} z` backwards over
    h. The score is asked for in the middle of a step, never at its end.
    """

    def times(self, grid: Sequence[float]) -> tuple[float, ...]:
        """The middles of the steps."""
        return tuple(0.5 * (a + b) for a, b in itertools.pairwise(grid))

    def step(
        self,
        sde: KineticDiffusion,
        state: StepState,
        start: float,
        end: float,
        generator: torch.Generator | None,
    ) -> StepState:
        """One score."""
        point, h = state.y, end - start
        g = sde.group.retract(point.elements, 0.5 * h * point.momentum)
        keep = math.exp(-sde.friction * abs(h))
        momentum = keep * point.momentum
        if h < 0.0:
            pull = sde.pull(g, point.momentum, 0.5 * (start + end))
            momentum = momentum + 2.0 * (1.0 - keep) * pull
        momentum = momentum + math.sqrt(1.0 - keep**2) * normal(momentum.shape, momentum, generator)
        return StepState(KineticPoint(sde.group.retract(g, 0.5 * h * momentum), momentum))


class KineticAncestralStep(Stepper[KineticDiffusion, KineticPoint]):
    r"""Backwards: element and momentum given where the noise is thought to have started; one score and one exponential.

    Of a displacement x and its momentum from :math:`Z_0 = (0, \xi_0)`, see `KineticNoise`, the law of
    :math:`Z_s` given :math:`Z_t` is normal,

    .. math:: Z_s = K Z_t + N(0, \Sigma_s - K \Sigma_t K^T), \quad K = \Sigma_s A^T \Sigma_t^{-1}, \quad
        A = \begin{pmatrix} 1 & C_{t-s} \\ 0 & e^{-\gamma (t-s)} \end{pmatrix},

    :math:`\Sigma_t` their covariance and :math:`C_t` its second entry. The displacement is taken from the clean
    element that the score stands for, :math:`x = \sigma_t^2 r / C_t + C_t \xi`, with
    :math:`r = \nabla_\xi \log p_t + \xi` and :math:`\sigma^2 = \mathrm{Var}(x \mid \xi)`, and the element moves by
    :math:`x_s - x_t` in its own frame. x is extrapolated to the middle of the step in the logarithm of the time from
    its last two values.

    Exact on abelian groups where all data are one element, at any step, which no scheme is that takes the score to be
    constant. Ancestral sampling (Ho, Jain and Abbeel 2020) in two steps (Lu et al. 2022, "DPM-Solver++"), of kinetic
    diffusion; for grids of about equal ratios.
    """

    def init(
        self, sde: KineticDiffusion, y: KineticPoint, start: float, generator: torch.Generator | None
    ) -> StepState:
        """Nothing is known of an earlier step."""
        return StepState(y, (torch.zeros_like(y.momentum), torch.full_like(y.momentum[..., :1], math.inf)))

    def step(
        self,
        sde: KineticDiffusion,
        state: StepState,
        start: float,
        end: float,
        generator: torch.Generator | None,
    ) -> StepState:
        """One score.

        Raises:
            ConfigurationError: the times rise, or there is no score.
            ShapeError: see `KineticDiffusion.pull`.
        """
        if not start > end:
            raise ConfigurationError(f"stepper: expected falling times, got {start} to {end}")
        point = state.y
        noise = KineticNoise(sde.group, sde.friction)
        covariance, free, mean, root = _bridge(noise, start, end)
        pull = sde.pull(point.elements, point.momentum, start)
        x = free / covariance * pull + covariance * point.momentum
        expected, apart = state.memory
        ratio = math.log(start / end) if end > 0.0 else 0.0
        middle = x + 0.5 * ratio / apart * (x - expected)  # at time zero, infinitely far, x as it is
        first, second = (normal(point.momentum.shape, point.momentum, generator) for _ in range(2))
        moved = (mean[0][0] - 1.0) * middle + mean[0][1] * point.momentum + root[0][0] * first
        momentum = mean[1][0] * middle + mean[1][1] * point.momentum + root[1][0] * first + root[1][1] * second
        after = KineticPoint(sde.group.retract(point.elements, moved), momentum)
        return StepState(after, (x + moved, torch.full_like(apart, ratio)))


def _bridge(noise: KineticNoise, start: float, end: float) -> tuple[float, float, list[list[float]], list[list[float]]]:
    """Of `KineticAncestralStep`: C and sigma^2 at the start, K, and a root of the covariance."""
    times = torch.tensor([start, end, start - end], dtype=torch.float64)
    moments = zip(*(x.tolist() for x in noise.moments(times)), strict=True)
    (v, c, given), (v_end, c_end, _), (v_step, c_step, given_step) = moments
    decay = math.expm1(-noise.friction * (start - end))
    square = lambda x, xy, y: torch.tensor([[x, xy], [xy, y]], dtype=torch.float64)  # noqa: E731
    before, after = square(v, c, 1.0), square(v_end, c_end, 1.0)
    added = square(v_step * given_step, -c_step * decay, -decay * (2.0 + decay))
    a = torch.tensor([[1.0, c_step], [0.0, 1.0 + decay]], dtype=torch.float64)
    mean = torch.linalg.solve(before, a @ after).mT
    rest = torch.eye(2, dtype=torch.float64) - mean @ a
    (xx, _), (xy, yy) = (rest @ after @ rest.mT + mean @ added @ mean.mT).tolist()
    spread = math.sqrt(max(xx, 0.0))
    slope = xy / spread if spread > 0.0 else 0.0  # at time zero the element is known
    root = [[spread, 0.0], [slope, math.sqrt(max(yy - slope**2, 0.0))]]
    return c, v * given, mean.tolist(), root
