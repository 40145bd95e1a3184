r"""Compact directions of a semisimple algebra: where the loops of its groups are.

In a basis that makes the structure constants as small as possible, the Killing form is diagonal up to a factor (J.
Lauret, Differ. Geom. Appl. 20 (2004)): it is negative on a maximal compact subalgebra, into which every loop of a group
can be deformed.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from trivgeo._random import normal, uniform
from trivgeo.errors import AlgebraError
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.structure import bracket_span, centre, null_space, subalgebra

__all__ = ["loop_directions", "simple_ideals"]

_MAX_STEPS = 2000  # of the descent to a minimal basis
_GRADIENT = 1e-12  # relative to the size of the constants, at which the descent has converged
_GAP = 1e-6  # between eigenvalues that are different, relative to the largest


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
    maps = null_space(system.reshape(-1, n * n)).reshape(-1, n, n)
    maps = maps + maps.mT
    weights = uniform((len(maps),), unit, generator)
    values, vectors = torch.linalg.eigh(torch.einsum("i,iab->ab", weights, maps))
    gaps = (values.diff() > _GAP * values.abs().max()).nonzero().flatten().tolist()
    cuts = [0, *(gap + 1 for gap in gaps), n]
    return [vectors.T[a:b] @ frame for a, b in itertools.pairwise(cuts)]


def loop_directions(algebra: LieAlgebra, ideal: Tensor) -> Tensor:
    """Vectors whose one-parameter groups are closed, and make up all loops of the group of a simple ideal.

    The centre of a maximal compact subalgebra, and coroots of the rest of it.

    Args:
        algebra: the semisimple algebra.
        ideal: a basis of the ideal from `simple_ideals`, ``[d, n]``.
    """
    inner = subalgebra(algebra, ideal)
    values, vectors = torch.linalg.eigh(inner.killing_form)
    compact = vectors.T[values < 0]
    if not len(compact):
        return ideal[:0]
    k = subalgebra(inner, compact)
    directions = [centre(k) @ compact]
    whole = torch.eye(k.dim, dtype=torch.float64)
    derived = bracket_span(k, whole, whole)
    if len(derived):
        weights = uniform((len(derived),), whole, torch.Generator().manual_seed(0))
        turning, roots = torch.linalg.eig(k.ad(weights @ derived))
        roots = roots.T[turning.imag > _GAP * turning.abs().max()]
        coroots = k.bracket(roots.real.contiguous(), roots.imag.contiguous())
        directions.append(coroots @ compact)
    return torch.cat(directions) @ ideal


def _minimal_frame(algebra: LieAlgebra) -> Tensor:
    """Rows of the basis of volume one in which the structure constants are smallest."""
    n = algebra.dim
    frame = torch.eye(n, dtype=torch.float64)
    for _ in range(_MAX_STEPS):
        c = _in_frame(algebra, frame)
        slope = 2.0 * torch.einsum("ajk,bjk->ab", c, c) - torch.einsum("ija,ijb->ab", c, c)
        slope = slope - slope.diagonal().mean() * torch.eye(n, dtype=torch.float64)
        size = float(c.square().sum())
        if float(slope.norm()) < _GRADIENT * size:
            return frame
        frame = torch.linalg.matrix_exp(-n / (8.0 * size) * slope) @ frame
    raise AlgebraError(
        "expected a Cartan involution of the semisimple part, found none: pass simpler combinations of the generators"
    )


def _in_frame(algebra: LieAlgebra, frame: Tensor) -> Tensor:
    return torch.einsum("ai,bj,ijk,kc->abc", frame, frame, algebra.structure_constants, torch.linalg.inv(frame))
