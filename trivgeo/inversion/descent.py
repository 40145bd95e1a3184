"""Descent along the posterior energy from many starts at once: where the point lives, and how it moves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import LieGroup
from trivgeo.inversion.base import InversionResult
from trivgeo.inversion.counting import CountedPosterior, where_rows

__all__ = [
    "Adam",
    "AlgebraCoordinates",
    "Descent",
    "GroupElements",
    "HeavyBall",
    "Parametrization",
    "UpdateRule",
    "descend",
]


class Parametrization(ABC):
    """The point that a descent moves, and its elements."""

    @abstractmethod
    def start(self, group: LieGroup, v: Tensor) -> Tensor:
        """The point whose elements are ``exp(v)``."""

    @abstractmethod
    def elements(self, group: LieGroup, point: Tensor) -> Tensor:
        """The elements of a point."""

    @abstractmethod
    def displaced(self, group: LieGroup, point: Tensor, v: Tensor) -> Tensor:
        """The elements of the point moved by v, to first order in v."""

    @abstractmethod
    def moved(self, group: LieGroup, point: Tensor, v: Tensor) -> Tensor:
        """The point moved by v."""

    @abstractmethod
    def square(self, gradient: Tensor) -> Tensor:
        """What Adam averages for its second moment; broadcasts against the gradient ``[b, k, dim]``."""


class AlgebraCoordinates(Parametrization):
    """The point is v with g = exp(v), in a vector space whose coordinates Adam rescales one by one."""

    def start(self, group: LieGroup, v: Tensor) -> Tensor:
        """v itself."""
        return v

    def elements(self, group: LieGroup, point: Tensor) -> Tensor:
        """exp(v)."""
        return group.exp(point)

    def displaced(self, group: LieGroup, point: Tensor, v: Tensor) -> Tensor:
        """The exponential of the sum."""
        return group.exp(point + v)

    def moved(self, group: LieGroup, point: Tensor, v: Tensor) -> Tensor:
        """The sum."""
        return point + v

    def square(self, gradient: Tensor) -> Tensor:
        """Each coordinate's."""
        return gradient.square()


class GroupElements(Parametrization):
    r"""The point is g, the gradient left-trivialized, a step :math:`g \leftarrow g \exp v`.

    Adam's moments stay in the algebra, which left translation carries along, and its second moment is the squared
    length of the gradient, as nothing on a group singles out coordinates: Riemannian Adam (Becigneul and Ganea 2019)
    for the left-invariant metric.
    """

    def start(self, group: LieGroup, v: Tensor) -> Tensor:
        """exp(v)."""
        return group.exp(v)

    def elements(self, group: LieGroup, point: Tensor) -> Tensor:
        """g itself."""
        return point

    def displaced(self, group: LieGroup, point: Tensor, v: Tensor) -> Tensor:
        """`LieGroup.perturb`."""
        return group.perturb(point, v)

    def moved(self, group: LieGroup, point: Tensor, v: Tensor) -> Tensor:
        """`LieGroup.retract`."""
        return group.retract(point, v)

    def square(self, gradient: Tensor) -> Tensor:
        """The squared length."""
        return gradient.square().sum(-1, keepdim=True)


