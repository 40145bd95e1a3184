"""Densities carried along the flow of an ordinary equation on a group."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._random import uniform
from trivgeo._signatures import check_calls
from trivgeo._text import Described
from trivgeo.checks import check_count, check_tensor
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.schedule import ConstantSchedule
from trivgeo.sde.processes.augmented import with_vectors
from trivgeo.sde.processes.trivialized import TrivializedSDE, check_noiseless
from trivgeo.sde.scores.base import check_drift
from trivgeo.sde.solvers.adaptive import solve_adaptive

__all__ = ["Divergence", "ExactDivergence", "FlowLikelihood", "HutchinsonDivergence", "flow_likelihood"]

VectorField = Callable[[Tensor], Tensor]


class Divergence(ABC):
    r"""A method for the divergence :math:`\sum_i (X_i - a_i) f_i` of a field f, for left Haar measure.

    The adjoint of a left-invariant field X_i is :math:`-X_i + a_i, a_i = \mathrm{tr}\,\mathrm{ad}(e_i)`, see
    `probability_flow`: densities carried by :math:`dg = d(L_g)_e[f]\,dt` obey
    :math:`\partial_t \log p + f \cdot X \log p = -\sum_i (X_i - a_i) f_i`.
    """

    def prepare(self, like: Tensor, generator: torch.Generator | None) -> Divergence:
        """Return the method for one run; by default the method itself.

        Args:
            like: a tensor with the shape of the vectors, ``[*batch, dim]``, their dtype and device.
            generator: random numbers of probes.
        """
        return self

    @abstractmethod
    def within(self, directions: Sequence[int]) -> Divergence:
        """Return the method for fields f with X_i f_i = 0 in all directions i but the given, distinct indices."""

    @abstractmethod
    def trace(self, group: LieGroup, field: VectorField, g: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return the field and the trace of its derivative, :math:`f` and :math:`\sum_i X_i f_i`.

        Args:
            group: the group of the elements.
            field: vector field, a function of elements to algebra vectors ``[*batch, dim]``.
            g: elements ``[*batch, *element_shape]``.

        Returns:
            Vectors ``[*batch, dim]``, and traces ``[*batch]``.
        """

    def __call__(
        self, group: LieGroup, field: VectorField, g: Tensor
    ) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch"]]:
        """Return the field and its divergence at elements ``[*batch, *element_shape]``.

        Args:
            group: see `TrivializedSDE`.
            field: f, elements to algebra vectors.
            g: the elements.
        """
        value, trace = self.trace(group, field, g)
        if group.algebra.is_unimodular:
            return value, trace
        return value, trace - matmul(value, group.algebra.trace_ad_like(value))


