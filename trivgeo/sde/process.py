"""Stochastic differential equations on groups, the contract of a scheme, and the one time loop."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups import LieGroup
from trivgeo.sde.checkpoint import checkpointed
from trivgeo.sde.schedule import Schedule

__all__ = ["ExponentialEuler", "Process", "Solution", "Stepper", "TrivializedSDE", "solve"]

Drift = Callable[[Tensor, float], Tensor]
State = TypeVar("State")
Equation = TypeVar("Equation", bound="Process")


class Process(ABC):
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


@dataclass(frozen=True)
class TrivializedSDE(Process):
    r"""The left-trivialized equation :math:`dg = d(L_g)_e[(\phi(g, t) + \gamma(t)^2 \psi(g, t))\,dt + \gamma(t)\,dw]`.

    Stratonovich sense: for constant coefficients the solution is a product of exponentials :math:`\exp(\gamma\,
    \delta w)`, with generator :math:`\phi \cdot X + \tfrac12 \gamma^2 \sum_i X_i^2` in the left-invariant fields.
    Its state is the elements ``[*batch, *element_shape]``.

    Attributes:
        group: where g lives.
        schedule: the diffusion coefficient gamma.
        drift: phi, elements ``[*batch, *element_shape]`` and a time to algebra vectors ``[*batch, dim]``.
        score_drift: psi, likewise, in units of the variance: over a step it is multiplied by the exact integral
            of gamma^2 instead of by dt.
        noisy: keep the noise; without it the equation is an ordinary one, in which gamma only weighs psi.
    """

    group: LieGroup
    schedule: Schedule
    drift: Drift | None = None
    score_drift: Drift | None = None
    noisy: bool = True

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

    def increment(self, g: Tensor, start: float, end: float, at: float | None = None) -> Tensor | None:
        """The displacement by both drifts over a step, frozen at g and the time ``at`` (default: its start).

        Steps may run backwards, ``end < start``. ``None`` without drift.
        """
        t = start if at is None else at
        parts = []
        if self.drift is not None:
            parts.append(self.drift(g, t) * (end - start))
        if self.score_drift is not None:
            parts.append(self.score_drift(g, t) * self.schedule.variance(start, end))
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def velocity(self, g: Tensor, t: float) -> Tensor | None:
        r"""The drift :math:`\phi + \gamma^2 \psi` at one time; ``None`` without drift."""
        parts = []
        if self.drift is not None:
            parts.append(self.drift(g, t))
        if self.score_drift is not None:
            parts.append(self.score_drift(g, t) * self.schedule(t) ** 2)
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def noise_std(self, start: float, end: float) -> float:
        """The standard deviation of the noise of a step."""
        return abs(self.schedule.variance(start, end)) ** 0.5 if self.noisy else 0.0


class Stepper(ABC, Generic[Equation, State]):
    """One step of a scheme for one kind of process. A new scheme is one subclass."""

    @abstractmethod
    def step(self, sde: Equation, g: State, start: float, end: float, generator: torch.Generator | None) -> State:
        """The state at ``end`` from the state at ``start``."""


class ExponentialEuler(Stepper[TrivializedSDE, Tensor]):
    r""":math:`g \leftarrow g \exp(\phi\,\Delta t + \psi\,\sigma^2 + \sigma z)`, :math:`\sigma^2 = \int \gamma^2`.

    z is standard normal. Weak order 1, one drift and one exponential a step; exact on abelian groups without drift.
    """

    def step(
        self, sde: TrivializedSDE, g: Tensor, start: float, end: float, generator: torch.Generator | None
    ) -> Tensor:
        """One exponential of the group."""
        group = sde.group
        increment = None
        if sde.noisy:
            v = normal((*group.batch_shape(g), group.dim), g, generator) * sde.noise_std(start, end)
            increment = sde.increment(g, start, end)
            return group.retract(g, v if increment is None else increment + v)
        increment = sde.increment(g, start, end)
        return g if increment is None else group.retract(g, increment)


@dataclass(frozen=True)
class Solution(Generic[State]):
    """What `solve` returns.

    Attributes:
        final: the state at the last time; elements ``[*batch, *element_shape]`` for a `TrivializedSDE`.
        saved: the states at the times asked for, each tensor ``[len(save_at), ...]``, or ``None``.
        failures: how many steps of each chain were masked, ``[*batch]``: a step that would have made a chain
            non-finite is not taken.
    """

    final: State
    saved: State | None
    failures: Tensor


def solve(
    sde: Equation,
    initial: State,
    times: Sequence[float],
    *,
    stepper: Stepper[Equation, State] | None = None,
    generator: torch.Generator | None = None,
    save_at: Sequence[int] = (),
    on_step: Callable[[int, float], None] | None = None,
    observe: Callable[[int, float, State], None] | None = None,
    checkpoint_every: int | None = None,
) -> Solution[State]:
    """Integrate along the grid ``times``, forwards or backwards.

    Memory does not grow with the number of steps, only with ``save_at``; unless gradients are to flow through the
    solve: then every step is kept, or with ``checkpoint_every`` only every so many, at the cost of a second
    evaluation on the way back, with the same noise.

    Args:
        sde: the equation.
        initial: the state at ``times[0]``; elements ``[*batch, *element_shape]`` for a `TrivializedSDE`.
        times: a strictly monotone grid in [0, horizon].
        stepper: the scheme; default that of the process, `ExponentialEuler` for a `TrivializedSDE`.
        generator: the source of noise, on the device of ``initial``.
        save_at: indices into ``times`` at which to keep the state.
        on_step: called with the index and the time after every step, for progress bars.
        observe: called with the index, the time and the state at the start and after every step, for diagnostics.
        checkpoint_every: steps between the states that are kept for the backward pass; ``None`` keeps everything.

    Raises:
        DomainError: the grid is not strictly monotone, or leaves [0, horizon].
        ShapeError: the initial state has the wrong shape.
        ConfigurationError: ``save_at`` repeats an index or holds one that is none, ``checkpoint_every`` is less than
            one, or it comes with ``on_step`` or ``observe``, which the backward pass would call again.
    """
    check_grid(times, sde.horizon)
    sde.check_state(initial, "initial")
    scheme: Stepper[Any, Any] = sde.default_stepper() if stepper is None else stepper
    wanted = _check_save_at(save_at, len(times))
    failures = torch.zeros(sde.batch_shape(initial), dtype=torch.long, device=_leaves(initial)[0].device)

    def run(state: State, failures: Tensor, first: int, last: int) -> tuple[State, Tensor]:
        for index in range(first + 1, last + 1):
            new = scheme.step(sde, state, times[index - 1], times[index], generator)
            finite = _finite(new, failures.ndim)
            failures = failures + (~finite).long()
            state = _where(finite, new, state)
            if on_step is not None:
                on_step(index, times[index])
            if observe is not None:
                observe(index, times[index], state)
        return state, failures

    state = initial
    kept: dict[int, State] = {}
    if checkpoint_every is None:
        stops = sorted(wanted | {len(times) - 1})
        segment: Callable[[State, Tensor, int, int], tuple[State, Tensor]] = run
    else:
        check_count("checkpoint_every", checkpoint_every)
        if on_step is not None or observe is not None:
            raise ConfigurationError("checkpoint_every: expected neither on_step nor observe, which would run twice")
        stops = sorted(wanted | {len(times) - 1} | set(range(checkpoint_every, len(times), checkpoint_every)))
        segment = checkpointed(run, generator)
    if observe is not None:
        observe(0, times[0], state)
    done = 0
    for stop in stops:
        if stop > done:
            state, failures = segment(state, failures, done, stop)
            done = stop
        if stop in wanted:
            kept[stop] = state
    saved = _stack([kept[index % len(times)] for index in save_at]) if save_at else None
    return Solution(state, saved, failures)


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

    return choose(new, old) if isinstance(new, Tensor) else pytree.tree_map(choose, new, old)


def _stack(states: Sequence[Any]) -> Any:
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *states)


def _check_save_at(save_at: Sequence[int], number: int) -> set[int]:
    wanted = {index % number for index in save_at if -number <= index < number}
    if len(wanted) != len(save_at):
        raise ConfigurationError(f"save_at: expected distinct indices into {number} times, got {list(save_at)}")
    return wanted


def uniform_grid(steps: int, start: float = 0.0, end: float = 1.0) -> list[float]:
    """``steps + 1`` equally spaced times, the last one exactly ``end``."""
    check_count("steps", steps)
    return [start + (end - start) * (m / steps) for m in range(steps)] + [end]


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers in the dtype and on the device of ``like``."""
    return torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=like.device)


def check_grid(times: Sequence[float], horizon: float = 1.0) -> None:
    """Raise `DomainError` unless ``times`` is a strictly monotone grid in [0, horizon] of two times or more."""
    differences = [b - a for a, b in itertools.pairwise(times)]
    monotone = all(d > 0 for d in differences) or all(d < 0 for d in differences)
    if len(times) < 2 or not monotone or min(times) < 0.0 or max(times) > horizon:
        raise DomainError(f"times: expected a strictly monotone grid in [0, {horizon:g}], got {list(times)[:8]}")
