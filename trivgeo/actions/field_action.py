"""The action of point symmetries on fields."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import broadcast_shapes, jvp_columns, log_abs_det
from trivgeo.actions.field import Field, Grid, evaluate, resample
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import Action, LieGroup

__all__ = ["FieldAction"]

_PROBE = 0.3  # size of the elements that a group is tried with
_PROBE_TOLERANCE = 1e-6
_NEWTON_STEPS = 8


class FieldAction(Action):
    r"""The action of point symmetries on fields: an element moves the graph of u to the graph of another function.

    .. math:: \{(x, t, u(x, t))\} \mapsto \{g \cdot (x, t, u(x, t))\}

    The grid moves along: the result is a `Field` on the image of the grid, and nothing is interpolated. The group law,
    inverses and solutions of an equation are kept to rounding; `resample` brings the result to a grid of one's choice.
    That takes a group that carries one time to one time, affinely in x, as those of evolution equations mostly do. The
    periods of a periodic field move like its grid: a scaling changes the length of the circle.

    With ``regrid`` the result is resampled on the grid that the field came on, by `resample`, and the group law holds
    up to the error of that: exactly for translations of a field whose axes are periodic and whose grid resolves it.
    Any group acts so, also one that mixes x and t (Lorentz boosts), or moves x by u. An element that changes the period
    of a periodic field (a scaling, a rotation of a box) gives the values of the field of another period that are at the
    points of the grid. These are right, but no period of it: read as periodic again, by a second element or `resample`,
    they have a jump at the ends, unless the field is alike all along them (eddies in the middle of a large box), and
    `is_valid` does not tell. Points that the moved field does
    not reach are NaN: near ends that are not periodic, and all points of a single time if the group moves it, since
    what the field is then at the old time only its equation knows. The whole datum is NaN where the moved graph is no
    function (a wave that broke) or the transformation tears it (a denominator changes sign).

    Args:
        group: a group with an action on jets (x_1, ..., x_d, t, u_1, ..., u_c): a shipped one, one from
            `from_generators`, or one that `find_symmetries` found.
        periodic: whether fields are periodic along each of the d axes of space.
        regrid: whether fields are brought back to the grid that they came on.

    Raises:
        ConfigurationError: the group has no action in so many dimensions, adds to u what changes along a periodic axis,
            or (without ``regrid``) does not carry grids to grids; the message names the generator.
    """

    def __init__(self, group: LieGroup, periodic: Sequence[bool] = (True,), regrid: bool = False) -> None:
        if not isinstance(group, LieGroup):
            raise ConfigurationError(f"group: expected a LieGroup, got {group!r}")
        self.group = group
        self.point_action = group.action()
        self.periodic = tuple(bool(p) for p in periodic)
        self.regrid = regrid
        dims, whole = len(self.periodic), max(self.point_action.point_dims)
        if not dims or whole < dims + 2:
            raise ConfigurationError(
                f"group: expected an action on jets of {dims} x, t and u, got {group!r}, which acts on points of "
                f"{whole} coordinates"
            )
        self._projectable = dims + 1 in self.point_action.point_dims
        if not self._projectable and not regrid:
            raise ConfigurationError(
                f"group: expected one that moves (x, t) without u, got {group!r}, which moves (x, t) by u. Fields "
                "follow it with regrid=True"
            )
        self._keeps_grids = self._check_generators()

    def __repr__(self) -> str:
        """The group and the axes."""
        return f"FieldAction({self.group!r}, {self.periodic}, regrid={self.regrid})"

    @property
    def dims(self) -> int:
        """The number d of dimensions of space."""
        return len(self.periodic)

    def __call__(self, g: Tensor, x: Field) -> Field:
        """The moved field.

        Raises:
            ShapeError: an element or a field has the wrong shape, or the batches do not broadcast.
        """
        self.check_data(x)
        kept = self._kept(g, x)
        if self.regrid:
            return self._regridded(g, x, kept)
        values = self._fibre(self.point_action(g, x.to_points()), x)
        return Field(
            torch.where(_rows(kept, values), values, math.nan),
            Grid(*(torch.where(_rows(kept, leaf), leaf, math.nan) for leaf in self._moved(g, x))),
        )

    def resample(self, x: Field, grid: Grid, counts: Sequence[int] | None = None) -> Field:
        """Interpolate a field at the points of another grid, with the periods of this action.

        Args:
            x: field that is interpolated.
            grid: positions of the new values.
            counts: numbers of points of the new grid along the axes of space; those of ``x`` by default.

        Returns:
            The interpolated field, see `trivgeo.actions.resample`.
        """
        return resample(x, grid, self.periodic, counts)

    def is_valid(self, g: Tensor, x: Field) -> Bool[Tensor, "*batch"]:
        """Return True where the field ``g.x`` is known at all points of its grid.

        Args:
            g: elements ``[*batch, *element_shape]``.
            x: fields; batches broadcast.

        Returns:
            Truth values ``[*batch]``, one for each field.
        """
        y = self(g, x)
        known = torch.isfinite(y.values).flatten(-2 - self.dims).all(-1)
        return known & torch.isfinite(y.grid.origin).flatten(-2).all(-1)

    def log_abs_det_jacobian(self, g: Tensor, x: Field) -> Float[Tensor, "*batch"]:
        r"""Return the sum over the grid of :math:`\log |\det \partial u' / \partial u|`, plus the term of the grid,
        ``[*batch]``.

        The grid counts with the determinant of its points and steps. With ``regrid`` it counts by half of
        :math:`c \log|\det D (x', t') / D (x, t)|` at each point, as in `ImageWarp`, with total derivatives along the
        graph of u. If (x, t) moves by u, the derivative of u where it lands is
        :math:`\det \partial (x', t', u') / \partial (x, t, u)` divided by :math:`\det D (x', t') / D (x, t)`.

        Args:
            g: elements ``[*batch, *element_shape]``.
            x: fields; batches broadcast.
        """
        jets, unknowns = x.to_points(), x.values.shape[-2 - self.dims]
        whole = self.point_action.jacobian(g, jets)
        moved = whole[..., :-unknowns, :-unknowns]
        if not self._projectable:
            total = log_abs_det(moved + matmul(whole[..., :-unknowns, -unknowns:], self._slopes(x)))
            return (log_abs_det(whole) + (0.5 * unknowns - 1.0) * total).sum(-1)
        fibre = log_abs_det(whole[..., -unknowns:, -unknowns:]).sum(-1)
        if self.regrid:
            return fibre + 0.5 * unknowns * log_abs_det(moved).sum(-1)
        base = self.point_action.jacobian(g, x.grid.origin)
        return fibre + (log_abs_det(base) + self.dims * log_abs_det(base[..., :-1, :-1])).sum(-1)

    def batch_shape(self, x: Any) -> torch.Size:
        """Return the batch shape of fields ``x``, without the dimensions of unknowns, times and space."""
        return x.values.shape[: -2 - self.dims]

    def check_data(self, x: Any, name: str = "x") -> None:
        """Raise a typed error unless ``x`` is a `Field` of this action; messages call it ``name``.

        Raises:
            ConfigurationError: ``x`` has another type.
            ShapeError: axes or unknowns differ in number from those of the action, or the grid does not fit the values.
        """
        if not isinstance(x, Field):
            raise ConfigurationError(f"{name}: expected a Field, got {type(x).__name__}")
        d, (origin, steps) = self.dims, x.grid
        unknowns = max(self.point_action.point_dims) - d - 1
        if x.values.ndim < d + 2 or x.values.shape[-d - 2] != unknowns or 0 in x.values.shape[-d - 2 :]:
            raise ShapeError(
                f"{name}: expected values [*batch, {unknowns}, s, *n] with {d} axes of space, got "
                f"{list(x.values.shape)}"
            )
        lattice = (*self.batch_shape(x), x.values.shape[-d - 1])
        if origin.shape != (*lattice, d + 1) or steps.shape != (*lattice, d, d):
            raise ShapeError(
                f"{name}: expected a grid {[*lattice, d + 1]} and {[*lattice, d, d]}, got {list(origin.shape)} and "
                f"{list(steps.shape)}"
            )

    def _fibre(self, jets: Tensor, like: Field) -> Tensor:
        """Values ``[*batch, c, s, *n]`` of jets in the order of `Field.to_points`."""
        values = jets[..., self.dims + 1 :].mT
        return values.unflatten(-1, like.values.shape[-1 - self.dims :])

    def _corners(self, x: Field) -> Tensor:
        """At each time the first point and the ends of the axes (a period away), ``[*batch, s, d + 1, d + 1]``."""
        lengths = torch.tensor(x.counts, dtype=x.values.dtype, device=x.values.device)
        edges = lengths.unsqueeze(-1) * x.grid.steps
        edges = torch.cat([edges, torch.zeros_like(edges[..., :1])], -1)
        origin = x.grid.origin.unsqueeze(-2)
        return torch.cat([origin, origin + edges], -2)

    def _moved(self, g: Tensor, x: Field) -> Grid:
        """The image of the grid."""
        corners = self._corners(x)
        image = self.point_action(g, corners.flatten(-3, -2)).unflatten(-2, corners.shape[-3:-1])
        lengths = torch.tensor(x.counts, dtype=image.dtype, device=image.device)
        edges = (image[..., 1:, :-1] - image[..., :1, :-1]) / lengths.unsqueeze(-1)
        return Grid(image[..., 0, :], edges)

    def _kept(self, g: Tensor, x: Field) -> Bool[Tensor, "*batch"]:
        """Whether the denominator keeps one sign over the whole field."""
        points = self._corners(x).flatten(-3, -2) if self._keeps_grids else x.points()
        if not self._projectable:
            points = x.to_points()
        d = self.point_action.denominator(g, points)
        return (d.amin(-1) > 0) | (d.amax(-1) < 0)

    # Resampling on the old grid ------------------------------------------------------------------------------

    def _regridded(self, g: Tensor, x: Field, kept: Tensor) -> Field:
        inverse, target = self.group.inverse(g), x.points()
        if self._projectable:
            source = self.point_action(inverse, target)
            u, covered = self._values(x, source)
            y = self.point_action(g, torch.cat([source, u], -1))
        else:
            y, covered = self._solved(g, inverse, x, target)
        values = self._fibre(y, x)
        covered = covered.unflatten(-1, values.shape[-1 - self.dims :]) & kept[..., *[None] * (self.dims + 1)]
        return Field(
            torch.where(covered.unsqueeze(-2 - self.dims), values, math.nan),
            Grid(*(leaf.expand(*kept.shape, *leaf.shape[len(self.batch_shape(x)) :]) for leaf in x.grid)),
        )

    def _values(self, x: Field, points: Tensor) -> tuple[Tensor, Tensor]:
        """u at points (x, t), ``[*batch, p, c]``, and whether it is known there."""
        undefined = torch.isnan(points).any(-1)
        points = torch.where(undefined.unsqueeze(-1), 0.0, points)
        groups = (
            points.unflatten(-2, (x.values.shape[-1 - self.dims], -1)) if self._keeps_grids else points[..., None, :]
        )
        u, covered = evaluate(x, groups, groups[..., 0, -1], self.periodic)
        return u.flatten(-2).mT, covered.flatten(-2) & ~undefined

    def _slopes(self, x: Field) -> Tensor:
        """The derivatives of u by (x, t) at the points of the grid, ``[*batch, p, c, d + 1]``.

        By t zero at fewer times than are interpolated: then a time that moves has no meaning, and of one that stays
        they change no determinant.
        """

        def known(points: Tensor) -> Tensor:
            u, covered = self._values(x, points)
            return torch.where(covered.unsqueeze(-1), u, math.nan)

        return jvp_columns(known, x.points())

    def _solved(self, g: Tensor, inverse: Tensor, x: Field, target: Tensor) -> tuple[Tensor, Tensor]:
        """The moved jets at given (x, t) of a group that moves these by u: Newton's method for the moved u.

        The point (x, t, u) of the moved graph comes from a point of the graph: its preimage has the value there that
        the field has.
        """
        jets = x.to_points()
        unknowns = jets.shape[-1] - self.dims - 1

        def miss(u: Tensor, g: Tensor) -> Tensor:
            source = self.point_action(g, torch.cat([target.expand(*u.shape[:-1], -1), u], -1))
            return self._values(x, source[..., :-unknowns])[0] - source[..., -unknowns:]

        batch = broadcast_shapes(self.group.batch_shape(g), jets.shape[:-2])
        u = jets[..., -unknowns:].expand(*batch, -1, -1)
        for _ in range(_NEWTON_STEPS):
            slope = jvp_columns(lambda u: miss(u, inverse), u)
            u = u - matmul(torch.linalg.inv_ex(slope).inverse, miss(u, inverse).unsqueeze(-1)).squeeze(-1)
        y = torch.cat([target.expand(*batch, -1, -1), u], -1)
        source = self.point_action(inverse, y)
        _, covered = self._values(x, source[..., :-unknowns])
        error = miss(u, inverse).abs().amax(-1)
        found = error <= _PROBE_TOLERANCE * (1.0 + jets[..., -unknowns:].abs().amax())
        return y, covered & found & ~self._folded(g, x).unsqueeze(-1)

    def _folded(self, g: Tensor, x: Field) -> Bool[Tensor, "*batch"]:
        """Whether the moved graph lies over some (x, t) twice: its cells do not all keep their orientation."""
        d, values = self.dims, x.values
        for axis, cyclic in enumerate(self.periodic):  # up to the first point again
            values = torch.cat([values, values.narrow(axis - d, 0, 1)], axis - d) if cyclic else values
        shape = values.shape[-1 - d :]
        jets = Field(values, x.grid).to_points()
        before = jets[..., : d + 1].unflatten(-2, shape)
        after = self.point_action(g, jets)[..., : d + 1].unflatten(-2, shape)
        axes = [axis for axis in range(d + 1) if shape[axis] > 1]
        columns = [d if axis == 0 else axis - 1 for axis in axes]

        def orientation(points: Tensor) -> Tensor:
            edges = []
            for axis in axes:
                dim = axis - d - 2
                edge = points.diff(dim=dim)
                for other in axes:
                    if other != axis:
                        edge = edge.narrow(other - d - 2, 0, shape[other] - 1)
                edges.append(edge[..., columns])
            matrix = torch.stack(edges, -2)
            return _determinant(matrix).flatten(-1 - d)

        sign = orientation(before) * orientation(after)
        return ~((sign > 0).all(-1) | (sign < 0).all(-1))

    # What the group does to grids ----------------------------------------------------------------------------

    def _check_generators(self) -> bool:
        """Whether grids go to grids; raises if that is needed, or if periodic fields are no longer periodic."""
        keeps = self._projectable
        for name, v in zip(self.group.algebra.names, torch.eye(self.group.dim, dtype=torch.float64), strict=True):
            g = self.group.exp(_PROBE * v / self.group.basis.rows.norm(dim=-1).clamp(min=1.0).max())
            self._check_period(name, g)
            if keeps and not self._affine_in_space(g):
                if not self.regrid:
                    raise ConfigurationError(
                        f"group: expected generators that carry grids to grids, but {name} does not carry one time to "
                        f"one time, affinely in x. Fields follow it with regrid=True"
                    )
                keeps = False
        return keeps

    def _affine_in_space(self, g: Tensor) -> bool:
        """Whether the images of points at one time are at one time, and affine in x."""
        places = torch.cartesian_prod(*(torch.tensor([0.7, 1.0, 1.3], dtype=torch.float64),) * self.dims)
        places = places.reshape(-1, self.dims)
        points = torch.cat([places, torch.full_like(places[:, :1], 0.9)], -1)
        image = self.point_action(g, points)
        plane = torch.cat([places, torch.ones_like(places[:, :1])], -1)
        fit = matmul(plane, matmul(torch.linalg.pinv(plane), image[:, :-1]))
        error = torch.cat([image[:, :-1] - fit, image[:, -1:] - image[:1, -1:]], -1).abs().amax()
        return bool(error <= _PROBE_TOLERANCE * (1.0 + image.abs().amax()))

    def _check_period(self, name: str, g: Tensor) -> None:
        """Raise `ConfigurationError` if what a generator adds to u changes along a periodic axis."""
        whole = max(self.point_action.point_dims)
        jet = torch.linspace(0.6, 0.9, whole, dtype=torch.float64)
        for axis, cyclic in enumerate(self.periodic):
            shift = torch.zeros(2, whole, dtype=torch.float64)
            shift[1, axis] = 0.4
            u = self.point_action(g, jet + shift)[:, self.dims + 1 :]
            if cyclic and not bool((u[1] - u[0]).abs().amax() <= _PROBE_TOLERANCE * (1.0 + u.abs().amax())):
                raise ConfigurationError(
                    f"group: expected generators that keep fields periodic, but {name} does not keep fields periodic "
                    f"along axis {axis}. Take a subgroup without it, or periodic=False there"
                )


def _determinant(matrix: Tensor) -> Tensor:
    """Of small matrices, by the first row; `torch.linalg.det` returns wrong values under some transforms."""
    n = matrix.shape[-1]
    if n == 1:
        return matrix[..., 0, 0]
    minors = [torch.cat([matrix[..., 1:, :k], matrix[..., 1:, k + 1 :]], -1) for k in range(n)]
    return sum(
        ((-1) ** k * matrix[..., 0, k] * _determinant(minors[k]) for k in range(1, n)),
        start=matrix[..., 0, 0] * _determinant(minors[0]),
    )


def _rows(mask: Tensor, x: Tensor) -> Tensor:
    """A mask of data with dimensions of size one for the rest."""
    return mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))
