"""Runge-Kutta schemes on groups: tableaux, schemes by their tableaux, and steps of adaptive size."""

from __future__ import annotations

import itertools
import math
import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._random import normal
from trivgeo._text import Described
from trivgeo.checks import check_count, check_positive, check_values, checked
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.sde.processes.base import Stepper, StepState, merge_evaluated
from trivgeo.sde.processes.trivialized import DriftIncrement, ExponentialEuler, TrivializedSDE, check_noiseless
from trivgeo.sde.scores.base import SolveContext


@checked
@dataclass(frozen=True)
class ButcherTableau:
    r"""Coefficients of an explicit Runge-Kutta scheme on a group, of s stages.

    Stage i displaces the element by :math:`u_i = \sum_{j < i} a_{ij} k_j`, a step by :math:`\sum_j b_j k_j`, with
    commutators of slopes added to both.

    Attributes:
        nodes: :math:`c_1 = 0, \dots, c_s`, times of the stages as fractions of the step.
        stages: rows a of the stages; the first is empty.
        weights: b.
        error_weights: b minus the weights of an embedded scheme of lower order, whose difference estimates the error.
        commutators: entries (i, j, k, w) add :math:`w [k_j, k_k]` to the displacement of stage i, or of the step for
            i = s; all count from zero.
        jacobian: the coefficients of :math:`\mathrm{ad}_u^n, n \ge 1`, in :math:`J_r(u)^{-1}`, by which slopes at
            displacements u are multiplied; schemes of order p need terms up to n = p - 2, or commutators instead.

    Raises:
        ConfigurationError: rows have other lengths, do not sum to their node, or weights do not sum to one.
    """

    nodes: tuple[float, ...]
    stages: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    error_weights: tuple[float, ...] | None = None
    commutators: tuple[tuple[int, int, int, float], ...] = ()
    jacobian: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        rows, sums = [*self.stages, self.weights], [*self.nodes, 1.0]
        lengths = [*range(len(self.nodes)), len(self.nodes)]
        if self.error_weights is not None:
            rows, sums, lengths = [*rows, self.error_weights], [*sums, 0.0], [*lengths, len(self.nodes)]
        if [len(row) for row in rows] != lengths:
            raise ConfigurationError(f"tableau: expected rows of {lengths} numbers, got {[len(row) for row in rows]}")
        if not all(math.isclose(sum(row), total, abs_tol=1e-9) for row, total in zip(rows, sums, strict=True)):
            raise ConfigurationError(f"tableau: expected rows with the sums {sums}, got {[sum(row) for row in rows]}")

    @property
    def ends_in_its_last_stage(self) -> bool:
        """True if the last slope is the first one of the next step ("first same as last")."""
        return self.weights == (*self.stages[-1], 0.0)


