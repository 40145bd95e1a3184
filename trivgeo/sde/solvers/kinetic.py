"""Ancestral sampling of kinetic diffusion."""

from __future__ import annotations

import math

import torch

from trivgeo._random import normal
from trivgeo.errors import ConfigurationError
from trivgeo.sde.noise.kinetic import KineticNoise
from trivgeo.sde.processes.base import Stepper, StepState
from trivgeo.sde.processes.kinetic import KineticDiffusion, KineticState

__all__ = ["KineticAncestralStep"]


class KineticAncestralStep(Stepper[KineticDiffusion, KineticState]):
    r"""Ancestral sampling of element and momentum, given the clean element that the score stands for.

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
        self, sde: KineticDiffusion, y: KineticState, start: float, generator: torch.Generator | None
    ) -> StepState:
        """Return the state before the first step, whose memory says that there was none before.

        Args:
            sde: the equation.
            y: its initial state.
            start: the first time.
            generator: random numbers; ``None`` is torch's.
        """
        return StepState(y, (torch.zeros_like(y.momentum), torch.full_like(y.momentum[..., :1], math.inf)))

    def step(
        self,
        sde: KineticDiffusion,
        state: StepState,
        start: float,
        end: float,
        generator: torch.Generator | None,
    ) -> StepState:
        """Advance the process by one step, with one evaluation of the score and one exponential.

        Args:
            sde: the equation.
            state: state at ``start``.
            start: time before the step.
            end: time after the step.
            generator: random numbers; ``None`` is torch's.

        Returns:
            The state at ``end``.

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
        middle = x + 0.5 * ratio / apart * (x - expected)  # at time zero, infinitely far, x as it is
        first, second = (normal(point.momentum.shape, point.momentum, generator) for _ in range(2))
        moved = (mean[0][0] - 1.0) * middle + mean[0][1] * point.momentum + root[0][0] * first
        momentum = mean[1][0] * middle + mean[1][1] * point.momentum + root[1][0] * first + root[1][1] * second
        after = KineticState(sde.group.retract(point.elements, moved), momentum)
        return StepState(after, (x + moved, torch.full_like(apart, ratio)))


def _bridge(noise: KineticNoise, start: float, end: float) -> tuple[float, float, list[list[float]], list[list[float]]]:
    """Return C and sigma^2 at the start, K, and a root of the covariance, see `KineticAncestralStep`."""
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
