"""Stochastic differential equations on groups, the contract of a scheme, and the one time loop."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import normal
from trivgeo._text import Described, described
from trivgeo._torch import pytree
from trivgeo.checks import check_count, with_tensors
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups import LieGroup
from trivgeo.sde.checkpoint import checkpointed
from trivgeo.sde.schedule import Schedule
from trivgeo.sde.score import Run, Score, as_score, check_drift

__all__ = [
    "Displacement",
    "ExponentialEuler",
    "Fold",
    "Process",
    "Solution",
    "StepState",
    "Stepper",
    "TrivializedSDE",
    "gathered",
    "solve",
    "uniform_grid",
]

Drift = Score | Callable[[Tensor, float], Tensor]
T = TypeVar("T")
Accumulator = TypeVar("Accumulator")
State = TypeVar("State")
Equation = TypeVar("Equation", bound="Process")


class Process(Described, ABC):
    """An equation for `solve`, apart from how it is stepped.

    Its state is a tensor, or a (named) tuple of tensors, whose leading dimensions are those of the chains.
    """

    @property
    @abstractmethod
    def horizon(self) -> float:
        """The last time at which the equation is defined; the first is 0."""

    @abstractmethod
    def check_state(self, state: Any, name: str) -> None:
        """Raise `ShapeError` unless ``state`` is one of this process."""

    @abstractmethod
    def batch_shape(self, state: Any) -> torch.Size:
        """The leading dimensions, of the chains."""

    @abstractmethod
    def default_stepper(self) -> Stepper[Any, Any]:
        """The scheme where none is given."""

    def prepare(self, run: Run) -> Process:
        """The equation for one solve, which asks for it once; by default the equation itself."""
        return self


class Displacement(NamedTuple):
    """What the drifts of an equation do in a step.

    Attributes:
        vector: in the algebra, ``[*batch, dim]``; ``None`` without drift.
        evaluated: what they evaluated, see `StepState`.
    """

    vector: Tensor | None
    evaluated: Any = None

    def __repr__(self) -> str:
        return described(self)


@dataclass(frozen=True, repr=False)
class TrivializedSDE(Process):
    r"""The left-trivialized equation :math:`dg = d(L_g)_e[(\phi(g, t) + \gamma(t)^2 \psi(g, t))\,dt + \gamma(t)\,dw]`.

    Stratonovich sense: for constant coefficients the solution is a product of exponentials :math:`\exp(\gamma\,
    \delta w)`, with generator :math:`\phi \cdot X + \tfrac12 \gamma^2 \sum_i X_i^2` in the left-invariant fields.
    Its state is the elements ``[*batch, *element_shape]``.

    Attributes:
        group: where g lives.
        schedule: the diffusion coefficient gamma.
        drift: phi, a function of elements ``[*batch, *element_shape]`` and a time to algebra vectors ``[*batch, dim]``,
            or a `Score`, whose samples then come out of every step.
        score_drift: psi, likewise, in units of the variance: over a step it is multiplied by the exact integral
            of gamma^2 instead of by dt.
        noisy: keep the noise; without it the equation is an ordinary one, in which gamma only weighs psi.

    Raises:
        ConfigurationError: a drift is neither a function nor a `Score`.
    """

    group: LieGroup
    schedule: Schedule
    drift: Drift | None = None
    score_drift: Drift | None = None
    noisy: bool = True

    def __post_init__(self) -> None:
        for name, drift in (("drift", self.drift), ("score_drift", self.score_drift)):
            if drift is not None:
                as_score(drift, name)

    @property
    def horizon(self) -> float:
        """That of the schedule."""
        return self.schedule.horizon

    def check_state(self, state: Tensor, name: str) -> None:
        """Elements of the group."""
        self.group.check_elements(state, name)

    def batch_shape(self, state: Tensor) -> torch.Size:
        """The batch shape of the elements."""
        return self.group.batch_shape(state)

    def default_stepper(self) -> Stepper[TrivializedSDE, Tensor]:
        """`ExponentialEuler`."""
        return ExponentialEuler()

    def prepare(self, run: Run) -> TrivializedSDE:
        """With both drifts prepared."""
        drift, score_drift = (None if f is None else as_score(f).prepare(run) for f in (self.drift, self.score_drift))
        return dataclasses.replace(self, drift=drift, score_drift=score_drift)

    def increment(self, g: Tensor, start: float, end: float, at: float | None = None) -> Displacement:
        """The displacement by both drifts over a step, frozen at g and the time ``at`` (default: its start).

        Steps may run backwards, ``end < start``.
        """
        return self._weighted(g, start if at is None else at, end - start, self.schedule.variance(start, end))

    def velocity(self, g: Tensor, t: float) -> Displacement:
        r"""The drift :math:`\phi + \gamma^2 \psi` at one time."""
        return self._weighted(g, t, 1.0, self.schedule(t) ** 2)

    def noise_std(self, start: float, end: float) -> float:
        """The standard deviation of the noise of a step."""
        return abs(self.schedule.variance(start, end)) ** 0.5 if self.noisy else 0.0

    def _weighted(self, g: Tensor, t: float, weight: float, score_weight: float) -> Displacement:
        vectors, evaluated = [], []
        parts = (("drift", self.drift, weight), ("score_drift", self.score_drift, score_weight))
        for name, drift, factor in parts:
            if drift is not None:
                value, samples = as_score(drift).estimate(g, t)
                vectors.append(check_drift(value, self.group, g, name) * factor)
                evaluated.append(samples)
        if not vectors:
            return Displacement(None)
        return Displacement(vectors[0] if len(vectors) == 1 else vectors[0] + vectors[1], gathered(*evaluated))


class StepState(NamedTuple):
    """Where a scheme is between two steps.

    Attributes:
        y: the state of the process.
        memory: what the scheme carries from step to step, a tree of tensors ``[*batch, ...]``.
        evaluated: what the drift evaluated to get here: ``None``, such as `EnergySamples`, or a tuple of several.
    """

    y: Any
    memory: Any = ()
    evaluated: Any = None

    def __repr__(self) -> str:
        return described(self)

    def parts(self, kind: type[T]) -> list[T]:
        """All of one kind in ``evaluated``, in the order of their evaluation."""
        leaves = pytree.tree_leaves(self.evaluated, is_leaf=lambda x: isinstance(x, kind))
        return [x for x in leaves if isinstance(x, kind)]


def gathered(*evaluated: Any) -> Any:
    """What several evaluations evaluated, as one: without ``None``, and alone if there is one."""
    kept = tuple(x for x in evaluated if x is not None)
    return kept if len(kept) > 1 else kept[0] if kept else None


class Stepper(ABC, Generic[Equation, State]):
    """A scheme for one kind of process. A new scheme is one subclass; it holds its settings and nothing that changes.

    What a scheme carries from one step to the next is the ``memory`` of its `StepState`. A chain that a step would
    make non-finite goes back to where it was, with its memory.
    """

    def __repr__(self) -> str:
        """The name of the scheme, and its settings."""
        return described(self)

    def times(self, grid: Sequence[float]) -> tuple[float, ...]:
        """The times at which the drift is asked along a grid: by default the start of every step."""
        return tuple(grid[:-1])

    def init(self, sde: Equation, y: State, start: float, generator: torch.Generator | None) -> StepState:
        """The state before the first step: by default that of the process, without memory."""
        return StepState(y)

    @abstractmethod
    def step(
        self, sde: Equation, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        """The state at ``end`` from the state at ``start``."""


class ExponentialEuler(Stepper[TrivializedSDE, Tensor]):
    r""":math:`g \leftarrow g \exp(\phi\,\Delta t + \psi\,\sigma^2 + \sigma z)`, :math:`\sigma^2 = \int \gamma^2`.

    z is standard normal. Weak order 1, one drift and one exponential a step; exact on abelian groups without drift.
    """

    def step(
        self,
        sde: TrivializedSDE,
        state: StepState,
        start: float,
        end: float,
        generator: torch.Generator | None,
    ) -> StepState:
        """One exponential of the group."""
        g, v = state.y, None
        if sde.noisy:
            v = normal((*sde.batch_shape(g), sde.group.dim), g, generator) * sde.noise_std(start, end)
        u, evaluated = sde.increment(g, start, end)
        if u is not None:
            v = u if v is None else u + v
        return StepState(g if v is None else sde.group.retract(g, v), evaluated=evaluated)


class Fold(Described, ABC, Generic[State, Accumulator]):
    """Something gathered along a solve, without side effects; its last value is `Solution.folded`.

    An accumulator is a tree of tensors. It may depend on the state differentiably.
    """

    @abstractmethod
    def init(self, y: State) -> Accumulator:
        """The accumulator at the start."""

    @abstractmethod
    def update(self, acc: Accumulator, step: StepState) -> Accumulator:
        """A new accumulator, from the old one and what a step made and evaluated; neither is changed."""


@dataclass(frozen=True, repr=False)
class Solution(Described, Generic[State]):
    """What `solve` returns.

    Attributes:
        final: the state at the last time; elements ``[*batch, *element_shape]`` for a `TrivializedSDE`.
        saved: the states at the times asked for, each tensor ``[len(save_at), ...]``, or ``None``.
        failures: how many steps of each chain were masked, ``[*batch]``: a step that would have made a chain
            non-finite is not taken.
        folded: the last accumulator of the fold, or ``None``.
    """

    final: State
    saved: State | None
    failures: Tensor
    folded: Any = None

    @property
    def followed(self) -> State:
        """The final state, NaN in the chains of which a step was masked: they are no solutions."""
        lost = pytree.tree_map(lambda leaf: torch.full_like(leaf, math.nan), self.final)
        return _where(self.failures == 0, self.final, lost)


class _Carry(NamedTuple):
    """What the time loop takes from step to step: a tree of tensors."""

    y: Any
    memory: Any
    failures: Tensor
    folded: Any


def solve(
    sde: Equation,
    initial: State,
    times: Sequence[float] | Float[Tensor, " k"] | Float[np.ndarray, " k"],
    *,
    stepper: Stepper[Equation, State] | None = None,
    generator: torch.Generator | None = None,
    save_at: Sequence[int] = (),
    observe: Callable[[int, float, State], None] | None = None,
    fold: Fold[State, Any] | None = None,
    checkpoint_every: int | None = None,
) -> Solution[State]:
    """Integrate along the grid ``times``, forwards or backwards.

    Memory does not grow with the number of steps, only with ``save_at``; unless gradients are to flow through the
    solve: then every step is kept, or with ``checkpoint_every`` only every so many, at the cost of a second
    evaluation on the way back, with the same noise.

    Args:
        sde: the equation.
        initial: the state at ``times[0]``; elements ``[*batch, *element_shape]`` for a `TrivializedSDE`.
        times: a strictly monotone grid in [0, horizon]; a tensor of them counts as numbers, without gradients.
        stepper: the scheme; default that of the process, `ExponentialEuler` for a `TrivializedSDE`.
        generator: the source of noise, on the device of ``initial``.
        save_at: indices into ``times`` at which to keep the state.
        observe: called with the index, the time and the state at the start and after every step, for what has an
            effect outside, such as a progress bar.
        fold: what to gather from the steps and from all that was evaluated in them.
        checkpoint_every: steps between the states that are kept for the backward pass; ``None`` keeps everything.

    Raises:
        DomainError: the grid is not strictly monotone, or leaves [0, horizon].
        ShapeError: the initial state has the wrong shape.
        ConfigurationError: ``save_at`` repeats an index or holds one that is none, ``checkpoint_every`` is less than
            one, or it comes with ``observe``, which the backward pass would call again.
    """
    grid = check_grid(times, sde.horizon)
    initial = with_tensors("initial", initial)
    sde.check_state(initial, "initial")
    scheme: Stepper[Any, Any] = sde.default_stepper() if stepper is None else stepper
    wanted = _check_save_at(save_at, len(grid))
    batch, like = sde.batch_shape(initial), _leaves(initial)[0]
    equation = sde.prepare(Run(scheme.times(grid), tuple(batch), like.dtype, like.device, generator))
    begun = scheme.init(equation, initial, grid[0], generator)

    def run(carry: _Carry, first: int, last: int) -> _Carry:
        y, memory, failures, folded = carry
        for index in range(first + 1, last + 1):
            evaluated = begun.evaluated if index == 1 else None
            new = scheme.step(equation, StepState(y, memory, evaluated), grid[index - 1], grid[index], generator)
            finite = _finite(new.y, failures.ndim)
            failures = failures + (~finite).long()
            y, memory = _where(finite, new.y, y), _where(finite, new.memory, memory)
            if fold is not None:
                folded = fold.update(folded, StepState(y, memory, new.evaluated))
            del new  # what was evaluated has served
            if observe is not None:
                observe(index, grid[index], y)
        return _Carry(y, memory, failures, folded)

    kept: dict[int, State] = {}
    if checkpoint_every is None:
        stops = sorted(wanted | {len(grid) - 1})
        segment: Callable[[_Carry, int, int], _Carry] = run
    else:
        check_count("checkpoint_every", checkpoint_every)
        if observe is not None:
            raise ConfigurationError("checkpoint_every: expected no observe, which would be called twice")
        stops = sorted(wanted | {len(grid) - 1} | set(range(checkpoint_every, len(grid), checkpoint_every)))
        segment = checkpointed(run, generator)
    failures = torch.zeros(batch, dtype=torch.long, device=like.device)
    carry = _Carry(begun.y, begun.memory, failures, () if fold is None else fold.init(begun.y))
    if observe is not None:
        observe(0, grid[0], begun.y)
    done = 0
    for stop in stops:
        if stop > done:
            carry = segment(carry, done, stop)
            done = stop
        if stop in wanted:
            kept[stop] = carry.y
    saved = _stack([kept[index % len(grid)] for index in save_at]) if save_at else None
    return Solution(carry.y, saved, carry.failures, None if fold is None else carry.folded)


def uniform_grid(steps: int, start: float = 0.0, end: float = 1.0) -> list[float]:
    """``steps + 1`` equally spaced times, the last one exactly ``end``."""
    check_count("steps", steps)
    return [start + (end - start) * (m / steps) for m in range(steps)] + [end]


def check_grid(times: Any, horizon: float = 1.0) -> list[float]:
    """The numbers of a strictly monotone grid in [0, horizon] of two times or more; else raise `DomainError`."""
    if isinstance(times, np.ndarray) or (isinstance(times, Tensor) and not (times.requires_grad or times.is_meta)):
        times = times.tolist()
    if not isinstance(times, Sequence) or not all(isinstance(t, int | float) for t in times):
        raise DomainError(f"times: expected a sequence of numbers, got {times!r}")
    differences = [b - a for a, b in itertools.pairwise(times)]
    monotone = all(d > 0 for d in differences) or all(d < 0 for d in differences)
    if len(times) < 2 or not monotone or min(times) < 0.0 or max(times) > min(horizon, sys.float_info.max):
        raise DomainError(f"times: expected a strictly monotone grid in [0, {horizon:g}], got {list(times)[:8]}")
    return list(times)


def check_noiseless(sde: TrivializedSDE, stepper: str) -> None:
    """Raise `ConfigurationError` unless the equation is an ordinary one."""
    if sde.noisy:
        raise ConfigurationError(f"sde: expected an equation without noise for {stepper}")


def check_reverse(sde: TrivializedSDE, start: float, end: float, stepper: object) -> Score:
    """The drift of a reverse diffusion, which runs backwards; else raise `ConfigurationError`."""
    if sde.score_drift is None or sde.drift is not None or not sde.noisy or end > start:
        raise ConfigurationError(f"sde: expected a reverse diffusion for {type(stepper).__name__}")
    return as_score(sde.score_drift)


def _leaves(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else pytree.tree_leaves(state)


def _finite(state: Any, batch_ndim: int) -> Tensor:
    """Which chains are finite, ``[*batch]``."""
    masks = []
    for leaf in _leaves(state):
        trailing = tuple(range(batch_ndim, leaf.ndim))
        finite = torch.isfinite(leaf)
        masks.append(finite.all(trailing) if trailing else finite)
    result = masks[0]
    for mask in masks[1:]:
        result = result & mask
    return result


def _where(mask: Tensor, new: Any, old: Any) -> Any:
    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)

    if isinstance(new, Tensor):
        return choose(new, old)
    return pytree.tree_map(choose, new, old) if new else new


def _stack(states: Sequence[Any]) -> Any:
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *states)


def _check_save_at(save_at: Sequence[int], number: int) -> set[int]:
    wanted = {index % number for index in save_at if -number <= index < number}
    if len(wanted) != len(save_at):
        raise ConfigurationError(f"save_at: expected distinct indices into {number} times, got {list(save_at)}")
    return wanted
