"""Which coordinates of fields move in closed form, which by quadrature, and over which others."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trivgeo.groups._matrices import matvec
from trivgeo.groups.generated.homogeneous import ProjectiveBase, fit_conformal, fit_projective
from trivgeo.groups.generated.polynomial_representation import (
    Multiplier,
    PolynomialRepresentation,
    find_polynomial_representation,
)
from trivgeo.groups.generated.triangular_flow import AffineBlock, block_coefficients
from trivgeo.groups.generated.vector_fields import VectorFields, values_and_jacobians

__all__ = ["SolvedCoordinates", "independent_prefixes", "solve_coordinates"]

_FIT_ERROR = 1e-9  # of the affine form of a field, relative to the size of the field
_VANISHING = 1e-12  # derivatives and coefficients that count as zero, relative to the largest
_MAX_DIM_OF_SUBSETS = 8  # coordinates of which all subsets are tried as bases; of more, leading ones only


@dataclass(frozen=True)
class SolvedCoordinates:
    """The coordinates that need no integrator.

    Attributes:
        bases: coordinates that move projectively or conformally by themselves.
        blocks: coordinates that move affinely over others, and have quadratures.
        fibres: coordinates over bases that whole elements move in closed form.
    """

    bases: tuple[ProjectiveBase, ...]
    blocks: tuple[AffineBlock, ...]
    fibres: tuple[PolynomialRepresentation, ...]

    @property
    def base_coordinates(self) -> tuple[int, ...]:
        """Positions of the coordinates of the bases, base by base."""
        return tuple(c for base in self.bases for c in base.coordinates)

    @property
    def count(self) -> int:
        """The number of coordinates of bases and blocks."""
        return len(self.base_coordinates) + sum(len(block.coordinates) for block in self.blocks)

    @property
    def closed_count(self) -> int:
        """The number of coordinates of bases and fibres."""
        return len(self.base_coordinates) + sum(len(fibre.coordinates) for fibre in self.fibres)


def solve_coordinates(fields: VectorFields, points: Tensor, levi: Tensor) -> SolvedCoordinates:
    """Bases, blocks and fibres of as many coordinates as possible.

    Args:
        fields: the fields.
        points: sample points, ``[p, m]``.
        levi: rows ``[r, n]`` that span a Levi factor of the algebra of the fields.
    """
    values, jacobians = values_and_jacobians(fields, points)
    needs = _dependencies(jacobians)
    bases = _bases(points, values, needs)
    based = {c for base in bases for c in base.coordinates}
    rest = [group for group in _strong_components(needs) if not based & set(group)]
    blocks = _blocks(fields, points, values, needs, rest, based)
    multipliers = [_multiplier(i, base, fields.dim) for i, base in enumerate(bases)]
    fibres = []
    for group in sorted(rest, key=lambda group: len(needs[group[0]])):
        needed = needs[group[0]]
        over = [multiplier for multiplier in multipliers if set(multiplier.coordinates) <= needed]
        fibre = find_polynomial_representation(points, values, sorted(needed), group, over, levi)
        if fibre is not None:
            fibres.append(fibre)
    return SolvedCoordinates(tuple(bases), tuple(blocks), tuple(fibres))


def independent_prefixes(fields: VectorFields, points: Tensor) -> tuple[int, ...]:
    """Return the numbers of leading coordinates, less than all, whose motion depends on them alone.

    Args:
        fields: the vector fields.
        points: sample points ``[p, m]``.
    """
    _, jacobians = values_and_jacobians(fields, points)
    dependence = jacobians.abs().amax((0, 1))  # [component, coordinate]
    size = max(1.0, float(dependence.max()))
    return tuple(b for b in range(1, fields.dim) if float(dependence[:b, b:].max()) < _VANISHING * size)


def _bases(points: Tensor, values: Tensor, needs: Sequence[frozenset[int]]) -> list[ProjectiveBase]:
    """Disjoint sets of coordinates that move by themselves and have closed forms, the largest first."""
    bases: list[ProjectiveBase] = []
    solved: set[int] = set()
    for candidate in _closed_sets(needs):
        if solved & set(candidate):
            continue
        here = points[:, candidate], values[..., candidate]
        fit = fit_projective(*here) or fit_conformal(*here)
        if fit is not None:
            bases.append(ProjectiveBase(candidate, *fit))
            solved |= set(candidate)
    return bases


def _blocks(
    fields: VectorFields,
    points: Tensor,
    values: Tensor,
    needs: Sequence[frozenset[int]],
    groups: Sequence[tuple[int, ...]],
    based: set[int],
) -> list[AffineBlock]:
    """Those groups of coordinates that move affinely over bases and blocks before them."""
    blocks: list[AffineBlock] = []
    solved = set(based)
    progress = True
    while progress:
        progress = False
        for group in groups:
            if set(group) <= solved or not needs[group[0]] <= solved | set(group):
                continue
            block = _affine_block(fields, points, values, group)
            if block is not None:
                blocks.append(block)
                solved |= set(group)
                progress = True
    return blocks


def _multiplier(index: int, base: ProjectiveBase, dim: int) -> Multiplier:
    """How fields move the logarithm of the denominator of a base, as polynomials of all ``dim`` coordinates."""

    def polynomial(row: list[float]) -> dict[tuple[int, ...], float]:
        terms = {(0,) * dim: row[-1]}
        for c, value in zip(base.coordinates, row, strict=False):
            terms[tuple(int(d == c) for d in range(dim))] = value
        if form is not None:
            for (a, b), q in np.ndenumerate(form.numpy()):
                place = [0] * dim
                place[base.coordinates[a]] += 1
                place[base.coordinates[b]] += 1
                terms[tuple(place)] = terms.get(tuple(place), 0.0) + row[-2] * float(q)
        return {e: value for e, value in terms.items() if value}

    form = None if base.lift.form is None else base.lift.form.value
    rows = [polynomial(row) for row in base.matrices[:, -1].tolist()]
    return Multiplier(index, rows, base.matrices, base.coordinates, form, not base.affine)


def _dependencies(jacobians: Tensor) -> list[frozenset[int]]:
    """The coordinates on which the motion of each depends, directly or not, itself included."""
    size = jacobians.abs().amax((0, 1))  # [component, coordinate]
    m = len(size)
    bound = _VANISHING * max(1.0, float(size.max()))
    needs = [{c} | {d for d in range(m) if float(size[c, d]) > bound} for c in range(m)]
    for _ in range(m):
        needs = [set().union(*(needs[d] for d in n)) for n in needs]
    return [frozenset(n) for n in needs]


def _closed_sets(needs: Sequence[frozenset[int]]) -> Iterable[tuple[int, ...]]:
    """Sets of coordinates that move independently of others, the largest first, leading coordinates before others."""
    m = len(needs)
    if m > _MAX_DIM_OF_SUBSETS:
        subsets: Iterable[tuple[int, ...]] = (tuple(range(k)) for k in range(m, 0, -1))
    else:
        subsets = (s for k in range(m, 0, -1) for s in itertools.combinations(range(m), k))
    return (s for s in subsets if all(needs[c] <= set(s) for c in s))


def _strong_components(needs: Sequence[frozenset[int]]) -> list[tuple[int, ...]]:
    """Strongly connected components of the dependencies, by position."""
    return sorted({tuple(d for d in sorted(needs[c]) if c in needs[d]) for c in range(len(needs))})


def _affine_block(fields: VectorFields, points: Tensor, values: Tensor, group: tuple[int, ...]) -> AffineBlock | None:
    """The block of the coordinates of a group, ``None`` if fields are not affine in them with commuting matrices."""
    f = len(group)
    unit = torch.eye(len(fields), dtype=points.dtype)
    coordinates = [x.unsqueeze(-1) for x in points.unbind(-1)]
    entries, shift = block_coefficients(fields, AffineBlock(group, True, True), unit.unbind(-1), coordinates)
    a, b = torch.stack(entries, -1).unflatten(-1, (f, f)), torch.stack(shift, -1)  # [p, n, f, f], [p, n, f]
    if not (bool(torch.isfinite(a).all()) and bool(torch.isfinite(b).all())):
        return None
    goal = values[..., list(group)]
    size = goal.abs().amax((0, 2)).clamp(min=1e-300)  # of each field
    missed = (matvec(a, points[:, None, list(group)]) + b - goal).abs().amax((0, 2))
    if bool((missed > _FIT_ERROR * size).any()):
        return None
    flat = a.reshape(-1, f, f)
    _, singular, span = torch.linalg.svd(flat.flatten(1), full_matrices=False)
    span = span[singular > _FIT_ERROR * singular[:1]].unflatten(-1, flat.shape[-2:])
    products = span.unsqueeze(0) @ span.unsqueeze(1)
    if span.numel() and float((products - products.transpose(0, 1)).abs().max()) > _FIT_ERROR:
        return None
    largest = size.max()
    return AffineBlock(group, bool(a.abs().max() > _VANISHING * largest), bool(b.abs().max() > _VANISHING * largest))
