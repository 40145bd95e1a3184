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
from trivgeo._text import Described
from trivgeo.checks import check_count, check_tensor, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.schedule import ConstantSchedule
from trivgeo.sde.processes.base import with_vectors
from trivgeo.sde.processes.trivialized import TrivializedSDE, check_noiseless
from trivgeo.sde.scores.base import check_drift
from trivgeo.sde.solvers.runge_kutta import solve_adaptive

__all__ = ["Divergence", "ExactDivergence", "FlowLikelihood", "HutchinsonDivergence", "flow_likelihood"]

VectorField = Callable[[Tensor], Tensor]

_MAX_COUPLING = 1e-4
"""Relative change of the velocity of one element by moving another element of the batch, above which they depend."""


@checked
class Divergence(ABC):
    r"""A method for the divergence :math:`\sum_i (X_i - a_i) f_i` of a field f, for left Haar measure.

    The adjoint of a left-invariant field X_i is :math:`-X_i + a_i, a_i = \mathrm{tr}\,\mathrm{ad}(e_i)`, see
    `probability_flow`: densities carried by :math:`dg = d(L_g)_e[f]\,dt` obey
    :math:`\partial_t \log p + f \cdot X \log p = -\sum_i (X_i - a_i) f_i`.
    """

    def prepare(self, reference: Tensor, generator: torch.Generator | None) -> Divergence:
        """Return the method for one run; by default the method itself.

        Args:
            reference: a tensor with the shape of the vectors, ``[*batch, dim]``, their dtype and device.
            generator: random numbers of probes.
        """
        return self

    def of_particles(self, event_ndim: int) -> Divergence:
        """Return the method for fields in which the last ``event_ndim`` batch dimensions depend on each other.

        The trace is summed over these dimensions.

        Raises:
            ConfigurationError: the method has no such form.
        """
        raise ConfigurationError(f"event_ndim: expected 0 for {type(self).__name__}, got {event_ndim}")

    @abstractmethod
    def within(self, directions: Sequence[int]) -> Divergence:
        """Return the method for fields f with X_i f_i = 0 in all directions i except the distinct indices given."""

    @abstractmethod
    def trace(self, group: LieGroup, field: VectorField, g: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return the field and the trace of its derivative, :math:`f` and :math:`\sum_i X_i f_i`.

        Args:
            group: the group of the elements.
            field: vector field, elements to vectors.
            g: elements ``[*batch, *element_shape]``.

        Returns:
            Vectors ``[*batch, dim]``, and traces ``[*batch]``.
        """

    def __call__(
        self, group: LieGroup, field: VectorField, g: Tensor
    ) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch"]]:
        """Return the field and its divergence at elements ``[*batch, *element_shape]``.

        The ``field`` f is a function from elements g to algebra vectors.
        """
        value, trace = self.trace(group, field, g)
        if group.algebra.is_unimodular:
            return value, trace
        drift = matmul(value, group.algebra.trace_ad_like(value))
        return value, trace - drift.flatten(trace.ndim).sum(-1) if drift.ndim > trace.ndim else trace - drift


@checked
@dataclass(frozen=True, kw_only=True)
class _AlongDirections(Divergence):
    """A divergence by derivatives along some of the directions, in which particles may move each other."""

    directions: Sequence[int] | None = None
    event_ndim: int = 0

    def __post_init__(self) -> None:
        _check_directions(self.directions)

    def of_particles(self, event_ndim: int) -> Divergence:
        return dataclasses.replace(self, event_ndim=event_ndim)

    def within(self, directions: Sequence[int]) -> Divergence:
        return dataclasses.replace(self, directions=directions)


@checked
@dataclass(frozen=True)
class ExactDivergence(_AlongDirections):
    """The exact divergence, by a forward derivative for each direction, or by reverse ones where gradients may follow.

    For fields of several particles it takes a derivative for each direction of each particle.

    Attributes:
        directions: the distinct indices i in which X_i f_i does not vanish; default all.
        event_ndim: number of last batch dimensions that depend on each other.

    Raises:
        ConfigurationError: directions that are no distinct indices, or (when run) not those of the group.
    """

    directions: Sequence[int] | None = None
    event_ndim: int = 0

    def trace(self, group: LieGroup, field: VectorField, g: Tensor) -> tuple[Tensor, Tensor]:
        chosen = range(group.dim) if self.directions is None else _check_directions(self.directions, group.dim)
        if not chosen:
            value = check_drift(field(g), group, g, "field")
            return value, torch.zeros_like(value[..., 0])
        whole = group.batch_shape(g)
        unit = torch.eye(group.dim, dtype=g.dtype, device=g.device)[list(chosen)]
        particles = whole[len(whole) - self.event_ndim :]
        if particles:
            count = particles.numel()
            places = torch.eye(count, dtype=g.dtype, device=g.device)
            unit = (places.unsqueeze(1).unsqueeze(-1) * unit.unsqueeze(1)).reshape(-1, *particles, group.dim)
        directions = unit.reshape(len(unit), *[1] * (len(whole) - len(particles)), *unit.shape[1:])
        value, changes = _field_along(group, field, g, directions.expand(-1, *whole, -1), self.event_ndim)
        return value, changes.sum(0)


@checked
@dataclass(frozen=True)
class HutchinsonDivergence(_AlongDirections):
    """An unbiased estimate by random signs (Hutchinson 1989), which stay the same during a run (Grathwohl et al. 2019).

    Signs of different particles are independent. In omitted directions the signs are zero, so that their coupling to
    others adds no variance.

    Attributes:
        probes: number of vectors of signs; each costs a forward derivative.
        directions: distinct indices of directions with random signs; default all.
        event_ndim: number of last batch dimensions that depend on each other.

    Raises:
        ConfigurationError: fewer than one probe; directions as in `ExactDivergence`.
    """

    probes: int = 1
    _signs: Tensor | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_count("probes", self.probes)
        super().__post_init__()

    def prepare(self, reference: Tensor, generator: torch.Generator | None) -> Divergence:
        _check_directions(self.directions, reference.shape[-1])
        signs = torch.where(uniform((self.probes, *reference.shape), reference, generator) < 0.5, -1.0, 1.0).to(
            reference.dtype
        )
        if self.directions is not None:
            chosen = torch.zeros_like(signs)
            chosen[..., list(self.directions)] = 1.0
            signs = signs * chosen
        return dataclasses.replace(self, _signs=signs)

    def trace(self, group: LieGroup, field: VectorField, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the field and an estimate of the trace of its derivative, the mean over the probes."""
        ready = self if self._signs is not None else self.prepare(g.new_zeros(*group.batch_shape(g), group.dim), None)
        assert isinstance(ready, HutchinsonDivergence)
        assert ready._signs is not None
        value, changes = _field_along(group, field, g, ready._signs, self.event_ndim)
        return value, changes.mean(0)


@dataclass(frozen=True, repr=False)
class FlowLikelihood(Described):
    """Result of `flow_likelihood`.

    Attributes:
        log_density: log-density for left Haar measure at the start, ``[*batch]``, of all particles of an event;
            NaN where the flow could not be followed.
        final: elements at the end of the flow, ``[*batch, *element_shape]``.
        failures: one for each chain that could not be followed, else zero, ``[*batch]``.
        evaluations: number of evaluations of the field with its divergence.
    """

    log_density: Float[Tensor, "*batch"]
    final: Tensor
    failures: Int[Tensor, "*batch"]
    evaluations: int


@checked
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
    event_ndim: int = 0,
) -> FlowLikelihood:
    r"""The log-density at ``start`` of a distribution that an equation without noise carries to a known one at ``end``.

    .. math:: \log p_0(g_0) = \log p_1(g_1) + \int_0^1 \sum_i (X_i - a_i) f_i(g_t, t)\,dt

    for :math:`dg = d(L_g)_e[f]\,dt` (Chen et al. 2018 on vector spaces), see `Divergence`. The integral is one more
    coordinate of the element, so that one tolerance holds for both.

    Where elements require gradients, the result has gradients, through all steps; else nothing is kept for a backward
    pass.

    Args:
        flow: the equation, such as a `probability_flow`.
        g: elements ``[*batch, *element_shape]`` at the start.
        end_log_density: function from elements to ``[*batch]``, for left Haar measure; nothing is broadcast.
        start: the time of the elements.
        end: the time at which the density is known.
        divergence: default `ExactDivergence`.
        tolerance: largest error of one step of the flow, see `solve_adaptive`.
        generator: random numbers of `HutchinsonDivergence`.
        event_ndim: number of last batch dimensions that count the particles that the field moves together:
            with 1, elements are ``[*batch, particles, *element_shape]`` and densities ``[*batch]``.

    Raises:
        ConfigurationError: see `solve_adaptive`, also for `DomainError`; or the density is no floating-point tensor, or
            the field moves an element according to others of the batch, which ``event_ndim`` does not name.
        ShapeError: elements or densities have another shape.
    """
    check_noiseless(flow, "a likelihood")
    group = flow.group
    g = group.check_elements(g)
    whole = group.batch_shape(g)
    if check_count("event_ndim", event_ndim, 0) > len(whole):
        raise ConfigurationError(f"event_ndim: expected at most {len(whole)} batch dimensions, got {event_ndim}")
    batch, particles = whole[: len(whole) - event_ndim], whole[len(whole) - event_ndim :]
    method = ExactDivergence() if divergence is None else divergence
    method = method.of_particles(event_ndim) if event_ndim else method
    chosen = method.prepare(g.new_zeros(*whole, group.dim), generator)
    # the particles of an event are one element of a power of the group, so that one accuracy holds for all
    space = with_vectors(group ** particles.numel() if particles else group, 1)
    shape = (*particles, *group.element_shape)
    size = g[(0,) * len(batch)].numel() if math.prod(whole) else g.new_zeros(shape).numel()

    def drift(state: Tensor, t: float) -> Tensor:
        element = state[..., :size].unflatten(-1, shape)
        velocity, rate = chosen(group, lambda x: flow.velocity(x, t).vector, element)
        return torch.cat([velocity.flatten(len(batch)), rate.unsqueeze(-1)], -1)

    state = torch.cat([g.flatten(len(batch)), g.new_zeros(*batch, 1)], -1)
    equation = TrivializedSDE(space, ConstantSchedule(0.0), drift, noisy=False)
    is_tracked = torch.is_grad_enabled() and g.requires_grad
    with torch.no_grad():
        if isinstance(method, ExactDivergence | HutchinsonDivergence):  # these need forward derivatives of the field
            _check_rows(flow, g, start, event_ndim)
    with torch.set_grad_enabled(is_tracked):
        solution = solve_adaptive(equation, state, start, end, tolerance=tolerance)
        final = solution.final[..., :size].unflatten(-1, shape)
        log_density = _check_density(end_log_density(final), batch) + solution.final[..., -1]
    return FlowLikelihood(log_density, final, solution.failures, solution.evaluations)


