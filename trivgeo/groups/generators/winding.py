"""Whether the action of a group needs a cover of its matrices: loops of matrices that move points."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from trivgeo.groups.generators.action import FlowAction, Motion
from trivgeo.groups.generators.assemble import Source
from trivgeo.groups.generators.group import GeneratedGroup

__all__ = ["moving_loop"]

_PARTS = 8  # of a loop, each followed by itself
_MULTIPLES = 12  # of the shortest period of a coordinate
_MOVED = 1e-3


def moving_loop(group: GeneratedGroup, source: Source, motion: Motion, points: Tensor) -> Tensor | None:
    """An algebra vector whose exponential is the unit matrix, but whose flow moves points; ``None`` if none is found.

    Loops are looked for among the basis of the semisimple part, sums and differences of two of it, and compact
    directions of the Killing form, which are all there are in SL(2, R).

    Args:
        group: the group, unscaled.
        source: its algebra in the basis whose fields move points, which the answer is in, too.
        motion: see `GeneratedGroup`.
        points: ``[p, m]``, in the coordinates of `Motion.fields`.
    """
    reductive = group.reductive
    if reductive is None or not reductive.semisimple_dim or (motion.whole is not None and motion.flow is None):
        return None
    candidates = _candidates(source)
    loops = _loops(reductive.matrix_of(candidates), candidates)
    if not len(loops):
        return None
    vectors = loops @ source.split.semisimple
    action = FlowAction(group, motion)
    start = points.expand(len(vectors), -1, -1)
    end, alive = start, torch.ones(start.shape[:-1], dtype=torch.bool)
    for _ in range(_PARTS):
        end, inside, _ = action.follow(vectors.unsqueeze(1) / _PARTS, end, points.shape[-1])
        alive = alive & inside
        if not bool(alive.any()):
            return None
    far = ((end - start).abs() > _MOVED * (1.0 + start.abs())).any(-1) & alive
    return vectors[int(far.any(-1).int().argmax())] if bool(far.any()) else None


def _candidates(source: Source) -> Tensor:
    """Vectors of the semisimple algebra, ``[c, r]``."""
    rows = source.split.semisimple
    unit = torch.eye(len(rows), dtype=torch.float64)
    values, vectors = torch.linalg.eigh(rows @ source.algebra.killing_form @ rows.T)
    pairs = [unit[i] + sign * unit[j] for i, j in itertools.combinations(range(len(rows)), 2) for sign in (1.0, -1.0)]
    return torch.stack([*unit, *pairs, *vectors.T[values < 0]])


def _loops(matrices: Tensor, vectors: Tensor) -> Tensor:
    """The vectors at the end of their first period, for those that have one."""
    weights = torch.linalg.eigvals(matrices)
    result = []
    for vector, matrix, weight in zip(vectors, matrices, weights, strict=True):
        size = float(weight.abs().max())
        turning = weight.imag[weight.imag > 1e-8 * size]
        if size < 1e-12 or float(weight.real.abs().max()) > 1e-8 * size or not len(turning):
            continue
        for k in range(1, _MULTIPLES + 1):
            period = 2.0 * math.pi * k / float(turning.min())
            closed = torch.linalg.matrix_exp(period * matrix)
            if float((closed - torch.eye(len(matrix), dtype=torch.float64)).abs().max()) < 1e-6:
                result.append(period * vector)
                break
    return torch.stack(result) if result else vectors[:0]
