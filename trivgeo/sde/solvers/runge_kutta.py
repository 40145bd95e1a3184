"""Schemes of higher order for trivialized equations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._random import normal
from trivgeo.sde.processes.base import Stepper, StepState, merge_evaluated
from trivgeo.sde.processes.trivialized import ExponentialEuler, TrivializedSDE, check_noiseless

__all__ = ["GeometricHeun", "RungeKuttaMuntheKaas4"]


class GeometricHeun(Stepper[TrivializedSDE, Tensor]):
    r"""Heun scheme of weak order 2 for additive trivialized noise, and of order 2 without noise.

    With :math:`\sigma^2 = \int \gamma^2`, z and :math:`\eta` independent standard normal vectors, and u the
    displacement of a step by the drifts (see `TrivializedSDE.increment`):

    .. math::
        \hat g = g \exp(u(g, t_0) + \sigma z), \quad \hat u = u(\hat g, t_1), \quad \bar u = (u + \hat u) / 2, \\
        g \leftarrow g \exp\big((1 + \sigma^2 M)(\sigma z + \bar u) + \sigma^2 S \eta
            + \tfrac14 [\sigma z, \hat u - u]\big), \\
        M = \tfrac1{12} \sum_j \mathrm{ad}(e_j)^2, \quad
        S S^T = \tfrac18 \sum_{ij} [e_i, e_j] [e_i, e_j]^T .

    Derivation: expand :math:`E f(g \exp V)` to fourth order in :math:`\sigma` and compare with
    :math:`e^{h L}, L = u \cdot X / h + \tfrac12 \gamma^2 \sum X_i^2`. Without drift the fourth order asks for
    :math:`\tfrac1{24} \sum_{ij}(2 X_i X_i X_j X_j - X_i X_j X_i X_j - X_i X_j X_j X_i)`, which the Lévy area (of which
    only mean and covariance S S^T matter weakly) and the third-order term M give exactly. The mixed terms with the
    drift ask for M on the drift and for the commutator with its change. The same expansion with u = 0 shows
    why `ExponentialEuler` has order 1 only even without drift.

    Two drifts and two exponentials a step. The drift is asked for at the end of the step: at t = 0 in a reverse
    diffusion. Where it does not exist there (a network or a closed form that divides by the variance), ``skip_zero``
    makes the step to t = 0 one of exponential Euler; gamma is smallest there.

    Args:
        skip_zero: never evaluate the drift at t = 0.
    """

    order: ClassVar[int | None] = 2
    strong_order: ClassVar[float | None] = 0.5

    def __init__(self, *, skip_zero: bool = False) -> None:
        self.skip_zero = skip_zero

    @property
    def takes_row_times(self) -> bool:
        """True, but for a scheme that skips t = 0, which is not the same step of all chains."""
        return not self.skip_zero

    def times(self, grid: Sequence[float]) -> tuple[float, ...]:
        """Return the times of a grid at which the drift is evaluated: all, or with ``skip_zero`` all but t = 0."""
        return tuple(t for t in grid if t > 0.0 or not self.skip_zero)

    def step(
        self,
        sde: TrivializedSDE,
        state: StepState,
        start: float,
        end: float,
        generator: torch.Generator | None,
    ) -> StepState:
        """Advance the elements by one step, with two drifts and two exponentials; without drift, with one exponential.

        Args:
            sde: the equation.
            state: state at ``start``.
            start: time before the step.
            end: time after the step.
            generator: random numbers; ``None`` is torch's.

        Returns:
            The state at ``end``.
        """
        if self.skip_zero and end == 0.0:
            return ExponentialEuler().step(sde, state, start, end, generator)
        g, group = state.y, sde.group
        u, evaluated = sde.increment(g, start, end)

        def again(displacement: Tensor) -> tuple[Tensor, Any]:
            """Return the increment at the end of the first one, and the by-products of both."""
            other, later = sde.increment(group.retract(g, displacement), start, end, at=end)
            assert other is not None
            return other, merge_evaluated(evaluated, later)

        if not sde.noisy:
            if u is None:
                return StepState(g)
            other, evaluated = again(u)
            return StepState(group.retract(g, 0.5 * (u + other)), evaluated=evaluated)
        shape, sigma = (*group.batch_shape(g), group.dim), sde.noise_std(start, end)
        noise = sigma * normal(shape, g, generator)
        v, turn = noise, None
        if u is not None:
            other, evaluated = again(u + noise)
            v = v + 0.5 * (u + other)
            turn = 0.25 * group.algebra.bracket(noise, other - u)
        if not group.algebra.is_abelian:
            third, area = group.algebra.noise_corrections
            eta = normal(shape, g, generator)
            v = v + sigma**2 * (matmul(v, third.like(g).mT) + matmul(eta, area.like(g).mT))
            v = v if turn is None else v + turn
        return StepState(group.retract(g, v), evaluated=evaluated)


class RungeKuttaMuntheKaas4(Stepper[TrivializedSDE, Tensor]):
    r"""The classical Runge-Kutta scheme of order 4 in the algebra, for equations without noise.

    .. math:: k_1 = h f(g), \quad k_2 = h f(g e^{k_1 / 2}), \quad k_3 = h f(g e^{k_2 / 2 + [k_1, k_2] / 8}), \quad
        k_4 = h f(g e^{k_3}), \quad g \leftarrow g \exp\big((k_1 + 2 k_2 + 2 k_3 + k_4 + \tfrac12 [k_1, k_4]) / 6\big),

    Munthe-Kaas 1998, with the commutators reduced to two as in Iserles et al. 2000, section 3, and their sign for
    left-trivialized equations.

    Raises:
        ConfigurationError: the equation has noise.
    """

    order: ClassVar[int | None] = 4

    @property
    def takes_row_times(self) -> bool:
        """True."""
        return True

    def times(self, grid: Sequence[float]) -> tuple[float, ...]:
        """Return the times at which the drift is evaluated: those of a grid, and the middles of its steps."""
        middles = [0.5 * (a + b) for a, b in itertools.pairwise(grid)]
        return (grid[0], *(t for pair in zip(middles, grid[1:], strict=True) for t in pair))

    def step(
        self,
        sde: TrivializedSDE,
        state: StepState,
        start: float,
        end: float,
        generator: torch.Generator | None,
    ) -> StepState:
        """Advance the elements by one step of order 4, with four drifts and four exponentials.

        Args:
            sde: the equation.
            state: state at ``start``.
            start: time before the step.
            end: time after the step.
            generator: random numbers; ``None`` is torch's.

        Returns:
            The state at ``end``.
        """
        check_noiseless(sde, type(self).__name__)
        g, group, h, middle = state.y, sde.group, end - start, 0.5 * (start + end)
        bracket = group.algebra.bracket
        evaluated = []

        def slope(x: Tensor, t: float) -> Tensor:
            velocity, found = sde.velocity(x, t)
            evaluated.append(found)
            return x.new_zeros(*group.batch_shape(x), group.dim) if velocity is None else h * velocity

        k1 = slope(g, start)
        k2 = slope(group.retract(g, 0.5 * k1), middle)
        k3 = slope(group.retract(g, 0.5 * k2 + 0.125 * bracket(k1, k2)), middle)
        k4 = slope(group.retract(g, k3), end)
        v = (k1 + 2.0 * (k2 + k3) + k4 + 0.5 * bracket(k1, k4)) / 6.0
        return StepState(group.retract(g, v), evaluated=merge_evaluated(*evaluated))