@dataclass(frozen=True)
class ExactDivergence(Divergence):
    """The exact divergence, by one forward derivative for each direction.

    Attributes:
        directions: the distinct indices i in which X_i f_i does not vanish; default all.

    Raises:
        ConfigurationError: directions that are no distinct indices, or (when run) not those of the group.
    """

    directions: Sequence[int] | None = None

    def __post_init__(self) -> None:
        _check_directions(self.directions)

    def within(self, directions: Sequence[int]) -> Divergence:
        """Return the exact divergence that differentiates along the given directions i alone, distinct indices."""
        return dataclasses.replace(self, directions=directions)

    def trace(self, group: LieGroup, field: VectorField, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the field and its trace, all directions at once."""
        value = check_drift(field(g), group, g, "field")
        zero = torch.zeros_like(value)
        chosen = range(group.dim) if self.directions is None else _check_directions(self.directions, group.dim)
        if not chosen:
            return value, torch.zeros_like(value[..., 0])
        unit = torch.eye(group.dim, dtype=value.dtype, device=value.device)[list(chosen)]

        def diagonal(direction: Tensor) -> Tensor:
            tangent = direction.expand_as(zero).contiguous()
            change = torch.func.jvp(lambda v: field(group.perturb(g, v)), (zero,), (tangent,))[1]
            return (change * direction).sum(-1)

        return value, torch.func.vmap(diagonal)(unit).sum(0)


@dataclass(frozen=True)
class HutchinsonDivergence(Divergence):
    """An unbiased estimate by random signs (Hutchinson 1989), the same ones all along a run (Grathwohl et al. 2019).

    Attributes:
        probes: vectors of signs; each costs a forward derivative.
        directions: see `ExactDivergence`, also for what is raised; in others the signs are zero.
    """

    probes: int = 1
    directions: Sequence[int] | None = None
    _signs: Tensor | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_count("probes", self.probes)
        _check_directions(self.directions)

    def within(self, directions: Sequence[int]) -> Divergence:
        """Return the estimate with signs in the given directions, distinct indices, and zeros in all others.

        The coupling of these directions to others then adds no variance.
        """
        return dataclasses.replace(self, directions=directions)

    def prepare(self, like: Tensor, generator: torch.Generator | None) -> Divergence:
        """Return the estimate with random signs for one run.

        Args:
            like: algebra vectors ``[*batch, dim]``, whose shape, dtype and device the signs take.
            generator: of the signs.

        Raises:
            ConfigurationError: directions that are not those of the group.
        """
        _check_directions(self.directions, like.shape[-1])
        signs = torch.where(uniform((self.probes, *like.shape), like, generator) < 0.5, -1.0, 1.0).to(like.dtype)
        if self.directions is not None:
            chosen = torch.zeros_like(signs)
            chosen[..., list(self.directions)] = 1.0
            signs = signs * chosen
        return dataclasses.replace(self, _signs=signs)

    def trace(self, group: LieGroup, field: VectorField, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the field and the mean of its trace over the probes."""
        value = check_drift(field(g), group, g, "field")
        zero = torch.zeros_like(value)
        ready = self if self._signs is not None else self.prepare(value, None)
        assert isinstance(ready, HutchinsonDivergence)
        assert ready._signs is not None

        def quadratic(signs: Tensor) -> Tensor:
            return (torch.func.jvp(lambda v: field(group.perturb(g, v)), (zero,), (signs,))[1] * signs).sum(-1)

        return value, torch.func.vmap(quadratic)(ready._signs).mean(0)


@dataclass(frozen=True, repr=False)
class FlowLikelihood(Described):
    """Result of `flow_likelihood`.

    Attributes:
        log_density: for left Haar measure, at the start, ``[*batch]``; NaN where the flow could not be followed.
        final: elements at the end of the flow, ``[*batch, *element_shape]``.
        failures: see `AdaptiveSolution`.
        evaluations: of the field with its divergence.
    """

    log_density: Float[Tensor, "*batch"]
    final: Tensor
    failures: Int[Tensor, "*batch"]
    evaluations: int


def flow_likelihood(
    flow: TrivializedSDE,
    g: Tensor,
    end_log_density: Callable[[Tensor], Tensor],
    *,
    start: float = 0.0,
    end: float = 1.0,
    divergence: Divergence | None = None,
    tolerance: float = 1e-5,
    generator: torch.Generator | None = None,
) -> FlowLikelihood:
    r"""The log-density at ``start`` of a law that an equation without noise carries to a known one at ``end``.

    .. math:: \log p_0(g_0) = \log p_1(g_1) + \int_0^1 \sum_i (X_i - a_i) f_i(g_t, t)\,dt

    for :math:`dg = d(L_g)_e[f]\,dt` (Chen et al. 2018 on vector spaces), see `Divergence`. Integrated with the element
    as one more coordinate of the group, so that the one tolerance holds for both.

    Args:
        flow: the equation, such as a `probability_flow`.
        g: elements ``[*batch, *element_shape]`` at the start.
        end_log_density: elements to ``[*batch]``, for left Haar measure; nothing is broadcast.
        start: the time of the elements.
        end: the time at which the density is known.
        divergence: default `ExactDivergence`.
        tolerance: see `solve_adaptive`.
        generator: of `HutchinsonDivergence`.

    Raises:
        ConfigurationError: see `solve_adaptive`, also for `DomainError`; or the density is no floating-point tensor.
        ShapeError: elements or densities of another shape.
    """
    check_noiseless(flow, "a likelihood")
    group = flow.group
    g = group.check_elements(g)
    batch = group.batch_shape(g)
    chosen = (ExactDivergence() if divergence is None else divergence).prepare(
        g.new_zeros(*batch, group.dim), generator
    )
    space = with_vectors(group, 1)
    size = g.new_zeros(group.element_shape).numel()

    def drift(state: Tensor, t: float) -> Tensor:
        element = state[..., :size].unflatten(-1, group.element_shape)
        velocity, rate = chosen(group, lambda x: _vector(flow, x, t), element)
        return torch.cat([velocity, rate.unsqueeze(-1)], -1)

    state = torch.cat([g.flatten(len(batch)), g.new_zeros(*batch, 1)], -1)
    equation = TrivializedSDE(space, ConstantSchedule(0.0), drift, noisy=False)
    with torch.no_grad():
        solution = solve_adaptive(equation, state, start, end, tolerance=tolerance)
        final = solution.final[..., :size].unflatten(-1, group.element_shape)
        log_density = _check_density(end_log_density(final), batch) + solution.final[..., -1]
    return FlowLikelihood(log_density, final, solution.failures, solution.evaluations)


def _check_directions(directions: Any, number: int | None = None) -> Any:
    """Return ``directions`` if it is ``None`` or distinct indices, below ``number`` where that is given."""
    if directions is None:
        return None
    below, which = (math.inf, "distinct indices") if number is None else (number, f"distinct indices below {number}")
    indices = isinstance(directions, Sequence) and all(type(i) is int and 0 <= i < below for i in directions)
    if not indices or len(set(directions)) != len(directions):
        raise ConfigurationError(f"directions: expected {which}, got {directions!r}")
    return directions


def _check_density(value: Any, batch: torch.Size) -> Tensor:
    value = check_tensor("end_log_density", value)
    if value.shape != batch:
        raise ShapeError(f"end_log_density: expected one number per element {list(batch)}, got {list(value.shape)}")
    return value


def _vector(flow: TrivializedSDE, g: Tensor, t: float) -> Tensor:
    vector = flow.velocity(g, t).vector
    return g.new_zeros(*flow.group.batch_shape(g), flow.group.dim) if vector is None else vector


check_calls(__name__, __all__)
