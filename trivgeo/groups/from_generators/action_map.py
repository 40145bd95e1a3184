"""Maps of points by elements of a generated group, and the group's action, which asks one of them.

All coordinates move projectively (`ProjectiveActionMap`); or some have closed forms and the others follow flows of the
factors or of the logarithm of an element (`CoordinateActionMap`); or one of these moves points in other coordinates
(`ChartActionMap`). Which one is decided when the group is made.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._numerics import Constant, broadcast_shapes, in_single, is_abstract
from trivgeo.checks import checked
from trivgeo.groups.action import JetAction
from trivgeo.groups.from_generators.chart import Chart
from trivgeo.groups.from_generators.closed_form import ClosedForms, HomogeneousTransform, stacked
from trivgeo.groups.from_generators.deck_transformations import FundamentalDomain
from trivgeo.groups.from_generators.elements import FactoredElements
from trivgeo.groups.from_generators.flows import FlowResult, VectorFlow, follow_all
from trivgeo.groups.group import LieGroup


@dataclass(frozen=True)
class CoordinateSpace:
    """The coordinates of points.

    Attributes:
        prefixes: numbers of leading coordinates that move independently of the others.
        fill: values for trailing coordinates that points lack, ``[m]``.
    """

    names: tuple[str, ...]
    prefixes: tuple[int, ...]
    fill: Constant

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return len(self.names)

    @property
    def point_dims(self) -> tuple[int, ...]:
        """The numbers of coordinates that points may have."""
        return (*self.prefixes, self.dim)

    def complete(self, x: Tensor) -> Tensor:
        """Return points x, ``[*batch, p, n]``, with constants for missing coordinates, ``[*batch, p, m]``."""
        rest = self.fill.matching(x)[x.shape[-1] :]
        return torch.cat([x, rest.expand(*x.shape[:-1], -1)], -1) if len(rest) else x


class ActionMap(ABC):
    """Map of points ``[*batch, p, n]`` by elements ``[*batch, 1, E]``, with n of `CoordinateSpace.point_dims`."""

    space: CoordinateSpace

    @property
    @abstractmethod
    def methods(self) -> Sequence[str]:
        """Method by which the flow of each coordinate is found, see `GeneratedAction.flows`."""

    @property
    @abstractmethod
    def base_is_projective(self) -> bool:
        """True if (x, t) moves projectively, see `GeneratedAction.base_is_projective`."""

    @abstractmethod
    def move(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The images of points, NaN where there is none, and estimates of their errors relative to one plus their size.

        The errors broadcast to ``[*batch, p]``.
        """

    @abstractmethod
    def denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        """Return the denominator of elements g at points x, ``[*batch, p]``; images exist where it does not vanish.

        ``None`` for a global action.
        """


