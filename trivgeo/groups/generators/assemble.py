"""From a split algebra to the group: bases, representations, factors."""

from __future__ import annotations

import torch
from torch import Tensor

from trivgeo.errors import AlgebraError
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.base import Scale
from trivgeo.groups.generators.action import Motion
from trivgeo.groups.generators.cover import plane_representation
from trivgeo.groups.generators.group import GeneratedGroup
from trivgeo.groups.generators.ideal import BracketAdjoint, IdealAutomorphism, Layer, MatrixAdjoint, SemisimpleAdjoint
from trivgeo.groups.generators.reductive import ReductiveGroup
from trivgeo.groups.nilpotent import Nilpotent
from trivgeo.groups.semidirect import SemidirectProduct
from trivgeo.groups.structure import (
    Split,
    bracket_span,
    coordinates,
    intersection,
    null_space,
    products,
    row_reduce,
    subalgebra,
)

__all__ = ["assemble"]


def assemble(
    algebra: LieAlgebra,
    split: Split,
    faithful: Tensor | None,
    motion: Motion,
    scale: Scale = None,
    covers: bool = False,
) -> GeneratedGroup:
    """The group of a split algebra.

    Args:
        algebra: see `GeneratedGroup`.
        split: its decomposition.
        faithful: matrices of the generators in a faithful representation of the whole algebra; used for the semisimple
            part. Without them it acts on a complement of [n, n] in n, and on itself.
        motion: see `GeneratedGroup`.
        scale: see `LieGroup`.
        covers: whether the semisimple part is the universal cover of SL(2, R).
    """
    r, k, d = len(split.semisimple), len(split.torus), len(split.ideal)
    ideal_rows, moved, fixed, layers = _adapted_ideal(algebra, split, needed=r > 0 and faithful is None)
    split = Split(split.semisimple, split.torus, ideal_rows)
    basis = torch.cat([split.complement, ideal_rows])
    ideal = Nilpotent(subalgebra(algebra, ideal_rows)) if d else None
    derivations = coordinates(products(algebra, split.complement, ideal_rows), ideal_rows).transpose(1, 2)
    derivations = torch.where(derivations.abs() < 1e-13, 0.0, derivations)
    if not r + k:
        assert ideal is not None
        return GeneratedGroup(algebra, ideal, basis, split, None, motion, scale)

    semisimple = subalgebra(algebra, split.semisimple) if r else None
    frame: Tensor | None = None
    if semisimple is None:
        matrices = torch.zeros(0, 0, 0, dtype=torch.float64)
    elif faithful is not None:
        matrices, frame = _moved_block(torch.einsum("ri,iab->rab", split.semisimple, faithful))
    else:
        matrices = _block_representation(semisimple, derivations[:r, :moved, :moved], covers)
    reductive = ReductiveGroup(semisimple, matrices, k, covers)
    adjoint: SemisimpleAdjoint | None = None
    full: MatrixAdjoint | None = None
    if frame is not None and faithful is not None:
        full = MatrixAdjoint(reductive, frame, torch.einsum("di,iab->dab", ideal_rows, faithful), faithful)
        adjoint = full
    elif r and ideal is not None:
        adjoint = BracketAdjoint(ideal.algebra, moved, fixed, layers)
    if ideal is None:
        return GeneratedGroup(algebra, reductive, basis, split, full, motion, scale)
    core = SemidirectProduct(reductive, ideal, IdealAutomorphism(reductive, ideal, derivations, adjoint))
    return GeneratedGroup(algebra, core, basis, split, full, motion, scale)


def _adapted_ideal(algebra: LieAlgebra, split: Split, needed: bool) -> tuple[Tensor, int, int, tuple[Layer, ...]]:
    """A basis of n: what s moves of an invariant complement V of [n, n], the rest of V, then brackets with V."""
    n = split.ideal
    if not needed or not len(n):
        return n, 0, len(n), ()
    inner = subalgebra(algebra, n)
    whole = torch.eye(len(n), dtype=torch.float64)
    derived = bracket_span(inner, whole, whole)
    acts = coordinates(products(algebra, split.semisimple, n), n).transpose(1, 2)  # [r, d, d]
    v = _invariant_complement(derived, acts)
    moved = row_reduce(torch.einsum("rab,vb->rva", acts, v).reshape(-1, len(n)))
    fixed = intersection(v, null_space(acts.reshape(-1, len(n))))
    rows = torch.cat([moved, fixed])
    if len(rows) != len(v):
        raise AlgebraError("the semisimple part does not act semisimply on the ideal: rank decisions failed")
    start = len(rows)
    layers = []
    while len(rows) < len(n):
        layer, new = _bracket_layer(inner, rows, start)
        layers.append(layer)
        rows = torch.cat([rows, new])
    return rows @ n, len(moved), len(fixed), tuple(layers)


