"""Ordinary equations on groups to a given accuracy: an embedded Runge-Kutta-Munthe-Kaas pair and its step control."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from trivgeo._tableau import DEFECT, NODES, STAGES
from trivgeo._text import Described
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.sde.processes.base import Stepper, StepState
from trivgeo.sde.processes.trivialized import TrivializedSDE, check_noiseless
from trivgeo.sde.scores.base import SolveContext

__all__ = ["AdaptiveSolution", "DormandPrince5", "solve_adaptive"]

_ORDER = 5
_SAFETY, _MIN_STEP_RATIO, _MAX_STEP_RATIO = 0.9, 0.2, 5.0
_MAX_ROUNDING_ERROR = 4.0  # of slopes in units of eps: the weights of the defect add up to a sixth in size


class DormandPrince5(Stepper[TrivializedSDE, Tensor]):
    r"""The pair of orders 5 and 4 of Dormand and Prince (1980) in the algebra (Munthe-Kaas 1999), without noise.

    With :math:`g(t) = g_0 \exp u(t)` the equation :math:`dg = d(L_g)_e[f]\,dt` becomes

    .. math:: \dot u = J_r(u)^{-1} f = f + \tfrac12 [u, f] + \tfrac1{12} [u, [u, f]]
        - \tfrac1{720} [u, [u, [u, [u, f]]]] + O(u^6),

    to which the pair is applied; what is left out is beyond its order. Seven evaluations a step, the last of which is
    the first of the next. For `solve`; `solve_adaptive` chooses the steps by the difference of the two orders.

    Raises:
        ConfigurationError: the equation has noise.
    """

    order: ClassVar[int | None] = 5

    def times(self, grid: Sequence[float]) -> tuple[float, ...]:
        """Return the nodes of all steps."""
        return (grid[0], *(a + c * (b - a) for a, b in itertools.pairwise(grid) for c in NODES[1:-1]))

    def init(self, sde: TrivializedSDE, y: Tensor, start: float, generator: torch.Generator | None) -> StepState:
        """Return the state with the velocity at the start as memory."""
        check_noiseless(sde, type(self).__name__)
        return StepState(y, _velocity(sde, y, start))

    def step(
        self, sde: TrivializedSDE, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        """Take one step of order 5."""
        return self.attempt(sde, state, start, end)[0]

    def attempt(self, sde: TrivializedSDE, state: StepState, start: float, end: float) -> tuple[StepState, Tensor]:
        """Take a step of order 5, and estimate its error by the scheme of order 4.

        Args:
            sde: equation without noise.
            state: state at ``start``, whose memory is the velocity there.
            start: time before the step.
            end: time after the step.

        Returns:
            The state at ``end``, and the difference of the two schemes in the algebra, ``[*batch, dim]``.
        """
        h, slopes = end - start, [state.memory]
        g, u = state.y, torch.zeros_like(state.memory)
        for node, weights in zip(NODES[1:], STAGES[1:], strict=True):
            u = h * sum((w * k for w, k in zip(weights, slopes, strict=True) if w), torch.zeros_like(u))
            g = sde.group.retract(state.y, u)
            last = _velocity(sde, g, start + node * h)
            slopes.append(_pulled_back(sde, u, last))
        defect = h * sum((w * k for w, k in zip(DEFECT, slopes, strict=True) if w), torch.zeros_like(u))
        return StepState(g, last), defect


@dataclass(frozen=True, repr=False)
class AdaptiveSolution(Described):
    """Result of `solve_adaptive`.

    Attributes:
        final: the elements at the last time, ``[*batch, *element_shape]``; NaN where a chain could not be followed.
        failures: one for each chain that could not be followed, else zero, ``[*batch]``.
        steps: number of accepted steps, which all chains share.
        evaluations: number of evaluations of the drift, with those of rejected steps.
    """

    final: Tensor
    failures: Int[Tensor, "*batch"]
    steps: int
    evaluations: int


def solve_adaptive(
    sde: TrivializedSDE,
    initial: Tensor,
    start: float,
    end: float,
    *,
    tolerance: float = 1e-5,
    max_steps: int = 10_000,
) -> AdaptiveSolution:
    r"""Integrate an equation without noise from one time to another, forwards or backwards, by `DormandPrince5`.

    All chains take the same steps. One is taken if in every chain the root mean square of the defect is below the
    ``tolerance``, in units of the basis; else it is made smaller. Where velocities are so large that their rounding
    alone makes more than that, a coordinate need not be better than the rounding. A chain that is not finite after as
    small a step as the precision of times allows is given up: its element is NaN, and it is counted.

    Args:
        sde: the equation.
        initial: elements ``[*batch, *element_shape]`` at the start.
        start: the first time, finite, in [0, horizon].
        end: the last time.
        tolerance: of a step; the error of the solution is about as large, or what its dtype can hold.
        max_steps: of the run.

    Raises:
        ConfigurationError: the equation has noise, or it takes more steps.
        DomainError: a time lies outside [0, horizon], or is not finite, or they are equal.
    """
    check_positive("tolerance", tolerance)
    check_count("max_steps", max_steps)
    initial = sde.group.check_elements(initial, "initial")
    if start == end or not all(0.0 <= t <= min(sde.horizon, sys.float_info.max) for t in (start, end)):
        raise DomainError(f"start, end: expected two times, finite and in [0, {sde.horizon:g}], got {start} and {end}")
    pair, batch = DormandPrince5(), sde.batch_shape(initial)
    run = SolveContext((start, end), tuple(batch), initial.dtype, initial.device, None)
    equation = sde.prepare(run)
    assert isinstance(equation, TrivializedSDE)
    state = pair.init(equation, initial, start, None)
    lost = ~_all_finite(state.memory, len(batch))
    t, h, steps, evaluations = start, 0.05 * (end - start), 0, 1
    smallest, limits = 1e-6 * abs(end - start), torch.finfo(state.memory.dtype)
    while t != end:
        if steps == max_steps:
            raise ConfigurationError(f"max_steps: expected enough to reach t = {end:g}, got {max_steps} up to {t:g}")
        after = end if abs(end - t) <= 1.01 * abs(h) else t + h
        new, defect = pair.attempt(equation, state, t, after)
        evaluations += len(NODES) - 1
        fine = _all_finite(defect, len(batch)) & _all_finite(new.memory, len(batch))
        if abs(after - t) <= smallest:
            lost = lost | ~fine
        # no smaller step would make this a smaller part of what is added
        slopes = torch.maximum(state.memory.abs(), new.memory.abs())
        rounding = _MAX_ROUNDING_ERROR * limits.eps * abs(after - t) * slopes
        error = (defect / rounding.clamp(min=max(tolerance, limits.tiny))).square().mean(-1).sqrt()
        error = torch.where(lost, 0.0, torch.where(fine, error, torch.inf))
        size = float(error.max()) if error.numel() else 0.0
        if size > 1.0 and abs(after - t) > smallest:
            h = (after - t) * (max(_MIN_STEP_RATIO, _SAFETY * size ** (-1.0 / _ORDER)) if math.isfinite(size) else 0.02)
            continue
        keep = lost.reshape(*lost.shape, *[1] * (new.y.ndim - lost.ndim))
        state = StepState(torch.where(keep, state.y, new.y), torch.where(lost.unsqueeze(-1), 0.0, new.memory))
        h = (after - t) * min(_MAX_STEP_RATIO, _SAFETY * min(max(size, 1e-10), 1.0) ** (-1.0 / _ORDER))
        t, steps = after, steps + 1
    final = torch.where(lost.reshape(*lost.shape, *[1] * (initial.ndim - lost.ndim)), torch.nan, state.y)
    return AdaptiveSolution(final, lost.long(), steps, evaluations)


def _velocity(sde: TrivializedSDE, g: Tensor, t: float) -> Tensor:
    vector = sde.velocity(g, t).vector
    return g.new_zeros(*sde.batch_shape(g), sde.group.dim) if vector is None else vector


def _pulled_back(sde: TrivializedSDE, u: Tensor, f: Tensor) -> Tensor:
    """Return J_r(u)^-1 f, up to the order of the pair."""
    algebra = sde.group.algebra
    if algebra.is_abelian:
        return f
    first = algebra.bracket(u, f)
    second = algebra.bracket(u, first)
    fourth = algebra.bracket(u, algebra.bracket(u, second))
    return f + 0.5 * first + second / 12.0 - fourth / 720.0


def _all_finite(vectors: Tensor, batch_ndim: int) -> Tensor:
    return torch.isfinite(vectors).flatten(batch_ndim).all(-1)
