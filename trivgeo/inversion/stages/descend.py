"""Gradient descent along the posterior energy, many chains at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial

import torch
from torch import Tensor

from trivgeo._text import Described
from trivgeo.checks import check_count, check_fraction, check_positive, check_type, checked
from trivgeo.groups import LieGroup
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.rows import lower_rows, where_rows
from trivgeo.inversion.stage import Population, Stage


@checked
class Parametrization(Described, ABC):
    """The space in which a descent moves, near elements g_0."""

    @abstractmethod
    def start(self, group: LieGroup, base: Tensor, v: Tensor) -> Tensor:
        """Return the point whose elements are ``g_0 exp(v)``.

        Args:
            group: the group of the elements.
            base: elements g_0, ``[b, k, *element_shape]``.
            v: algebra vectors ``[b, k, dim]``.
        """

    @abstractmethod
    def elements(self, group: LieGroup, base: Tensor, point: Tensor) -> Tensor:
        """Return the elements ``[b, k, *element_shape]`` of points.

        Args:
            group: the group of the elements.
            base: elements g_0, ``[b, k, *element_shape]``.
            point: points of the descent, see `start`.
        """

    @abstractmethod
    def displaced(self, group: LieGroup, base: Tensor, point: Tensor, v: Tensor) -> Tensor:
        """Return the elements of the points moved by v, to first order in v; descents differentiate by v at zero.

        Args:
            group: the group of the elements.
            base: elements g_0, ``[b, k, *element_shape]``.
            point: points of the descent, see `start`.
            v: algebra vectors ``[b, k, dim]``.
        """

    @abstractmethod
    def moved(self, group: LieGroup, point: Tensor, v: Tensor) -> Tensor:
        """Return the points moved by a step.

        Args:
            group: the group of the elements.
            point: points of the descent, see `start`.
            v: the step, algebra vectors ``[b, k, dim]``.
        """

    @abstractmethod
    def square(self, gradient: Tensor) -> Tensor:
        """Return the squares that Adam averages, which broadcast to ``gradient``, ``[b, k, dim]``."""


@checked
class AlgebraCoordinates(Parametrization):
    """The point is v with g = g_0 exp(v), in a vector space whose coordinates Adam rescales one by one."""

    def start(self, group: LieGroup, base: Tensor, v: Tensor) -> Tensor:
        return v

    def elements(self, group: LieGroup, base: Tensor, point: Tensor) -> Tensor:
        return group.retract(base, point)

    def displaced(self, group: LieGroup, base: Tensor, point: Tensor, v: Tensor) -> Tensor:
        return group.retract(base, point + v)

    def moved(self, group: LieGroup, point: Tensor, v: Tensor) -> Tensor:
        return point + v

    def square(self, gradient: Tensor) -> Tensor:
        return gradient.square()


@checked
class GroupElements(Parametrization):
    r"""The point is g, the gradient left-trivialized, a step :math:`g \leftarrow g \exp v`.

    Adam's moments stay in the algebra, which left translation carries along, and its second moment is the squared
    length of the gradient, as nothing on a group singles out coordinates: Riemannian Adam (Becigneul and Ganea 2019)
    for the left-invariant metric.
    """

    def start(self, group: LieGroup, base: Tensor, v: Tensor) -> Tensor:
        return group.retract(base, v)

    def elements(self, group: LieGroup, base: Tensor, point: Tensor) -> Tensor:
        return point

    def displaced(self, group: LieGroup, base: Tensor, point: Tensor, v: Tensor) -> Tensor:
        return group.perturb(point, v)

    def moved(self, group: LieGroup, point: Tensor, v: Tensor) -> Tensor:
        """Return the elements ``point exp(v)``, ``[b, k, *element_shape]``, by `LieGroup.retract`."""
        return group.retract(point, v)

    def square(self, gradient: Tensor) -> Tensor:
        return gradient.square().sum(-1, keepdim=True)


@checked
class UpdateRule(Described, ABC):
    """Rule by which gradients become displacements of the point of a descent."""

    @abstractmethod
    def start(self, gradient: Tensor, space: Parametrization) -> tuple[Tensor, ...]:
        """Return the state before the first step, tensors ``[b, k, ...]``.

        Args:
            gradient: a tensor of the shape of gradients.
            space: coordinates in which the steps are taken.
        """

    @abstractmethod
    def step(
        self, gradient: Tensor, state: tuple[Tensor, ...], space: Parametrization
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the displacement ``[b, k, dim]`` and the next state.

        Args:
            gradient: energy gradients ``[b, k, dim]``.
            state: the state before the step.
            space: coordinates of the step.
        """


