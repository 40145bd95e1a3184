r"""Flows that need no integrator: projective and conformal coordinates in closed form, affine ones by quadrature.

The flow of a field for unit time is solved from the bottom up. Coordinates that move projectively or conformally by
themselves have a closed form: they move linearly as (x, 1), or as points (x, x.Qx, 1) of the light cone. Coordinates u
that the field moves by :math:`u' = A(s) u + b(s)`, with commuting matrices A and both functions known along the flow of
the coordinates below, are

.. math:: u(1) = e^{I(1)} \Bigl(u(0) + \int_0^1 e^{-I(s)} b(s)\, ds\Bigr), \quad I(s) = \int_0^s A,

with both integrals by one Gauss-Legendre rule. This is how every symmetry of a linear equation moves u; where the
fields are polynomials, whole elements mostly do so in closed form, see `PolynomialRepresentation`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.groups._matrices import kernel, matvec
from trivgeo.groups.generated.polynomial_representation import (
    Multiplier,
    PolynomialRepresentation,
    find_polynomial_representation,
)
from trivgeo.groups.generated.sparse_lstsq import least_squares, snap
from trivgeo.groups.generated.vector_fields import VectorFields, values_and_jacobians

__all__ = [
    "AffineBlock",
    "FlowResult",
    "HomogeneousLift",
    "ProjectiveBase",
    "TriangularFlow",
    "find_triangular_flow",
    "fit_conformal",
    "fit_projective",
]

_AFFINE = 1e-9  # what the affine form of a field may miss, relative to the size of the field
_VANISHES, _ROUNDING, _EPS = 1e-12, 1e-13, 1e-15
_DEGENERATE = 1e8  # condition of a quadratic form
_LARGEST_SEARCH = 8  # with more coordinates, only leading ones are tried as a base


class HomogeneousLift:
    """From coordinates to homogeneous ones: (x, 1), or (x, x.Qx, 1) on the light cone of a quadratic form Q.

    Args:
        form: Q, ``[k, k]``, or ``None``.
    """

    def __init__(self, form: Tensor | None = None) -> None:
        self.form = None if form is None else Constant(form)

    def __call__(self, x: Tensor) -> Tensor:
        """``[*batch, k] -> [*batch, k]`` or ``[*batch, k + 1]``, without the one."""
        if self.form is None:
            return x
        return torch.cat([x, (x @ self.form.like(x) * x).sum(-1, keepdim=True)], -1)


@dataclass(frozen=True)
class ProjectiveBase:
    """Coordinates that move projectively or conformally by themselves.

    Attributes:
        coordinates: their positions.
        matrices: trace-free matrices of the fields on homogeneous coordinates, ``[dim, K, K]``.
        affine: whether the last row of every matrix of the group is constant.
        lift: to homogeneous coordinates.
    """

    coordinates: tuple[int, ...]
    matrices: Tensor
    affine: bool
    lift: HomogeneousLift


@dataclass(frozen=True)
class AffineBlock:
    """Coordinates u with u' = A u + b over coordinates below, all A commuting.

    Attributes:
        coordinates: their positions.
        linear: whether A is not zero.
        shifted: whether b is not zero.
    """

    coordinates: tuple[int, ...]
    linear: bool
    shifted: bool


@dataclass(frozen=True)
class FlowResult:
    """Points moved along a flow.

    Attributes:
        end: the points at the end, ``[*batch, m]``; coordinates that were not solved are left as they were.
        alive: where the flow exists, ``[*batch]``.
        error: the estimated error of a coordinate relative to one plus its size, ``[*batch]``.
    """

    end: Tensor
    alive: Tensor
    error: Tensor


class TriangularFlow:
    """The stages of a solution: bases first, then blocks, each over the ones before.

    Args:
        fields: the fields.
        bases: coordinates with closed forms.
        blocks: coordinates by quadrature.
        nodes: the number of Gauss-Legendre nodes.
        modules: those coordinates of blocks that whole elements move in closed form.
    """

    def __init__(
        self,
        fields: VectorFields,
        bases: Sequence[ProjectiveBase],
        blocks: Sequence[AffineBlock],
        nodes: int,
        modules: Sequence[PolynomialRepresentation] = (),
    ) -> None:
        self.bases, self.blocks, self.modules = tuple(bases), tuple(blocks), tuple(modules)
        self._fields = fields
        self._matrices = tuple(Constant(base.matrices) for base in bases)
        self._rule = _Rule(nodes)

    def kinds(self) -> list[str]:
        """For every coordinate how it is solved: ``"closed form"``, ``"quadrature"`` or ``"integrated"``."""
        kinds = ["integrated"] * self._fields.dim
        for kind, stages in (("closed form", self.bases), ("quadrature", self.blocks)):
            for c in _coordinates(stages):
                kinds[c] = kind
        for module in self.modules:
            for c in module.coordinates:
                kinds[c] = "closed form"
        return kinds

    def solved(self) -> list[int]:
        """Positions of the coordinates that some stage solves."""
        return sorted((*_coordinates(self.bases), *_coordinates(self.blocks)))

    def closed(self) -> tuple[int, ...]:
        """Positions of the coordinates of the bases."""
        return tuple(_coordinates(self.bases))

    @property
    def is_closed(self) -> bool:
        """Whether whole elements move all coordinates in closed form."""
        return len(self.closed()) + sum(len(module.coordinates) for module in self.modules) == self._fields.dim

    def flow(self, v: Tensor, x: Tensor, count: int) -> FlowResult:
        """The flow of a field for unit time, for the leading ``count`` coordinates.

        Args:
            v: the algebra vectors, ``[*batch, dim]``, unscaled.
            x: the points, ``[*batch, p, m]``.
            count: how many coordinates are wanted.
        """
        rule = self._rule
        alive = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
        error = x.new_zeros(x.shape[:-1])
        # every coordinate along the flow, [*batch, nodes + 1, p]: at the nodes, then at the end
        path = list(x.unsqueeze(-3).expand(*x.shape[:-2], rule.count + 1, -1, -1).unbind(-1))
        times = rule.times.like(x)
        for base, constant in zip(self.bases, self._matrices, strict=True):
            if base.coordinates[0] >= count:
                continue
            generator = torch.einsum("...i,iab->...ab", v, constant.like(v)).unsqueeze(-3)
            powers = kernel(generator.shape[-1]).exp(times[:, None, None] * generator)
            start = base.lift(x[..., list(base.coordinates)]).mT
            start = torch.cat([start, torch.ones_like(start[..., :1, :])], -2)
            moved = (powers.flatten(-3, -2) @ start).unflatten(-2, powers.shape[-3:-1])
            d = moved[..., -1, :]
            inside = (d > 0).all(-2)
            alive = alive & inside
            d = torch.where(inside.unsqueeze(-2), d, 1.0)
            for position, c in enumerate(base.coordinates):
                path[c] = moved[..., position, :] / d
        for block in self.blocks:
            if block.coordinates[0] < count:
                values, good, missed = self._follow(block, v, path)
                alive, error = alive & good, error + missed
                for c, whole in zip(block.coordinates, values, strict=True):
                    path[c] = whole
        return FlowResult(torch.stack([values[..., -1, :] for values in path], -1), alive, error)

    def _follow(self, block: AffineBlock, v: Tensor, path: Sequence[Tensor]) -> tuple[list[Tensor], Tensor, Tensor]:
        """A block along the path: its coordinates ``[*batch, nodes + 1, p]``, where they exist, and their error."""
        rule, f = self._rule, len(block.coordinates)
        below = [values[..., :-1, :] for values in path]
        start = torch.stack([path[c][..., :1, :] for c in block.coordinates], -1)
        a, b = block_coefficients(self._fields, block, [w[..., None, None] for w in v.unbind(-1)], below)
        good = torch.stack([torch.isfinite(entry).all(-2) for entry in (*a, *b)]).all(0)
        error = torch.zeros_like(start[..., 0, :, 0])

        def integrate(entries: Sequence[Tensor]) -> Tensor:
            nonlocal error
            results = []
            for entry in entries:
                integral, missed = rule.integrate(torch.where(good.unsqueeze(-2), entry, 0.0))
                results.append(integral)
                error = error + missed
            return torch.stack(results, -1)

        if not block.linear:
            return list((start + integrate(b)).unbind(-1)), good, error
        integral = integrate(a).unflatten(-1, (f, f))
        # an exponential that overflows is no value, and would spoil the gradients of others
        bound = 0.9 * math.log(torch.finfo(integral.dtype).max)
        good = good & (integral.detach().abs().sum(-1) < bound).all(-1).all(-2)
        integral = torch.where(good[..., None, :, None, None], integral, 0.0)
        grow = kernel(f).exp(integral)
        if block.shifted:
            back = matvec(kernel(f).exp(-integral[..., :-1, :, :, :]), torch.stack(b, -1))
            start = start + integrate(back.unbind(-1))
        return list(matvec(grow, start).unbind(-1)), good, error


def _coordinates(stages: Sequence[ProjectiveBase] | Sequence[AffineBlock]) -> list[int]:
    return [c for stage in stages for c in stage.coordinates]


def block_coefficients(
    fields: VectorFields, block: AffineBlock, v: Sequence[Tensor], x: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The entries of A row by row, and those of b, each as far as it is not zero, for coordinates that broadcast.

    From the field at u = 0 and at unit vectors u.
    """
    index = block.coordinates

    def at(one: int | None) -> list[Tensor]:
        point = list(x)
        for c in index:
            point[c] = torch.ones_like(point[c]) if c == one else torch.zeros_like(point[c])
        return fields.components(v, point, index)

    b = at(None) if block.shifted else []
    if not block.linear:
        return [], b
    columns = [at(c) for c in index]
    if b:
        columns = [[value - shift for value, shift in zip(column, b, strict=True)] for column in columns]
    return [column[row] for row in range(len(index)) for column in columns], b


