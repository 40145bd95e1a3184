"""From a split algebra to the group: bases, representations, factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo.errors import AlgebraError
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.base import Scale
from trivgeo.groups.generated.action import Motion
from trivgeo.groups.generated.compact_subalgebra import simple_ideals
from trivgeo.groups.generated.group import CoreEmbedding, GeneratedGroup
from trivgeo.groups.generated.ideal_automorphism import (
    BracketAdjoint,
    IdealAutomorphism,
    Layer,
    MatrixAdjoint,
    SemisimpleAdjoint,
)
from trivgeo.groups.generated.reductive_group import ReductiveGroup
from trivgeo.groups.generated.representation import SemisimpleMap, has_half_spin
from trivgeo.groups.generated.sl2_cover import is_split_form, plane_representation
from trivgeo.groups.generated.standard_representation import standard_representation
from trivgeo.groups.nilpotent import Nilpotent
from trivgeo.groups.semidirect import SemidirectProduct
from trivgeo.groups.structure import (
    LeviDecomposition,
    bracket_span,
    coordinates,
    intersection,
    largest_constant,
    null_space,
    products,
    row_reduce,
    subalgebra,
)

__all__ = ["AdaptedAlgebra", "assemble"]

_SMALLEST = 8  # dimension of the first sl(n, R) whose matrices are smaller than those of Ad, and as many


@dataclass(frozen=True)
class AdaptedAlgebra:
    """An algebra in a basis Y that makes its decomposition simple.

    Attributes:
        algebra: the algebra, with the sign of the group.
        split: its decomposition, in terms of the Y.
        mixing: the generators in terms of the Y, ``X = mixing Y``, ``[n, n]``.
    """

    algebra: LieAlgebra
    split: LeviDecomposition
    mixing: Tensor


def assemble(
    algebra: LieAlgebra,
    source: AdaptedAlgebra,
    faithful: Tensor | None,
    motion: Motion,
    scale: Scale = None,
    covers: Sequence[Tensor] = (),
) -> GeneratedGroup:
    """The group of a split algebra.

    Args:
        algebra: see `GeneratedGroup`.
        source: the same algebra in a simple basis, its decomposition, and the generators in that basis.
        faithful: matrices of the simple basis in a faithful representation of the whole algebra; used for the
            semisimple part. Without them it acts on a complement of [n, n] in n, and on itself.
        motion: see `GeneratedGroup`; of the fields of the simple basis.
        scale: see `LieGroup`.
        covers: simple ideals sl(2, R) of the semisimple part whose groups are universal covers, rows in its basis.
    """
    inner, split, rows, embedding = _hull(source.algebra, source.split)
    r, k, d = len(split.semisimple), len(split.torus), len(split.ideal)
    faithful = faithful if source.split.derivations is None else None
    ideal_rows, moved, fixed, layers = _adapted_ideal(inner, split, needed=r > 0 and faithful is None)
    split = LeviDecomposition(split.semisimple, split.torus, ideal_rows)
    basis = torch.cat([split.complement, ideal_rows])
    frame = CoreEmbedding(basis @ rows, embedding @ torch.linalg.inv(basis), source.split.torus, source.mixing)
    unmix = torch.linalg.inv(source.mixing)
    named = LeviDecomposition(
        source.split.semisimple @ unmix,
        source.split.torus @ unmix,
        (ideal_rows @ rows if source.split.derivations is None else source.split.ideal) @ unmix,
        None if source.split.derivations is None else unmix.T @ source.split.derivations @ source.mixing.T,
    )
    ideal = Nilpotent(subalgebra(inner, ideal_rows)) if d else None
    derivations = coordinates(products(inner, split.complement, ideal_rows), ideal_rows).transpose(1, 2)
    terms = torch.einsum("ai,bj,ijk->abk", split.complement.abs(), ideal_rows.abs(), inner.structure_constants.abs())
    terms = (terms @ torch.linalg.pinv(ideal_rows).abs()).transpose(1, 2)  # without cancellation
    derivations = torch.where(derivations.abs() <= 1e-13 * terms, 0.0, derivations)
    if not r + k:
        assert ideal is not None
        return GeneratedGroup(algebra, ideal, frame, named, motion, scale)

    semisimple = subalgebra(inner, split.semisimple) if r else None
    block: Tensor | None = None
    if semisimple is None:
        matrices = torch.zeros(0, 0, 0, dtype=torch.float64)
    elif faithful is not None:
        matrices, block = _moved_block(torch.einsum("ri,iab->rab", split.semisimple, faithful))
    else:
        bases = [base.matrices for base in motion.tower.bases]
        matrices = _block_representation(semisimple, derivations[:r, :moved, :moved], bases, source, covers)
        if not covers and is_split_form(semisimple) and has_half_spin(semisimple, matrices):
            matrices = _plane(semisimple, matrices, derivations[:r])
    reductive = ReductiveGroup(semisimple, matrices, k, len(covers), principal=motion.sheets is not None)
    adjoint: SemisimpleAdjoint | None = None
    if block is not None and faithful is not None:
        adjoint = MatrixAdjoint(reductive, block, torch.einsum("di,iab->dab", ideal_rows, faithful))
    elif r and ideal is not None:
        plane = SemisimpleMap(reductive, derivations[:r]) if reductive.size == 2 else None
        adjoint = BracketAdjoint(ideal.algebra, moved, fixed, layers) if plane is None or not plane.exists else plane
    if ideal is None:
        return GeneratedGroup(algebra, reductive, frame, named, motion, scale)
    core = SemidirectProduct(reductive, ideal, IdealAutomorphism(reductive, ideal, derivations, adjoint))
    return GeneratedGroup(algebra, core, frame, named, motion, scale)


def _hull(algebra: LieAlgebra, split: LeviDecomposition) -> tuple[LieAlgebra, LeviDecomposition, Tensor, Tensor]:
    """An algebra that splits, and holds the given one as an ideal.

    Returns:
        The algebra, its split, its basis in terms of that of the given one (zero for derivations), ``[*, n]``, and the
        given basis in terms of its, ``[n, *]``.
    """
    n, unit = algebra.dim, torch.eye(algebra.dim, dtype=torch.float64)
    if split.derivations is None:
        return algebra, split, unit, unit
    # basis: semisimple part, derivations D, ideal, x - D
    r, k, d = len(split.semisimple), len(split.torus), len(split.ideal)
    inside = torch.cat([split.semisimple, torch.zeros(k, n, dtype=torch.float64), split.ideal, split.torus])
    moves = split.derivations.new_zeros(n + k, n, n)  # how the derivations in each basis element move the algebra
    moves[r : r + k], moves[r + k + d :] = split.derivations, -split.derivations
    brackets = products(algebra, inside, inside)
    brackets = brackets + torch.einsum("iab,jb->ija", moves, inside) - torch.einsum("jab,ib->ija", moves, inside)
    # [hull, hull] lies in the semisimple part and the ideal
    kept = torch.cat([split.semisimple, split.ideal])
    found = coordinates(brackets, kept)
    c = torch.zeros(n + k, n + k, n + k, dtype=torch.float64)
    c[..., :r], c[..., r + k : r + k + d] = found[..., :r], found[..., r:]
    back = torch.linalg.inv(torch.cat([split.semisimple, split.torus, split.ideal]))
    embedding = torch.zeros(n, n + k, dtype=torch.float64)
    embedding[:, : r + k], embedding[:, r + k : r + k + d] = back[:, : r + k], back[:, r + k :]
    embedding[:, r + k + d :] = back[:, r : r + k]
    whole = torch.eye(n + k, dtype=torch.float64)
    hull = LieAlgebra(0.5 * (c - c.transpose(0, 1)), tolerance=1e-7)
    return hull, LeviDecomposition(whole[:r], whole[r : r + k], whole[r + k :]), inside, embedding


def _adapted_ideal(
    algebra: LieAlgebra, split: LeviDecomposition, needed: bool
) -> tuple[Tensor, int, int, tuple[Layer, ...]]:
    """A basis of n: what s moves of an invariant complement V of [n, n], the rest of V, then brackets with V."""
    n = split.ideal
    if not needed or not len(n):
        return n, 0, len(n), ()
    inner = subalgebra(algebra, n)
    whole = torch.eye(len(n), dtype=torch.float64)
    derived = bracket_span(inner, whole, whole)
    acts = coordinates(products(algebra, split.semisimple, n), n).transpose(1, 2)  # [r, d, d]
    v = _invariant_complement(derived, acts)
    moved = row_reduce(torch.einsum("rab,vb->rva", acts, v).reshape(-1, len(n)), largest_constant(algebra))
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


def _block_representation(
    semisimple: LieAlgebra, on_ideal: Tensor, bases: Sequence[Tensor], source: AdaptedAlgebra, covers: Sequence[Tensor]
) -> Tensor:
    """The block on V; for the simple ideals that it misses those on bases of points, or one of their own.

    For covers blocks of SL(2, R) last.
    """
    r, m = semisimple.dim, on_ideal.shape[-1]
    if r == 3 and m == 2 and covers:
        return on_ideal

    def kernel_of(matrices: Tensor) -> Tensor:
        return null_space(matrices.reshape(r, -1).T) if matrices.numel() else torch.eye(r, dtype=torch.float64)

    # coordinates of the simple ideals, of which those of the covers come first
    planes = [plane_representation(subalgebra(semisimple, ideal)) for ideal in covers]
    beside = null_space(torch.cat(list(covers)) @ semisimple.killing_form) if covers else None
    total = on_ideal
    if beside is not None:
        back = torch.linalg.inv(torch.cat([*covers, beside]))
        planes = [torch.einsum("ri,iab->rab", back[:, 3 * i : 3 * i + 3], plane) for i, plane in enumerate(planes)]
        whole = torch.zeros(r, 0, 0, dtype=torch.float64)
        for plane in planes:
            whole = _blocks(whole, plane)
        missed = null_space(_blocks(on_ideal, whole).reshape(r, -1).T)
        if len(missed):
            images = products(semisimple, torch.eye(r, dtype=torch.float64), missed)
            total = _blocks(total, coordinates(images, missed).transpose(1, 2))
        return _blocks(total, whole)
    if len(kernel_of(total)):
        for base in bases:
            block = torch.einsum("ri,iab->rab", source.split.semisimple, base)
            if len(kernel_of(block)) < r:
                total = _blocks(total, block)
    missed = kernel_of(total)
    return _blocks(total, _own_representation(semisimple, missed)) if len(missed) else total


def _plane(semisimple: LieAlgebra, matrices: Tensor, derivations: Tensor) -> Tensor:
    """The 2 x 2 matrices of SL(2, R), if larger ones of the same group can be had from them."""
    if matrices.shape[-1] == 2:
        return matrices
    plane = plane_representation(semisimple)
    small = ReductiveGroup(semisimple, plane, 0)
    return plane if SemisimpleMap(small, derivations).exists else matrices


def _own_representation(semisimple: LieAlgebra, ideal: Tensor) -> Tensor:
    """Matrices ``[r, m, m]`` in which an ideal alone acts: of size n for sl(n, R), else the adjoint ones."""
    unit = torch.eye(semisimple.dim, dtype=torch.float64)
    if len(ideal) >= _SMALLEST:
        rest = null_space(ideal @ semisimple.killing_form)
        inside = torch.linalg.inv(torch.cat([ideal, rest]))[:, : len(ideal)]
        inner = subalgebra(semisimple, ideal)
        parts = simple_ideals(inner)
        standard = [standard_representation(subalgebra(inner, part)) for part in parts]
        if any(each is not None for each in standard):
            back, total = inside @ torch.linalg.inv(torch.cat(parts)), torch.zeros(semisimple.dim, 0, 0).double()
            for part, each, weights in zip(parts, standard, back.split(list(map(len, parts)), -1), strict=True):
                if each is None:
                    total = _blocks(total, _own_adjoint(semisimple, unit, part @ ideal))
                else:
                    total = _blocks(total, torch.einsum("ri,iab->rab", weights, each))
            return total
    return _own_adjoint(semisimple, unit, ideal)


def _own_adjoint(semisimple: LieAlgebra, unit: Tensor, ideal: Tensor) -> Tensor:
    images = products(semisimple, unit, ideal)  # [r, j, r]
    return coordinates(images, ideal).transpose(1, 2)


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
