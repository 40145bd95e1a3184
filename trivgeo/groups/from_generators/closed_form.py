"""Images of points in closed form: bases that move by themselves, and fibres over them.

Elements are matrices on the homogeneous coordinates of a base (`HomogeneousTransform`). Fibres move linearly on a space
of polynomials (`PolynomialFibre`), or affinely at one point of the base, to which elements carry the others
(`TransportedFibre`). The closed form of a whole element does not care where the flow of one of its factors passes
through infinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.groups.from_generators.elements import FactoredElements
from trivgeo.groups.from_generators.fields import VectorFields
from trivgeo.groups.from_generators.polynomial_representation import PolynomialRepresentation
from trivgeo.groups.from_generators.projective_coordinates import ProjectiveBase
from trivgeo.groups.from_generators.representation import Monomials, Representation
from trivgeo.groups.linalg import largest_exponent, matrix_functions, matvec, transform_points

_MAX_FIT_ERROR = 1e-10  # residual of constant and affine fields, relative to the size of their terms
_MAX_FIBRE_DIM = 6
_MAX_POINTS_BY_COLUMN = 8  # points of one element; more are multiplied by its matrix in one product


@dataclass(frozen=True)
class Images:
    """Images of points ``[*batch, p]``, coordinate by coordinate.

    Attributes:
        coordinates: the images, by position.
        denominators: denominators of bases that move locally, by position of the base.
        error: the estimated error of an image relative to one plus its size.
    """

    coordinates: Mapping[int, Tensor]
    denominators: Mapping[int, Tensor]
    error: Tensor


class HomogeneousTransform:
    """Elements as matrices on the homogeneous coordinates of a base."""

    def __init__(self, elements: FactoredElements, base: ProjectiveBase) -> None:
        self.coordinates = list(base.coordinates)
        self.is_local = not base.affine
        self.lift = base.lift
        self._matrix = Representation(elements, base.matrices)
        self._rows = [*range(len(base.coordinates)), -1]  # without x.Qx, which images do not need

    def apply(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The images of base coordinates x, ``[*batch, p, k]``, by elements g, ``[*batch, 1, E]``, and denominators.

        An image is any number where its denominator, ``[*batch, p]``, vanishes.
        """
        matrix = self._matrix(g)
        if self.lift.form is not None:
            matrix = matrix[..., self._rows, :]
        moved = _times(matrix[..., :-1], self.lift(x)) + matrix[..., -1]
        d = moved[..., -1]
        return moved[..., :-1] / torch.where(d == 0, 1.0, d).unsqueeze(-1), d


class PolynomialFibre:
    """Coordinates that move by a finite-dimensional representation on polynomials, see `PolynomialRepresentation`."""

    def __init__(self, elements: FactoredElements, representation: PolynomialRepresentation) -> None:
        self.coordinates = list(representation.coordinates)
        weights, generators = representation.weights, representation.generators
        self._bases = representation.bases
        rows = 1 + (len(self.coordinates) if weights is None else weights.shape[-1])
        self._matrix = Representation(elements, representation.matrices, rows)
        self._monomials = Monomials(representation.exponents)
        self._functions = Constant(representation.functions.T)
        self._weights = None if weights is None else Constant(weights)
        self._generators = None if generators is None else Constant(generators)

    def is_over(self, num_leading: int) -> bool:
        """Return True if all coordinates of the fibre are among the ``num_leading`` leading ones."""
        return max(self.coordinates) < num_leading

    def extend(self, images: Images, g: Tensor, x: Tensor) -> Images:
        """The images of coordinates below, with those of this fibre appended.

        NaN where a denominator is not positive, and where an exponential overflows.

        Args:
            images: images of the coordinates below.
            g: elements ``[*batch, 1, E]``.
            x: points ``[*batch, p, m]``.
        """
        inside = torch.isfinite(x).all(-1)
        local = [(i, images.denominators[i]) for i in self._bases if i in images.denominators]
        for _, d in local:
            inside = inside & (d > 0)
        defined = inside.unsqueeze(-1)
        # a point without an image must not make the gradients of others NaN
        x = torch.where(defined, x, 0.0)
        functions = self._monomials(x) @ self._functions.matching(x)
        moved = _times(self._matrix(g), functions)
        first = torch.where(inside, moved[..., 0], 1.0)
        value = moved[..., 1:] / first.unsqueeze(-1)
        if self._weights is not None:
            weights = self._weights.matching(x)
            for i, d in local:
                power = weights[self._bases.index(i)]
                value = value + torch.where(inside, d, 1.0).log().unsqueeze(-1) * power
            value = self._apply_formal(value, x[..., self.coordinates])
        value = torch.where(defined, value, math.nan)
        return _extended(images, self.coordinates, value, images.error)

    def _apply_formal(self, formal: Tensor, u: Tensor) -> Tensor:
        """The coordinates u ``[*batch, p, f]`` moved by formal coordinates ``[*batch, p, k]``: exp(sum s_j M_j) u."""
        if self._generators is None:
            return u + formal
        size = formal.detach().abs().sum(-1, keepdim=True)
        fits = size < largest_exponent(formal.dtype)
        formal = torch.where(fits, formal, 0.0)
        if u.shape[-1] == 1:
            image = formal.exp() * u
        else:
            matrix = torch.einsum("...j,jab->...ab", formal, self._generators.matching(formal))
            image = matvec(matrix_functions(u.shape[-1]).exp(matrix), u)
        return torch.where(fits, image, math.nan)


