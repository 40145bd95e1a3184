"""The local action of a group on points by the flows of its generators."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._numerics import Constant, broadcast_shapes
from trivgeo.checks import check_count, check_fraction, check_positive
from trivgeo.groups._matrices import kernel, matvec, transform_points
from trivgeo.groups._matrices.series import is_unseen
from trivgeo.groups.action import JetAction
from trivgeo.groups.generated.chart import Chart
from trivgeo.groups.generated.deck_transformations import FundamentalDomain
from trivgeo.groups.generated.group import GeneratedGroup
from trivgeo.groups.generated.integrator import extrapolated_flow
from trivgeo.groups.generated.isotropy import Isotropy
from trivgeo.groups.generated.polynomial_representation import PolynomialRepresentation
from trivgeo.groups.generated.representation import Monomials, Representation
from trivgeo.groups.generated.transported import TransportedCoordinates
from trivgeo.groups.generated.triangular_flow import ProjectiveBase, TriangularFlow
from trivgeo.groups.generated.vector_fields import VectorFields

__all__ = ["ChartAction", "FlowAction", "GeneratedAction", "Motion", "OdeSettings", "ProjectiveAction"]

_STEP_SHARE = 0.01  # of the tolerance, what one step of an integrator may miss
_ROUGH = 1e-4  # the same where the end is corrected
_MANY = 8  # points of one element, from which on they are multiplied as a matrix
_CORRECTED = 1e-2  # the largest correction, relative to one plus the size

Flow = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class OdeSettings:
    """How closely flows without a closed form are followed.

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


@dataclass(frozen=True)
class Motion:
    """How the vector fields of a group move points.

    Attributes:
        fields: the fields, in the coordinates of the chart.
        tower: the coordinates that need no integrator.
        chart: other coordinates in which points are moved, if any.
        whole: all coordinates, where they move in closed form together.
        flow: the flow that the user gave, ``(v [*batch, dim], x [*batch, m]) -> [*batch, m]``.
        settings: for coordinates that are integrated.
        prefixes: numbers of leading coordinates that points may have, apart from all.
        fill: values for the coordinates left out, ``[m]``.
        isotropy: what corrects integrated coordinates, if any.
        carried: coordinates over those with closed forms that need no integral, if any.
        sheets: how far points may move, if the action is local for other reasons than poles.
    """

    fields: VectorFields
    tower: TriangularFlow
    chart: Chart | None
    whole: ProjectiveBase | None
    flow: Flow | None
    settings: OdeSettings
    prefixes: tuple[int, ...]
    fill: Tensor
    isotropy: Isotropy | None
    carried: TransportedCoordinates | None = None
    sheets: FundamentalDomain | None = None

    @property
    def is_solved(self) -> bool:
        """Whether no coordinate is integrated."""
        return self.carried is not None or self.tower.is_closed or len(self.tower.solved()) == self.fields.dim

    @property
    def charted_fill(self) -> Tensor:
        """`fill` in the coordinates of the chart."""
        return self.fill if self.chart is None else self.chart.forward(self.fill)

    def action(self, group: GeneratedGroup) -> GeneratedAction:
        """The action of a group by these motions."""
        closed = self.whole if self.flow is None else None
        action: GeneratedAction = FlowAction(group, self) if closed is None else ProjectiveAction(group, self, closed)
        return action if self.chart is None else ChartAction(group, self, action, self.chart)


class GeneratedAction(JetAction):
    """What the actions of generated groups share: points may lack trailing coordinates that the others do not need.

    Args:
        group: the group.
        motion: see `GeneratedGroup`.
        fill: that of the motion, in the coordinates of this action.
    """

    dual_elements: ClassVar[bool] = False

    def __init__(self, group: GeneratedGroup, motion: Motion, fill: Tensor) -> None:
        super().__init__(group, (*motion.prefixes, len(fill)))
        self._generated = group
        self._fill = Constant(fill)
        self._names = motion.fields.coordinates

    @property
    @abstractmethod
    def flows(self) -> Mapping[str, str]:
        """How each coordinate of a flow is found, by name.

        ``"closed form"``: exact. ``"quadrature"``: from one integral along closed forms, exact to rounding but near
        the edge of the domain. ``"integrated"``: by steps of controlled length, whose end is corrected where the fields
        that vanish at a point determine it. ``"given"``: by the user.
        """

    @abstractmethod
    def flow_error(self, g: Tensor, x: Float[Tensor, "*batch p n"]) -> Float[Tensor, "*out p"]:
        """The estimated error of each image point, relative to one plus its size, NaN where there is no image.

        It adds up the errors that the flows of the factors of g make. Rounding, or zero, for closed forms. Points
        where the error of a quadrature or of one step exceeds ``tolerance`` have no image.
        """

    def _whole(self, x: Tensor) -> Tensor:
        """Points with all coordinates."""
        rest = self._fill.like(x)[x.shape[-1] :]
        return torch.cat([x, rest.expand(*x.shape[:-1], -1)], -1) if len(rest) else x


