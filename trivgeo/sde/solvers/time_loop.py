"""The time loop of all solvers, with accumulators and gradient checkpointing."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from trivgeo._text import Described
from trivgeo._torch import pytree
from trivgeo.checks import check_count, checked, with_tensors
from trivgeo.errors import ConfigurationError
from trivgeo.sde.grid import check_grid, check_row_grids
from trivgeo.sde.processes.base import Process, Stepper, StepState
from trivgeo.sde.scores.base import SolveContext

Segment = Callable[[Any, int, int], Any]


def checkpointed(run: Segment, generator: torch.Generator | None) -> Segment:
    """Return ``run`` with gradient checkpointing: the backward pass runs it again from its start, with the same noise.

    ``run`` may call ``torch.func`` inside, as trivialized gradients do. `torch.utils.checkpoint.checkpoint` may not
    (see `trivgeo._torch`). Leaf tensors other than the state that ``run`` depends on are found in its graph, and get
    their gradients too. Differentiable once.

    The ``run`` goes from (state, first, last) to a state, a tree of tensors. The state of ``generator``, its random
    numbers, is restored for the second run.
    """

    def segment(state: Any, first: int, last: int) -> Any:
        if not torch.is_grad_enabled():
            return run(state, first, last)
        inputs, structure = pytree.tree_flatten(state)
        before = _noise_state(inputs[0], generator)

        def body(tensors: list[Tensor]) -> Any:
            return run(pytree.tree_unflatten(tensors, structure), first, last)

        def again(tensors: list[Tensor]) -> list[Tensor]:
            now = _noise_state(inputs[0], generator)
            _set_noise_state(inputs[0], generator, before)
            try:
                return pytree.tree_leaves(body(tensors))
            finally:
                _set_noise_state(inputs[0], generator, now)

        # an accumulator may grow, so that the structure changes in a segment
        outputs, after = pytree.tree_flatten(body([x.detach() for x in inputs]))
        leaves = _graph_leaves(outputs)
        results = _Rerun.apply(again, [x.detach() for x in outputs], len(inputs), *inputs, *leaves)
        return pytree.tree_unflatten(list(results), after)

    return segment


class _Rerun(torch.autograd.Function):
    """The identity in the forward pass; the backward pass runs the segment again (gradient checkpointing)."""

    @staticmethod
    def forward(ctx: Any, again: Callable[..., Any], outputs: list[Tensor], number: int, *inputs: Tensor) -> Any:
        ctx.again, ctx.leaves = again, inputs[number:]
        ctx.save_for_backward(*inputs[:number])
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        state = [x.detach().requires_grad_(x.is_floating_point()) for x in ctx.saved_tensors]
        with torch.enable_grad():
            outputs = ctx.again(state)
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
        inputs = [*state, *ctx.leaves]
        # the graph between leaves and the run is shared by the segments, so it is kept
        found = iter(
            torch.autograd.grad(
                [o for o, _ in pairs],
                [x for x in inputs if x.requires_grad],
                [g for _, g in pairs],
                retain_graph=True,
                allow_unused=True,
            )
        )
        return None, None, None, *(next(found) if x.requires_grad else None for x in inputs)


def _graph_leaves(outputs: list[Tensor]) -> list[Tensor]:
    """The leaf tensors with gradients on which outputs depend."""
    pending: list[Any] = [x.grad_fn for x in outputs if x.grad_fn is not None]
    seen, leaves = set(pending), []
    while pending:
        node = pending.pop()
        if node.name() == "torch::autograd::AccumulateGrad":
            leaves.append(node.variable)
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                pending.append(parent)
    return leaves


def _noise_state(reference: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor | None]:
    if generator is not None:
        return generator.get_state(), None
    return torch.get_rng_state(), torch.cuda.get_rng_state(reference.device) if reference.is_cuda else None


def _set_noise_state(reference: Tensor, generator: torch.Generator | None, state: tuple[Tensor, Tensor | None]) -> None:
    own, device = state
    if generator is not None:
        generator.set_state(own)
        return
    torch.set_rng_state(own)
    if device is not None:
        torch.cuda.set_rng_state(device, reference.device)


Aggregate = TypeVar("Aggregate")
State = TypeVar("State")
Equation = TypeVar("Equation", bound=Process)


@checked
class Accumulator(Described, ABC, Generic[State, Aggregate]):
    """An aggregate over the steps of a solve, without side effects; its last value is `Solution.accumulated`.

    An aggregate is a tree of tensors. It may depend on the state differentiably.
    """

    @abstractmethod
    def init(self, y: State) -> Aggregate:
        """Return the aggregate at the start, where the state is ``y``."""

    @abstractmethod
    def update(self, acc: Aggregate, step: StepState) -> Aggregate:
        """Return a new aggregate from the old one, ``acc``, and the state after a step; neither is changed in place."""


@dataclass(frozen=True, repr=False)
class Solution(Described, Generic[State]):
    """Result of `solve`.

    Attributes:
        final: the state at the last time; elements ``[*batch, *element_shape]`` for a `TrivializedSDE`.
        saved: the states at the times asked for, each tensor ``[len(save_at), ...]``, or ``None``.
        num_masked_steps: number of masked steps of each chain, ``[*batch]``, which are not taken since they would make
            it non-finite, or raise its `Process.potential` by more than `Process.max_rise`.
        accumulated: the last aggregate of the accumulator, or ``None``.
    """

    final: State
    saved: State | None
    num_masked_steps: Tensor
    accumulated: Any = None

    @property
    def final_or_nan(self) -> State:
        """The final state, NaN in chains with masked steps, which are no solutions."""
        nan = pytree.tree_map(lambda leaf: torch.full_like(leaf, math.nan), self.final)
        return _where(self.num_masked_steps == 0, self.final, nan)


class _Carry(NamedTuple):
    """State of the time loop between steps: a tree of tensors."""

    y: Any
    memory: Any
    num_masked_steps: Tensor
    accumulated: Any
    potential: Any


@checked
def solve(
    sde: Equation,
    initial: State,
    times: Sequence[float] | Float[Tensor, "k *batch"] | Float[np.ndarray, " k"],
    *,
    stepper: Stepper[Equation, State] | None = None,
    generator: torch.Generator | None = None,
    save_at: Sequence[int] = (),
    observe: Callable[[int, Any, State], None] | None = None,
    accumulator: Accumulator[State, Any] | None = None,
    checkpoint_every: int | None = None,
) -> Solution[State]:
    """Integrate along the grid ``times``, forwards or backwards.

    Memory grows with ``save_at``, but not with the number of steps. If gradients flow through the solve, every step is
    kept. With ``checkpoint_every`` fewer steps are kept, and backpropagation evaluates the others again, with the same
    noise.

    Args:
        sde: the equation.
        initial: the state at ``times[0]``; elements ``[*batch, *element_shape]`` for a `TrivializedSDE`.
        times: a strictly monotone grid in [0, horizon]; a tensor of them counts as numbers, without gradients. Or a
            grid for each chain, ``[k, *batch]``, which may also stay where it is; the drift is then a function of
            elements and their times ``[*batch]``.
        stepper: the scheme; default that of the process, `ExponentialEuler` for a `TrivializedSDE`.
        generator: the source of noise, on the device of ``initial``.
        save_at: indices into ``times`` at which to keep the state.
        observe: function of the index, the time or times, and the state, called at the start and after every step, for
            effects outside, such as a progress bar.
        accumulator: aggregate over the steps and over all that was evaluated in them.
        checkpoint_every: steps between the states that are kept for the backward pass; ``None`` keeps everything.

    Raises:
        DomainError: the grid is not strictly monotone, or leaves [0, horizon].
        ShapeError: the initial state has the wrong shape, or there are not as many grids as chains.
        ConfigurationError: ``save_at`` holds an index twice or out of range, ``checkpoint_every`` is less than one,
            or is given with ``observe``, which the backward pass would call again; chains have times of their own,
            which the equation, drift or scheme does not support.
    """
    initial = with_tensors("initial", initial)
    sde.check_state(initial, "initial")
    scheme: Stepper[Any, Any] = sde.default_stepper() if stepper is None else stepper
    batch, reference = sde.batch_shape(initial), _leaves(initial)[0]
    grid, of_rows = _grid(times, sde, scheme, batch, reference)
    wanted = _check_save_at(save_at, len(grid))
    stops = _stops(wanted, len(grid), checkpoint_every, observe is not None)
    asked = () if of_rows else scheme.times(grid)
    equation = sde.prepare(SolveContext(asked, tuple(batch), reference.dtype, reference.device, generator))
    begun = StepState(initial) if of_rows else scheme.init(equation, initial, grid[0], generator)

    def advanced(state: StepState, start: Any, end: Any) -> StepState:
        if of_rows:
            return scheme.step(equation.along(start, end), state, 0.0, 1.0, generator)
        return scheme.step(equation, state, start, end, generator)

    def run(carry: _Carry, first: int, last: int) -> _Carry:
        y, memory, num_masked, aggregate, potential = carry
        for index in range(first + 1, last + 1):
            evaluated = begun.evaluated if index == 1 else None
            new = advanced(StepState(y, memory, evaluated), grid[index - 1], grid[index])
            taken, potential = _admitted(equation, new.y, potential, num_masked.ndim)
            num_masked = num_masked + (~taken).long()
            y, memory = _where(taken, new.y, y), _where(taken, new.memory, memory)
            if accumulator is not None:
                aggregate = accumulator.update(aggregate, StepState(y, memory, new.evaluated))
            del new  # frees the evaluated samples
            if observe is not None:
                observe(index, grid[index], y)
        return _Carry(y, memory, num_masked, aggregate, potential)

    kept: dict[int, State] = {}
    segment: Callable[[_Carry, int, int], _Carry] = run if checkpoint_every is None else checkpointed(run, generator)
    num_masked = torch.zeros(batch, dtype=torch.long, device=reference.device)
    aggregate = () if accumulator is None else accumulator.init(begun.y)
    carry = _Carry(begun.y, begun.memory, num_masked, aggregate, _potential(equation, begun.y))
    if observe is not None:
        observe(0, grid[0], begun.y)
    done = 0
    for stop in stops:
        if stop > done:
            carry = segment(carry, done, stop)
            done = stop
        if stop in wanted:
            kept[stop] = carry.y
    states = [kept[index % len(grid)] for index in save_at]
    saved = pytree.tree_map(lambda *leaves: torch.stack(leaves), *states) if states else None
    return Solution(carry.y, saved, carry.num_masked_steps, None if accumulator is None else carry.accumulated)


def _grid(
    times: Any, sde: Process, scheme: Stepper[Any, Any], batch: torch.Size, reference: Tensor
) -> tuple[Any, bool]:
    """The times of all chains, or of each chain in a tensor ``[k, *batch]``, and whether it is the latter."""
    times = torch.as_tensor(times) if isinstance(times, np.ndarray) else times
    if not isinstance(times, Tensor) or times.ndim < 2:
        return check_grid(times, sde.horizon), False
    grid = check_row_grids(times, sde.horizon, batch, reference)
    if not scheme.takes_row_times:
        raise ConfigurationError(f"times: expected one grid for all chains by {scheme!r}, got one for each")
    return grid, True


def _stops(wanted: set[int], number: int, checkpoint_every: int | None, is_observed: bool) -> list[int]:
    """Indices of the times at which a state is kept, in order."""
    if checkpoint_every is None:
        return sorted(wanted | {number - 1})
    check_count("checkpoint_every", checkpoint_every)
    if is_observed:
        raise ConfigurationError("checkpoint_every: expected no observe, which would be called twice")
    return sorted(wanted | {number - 1} | set(range(checkpoint_every, number, checkpoint_every)))


def _leaves(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else pytree.tree_leaves(state)


def _finite(state: Any, batch_ndim: int) -> Tensor:
    """Mask of finite chains, ``[*batch]``."""
    masks = []
    for leaf in _leaves(state):
        trailing = tuple(range(batch_ndim, leaf.ndim))
        finite = torch.isfinite(leaf)
        masks.append(finite.all(trailing) if trailing else finite)
    result = masks[0]
    for mask in masks[1:]:
        result = result & mask
    return result


def _potential(equation: Process, state: Any) -> Any:
    """The `Process.potential`, without derivatives; an empty tree for none."""
    with torch.no_grad():
        found = equation.potential(state)
    return () if found is None else found.detach()


def _admitted(equation: Process, state: Any, potential: Any, batch_ndim: int) -> tuple[Tensor, Any]:
    """Mask of chains that may go to a state, ``[*batch]``, and the potential of the state that they are in then."""
    finite = _finite(state, batch_ndim)
    if isinstance(potential, tuple):
        return finite, potential
    new = _potential(equation, state)
    taken = finite & ~(new - potential > equation.max_rise)  # NaN potentials do not mask a finite state
    return taken, torch.where(taken, new, potential)


def _where(mask: Tensor, new: Any, old: Any) -> Any:
    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)

    if isinstance(new, Tensor):
        return choose(new, old)
    return pytree.tree_map(choose, new, old) if new else new


def _check_save_at(save_at: Sequence[int], number: int) -> set[int]:
    wanted = {index % number for index in save_at if -number <= index < number}
    if len(wanted) != len(save_at):
        raise ConfigurationError(f"save_at: expected distinct indices into {number} times, got {list(save_at)}")
    return wanted
