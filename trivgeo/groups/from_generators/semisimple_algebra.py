"""Semisimple algebras: their simple ideals, the loops of their groups, and the smallest matrices of sl(n, R)."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from trivgeo._random import normal, uniform
from trivgeo.errors import AlgebraError
from trivgeo.groups.algebra import LieAlgebra, subalgebra
from trivgeo.groups.ground_fields import REALS
from trivgeo.groups.structure import real_structure

_MAX_DESCENT_STEPS = 2000  # steps of the descent to a minimal basis
_MIN_GRADIENT = 1e-12  # gradient over the size of the constants, at which the descent has converged
_MIN_EIGENVALUE_GAP = 1e-6  # gap between different eigenvalues, relative to the largest
_NUM_TRIALS = 16  # random elements, of which the one with the widest gaps between roots is taken
_MIN_ROOT_GAP = 1e-6  # gap between different roots, relative to the largest, and length of a nonzero bracket
_MAX_BRACKET_DEFECT = 1e-12  # error of the brackets of matrices that are a representation


def simple_ideals(algebra: LieAlgebra) -> list[Tensor]:
    """Bases of the simple ideals, as rows ``[d, n]``.

    They are orthonormal in a basis of the algebra in which a Cartan involution is orthogonal.
    """
    frame = _minimal_frame(algebra)
    c = _in_frame(algebra, frame)
    n = algebra.dim
    unit = torch.eye(n, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    # two elements in general position generate the algebra
    some = normal((2, n), unit, generator)
    ad = torch.einsum("ai,ijk->akj", some, c)
    # maps that commute with ad are a real or complex number on each simple ideal
    system = torch.einsum("iab,dc->iadbc", ad, unit) - torch.einsum("ab,icd->iadbc", unit, ad)
    maps = REALS.null_space(system.reshape(-1, n * n)).reshape(-1, n, n)
    maps = maps + maps.mT
    weights = uniform((len(maps),), unit, generator)
    values, vectors = torch.linalg.eigh(torch.einsum("i,iab->ab", weights, maps))
    gaps = (values.diff() > _MIN_EIGENVALUE_GAP * values.abs().max()).nonzero().flatten().tolist()
    cuts = [0, *(gap + 1 for gap in gaps), n]
    return [vectors.T[a:b] @ frame for a, b in itertools.pairwise(cuts)]


def loop_directions(algebra: LieAlgebra, ideal: Tensor) -> Tensor:
    """Vectors of closed one-parameter groups that make up all loops of the group of a simple ideal.

    They are the centre of a maximal compact subalgebra, and coroots of the rest of it.

    Args:
        ideal: a basis of the ideal from `simple_ideals`, ``[d, n]``.
    """
    inner = subalgebra(algebra, ideal)
    values, vectors = torch.linalg.eigh(inner.killing_form)
    compact = vectors.T[values < 0]
    if not len(compact):
        return ideal[:0]
    k = subalgebra(inner, compact)
    directions = [real_structure(k).centre() @ compact]
    whole = torch.eye(k.dim, dtype=torch.float64)
    derived = real_structure(k).bracket_span(whole, whole)
    if len(derived):
        weights = uniform((len(derived),), whole, torch.Generator().manual_seed(0))
        turning, roots = torch.linalg.eig(k.ad(weights @ derived))
        roots = roots.T[turning.imag > _MIN_EIGENVALUE_GAP * turning.abs().max()]
        coroots = k.bracket(roots.real.contiguous(), roots.imag.contiguous())
        directions.append(coroots @ compact)
    return torch.cat(directions) @ ideal


def _minimal_frame(algebra: LieAlgebra) -> Tensor:
    """Rows of the basis of volume one in which the structure constants are smallest."""
    n = algebra.dim
    frame = torch.eye(n, dtype=torch.float64)
    for _ in range(_MAX_DESCENT_STEPS):
        c = _in_frame(algebra, frame)
        slope = 2.0 * torch.einsum("ajk,bjk->ab", c, c) - torch.einsum("ija,ijb->ab", c, c)
        slope = slope - slope.diagonal().mean() * torch.eye(n, dtype=torch.float64)
        size = float(c.square().sum())
        if float(slope.norm()) < _MIN_GRADIENT * size:
            return frame
        frame = torch.linalg.matrix_exp(-n / (8.0 * size) * slope) @ frame
    raise AlgebraError(
        "expected a Cartan involution of the semisimple part, found none: pass simpler combinations of the generators"
    )


def _in_frame(algebra: LieAlgebra, frame: Tensor) -> Tensor:
    return torch.einsum("ai,bj,ijk,kc->abc", frame, frame, algebra.structure_constants, torch.linalg.inv(frame))


def is_split_form(algebra: LieAlgebra) -> bool:
    """Return True if a semisimple algebra is sl(2, R): of dimension three, and not so(3)."""
    return algebra.dim == 3 and bool((torch.linalg.eigvalsh(algebra.killing_form) > 0).any())


def plane_representation(algebra: LieAlgebra) -> Tensor:
    """Matrices ``[3, 2, 2]`` of the basis of an algebra sl(2, R), by an orthonormal basis of its Killing form.

    Raises:
        AlgebraError: the algebra is not sl(2, R).
    """
    if not is_split_form(algebra):
        raise AlgebraError(f"expected sl(2, R), got {algebra!r}")
    values, vectors = torch.linalg.eigh(algebra.killing_form)  # the negative one first
    rows = vectors.T * (values.abs() / 8.0).rsqrt().unsqueeze(-1)
    compact, first, second = rows
    # [p1, p2] = -2 k, for the matrices diag(1, -1), [[0, 1], [1, 0]] and k = [[0, -1], [1, 0]]
    bracket = algebra.bracket(first, second)
    if float(bracket @ compact) > 0:
        rows = torch.stack([-compact, first, second])
    standard = torch.tensor([[0.0, -1.0, 1.0, 0.0], [1.0, 0.0, 0.0, -1.0], [0.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    return (torch.linalg.inv(rows) @ standard).unflatten(-1, (2, 2))


def standard_representation(algebra: LieAlgebra) -> Tensor | None:
    """Matrices ``[dim, n, n]`` of the basis of a simple algebra, if it is sl(n, R) for some n > 2.

    Root vectors of simple roots are matrix units next to the diagonal, and generate the others.

    Args:
        algebra: the algebra, in a basis in which a Cartan involution is orthogonal, see `simple_ideals`.
    """
    dim = algebra.dim
    n = math.isqrt(dim + 1)
    values, vectors = torch.linalg.eigh(algebra.killing_form)
    # no other simple algebra of this dimension has a positive part of the Killing form of this dimension
    if n < 3 or n * n != dim + 1 or int((values > 0).sum()) != n * (n + 1) // 2 - 1:
        return None
    found = _simple_roots(algebra, vectors.T[values > 0], n)
    if found is None:
        return None
    up, down = found
    elements: list[Tensor] = []
    matrices: list[Tensor] = []
    units = torch.eye(n, dtype=torch.float64)
    for i in range(n - 1):
        e, a = up[i], torch.outer(units[i], units[i + 1])
        f, b = down[i], torch.outer(units[i + 1], units[i])
        elements.append(algebra.bracket(e, f))
        matrices.append(a @ b - b @ a)
        for j in range(i, n - 1):
            if j > i:
                c = torch.outer(units[j], units[j + 1])
                e, a = algebra.bracket(e, up[j]), a @ c - c @ a
                f, b = algebra.bracket(down[j], f), c.T @ b - b @ c.T
            elements += [e, f]
            matrices += [a, b]
    result = torch.einsum("ij,jab->iab", torch.linalg.inv(torch.stack(elements)), torch.stack(matrices))
    return _polished(algebra, result)


def _simple_roots(algebra: LieAlgebra, symmetric: Tensor, n: int) -> tuple[list[Tensor], list[Tensor]] | None:
    """Root vectors e of simple roots in the order of their chain, and f of their negatives, ``[[e, f], e] = 2 e``."""
    generator = torch.Generator().manual_seed(0)
    trials = []
    for x in normal((_NUM_TRIALS, len(symmetric)), symmetric, generator) @ symmetric:
        ad = algebra.ad(x)
        values, vectors = torch.linalg.eigh(0.5 * (ad + ad.mT))
        positive = values[-n * (n - 1) // 2 :]
        gaps = torch.cat([positive[:1], positive.diff()])
        trials.append((float(gaps.min() / positive.max()), values, vectors))
    _, values, vectors = max(trials, key=lambda trial: trial[0])
    positive, count = values[-n * (n - 1) // 2 :], len(values)
    sums = positive.unsqueeze(0) + positive.unsqueeze(1)
    simple = [
        i for i, value in enumerate(positive) if bool(((sums - value).abs() > _MIN_ROOT_GAP * positive.max()).all())
    ]
    if len(simple) != n - 1:
        return None
    places = [count - len(positive) + i for i in simple]
    up, down = [], []
    for place in places:
        e, f = vectors[:, place], vectors[:, count - 1 - place]
        length = algebra.bracket(algebra.bracket(e, f), e) @ e
        up.append(e)
        down.append(f * (2.0 / length))
    linked = [[j for j, b in enumerate(up) if float(algebra.bracket(a, b).norm()) > _MIN_ROOT_GAP] for a in up]
    order = [next((i for i, near in enumerate(linked) if len(near) == 1), 0)]
    while len(order) < n - 1:
        following = [j for j in linked[order[-1]] if j not in order]
        if len(following) != 1:
            return None
        order += following
    return [up[i] for i in order], [down[i] for i in order]


def _polished(algebra: LieAlgebra, matrices: Tensor) -> Tensor | None:
    """The representation nearest to matrices, by Newton's method; ``None`` if there is none near."""
    c, (r, n, _) = algebra.structure_constants, matrices.shape
    unit = torch.eye(n, dtype=torch.float64)
    size = float(matrices.abs().max())
    for _ in range(2):
        defect = matrices.unsqueeze(1) @ matrices - matrices @ matrices.unsqueeze(1)
        defect = defect - torch.einsum("ijk,kab->ijab", c, matrices)
        # the commutator [dM, M_j], entry ab by entry ef of dM
        change = torch.einsum("ae,jfb->jabef", unit, matrices) - torch.einsum("jae,fb->jabef", matrices, unit)
        slope = torch.zeros(r, r, n, n, r, n, n, dtype=torch.float64)
        for k in range(r):
            slope[k, :, :, :, k] += change
            slope[:, k, :, :, k] -= change
        slope = slope - torch.einsum("ijk,ae,bf->ijabkef", c, unit, unit)
        # the shortest step: conjugations change no defect
        system = slope.reshape(-1, r * n * n), defect.reshape(-1, 1)
        step = torch.linalg.lstsq(*system, rcond=_MIN_ROOT_GAP, driver="gelsd").solution
        matrices = matrices - step.reshape(r, n, n)
    defect = matrices.unsqueeze(1) @ matrices - matrices @ matrices.unsqueeze(1)
    defect = defect - torch.einsum("ijk,kab->ijab", c, matrices)
    return matrices if float(defect.abs().max()) < _MAX_BRACKET_DEFECT * (1.0 + size * size) else None
