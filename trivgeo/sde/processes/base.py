"""The contracts of an equation for `solve`, and of a scheme that steps it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from trivgeo._text import Described, described
from trivgeo._torch import pytree
from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups import DirectProduct, LieGroup, Translation
from trivgeo.sde.scores.base import SolveContext


def with_vectors(group: LieGroup, dim: int) -> DirectProduct:
    """The direct product of ``group`` and R^dim, an element followed by a vector, with the standard basis of R^dim."""
    natural = group.basis.is_natural
    if natural:
        return DirectProduct(group, Translation(dim))
    ones = torch.ones(dim, dtype=torch.float64)
    diagonal = group.scale.ndim == 1
    scale = torch.cat([group.scale, ones]) if diagonal else torch.block_diag(group.scale, torch.diag(ones))
    return DirectProduct(group.with_scale(None), Translation(dim), scale=scale)


T = TypeVar("T")
State = TypeVar("State")
Equation = TypeVar("Equation", bound="Process")
EquationT = TypeVar("EquationT", bound="Process")


@checked
class Process(Described, ABC):
    """An equation for `solve`, independent of the scheme.

    The state is a tensor, or a (named) tuple of tensors, whose leading dimensions are those of the chains.
    """

    @property
    @abstractmethod
    def horizon(self) -> float:
        """The last time at which the equation is defined; the first is 0."""

    @abstractmethod
    def check_state(self, state: Any, name: str) -> None:
        """Check that ``state`` is one of this process; messages call it ``name``.

        Raises:
            ShapeError: shapes do not fit.
        """

    @abstractmethod
    def batch_shape(self, state: Any) -> torch.Size:
        """Return the leading dimensions of a state, those of the chains."""

    @abstractmethod
    def default_stepper(self) -> Stepper[Any, Any]:
        """Return the scheme that `solve` takes where none is given."""

    @property
    def max_rise(self) -> float:
        """The largest rise of `potential` by a step that is short enough; by default no bound."""
        return math.inf

    def potential(self, state: Any) -> Tensor | None:
        """Return a function of the ``state``, ``[*batch]``, that short steps hardly raise; by default none.

        Explicit schemes with steps that are too long overshoot, by more and more. `solve` masks a step that raises the
        potential by more than `max_rise`.
        """
        return None

    def prepare(self, run: SolveContext) -> Process:
        """Return the equation for one solve; by default the equation itself. `solve` calls this once.

        Args:
            run: initial state, times and generator of the solve.
        """
        return self

    def along(self: EquationT, start: Tensor, end: Tensor) -> EquationT:
        """Return the equation on the interval [0, 1], along which each chain goes through times of its own.

        Args:
            start: the time of each chain at 0, ``[*batch]``.
            end: the time of each chain at 1; times between are interpolated.

        Raises:
            ConfigurationError: the equation, or its drift, has one time for all chains.
        """
        raise ConfigurationError(f"times: expected one grid for all chains of {type(self).__name__}, got one for each")


@checked
class StepState(NamedTuple):
    """The state of a scheme between two steps.

    Attributes:
        y: the state of the process.
        memory: values that the scheme keeps from step to step, a tree of tensors ``[*batch, ...]``.
        evaluated: by-products of the drift in the last step: ``None``, one such as `EnergySamples`, or a tuple.
    """

    y: Any
    memory: Any = ()
    evaluated: Any = None

    def __repr__(self) -> str:
        return described(self)

    def parts(self, kind: type[T]) -> list[T]:
        """Return all entries of ``evaluated`` that are instances of ``kind``, in the order of evaluation."""
        leaves = pytree.tree_leaves(self.evaluated, is_leaf=lambda x: isinstance(x, kind))
        return [x for x in leaves if isinstance(x, kind)]


@checked
def merge_evaluated(*evaluated: Any) -> Any:
    """Merge by-products ``evaluated``: return ``None`` for none, the only one, or a tuple of several."""
    kept = tuple(x for x in evaluated if x is not None)
    return kept if len(kept) > 1 else kept[0] if kept else None


@checked
class Stepper(ABC, Generic[Equation, State]):
    """A numerical scheme for one kind of process; a subclass holds settings, and nothing that changes during a solve.

    Values that a scheme keeps from one step to the next are the ``memory`` of its `StepState`. A chain that a step
    would make non-finite stays in its previous state, with its previous memory.

    Attributes:
        order: weak order of convergence, or the order for equations without noise; ``None`` where none is claimed.
        strong_order: strong order of convergence; ``None`` where none is claimed.
    """

    order: ClassVar[int | None] = None
    strong_order: ClassVar[float | None] = None

    @property
    def takes_row_times(self) -> bool:
        """True if chains may have times of their own: the scheme keeps no memory, and compares no times."""
        return False

    def __repr__(self) -> str:
        """The name of the scheme, and its settings."""
        return described(self)

    def times(self, grid: Sequence[float]) -> tuple[float, ...]:
        """Return the times at which the drift is evaluated along ``grid``, increasing or falling times of a solve.

        By default these are the starts of all steps.
        """
        return tuple(grid[:-1])

    def init(self, sde: Equation, y: State, start: float, generator: torch.Generator | None) -> StepState:
        """Return the state before the first step: by default the state of the process, without memory.

        Args:
            sde: the equation.
            y: initial state of the process.
            start: the first time.
            generator: random numbers; None is torch's.
        """
        return StepState(y)

    @abstractmethod
    def step(
        self, sde: Equation, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        """Advance the process by one step.

        Args:
            sde: the equation.
            state: state at ``start``.
            start: time before the step.
            end: time after the step; below ``start`` in solves backwards.
            generator: random numbers; None is torch's.

        Returns:
            The state at ``end``.
        """
