"""Phase 5 of `from_generators`: the group whose elements move points as planned.

`build_group` tries a group of matrices, then covers of it if loops of matrices move points (`_find_monodromy`), then
local actions, in which points move less far than from one of their names to another (deck_transformations.py). The
first group whose products act as their factors do is taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo._random import normal
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups.algebra import LieAlgebra, subalgebra
from trivgeo.groups.from_generators.action_map import GeneratedAction
from trivgeo.groups.from_generators.action_plan import ActionPlan
from trivgeo.groups.from_generators.deck_transformations import (
    FundamentalDomain,
    find_fundamental_domain,
    find_isotropy_domain,
)
from trivgeo.groups.from_generators.fields import values_and_jacobians
from trivgeo.groups.from_generators.flows import NumericalFlow, VectorFlow
from trivgeo.groups.from_generators.generated_group import GeneratedGroup
from trivgeo.groups.from_generators.levi_assembly import Representations, assemble
from trivgeo.groups.from_generators.reductive_group import ReductiveGroup, check_homomorphism
from trivgeo.groups.from_generators.semisimple_algebra import is_split_form, loop_directions, simple_ideals
from trivgeo.groups.structure import describe

_STEPS_PER_LOOP = 8  # flows that make up a loop, so that the integrator can follow each of them
_MAX_PERIODS = 12  # multiples of the shortest period of a coordinate that are tried as the period of a matrix
_MIN_LOOP_DISTANCE = 1e-3  # distance between the ends of a loop that moves a point, relative to one plus its size
_MAX_DIM_OF_PAIRS = 8  # largest dimension in which sums and differences of two basis vectors are tried
_NUM_CONJUGATES = 4  # conjugates of each loop: a local action may move points along some of them only
_NUM_LOOP_POINTS = 4  # points on which loops are tried
_NUM_POINTS = 8  # points on which products of elements are tried
_NUM_PAIRS = 40  # pairs of elements of each size whose products are tried
_LOGARITHM_STDS = (0.3, 0.6, 1.2)  # sizes: standard deviations of the coordinates of the elements' logarithms
_MAX_SLOPE_CHANGE = 1e-9  # difference of derivatives of linear fields at two points, relative to one plus their size
_MAX_PRODUCT_ERROR = 1e-2  # error of the image by a product, relative to one plus its size


@dataclass(frozen=True)
class _Candidate:
    """A group, and its action in the coordinates in which points are moved."""

    group: GeneratedGroup
    action: GeneratedAction


def build_group(plan: ActionPlan, representation: Tensor | None) -> GeneratedGroup:
    """The group that acts as planned: of matrices, of a cover of them, or locally.

    Args:
        representation: matrices of the generators ``[dim, k, k]``, see `from_generators`; or ``None``.

    Raises:
        AlgebraError: no such group acts.
        ConfigurationError: the representation has the wrong shape, or is not faithful.
    """
    faithful = plan.faithful if representation is None else _in_adapted_basis(representation, plan)
    candidate = _with_elements(plan, faithful)
    monodromy = _find_monodromy(candidate.group.reductive, plan)
    coverable = monodromy.covered and representation is None
    if monodromy.loop is not None and coverable:
        candidate = _with_elements(plan, None, covers=monodromy.ideals)
    elif monodromy.loop is not None and faithful is None:
        linear = _linear_parts(plan)
        other = None if linear is None else _with_elements(plan, None, linear=linear)
        if other is not None and _find_monodromy(other.group.reductive, plan).loop is None:
            candidate, monodromy = other, _Monodromy(None, [], True)
    if (monodromy.loop is None or coverable) and (plan.flows.is_solved or _is_single_valued(candidate, plan.points)):
        return candidate.group
    for domain in _fundamental_domains(plan):
        candidate = _with_elements(plan, faithful, domain=domain)
        if _is_single_valued(candidate, plan.points):
            return candidate.group
    raise _no_group(plan, monodromy)


def _with_elements(
    plan: ActionPlan,
    faithful: Tensor | None,
    covers: Sequence[Tensor] = (),
    domain: FundamentalDomain | None = None,
    linear: Tensor | None = None,
) -> _Candidate:
    representations = Representations(faithful, [base.matrices for base in plan.flows.bases], linear)
    elements, levi = assemble(plan.decomposed.adapted, representations, covers, principal=domain is not None)
    action_map = plan.flows.action_map(elements, domain)
    group = GeneratedGroup(plan.decomposed.algebra, elements, levi, plan.in_space(action_map))
    return _Candidate(group, GeneratedAction(group, action_map))


def _in_adapted_basis(representation: Tensor, plan: ActionPlan) -> Tensor:
    """Matrices of the adapted fields, ``[n, k, k]``, from the user's matrices of the generators."""
    algebra = plan.decomposed.algebra
    matrices = representation.detach().to(device="cpu", dtype=torch.float64)
    if matrices.ndim != 3 or len(matrices) != algebra.dim or matrices.shape[1] != matrices.shape[2]:
        raise ConfigurationError(f"representation: expected [{algebra.dim}, k, k], got {list(representation.shape)}")
    check_homomorphism(matrices, algebra, "representation")
    if int(torch.linalg.matrix_rank(matrices.flatten(1))) < algebra.dim:
        raise ConfigurationError("representation: expected a faithful one, got dependent matrices")
    return torch.einsum("ij,jab->iab", torch.linalg.inv(plan.decomposed.adapted.mixing), matrices)


