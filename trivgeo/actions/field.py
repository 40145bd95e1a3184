"""Fields: functions of space and time sampled on regular grids, which may differ from one time to the next."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import broadcast_shapes
from trivgeo._text import described
from trivgeo.errors import DomainError, ShapeError

__all__ = ["Field", "Grid", "resample"]

_NODES = 4  # of the cubic interpolation
_EXTRA = 0.7  # times and places are equal if they differ by eps^0.7


class Grid(NamedTuple):
    r"""A lattice of points in d dimensions of space at each of s times.

    Point :math:`(i_1, \dots, i_d)` at one time is :math:`x = x_0 + \sum_k i_k h_k`, with its own :math:`x_0` and
    :math:`h_k` at every time: point symmetries that map times to times and are affine in x, among them all scalings,
    rotations, Galilean boosts, and the projective ones of heat and Burgers, carry grids to grids, exactly.

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


class Field(NamedTuple):
    """Values of c unknowns on a `Grid`: a slice at one time (s = 1), or a block of space and time.

    ```python
    slice = Field.on_box(u0, [(0.0, 16.0)])  # u0 [b, 1, n], periodic
    block = Field.on_box(u, [(0.0, 16.0)], times=[0.0, 0.5, 1.0])  # u [b, 1, 3, n]
    ```

    Attributes:
        values: ``[*batch, c, s, *n]``.
        grid: where they are.
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
            periodic: whether the upper end of each range, being the lower one again, is left out of the grid; one for
                all axes, or one for each.

        Raises:
            ShapeError: fewer dimensions than that, or not as many times; or not as many ranges as values of
                ``periodic``.
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
            raise DomainError(f"times: expected increasing ones, got {nodes}")
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
            DomainError: the points are no `Grid`.
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


def resample(
    field: Field,
    grid: Grid,
    periodic: Sequence[bool] = (True,),
    counts: Sequence[int] | None = None,
    extrapolated: float | None = None,
) -> Field:
    """Interpolate a field on another grid; NaN at points outside of the field, or if its times do not increase.

    Along periodic axes by trigonometric interpolation, exact for what the grid resolves; along others and in time by
    cubic Lagrange interpolation from the four nearest nodes, error O(h^4). A field at fewer than four times is known at
    these alone, unless ``extrapolated`` is given.

    Args:
        field: values with their grid.
        grid: where; its batch broadcasts against that of the field.
        periodic: whether each axis of the field is.
        counts: numbers of points of the grid along its axes; default those of the field.
        extrapolated: the share of the time between the first and the last node up to which times outside are
            extrapolated; fewer than four nodes are then interpolated by the polynomial through all of them.

    Raises:
        ShapeError: a number of axes that is not the field's, batches that do not broadcast, or fewer than four points
            on an axis that is not periodic.
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
    """Values at r groups of m points (x, t), each group at one time; finite everywhere, and where they mean something.

    Raises:
        ShapeError: see `resample`.
    """
    counts = field.counts
    if len(periodic) != len(counts):
        raise ShapeError(f"periodic: expected one for each of {len(counts)} axes of space, got {list(periodic)}")
    for axis, count in enumerate(counts):
        if count < _NODES and not periodic[axis]:
            raise ShapeError(f"values: expected at least {_NODES} points on axis {axis}, got {count}")
    nodes, weights, covered = _time_weights(field.grid.times, times, extrapolated)
    unknown = torch.isnan(field.values)
    dims = len(counts)
    coefficients = _time_first(_coefficients(torch.where(unknown, 0.0, field.values), periodic), dims)
    holes = unknown.any(-2 - dims, keepdim=True)
    for axis, cyclic in enumerate(periodic):  # one hole spoils a trigonometric series
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
        # nodes that are read by no more than rounding are not asked
        inside = inside & ((reached & (hole.squeeze(-2) == 0)) | (weight.abs() <= tolerance(weight)))
    assert total is not None
    return total.movedim(-2, -3), inside