class _Rule:
    """The Gauss-Legendre rule on [0, 1], with the integrals from zero to every node.

    In a variable that is slow at both ends: a flow that exists for unit time may have its pole just outside.
    """

    def __init__(self, count: int) -> None:
        legendre = np.polynomial.legendre
        z, w = legendre.leggauss(count)
        values = legendre.legvander(z, count)  # P_0 .. P_count at the nodes
        degrees = np.arange(count)
        analysis = (degrees + 0.5)[:, None] * w * values[:, :count].T  # coefficients of the interpolant
        lower = np.concatenate([-np.ones((count, 1)), values[:, : count - 1]], 1)  # with P_-1 = -1: from z = -1 on
        cumulated = 0.5 * ((values[:, 1:] - lower) / (2.0 * degrees + 1.0)) @ analysis
        self.count = count
        y = 0.5 * (z + 1.0)
        time, slope = y * y * (3.0 - 2.0 * y), 6.0 * y * (1.0 - y)
        self.times = Constant(torch.as_tensor(np.append(time, 1.0)))
        self._integrals = Constant(torch.as_tensor(np.concatenate([cumulated, 0.5 * w[None]]) * slope))
        self._analysis = Constant(torch.as_tensor(analysis * slope))

    def integrate(self, values: Tensor) -> tuple[Tensor, Tensor]:
        r"""Integrals from zero to every node and to one, of functions known at the nodes, and an error estimate.

        The last Legendre coefficients of the interpolant fall like :math:`\rho^{-n}` for an analytic function, and the
        error of the rule like :math:`\rho^{-2 n}`: their square, over the largest coefficient, estimates it.

        Args:
            values: ``[*batch, nodes, p]``.

        Returns:
            The integrals ``[*batch, nodes + 1, p]``, and the estimate ``[*batch, p]``.
        """
        integrals = self._integrals.like(values) @ values
        with torch.no_grad():
            coefficients = (self._analysis.like(values) @ values.detach()).abs()
            largest, last = coefficients.amax(-2), coefficients[..., -2:, :].amax(-2)
            error = torch.finfo(values.dtype).eps * largest + last.square() / torch.where(largest > 0, largest, 1.0)
        return integrals, error