def _linear_parts(plan: ActionPlan) -> Tensor | None:
    """The matrices ``[r, m, m]`` of a semisimple part whose fields are linear in all coordinates, else ``None``.

    SU(2) needs them where it moves two complex numbers: its adjoint matrices tell elements only up to a sign.
    """
    fields, points = plan.decomposed.basis.fields, plan.decomposed.points[:_NUM_POINTS]
    _, slopes = values_and_jacobians(fields, points)
    matrices = torch.einsum("rn,pnab->prab", plan.decomposed.adapted.levi.semisimple, slopes)
    off = (matrices - matrices[:1]).abs().max()
    return matrices[0] if bool(off <= _MAX_SLOPE_CHANGE * (1.0 + matrices.abs().max())) else None


def _fundamental_domains(plan: ActionPlan) -> Iterator[FundamentalDomain]:
    """Domains within which points may move if places have several names, by several searches for these names."""
    flow, fields = plan.flows.flow, plan.flows.fields
    domain = None if plan.flows.is_solved else find_fundamental_domain(fields, plan.points)
    if domain is not None:
        yield domain
    if isinstance(flow, NumericalFlow) and flow.isotropy is not None:
        for connected in (True, False):
            domain = find_isotropy_domain(fields, flow.isotropy, plan.points, connected)
            if domain is not None:
                yield domain


def _is_single_valued(candidate: _Candidate, points: Tensor) -> bool:
    """Whether random products of elements act as their factors one after the other, where both have images."""
    group, action = candidate.group, candidate.action
    points, generator = points[:_NUM_POINTS], torch.Generator().manual_seed(0)
    g, h = (
        torch.cat([group.exp(size * normal((_NUM_PAIRS, group.dim), points, generator)) for size in _LOGARITHM_STDS])
        for _ in range(2)
    )
    with torch.no_grad():
        twice, once = action(g, action(h, points)), action(group.compose(g, h), points)
    return not bool(((twice - once).abs() > _MAX_PRODUCT_ERROR * (1.0 + once.abs())).any())


def _no_group(plan: ActionPlan, monodromy: _Monodromy) -> AlgebraError:
    """An error that says, in terms of the generators, why no group acts."""
    supported = "coordinates in which names of one place are a fixed step apart"
    if monodromy.loop is None:
        return AlgebraError(f"expected an action with (g h).x = g.(h.x), or {supported}")
    generators, mixing = plan.decomposed.algebra, plan.decomposed.adapted.mixing
    loop = describe(monodromy.loop @ torch.linalg.inv(mixing), generators.names)
    return AlgebraError(
        f"expected an action of the group of matrices, got one of a cover: exp({loop}) is the unit matrix, but its "
        f"flow moves points. Only universal covers of SL(2, R) are supported, without a representation, and {supported}"
    )


@dataclass(frozen=True)
class _Monodromy:
    """Loops of matrices along which flows move points.

    Attributes:
        loop: the vector of one loop, in the basis of the adapted fields; ``None`` if none was found.
        ideals: the simple ideals sl(2, R) with such loops, rows in the basis of the semisimple part.
        covered: whether all loops that were found are in these ideals.
    """

    loop: Tensor | None
    ideals: list[Tensor]
    covered: bool