def tolerance(like: Tensor) -> float:
    """How far numbers that are meant to be equal may differ, relative to one."""
    return float(torch.finfo(like.dtype).eps ** _EXTRA)


def _take(x: Tensor, index: Tensor, event: int) -> Tensor:
    """Slices ``[*batch, r, ...]`` of ``[*batch, s, ...]``, whose last ``event`` dimensions are of one slice."""
    batch = broadcast_shapes(x.shape[: -event - 1], index.shape[:-1])
    x, index = x.expand(*batch, *x.shape[-event - 1 :]), index.expand(*batch, -1)
    return x.gather(len(batch), index[..., *[None] * event].expand(*index.shape, *x.shape[-event:]))


def _inverse(steps: Tensor) -> Tensor:
    """The inverses of matrices ``[*batch, d, d]``."""
    return 1.0 / steps if steps.shape[-1] == 1 else torch.linalg.inv_ex(steps).inverse


def _time_weights(times: Tensor, at: Tensor, extrapolated: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """The slices ``[*batch, r, k]`` that a time is interpolated from, their weights, and whether it is covered."""
    batch = broadcast_shapes(times.shape[:-1], at.shape[:-1])
    times, at = times.expand(*batch, -1), at.expand(*batch, -1)
    near = tolerance(times) * (1.0 + times.abs().amax(-1, keepdim=True))
    count = times.shape[-1] if extrapolated is not None and 1 < times.shape[-1] < _NODES else _NODES
    if times.shape[-1] < count:
        distance, index = (at.unsqueeze(-1) - times.unsqueeze(-2)).abs().min(-1)
        return index.unsqueeze(-1), torch.ones_like(at).unsqueeze(-1), distance <= near
    beyond = (extrapolated or 0.0) * (times[..., -1:] - times[..., :1])
    low, high = times[..., :1] - beyond, times[..., -1:] + beyond
    covered = (at >= low - near) & (at <= high + near)
    covered = covered & (times.diff(dim=-1) > 0).all(-1, keepdim=True)  # in no other order are four nodes the nearest
    at = _held(at, torch.minimum(torch.maximum(at, low), high), covered)
    first = (at.unsqueeze(-1) >= times.unsqueeze(-2)).sum(-1) - 2
    index = first.clamp(0, times.shape[-1] - count).unsqueeze(-1) + torch.arange(count, device=at.device)
    return index, _lagrange(at, times.gather(-1, index.flatten(-2)).reshape(index.shape)), covered


def _held(at: Tensor, between: Tensor, covered: Tensor) -> Tensor:
    """Those between the ends; one that is off them by rounding keeps the derivative that it has there."""
    return torch.where(covered, at + (between - at).detach(), between)


def _lagrange(at: Tensor, nodes: Tensor) -> Tensor:
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
    """What the basis of each axis multiplies: cosine and sine coefficients, or the values."""
    for axis, cyclic in enumerate(periodic):
        if cyclic:
            dim = axis - len(periodic)
            modes = torch.fft.rfft(values, dim=dim, norm="forward")
            values = torch.cat([modes.real, modes.imag], dim)
    return values


def _bases(position: Tensor, counts: Sequence[int], periodic: Sequence[bool]) -> tuple[list[Tensor], Tensor]:
    """For each axis the basis ``[*batch, r, m, k]`` at places in units of the steps ``[*batch, r, m, d]``.

    And which places are inside.
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
    """One where a basis reads a node by more than rounding, zero elsewhere; periodic axes are read as a whole."""
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
    """Weights of all n nodes 0, ..., n - 1, four of them not zero, ``[..., n]``."""
    first = (at.detach().floor() - 1).clamp(0, count - _NODES).unsqueeze(-1)
    nodes = first + torch.arange(_NODES, dtype=at.dtype, device=at.device)
    weights = _lagrange(at, nodes)
    every = torch.arange(count, dtype=at.dtype, device=at.device)
    return torch.where(nodes.unsqueeze(-1) == every, weights.unsqueeze(-1), 0.0).sum(-2)