@final
class ProjectiveAction(GeneratedAction):
    """A linear, affine, projective or conformal action in closed form, by the matrices of the fields.

    Args:
        group: see `GeneratedAction`.
        motion: see `GeneratedAction`.
        base: all coordinates.
    """

    def __init__(self, group: GeneratedGroup, motion: Motion, base: ProjectiveBase) -> None:
        super().__init__(group, motion, motion.charted_fill)
        self._matrices = HomogeneousTransform(group, base)
        self._affine = base.affine

    @property
    def base_is_projective(self) -> bool:
        """Whether points are jets (x, t, u) whose (x, t) move independently of u."""
        return max(self.point_dims) == 3 and 2 in self.point_dims and self._matrices.lift.form is None

    @property
    def flows(self) -> Mapping[str, str]:
        """Closed forms."""
        return dict.fromkeys(self._names, "closed form")

    def flow_error(self, g: Tensor, x: Float[Tensor, "*batch p n"]) -> Float[Tensor, "*out p"]:
        """Zero."""
        y = self(g, x)
        return torch.where(torch.isfinite(y).all(-1), 0.0, math.nan).to(y.dtype)

    def _denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        return None if self._affine else self._matrices.denominator(g, self._whole(x))

    def _image(self, g: Tensor, x: Tensor) -> Tensor:
        y, d = self._matrices.apply(g, self._whole(x))
        return (y if self._affine else torch.where((d != 0).unsqueeze(-1), y, math.nan))[..., : x.shape[-1]]

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        return self._matrices.apply(g, self._whole(x))[0][..., : x.shape[-1]]