def _find_monodromy(reductive: ReductiveGroup | None, plan: ActionPlan) -> _Monodromy:
    """Algebra vectors whose exponentials are the unit matrix, but whose flows move points.

    All loops of a matrix group can be deformed into products of loops of `loop_directions`. These, their conjugates,
    half turns in two simple ideals, and the parts of generators in each simple ideal are tried.
    """
    if reductive is None or not reductive.semisimple_dim or plan.flows.is_projective:
        return _Monodromy(None, [], True)
    adapted = plan.decomposed.adapted
    rows = adapted.levi.semisimple
    semisimple = subalgebra(adapted.algebra, rows)
    ideals = simple_ideals(semisimple)
    loops: list[tuple[Tensor, tuple[int, ...]]] = []
    for i, candidates in enumerate(_possible_loops(semisimple, ideals)):
        found = (_loop(reductive.matrix_of(v), v) for v in candidates)
        loops += [(loop, (i,)) for loop in found if loop is not None]
    firsts = {i: loop for loop, (i,) in reversed(loops)}
    for (i, a), (j, b) in itertools.combinations(firsts.items(), 2):
        both = (_loop(reductive.matrix_of(v), v) for v in (a + b, a - b))
        loops += [(loop, (i, j)) for loop in both if loop is not None]
    if not loops:
        return _Monodromy(None, [], True)
    vectors = torch.stack([loop for loop, _ in loops]) @ rows
    moved = _moved(plan.flows.flow, vectors, plan.points[:_NUM_LOOP_POINTS]).nonzero().flatten().tolist()
    if not moved:
        return _Monodromy(None, [], True)
    moving = {loops[index][1][0] for index in moved if len(loops[index][1]) == 1}
    # a loop in two ideals matters if no loop in either of them moves points
    moving |= {i for index in moved for i in loops[index][1] if not moving & set(loops[index][1])}
    split = {i for i in moving if is_split_form(subalgebra(semisimple, ideals[i]))}
    return _Monodromy(vectors[moved[0]], [ideals[i] for i in sorted(split)], split == moving)


def _possible_loops(semisimple: LieAlgebra, ideals: list[Tensor]) -> list[Tensor]:
    """Vectors of each simple ideal that may have closed one-parameter groups."""
    n = semisimple.dim
    unit = torch.eye(n, dtype=torch.float64)
    pairs = (
        [a + sign * b for a, b in itertools.combinations(unit, 2) for sign in (1.0, -1.0)]
        if n <= _MAX_DIM_OF_PAIRS
        else []
    )
    given = torch.stack([*unit, *pairs])
    back = torch.linalg.inv(torch.cat(ideals))
    generator = torch.Generator().manual_seed(0)
    result, start = [], 0
    for ideal in ideals:
        inside = given @ back[:, start : start + len(ideal)] @ ideal
        inside = inside[inside.norm(dim=-1) > 1e-9]
        start += len(ideal)
        directions = loop_directions(semisimple, ideal)
        turns = 0.5 * normal((_NUM_CONJUGATES, len(ideal)), unit, generator) @ ideal
        moves = torch.linalg.matrix_exp(semisimple.ad(turns))
        conjugates = torch.einsum("cab,db->cda", moves, directions).reshape(-1, n)
        result.append(torch.cat([inside, directions, conjugates]))
    return result


def _moved(flow: VectorFlow, vectors: Tensor, points: Tensor) -> Tensor:
    """Whether flows of vectors ``[c, dim]`` move points, ``[c]``."""
    start = points.expand(len(vectors), -1, -1)
    end, alive = start, torch.ones(start.shape[:-1], dtype=torch.bool)
    for _ in range(_STEPS_PER_LOOP):
        result = flow.follow(vectors.unsqueeze(1) / _STEPS_PER_LOOP, end, points.shape[-1])
        end, alive = result.end, alive & result.alive
        if not bool(alive.any()):
            break
    far = ((end - start).abs() > _MIN_LOOP_DISTANCE * (1.0 + start.abs())).any(-1)
    return (far & alive).any(-1)


def _loop(matrix: Tensor, vector: Tensor) -> Tensor | None:
    """The vector times the period of its one-parameter group of matrices, ``None`` if it has none."""
    weight = torch.linalg.eigvals(matrix)
    size = float(weight.abs().max())
    turning = weight.imag[weight.imag > 1e-8 * size]
    if size < 1e-12 or float(weight.real.abs().max()) > 1e-8 * size or not len(turning):
        return None
    for k in range(1, _MAX_PERIODS + 1):
        period = 2.0 * math.pi * k / float(turning.min())
        closed = torch.linalg.matrix_exp(period * matrix)
        if float((closed - torch.eye(len(matrix), dtype=torch.float64)).abs().max()) < 1e-6:
            return period * vector
    return None