@final
@dataclass(frozen=True)
class ProjectiveActionMap(ActionMap):
    """A linear, affine, projective or conformal map: matrices on homogeneous coordinates."""

    space: CoordinateSpace
    transform: HomogeneousTransform

    @property
    def methods(self) -> Sequence[str]:
        return ["closed form"] * self.space.dim

    @property
    def base_is_projective(self) -> bool:
        """True for a map of jets (x, t, u) that needs no light cone."""
        return self.space.dim == 3 and 2 in self.space.prefixes and self.transform.lift.form is None

    def move(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        y, d = self.transform.apply(g, self.space.complete(x))
        y = torch.where((d != 0).unsqueeze(-1), y, math.nan) if self.transform.is_local else y
        return y[..., : x.shape[-1]], x.new_zeros(())

    def denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        """Return the last homogeneous coordinate of the moved points; ``None`` if it is constant."""
        return self.transform.apply(g, self.space.complete(x))[1] if self.transform.is_local else None


@final
@dataclass(frozen=True)
class CoordinateActionMap(ActionMap):
    """A map coordinate by coordinate: closed forms where there are some, flows for the rest."""

    space: CoordinateSpace
    closed: ClosedForms
    rest: ElementFlow | None = None

    @property
    def methods(self) -> Sequence[str]:
        """``"closed form"``, or the method of the flow, for each coordinate."""
        flows = [""] * self.space.dim if self.rest is None else self.rest.flow.methods
        return ["closed form" if c in self.closed.coordinates else name for c, name in enumerate(flows)]

    @property
    def base_is_projective(self) -> bool:
        """True if points are jets (x, t, u), and (x, t) a base that moves projectively."""
        bases = self.closed.bases
        return self.space.dim == 3 and any(b.coordinates == [0, 1] and b.lift.form is None for b in bases)

    def move(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        num_leading = x.shape[-1]
        x = self.space.complete(x)
        images = self.closed.images(g, x, num_leading)
        closed = images.coordinates
        if self.rest is None or all(c in closed for c in range(num_leading)):
            return stacked([closed[c] for c in range(num_leading)]), images.error
        batch = broadcast_shapes(g.shape[:-1], x.shape[:-1])
        x = x.expand(*batch, -1)
        finite = torch.isfinite(x).all(-1)
        result = self.rest.follow(g, torch.where(finite.unsqueeze(-1), x, 0.0), num_leading)
        valid = (result.alive & finite).unsqueeze(-1)
        y = torch.where(valid, result.end[..., :num_leading], math.nan)
        if closed:
            y = torch.stack([closed[c].expand(batch) if c in closed else y[..., c] for c in range(num_leading)], -1)
            y = torch.where(valid, y, math.nan)
        return y, result.error

    def denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        """Return the product of the denominators of all bases, ``[*batch, p]``; ``None`` for a global action."""
        return self.closed.denominator(g, self.space.complete(x), x.shape[-1])


@dataclass(frozen=True)
class ElementFlow(ABC):
    """The map of points by flows of algebra vectors whose exponentials make up an element."""

    elements: FactoredElements
    flow: VectorFlow

    @abstractmethod
    def follow(self, g: Tensor, x: Tensor, num_leading: int) -> FlowResult:
        """The images of points x, ``[*batch, p, m]``, with finite coordinates, by elements g, ``[*batch, 1, E]``.

        Only ``num_leading`` leading coordinates of the images are wanted.
        """


@final
class FactorFlow(ElementFlow):
    """The flows of the factors of an element, one after the other.

    Where one of them passes through infinity, the one-parameter group of the element is followed instead.
    """

    def follow(self, g: Tensor, x: Tensor, num_leading: int) -> FlowResult:
        result = follow_all(self.flow, self.elements.factors(g), x, num_leading)
        alive = result.alive
        if not is_abstract(alive) and bool(alive.all()):
            return result
        straight = follow_all(self.flow, [self.elements.log(g)], x, num_leading)
        end = torch.where(alive.unsqueeze(-1), result.end, straight.end)
        return FlowResult(end, alive | straight.alive, torch.where(alive, result.error, straight.error))


@final
@dataclass(frozen=True)
class LogarithmFlow(ElementFlow):
    """The flow of the logarithm of an element, as far as the image of a point has one name."""

    domain: FundamentalDomain

    def follow(self, g: Tensor, x: Tensor, num_leading: int) -> FlowResult:
        result = follow_all(self.flow, [self.elements.log(g)], x, num_leading)
        near = self.domain.contains(x[..., :num_leading].detach(), result.end[..., :num_leading].detach())
        return FlowResult(result.end, result.alive & near, result.error)


@final
@dataclass(frozen=True)
class ChartActionMap(ActionMap):
    """A map that ``inner`` computes in the coordinates of a chart."""

    space: CoordinateSpace
    chart: Chart
    inner: ActionMap

    @property
    def methods(self) -> Sequence[str]:
        return self.inner.methods

    @property
    def base_is_projective(self) -> bool:
        """True if (x, t) moves projectively in the chart, which leaves (x, t) unchanged."""
        return self.inner.base_is_projective and not {0, 1} & set(self.chart.pairs)

    def move(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        y, inside = self._to_chart(x)
        moved, error = self.inner.move(g, y)
        inside = inside & torch.isfinite(self.chart.backward(moved.detach())).all(-1, keepdim=True)
        known = self.chart.forward(self.space.fill.matching(x)[: x.shape[-1]])
        image = self.chart.backward(torch.where(inside, moved, known))
        return torch.where(inside, image, math.nan), error

    def denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        return self.inner.denominator(g, self._to_chart(x)[0])

    def _to_chart(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Points in the chart, with a known point in place of those outside, and a mask of points inside."""
        known = self.space.fill.matching(x)[: x.shape[-1]]
        probe = x.detach()
        y = self.chart.forward(probe)
        # points that another branch of the inverse would bring back are outside, too
        missed = (self.chart.backward(y) - probe).abs() / (1.0 + probe.abs())
        inside = (torch.isfinite(y) & (missed <= torch.finfo(x.dtype).eps ** 0.5)).all(-1, keepdim=True)
        return self.chart.forward(torch.where(inside, x, known)), inside


@checked
@final
class GeneratedAction(JetAction):
    r"""The local action of a generated group: its one-parameter groups are the flows of the generators.

    Points are ``[*batch, p, m]``, or lack trailing coordinates that the motion of the others does not depend on (jets
    (x, t, u), or (x, t) alone). Wherever both sides have a value, :math:`\exp(v).x` is the flow of v and
    :math:`(g h).x = g.(h.x)`. Each coordinate is computed in one of three ways, which `flows` names:

    - In closed form. All coordinates, if all fields are linear, affine, projective (:math:`a + B x + (c \cdot x) x`) or
      conformal for some quadratic form; else those coordinates that move so independently, such as (x, t) of the heat
      equation. Over these, coordinates with polynomial fields that belong, themselves or by their logarithm, to a
      finite-dimensional space of functions which elements move linearly: the fibre of most linear equations, Burgers,
      Schroedinger, Kolmogorov. And coordinates that move affinely, :math:`A(x) u + b(x)`, if fields of the group shift
      each x, and u by a constant.
    - By quadrature: coordinates u whose fields are affine in them with commuting A, over others that are solved.
    - Integrated: the others. Where a point is determined by the fields that vanish at it, Newton's method corrects the
      end of the flow to the last digits.

    Quadratures and integrated flows are followed factor by factor through the element. Coordinates of SymPy expressions
    that would be integrated are straightened first where that is possible: S log S of Black-Scholes moves log S
    affinely.

    A point has no image, NaN, where a flow runs off to infinity or its error estimate exceeds the tolerance. If places
    have several names, the action is local for another reason: a triangle of translations around the origin adds a full
    turn to the angle of polar coordinates, and so do symmetries of u'' + u = 0 to t. Then elements move points along
    their own one-parameter group, points that move by a third of the step between two names or farther have no image,
    and `LieGroup.exp` is NaN for vectors that turn by half a turn or more, which a matrix cannot tell from others.

    Args:
        group: the group.
        action_map: map of points by elements of the group.
    """

    dual_elements: ClassVar[bool] = False

    def __init__(self, group: LieGroup, action_map: ActionMap) -> None:
        super().__init__(group, action_map.space.point_dims)
        self._action_map = action_map

    @property
    def base_is_projective(self) -> bool:
        """True if points are jets (x, t, u) whose (x, t) was found to move projectively, independently of u."""
        return self._action_map.base_is_projective

    @property
    def flows(self) -> Mapping[str, str]:
        """Method by which each coordinate of a flow is found, by name.

        ``"closed form"``: exact. ``"quadrature"``: from one integral along closed forms, exact to rounding but near
        the edge of the domain. ``"integrated"``: by steps of controlled length, whose end is corrected where the fields
        that vanish at a point determine it. ``"given"``: by the user.
        """
        return dict(zip(self._action_map.space.names, self._action_map.methods, strict=True))

    def flow_error(self, g: Tensor, x: Float[Tensor, "*batch p n"]) -> Float[Tensor, "*out p"]:
        """Return the estimated error of each image point, relative to one plus its size, ``[*out, p]``.

        The error adds up those of the flows of the factors of g. Closed forms count rounding, or zero. NaN where there
        is no image: also where the error of a quadrature or of one step exceeds ``tolerance``.

        Args:
            g: elements ``[*batch, *element_shape]``.
            x: points ``[*batch, p, n]``.
        """
        return in_single(self._error, *self._lift(g, x))

    def _error(self, g: Tensor, x: Tensor) -> Tensor:
        image, error = self._action_map.move(g, x)
        return torch.where(torch.isfinite(image).all(-1), error, math.nan)

    def _denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        return self._action_map.denominator(g, x)

    def _image(self, g: Tensor, x: Tensor) -> Tensor:
        return self._transform(g, x)  # NaN where it is not defined

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        return self._action_map.move(g, x)[0]