@dataclass(frozen=True)
class TransportedCoordinates:
    """Coordinates u over x.

    Attributes:
        base: the positions of x.
        fibre: the positions of u.
        origin: o, in the order of ``base``.
        shifts: vectors whose fields are the T, ``[len(base), n]``.
        slopes: the s, ``[len(base), r]``.
        linear: the matrices A of the fields at o, ``[n, r, r]``.
        shift: b of the fields at o, ``[n, r]``.
    """

    base: tuple[int, ...]
    fibre: tuple[int, ...]
    origin: Constant
    shifts: Constant
    slopes: Constant
    linear: Constant
    shift: Constant

    def move(self, w: Tensor, u: Tensor) -> Tensor:
        """The images ``[*batch, r]`` of coordinates u at the point o under ``exp(w)``; NaN where they overflow."""
        matrix = torch.einsum("...i,iab->...ab", w, self.linear.matching(w))
        fits = (matrix.detach().abs().sum((-2, -1)) < largest_exponent(w.dtype)).unsqueeze(-1)
        matrix, w = torch.where(fits.unsqueeze(-1), matrix, 0.0), torch.where(fits, w, 0.0)
        both = matrix_functions(len(self.fibre)).affine_exp(matrix, w @ self.shift.matching(w))
        return torch.where(fits, matvec(both[..., :-1], u) + both[..., -1], math.nan)


def find_transported(fields: VectorFields, points: Tensor, base: tuple[int, ...]) -> TransportedCoordinates | None:
    """The coordinates other than ``base``, if all move affinely, and the group shifts those of the base; else ``None``.

    Args:
        base: positions of coordinates that move in closed form independently of the others.
    """
    m = fields.dim
    fibre = tuple(c for c in range(m) if c not in base)
    if not base or not fibre or len(fibre) > _MAX_FIBRE_DIM:
        return None
    values = fields(points)
    # unknowns: combinations of the fields that shift x, and the constants that they have in u
    table = torch.cat([values, -torch.eye(m, dtype=torch.float64)[list(fibre)].expand(len(points), -1, m)], 1)
    table = table.transpose(0, 1).flatten(1)
    units = torch.eye(m, dtype=torch.float64)[list(base)].repeat(1, len(points))
    found = torch.linalg.lstsq(table.T, units.T, driver="gelsd").solution.T
    if bool(((found @ table - units).abs() > _MAX_FIT_ERROR * (1.0 + found.abs() @ table.abs())).any()):
        return None
    found = torch.where(found.abs() < _MAX_FIT_ERROR * found.abs().amax(-1, keepdim=True), 0.0, found)
    shifts, slopes = found.split([len(fields), len(fibre)], -1)
    at_zero = points.clone()
    at_zero[:, list(fibre)] = 0.0
    shift, linear = fields(at_zero)[..., list(fibre)], fields.slopes(at_zero)[..., list(fibre), :][..., list(fibre)]
    affine = matvec(linear, points[:, None, list(fibre)]) + shift
    goal = values[..., list(fibre)]
    known = torch.isfinite(affine).all() and torch.isfinite(linear).all()
    if not bool(known) or bool(
        ((affine - goal).abs() > _MAX_FIT_ERROR * (1.0 + goal.abs().amax((0, 2))[:, None])).any()
    ):
        return None
    origin = points[0][list(base)]
    here = linear[0], shift[0]
    return TransportedCoordinates(base, fibre, *map(Constant, (origin, shifts, slopes, *here)))


