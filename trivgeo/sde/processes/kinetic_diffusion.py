"""Ancestral sampling of kinetic diffusion."""

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
from trivgeo.checks import check_positive, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.kinetic_noise import KineticNoise
from trivgeo.sde.noise.schedule import ConstantSchedule
from trivgeo.sde.processes.base import Process, Stepper, StepState, with_vectors
from trivgeo.sde.processes.trivialized import TrivializedSDE
from trivgeo.sde.scores.base import check_drift

MomentumScore = Callable[[Tensor, Tensor, float], Tensor]


class KineticState(NamedTuple):
    """The state of a `KineticDiffusion`.

    Attributes:
        elements: g, ``[*batch, *element_shape]``.
        momentum: xi, ``[*batch, dim]``.
    """

    elements: Tensor
    momentum: Float[Tensor, "*batch n"]

    def __repr__(self) -> str:
        return described(self)


@checked
@dataclass(frozen=True, repr=False)
class KineticDiffusion(Process):
    r"""Kinetic diffusion forwards in time, and with a score backwards: an equation for `solve`.

    .. math:: dg = d(L_g)_e[\xi]\,dt, \quad d\xi = -(\gamma \xi + 2 \gamma \nabla_\xi \log p_t)\,dt
        + \sqrt{2 \gamma}\,d\bar w

    is the time reversal of `KineticNoise`. Noise enters in the momentum alone, so that the score by the momentum is
    enough on every group: the divergence of :math:`\xi \cdot X`, a constant on the group, is reversed with it.

    Attributes:
        group: the group of g.
        friction: gamma, positive.
        score: function of elements, momenta and a time to ``[*batch, dim]``; without it the process runs forwards only.
    """

    group: LieGroup
    friction: float = 1.0
    score: MomentumScore | None = None

    def __post_init__(self) -> None:
        check_positive("friction", self.friction)

    @property
    def horizon(self) -> float:
        """Infinity: the process has no end."""
        return math.inf

    def check_state(self, state: KineticState, name: str) -> None:
        if not isinstance(state, KineticState):
            raise ConfigurationError(f"{name}: expected a KineticState, got {type(state)}")
        self.group.check_elements(state.elements, f"{name}.elements")
        expected = (*self.group.batch_shape(state.elements), self.group.dim)
        if state.momentum.shape != expected:
            raise ShapeError(f"{name}.momentum: expected {list(expected)}, got {list(state.momentum.shape)}")

    def batch_shape(self, state: KineticState) -> torch.Size:
        return self.group.batch_shape(state.elements)

    def default_stepper(self) -> Stepper[KineticDiffusion, KineticState]:
        """Return the scheme that `solve` uses by default, a `SplittingAOA`."""
        return SplittingAOA()

    def pull(self, g: Tensor, momentum: Float[Tensor, "*batch n"], t: float) -> Float[Tensor, "*batch n"]:
        r"""Return the reversing force :math:`\nabla_\xi \log p_t + \xi`, ``[*batch, dim]``; zero at equilibrium.

        Args:
            g: elements ``[*batch, *element_shape]``.
            momentum: xi, ``[*batch, dim]``.
            t: the time.

        Raises:
            ConfigurationError: there is no score.
            ShapeError: the score does not return a vector for each element.
        """
        if self.score is None:
            raise ConfigurationError("score: expected a score to run backwards, got None")
        return check_drift(self.score(g, momentum, t), self.group, g) + momentum

    def flow(self) -> TrivializedSDE:
        r"""Return the probability flow, :math:`\dot\xi = -\gamma (\xi + \nabla_\xi \log p_t)`.

        The state is on G x R^dim: flat elements, followed by their momenta.

        Raises:
            ConfigurationError: there is no score.
        """
        group = self.group
        if self.score is None:
            raise ConfigurationError("score: expected a score, which the probability flow follows, got None")

        def drift(state: Tensor, t: float) -> Tensor:
            g, momentum = split_state(group, state)
            return torch.cat([momentum, -self.friction * self.pull(g, momentum, t)], -1)

        return TrivializedSDE(with_vectors(group, group.dim), ConstantSchedule(0.0), drift, noisy=False)


def split_state(group: LieGroup, state: Tensor) -> KineticState:
    """Split a state of `KineticDiffusion.flow` into elements ``[*batch, *element_shape]`` of the group and momenta."""
    flat, momentum = state[..., : -group.dim], state[..., -group.dim :]
    return KineticState(flat.unflatten(-1, group.element_shape), momentum)


def join_state(group: LieGroup, point: KineticState) -> Tensor:
    """Join elements and momenta to one state of `KineticDiffusion.flow`, ``[*batch, size + dim]``."""
    return torch.cat([point.elements.flatten(-len(group.element_shape)), point.momentum], -1)