@final
class FlowAction(GeneratedAction):
    r"""The action by flows, factor by factor: closed forms and quadratures as far as they go, numerical flows beyond.

    Points are ``[*batch, p, m]``, or the leading coordinates of points if the fields on these depend on them alone
    (such as (x, t) of jets (x, t, u)). A point is NaN where a flow runs off to infinity, where its error estimate says
    that it cannot be trusted, or where it moves so far that its image could have another name (see `from_generators`).

    Args:
        group: see `GeneratedAction`.
        motion: see `GeneratedAction`.
    """

    def __init__(self, group: GeneratedGroup, motion: Motion) -> None:
        super().__init__(group, motion, motion.charted_fill)
        tower = motion.tower
        self._fields = motion.fields
        self._tower = tower
        self._bases = [(list(base.coordinates), HomogeneousTransform(group, base)) for base in tower.bases]
        self._local = [not base.affine for base in tower.bases]
        self._modules = [FibreTransform(group, module) for module in tower.modules]
        self._flow = motion.flow
        self._settings = motion.settings
        self._isotropy = motion.isotropy
        self._carried = motion.carried
        self._sheets = motion.sheets

    @property
    def base_is_projective(self) -> bool:
        """Whether (x, t) was found to move projectively, independently of the rest."""
        return self._fields.dim == 3 and any(
            index == [0, 1] and matrices.lift.form is None for index, matrices in self._bases
        )

    @property
    def flows(self) -> Mapping[str, str]:
        """Those of the tower; the rest is integrated, or given."""
        kinds = self._tower.kinds()
        if self._carried is not None:
            kinds = ["closed form"] * len(kinds)
        if self._flow is not None:
            kinds = [kind if kind == "closed form" else "given" for kind in kinds]
        return dict(zip(self._names, kinds, strict=True))

    def flow_error(self, g: Tensor, x: Float[Tensor, "*batch p n"]) -> Float[Tensor, "*out p"]:
        """The sum over the factors."""
        y, error = self._move(*self._lift(g, x))
        valid = self.is_valid(g, x) & torch.isfinite(y).all(-1)
        return torch.where(valid, error, math.nan)

    def _denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        whole = self._whole(x)
        total: Tensor | None = None
        for (index, matrices), local in zip(self._bases, self._local, strict=True):
            if local and index[0] < x.shape[-1]:
                d = matrices.denominator(g, whole[..., index])
                total = d if total is None else total * d
        return total

    def _image(self, g: Tensor, x: Tensor) -> Tensor:
        return self._move(g, x)[0]  # NaN where it is not defined

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        return self._move(g, x)[0]

    def _move(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The images, and the error estimate of each."""
        given = x.shape[-1]
        x = self._whole(x)
        # a closed form of the whole element does not care where the flow of a factor passes through infinity
        closed: dict[int, Tensor] = {}
        denominators: dict[int, Tensor] = {}
        for i, (index, matrices) in enumerate(self._bases):
            if index[0] < given:
                image, d = matrices.apply(g, x[..., index])
                if self._local[i]:
                    denominators[i] = d
                    image = torch.where((d != 0).unsqueeze(-1), image, math.nan)
                closed |= {c: image[..., position] for position, c in enumerate(index)}
        if self._flow is None:
            for module in self._modules:
                if max(module.coordinates) < given:
                    closed |= module.apply(g, x, denominators)
        if len(closed) < given and self._carried is not None and max(self._carried.below) < given:
            above, error = self._carry(self._carried, closed, denominators, g, x)
            closed |= above
        elif len(closed) == given:
            error = torch.zeros_like(x[..., 0])
        if len(closed) == given:
            y = torch.stack(torch.broadcast_tensors(*(closed[c] for c in range(given))), -1)
            # a point has an image in all coordinates, or none
            return torch.where(torch.isfinite(y).all(-1, keepdim=True), y, math.nan), error.expand(y.shape[:-1])
        batch = broadcast_shapes(g.shape[:-1], x.shape[:-1])
        x = x.expand(*batch, -1)
        finite = torch.isfinite(x).all(-1)
        start = torch.where(finite.unsqueeze(-1), x, 0.0)
        if self._sheets is not None:
            # among several names of one place, the one that the element's own one-parameter group leads to
            x, valid, error = self._follow_all([self._generated.vector(g)], start, given)
        else:
            x, valid, error = self._follow_all(self._generated.factors(g), start, given)
            if is_unseen(x) or not bool(valid.all()):
                # one factor may pass through infinity where the element's own one-parameter group does not
                y, inside, missed = self._follow_all([self._generated.vector(g)], start, given)
                x, error = torch.where(valid.unsqueeze(-1), x, y), torch.where(valid, error, missed)
                valid = valid | inside
        valid = valid & finite
        if self._sheets is not None:
            valid = valid & self._sheets.holds(start[..., :given].detach(), x[..., :given].detach())
        y = torch.where(valid.unsqueeze(-1), x[..., :given], math.nan)
        if closed:
            y = torch.stack([closed[c].expand(batch) if c in closed else y[..., c] for c in range(given)], -1)
            y = torch.where(valid.unsqueeze(-1), y, math.nan)
        return y, error

    def _follow_all(self, vectors: Sequence[Tensor], x: Tensor, given: int) -> tuple[Tensor, Tensor, Tensor]:
        """As `follow`, the flows of several vectors one after the other; nowhere valid for vectors that are NaN."""
        valid = torch.ones_like(x[..., 0], dtype=torch.bool)
        error = torch.zeros_like(x[..., 0])
        for v in vectors:
            known = torch.isfinite(v).all(-1, keepdim=True)
            x, alive, missed = self.follow(torch.where(known, v, 0.0), x, given)
            valid = valid & alive & known.squeeze(-1)
            error = error + missed
        return x, valid, error

    def _tolerance(self, x: Tensor) -> float:
        return max(self._settings.tolerance, 100.0 * torch.finfo(x.dtype).eps)

    def _carry(
        self,
        carried: TransportedCoordinates,
        closed: Mapping[int, Tensor],
        denominators: Mapping[int, Tensor],
        g: Tensor,
        x: Tensor,
    ) -> tuple[dict[int, Tensor], Tensor]:
        """The images of carried coordinates, NaN where a denominator is not positive, and their rounding error."""
        group = self._generated
        origin, shifts = carried.origin.like(x), carried.shifts.like(x)
        here, there = x[..., carried.below], torch.stack([closed[c] for c in carried.below], -1)
        inside = torch.isfinite(x).all(-1) & torch.isfinite(there).all(-1)
        for d in denominators.values():
            inside = inside & (d > 0)
        some = inside.unsqueeze(-1)
        here, there = torch.where(some, here, origin), torch.where(some, there, origin)
        back, forth = group.exp_of((origin - there) @ shifts), group.exp_of((here - origin) @ shifts)
        stays = group._compose(group._compose(back, g), forth)
        # where g is not used, what it does must not spoil the gradients of others
        stays = torch.where(some, stays, group.identity(dtype=x.dtype, device=x.device))
        slopes = carried.slopes.like(x)
        above = torch.where(some, x[..., carried.above], 0.0) - (here - origin) @ slopes
        image = carried.move(group.vector(stays), above) + (there - origin) @ slopes
        image = torch.where(some, image, math.nan)
        sizes = (1.0 + each.detach().abs().amax(-1) for each in (back, g, forth))
        error = torch.finfo(x.dtype).eps * math.prod(sizes, start=torch.ones_like(x[..., 0]).detach())
        return {c: image[..., position] for position, c in enumerate(carried.above)}, error

    def follow(self, v: Tensor, x: Tensor, given: int) -> tuple[Tensor, Tensor, Tensor]:
        """The flow of a vector ``[*batch, 1, dim]`` for unit time, where it is valid, and its error.

        Of the leading ``given`` coordinates of points ``[*batch, p, m]``.
        """
        if self._flow is not None:
            y = self._flow(v, x)
            alive = torch.isfinite(y).all(-1)
            return torch.where(alive.unsqueeze(-1), y, 0.0), alive, torch.zeros_like(x[..., 0])
        tolerance = self._tolerance(x)
        solved = set(self._tower.solved())
        trace = self._tower.flow(v.squeeze(-2), x, given)
        alive = trace.alive & (trace.error <= tolerance)
        end, error = trace.end, trace.error
        if not solved >= set(range(given)):

            def field(y: Tensor) -> Tensor:
                return self._fields.combination(v, y)

            corrected = self._isotropy is not None and given in self._isotropy.counts
            accuracy = max(_ROUGH, tolerance) if corrected else _STEP_SHARE * tolerance
            y, inside, missed = extrapolated_flow(field, x, self._settings.steps, accuracy)
            alive = alive & inside
            end = torch.stack([(end if c in solved else y)[..., c] for c in range(x.shape[-1])], -1)
            if corrected and self._isotropy is not None:
                end = torch.where(alive.unsqueeze(-1), end, x.detach())
                end, moved, missed = self._isotropy.correct(v, x, end, given)
                size = 1.0 + end.detach().abs().amax(-1)
                alive = alive & (moved <= _CORRECTED * size)
                missed = missed / size
            error = error + missed
            alive = alive & (error <= tolerance)
        # a point that has left must not make the gradients of others NaN in the next flow
        return torch.where(alive.unsqueeze(-1), end, x.detach()), alive, error


@final
class ChartAction(GeneratedAction):
    """An action that is computed in other coordinates.

    Args:
        group: see `GeneratedAction`.
        motion: see `GeneratedAction`.
        inner: the action in the coordinates of the chart.
        chart: these coordinates.
    """

    def __init__(self, group: GeneratedGroup, motion: Motion, inner: GeneratedAction, chart: Chart) -> None:
        super().__init__(group, motion, motion.fill)
        self._inner = inner
        self._chart = chart

    @property
    def base_is_projective(self) -> bool:
        """Whether (x, t) are coordinates of the chart, and projective there."""
        return self._inner.base_is_projective and not {0, 1} & set(self._chart.pairs)

    @property
    def flows(self) -> Mapping[str, str]:
        """Those in the chart."""
        return self._inner.flows

    def flow_error(self, g: Tensor, x: Float[Tensor, "*batch p n"]) -> Float[Tensor, "*out p"]:
        """The one in the chart."""
        y, inside = self._charted(x)
        return torch.where(inside.squeeze(-1), self._inner.flow_error(g, y), math.nan)

    def _charted(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Points in the chart, those outside replaced by one inside, and which are inside, ``[*batch, p, 1]``."""
        some = self._fill.like(x)[: x.shape[-1]]
        probe = x.detach()
        y = self._chart.forward(probe)
        # outside also where another branch of the chart would come back
        missed = (self._chart.backward(y) - probe).abs() / (1.0 + probe.abs())
        inside = (torch.isfinite(y) & (missed <= torch.finfo(x.dtype).eps ** 0.5)).all(-1, keepdim=True)
        return self._chart.forward(torch.where(inside, x, some)), inside

    def _denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        return self._inner._denominator(g, self._charted(x)[0])

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        y, inside = self._charted(x)
        moved = self._inner(g.squeeze(-2), y)
        inside = inside & torch.isfinite(self._chart.backward(moved.detach())).all(-1, keepdim=True)
        some = self._chart.forward(self._fill.like(x)[: x.shape[-1]])
        return torch.where(inside, self._chart.backward(torch.where(inside, moved, some)), math.nan)


class HomogeneousTransform:
    """The matrix of each element on homogeneous coordinates, from the matrices of the fields.

    Args:
        group: the group.
        base: the coordinates.
    """

    def __init__(self, group: GeneratedGroup, base: ProjectiveBase) -> None:
        self.lift = base.lift
        self._matrix = Representation(group, base.matrices)
        self._rows = [*range(len(base.coordinates)), -1]  # without that of x.Qx

    def apply(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The images of points ``[*batch, p, k]`` by elements ``[*batch, 1, E]``; any number where undefined.

        Returns:
            The images, and the denominators ``[*batch, p]``, which must not vanish.
        """
        matrix = self._matrix(g)
        if self.lift.form is not None:
            matrix = matrix[..., self._rows, :]
        moved = _times(matrix[..., :-1], self.lift(x)) + matrix[..., -1]
        d = moved[..., -1]
        return moved[..., :-1] / torch.where(d == 0, 1.0, d).unsqueeze(-1), d

    def denominator(self, g: Tensor, x: Tensor) -> Tensor:
        """The denominators alone."""
        return self.apply(g, x)[1]


class FibreTransform:
    """How elements move the coordinates of a module.

    Args:
        group: the group.
        module: the coordinates.
    """

    def __init__(self, group: GeneratedGroup, module: PolynomialRepresentation) -> None:
        self.coordinates = module.coordinates
        self._bases = module.bases
        rows = 1 + (len(module.coordinates) if module.weights is None else module.weights.shape[-1])
        self._matrix = Representation(group, module.matrices, rows)
        self._monomials = Monomials(module.exponents)
        self._functions = Constant(module.functions.T)
        self._weights = None if module.weights is None else Constant(module.weights)
        self._parts = None if module.parts is None else Constant(module.parts)

    def apply(self, g: Tensor, x: Tensor, denominators: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """The images of coordinates of points ``[*batch, p, m]`` by elements ``[*batch, 1, E]``.

        NaN where a denominator is not positive, and where an exponential overflows.
        """
        inside = torch.isfinite(x).all(-1)
        local = [(i, denominators[i]) for i in self._bases if i in denominators]
        for _, d in local:
            inside = inside & (d > 0)
        some = inside.unsqueeze(-1)
        # a point without an image must not spoil the gradients of others
        x = torch.where(some, x, 0.0)
        functions = self._monomials(x) @ self._functions.like(x)
        moved = _times(self._matrix(g), functions)
        first = torch.where(inside, moved[..., 0], 1.0)
        value = moved[..., 1:] / first.unsqueeze(-1)
        if self._weights is not None:
            weights = self._weights.like(x)
            for i, d in local:
                power = weights[self._bases.index(i)]
                value = value + torch.where(inside, d, 1.0).log().unsqueeze(-1) * power
            value = self._added(value, x[..., list(self.coordinates)])
        value = torch.where(some, value, math.nan)
        return {c: value[..., position] for position, c in enumerate(self.coordinates)}

    def _added(self, growth: Tensor, u: Tensor) -> Tensor:
        """What formal coordinates ``[*batch, p, parts]`` do to u ``[*batch, p, f]``."""
        if self._parts is None:
            return u + growth
        size = growth.detach().abs().sum(-1, keepdim=True)
        fits = size < 0.9 * math.log(torch.finfo(growth.dtype).max)
        growth = torch.where(fits, growth, 0.0)
        if u.shape[-1] == 1:
            image = growth.exp() * u
        else:
            matrix = torch.einsum("...j,jab->...ab", growth, self._parts.like(growth))
            image = matvec(kernel(u.shape[-1]).exp(matrix), u)
        return torch.where(fits, image, math.nan)


def _times(matrix: Tensor, x: Tensor) -> Tensor:
    """``matrix x`` for matrices ``[*batch, 1, r, d]`` and points ``[*batch, p, d]``."""
    count: int | torch.SymInt = x.shape[-2]
    if isinstance(count, torch.SymInt) or count > _MANY:  # a program may be for any number of points
        return transform_points(matrix, x)
    total = matrix[..., 0] * x[..., :1]
    for j in range(1, x.shape[-1]):
        total = torch.addcmul(total, matrix[..., j], x[..., j : j + 1])
    return total
