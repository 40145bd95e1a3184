"""Schemes of higher order for trivialized equations."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._random import normal
from trivgeo._text import Described
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.sde.processes.base import Stepper, StepState, merge_evaluated
from trivgeo.sde.processes.trivialized import ExponentialEuler, TrivializedSDE, check_noiseless
from trivgeo.sde.scores.base import SolveContext

__all__ = [
    "AdaptiveSolution",
    "DormandPrince5",
    "GeometricHeun",
    "RungeKuttaMuntheKaas4",
    "solve_adaptive",
]

NODES = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
STAGES = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
"""Weights of the slopes before each stage; those of the last are the step of order 5."""
DEFECT = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
"""Order 5 minus order 4."""


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
        """Advance by one step, with two drifts and two exponentials; without drift, with one exponential."""
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
            v = v + sigma**2 * (matmul(v, third.matching(g).mT) + matmul(eta, area.matching(g).mT))
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
        return True

    def times(self, grid: Sequence[float]) -> tuple[float, ...]:
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
        """Advance the elements by one step of order 4, with four drifts and four exponentials."""
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


_ORDER = 5
_SAFETY, _MIN_STEP_RATIO, _MAX_STEP_RATIO = 0.9, 0.2, 5.0
_FIRST_STEP, _MAX_STEP, _MIN_STEP = 0.05, 0.1, 1e-12  # as shares of the whole time
_ROUGH_ORDER, _MIN_ROUGH_STEP_RATIO = 2, 0.1  # of the defect at a kink, and how much shorter steps may get there
_MAX_GROWTH = 10.0  # of the leading coefficient of the defect, from the steps before to the next
_FORGETTING = 0.3  # of that coefficient in a step, for a defect may vanish by chance
_ROUGH_TOLERANCE = 0.02  # of steps over kinks and jumps: there errors are up to 160 times the defect
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
        return (grid[0], *(a + c * (b - a) for a, b in itertools.pairwise(grid) for c in NODES[1:-1]))

    def init(self, sde: TrivializedSDE, y: Tensor, start: float, generator: torch.Generator | None) -> StepState:
        check_noiseless(sde, type(self).__name__)
        return StepState(y, _velocity(sde, y, start))

    def step(
        self, sde: TrivializedSDE, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
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
    max_step: float | None = None,
    max_steps: int = 10_000,
) -> AdaptiveSolution:
    r"""Integrate an equation without noise from one time to another, forwards or backwards, by `DormandPrince5`.

    All chains take the same steps. One is taken if in every chain the root mean square of the defect is below the
    ``tolerance``, in units of the basis; else it is made smaller. Where velocities are so large that their rounding
    alone makes more than that, a coordinate need not be better than the rounding. A chain that is not finite after as
    small a step as the precision of times allows is given up: its element is NaN, and it is counted.

    A velocity may have kinks and jumps in time: the defect says little of the error of a step over one, and where it
    does not fall with the step as a smooth one would, a fiftieth of the tolerance is asked for. A peak of the velocity
    is seen if it is not much narrower than the longest step.

    Args:
        sde: the equation.
        initial: elements ``[*batch, *element_shape]`` at the start.
        start: the first time, finite, in [0, horizon].
        end: the last time.
        tolerance: of a step; the error of the solution is about as large, or what its dtype can hold.
        max_step: the longest step, in units of time; default a tenth of the whole time.
        max_steps: of the run.

    Raises:
        ConfigurationError: the equation has noise, or it takes more steps.
        DomainError: a time lies outside [0, horizon], or is not finite, or they are equal.
    """
    check_positive("tolerance", tolerance)
    if max_step is not None:
        check_positive("max_step", max_step)
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
    t, steps, evaluations, limits = start, 0, 1, torch.finfo(state.memory.dtype)
    sizes = _StepSizes(abs(end - start), max_step, limits.eps)
    while t != end:
        if steps == max_steps:
            raise ConfigurationError(f"max_steps: expected enough to reach t = {end:g}, got {max_steps} up to {t:g}")
        after = end if abs(end - t) <= 1.01 * sizes.step else t + math.copysign(sizes.step, end - start)
        new, defect = pair.attempt(equation, state, t, after)
        evaluations += len(NODES) - 1
        fine = _all_finite(defect, len(batch)) & _all_finite(new.memory, len(batch))
        if abs(after - t) <= sizes.smallest:
            lost = lost | ~fine
        # no smaller step would make this a smaller part of what is added
        slopes = torch.maximum(state.memory.detach().abs(), new.memory.detach().abs())
        rounding = _MAX_ROUNDING_ERROR * limits.eps * abs(after - t) * slopes
        error = (defect.detach() / rounding.clamp(min=max(tolerance, limits.tiny))).square().mean(-1).sqrt()
        error = torch.where(lost, 0.0, torch.where(fine, error, torch.inf))
        if sizes.accepts(abs(t - start), abs(after - t), float(error.max()) if error.numel() else 0.0):
            keep = lost.reshape(*lost.shape, *[1] * (new.y.ndim - lost.ndim))
            state = StepState(torch.where(keep, state.y, new.y), torch.where(lost.unsqueeze(-1), 0.0, new.memory))
            t, steps = after, steps + 1
    final = torch.where(lost.reshape(*lost.shape, *[1] * (initial.ndim - lost.ndim)), torch.nan, state.y)
    return AdaptiveSolution(final, lost.long(), steps, evaluations)


class _StepSizes:
    """The next step, by the defects of those before.

    The defect of a smooth velocity is a slowly changing multiple of the fifth power of the step. Where it is much more
    than that, or is not so much smaller in the next attempt at a step that was refused, there is a kink or a jump
    before the end of the step: up to there `_ROUGH_TOLERANCE` is asked for.

    Args:
        duration: of the run.
        longest: step; ``None`` for `_MAX_STEP`.
        eps: of the dtype.

    Attributes:
        step: the next one to try.
        smallest: a step that is not refused.
    """

    def __init__(self, duration: float, longest: float | None, eps: float) -> None:
        self.longest = _MAX_STEP * duration if longest is None else longest
        self.smallest = max(_MIN_STEP, 8.0 * eps) * duration
        self.step = min(_FIRST_STEP * duration, self.longest)
        self._rough_end = 0.0
        self._coefficient = math.inf  # of the defect; infinite before it is known
        self._refused: tuple[float, float, float] | None = None  # where a step began, its length, and its defect

    def accepts(self, begin: float, length: float, size: float) -> bool:
        """Whether a step is good enough; chooses the next one.

        Args:
            begin: the time since the start of the run.
            length: of the step.
            size: of the largest defect, in units of the tolerance; infinite if a chain is not.
        """
        if length > self.smallest and not math.isfinite(size):
            self.step = 0.02 * length
            return False
        self._rough_end = max(self._rough_end, self._kink_before(begin, length, size))
        limit = _ROUGH_TOLERANCE if begin < self._rough_end else 1.0
        if size > limit and length > self.smallest:
            self._refused = (begin, length, size)
            order, least = (_ORDER, _MIN_STEP_RATIO) if limit == 1.0 else (_ROUGH_ORDER, _MIN_ROUGH_STEP_RATIO)
            self.step = length * max(least, _SAFETY * (size / limit) ** (-1.0 / order))
            return False
        known = 0.0 if math.isinf(self._coefficient) else self._coefficient
        self._coefficient = max(_FORGETTING * known, size / length**_ORDER)
        ratio = _SAFETY * min(max(size / limit, 1e-10), 1.0) ** (-1.0 / _ORDER)
        self.step = min(self.longest, length * min(_MAX_STEP_RATIO, ratio))
        return True

    def _kink_before(self, begin: float, length: float, size: float) -> float:
        """A time before which there seems to be a kink or a jump; zero if there seems to be none."""
        if size > max(_ROUGH_TOLERANCE, _MAX_GROWTH * self._coefficient * length**_ORDER):
            return begin + length
        if self._refused is not None and self._refused[0] == begin:
            _, before, defect = self._refused
            if size > defect * (length / before) ** (_ROUGH_ORDER + 1):
                return begin + before
        return 0.0


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
