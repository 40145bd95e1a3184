"""Monodromy: loops of a group of matrices along which flows move points, so that a cover of the group acts."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo._random import normal
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.generated.compact_subalgebra import loop_directions, simple_ideals
from trivgeo.groups.generated.motion_plan import MotionPlan
from trivgeo.groups.generated.reductive_group import ReductiveGroup
from trivgeo.groups.generated.sl2_cover import is_split_form
from trivgeo.groups.generated.vector_flow import VectorFlow
from trivgeo.groups.structure import subalgebra

__all__ = ["Monodromy", "find_monodromy"]

_STEPS_PER_LOOP = 8  # flows that make up a loop, so that each stays within the reach of the integrator
_MAX_PERIODS = 12  # multiples of the shortest period of a coordinate that are tried as that of a matrix
_MIN_DISTANCE = 1e-3  # by which a loop that moves a point does so, relative to one plus its size
_MAX_DIM_OF_PAIRS = 8  # largest dimension in which sums and differences of two basis vectors are tried
_NUM_CONJUGATES = 4  # of each loop: a local action may move points along some of them only
_MAX_POINTS = 4  # on which loops are tried


@dataclass(frozen=True)
class Monodromy:
    """Loops of matrices along which flows move points.

    Attributes:
        loop: the vector of one of them, in the basis of the adapted fields; ``None`` if none was found.
        ideals: the simple ideals sl(2, R) with such loops, rows in the basis of the semisimple part.
        covered: whether all loops that were found are in these ideals.
    """

    loop: Tensor | None
    ideals: list[Tensor]
    covered: bool


def find_monodromy(reductive: ReductiveGroup | None, plan: MotionPlan) -> Monodromy:
    """Algebra vectors whose exponentials are the unit matrix, but whose flows move points.

    All loops of a matrix group can be deformed into those of `loop_directions` and products of them. These are tried,
    their conjugates, half turns in two simple ideals, and the parts of generators in each simple ideal.

    Args:
        reductive: the reductive factor of the group, ``None`` if it has none.
        plan: how points move.
    """
    if reductive is None or not reductive.semisimple_dim or plan.flows.is_projective:
        return Monodromy(None, [], True)
    adapted = plan.decomposed.adapted
    rows = adapted.levi.semisimple
    semisimple = subalgebra(adapted.algebra, rows)
    ideals = simple_ideals(semisimple)
    loops: list[tuple[Tensor, tuple[int, ...]]] = []
    for i, candidates in enumerate(_candidates(semisimple, ideals)):
        found = (_loop(reductive.matrix_of(v), v) for v in candidates)
        loops += [(loop, (i,)) for loop in found if loop is not None]
    firsts = {i: loop for loop, (i,) in reversed(loops)}
    for (i, a), (j, b) in itertools.combinations(firsts.items(), 2):
        both = (_loop(reductive.matrix_of(v), v) for v in (a + b, a - b))
        loops += [(loop, (i, j)) for loop in both if loop is not None]
    if not loops:
        return Monodromy(None, [], True)
    vectors = torch.stack([loop for loop, _ in loops]) @ rows
    moved = _moved(plan.flows.flow, vectors, plan.points[:_MAX_POINTS]).nonzero().flatten().tolist()
    if not moved:
        return Monodromy(None, [], True)
    moving = {loops[index][1][0] for index in moved if len(loops[index][1]) == 1}
    # a loop in two ideals matters if no loop in either of them moves points
    moving |= {i for index in moved for i in loops[index][1] if not moving & set(loops[index][1])}
    split = {i for i in moving if is_split_form(subalgebra(semisimple, ideals[i]))}
    return Monodromy(vectors[moved[0]], [ideals[i] for i in sorted(split)], split == moving)


def _candidates(semisimple: LieAlgebra, ideals: list[Tensor]) -> list[Tensor]:
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
    far = ((end - start).abs() > _MIN_DISTANCE * (1.0 + start.abs())).any(-1)
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