@checked
class Adam(UpdateRule):
    """Adam (Kingma and Ba 2015), with a count of steps for each chain.

    Args:
        learning_rate: size of a step.
        betas: decay rates of the two moments, each in [0, 1).
        epsilon: added to the root of the second moment.

    Raises:
        ConfigurationError: a number out of its range.
    """

    def __init__(self, learning_rate: float, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8) -> None:
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.epsilon = check_positive("epsilon", epsilon)
        first, second = betas
        self.betas = (check_fraction("betas", first), check_fraction("betas", second))

    def start(self, gradient: Tensor, space: Parametrization) -> tuple[Tensor, ...]:
        """Return the state before the first step: both moments and the count of steps of each chain, all zero."""
        return (
            torch.zeros_like(gradient),
            torch.zeros_like(space.square(gradient)),
            gradient.new_zeros(gradient.shape[:-1]),
        )

    def step(
        self, gradient: Tensor, state: tuple[Tensor, ...], space: Parametrization
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return minus the learning rate times the first moment over the root of the second, both without bias."""
        mean, square, count = state
        first, second = self.betas
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * space.square(gradient)
        count = count + 1
        exponent = count.unsqueeze(-1)
        root = (square / (1 - second**exponent)).sqrt() + self.epsilon
        return -self.learning_rate * mean / (1 - first**exponent) / root, (mean, square, count)


@checked
class HeavyBall(UpdateRule):
    """Gradient steps with momentum (Polyak 1964), the gradient no longer than a bound.

    Args:
        learning_rate: size of a step.
        momentum: share of the last step that is kept, in [0, 1).
        max_gradient_norm: longer gradients are shortened to this length; ``None`` for no bound.

    Raises:
        ConfigurationError: a number out of its range.
    """

    def __init__(
        self, learning_rate: float = 0.01, momentum: float = 0.0, max_gradient_norm: float | None = 1.0
    ) -> None:
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.momentum = check_fraction("momentum", momentum)
        if max_gradient_norm is not None:
            check_positive("max_gradient_norm", max_gradient_norm)
        self.max_gradient_norm = max_gradient_norm

    def start(self, gradient: Tensor, space: Parametrization) -> tuple[Tensor, ...]:
        return (torch.zeros_like(gradient),)

    def step(
        self, gradient: Tensor, state: tuple[Tensor, ...], space: Parametrization
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return a share of the last displacement minus the learning rate times the gradient, cut to the bound."""
        if self.max_gradient_norm is not None:
            length = gradient.norm(dim=-1, keepdim=True)
            gradient = gradient * (self.max_gradient_norm / length.clamp(min=self.max_gradient_norm))
        velocity = self.momentum * state[0] - self.learning_rate * gradient
        return velocity, (velocity,)


@checked
class Descend(Stage):
    r"""Descends along the posterior energy, each chain independently.

    A chain whose energy or gradient is not finite goes back to its last point where both were finite, with the moments
    of that point, and the step counts as masked. The chain also ends there if its last energy is not finite.

    After a sampler it goes from the width of the posterior to the minimum of each well, at no temperature.

    Args:
        steps: number of gradient steps of each chain; one energy comes after.
        rule: rule by which gradients become steps; default `HeavyBall` with its defaults.
        space: space of the descent; default `GroupElements`.
        start_std: sigma of the starts :math:`g \exp(\sigma z)`, z standard normal, in units of the group's basis; 0 to
            start where the population is.
        keep_best: return of each chain the element of lowest energy that it has met in place of its end, so that none
            ends higher than it began.

    Raises:
        ConfigurationError: a setting out of its range.
    """

    def __init__(
        self,
        steps: int = 30,
        rule: UpdateRule | None = None,
        space: Parametrization | None = None,
        start_std: float = 0.0,
        keep_best: bool = True,
    ) -> None:
        self.steps = check_count("steps", steps)
        self.rule = HeavyBall() if rule is None else check_type("rule", rule, UpdateRule)  # type: ignore[type-abstract]
        self.space = GroupElements() if space is None else check_type("space", space, Parametrization)  # type: ignore[type-abstract]
        self.start_std = start_std if start_std == 0 else check_positive("start_std", start_std)
        self.keep_best = keep_best

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        group, base, space = posterior.group, population.elements, self.space
        shape = base.shape[:2]
        zero = base.new_zeros(*shape, group.dim)
        start = self.start_std * posterior.normal(*zero.shape, generator=generator) if self.start_std else zero
        last = best = point = space.start(group, base, start)
        state = self.rule.start(zero, space)
        masked = torch.zeros_like(population.num_masked_steps)
        last_energy = best_energy = base.new_full(shape, torch.inf)
        for _ in range(self.steps):
            gradient, energy = posterior.gradient(partial(space.displaced, group, base, point), zero)
            finite = torch.isfinite(energy) & torch.isfinite(gradient).all(-1)
            last, last_energy = where_rows(finite, point, last), torch.where(finite, energy, last_energy)
            if self.keep_best:
                best, best_energy = lower_rows(best, best_energy, last, last_energy)
            v, new = self.rule.step(torch.where(finite.unsqueeze(-1), gradient, 0.0), state, space)
            state = tuple(where_rows(finite, a, b) for a, b in zip(new, state, strict=True))
            moved = space.moved(group, point, v)
            kept = finite & torch.isfinite(moved).flatten(2).all(-1)
            point = where_rows(kept, moved, last)
            masked = masked + (~kept).long()
            posterior.step()
            if posterior.is_late():
                break
        energy = posterior.energies(space.elements(group, base, point))
        finite = torch.isfinite(energy)
        end, end_energy = where_rows(finite, point, last), torch.where(finite, energy, last_energy)
        if self.keep_best:
            end, end_energy = lower_rows(end, end_energy, best, best_energy)
        return population.moved(space.elements(group, base, end), end_energy, masked)