# Finding the stages --------------------------------------------------------------------------------------------


def find_triangular_flow(fields: VectorFields, points: Tensor, nodes: int, levi: Tensor) -> TriangularFlow:
    """The stages that solve as many coordinates as possible.

    Args:
        fields: the fields.
        points: sample points, ``[p, m]``.
        nodes: see `TriangularFlow`.
        levi: a Levi factor of their algebra, rows ``[r, n]``.
    """
    values, jacobians = values_and_jacobians(fields, points)
    needs = _dependencies(jacobians)
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
    blocks: list[AffineBlock] = []
    rest = [group for group in _strong_components(needs) if not solved & set(group)]
    progress = True
    while progress:
        progress = False
        for group in rest:
            if set(group) <= solved or not needs[group[0]] <= solved | set(group):
                continue
            block = _affine_block(fields, points, values, group)
            if block is not None:
                blocks.append(block)
                solved |= set(group)
                progress = True
    lines = [_line(i, base, fields.dim) for i, base in enumerate(bases)]
    modules = []
    for group in sorted(rest, key=lambda group: len(needs[group[0]])):
        below = [line for line in lines if set(line.coordinates) <= needs[group[0]]]
        module = find_polynomial_representation(points, values, sorted(needs[group[0]]), group, below, levi)
        if module is not None:
            modules.append(module)
    return TriangularFlow(fields, bases, blocks, nodes, modules)