class TransportedFibre:
    """Coordinates that the group moves at a fixed point of the base, see `TransportedCoordinates`."""

    def __init__(self, elements: FactoredElements, transported: TransportedCoordinates) -> None:
        self.coordinates = list(transported.fibre)
        self._elements = elements
        self._transported = transported

    def is_over(self, num_leading: int) -> bool:
        """Return True if some coordinates of the fibre are among the ``num_leading`` leading ones."""
        return min(self.coordinates) < num_leading

    def extend(self, images: Images, g: Tensor, x: Tensor) -> Images:
        """Images with those of this fibre, and their rounding error, see `PolynomialFibre.extend`."""
        elements, transported = self._elements, self._transported
        origin, shifts, slopes = (c.matching(x) for c in (transported.origin, transported.shifts, transported.slopes))
        base = list(transported.base)
        here, there = x[..., base], torch.stack([images.coordinates[c] for c in base], -1)
        inside = torch.isfinite(x).all(-1) & torch.isfinite(there).all(-1)
        for d in images.denominators.values():
            inside = inside & (d > 0)
        defined = inside.unsqueeze(-1)
        here, there = torch.where(defined, here, origin), torch.where(defined, there, origin)
        back, forth = elements.exp((origin - there) @ shifts), elements.exp((here - origin) @ shifts)
        stabilizer = elements.core._compose(elements.core._compose(back, g), forth)
        # where g has no image, its values must not make the gradients of others NaN
        stabilizer = torch.where(defined, stabilizer, elements.core._identity(x.dtype, x.device))
        u = torch.where(defined, x[..., self.coordinates], 0.0) - (here - origin) @ slopes
        image = transported.move(elements.log(stabilizer), u) + (there - origin) @ slopes
        image = torch.where(defined, image, math.nan)
        sizes = (1.0 + each.detach().abs().amax(-1) for each in (back, g, forth))
        error = torch.finfo(x.dtype).eps * math.prod(sizes, start=torch.ones_like(x[..., 0]).detach())
        return _extended(images, self.coordinates, image, error)


Fibre = PolynomialFibre | TransportedFibre


def fibre_of(elements: FactoredElements, fibre: PolynomialRepresentation | TransportedCoordinates) -> Fibre:
    """Return the map of fibre coordinates by ``elements``, for the coordinates ``fibre``."""
    if isinstance(fibre, PolynomialRepresentation):
        return PolynomialFibre(elements, fibre)
    return TransportedFibre(elements, fibre)


@dataclass(frozen=True)
class ClosedForms:
    """Coordinates whose images are closed forms of an element and a point.

    Attributes:
        bases: coordinates that move by themselves.
        fibres: coordinates over these.
    """

    bases: tuple[HomogeneousTransform, ...]
    fibres: tuple[Fibre, ...] = ()

    @cached_property
    def coordinates(self) -> frozenset[int]:
        """Positions of all coordinates of bases and fibres."""
        stages: Iterable[HomogeneousTransform | Fibre] = (*self.bases, *self.fibres)
        return frozenset(c for stage in stages for c in stage.coordinates)

    def images(self, g: Tensor, x: Tensor, num_leading: int) -> Images:
        """The images of ``num_leading`` leading coordinates that have closed forms; images of others may come along."""
        fibres = [fibre for fibre in self.fibres if fibre.is_over(num_leading)]
        coordinates: dict[int, Tensor] = {}
        denominators: dict[int, Tensor] = {}
        for i, base in enumerate(self.bases):
            if base.coordinates[0] < num_leading or fibres:
                image, d = base.apply(g, x[..., base.coordinates])
                if base.is_local:
                    denominators[i] = d
                    image = torch.where((d != 0).unsqueeze(-1), image, math.nan)
                coordinates |= {c: image[..., position] for position, c in enumerate(base.coordinates)}
        images = Images(coordinates, denominators, torch.zeros_like(x[..., 0]))
        for fibre in fibres:
            if any(c not in images.coordinates for c in range(num_leading)):
                images = fibre.extend(images, g, x)
        return images

    def denominator(self, g: Tensor, x: Tensor, num_leading: int) -> Tensor | None:
        """The product of the denominators of ``num_leading`` leading coordinates, ``[*batch, p]``; ``None`` for one."""
        total: Tensor | None = None
        for base in self.bases:
            if base.is_local and base.coordinates[0] < num_leading:
                d = base.apply(g, x[..., base.coordinates])[1]
                total = d if total is None else total * d
        return total


def _extended(images: Images, positions: Sequence[int], values: Tensor, error: Tensor) -> Images:
    """The images with coordinates ``values [*batch, p, f]`` at ``positions``."""
    more = {c: values[..., place] for place, c in enumerate(positions)}
    return Images({**images.coordinates, **more}, images.denominators, error)


def stacked(coordinates: Sequence[Tensor]) -> Tensor:
    """Points from coordinates that broadcast, NaN in all of them where one is not finite."""
    y = torch.stack(torch.broadcast_tensors(*coordinates), -1)
    return torch.where(torch.isfinite(y).all(-1, keepdim=True), y, math.nan)


def _times(matrix: Tensor, x: Tensor) -> Tensor:
    """``matrix x`` for matrices ``[*batch, 1, r, d]`` and points ``[*batch, p, d]``."""
    num_points: int | torch.SymInt = x.shape[-2]
    if (
        isinstance(num_points, torch.SymInt) or num_points > _MAX_POINTS_BY_COLUMN
    ):  # an exported program may be for any number
        return transform_points(matrix, x)
    total = matrix[..., 0] * x[..., :1]
    for j in range(1, x.shape[-1]):
        total = torch.addcmul(total, matrix[..., j], x[..., j : j + 1])
    return total
