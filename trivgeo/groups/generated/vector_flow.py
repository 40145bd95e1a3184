"""Flows of single algebra vectors: the user's, or closed forms, quadratures and integration put together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from trivgeo.checks import check_count, check_fraction, check_positive
from trivgeo.groups.generated.integrator import extrapolated_flow
from trivgeo.groups.generated.isotropy import Isotropy
from trivgeo.groups.generated.triangular_flow import FlowResult, TriangularFlow
from trivgeo.groups.generated.vector_fields import VectorFields

__all__ = ["Flow", "GivenFlow", "NumericalFlow", "OdeSettings", "VectorFlow", "follow_all"]

_STEP_SHARE = 0.01  # of the tolerance: the largest error estimate of one step
_CORRECTED_STEP_ERROR = 1e-4  # the same where Newton's method corrects the end
_MAX_CORRECTION = 1e-2  # by Newton's method, relative to one plus the size of the point
_MIN_TOLERANCE_ULPS = 100.0  # smallest tolerance, in units of the last place

Flow = Callable[[Tensor, Tensor], Tensor]
"""A flow for unit time: vectors ``[*batch, dim]`` and points ``[*batch, m]`` to points."""


@dataclass(frozen=True)
class OdeSettings:
    """Accuracy and cost of flows without a closed form.

    Attributes:
        steps: trials of extrapolated steps, of order 12 and controlled length, for each factor of an element.
        nodes: Gauss-Legendre nodes for each factor of an element.
        tolerance: largest error estimate of a factor, relative to 1 + |x|, of a point that counts as valid (in single
            precision at least a hundred rounding errors).

    Raises:
        ConfigurationError: fewer than one step or node, or a tolerance that is not between 0 and 1.
    """

    steps: int = 8
    nodes: int = 32
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_count("nodes", self.nodes)
        check_fraction("tolerance", check_positive("tolerance", self.tolerance))


class VectorFlow(ABC):
    """The flow of the field of one algebra vector for unit time."""

    @property
    @abstractmethod
    def methods(self) -> list[str]:
        """Method by which each coordinate is found, see `GeneratedAction.flows`."""

    @abstractmethod
    def follow(self, v: Tensor, x: Tensor, count: int) -> FlowResult:
        """The flow of the leading ``count`` coordinates of points.

        Args:
            v: the algebra vectors, ``[*batch, 1, dim]``, in the basis of the adapted fields.
            x: the points, ``[*batch, p, m]``.
            count: how many coordinates are wanted.
        """


@final
@dataclass(frozen=True)
class GivenFlow(VectorFlow):
    """A flow that the user gave.

    Attributes:
        flow: the flow of vectors in the basis of the adapted fields.
        dim: the number of coordinates.
    """

    flow: Flow
    dim: int

    @property
    def methods(self) -> list[str]:
        """Name of the method of each coordinate: "given" for all, by the user's flow."""
        return ["given"] * self.dim

    def follow(self, v: Tensor, x: Tensor, count: int) -> FlowResult:
        """Move points along the user's flow; points where the flow is not finite stay at zero and are not alive.

        Args:
            v: algebra vectors ``[*batch, 1, dim]``.
            x: points ``[*batch, p, m]``.
            count: number of leading coordinates wanted.
        """
        y = self.flow(v, x)
        alive = torch.isfinite(y).all(-1)
        return FlowResult(torch.where(alive.unsqueeze(-1), y, 0.0), alive, torch.zeros_like(x[..., 0]))


@final
@dataclass(frozen=True)
class NumericalFlow(VectorFlow):
    """The triangular part of the system by closed forms and quadratures, the rest by an integrator.

    Attributes:
        fields: the adapted fields.
        triangular: the coordinates that need no integrator.
        settings: for the others.
        isotropy: corrects the ends of integrated flows; ``None`` where it is not needed or cannot.
    """

    fields: VectorFields
    triangular: TriangularFlow
    settings: OdeSettings
    isotropy: Isotropy | None = None

    @property
    def methods(self) -> list[str]:
        """Methods of the triangular part; ``"integrated"`` for other coordinates."""
        return self.triangular.methods

    def follow(self, v: Tensor, x: Tensor, count: int) -> FlowResult:
        """Move points along the flow; a point is alive where the flow exists and its estimated error is within the
        tolerance.

        Args:
            v: algebra vectors ``[*batch, 1, dim]``.
            x: points ``[*batch, p, m]``.
            count: number of leading coordinates wanted.
        """
        tolerance = max(self.settings.tolerance, _MIN_TOLERANCE_ULPS * torch.finfo(x.dtype).eps)
        solved = self.triangular.solved_coordinates
        result = self.triangular.flow(v.squeeze(-2), x, count)
        end, error = result.end, result.error
        alive = result.alive & (error <= tolerance)
        if not solved >= set(range(count)):
            integrated = self._integrate(v, x, count, tolerance)
            alive = alive & integrated.alive
            end = torch.stack([(end if c in solved else integrated.end)[..., c] for c in range(x.shape[-1])], -1)
            missed = integrated.error
            if self.isotropy is not None and count in self.isotropy.counts:
                end = torch.where(alive.unsqueeze(-1), end, x.detach())
                end, moved, missed = self.isotropy.correct(v, x, end, count)
                size = 1.0 + end.detach().abs().amax(-1)
                alive = alive & (moved <= _MAX_CORRECTION * size)
                missed = missed / size
            error = error + missed
            alive = alive & (error <= tolerance)
        # a point that has left must not make the gradients of others NaN in the next flow
        return FlowResult(torch.where(alive.unsqueeze(-1), end, x.detach()), alive, error)

    def _integrate(self, v: Tensor, x: Tensor, count: int, tolerance: float) -> FlowResult:
        def field(y: Tensor) -> Tensor:
            return self.fields.combination(v, y)

        corrected = self.isotropy is not None and count in self.isotropy.counts
        accuracy = max(_CORRECTED_STEP_ERROR, tolerance) if corrected else _STEP_SHARE * tolerance
        return FlowResult(*extrapolated_flow(field, x, self.settings.steps, accuracy))


def follow_all(flow: VectorFlow, vectors: Sequence[Tensor], x: Tensor, count: int) -> FlowResult:
    """Follow the flows of several vectors one after the other.

    Args:
        flow: the flow of one vector.
        vectors: algebra vectors, in the order in which they act.
        x: points at the start.
        count: number of leading coordinates, as in `VectorFlow.follow`.

    Returns:
        The end of the last flow; not alive for vectors that are NaN.
    """
    alive = torch.ones_like(x[..., 0], dtype=torch.bool)
    error = torch.zeros_like(x[..., 0])
    for v in vectors:
        known = torch.isfinite(v).all(-1, keepdim=True)
        result = flow.follow(torch.where(known, v, 0.0), x, count)
        x = result.end
        alive = alive & result.alive & known.squeeze(-1)
        error = error + result.error
    return FlowResult(x, alive, error)
