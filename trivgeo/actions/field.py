"""Fields, functions of space and time on regular grids that may differ from one time to the next, the action of point
symmetries on them, and their interpolation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import broadcast_shapes, jvp_columns, log_abs_det
from trivgeo._text import described
from trivgeo.checks import check_type, checked
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import Action, LieGroup
from trivgeo.groups.linalg import matrix_functions

_NUM_NODES = 4  # nodes of the cubic interpolation
_TOLERANCE_EXPONENT = 0.7  # times and places count as equal if they differ by less than eps^0.7
_PROBE_LENGTH = 0.3  # length of the algebra vectors whose exponentials test a group
_PROBE_TOLERANCE = 1e-6  # relative error below which images of points count as affine, periodic or found
_NUM_NEWTON_STEPS = 8


@checked
class Grid(NamedTuple):
    r"""A lattice of points in d dimensions of space at each of s times.

    Point :math:`(i_1, \dots, i_d)` at one time is :math:`x = x_0 + \sum_k i_k h_k`, where :math:`x_0` and :math:`h_k`
    depend on the time. So point symmetries that map times to times and are affine in x carry grids to grids, exactly:
    scalings, rotations, Galilean boosts, and the projective symmetries of the heat and Burgers' equation.

    Attributes:
        origin: the first points (x, t), ``[*batch, s, d + 1]``; times increase.
        steps: row k is :math:`h_k`, ``[*batch, s, d, d]``.
    """

    origin: Tensor
    steps: Tensor

    def __repr__(self) -> str:
        return described(self)

    @property
    def times(self) -> Float[Tensor, "*batch s"]:
        """Times of the lattice, ``[*batch, s]``."""
        return self.origin[..., -1]

    def points(self, *counts: int) -> Float[Tensor, "..."]:
        """Return the points (x, t) of the lattice, ``[*batch, s, *counts, d + 1]``.

        Args:
            *counts: number of points along each of the d axes of space.
        """
        points = self.origin
        for axis, count in enumerate(counts):
            index = torch.arange(count, dtype=points.dtype, device=points.device)
            step = torch.cat([self.steps[..., axis, :], torch.zeros_like(self.origin[..., :1])], -1)
            step = step[..., *[None] * (axis + 1), :]
            points = points.unsqueeze(-2) + index.unsqueeze(-1) * step
        return points

    def at(self, times: Sequence[float] | Float[Tensor, "*batch q"]) -> Grid:
        """Return the lattice of the first time at other ``times``: q numbers, or a tensor ``[*batch, q]``."""
        t = torch.as_tensor(times, dtype=self.origin.dtype, device=self.origin.device)
        t = torch.broadcast_to(t, (*broadcast_shapes(t.shape[:-1], self.origin.shape[:-2]), t.shape[-1]))
        place = self.origin[..., :1, :-1].expand(*t.shape, -1)
        steps = self.steps[..., :1, :, :].expand(*t.shape, -1, -1)
        return Grid(torch.cat([place, t.unsqueeze(-1)], -1), steps)


@checked
class Field(NamedTuple):
    """Values of c unknowns on a `Grid`: a slice at one time (s = 1), or a block of space and time.

    ```python
    slice = Field.on_box(u0, [(0.0, 16.0)])  # u0 [b, 1, n], periodic
    block = Field.on_box(u, [(0.0, 16.0)], times=[0.0, 0.5, 1.0])  # u [b, 1, 3, n]
    ```

    Attributes:
        values: values of the unknowns, ``[*batch, c, s, *n]``.
        grid: positions of the values.
    """

    values: Tensor
    grid: Grid

    def __repr__(self) -> str:
        return described(self)

    @classmethod
    def on_box(
        cls,
        values: Float[Tensor, "..."],
        box: Sequence[tuple[float, float]],
        times: float | Sequence[float] = 0.0,
        periodic: bool | Sequence[bool] = True,
    ) -> Field:
        """Values on an equidistant grid that fills a box.

        Args:
            values: ``[*batch, c, *n]`` at one time, ``[*batch, c, s, *n]`` at several.
            box: the range (low, high) of each x.
            times: the time, or the increasing times.
            periodic: whether the upper end of each range, which equals the lower one, is left out of the grid; one for
                all axes, or one for each.

        Raises:
            ShapeError: values have too few dimensions, or another number of times; or the numbers of ranges and of
                entries of ``periodic`` differ.
            DomainError: a range is empty or infinite, or times do not increase.
        """
        block = isinstance(times, Sequence)
        nodes = [float(t) for t in times] if isinstance(times, Sequence) else [float(times)]
        cyclic = list(periodic) if isinstance(periodic, Sequence) else [periodic] * len(box)
        if not box or len(cyclic) != len(box):
            raise ShapeError(f"box: expected a range for each axis of space, got {list(box)} and periodic {cyclic}")
        if any(not -math.inf < low < high < math.inf for low, high in box):
            raise DomainError(f"box: expected ranges low < high, got {list(box)}")
        if not all(map(math.isfinite, nodes)) or any(not a < b for a, b in itertools.pairwise(nodes)):
            raise DomainError(f"times: expected increasing finite times, got {nodes}")
        if values.ndim < len(box) + 1 + block or (block and values.shape[-len(box) - 1] != len(nodes)):
            wanted = f"[*batch, c, {len(nodes)}, *n]" if block else "[*batch, c, *n]"
            raise ShapeError(f"values: expected {wanted} with {len(box)} axes of space, got {list(values.shape)}")
        counts = values.shape[-len(box) :]
        if not block:
            values = values.unsqueeze(-len(box) - 1)
        cells = [count if whole else count - 1 for count, whole in zip(counts, cyclic, strict=True)]
        if min(cells) < 1:
            raise ShapeError(f"values: expected at least 2 points along each axis, got {list(counts)}")
        steps = torch.diag(
            torch.tensor([(high - low) / n for (low, high), n in zip(box, cells, strict=True)], dtype=torch.float64)
        )
        origin = torch.tensor([[*(low for low, _ in box), t] for t in nodes], dtype=torch.float64)
        batch = values.shape[: -len(box) - 2]
        return cls(
            values,
            Grid(
                origin.to(values).expand(*batch, -1, -1),
                steps.to(values).expand(*batch, len(nodes), -1, -1),
            ),
        )

    @property
    def counts(self) -> torch.Size:
        """Numbers of points along the axes of space, d integers."""
        return self.values.shape[-(self.grid.origin.shape[-1] - 1) :]

    def take(self, rows: Int[Tensor, " m"] | Sequence[int]) -> Field:
        """Return the fields whose numbers along the first batch dimension are ``rows``, m integers."""
        rows = rows if isinstance(rows, Tensor) else list(rows)  # a tuple would index several dimensions
        return Field(self.values[rows], Grid(*(leaf[rows] for leaf in self.grid)))

    def slice(self, index: int) -> Field:
        """Return the field at one of its times.

        Args:
            index: number of the time; negative ones count from the end.

        Raises:
            DomainError: the field has no time of this number.
        """
        times = self.values.shape[-1 - len(self.counts)]
        if not -times <= index < times:
            raise DomainError(f"index: expected the index of one of {times} times, got {index}")
        values = self.values.movedim(-1 - len(self.counts), 0)[index].unsqueeze(-1 - len(self.counts))
        origin, steps = self.grid.origin.movedim(-2, 0)[index], self.grid.steps.movedim(-3, 0)[index]
        return Field(values, Grid(origin.unsqueeze(-2), steps.unsqueeze(-3)))

    def points(self) -> Float[Tensor, "*batch p n"]:
        """The points (x, t) of the grid, time by time, ``[*batch, p, d + 1]``."""
        return self.grid.points(*self.counts).flatten(-2 - len(self.counts), -2)

    def to_points(self) -> Float[Tensor, "*batch p m"]:
        """The jets (x, t, u), ``[*batch, p, d + 1 + c]``, such as `OperatorInput` holds."""
        values = self.values.flatten(-1 - len(self.counts)).mT
        points = self.points()
        batch = broadcast_shapes(points.shape[:-2], values.shape[:-2])
        return torch.cat([points.expand(*batch, -1, -1), values.expand(*batch, -1, -1)], -1)

    @classmethod
    def from_points(cls, points: Float[Tensor, "*batch p m"], counts: Sequence[int]) -> Field:
        """The field whose `to_points` these are.

        Args:
            points: jets (x, t, u).
            counts: (s, n_1, ..., n_d): the number of times, and of points along each axis.

        Raises:
            ShapeError: the number of points is not the product of the counts, or an axis has one point.
            DomainError: the points are not those of a `Grid`.
        """
        times, *space = counts
        dims = len(space)
        if points.shape[-2] != math.prod(counts) or points.shape[-1] < dims + 2 or min(space) < 2:
            raise ShapeError(
                f"points: expected [*batch, {math.prod(counts)}, more than {dims + 1}] for counts {list(counts)}, each "
                f"of space at least 2, got {list(points.shape)}"
            )
        jets = points.unflatten(-2, tuple(counts))
        base = jets[..., : dims + 1]
        first = base.flatten(-2 - dims, -2).unflatten(-2, (times, -1))
        origin = first[..., 0, :]
        strides = [math.prod(space[axis + 1 :]) for axis in range(dims)]
        ends = [first[..., stride * (count - 1), :] for stride, count in zip(strides, space, strict=True)]
        steps = torch.stack([(end - origin)[..., :-1] / (n - 1) for end, n in zip(ends, space, strict=True)], -2)
        grid = Grid(origin, steps)
        error = (grid.points(*space) - base).abs().amax()
        if not bool(error <= tolerance(base) * (1 + base.abs().amax())):
            raise DomainError(f"points: expected a regular grid at each time, got points {float(error):.3g} off it")
        return cls(torch.movedim(jets[..., dims + 1 :], -1, -2 - dims), grid)


@checked
class FieldAction(Action):
    r"""The action of point symmetries on fields: an element moves the graph of u to the graph of another function.

    .. math:: \{(x, t, u(x, t))\} \mapsto \{g \cdot (x, t, u(x, t))\}

    The grid moves along: the result is a `Field` on the image of the grid, and nothing is interpolated. The group law,
    inverses and solutions of an equation are kept to rounding; `resample` brings the result to any grid. This needs a
    group that maps each time to one time, affinely in x, as most groups of evolution equations do. The periods of a
    periodic field move like its grid: a scaling changes the length of the circle.

    With ``regrid`` the result is resampled on the original grid by `resample`, and the group law holds up to the error
    of resampling: exactly for translations of a field whose axes are periodic and whose grid resolves it. Any group
    acts in this way, also groups that mix x and t (Lorentz boosts), or move x by u.

    - An element that changes the period of a periodic field (a scaling, a rotation of a box) gives the values of the
      moved field, which has another period, at the points of the grid. These values are right, but they are no period
      of a field. A second element or `resample`, which take them as one, see a jump at the ends, unless the field is
      constant there (eddies in the middle of a large box); `is_valid` does not tell.
    - Points that the moved field does not reach are NaN: near ends that are not periodic, and all points of a field at
      a single time that the group moves, since its values at the old time then depend on its equation.
    - The whole datum is NaN where the moved graph is no function (a wave that broke) or the transformation tears it (a
      denominator changes sign).

    Args:
        group: a group with an action on jets (x_1, ..., x_d, t, u_1, ..., u_c): a shipped one, one from
            `from_generators`, or one that `find_symmetries` found.
        periodic: whether fields are periodic along each of the d axes of space.
        regrid: whether moved fields are resampled on the original grid.

    Raises:
        ConfigurationError: the group has no action in so many dimensions, adds something to u that changes along a
            periodic axis, or (without ``regrid``) does not carry grids to grids; the message names the generator.
    """

    def __init__(self, group: LieGroup, periodic: Sequence[bool] = (True,), regrid: bool = False) -> None:
        check_type("group", group, LieGroup)  # type: ignore[type-abstract]
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
            counts: numbers of points of the new grid along the axes of space; default: the numbers of ``x``.

        Returns:
            The interpolated field, see `trivgeo.actions.resample`.
        """
        return resample(x, grid, self.periodic, counts)

    def is_valid(self, g: Tensor, x: Field) -> Bool[Tensor, "*batch"]:
        """Return True where the field ``g.x`` is known at all points of its grid."""
        y = self(g, x)
        known = torch.isfinite(y.values).flatten(-2 - self.dims).all(-1)
        return known & torch.isfinite(y.grid.origin).flatten(-2).all(-1)

    def log_abs_det_jacobian(self, g: Tensor, x: Field) -> Float[Tensor, "*batch"]:
        r"""Return the sum over the grid of :math:`\log |\det \partial u' / \partial u|`, plus the term of the grid,
        ``[*batch]``.

        The term of the grid is the log-determinant of the map of its points and steps. With ``regrid`` it is half of
        :math:`c \log|\det D (x', t') / D (x, t)|` at each point, as in `ImageWarp`, with total derivatives along the
        graph of u. If (x, t) moves by u, the derivative of the moved u at the moved point is
        :math:`\det \partial (x', t', u') / \partial (x, t, u)` divided by :math:`\det D (x', t') / D (x, t)`.
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
        return x.values.shape[: -2 - self.dims]

    def check_data(self, x: Any, name: str = "x") -> None:
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

    def _fibre(self, jets: Tensor, reference: Field) -> Tensor:
        """Values ``[*batch, c, s, *n]`` of jets in the order of `Field.to_points`."""
        values = jets[..., self.dims + 1 :].mT
        return values.unflatten(-1, reference.values.shape[-1 - self.dims :])

    def _corners(self, x: Field) -> Tensor:
        """The first point at each time, and the ends of the axes a period away, ``[*batch, s, d + 1, d + 1]``."""
        lengths = torch.tensor(x.counts, dtype=x.values.dtype, device=x.values.device)
        edges = lengths.unsqueeze(-1) * x.grid.steps
        edges = torch.cat([edges, torch.zeros_like(edges[..., :1])], -1)
        origin = x.grid.origin.unsqueeze(-2)
        return torch.cat([origin, origin + edges], -2)

    def _moved(self, g: Tensor, x: Field) -> Grid:
        corners = self._corners(x)
        image = self.point_action(g, corners.flatten(-3, -2)).unflatten(-2, corners.shape[-3:-1])
        lengths = torch.tensor(x.counts, dtype=image.dtype, device=image.device)
        edges = (image[..., 1:, :-1] - image[..., :1, :-1]) / lengths.unsqueeze(-1)
        return Grid(image[..., 0, :], edges)

    def _kept(self, g: Tensor, x: Field) -> Bool[Tensor, "*batch"]:
        """Whether the denominator has one sign on the whole field."""
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
        """Values of u at points (x, t), ``[*batch, p, c]``, and whether u is known there."""
        undefined = torch.isnan(points).any(-1)
        points = torch.where(undefined.unsqueeze(-1), 0.0, points)
        groups = (
            points.unflatten(-2, (x.values.shape[-1 - self.dims], -1)) if self._keeps_grids else points[..., None, :]
        )
        u, covered = evaluate(x, groups, groups[..., 0, -1], self.periodic)
        return u.flatten(-2).mT, covered.flatten(-2) & ~undefined

    def _slopes(self, x: Field) -> Tensor:
        """The derivatives of u by (x, t) at the points of the grid, ``[*batch, p, c, d + 1]``.

        The derivative by t is zero for fields at fewer times than interpolation needs: it then has no effect on the
        determinant, as long as the group does not move the time.
        """

        def known(points: Tensor) -> Tensor:
            u, covered = self._values(x, points)
            return torch.where(covered.unsqueeze(-1), u, math.nan)

        return jvp_columns(known, x.points())

    def _solved(self, g: Tensor, inverse: Tensor, x: Field, target: Tensor) -> tuple[Tensor, Tensor]:
        """Solve for moved jets over given points (x, t), where the group moves (x, t) by u; a mask of those found.

        Newton's method finds the moved u: the preimage of the point (x, t, u) has to be on the graph of the field.
        """
        jets = x.to_points()
        unknowns = jets.shape[-1] - self.dims - 1

        def miss(u: Tensor, g: Tensor) -> Tensor:
            source = self.point_action(g, torch.cat([target.expand(*u.shape[:-1], -1), u], -1))
            return self._values(x, source[..., :-unknowns])[0] - source[..., -unknowns:]

        batch = broadcast_shapes(self.group.batch_shape(g), jets.shape[:-2])
        u = jets[..., -unknowns:].expand(*batch, -1, -1)
        for _ in range(_NUM_NEWTON_STEPS):
            slope = jvp_columns(lambda u: miss(u, inverse), u)
            u = u - matmul(torch.linalg.inv_ex(slope).inverse, miss(u, inverse).unsqueeze(-1)).squeeze(-1)
        y = torch.cat([target.expand(*batch, -1, -1), u], -1)
        source = self.point_action(inverse, y)
        _, covered = self._values(x, source[..., :-unknowns])
        error = miss(u, inverse).abs().amax(-1)
        found = error <= _PROBE_TOLERANCE * (1.0 + jets[..., -unknowns:].abs().amax())
        return y, covered & found & ~self._folded(g, x).unsqueeze(-1)

    def _folded(self, g: Tensor, x: Field) -> Bool[Tensor, "*batch"]:
        """Whether the moved graph is no function of (x, t): its cells do not all keep their orientation."""
        d, values = self.dims, x.values
        for axis, cyclic in enumerate(self.periodic):  # the first point closes a period
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
            return matrix_functions(matrix.shape[-1]).determinant(matrix).flatten(-1 - d)

        sign = orientation(before) * orientation(after)
        return ~((sign > 0).all(-1) | (sign < 0).all(-1))

    # What the group does to grids ----------------------------------------------------------------------------

    def _check_generators(self) -> bool:
        """Whether generators carry grids to grids.

        Raises:
            ConfigurationError: they do not without ``regrid``, or do not keep fields periodic.
        """
        keeps = self._projectable
        for name, v in zip(self.group.algebra.names, torch.eye(self.group.dim, dtype=torch.float64), strict=True):
            g = self.group.exp(_PROBE_LENGTH * v / self.group.basis.rows.norm(dim=-1).clamp(min=1.0).max())
            self._check_period(name, g)
            if keeps and not self._affine_in_space(g):
                if not self.regrid:
                    raise ConfigurationError(
                        f"group: expected generators that carry grids to grids, but {name} does not carry one time to "
                        "one time, affinely in x. Fields follow it with regrid=True"
                    )
                keeps = False
        return keeps

    def _affine_in_space(self, g: Tensor) -> bool:
        """Whether images of points at one time have one time, and places affine in x."""
        places = torch.cartesian_prod(*(torch.tensor([0.7, 1.0, 1.3], dtype=torch.float64),) * self.dims)
        places = places.reshape(-1, self.dims)
        points = torch.cat([places, torch.full_like(places[:, :1], 0.9)], -1)
        image = self.point_action(g, points)
        plane = torch.cat([places, torch.ones_like(places[:, :1])], -1)
        fit = matmul(plane, matmul(torch.linalg.pinv(plane), image[:, :-1]))
        error = torch.cat([image[:, :-1] - fit, image[:, -1:] - image[:1, -1:]], -1).abs().amax()
        return bool(error <= _PROBE_TOLERANCE * (1.0 + image.abs().amax()))

    def _check_period(self, name: str, g: Tensor) -> None:
        """Raise `ConfigurationError` if the change of u by a generator varies along a periodic axis."""
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


def _rows(mask: Tensor, x: Tensor) -> Tensor:
    """A mask ``[*batch]`` with dimensions of size one appended, as many as ``x`` has more."""
    return mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))


@checked
def resample(
    field: Field,
    grid: Grid,
    periodic: Sequence[bool] = (True,),
    counts: Sequence[int] | None = None,
    extrapolated: float | None = None,
) -> Field:
    """Interpolate a field on another grid; NaN at points outside of the field, or if its times do not increase.

    Periodic axes have trigonometric interpolation, exact for fields that the grid resolves; other axes and the time
    cubic Lagrange interpolation from the four nearest nodes, with an error O(h^4). A field at fewer than four times is
    known at these times alone, unless ``extrapolated`` is given.

    Args:
        field: values with their grid.
        grid: positions of the new values; its batch broadcasts against that of the field.
        periodic: whether each axis of the field is periodic.
        counts: numbers of points of the new grid along its axes; default: the numbers of the field.
        extrapolated: largest distance of a time from the nodes, as a share of the time between the first and the last
            node; fewer than four nodes are then interpolated by the polynomial through all of them.

    Raises:
        ShapeError: the grid has another number of axes than the field, batches do not broadcast, or an axis that is
            not periodic has fewer than four points.
    """
    counts = field.counts if counts is None else torch.Size(counts)
    axes, of_grid, of_counts = len(field.counts), grid.origin.shape[-1] - 1, len(counts)
    if not axes == of_grid == of_counts:
        raise ShapeError(f"grid: expected one of {axes} axes of space, got {of_grid} and counts {list(counts)}")
    try:
        broadcast_shapes(field.grid.origin.shape[:-2], grid.origin.shape[:-2])
    except RuntimeError as error:
        raise ShapeError(
            f"grid: expected a batch that broadcasts with {list(field.grid.origin.shape[:-2])}, got "
            f"{list(grid.origin.shape[:-2])}"
        ) from error
    points = grid.points(*counts).flatten(-1 - len(counts), -2)
    values, covered = evaluate(field, points, grid.times, periodic, extrapolated)
    values = torch.where(covered.unsqueeze(-3), values, math.nan)
    return Field(values.unflatten(-1, tuple(counts)), grid)


def evaluate(
    field: Field,
    points: Float[Tensor, "*batch r m n"],
    times: Float[Tensor, "*batch r"],
    periodic: Sequence[bool],
    extrapolated: float | None = None,
) -> tuple[Float[Tensor, "*out c r m"], Bool[Tensor, "*out r m"]]:
    """Values at r groups of m points (x, t), each group at one time, and whether the field is known there.

    Values are finite also where it is not known.

    Raises:
        ShapeError: see `resample`.
    """
    counts = field.counts
    if len(periodic) != len(counts):
        raise ShapeError(f"periodic: expected one for each of {len(counts)} axes of space, got {list(periodic)}")
    for axis, count in enumerate(counts):
        if count < _NUM_NODES and not periodic[axis]:
            raise ShapeError(f"values: expected at least {_NUM_NODES} points on axis {axis}, got {count}")
    nodes, weights, covered = _time_weights(field.grid.times, times, extrapolated)
    unknown = torch.isnan(field.values)
    dims = len(counts)
    coefficients = _time_first(_coefficients(torch.where(unknown, 0.0, field.values), periodic), dims)
    holes = unknown.any(-2 - dims, keepdim=True)
    for axis, cyclic in enumerate(periodic):  # one unknown value makes a trigonometric series unknown
        holes = holes.any(axis - dims, keepdim=True) if cyclic else holes
    holes = _time_first(holes.to(coefficients), dims)
    total, inside = None, covered.unsqueeze(-1)
    for k in range(nodes.shape[-1]):
        index, weight = nodes[..., k], weights[..., k, None]
        origin, steps = _take(field.grid.origin, index, 1)[..., :-1], _take(field.grid.steps, index, 2)
        position = matmul(points[..., :-1] - origin.unsqueeze(-2), _inverse(steps))
        bases, reached = _bases(position, counts, periodic)
        value = _summed(_take(coefficients, index, dims + 1), bases)
        hole = _summed(_take(holes, index, dims + 1), _used(bases, periodic))
        part = weight.unsqueeze(-2) * value
        total = part if total is None else total + part
        # a node whose weight is rounding may be unknown
        inside = inside & ((reached & (hole.squeeze(-2) == 0)) | (weight.abs() <= tolerance(weight)))
    assert total is not None
    return total.movedim(-2, -3), inside


def tolerance(reference: Tensor) -> float:
    """Relative difference up to which numbers count as equal."""
    return float(torch.finfo(reference.dtype).eps ** _TOLERANCE_EXPONENT)


def _take(x: Tensor, index: Tensor, event: int) -> Tensor:
    """Slices ``[*batch, r, ...]`` of ``[*batch, s, ...]``, where a slice has ``event`` dimensions."""
    batch = broadcast_shapes(x.shape[: -event - 1], index.shape[:-1])
    x, index = x.expand(*batch, *x.shape[-event - 1 :]), index.expand(*batch, -1)
    return x.gather(len(batch), index[..., *[None] * event].expand(*index.shape, *x.shape[-event:]))


def _inverse(steps: Tensor) -> Tensor:
    """The inverses of matrices ``[*batch, d, d]``."""
    return 1.0 / steps if steps.shape[-1] == 1 else torch.linalg.inv_ex(steps).inverse


def _time_weights(times: Tensor, at: Tensor, extrapolated: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers ``[*batch, r, k]`` of the slices that a time is interpolated from, weights, and whether it is covered."""
    batch = broadcast_shapes(times.shape[:-1], at.shape[:-1])
    times, at = times.expand(*batch, -1), at.expand(*batch, -1)
    near = tolerance(times) * (1.0 + times.abs().amax(-1, keepdim=True))
    count = times.shape[-1] if extrapolated is not None and 1 < times.shape[-1] < _NUM_NODES else _NUM_NODES
    if times.shape[-1] < count:
        distance, index = (at.unsqueeze(-1) - times.unsqueeze(-2)).abs().min(-1)
        return index.unsqueeze(-1), torch.ones_like(at).unsqueeze(-1), distance <= near
    beyond = (extrapolated or 0.0) * (times[..., -1:] - times[..., :1])
    low, high = times[..., :1] - beyond, times[..., -1:] + beyond
    covered = (at >= low - near) & (at <= high + near)
    covered = covered & (times.diff(dim=-1) > 0).all(-1, keepdim=True)  # only then nearest nodes are neighbours
    at = _held(at, torch.minimum(torch.maximum(at, low), high), covered)
    first = (at.unsqueeze(-1) >= times.unsqueeze(-2)).sum(-1) - 2
    index = first.clamp(0, times.shape[-1] - count).unsqueeze(-1) + torch.arange(count, device=at.device)
    return index, lagrange_weights(at, times.gather(-1, index.flatten(-2)).reshape(index.shape)), covered


