"""Phase 5 of `from_generators`, the elements: a decomposed algebra becomes a semidirect product of groups.

`assemble` embeds an algebra that does not split over its nilradical (`_hull`), chooses a basis of the ideal
(`_adapted_ideal`), matrices for the semisimple part (`_block_representation`), and Ad of these on the ideal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo.errors import AlgebraError
from trivgeo.groups.algebra import LieAlgebra, subalgebra
from trivgeo.groups.from_generators.decomposition import AdaptedAlgebra
from trivgeo.groups.from_generators.elements import CoreEmbedding, FactoredElements
from trivgeo.groups.from_generators.ideal_automorphism import (
    BracketAdjoint,
    IdealAutomorphism,
    Layer,
    MatrixAdjoint,
    SemisimpleAdjoint,
)
from trivgeo.groups.from_generators.reductive_group import ReductiveGroup
from trivgeo.groups.from_generators.representation import SemisimpleMap, has_half_spin
from trivgeo.groups.from_generators.semisimple_algebra import (
    is_split_form,
    plane_representation,
    simple_ideals,
    standard_representation,
)
from trivgeo.groups.from_generators.span import without_cancelled
from trivgeo.groups.ground_fields import REALS
from trivgeo.groups.nilpotent import Nilpotent
from trivgeo.groups.semidirect import SemidirectProduct
from trivgeo.groups.structure import LeviDecomposition, real_structure

_MIN_DIM_OF_STANDARD = 8  # dimension of sl(n, R), from which n x n matrices are smaller than those of Ad
_MIN_INDEPENDENT_PART = 1e-6  # relative length of the part of a bracket that counts as independent


@dataclass(frozen=True)
class Representations:
    """Matrices of the adapted fields from which the semisimple part may be built.

    Attributes:
        faithful: matrices ``[n, k, k]`` of a faithful representation of the whole algebra. ``None``: the semisimple
            part acts on a complement of [n, n] in n, on ``bases``, and on itself.
        bases: matrices ``[n, K, K]`` of coordinates of points.
        linear: matrices ``[r, m, m]`` of the semisimple part, which take the place of those on itself.
    """

    faithful: Tensor | None
    bases: Sequence[Tensor] = ()
    linear: Tensor | None = None


@dataclass(frozen=True)
class IdealLayout:
    """The order of an adapted basis of the ideal, see `BracketAdjoint`."""

    moved: int
    fixed: int
    layers: tuple[Layer, ...] = ()


def assemble(
    adapted: AdaptedAlgebra,
    representations: Representations,
    covers: Sequence[Tensor] = (),
    principal: bool = False,
) -> tuple[FactoredElements, LeviDecomposition]:
    """The elements of the group of a decomposed algebra, and the decomposition in the basis of its generators.

    Args:
        representations: matrices for the semisimple part.
        covers: simple ideals sl(2, R) of the semisimple part whose groups are universal covers, rows in its basis.
        principal: whether `exp` is NaN for vectors that are not principal logarithms.
    """
    inner, split, rows, inclusion = _hull(adapted.algebra, adapted.levi)
    r, k = len(split.semisimple), len(split.torus)
    faithful = representations.faithful if adapted.levi.derivations is None else None
    ideal_rows, layout = _adapted_ideal(inner, split, needed=r > 0 and faithful is None)
    split = LeviDecomposition(split.semisimple, split.torus, ideal_rows)
    basis = torch.cat([split.complement, ideal_rows])
    embedding = CoreEmbedding(basis @ rows, inclusion @ torch.linalg.inv(basis), adapted.levi.torus, adapted.mixing)
    named = _in_generators(adapted, ideal_rows @ rows)
    ideal = Nilpotent(subalgebra(inner, ideal_rows)) if len(split.ideal) else None
    if not r + k:
        assert ideal is not None
        return FactoredElements(ideal, embedding), named
    derivations = _derivations(inner, split)
    semisimple = subalgebra(inner, split.semisimple) if r else None
    frame: Tensor | None = None
    if semisimple is None:
        matrices = torch.zeros(0, 0, 0, dtype=torch.float64)
    elif faithful is not None:
        matrices, frame = _moved_block(torch.einsum("ri,iab->rab", split.semisimple, faithful))
    else:
        on_ideal = derivations[:r, : layout.moved, : layout.moved]
        matrices = _block_representation(semisimple, on_ideal, representations, adapted, covers)
        if not covers and is_split_form(semisimple) and has_half_spin(semisimple, matrices):
            matrices = _plane(semisimple, matrices, derivations[:r])
    reductive = ReductiveGroup(semisimple, matrices, k, len(covers), principal=principal)
    if ideal is None:
        return FactoredElements(reductive, embedding), named
    adjoint: SemisimpleAdjoint | None = None
    if frame is not None and faithful is not None:
        adjoint = MatrixAdjoint(reductive, frame, torch.einsum("di,iab->dab", ideal_rows, faithful))
    elif r:
        adjoint = _adjoint_on_ideal(reductive, ideal, derivations[:r], layout)
    automorphism = IdealAutomorphism(reductive, ideal, derivations, adjoint)
    return FactoredElements(SemidirectProduct(reductive, ideal, automorphism), embedding), named


def _in_generators(adapted: AdaptedAlgebra, ideal: Tensor) -> LeviDecomposition:
    """The decomposition in the basis of the generators; if the algebra splits, with rows ``ideal`` for the ideal."""
    levi, unmix = adapted.levi, torch.linalg.inv(adapted.mixing)
    semisimple, torus = levi.semisimple @ unmix, levi.torus @ unmix
    if levi.derivations is None:
        return LeviDecomposition(semisimple, torus, ideal @ unmix)
    derivations = unmix.T @ levi.derivations @ adapted.mixing.T
    return LeviDecomposition(semisimple, torus, levi.ideal @ unmix, derivations)


def _derivations(algebra: LieAlgebra, split: LeviDecomposition) -> Tensor:
    """Derivations of the ideal by the complement, ``[r + k, d, d]``, with cancelled terms set to zero."""
    derivations = REALS.coordinates(
        real_structure(algebra).brackets(split.complement, split.ideal), split.ideal
    ).transpose(1, 2)
    sizes = (split.complement.abs(), split.ideal.abs(), algebra.structure_constants.abs())
    terms = (torch.einsum("ai,bj,ijk->abk", *sizes) @ torch.linalg.pinv(split.ideal).abs()).transpose(1, 2)
    return without_cancelled(derivations, terms)


def _adjoint_on_ideal(
    reductive: ReductiveGroup, ideal: Nilpotent, derivations: Tensor, layout: IdealLayout
) -> SemisimpleAdjoint:
    """Ad of the semisimple part: a polynomial in 2 x 2 matrices if it is one, else by brackets."""
    if reductive.size == 2:
        plane = SemisimpleMap(reductive, derivations)
        if plane.exists:
            return plane
    return BracketAdjoint(ideal.algebra, layout.moved, layout.fixed, layout.layers)


def _hull(algebra: LieAlgebra, split: LeviDecomposition) -> tuple[LieAlgebra, LeviDecomposition, Tensor, Tensor]:
    """The algebra itself if it splits over its nilradical, else one that splits and has it as an ideal (Malcev).

    Returns:
        The hull; its decomposition; its basis in terms of the given algebra's (zero for derivations), ``[*, n]``; and
        the given algebra's basis in terms of the hull's, ``[n, *]``.
    """
    n, unit = algebra.dim, torch.eye(algebra.dim, dtype=torch.float64)
    if split.derivations is None:
        return algebra, split, unit, unit
    # the basis: semisimple part, derivations D, ideal, x - D
    r, k, d = len(split.semisimple), len(split.torus), len(split.ideal)
    inside = torch.cat([split.semisimple, torch.zeros(k, n, dtype=torch.float64), split.ideal, split.torus])
    moves = split.derivations.new_zeros(n + k, n, n)  # by which derivation each basis element acts
    moves[r : r + k], moves[r + k + d :] = split.derivations, -split.derivations
    brackets = real_structure(algebra).brackets(inside, inside)
    brackets = brackets + torch.einsum("iab,jb->ija", moves, inside) - torch.einsum("jab,ib->ija", moves, inside)
    # [hull, hull] lies in the semisimple part and the ideal
    kept = torch.cat([split.semisimple, split.ideal])
    found = REALS.coordinates(brackets, kept)
    c = torch.zeros(n + k, n + k, n + k, dtype=torch.float64)
    c[..., :r], c[..., r + k : r + k + d] = found[..., :r], found[..., r:]
    back = torch.linalg.inv(torch.cat([split.semisimple, split.torus, split.ideal]))
    embedding = torch.zeros(n, n + k, dtype=torch.float64)
    embedding[:, : r + k], embedding[:, r + k : r + k + d] = back[:, : r + k], back[:, r + k :]
    embedding[:, r + k + d :] = back[:, r : r + k]
    whole = torch.eye(n + k, dtype=torch.float64)
    hull = LieAlgebra(0.5 * (c - c.transpose(0, 1)), tolerance=1e-7)
    return hull, LeviDecomposition(whole[:r], whole[r : r + k], whole[r + k :]), inside, embedding


def _adapted_ideal(algebra: LieAlgebra, split: LeviDecomposition, needed: bool) -> tuple[Tensor, IdealLayout]:
    """A basis of n: the part of an invariant complement V of [n, n] that s moves, the rest of V, brackets with V."""
    n = split.ideal
    if not needed or not len(n):
        return n, IdealLayout(0, len(n))
    inner = subalgebra(algebra, n)
    whole = torch.eye(len(n), dtype=torch.float64)
    derived = real_structure(inner).bracket_span(whole, whole)
    acts = REALS.coordinates(real_structure(algebra).brackets(split.semisimple, n), n).transpose(1, 2)  # [r, d, d]
    v = _invariant_complement(derived, acts)
    moved = REALS.row_space(torch.einsum("rab,vb->rva", acts, v).reshape(-1, len(n)), real_structure(algebra).size)
    fixed = REALS.intersection(v, REALS.null_space(acts.reshape(-1, len(n))))
    rows = torch.cat([moved, fixed])
    if len(rows) != len(v):
        raise AlgebraError("expected the semisimple part to act semisimply on the ideal: rank decisions failed")
    start = len(rows)
    layers = []
    while len(rows) < len(n):
        layer, new = _bracket_layer(inner, rows, start)
        layers.append(layer)
        rows = torch.cat([rows, new])
    return rows @ n, IdealLayout(len(moved), len(fixed), tuple(layers))


def _invariant_complement(derived: Tensor, acts: Tensor) -> Tensor:
    """The kernel of a projection onto the derived algebra that commutes with the maps ``acts [r, d, d]``."""
    d, q = acts.shape[-1], len(derived)
    if not q:
        return torch.eye(d, dtype=torch.float64)
    inside = REALS.coordinates(torch.einsum("rab,qb->rqa", acts, derived), derived).mT  # maps of the derived algebra
    unit_d, unit_q = torch.eye(d, dtype=torch.float64), torch.eye(q, dtype=torch.float64)
    # X [q, d]: X derived^T = 1, inside X = X act
    first = torch.einsum("xa,yb->xyab", unit_q, derived).reshape(q * q, q * d)
    commute = torch.einsum("rxa,by->rxyab", inside, unit_d) - torch.einsum("xa,rby->rxyab", unit_q, acts)
    system = torch.cat([first, commute.reshape(-1, q * d)])
    right = torch.cat([unit_q.reshape(-1), torch.zeros(len(system) - q * q, dtype=torch.float64)])
    solution = torch.linalg.pinv(system, rtol=1e-10) @ right
    if float((system @ solution - right).abs().max()) > 1e-8:
        raise AlgebraError("expected an invariant complement of [n, n] in n, found none: rank decisions failed")
    return REALS.null_space(solution.reshape(q, d))


def _bracket_layer(inner: LieAlgebra, rows: Tensor, start: int) -> tuple[Layer, Tensor]:
    """Brackets of the first ``start`` rows with all rows that enlarge the span, scaled to a largest entry of one."""
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
            if float(rest.norm()) > _MIN_INDEPENDENT_PART:
                largest = float(bracket[bracket.abs().argmax()])
                left.append(i)
                right.append(j)
                length.append(largest)
                new.append(bracket / largest)
                frame = torch.cat([frame, (rest / rest.norm()).unsqueeze(0)])
    if not new:
        raise AlgebraError("expected the ideal to be generated by a complement of [n, n]: rank decisions failed")
    return Layer(tuple(left), tuple(right), tuple(length)), torch.stack(new)


def _block_representation(
    semisimple: LieAlgebra,
    on_ideal: Tensor,
    representations: Representations,
    adapted: AdaptedAlgebra,
    covers: Sequence[Tensor],
) -> Tensor:
    """Matrices of the semisimple part ``[r, m, m]``: a block on V, then blocks for the simple ideals in its kernel.

    Further blocks act on homogeneous coordinates of points, or on the ideals themselves; blocks of covers are last.
    """
    r, m = semisimple.dim, on_ideal.shape[-1]
    if r == 3 and m == 2 and covers:
        return on_ideal

    def kernel_of(matrices: Tensor) -> Tensor:
        return REALS.null_space(matrices.reshape(r, -1).T) if matrices.numel() else torch.eye(r, dtype=torch.float64)

    # coordinates of the covers, and of the ideal orthogonal to them
    planes = [plane_representation(subalgebra(semisimple, ideal)) for ideal in covers]
    beside = REALS.null_space(torch.cat(list(covers)) @ semisimple.killing_form) if covers else None
    total = on_ideal
    if beside is not None:
        back = torch.linalg.inv(torch.cat([*covers, beside]))
        planes = [torch.einsum("ri,iab->rab", back[:, 3 * i : 3 * i + 3], plane) for i, plane in enumerate(planes)]
        whole = torch.zeros(r, 0, 0, dtype=torch.float64)
        for plane in planes:
            whole = _blocks(whole, plane)
        missed = REALS.null_space(_blocks(on_ideal, whole).reshape(r, -1).T)
        if len(missed):
            images = real_structure(semisimple).brackets(torch.eye(r, dtype=torch.float64), missed)
            total = _blocks(total, REALS.coordinates(images, missed).transpose(1, 2))
        return _blocks(total, whole)
    if len(kernel_of(total)):
        for base in representations.bases:
            block = torch.einsum("ri,iab->rab", adapted.levi.semisimple, base)
            if len(kernel_of(block)) < r:
                total = _blocks(total, block)
    if representations.linear is not None and len(kernel_of(total)):
        total = _blocks(total, _moved_block(representations.linear)[0])
    missed = kernel_of(total)
    return _blocks(total, _own_representation(semisimple, missed)) if len(missed) else total


def _plane(semisimple: LieAlgebra, matrices: Tensor, derivations: Tensor) -> Tensor:
    """The 2 x 2 matrices of SL(2, R), if the given ones are polynomials of them, else the given ones."""
    if matrices.shape[-1] == 2:
        return matrices
    plane = plane_representation(semisimple)
    small = ReductiveGroup(semisimple, plane, 0)
    return plane if SemisimpleMap(small, derivations).exists else matrices


def _own_representation(semisimple: LieAlgebra, ideal: Tensor) -> Tensor:
    """Matrices ``[r, m, m]`` of one semisimple ideal: n x n for sl(n, R), else the adjoint ones."""
    unit = torch.eye(semisimple.dim, dtype=torch.float64)
    if len(ideal) >= _MIN_DIM_OF_STANDARD:
        rest = REALS.null_space(ideal @ semisimple.killing_form)
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
    images = real_structure(semisimple).brackets(unit, ideal)  # [r, j, r]
    return REALS.coordinates(images, ideal).transpose(1, 2)


def _blocks(a: Tensor, b: Tensor) -> Tensor:
    m, size = a.shape[-1], a.shape[-1] + b.shape[-1]
    matrices = a.new_zeros(len(a), size, size)
    matrices[:, :m, :m], matrices[:, m:, m:] = a, b
    return matrices


def _moved_block(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """The block of matrices ``[r, k, k]`` on the span of their images, and the frame (images, invariants)."""
    k = matrices.shape[-1]
    moved = REALS.row_space(matrices.transpose(0, 1).reshape(k, -1).T)
    invariant = REALS.null_space(matrices.reshape(-1, k))
    frame = torch.cat([moved, invariant]).T
    if frame.shape != (k, k):
        raise AlgebraError(
            "expected the semisimple part to act semisimply in the representation, got images and invariants of "
            f"dimensions {len(moved)} and {len(invariant)} in {k}"
        )
    inner = torch.linalg.inv(frame) @ matrices @ frame
    size = len(moved)
    block = inner[:, :size, :size]
    return torch.where(block.abs() < 1e-14, 0.0, block), frame
