"""The n x n matrices of an algebra that is sl(n, R), from its structure constants."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trivgeo._random import normal
from trivgeo.groups.algebra import LieAlgebra

__all__ = ["standard_representation"]

_NUM_TRIALS = 16  # random elements, of which the one with the widest gaps between roots is taken
_GAP = 1e-6  # between different roots, relative to the largest, and lengths of brackets that count as zero
_DEFECT = 1e-12  # of the brackets of matrices that are a representation


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
    simple = [i for i, value in enumerate(positive) if bool(((sums - value).abs() > _GAP * positive.max()).all())]
    if len(simple) != n - 1:
        return None
    places = [count - len(positive) + i for i in simple]
    up, down = [], []
    for place in places:
        e, f = vectors[:, place], vectors[:, count - 1 - place]
        length = algebra.bracket(algebra.bracket(e, f), e) @ e
        up.append(e)
        down.append(f * (2.0 / length))
    linked = [[j for j, b in enumerate(up) if float(algebra.bracket(a, b).norm()) > _GAP] for a in up]
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
        step = torch.linalg.lstsq(*system, rcond=_GAP, driver="gelsd").solution
        matrices = matrices - step.reshape(r, n, n)
    defect = matrices.unsqueeze(1) @ matrices - matrices @ matrices.unsqueeze(1)
    defect = defect - torch.einsum("ijk,kab->ijab", c, matrices)
    return matrices if float(defect.abs().max()) < _DEFECT * (1.0 + size * size) else None