def _invariant_complement(derived: Tensor, acts: Tensor) -> Tensor:
    """The kernel of a projection onto the derived algebra that commutes with all the maps."""
    d, q = acts.shape[-1], len(derived)
    if not q:
        return torch.eye(d, dtype=torch.float64)
    inside = coordinates(torch.einsum("rab,qb->rqa", acts, derived), derived).transpose(1, 2)  # on the derived algebra
    unit_d, unit_q = torch.eye(d, dtype=torch.float64), torch.eye(q, dtype=torch.float64)
    # X [q, d]: X derived^T = 1, inside X = X act
    first = torch.einsum("xa,yb->xyab", unit_q, derived).reshape(q * q, q * d)
    commute = torch.einsum("rxa,by->rxyab", inside, unit_d) - torch.einsum("xa,rby->rxyab", unit_q, acts)
    system = torch.cat([first, commute.reshape(-1, q * d)])
    right = torch.cat([unit_q.reshape(-1), torch.zeros(len(system) - q * q, dtype=torch.float64)])
    solution = torch.linalg.pinv(system, rtol=1e-10) @ right
    if float((system @ solution - right).abs().max()) > 1e-8:
        raise AlgebraError("no invariant complement of [n, n] in n found: rank decisions failed")
    return null_space(solution.reshape(q, d))


def _bracket_layer(inner: LieAlgebra, rows: Tensor, start: int) -> tuple[Layer, Tensor]:
    """Brackets of the first ``start`` rows with all rows that enlarge the span, of unit length in the largest entry."""
    left: list[int] = []
    right: list[int] = []
    length: list[float] = []
    new: list[Tensor] = []
    frame = torch.linalg.qr(rows.T)[0].T
    for i in range(start):
        for j in range(len(rows)):
            bracket = inner.bracket(rows[i], rows[j])
            size = float(bracket.norm())
            if size < 1e-12:
                continue
            rest = bracket / size - frame.T @ (frame @ bracket) / size
            if float(rest.norm()) > 1e-6:
                largest = float(bracket[bracket.abs().argmax()])
                left.append(i)
                right.append(j)
                length.append(largest)
                new.append(bracket / largest)
                frame = torch.cat([frame, (rest / rest.norm()).unsqueeze(0)])
    if not new:
        raise AlgebraError("the ideal is not generated by a complement of [n, n]: rank decisions failed")
    return Layer(tuple(left), tuple(right), tuple(length)), torch.stack(new)


def _block_representation(semisimple: LieAlgebra, on_ideal: Tensor, covers: bool) -> Tensor:
    """The block on V, and the adjoint one on the simple ideals that it misses; for a cover a block of SL(2, R) last."""
    r, m = semisimple.dim, on_ideal.shape[-1]
    if covers:
        return on_ideal if m == 2 else _blocks(on_ideal, plane_representation(semisimple))
    missed = null_space(on_ideal.reshape(r, -1).T) if m else torch.eye(r, dtype=torch.float64)
    if not len(missed):
        return on_ideal
    images = products(semisimple, torch.eye(r, dtype=torch.float64), missed)  # [r, j, r]
    adjoint = coordinates(images, missed).transpose(1, 2)
    return _blocks(on_ideal, adjoint)


def _blocks(a: Tensor, b: Tensor) -> Tensor:
    """Both on the diagonal."""
    m, size = a.shape[-1], a.shape[-1] + b.shape[-1]
    matrices = a.new_zeros(len(a), size, size)
    matrices[:, :m, :m], matrices[:, m:, m:] = a, b
    return matrices


def _moved_block(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """The block on the span of the images, and the frame (images, invariants)."""
    k = matrices.shape[-1]
    moved = row_reduce(matrices.transpose(0, 1).reshape(k, -1).T)
    invariant = null_space(matrices.reshape(-1, k))
    frame = torch.cat([moved, invariant]).T
    if frame.shape != (k, k):
        raise AlgebraError("expected the semisimple part to act semisimply in the representation")
    inner = torch.linalg.inv(frame) @ matrices @ frame
    size = len(moved)
    block = inner[:, :size, :size]
    return torch.where(block.abs() < 1e-14, 0.0, block), frame
