"""Trivialized stochastic differential equations, how to step them, and the one time loop."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups import LieGroup
from trivgeo.sde.schedule import Schedule

__all__ = ["ExponentialEuler", "Solution", "Stepper", "TrivializedSDE", "solve"]

Drift = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class TrivializedSDE:
    r"""The left-trivialized equation :math:`dg = d(L_g)_e[(\phi(g, t) + \gamma(t)^2 \psi(g, t))\,dt + \gamma(t)\,dw]`.

    Stratonovich sense: for constant coefficients the solution is a product of exponentials :math:`\exp(\gamma\,
    \delta w)`, with generator :math:`\phi \cdot X + \tfrac12 \gamma^2 \sum_i X_i^2` in the left-invariant fields.

    Attributes:
        group: where g lives.
        schedule: the diffusion coefficient gamma.
        drift: phi, elements ``[*batch, *element_shape]`` and a time to algebra vectors ``[*batch, dim]``.
        score_drift: psi, likewise, in units of the variance: over a step it is multiplied by the exact integral
            of gamma^2 instead of by dt.
    """

    group: LieGroup
    schedule: Schedule
    drift: Drift | None = None
    score_drift: Drift | None = None

    def increment(self, g: Tensor, start: float, end: float) -> Tensor | None:
        """The displacement by both drifts, frozen at ``(g, start)``, over a step; ``None`` without drift.

        Steps may run backwards, ``end < start``.
        """
        parts = []
        if self.drift is not None:
            parts.append(self.drift(g, start) * (end - start))
        if self.score_drift is not None:
            parts.append(self.score_drift(g, start) * self.schedule.variance(start, end))
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]


class Stepper(ABC):
    """One step of a scheme. A new scheme is one subclass."""

    @abstractmethod
    def step(
        self, sde: TrivializedSDE, g: Tensor, start: float, end: float, generator: torch.Generator | None
    ) -> Tensor:
        """Elements at ``end`` from elements at ``start``."""


class ExponentialEuler(Stepper):
    r""":math:`g \leftarrow g \exp(\phi\,\Delta t + \sigma z)`, :math:`\sigma^2 = \int \gamma^2`, z standard normal.

    Weak order 1; exact on abelian groups without drift.
    """

    def step(
        self, sde: TrivializedSDE, g: Tensor, start: float, end: float, generator: torch.Generator | None
    ) -> Tensor:
        """One exponential of the group."""
        group = sde.group
        noise = normal((*group.batch_shape(g), group.dim), g, generator)
        v = noise * abs(sde.schedule.variance(start, end)) ** 0.5
        increment = sde.increment(g, start, end)
        return group.retract(g, v if increment is None else increment + v)


@dataclass(frozen=True)
class Solution:
    """What `solve` returns.

    Attributes:
        final: the elements at the last time, ``[*batch, *element_shape]``.
        saved: the elements at the times asked for, ``[len(save_at), *batch, *element_shape]``, or ``None``.
        failures: how many steps of each chain were masked, ``[*batch]``: a step that would have made a chain
            non-finite is not taken.
    """

    final: Tensor
    saved: Tensor | None
    failures: Tensor


def solve(
    sde: TrivializedSDE,
    initial: Tensor,
    times: Sequence[float],
    *,
    stepper: Stepper | None = None,
    generator: torch.Generator | None = None,
    save_at: Sequence[int] = (),
    on_step: Callable[[int, float], None] | None = None,
) -> Solution:
    """Integrate along the grid ``times``, forwards or backwards.

    Memory does not grow with the number of steps, only with ``save_at``.

    Args:
        sde: the equation.
        initial: elements at ``times[0]``, ``[*batch, *element_shape]``.
        times: a strictly monotone grid in [0, 1].
        stepper: the scheme; default `ExponentialEuler`.
        generator: the source of noise, on the device of ``initial``.
        save_at: indices into ``times`` at which to keep the elements.
        on_step: called with the index and the time after every step, for progress bars.

    Raises:
        DomainError: the grid is not strictly monotone, or leaves [0, 1].
        ShapeError: the initial elements have the wrong shape.
    """
    check_grid(times)
    group = sde.group
    group.check_elements(initial, "initial")
    stepper = ExponentialEuler() if stepper is None else stepper
    wanted = {index % len(times) for index in save_at}
    if len(wanted) != len(save_at):
        raise ConfigurationError(f"save_at: expected distinct indices into {len(times)} times, got {list(save_at)}")
    trailing = tuple(range(-len(group.element_shape), 0))
    g = initial
    failures = torch.zeros(group.batch_shape(g), dtype=torch.long, device=g.device)
    kept = {0: g} if 0 in wanted else {}
    for index in range(1, len(times)):
        new = stepper.step(sde, g, times[index - 1], times[index], generator)
        finite = torch.isfinite(new).all(trailing) if trailing else torch.isfinite(new)
        failures = failures + (~finite).long()
        g = torch.where(finite.reshape(finite.shape + (1,) * len(trailing)), new, g)
        if index in wanted:
            kept[index] = g
        if on_step is not None:
            on_step(index, times[index])
    saved = torch.stack([kept[index % len(times)] for index in save_at]) if save_at else None
    return Solution(g, saved, failures)


def uniform_grid(steps: int, start: float = 0.0, end: float = 1.0) -> list[float]:
    """``steps + 1`` equally spaced times, the last one exactly ``end``."""
    check_count("steps", steps)
    return [start + (end - start) * (m / steps) for m in range(steps)] + [end]


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers in the dtype and on the device of ``like``."""
    return torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=like.device)


def check_count(name: str, value: int) -> int:
    """Return ``value`` if it is an integer of at least one, else raise `ConfigurationError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name}: expected an integer of at least 1, got {value!r}")
    return value


def check_grid(times: Sequence[float]) -> None:
    """Raise `DomainError` unless ``times`` is a strictly monotone grid in [0, 1] of two times or more."""
    differences = [b - a for a, b in itertools.pairwise(times)]
    monotone = all(d > 0 for d in differences) or all(d < 0 for d in differences)
    if len(times) < 2 or not monotone or min(times) < 0.0 or max(times) > 1.0:
        raise DomainError(f"times: expected a strictly monotone grid in [0, 1], got {list(times)[:8]}")