@checked
class SplittingAOA(Stepper[KineticDiffusion, KineticState]):
    r"""Half a drift, the noise, half a drift: symmetric exact flows, with one score and two exponentials a step.

    The momentum is exact for a constant :math:`r = \nabla_\xi \log p_t + \xi`, which is zero at equilibrium:
    :math:`\xi \leftarrow e^{-\gamma h} \xi + 2 (1 - e^{-\gamma h}) r + (1 - e^{-2 \gamma h})^{1/2} z` backwards over
    h. The score is evaluated in the middle of a step, never at its end.
    """

    def times(self, grid: Sequence[float]) -> tuple[float, ...]:
        return tuple(0.5 * (a + b) for a, b in itertools.pairwise(grid))

    def step(
        self, sde: KineticDiffusion, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        point, h = state.y, end - start
        g = sde.group.retract(point.elements, 0.5 * h * point.momentum)
        keep = math.exp(-sde.friction * abs(h))
        momentum = keep * point.momentum
        if h < 0.0:
            pull = sde.pull(g, point.momentum, 0.5 * (start + end))
            momentum = momentum + 2.0 * (1.0 - keep) * pull
        momentum = momentum + math.sqrt(1.0 - keep**2) * normal(momentum.shape, momentum, generator)
        return StepState(KineticState(sde.group.retract(g, 0.5 * h * momentum), momentum))


@checked
class KineticAncestralStep(Stepper[KineticDiffusion, KineticState]):
    r"""Ancestral sampling of element and momentum, given the clean element that the score stands for.

    For a displacement x and its momentum from :math:`Z_0 = (0, \xi_0)`, see `KineticNoise`, the
    distribution of :math:`Z_s` given :math:`Z_t` is normal,

    .. math:: Z_s = K Z_t + N(0, \Sigma_s - K \Sigma_t K^T), \quad K = \Sigma_s A^T \Sigma_t^{-1}, \quad
        A = \begin{pmatrix} 1 & C_{t-s} \\ 0 & e^{-\gamma (t-s)} \end{pmatrix},

    :math:`\Sigma_t` their covariance and :math:`C_t` its second entry. The displacement is taken from the clean
    element that the score stands for, :math:`x = \sigma_t^2 r / C_t + C_t \xi`, with
    :math:`r = \nabla_\xi \log p_t + \xi` and :math:`\sigma^2 = \mathrm{Var}(x \mid \xi)`, and the element moves by
    :math:`x_s - x_t` in its own frame. x is extrapolated to the middle of the step in the logarithm of the time from
    its last two values.

    The step is exact on abelian groups where all data are one element, whatever its length, unlike schemes with a
    constant score. It is ancestral sampling (Ho, Jain and Abbeel 2020) in two steps (Lu et al. 2022, "DPM-Solver++"),
    for kinetic diffusion; for grids of about equal ratios.
    """

    def init(
        self, sde: KineticDiffusion, y: KineticState, start: float, generator: torch.Generator | None
    ) -> StepState:
        """Return the state before the first step, whose memory marks that no step came before."""
        return StepState(y, (torch.zeros_like(y.momentum), torch.full_like(y.momentum[..., :1], math.inf)))

    def step(
        self, sde: KineticDiffusion, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        """Advance the process by one step, with one evaluation of the score and one exponential.

        Raises:
            ConfigurationError: the times rise, or there is no score.
            ShapeError: the score returns another shape than vectors ``[*batch, dim]``.
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
        middle = x + 0.5 * ratio / apart * (x - expected)  # a step to time zero takes x as it is
        first, second = (normal(point.momentum.shape, point.momentum, generator) for _ in range(2))
        moved = (mean[0][0] - 1.0) * middle + mean[0][1] * point.momentum + root[0][0] * first
        momentum = mean[1][0] * middle + mean[1][1] * point.momentum + root[1][0] * first + root[1][1] * second
        after = KineticState(sde.group.retract(point.elements, moved), momentum)
        return StepState(after, (x + moved, torch.full_like(apart, ratio)))


def _bridge(noise: KineticNoise, start: float, end: float) -> tuple[float, float, list[list[float]], list[list[float]]]:
    """C and sigma^2 at the start, K, and a root of the covariance, see `KineticAncestralStep`."""
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
    slope = xy / spread if spread > 0.0 else 0.0  # zero at time zero, where the element is known
    root = [[spread, 0.0], [slope, math.sqrt(max(yy - slope**2, 0.0))]]
    return c, v * given, mean.tolist(), root
