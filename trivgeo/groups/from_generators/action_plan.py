"""Phase 4 of `from_generators`: how elements will move each coordinate.

`solve_coordinates` looks for coordinates with closed forms and quadratures, `plan_action` decides: the user's flow, the
fields' own coordinates, or a chart in which more is solved.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.groups.from_generators.action_map import (
    ActionMap,
    ChartActionMap,
    CoordinateActionMap,
    CoordinateSpace,
    FactorFlow,
    LogarithmFlow,
    ProjectiveActionMap,
)
from trivgeo.groups.from_generators.chart import Chart, straighten
from trivgeo.groups.from_generators.closed_form import (
    ClosedForms,
    HomogeneousTransform,
    TransportedCoordinates,
    fibre_of,
    find_transported,
)
from trivgeo.groups.from_generators.deck_transformations import FundamentalDomain
from trivgeo.groups.from_generators.decomposition import DecomposedFields
from trivgeo.groups.from_generators.elements import FactoredElements
from trivgeo.groups.from_generators.fields import VectorFields, values_and_jacobians
from trivgeo.groups.from_generators.flows import (
    AffineBlock,
    Flow,
    GivenFlow,
    IsotropyCorrector,
    NumericalFlow,
    OdeSettings,
    TriangularFlow,
    block_coefficients,
)
from trivgeo.groups.from_generators.polynomial_representation import (
    Multiplier,
    PolynomialRepresentation,
    find_polynomial_representation,
)
from trivgeo.groups.from_generators.projective_coordinates import ProjectiveBase, fit_conformal, fit_projective
from trivgeo.groups.from_generators.user_fields import FieldExpressions, compile_fields
from trivgeo.groups.linalg import matvec

_MAX_FIT_ERROR = 1e-9  # residual of the affine form of a field, relative to the size of the field
_ZERO_TOLERANCE = 1e-12  # derivatives and coefficients that count as zero, relative to the largest
_MAX_DIM_OF_SUBSETS = 8  # coordinates of which all subsets are tried as bases; of more, leading ones only


@dataclass(frozen=True)
class SolvedCoordinates:
    """The coordinates that need no integrator.

    Attributes:
        bases: coordinates that move projectively or conformally by themselves.
        blocks: coordinates by quadrature, which move affinely over others.
        fibres: coordinates over bases that whole elements move in closed form.
    """

    bases: tuple[ProjectiveBase, ...]
    blocks: tuple[AffineBlock, ...]
    fibres: tuple[PolynomialRepresentation, ...]

    @property
    def base_coordinates(self) -> tuple[int, ...]:
        """Positions of the coordinates of the bases, base by base."""
        return tuple(c for base in self.bases for c in base.coordinates)

    @property
    def count(self) -> int:
        """The number of coordinates of bases and blocks."""
        return len(self.base_coordinates) + sum(len(block.coordinates) for block in self.blocks)

    @property
    def closed_count(self) -> int:
        """The number of coordinates of bases and fibres."""
        return len(self.base_coordinates) + sum(len(fibre.coordinates) for fibre in self.fibres)


def solve_coordinates(fields: VectorFields, points: Tensor, levi: Tensor) -> SolvedCoordinates:
    """Bases, blocks and fibres of as many coordinates as possible.

    Args:
        levi: rows ``[r, n]`` that span a Levi factor of the algebra of the fields.
    """
    values, jacobians = values_and_jacobians(fields, points)
    needs = _dependencies(jacobians)
    bases = _bases(points, values, needs)
    based = {c for base in bases for c in base.coordinates}
    components = sorted({tuple(d for d in sorted(needs[c]) if c in needs[d]) for c in range(len(needs))})
    rest = [group for group in components if not based & set(group)]  # strongly connected components without a base
    blocks = _blocks(fields, points, values, needs, rest, based)
    multipliers = [_multiplier(i, base, fields.dim) for i, base in enumerate(bases)]
    fibres = []
    for group in sorted(rest, key=lambda group: len(needs[group[0]])):
        needed = needs[group[0]]
        over = [multiplier for multiplier in multipliers if set(multiplier.coordinates) <= needed]
        fibre = find_polynomial_representation(points, values, sorted(needed), group, over, levi)
        if fibre is not None:
            fibres.append(fibre)
    return SolvedCoordinates(tuple(bases), tuple(blocks), tuple(fibres))


def independent_prefixes(fields: VectorFields, points: Tensor) -> tuple[int, ...]:
    """The numbers of leading coordinates, less than all, whose motion at sample points depends on them alone."""
    _, jacobians = values_and_jacobians(fields, points)
    dependence = jacobians.abs().amax((0, 1))  # [component, coordinate]
    size = max(1.0, float(dependence.max()))
    return tuple(b for b in range(1, fields.dim) if float(dependence[:b, b:].max()) < _ZERO_TOLERANCE * size)


def _bases(points: Tensor, values: Tensor, needs: Sequence[frozenset[int]]) -> list[ProjectiveBase]:
    """Disjoint sets of coordinates that move by themselves and have closed forms, the largest first."""
    bases: list[ProjectiveBase] = []
    solved: set[int] = set()
    for candidate in _closed_sets(needs):
        if solved & set(candidate):
            continue
        here = points[:, candidate], values[..., candidate]
        fit = fit_projective(*here) or fit_conformal(*here)
        if fit is not None:
            bases.append(ProjectiveBase(candidate, *fit))
            solved |= set(candidate)
    return bases


def _blocks(
    fields: VectorFields,
    points: Tensor,
    values: Tensor,
    needs: Sequence[frozenset[int]],
    groups: Sequence[tuple[int, ...]],
    based: set[int],
) -> list[AffineBlock]:
    """The groups of coordinates that move affinely over bases and blocks before them."""
    blocks: list[AffineBlock] = []
    solved = set(based)
    progress = True
    while progress:
        progress = False
        for group in groups:
            if set(group) <= solved or not needs[group[0]] <= solved | set(group):
                continue
            block = _affine_block(fields, points, values, group)
            if block is not None:
                blocks.append(block)
                solved |= set(group)
                progress = True
    return blocks


def _multiplier(index: int, base: ProjectiveBase, dim: int) -> Multiplier:
    """How fields move the logarithm of the denominator of a base, as polynomials of all ``dim`` coordinates."""

    def polynomial(row: list[float]) -> dict[tuple[int, ...], float]:
        terms = {(0,) * dim: row[-1]}
        for c, value in zip(base.coordinates, row, strict=False):
            terms[tuple(int(d == c) for d in range(dim))] = value
        if form is not None:
            for (a, b), q in np.ndenumerate(form.numpy()):
                place = [0] * dim
                place[base.coordinates[a]] += 1
                place[base.coordinates[b]] += 1
                terms[tuple(place)] = terms.get(tuple(place), 0.0) + row[-2] * float(q)
        return {e: value for e, value in terms.items() if value}

    form = None if base.lift.form is None else base.lift.form.value
    rows = [polynomial(row) for row in base.matrices[:, -1].tolist()]
    return Multiplier(index, rows, base.matrices, base.coordinates, form, not base.affine)


def _dependencies(jacobians: Tensor) -> list[frozenset[int]]:
    """For each coordinate, all coordinates on which its motion depends, directly or not, itself included."""
    size = jacobians.abs().amax((0, 1))  # [component, coordinate]
    m = len(size)
    bound = _ZERO_TOLERANCE * max(1.0, float(size.max()))
    needs = [{c} | {d for d in range(m) if float(size[c, d]) > bound} for c in range(m)]
    for _ in range(m):
        needs = [set().union(*(needs[d] for d in n)) for n in needs]
    return [frozenset(n) for n in needs]


def _closed_sets(needs: Sequence[frozenset[int]]) -> Iterable[tuple[int, ...]]:
    """Sets of coordinates that move independently of others, the largest first, leading coordinates before others."""
    m = len(needs)
    if m > _MAX_DIM_OF_SUBSETS:
        subsets: Iterable[tuple[int, ...]] = (tuple(range(k)) for k in range(m, 0, -1))
    else:
        subsets = (s for k in range(m, 0, -1) for s in itertools.combinations(range(m), k))
    return (s for s in subsets if all(needs[c] <= set(s) for c in s))


def _affine_block(fields: VectorFields, points: Tensor, values: Tensor, group: tuple[int, ...]) -> AffineBlock | None:
    """The block of a group of coordinates; ``None`` if fields are not affine in them with commuting matrices."""
    f = len(group)
    unit = torch.eye(len(fields), dtype=points.dtype)
    coordinates = [x.unsqueeze(-1) for x in points.unbind(-1)]
    entries, shift = block_coefficients(fields, AffineBlock(group, True, True), unit.unbind(-1), coordinates)
    a, b = torch.stack(entries, -1).unflatten(-1, (f, f)), torch.stack(shift, -1)  # [p, n, f, f], [p, n, f]
    if not (bool(torch.isfinite(a).all()) and bool(torch.isfinite(b).all())):
        return None
    goal = values[..., list(group)]
    size = goal.abs().amax((0, 2)).clamp(min=1e-300)  # [field]
    missed = (matvec(a, points[:, None, list(group)]) + b - goal).abs().amax((0, 2))
    if bool((missed > _MAX_FIT_ERROR * size).any()):
        return None
    flat = a.reshape(-1, f, f)
    _, singular, span = torch.linalg.svd(flat.flatten(1), full_matrices=False)
    span = span[singular > _MAX_FIT_ERROR * singular[:1]].unflatten(-1, flat.shape[-2:])
    products = span.unsqueeze(0) @ span.unsqueeze(1)
    if span.numel() and float((products - products.transpose(0, 1)).abs().max()) > _MAX_FIT_ERROR:
        return None
    largest = size.max()
    return AffineBlock(
        group, bool(a.abs().max() > _ZERO_TOLERANCE * largest), bool(b.abs().max() > _ZERO_TOLERANCE * largest)
    )


@dataclass(frozen=True)
class CoordinateFlows:
    """Motions of all coordinates: in closed form by whole elements, or by the flow of one vector after the other.

    See `SolvedCoordinates` for ``bases`` and ``fibres``.

    Attributes:
        fields: the adapted fields in these coordinates.
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

    def action_map(self, elements: FactoredElements, domain: FundamentalDomain | None = None) -> ActionMap:
        """The map of points by elements of a group, within a ``domain`` if places have several names."""
        bases = tuple(HomogeneousTransform(elements, base) for base in self.bases)
        if self.is_projective:
            return ProjectiveActionMap(self.space, bases[0])
        closed = ClosedForms(bases, tuple(fibre_of(elements, fibre) for fibre in self.fibres))
        if len(closed.coordinates) == self.space.dim:
            return CoordinateActionMap(self.space, closed)
        if domain is None:
            return CoordinateActionMap(self.space, closed, FactorFlow(elements, self.flow))
        return CoordinateActionMap(self.space, closed, LogarithmFlow(elements, self.flow, domain))


