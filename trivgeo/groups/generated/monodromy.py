"""Whether the action of a group needs a cover of its matrices: loops of matrices that move points."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo._random import normal
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.generated.action import FlowAction, Motion
from trivgeo.groups.generated.compact_subalgebra import loop_directions, simple_ideals
from trivgeo.groups.generated.group import GeneratedGroup
from trivgeo.groups.generated.levi_assembly import AdaptedAlgebra
from trivgeo.groups.generated.sl2_cover import is_split_form
from trivgeo.groups.structure import subalgebra

__all__ = ["Monodromy", "find_monodromy"]

_PARTS = 8  # of a loop, each followed by itself
_MULTIPLES = 12  # of the shortest period of a coordinate
_MOVED = 1e-3
_PAIRS = 8  # largest dimension in which sums and differences of two basis vectors are tried
_CONJUGATES = 4  # of each loop: an action that is local may move points along some of them only


@dataclass(frozen=True)
class Monodromy:
    """Loops of matrices that move points.

    Attributes:
        loop: one, in the basis whose fields move points; ``None`` if none was found.
        ideals: the simple ideals sl(2, R) that have some, rows in the basis of the semisimple part.
        covered: whether all loops that were found are in these.
    """

    loop: Tensor | None
    ideals: list[Tensor]
    covered: bool


def find_monodromy(group: GeneratedGroup, source: AdaptedAlgebra, motion: Motion, points: Tensor) -> Monodromy:
    """The algebra vectors whose exponentials are the unit matrix, but whose flows move points.

    All loops of a matrix group can be deformed into those of `loop_directions` and products of them. Tried are these,
    conjugates, half turns in two simple ideals, and what generators have in each.

    Args:
        group: the group, unscaled.
        source: its algebra in the basis whose fields move points.
        motion: see `GeneratedGroup`.
        points: ``[p, m]``, in the coordinates of `Motion.fields`.
    """
    reductive = group.reductive
    if reductive is None or not reductive.semisimple_dim or (motion.whole is not None and motion.flow is None):
        return Monodromy(None, [], True)
    rows = source.split.semisimple
    semisimple = subalgebra(source.algebra, rows)
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
    moved = _moved(FlowAction(group, motion), vectors, points).nonzero().flatten().tolist()
    if not moved:
        return Monodromy(None, [], True)
    turned = {loops[index][1][0] for index in moved if len(loops[index][1]) == 1}
    # a loop in two ideals tells something new if none in either moves points
    turned |= {i for index in moved for i in loops[index][1] if not turned & set(loops[index][1])}
    split = {i for i in turned if is_split_form(subalgebra(semisimple, ideals[i]))}
    return Monodromy(vectors[moved[0]], [ideals[i] for i in sorted(split)], split == turned)


def _candidates(semisimple: LieAlgebra, ideals: list[Tensor]) -> list[Tensor]:
    """Vectors of each simple ideal that may have closed one-parameter groups."""
    n = semisimple.dim
    unit = torch.eye(n, dtype=torch.float64)
    pairs = [a + sign * b for a, b in itertools.combinations(unit, 2) for sign in (1.0, -1.0)] if n <= _PAIRS else []
    given = torch.stack([*unit, *pairs])
    back = torch.linalg.inv(torch.cat(ideals))
    generator = torch.Generator().manual_seed(0)
    result, start = [], 0
    for ideal in ideals:
        inside = given @ back[:, start : start + len(ideal)] @ ideal
        inside = inside[inside.norm(dim=-1) > 1e-9]
        start += len(ideal)
        directions = loop_directions(semisimple, ideal)
        turns = 0.5 * normal((_CONJUGATES, len(ideal)), unit, generator) @ ideal
        moves = torch.linalg.matrix_exp(semisimple.ad(turns))
        conjugates = torch.einsum("cab,db->cda", moves, directions).reshape(-1, n)
        result.append(torch.cat([inside, directions, conjugates]))
    return result


def _moved(action: FlowAction, vectors: Tensor, points: Tensor) -> Tensor:
    """Which flows move points, ``[c]``."""
    start = points.expand(len(vectors), -1, -1)
    end, alive = start, torch.ones(start.shape[:-1], dtype=torch.bool)
    for _ in range(_PARTS):
        end, inside, _ = action.follow(vectors.unsqueeze(1) / _PARTS, end, points.shape[-1])
        alive = alive & inside
        if not bool(alive.any()):
            break
    far = ((end - start).abs() > _MOVED * (1.0 + start.abs())).any(-1)
    return (far & alive).any(-1)


def _loop(matrix: Tensor, vector: Tensor) -> Tensor | None:
    """The vector at the end of its first period, if it has one."""
    weight = torch.linalg.eigvals(matrix)
    size = float(weight.abs().max())
    turning = weight.imag[weight.imag > 1e-8 * size]
    if size < 1e-12 or float(weight.real.abs().max()) > 1e-8 * size or not len(turning):
        return None
    for k in range(1, _MULTIPLES + 1):
        period = 2.0 * math.pi * k / float(turning.min())
        closed = torch.linalg.matrix_exp(period * matrix)
        if float((closed - torch.eye(len(matrix), dtype=torch.float64)).abs().max()) < 1e-6:
            return period * vector
    return None