def _line(index: int, base: ProjectiveBase, dim: int) -> Multiplier:
    """A base as `find_polynomial_representation` wants it."""

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
    """For every coordinate those on which its motion depends, directly or not, itself included."""
    size = jacobians.abs().amax((0, 1))  # [component, coordinate]
    m = len(size)
    bound = _VANISHES * max(1.0, float(size.max()))
    needs = [{c} | {d for d in range(m) if float(size[c, d]) > bound} for c in range(m)]
    for _ in range(m):
        needs = [set().union(*(needs[d] for d in n)) for n in needs]
    return [frozenset(n) for n in needs]


def _closed_sets(needs: Sequence[frozenset[int]]) -> Iterable[tuple[int, ...]]:
    """Sets of coordinates that move by themselves, the largest first; leading coordinates before others."""
    m = len(needs)
    if m > _LARGEST_SEARCH:
        subsets: Iterable[tuple[int, ...]] = (tuple(range(k)) for k in range(m, 0, -1))
    else:
        subsets = (s for k in range(m, 0, -1) for s in itertools.combinations(range(m), k))
    return (s for s in subsets if all(needs[c] <= set(s) for c in s))


def _strong_components(needs: Sequence[frozenset[int]]) -> list[tuple[int, ...]]:
    """Coordinates that depend on each other."""
    return sorted({tuple(d for d in sorted(needs[c]) if c in needs[d]) for c in range(len(needs))})


def _affine_block(fields: VectorFields, points: Tensor, values: Tensor, group: tuple[int, ...]) -> AffineBlock | None:
    """The block of these coordinates, ``None`` if the fields are not affine in them with commuting matrices."""
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
    if bool((missed > _AFFINE * size).any()):
        return None
    flat = a.reshape(-1, f, f)
    _, singular, span = torch.linalg.svd(flat.flatten(1), full_matrices=False)
    span = span[singular > _AFFINE * singular[:1]].unflatten(-1, flat.shape[-2:])
    products = span.unsqueeze(0) @ span.unsqueeze(1)
    if span.numel() and float((products - products.transpose(0, 1)).abs().max()) > _AFFINE:
        return None
    largest = size.max()
    return AffineBlock(group, bool(a.abs().max() > _VANISHES * largest), bool(b.abs().max() > _VANISHES * largest))