def _held(at: Tensor, between: Tensor, covered: Tensor) -> Tensor:
    """Positions clamped to the ends; a covered one, which rounding took beyond an end, keeps its derivative."""
    return torch.where(covered, at + (between - at).detach(), between)


def lagrange_weights(at: Tensor, nodes: Tensor) -> Tensor:
    """The weights ``[..., k]`` of Lagrange interpolation at ``[...]`` from nodes ``[..., k]``."""
    weights = []
    for i in range(nodes.shape[-1]):
        weight = torch.ones_like(at)
        for j in range(nodes.shape[-1]):
            if j != i:
                weight = weight * ((at - nodes[..., j]) / (nodes[..., i] - nodes[..., j]))
        weights.append(weight)
    return torch.stack(weights, -1)


def _time_first(values: Tensor, dims: int) -> Tensor:
    """``[*batch, c, s, *n]`` to ``[*batch, s, c, *n]``."""
    return values.movedim(-1 - dims, -2 - dims)


def _coefficients(values: Tensor, periodic: Sequence[bool]) -> Tensor:
    """Coefficients of the basis of each axis: of cosines and sines on periodic axes, else the values."""
    for axis, cyclic in enumerate(periodic):
        if cyclic:
            dim = axis - len(periodic)
            modes = torch.fft.rfft(values, dim=dim, norm="forward")
            values = torch.cat([modes.real, modes.imag], dim)
    return values


