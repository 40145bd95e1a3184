"""Phase 4 of `from_generators`: how the flows of the fields move each coordinate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.groups.generated.chart import Chart, straighten
from trivgeo.groups.generated.closed_form import ClosedForms, HomogeneousTransform, fibre_of
from trivgeo.groups.generated.coordinate_analysis import SolvedCoordinates, independent_prefixes, solve_coordinates
from trivgeo.groups.generated.deck_transformations import FundamentalDomain
from trivgeo.groups.generated.decomposition import DecomposedFields
from trivgeo.groups.generated.elements import FactoredElements
from trivgeo.groups.generated.homogeneous import ProjectiveBase
from trivgeo.groups.generated.isotropy import Isotropy
from trivgeo.groups.generated.motion import (
    ChartMotion,
    ClosedFormMotion,
    CoordinateSpace,
    FlowMotion,
    LocalFlowMotion,
    Motion,
    ProjectiveMotion,
)
from trivgeo.groups.generated.parsing import FieldExpressions, compile_fields
from trivgeo.groups.generated.polynomial_representation import PolynomialRepresentation
from trivgeo.groups.generated.transported import TransportedCoordinates, find_transported
from trivgeo.groups.generated.triangular_flow import TriangularFlow
from trivgeo.groups.generated.vector_fields import VectorFields
from trivgeo.groups.generated.vector_flow import Flow, GivenFlow, NumericalFlow, OdeSettings

__all__ = ["CoordinateFlows", "MotionPlan", "plan_motion"]


@dataclass(frozen=True)
class CoordinateFlows:
    """Motions of all coordinates: in closed form by whole elements, or by the flow of one vector after the other.

    Attributes:
        space: the coordinates.
        fields: the adapted fields in these coordinates.
        bases: coordinates that move projectively or conformally by themselves.
        fibres: coordinates over these that whole elements move in closed form.
        flow: the flow of one vector, for all coordinates.
        is_solved: whether no coordinate is integrated.
    """

    space: CoordinateSpace
    fields: VectorFields
    bases: tuple[ProjectiveBase, ...]
    fibres: tuple[PolynomialRepresentation | TransportedCoordinates, ...]
    flow: GivenFlow | NumericalFlow
    is_solved: bool

    @property
    def is_projective(self) -> bool:
        """True if one base has all coordinates."""
        return any(len(base.coordinates) == self.space.dim for base in self.bases)

    def motion(self, elements: FactoredElements, domain: FundamentalDomain | None = None) -> Motion:
        """The motion by elements of a group.

        Args:
            elements: the elements.
            domain: how far points may move, if places have several names.
        """
        bases = tuple(HomogeneousTransform(elements, base) for base in self.bases)
        if self.is_projective:
            return ProjectiveMotion(self.space, bases[0])
        closed = ClosedForms(bases, tuple(fibre_of(elements, fibre) for fibre in self.fibres))
        if len(closed.coordinates) == self.space.dim:
            return ClosedFormMotion(self.space, closed)
        if domain is None:
            return FlowMotion(self.space, closed, elements, self.flow)
        return LocalFlowMotion(self.space, closed, elements, self.flow, domain)


@dataclass(frozen=True)
class MotionPlan:
    """Plan of the motion of points, made before there are elements that move them.

    Attributes:
        decomposed: the fields and their algebra.
        space: the coordinates of the points.
        chart: other coordinates in which points are moved; ``None`` if they are moved in their own.
        flows: how coordinates move, in the chart.
        points: sample points in the chart, ``[p, m]``.
        faithful: matrices of the adapted fields on homogeneous coordinates, ``[n, K, K]``; ``None`` if not all
            coordinates have them.
    """

    decomposed: DecomposedFields
    space: CoordinateSpace
    chart: Chart | None
    flows: CoordinateFlows
    points: Tensor
    faithful: Tensor | None

    def in_space(self, motion: Motion) -> Motion:
        """Return ``motion``, which moves points of the chart, as a motion of the points themselves."""
        return motion if self.chart is None else ChartMotion(self.space, self.chart, motion)


def plan_motion(decomposed: DecomposedFields, flow: Flow | None, settings: OdeSettings) -> MotionPlan:
    """Choose the motion of points: the user's flow, the fields' own coordinates, or a chart in which more is solved.

    Args:
        decomposed: the fields.
        flow: the user's flow, of vectors in the basis of the generators.
        settings: for coordinates without a closed form.
    """
    fields, points = decomposed.basis.fields, decomposed.points
    space = CoordinateSpace(fields.coordinates, independent_prefixes(fields, points), Constant(points[0]))
    solved = solve_coordinates(fields, points, decomposed.adapted.levi.semisimple)
    faithful = _faithful(solved, fields)
    if flow is not None:
        unmix = Constant(torch.linalg.inv(decomposed.adapted.mixing))
        given = GivenFlow(_AdaptedFlow(flow, unmix), fields.dim)
        bases = solved.bases if faithful is None else ()  # the user's flow, not the closed form of everything
        return MotionPlan(
            decomposed, space, None, CoordinateFlows(space, fields, bases, (), given, True), points, faithful
        )
    flows = _flows(space, fields, points, solved, settings)
    if not flows.is_solved:
        charted = _charted(decomposed, space, solved.count, settings)
        if charted is not None:
            return charted
        flows = _corrected(flows, decomposed, points)
    return MotionPlan(decomposed, space, None, flows, points, faithful)


def _charted(
    decomposed: DecomposedFields, space: CoordinateSpace, solved_count: int, settings: OdeSettings
) -> MotionPlan | None:
    """The plan in straightened coordinates, if there are some in which more than ``solved_count`` are solved."""
    expressions = decomposed.basis.expressions
    if expressions is None:
        return None
    chart = straighten(expressions.vectors, expressions.symbols, decomposed.points)
    if chart is None:
        return None
    given = decomposed.basis.fields
    fields = compile_fields(FieldExpressions(chart.vectors, chart.symbols), given.coordinates, given.names)
    points = chart.forward(decomposed.points)
    solved = solve_coordinates(fields, points, decomposed.adapted.levi.semisimple)
    if solved.closed_count < fields.dim and solved.count <= solved_count:
        return None
    inner = CoordinateSpace(space.names, space.prefixes, Constant(points[0]))
    flows = _flows(inner, fields, points, solved, settings)
    if solved.closed_count < fields.dim:
        flows = _corrected(flows, decomposed, points)
    return MotionPlan(decomposed, space, chart, flows, points, _faithful(solved, fields))


def _flows(
    space: CoordinateSpace, fields: VectorFields, points: Tensor, solved: SolvedCoordinates, settings: OdeSettings
) -> CoordinateFlows:
    """Closed forms and quadratures as far as they go, fibres by transport where polynomials do not have them."""
    flow = NumericalFlow(fields, TriangularFlow(fields, solved.bases, solved.blocks, settings.nodes), settings)
    fibres: tuple[PolynomialRepresentation | TransportedCoordinates, ...] = solved.fibres
    if solved.closed_count == fields.dim:
        return CoordinateFlows(space, fields, solved.bases, fibres, flow, is_solved=True)
    transported = find_transported(fields, points, solved.base_coordinates)
    if transported is not None:
        return CoordinateFlows(space, fields, solved.bases, (*fibres, transported), flow, is_solved=True)
    return CoordinateFlows(space, fields, solved.bases, fibres, flow, is_solved=solved.count == fields.dim)


def _corrected(flows: CoordinateFlows, decomposed: DecomposedFields, points: Tensor) -> CoordinateFlows:
    """The same with integrated coordinates corrected by the fields that vanish at a point, where these determine it."""
    isotropy = Isotropy(flows.fields, decomposed.adapted.algebra, points, flows.space.point_dims)
    assert isinstance(flows.flow, NumericalFlow)
    return replace(flows, flow=replace(flows.flow, isotropy=isotropy))


def _faithful(solved: SolvedCoordinates, fields: VectorFields) -> Tensor | None:
    """The matrices of fields on the homogeneous coordinates of all coordinates, if these are one base."""
    return next((base.matrices for base in solved.bases if len(base.coordinates) == fields.dim), None)


@dataclass(frozen=True)
class _AdaptedFlow:
    """The user's flow, for vectors in the basis of the adapted fields."""

    flow: Flow
    unmix: Constant

    def __call__(self, v: Tensor, x: Tensor) -> Tensor:
        return self.flow(v @ self.unmix.like(v), x)