def fit_projective(points: Tensor, values: Tensor) -> tuple[Tensor, bool, HomogeneousLift] | None:
    r"""Matrices of fields of the form :math:`a + B x + (c \cdot x) x`, by least squares; ``None`` if they are not.

    Args:
        points: ``[p, m]``.
        values: the fields there, ``[p, n, m]``.

    Returns:
        Trace-free matrices ``[n, m + 1, m + 1]`` that act on (x, 1), whether all c vanish, and the map to (x, 1).
    """
    (count, m), n = points.shape, values.shape[1]
    eye = torch.eye(m, dtype=points.dtype)
    constant = eye.expand(count, m, m)
    linear = torch.einsum("pb,ac->pacb", points, eye).reshape(count, m, m * m)  # B[c, b]
    quadratic = points.unsqueeze(-1) * points.unsqueeze(-2)
    design = torch.cat([constant, linear, quadratic], -1).reshape(count * m, -1)
    if len(design) < 2 * design.shape[-1]:
        return None
    target = values.permute(0, 2, 1).reshape(count * m, -1)
    solution = least_squares(design, target, target.norm(dim=0))
    size = target.abs().amax(0)
    rest = (design @ solution - target).reshape(count, m, n).abs().amax(0).T  # [n, m]
    missed = rest.amax(-1)
    # a field that does not move these coordinates may leave rounding errors
    noise = _EPS * values.abs().max()
    fits = missed <= _AFFINE * size
    solution = torch.where(fits | (size > 10.0 * noise), solution, 0.0).T
    # affine ones component by component: what is small in one may be all that moves another
    first, left = _fit_affine(points, values)
    affine = left <= _AFFINE
    if not bool((affine | fits | (missed <= noise)).all()):
        return None
    # but a small quadratic part may be within what an affine form may miss
    affine &= ~fits | (left <= _relative(rest, values).clamp(min=_ROUNDING))
    first = torch.cat([first[..., 0], first[..., 1:].flatten(1), first.new_zeros(n, m)], -1)
    solution = torch.where(affine.unsqueeze(-1), first, solution)
    a, b, c = solution.split([m, m * m, m], -1)
    matrices = torch.zeros(len(solution), m + 1, m + 1, dtype=points.dtype)
    matrices[:, :m, :m] = b.unflatten(-1, (m, m))
    matrices[:, :m, m] = a
    matrices[:, m, :m] = -c
    trace = matrices.diagonal(dim1=-2, dim2=-1).mean(-1)
    matrices = matrices - trace[:, None, None] * torch.eye(m + 1, dtype=points.dtype)
    return matrices, not bool((c != 0).any()), HomogeneousLift()