@dataclass(frozen=True)
class ActionPlan:
    """Plan of the motion of points, made before there are elements that move them.

    Attributes:
        chart: other coordinates in which points are moved; ``None`` if they are moved in their own.
        flows: flows of the coordinates, in the chart.
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

    def in_space(self, inner: ActionMap) -> ActionMap:
        """Return ``inner``, which moves points of the chart, as a map of the points themselves."""
        return inner if self.chart is None else ChartActionMap(self.space, self.chart, inner)


def plan_action(decomposed: DecomposedFields, flow: Flow | None, settings: OdeSettings) -> ActionPlan:
    """Choose the motion of points: the user's flow, the fields' own coordinates, or a chart in which more is solved.

    Args:
        flow: the user's flow, of vectors in the basis of the generators.
        settings: accuracy and cost for coordinates without a closed form.
    """
    fields, points = decomposed.basis.fields, decomposed.points
    space = CoordinateSpace(fields.coordinates, independent_prefixes(fields, points), Constant(points[0]))
    solved = solve_coordinates(fields, points, decomposed.adapted.levi.semisimple)
    faithful = _faithful(solved, fields)
    if flow is not None:
        unmix = Constant(torch.linalg.inv(decomposed.adapted.mixing))
        given = GivenFlow(_AdaptedFlow(flow, unmix), fields.dim)
        bases = solved.bases if faithful is None else ()  # the user's flow, not the closed form of everything
        return ActionPlan(
            decomposed, space, None, CoordinateFlows(space, fields, bases, (), given, True), points, faithful
        )
    flows = _flows(space, fields, points, solved, settings)
    if not flows.is_solved:
        charted = _charted(decomposed, space, solved.count, settings)
        if charted is not None:
            return charted
        flows = _corrected(flows, decomposed, points)
    return ActionPlan(decomposed, space, None, flows, points, faithful)


def _charted(
    decomposed: DecomposedFields, space: CoordinateSpace, solved_count: int, settings: OdeSettings
) -> ActionPlan | None:
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
    return ActionPlan(decomposed, space, chart, flows, points, _faithful(solved, fields))


def _flows(
    space: CoordinateSpace, fields: VectorFields, points: Tensor, solved: SolvedCoordinates, settings: OdeSettings
) -> CoordinateFlows:
    """Flows by closed forms and quadratures as far as these go, and of fibres that are not polynomial by transport."""
    flow = NumericalFlow(fields, TriangularFlow(fields, solved.bases, solved.blocks, settings.nodes), settings)
    fibres: tuple[PolynomialRepresentation | TransportedCoordinates, ...] = solved.fibres
    if solved.closed_count == fields.dim:
        return CoordinateFlows(space, fields, solved.bases, fibres, flow, is_solved=True)
    transported = find_transported(fields, points, solved.base_coordinates)
    if transported is not None:
        return CoordinateFlows(space, fields, solved.bases, (*fibres, transported), flow, is_solved=True)
    return CoordinateFlows(space, fields, solved.bases, fibres, flow, is_solved=solved.count == fields.dim)


def _corrected(flows: CoordinateFlows, decomposed: DecomposedFields, points: Tensor) -> CoordinateFlows:
    """Flows whose integrated coordinates are corrected by the fields that vanish at a point, if these determine it."""
    isotropy = IsotropyCorrector(flows.fields, decomposed.adapted.algebra, points, flows.space.point_dims)
    assert isinstance(flows.flow, NumericalFlow)
    return replace(flows, flow=replace(flows.flow, isotropy=isotropy))


def _faithful(solved: SolvedCoordinates, fields: VectorFields) -> Tensor | None:
    """Matrices of the fields on homogeneous coordinates; ``None`` if the coordinates are not all in one base."""
    return next((base.matrices for base in solved.bases if len(base.coordinates) == fields.dim), None)


@dataclass(frozen=True)
class _AdaptedFlow:
    """The user's flow, for vectors in the basis of the adapted fields."""

    flow: Flow
    unmix: Constant

    def __call__(self, v: Tensor, x: Tensor) -> Tensor:
        return self.flow(v @ self.unmix.matching(v), x)