def _check_rows(flow: TrivializedSDE, g: Tensor, t: float, event_ndim: int) -> None:
    """Check that moving the first element of a batch does not change the velocity of another."""
    whole = flow.group.batch_shape(g)
    rows = whole[: len(whole) - event_ndim].numel()
    if rows < 2:
        return
    tangent = g.new_zeros(rows, whole.numel() // rows, flow.group.dim)
    tangent[0] = 1.0
    tangent = tangent.reshape(*whole, flow.group.dim)
    moved = torch.func.jvp(
        lambda v: flow.velocity(flow.group.perturb(g, v), t).vector, (torch.zeros_like(tangent),), (tangent,)
    )[1]
    others = moved.reshape(rows, -1)[1:].abs()
    if bool((others > _MAX_COUPLING * moved.abs().max()).any()):
        raise ConfigurationError(
            f"event_ndim: expected a vector field that moves the elements of the batch {list(whole)} independently, "
            "got a velocity that depends on other elements; count the dimensions of such elements in event_ndim"
        )


def _field_along(
    group: LieGroup, field: VectorField, g: Tensor, directions: Tensor, event_ndim: int
) -> tuple[Tensor, Tensor]:
    """The field, and its derivative along each of the directions v, projected on v: ``[m, *batch]``.

    The field is evaluated once, as the value that each forward derivative carries. Where gradients may follow,
    derivatives are reverse ones, whose transpose has the same projections: torch differentiates forward derivatives of
    ``layer_norm`` wrongly (pytorch/pytorch#196700, up to 2.13 at least).

    Args:
        directions: ``[m, *batch, dim]``.
        event_ndim: number of last batch dimensions that depend on each other, which are summed.
    """
    zero = g.new_zeros(directions.shape[1:])

    def moved(v: Tensor) -> Tensor:
        return check_drift(field(group.perturb(g, v)), group, g, "field")

    if torch.is_grad_enabled():
        value, pull_back = torch.func.vjp(moved, zero)  # type: ignore[misc]
        return value, torch.func.vmap(lambda v: _summed(pull_back(v)[0] * v, event_ndim))(directions)

    def along(direction: Tensor) -> tuple[Tensor, Tensor]:
        pair = torch.func.jvp(moved, (zero,), (direction.contiguous(),))
        return pair[0], _summed(pair[1] * direction, event_ndim)

    # the value does not depend on the direction
    return torch.func.vmap(along, out_dims=(None, 0))(directions)  # type: ignore[arg-type]


def _summed(terms: Tensor, event_ndim: int) -> Tensor:
    """The sum over the last dimension, and over the dimensions of particles before it."""
    return terms.flatten(terms.ndim - 1 - event_ndim).sum(-1)


def _check_directions(directions: Any, number: int | None = None) -> Any:
    """Check that ``directions`` is ``None`` or distinct indices, below ``number`` if that is given."""
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