def _fit_affine(points: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients of a + B x for each field and component, ``[n, m, m + 1]``, and what fields miss, `_relative`."""
    (count, m), n = points.shape, values.shape[1]
    design = torch.cat([torch.ones(count, 1, dtype=points.dtype), points], -1)
    target = values.reshape(count, n * m)
    solution = least_squares(design, target, target.norm(dim=0))
    rest = (design @ solution - target).abs().amax(0).reshape(n, m)
    size = values.abs().amax(0)
    meant = (rest <= _AFFINE * size) | (size > 10.0 * _EPS * size.amax(-1, keepdim=True))
    return torch.where(meant.unsqueeze(-1), solution.T.unflatten(0, (n, m)), 0.0), _relative(rest, values)


def _relative(rest: Tensor, values: Tensor) -> Tensor:
    """The largest of what components of a field miss, ``[n, m]``, over their sizes, but for rounding of others."""
    size = values.abs().amax(0)
    return torch.where(rest <= _EPS * size.amax(-1, keepdim=True), 0.0, rest / size).amax(-1)


def fit_conformal(points: Tensor, values: Tensor) -> tuple[Tensor, bool, HomogeneousLift] | None:
    r"""Matrices of fields :math:`a + B x + 2 (\beta \cdot x) x - (x \cdot Q x) b` with :math:`\beta = Q b`.

    Q is a nondegenerate quadratic form, of any signature, with :math:`B^T Q + Q B = \lambda Q`. On the light cone,
    whose points :math:`(x, q, 1)` with :math:`q = x \cdot Q x` count up to factors, the fields are linear:
    :math:`x' = B x - q b + a`, :math:`q' = \lambda q + 2 Q a \cdot x`, and the last row is :math:`-2 \beta`.

    Args:
        points: see `fit_projective`.
        values: see `fit_projective`.

    Returns:
        As `fit_projective`; ``None`` if the fields are no such ones, or none of them has a quadratic part.
    """
    count, m = points.shape
    n = values.shape[1]
    rows, columns = torch.triu_indices(m, m)
    design = torch.cat([torch.ones(count, 1, dtype=points.dtype), points, points[:, rows] * points[:, columns]], -1)
    if m < 2 or count < 2 * design.shape[-1]:
        return None
    target = values.reshape(count, n * m)
    solution = least_squares(design, target, target.norm(dim=0))
    size = values.abs().amax((0, 2)).clamp(min=1e-300)
    missed = (design @ solution - target).abs().amax(0).reshape(n, m).amax(-1)
    if bool((missed > _AFFINE * size + _EPS * values.abs().max()).any()):
        return None
    solution = solution.reshape(-1, n, m)
    a, b = solution[0], solution[1 : m + 1].permute(1, 2, 0)
    quadratic = values.new_zeros(n, m, m, m)  # [field, component, j, k], symmetric
    quadratic[:, :, rows, columns] = 0.5 * solution[m + 1 :].permute(1, 2, 0)
    quadratic = quadratic + quadratic.mT
    beta = quadratic.diagonal(dim1=1, dim2=2).sum(-1) / m
    eye = torch.eye(m, dtype=points.dtype)
    # the rest of the quadratic part is b Q, of which all fields together tell Q up to a factor
    rest = beta[:, None, None, :] * eye[:, :, None] + beta[:, None, :, None] * eye[:, None, :] - quadratic
    rank_one = rest.reshape(n * m, m * m)
    if not bool(beta.any()):
        return None
    form = torch.linalg.svd(rank_one, full_matrices=False)[2][0].reshape(m, m)
    form = 0.5 * (form + form.T)
    form = form / form.flatten()[form.abs().argmax()]
    form = snap(torch.where(form.abs() < _ROUNDING, 0.0, form))
    if float(torch.linalg.cond(form)) > _DEGENERATE:
        return None
    return _light_cone(a, b, quadratic, beta, form, size)


def _light_cone(
    a: Tensor, b: Tensor, quadratic: Tensor, beta: Tensor, form: Tensor, size: Tensor
) -> tuple[Tensor, bool, HomogeneousLift] | None:
    """The matrices of fields with these parts, if they are conformal for the form."""
    n, m = a.shape
    eye = torch.eye(m, dtype=a.dtype)
    shift = beta @ torch.linalg.inv(form)
    expected = beta[:, None, None, :] * eye[:, :, None] + beta[:, None, :, None] * eye[:, None, :]
    expected = expected - torch.einsum("na,bc->nabc", shift, form)
    moved = b.mT @ form
    moved = moved + moved.mT
    growth = 2.0 * b.diagonal(dim1=1, dim2=2).mean(-1)
    missed = (expected - quadratic).abs().amax((1, 2, 3)) + (moved - growth[:, None, None] * form).abs().amax((1, 2))
    if bool((missed > 1e-9 * size).any()):
        return None
    matrices = a.new_zeros(n, m + 2, m + 2)
    matrices[:, :m, :m], matrices[:, :m, m], matrices[:, :m, m + 1] = b, -shift, a
    matrices[:, m, :m], matrices[:, m, m] = 2.0 * a @ form, growth
    matrices[:, m + 1, :m] = -2.0 * beta
    return matrices - 0.5 * growth[:, None, None] * torch.eye(m + 2, dtype=a.dtype), False, HomogeneousLift(form)