class UpdateRule(ABC):
    """How gradients become displacements."""

    @abstractmethod
    def start(self, gradient: Tensor, space: Parametrization) -> tuple[Tensor, ...]:
        """The first state, tensors ``[b, k, ...]``; ``gradient`` gives the shape."""

    @abstractmethod
    def step(
        self, gradient: Tensor, state: tuple[Tensor, ...], space: Parametrization
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The displacement ``[b, k, dim]`` and the next state."""


class Adam(UpdateRule):
    """Adam (Kingma and Ba 2015), with a count of steps for each chain.

    Args:
        learning_rate: the size of a step.
        betas: decay of the two moments, each in [0, 1).
        epsilon: added to the root of the second.

    Raises:
        ConfigurationError: a number out of its range.
    """

    def __init__(self, learning_rate: float, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8) -> None:
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.epsilon = check_positive("epsilon", epsilon)
        first, second = betas
        self.betas = (check_decay("betas", first), check_decay("betas", second))

    def start(self, gradient: Tensor, space: Parametrization) -> tuple[Tensor, ...]:
        """Both moments zero, no steps."""
        return (
            torch.zeros_like(gradient),
            torch.zeros_like(space.square(gradient)),
            gradient.new_zeros(gradient.shape[:-1]),
        )

    def step(
        self, gradient: Tensor, state: tuple[Tensor, ...], space: Parametrization
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Moments without bias, the first over the root of the second."""
        mean, square, count = state
        first, second = self.betas
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * space.square(gradient)
        count = count + 1
        exponent = count.unsqueeze(-1)
        root = (square / (1 - second**exponent)).sqrt() + self.epsilon
        return -self.learning_rate * mean / (1 - first**exponent) / root, (mean, square, count)


class HeavyBall(UpdateRule):
    """Gradient steps with momentum (Polyak 1964), the gradient no longer than a bound.

    Args:
        learning_rate: the size of a step.
        momentum: the share of the last step that is kept, in [0, 1).
        max_gradient_norm: longer gradients are shortened to this length; ``None`` for no bound.

    Raises:
        ConfigurationError: a number out of its range.
    """

    def __init__(self, learning_rate: float, momentum: float = 0.0, max_gradient_norm: float | None = None) -> None:
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.momentum = check_decay("momentum", momentum)
        if max_gradient_norm is not None:
            check_positive("max_gradient_norm", max_gradient_norm)
        self.max_gradient_norm = max_gradient_norm

    def start(self, gradient: Tensor, space: Parametrization) -> tuple[Tensor, ...]:
        """At rest."""
        return (torch.zeros_like(gradient),)

    def step(
        self, gradient: Tensor, state: tuple[Tensor, ...], space: Parametrization
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The last step and the gradient."""
        if self.max_gradient_norm is not None:
            length = gradient.norm(dim=-1, keepdim=True)
            gradient = gradient * (self.max_gradient_norm / length.clamp(min=self.max_gradient_norm))
        velocity = self.momentum * state[0] - self.learning_rate * gradient
        return velocity, (velocity,)


def descend(
    posterior: CountedPosterior,
    point: Tensor,
    space: Parametrization,
    rule: UpdateRule,
    steps: int,
    *,
    keep_seen: bool,
    on_step: Callable[[int, float], None] | None,
) -> InversionResult:
    """Descend from a point for each chain, each by itself.

    A chain whose energy or gradient is not finite goes back to its last point where both were, its moments as they
    were there, and the step counts as a failure. The end is that point, too, if the energy there is not finite.

    Args:
        posterior: the energy.
        point: where, ``[b, k, ...]``.
        space: where it lives.
        rule: how it moves.
        steps: gradient evaluations of each chain; one energy comes after.
        keep_seen: return the element of lowest energy that each chain has met in place of its end.
        on_step: called with the index of every step and the share of the run that is done.
    """
    group = posterior.group
    last = best = point
    shape = point.shape[:2]
    zero = point.new_zeros(*shape, group.dim)
    state = rule.start(zero, space)
    failures = torch.zeros(shape, dtype=torch.long, device=point.device)
    last_energy = best_energy = point.new_full(shape, torch.inf)
    for index in range(1, steps + 1):
        gradient, energy = posterior.gradient(partial(space.displaced, group, point), zero)
        finite = torch.isfinite(energy) & torch.isfinite(gradient).all(-1)
        last, last_energy = where_rows(finite, point, last), torch.where(finite, energy, last_energy)
        if keep_seen:
            lower = last_energy < best_energy
            best, best_energy = where_rows(lower, last, best), torch.where(lower, last_energy, best_energy)
        v, new = rule.step(torch.where(finite.unsqueeze(-1), gradient, 0.0), state, space)
        state = tuple(where_rows(finite, a, b) for a, b in zip(new, state, strict=True))
        moved = space.moved(group, point, v)
        kept = finite & torch.isfinite(moved).flatten(2).all(-1)
        point = where_rows(kept, moved, last)
        failures = failures + (~kept).long()
        if on_step is not None:
            on_step(index, index / steps)
    energy = posterior.energies(space.elements(group, point))
    finite = torch.isfinite(energy)
    end, end_energy = where_rows(finite, point, last), torch.where(finite, energy, last_energy)
    if keep_seen:
        lower = best_energy < end_energy
        end, end_energy = where_rows(lower, best, end), torch.where(lower, best_energy, end_energy)
    return posterior.result(space.elements(group, end), end_energy, failures)


class Descent:
    r"""A descent on the group that ends a search: from a sample of finite temperature to the minimum of its well.

    Steps of `HeavyBall` on `GroupElements`; each chain returns the lowest energy that it has met, so that none ends
    higher than it began.

    Args:
        steps: number of gradient steps.
        learning_rate: eta, in units of the group's basis.
        momentum: mu, in [0, 1).
        max_gradient_norm: longer gradients are shortened to this length; ``None`` for no bound.

    Raises:
        ConfigurationError: a number out of its range.
    """

    def __init__(
        self,
        steps: int = 30,
        learning_rate: float = 0.01,
        momentum: float = 0.0,
        max_gradient_norm: float | None = 1.0,
    ) -> None:
        self.steps = check_count("steps", steps)
        self.rule = HeavyBall(learning_rate, momentum, max_gradient_norm)

    def __call__(self, posterior: CountedPosterior, result: InversionResult) -> InversionResult:
        """Descend from every hypothesis of a result; their failures are added to its own."""
        end = descend(posterior, result.elements, GroupElements(), self.rule, self.steps, keep_seen=True, on_step=None)
        return posterior.result(end.elements, end.energies, result.failures + end.failures)


def check_descent(descent: Descent | None) -> Descent | None:
    """Return ``descent`` if it is a `Descent` or None, else raise `ConfigurationError`."""
    if descent is not None and not isinstance(descent, Descent):
        raise ConfigurationError(f"descent: expected a Descent, got {type(descent).__name__}")
    return descent


def check_decay(name: str, value: float) -> float:
    """Return ``value`` if it is a number in [0, 1), else raise `ConfigurationError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigurationError(f"{name}: expected a number in [0, 1), got {value!r}")
    return value