def _bases(position: Tensor, counts: Sequence[int], periodic: Sequence[bool]) -> tuple[list[Tensor], Tensor]:
    """The basis of each axis, ``[*batch, r, m, k]``, and which places are inside.

    Places ``[*batch, r, m, d]`` are in units of the steps.
    """
    bases, inside = [], torch.ones_like(position[..., 0], dtype=torch.bool)
    for axis, (count, cyclic) in enumerate(zip(counts, periodic, strict=True)):
        at = position[..., axis]
        if cyclic:
            bases.append(_trigonometric(at, count))
        else:
            near = count * tolerance(at)
            reached = (at >= -near) & (at <= count - 1 + near)
            inside = inside & reached
            bases.append(_cubic(_held(at, at.clamp(0, count - 1), reached), count))
    return bases, inside


def _used(bases: Sequence[Tensor], periodic: Sequence[bool]) -> list[Tensor]:
    """Ones for nodes whose weight in a basis is more than rounding, zeros for others; a periodic axis is one node."""
    return [
        torch.ones_like(basis[..., :1]) if cyclic else (basis.abs() > tolerance(basis)).to(basis)
        for basis, cyclic in zip(bases, periodic, strict=True)
    ]


def _summed(value: Tensor, bases: Sequence[Tensor]) -> Tensor:
    """Coefficients ``[*batch, r, c, *k]`` times bases ``[*batch, r, m, k]``, ``[*batch, r, c, m]``."""
    last = len(bases) - 1
    value = matmul(value, bases[last].mT[..., *[None] * last, :, :])
    for axis in reversed(range(last)):
        value = (value * bases[axis].mT[..., *[None] * (axis + 1), :, :]).sum(-2)
    return value


def _trigonometric(at: Tensor, count: int) -> Tensor:
    """Cosines and minus sines of the resolved waves at places in units of the step, ``[..., 2 (n // 2 + 1)]``."""
    wave = torch.arange(count // 2 + 1, dtype=at.dtype, device=at.device)
    twice = torch.where((wave == 0) | (2 * wave == count), 1.0, 2.0)
    angle = (2.0 * math.pi / count) * torch.remainder(at, count).unsqueeze(-1) * wave
    return torch.cat([twice * angle.cos(), -twice * angle.sin()], -1)


def _cubic(at: Tensor, count: int) -> Tensor:
    """Weights of all n nodes 0, ..., n - 1, ``[..., n]``, of which four are not zero."""
    first = (at.detach().floor() - 1).clamp(0, count - _NUM_NODES).unsqueeze(-1)
    nodes = first + torch.arange(_NUM_NODES, dtype=at.dtype, device=at.device)
    weights = lagrange_weights(at, nodes)
    every = torch.arange(count, dtype=at.dtype, device=at.device)
    return torch.where(nodes.unsqueeze(-1) == every, weights.unsqueeze(-1), 0.0).sum(-2)