@checked(but=("attempt",))
class RungeKuttaMuntheKaas(Stepper[TrivializedSDE, Tensor]):
    r"""An explicit Runge-Kutta scheme in the algebra (Munthe-Kaas 1999), for equations without noise.

    With :math:`g(t) = g_0 \exp u(t)` the equation :math:`dg = d(L_g)_e[f]\,dt` becomes

    .. math:: \dot u = J_r(u)^{-1} f = f + \tfrac12 [u, f] + \tfrac1{12} [u, [u, f]]
        - \tfrac1{720} [u, [u, [u, [u, f]]]] + O(u^6),

    to which the `tableau` is applied. A subclass states this and its order.

    Raises:
        ConfigurationError: the equation has noise.
    """

    @property
    @abstractmethod
    def tableau(self) -> ButcherTableau:
        """The coefficients; an attribute of the class."""

    @property
    def takes_row_times(self) -> bool:
        return not self.tableau.ends_in_its_last_stage

    def times(self, grid: Sequence[float]) -> tuple[float, ...]:
        nodes = dict.fromkeys(node for node in self.tableau.nodes if node > 0.0)
        return (grid[0], *(_time_at(node, *pair) for pair in itertools.pairwise(grid) for node in nodes))

    def init(self, sde: TrivializedSDE, y: Tensor, start: float, generator: torch.Generator | None) -> StepState:
        if not self.tableau.ends_in_its_last_stage:
            return StepState(y)
        check_noiseless(sde, type(self).__name__)
        return StepState(y, *sde.velocity(y, start))

    def step(
        self, sde: TrivializedSDE, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        return self.attempt(sde, state, start, end)[0]

    def attempt(
        self, sde: TrivializedSDE, state: StepState, start: float, end: float
    ) -> tuple[StepState, Tensor | None]:
        """Take a step, and estimate its error by the embedded scheme.

        Args:
            sde: equation without noise.
            state: state at ``start``; where the last stage is the first of the next step, its memory is the velocity.
            start: time before the step.
            end: time after the step.

        Returns:
            The state at ``end``, and the difference of the two schemes in the algebra, ``[*batch, dim]``; ``None``
            where there is one scheme.
        """
        check_noiseless(sde, type(self).__name__)
        tableau, algebra = self.tableau, sde.group.algebra
        if tableau.ends_in_its_last_stage:
            k, found = (end - start) * state.memory, state.evaluated
        else:
            k, found = self._slope(sde, state.y, start, start, end)
        slopes, evaluated = [k], [found]
        for stage in range(1, len(tableau.nodes)):
            u = _displacement(tableau, algebra, stage, slopes)
            g = sde.group.retract(state.y, u)
            k, found = self._slope(sde, g, _time_at(tableau.nodes[stage], start, end), start, end)
            slopes.append(_pulled_back(tableau, algebra, u, k) if tableau.jacobian else k)
            evaluated.append(found)
        error = None if tableau.error_weights is None else _weighted_sum(tableau.error_weights, slopes)
        if tableau.ends_in_its_last_stage:
            return StepState(g, k / (end - start), merge_evaluated(*evaluated)), error
        g = sde.group.retract(state.y, _displacement(tableau, algebra, len(tableau.nodes), slopes))
        return StepState(g, evaluated=merge_evaluated(*evaluated)), error

    def _slope(self, sde: TrivializedSDE, g: Tensor, t: float, start: float, end: float) -> DriftIncrement:
        """The increment by the velocity at elements g and time t in a step from ``start`` to ``end``."""
        return sde.velocity(g, t, end - start)


def _time_at(node: float, start: float, end: float) -> float:
    """The time of a stage; exactly the end of the step for node 1, which others may ask for too."""
    return end if node == 1.0 else start + node * (end - start)


def _displacement(tableau: ButcherTableau, algebra: LieAlgebra, stage: int, slopes: Sequence[Tensor]) -> Tensor:
    """The displacement of a stage, or of the step where ``stage`` is the number of stages."""
    u = _weighted_sum(tableau.weights if stage == len(tableau.stages) else tableau.stages[stage], slopes)
    for place, i, j, weight in tableau.commutators:
        if place == stage and not algebra.is_abelian:
            u = torch.add(u, algebra.bracket(slopes[i], slopes[j]), alpha=weight)
    return u


def _weighted_sum(weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    """The weighted sum of the slopes, of whose weights at least one is not zero."""
    total = None
    for w, k in zip(weights, slopes, strict=True):
        if total is None:
            total = k if w == 1.0 else w * k if w else None
        elif w:
            total = torch.add(total, k, alpha=w)
    assert total is not None
    return total


def _pulled_back(tableau: ButcherTableau, algebra: LieAlgebra, u: Tensor, k: Tensor) -> Tensor:
    """The slope J_r(u)^-1 k, by the terms of the tableau."""
    if algebra.is_abelian:
        return k
    total, term = k, k
    for coefficient in tableau.jacobian:
        term = algebra.bracket(u, term)
        total = torch.add(total, term, alpha=coefficient) if coefficient else total
    return total


@checked
class GeometricHeun(RungeKuttaMuntheKaas):
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

    A step takes two drifts and two exponentials. It evaluates the drift at its end: at t = 0 in a reverse
    diffusion. Where the drift does not exist there (a network or a closed form that divides by the variance),
    ``skip_zero`` makes the step to t = 0 one of exponential Euler; gamma is smallest there.

    Args:
        skip_zero: never evaluate the drift at t = 0.
    """

    tableau = ButcherTableau(nodes=(0.0, 1.0), stages=((), (1.0,)), weights=(0.5, 0.5))
    order: ClassVar[int | None] = 2
    strong_order: ClassVar[float | None] = 0.5

    def __init__(self, *, skip_zero: bool = False) -> None:
        self.skip_zero = skip_zero

    @property
    def takes_row_times(self) -> bool:
        """True, except for a scheme that skips t = 0, which is not the same step of all chains."""
        return not self.skip_zero

    def times(self, grid: Sequence[float]) -> tuple[float, ...]:
        return tuple(t for t in super().times(grid) if t > 0.0 or not self.skip_zero)

    def _slope(self, sde: TrivializedSDE, g: Tensor, t: float, start: float, end: float) -> DriftIncrement:
        """Return the increment by the drifts at g and t, with the exact variance of the step."""
        return sde.increment(g, start, end, at=t)

    def step(
        self, sde: TrivializedSDE, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        """Advance by one step, with two drifts and two exponentials; without drift, with one exponential."""
        if self.skip_zero and end == 0.0:
            return ExponentialEuler().step(sde, state, start, end, generator)
        if not sde.noisy:
            return self.attempt(sde, state, start, end)[0]
        g, group, evaluated = state.y, sde.group, None
        u, first = sde.increment(g, start, end) if sde.has_drift else (None, None)
        shape, sigma = (*group.batch_shape(g), group.dim), sde.noise_std(start, end)
        v = noise = sigma * normal(shape, g, generator)
        if u is not None:
            other, second = sde.increment(group.retract(g, u + noise), start, end, at=end)
            v, evaluated = v + 0.5 * (u + other), merge_evaluated(first, second)
        if not group.algebra.is_abelian:
            third, area = group.algebra.noise_corrections
            eta = normal(shape, g, generator)
            v = v + sigma**2 * (matmul(v, third.matching(g).mT) + matmul(eta, area.matching(g).mT))
            v = v if u is None else v + 0.25 * group.algebra.bracket(noise, other - u)
        return StepState(group.retract(g, v), evaluated=evaluated)


class RungeKuttaMuntheKaas4(RungeKuttaMuntheKaas):
    r"""The classical Runge-Kutta scheme of order 4 in the algebra, for equations without noise.

    .. math:: k_1 = h f(g), \quad k_2 = h f(g e^{k_1 / 2}), \quad k_3 = h f(g e^{k_2 / 2 + [k_1, k_2] / 8}), \quad
        k_4 = h f(g e^{k_3}), \quad g \leftarrow g \exp\big((k_1 + 2 k_2 + 2 k_3 + k_4 + \tfrac12 [k_1, k_4]) / 6\big),

    Munthe-Kaas 1998, with the commutators reduced to two as in Iserles et al. 2000, section 3, and their sign for
    left-trivialized equations.
    """

    tableau = ButcherTableau(
        nodes=(0.0, 1 / 2, 1 / 2, 1.0),
        stages=((), (1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0)),
        weights=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
        commutators=((2, 0, 1, 1 / 8), (4, 0, 3, 1 / 12)),
    )
    order: ClassVar[int | None] = 4


class DormandPrince5(RungeKuttaMuntheKaas):
    """The pair of orders 5 and 4 of Dormand and Prince (1980), of seven evaluations, six of which are new in each step.

    For `solve`; `solve_adaptive` chooses the steps by the difference of the two orders.
    """

    tableau = ButcherTableau(
        nodes=(0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0),
        stages=(
            (),
            (1 / 5,),
            (3 / 40, 9 / 40),
            (44 / 45, -56 / 15, 32 / 9),
            (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
            (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
            (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
        ),
        weights=(35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0.0),
        error_weights=(71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
        jacobian=(1 / 2, 1 / 12, 0.0, -1 / 720),
    )
    order: ClassVar[int | None] = 5


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


_ORDER = 5
_STEP_SAFETY, _MIN_STEP_RATIO, _MAX_STEP_RATIO = 0.9, 0.2, 5.0
"""Length of the next step: safety factor, and bounds of its ratio to the last."""
_FIRST_STEP, _MAX_STEP, _MIN_STEP = 0.05, 0.1, 1e-12
"""Lengths of steps as fractions of the whole time."""
_KINK_ORDER, _MIN_STEP_RATIO_AT_KINK = 2, 0.1
"""Order of the error estimate of a step over a kink, and smallest ratio of the next step to the last there."""
_KINK_TOLERANCE = 0.02
"""Share of the tolerance for steps over kinks and jumps, where errors are up to 160 times the estimate."""
_MAX_COEFFICIENT_GROWTH = 10.0
"""Ratio of the error coefficient to its recent maximum, above which there is a kink."""
_COEFFICIENT_DECAY = 0.3
"""Decay in a step of the running maximum of the error coefficient, since one estimate may vanish by chance."""
_MAX_ROUNDING_ULPS = 4.0
"""Rounding error of the error estimate in units of eps times the slopes; the sum of its absolute weights is 1/6."""


@checked
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

    All chains take the same steps. A step is taken if in every chain the root mean square of the error estimate is
    below the ``tolerance``, in units of the basis; else it is made smaller. Where velocities are so large that their
    rounding alone exceeds the tolerance, a coordinate may have errors of the size of this rounding. A chain that is not
    finite after as small a step as the precision of times allows is given up: its element is NaN, and it is counted.

    A velocity may have kinks and jumps in time, over which the estimate says little of the error of a step. Where it
    does not fall with the step as for a smooth velocity, a fiftieth of the tolerance is required. A peak of the
    velocity is seen if it is not much narrower than the longest step.

    Args:
        sde: the equation.
        initial: elements ``[*batch, *element_shape]`` at the start.
        start: the first time, finite, in [0, horizon].
        end: the last time.
        tolerance: error of a step; the error of the solution is about as large, or as its dtype allows.
        max_step: the longest step, in units of time; default a tenth of the whole time.
        max_steps: largest number of steps of the run.

    Raises:
        ConfigurationError: the equation has noise, the run needs more than ``max_steps``, or values cannot be read, as
            under `torch.func.vmap`: chains are one batch.
        DomainError: a time lies outside [0, horizon], or is not finite, or the times are equal.
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
    lost = ~_all_finite(check_values("initial", state.memory), len(batch))
    t, steps, evaluations, limits = start, 0, 1, torch.finfo(state.memory.dtype)
    sizes = _StepSizes(abs(end - start), max_step, limits.eps)
    while t != end:
        if steps == max_steps:
            raise ConfigurationError(f"max_steps: expected enough to reach t = {end:g}, got {max_steps} up to {t:g}")
        after = end if abs(end - t) <= 1.01 * sizes.step else t + math.copysign(sizes.step, end - start)
        new, difference = pair.attempt(equation, state, t, after)
        assert difference is not None
        evaluations += len(pair.tableau.nodes) - 1
        fine = _all_finite(difference, len(batch)) & _all_finite(new.memory, len(batch))
        if abs(after - t) <= sizes.smallest:
            lost = lost | ~fine
        # a smaller step would not reduce this rounding relative to the increment
        slopes = torch.maximum(state.memory.detach().abs(), new.memory.detach().abs())
        rounding = _MAX_ROUNDING_ULPS * limits.eps * abs(after - t) * slopes
        error = (difference.detach() / rounding.clamp(min=max(tolerance, limits.tiny))).square().mean(-1).sqrt()
        error = torch.where(lost, 0.0, torch.where(fine, error, torch.inf))
        if sizes.accepts(abs(t - start), abs(after - t), float(error.max()) if error.numel() else 0.0):
            keep = lost.reshape(*lost.shape, *[1] * (new.y.ndim - lost.ndim))
            state = StepState(torch.where(keep, state.y, new.y), torch.where(lost.unsqueeze(-1), 0.0, new.memory))
            t, steps = after, steps + 1
    final = torch.where(lost.reshape(*lost.shape, *[1] * (initial.ndim - lost.ndim)), torch.nan, state.y)
    return AdaptiveSolution(final, lost.long(), steps, evaluations)


class _StepSizes:
    """The next step, by the error estimates of earlier ones.

    The estimate for a smooth velocity is a slowly changing multiple of the fifth power of the step. Where it is much
    larger, or does not fall so much in the next attempt at a refused step, there is a kink or a jump before the end of
    the step: up to there `_KINK_TOLERANCE` holds.

    Args:
        duration: length of the run.
        max_step: the longest step; ``None`` for `_MAX_STEP`.
        eps: rounding of the dtype.

    Attributes:
        step: length of the next attempt.
        smallest: length of a step that is never refused.
    """

    def __init__(self, duration: float, max_step: float | None, eps: float) -> None:
        self.max_step = _MAX_STEP * duration if max_step is None else max_step
        self.smallest = max(_MIN_STEP, 8.0 * eps) * duration
        self.step = min(_FIRST_STEP * duration, self.max_step)
        self._kink_end = 0.0
        self._coefficient = math.inf  # coefficient of the error; infinite before it is known
        self._refused: tuple[float, float, float] | None = None  # begin, length and error of the last refused step

    def accepts(self, begin: float, length: float, error: float) -> bool:
        """Whether a step is accurate enough; chooses the next one.

        Args:
            begin: time of the step since the start of the run.
            length: length of the step.
            error: the largest estimate, in units of the tolerance; infinite if a chain is not finite.
        """
        if length > self.smallest and not math.isfinite(error):
            self.step = 0.02 * length
            return False
        self._kink_end = max(self._kink_end, self._kink_before(begin, length, error))
        limit = _KINK_TOLERANCE if begin < self._kink_end else 1.0
        if error > limit and length > self.smallest:
            self._refused = (begin, length, error)
            order, least = (_ORDER, _MIN_STEP_RATIO) if limit == 1.0 else (_KINK_ORDER, _MIN_STEP_RATIO_AT_KINK)
            self.step = length * max(least, _STEP_SAFETY * (error / limit) ** (-1.0 / order))
            return False
        known = 0.0 if math.isinf(self._coefficient) else self._coefficient
        self._coefficient = max(_COEFFICIENT_DECAY * known, error / length**_ORDER)
        ratio = _STEP_SAFETY * min(max(error / limit, 1e-10), 1.0) ** (-1.0 / _ORDER)
        self.step = min(self.max_step, length * min(_MAX_STEP_RATIO, ratio))
        return True

    def _kink_before(self, begin: float, length: float, error: float) -> float:
        """A time before which there seems to be a kink or a jump; zero if there seems to be none."""
        if error > max(_KINK_TOLERANCE, _MAX_COEFFICIENT_GROWTH * self._coefficient * length**_ORDER):
            return begin + length
        if self._refused is not None and self._refused[0] == begin:
            _, before, refused = self._refused
            if error > refused * (length / before) ** (_KINK_ORDER + 1):
                return begin + before
        return 0.0


def _all_finite(vectors: Tensor, batch_ndim: int) -> Tensor:
    return torch.isfinite(vectors).flatten(batch_ndim).all(-1)
