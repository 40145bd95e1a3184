"""Solutions from files: HDF5 in the layouts of PDEBench and of The Well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trivgeo.actions.field import Field, Grid
from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError, missing_package

__all__ = ["Solutions", "read_solutions"]

_SPACE_NAMES = ("x", "y", "z")
_MAX_STEP_ERROR = 0.01  # difference of the steps of a grid, relative to a step, above which it is not regular
_WELL_RANKS = {"t0_fields": 0, "t1_fields": 1, "t2_fields": 2}


class Solutions(NamedTuple):
    """Solutions from a file.

    Attributes:
        field: values ``[b, c, s, *n]`` on a grid that all solutions share.
        names: the name in the file of each of the c unknowns; components of vectors end in ``_x``, ``_y``, ``_z``.
        periodic: whether the file says that solutions are periodic, for each axis of space.
    """

    field: Field
    names: tuple[str, ...]
    periodic: tuple[bool, ...]


class _Part(NamedTuple):
    """Where a file holds an unknown.

    Attributes:
        data: one data set, or one for each solution.
        has: whether a data set has an axis of solutions, of times, and each axis of space; these come in this order.
        component: index along the axes that follow.
    """

    data: list[Any]
    has: tuple[bool, ...]
    component: tuple[int, ...] = ()


class _Layout(NamedTuple):
    """Where a file holds what.

    Attributes:
        axes: coordinates of time and of each axis of space.
        periodic: see `Solutions`.
        parts: the unknowns by name.
    """

    axes: list[NDArray[np.float64]]
    periodic: tuple[bool, ...]
    parts: dict[str, _Part]


def read_solutions(
    path: str | Path,
    *,
    names: Sequence[str] | None = None,
    number: int | None = None,
    stride: int | Sequence[int] = 1,
    dtype: torch.dtype = torch.float32,
) -> Solutions:
    """Read solutions of an evolution equation from an HDF5 file of PDEBench or of The Well.

    Of PDEBench (Takamoto and others 2022) these are files with one data set for each unknown and ``x-coordinate``,
    ``t-coordinate``, and files with one group for each solution, which holds ``data`` and ``grid``. Of The Well (Ohana
    and others 2024) these are Cartesian files with ``dimensions`` and ``t0_fields``, ``t1_fields``, ``t2_fields``.
    Only what is asked for is read.

    ```python
    solutions = read_solutions("1D_Burgers_Sols_Nu0.1.hdf5", number=20, stride=(2, 4))
    symmetries_from_data(solutions.field)
    EquivariantOperator.from_equation(equation, network, solutions.field.slice(0), times=[1.0])
    ```

    Args:
        path: of the file.
        names: the unknowns, in this order; default: all that change in time, as the file has them.
        number: how many solutions, the first; default: all.
        stride: of every so many times and places one is kept; one for time and all axes, or one for each of
            ``(t, x, ...)``.
        dtype: dtype of the values and the grid.

    Raises:
        ConfigurationError: there is no such file, or it is no HDF5 file, or of another layout, or has no such unknown;
            or its solutions are steady, or its grid is not regular; or h5py is not installed.
        ShapeError: data sets do not fit their coordinates, or too few times or places are left.
        NonFiniteError: values are NaN or infinite.
    """
    try:
        import h5py
    except ImportError as missing:
        raise missing_package("path", "h5py", "hdf5") from missing
    if number is not None:
        check_count("number", number)
    if not Path(path).is_file():
        raise ConfigurationError(f"path: expected an HDF5 file, got {str(path)!r}, which is none")
    try:
        opened = h5py.File(path, "r")
    except OSError as error:
        raise ConfigurationError(f"path: expected an HDF5 file, got {str(path)!r}: {error}") from error
    with closing(opened) as file:
        layout = _layout_of(file)
        known = ", ".join(layout.parts)
        chosen = list(layout.parts) if names is None else list(names)
        if names is None:
            chosen = [name for name, part in layout.parts.items() if part.has[1]]
        if not chosen or any(name not in layout.parts for name in chosen):
            raise ConfigurationError(f"names: expected some of {known}, got {chosen}")
        strides = [stride] * len(layout.axes) if isinstance(stride, int) else list(stride)
        if len(strides) != len(layout.axes) or any(not isinstance(k, int) or k < 1 for k in strides):
            raise ConfigurationError(
                f"stride: expected a positive integer, or {len(layout.axes)} of them for (t, x, ...), got {stride!r}"
            )
        axes = [axis[::k] for axis, k in zip(layout.axes, strides, strict=True)]
        if min(map(len, axes)) < 2:
            raise ShapeError(f"stride: expected at least 2 times and places, got {[len(axis) for axis in axes]}")
        read = [_values_of(name, layout, number, strides) for name in chosen]
    counts = {len(values) for values in read if len(values) > 1} or {1}
    if len(counts) > 1:
        raise ShapeError(f"names: expected unknowns of as many solutions, got {sorted(counts)} for {chosen}")
    values = torch.stack([v.to(dtype).expand(max(counts), *v.shape[1:]) for v in read], 1)
    if not bool(values.isfinite().all()):
        bad = int((~values.isfinite().flatten(1).all(1)).sum())
        raise NonFiniteError(f"path: expected finite values, got NaN or infinity in {bad} of {len(values)} solutions")
    return Solutions(Field(values, _grid_of(axes, len(values), dtype)), tuple(chosen), layout.periodic)


def _layout_of(file: Any) -> _Layout:
    """Find out how a file is laid out."""
    if "dimensions" in file and any(group in file for group in _WELL_RANKS):
        return _well_layout(file)
    seeds = [key for key in file if hasattr(file[key], "keys") and "data" in file[key]]
    if seeds:
        return _seed_layout(file, seeds)
    found = ", ".join(f"{key} {list(getattr(file[key], 'shape', ['group']))}" for key in file) or "nothing"
    if "t-coordinate" not in file or "x-coordinate" not in file:
        raise ConfigurationError(
            "path: expected the layout of PDEBench (data sets with x-coordinate and t-coordinate, or a group for each "
            f"solution with data and grid) or of The Well (dimensions and t0_fields), got {found}"
        )
    axes = _coordinates(
        [("t-coordinate", file["t-coordinate"])],
        [(f"{x}-coordinate", file.get(f"{x}-coordinate")) for x in _SPACE_NAMES],
    )
    shape = [len(axis) for axis in axes]
    parts, times = {}, 0
    for key, data in file.items():
        if not key.endswith("-coordinate") and getattr(data, "ndim", 0) == len(shape) + 1:
            parts[key], times = _Part([data], (True,) * data.ndim), data.shape[1]
    if not parts:
        raise ConfigurationError(
            f"path: expected data sets [b, {', '.join(map(str, shape))}] of solutions, times and places, got {found}"
        )
    if len(axes[0]) == times + 1:  # files of PDEBench hold the ends of the intervals of time, one more than states
        axes[0] = axes[0][:times]
    return _Layout(axes, (False,) * (len(axes) - 1), parts)


def _seed_layout(file: Any, seeds: list[str]) -> _Layout:
    """The layout with a group for each solution."""
    first = file[seeds[0]]
    grid = first.get("grid", {})
    if "t" not in grid or "x" not in grid:
        raise ConfigurationError(f"path: expected {seeds[0]}/grid/t and {seeds[0]}/grid/x, got {list(grid)}")
    axes = _coordinates([("grid/t", grid["t"])], [(f"grid/{x}", grid.get(x)) for x in _SPACE_NAMES])
    data = [file[seed]["data"] for seed in seeds]
    if any(d.ndim != len(axes) + 1 or d.shape != data[0].shape for d in data):
        shapes = sorted({d.shape for d in data})
        raise ShapeError(f"path: expected data [{', '.join(str(len(a)) for a in axes)}, c] in each group, got {shapes}")
    named = "uvwpq" if data[0].shape[-1] <= 5 else ""
    has = (False, *[True] * len(axes))
    parts = {named[c] if named else f"u{c + 1}": _Part(data, has, (c,)) for c in range(data[0].shape[-1])}
    return _Layout(axes, (False,) * (len(axes) - 1), parts)


def _well_layout(file: Any) -> _Layout:
    """The layout of The Well."""
    kind = _text(file.attrs.get("grid_type", "cartesian"))
    if kind.lower() != "cartesian":
        raise ConfigurationError(f"path: expected a Cartesian grid, got grid_type {kind!r}")
    dimensions = file["dimensions"]
    space = [_text(name) for name in dimensions.attrs.get("spatial_dims", [k for k in dimensions if k != "time"])]
    if "time" not in dimensions or any(x not in dimensions for x in space):
        raise ConfigurationError(
            f"path: expected dimensions/time and coordinates of {space}, got {', '.join(dimensions)}"
        )
    axes = _coordinates([("dimensions/time", dimensions["time"])], [(f"dimensions/{x}", dimensions[x]) for x in space])
    conditions = [group for group in file.get("boundary_conditions", {}).values() if hasattr(group, "attrs")]
    cyclic = {
        _text(name)
        for group in conditions
        if _text(group.attrs.get("bc_type", "")).lower() == "periodic"
        for name in np.atleast_1d(group.attrs.get("associated_dims", []))
    }
    parts = {}
    for group, rank in _WELL_RANKS.items():
        for name, data in file.get(group, {}).items():
            varies = np.broadcast_to(np.asarray(data.attrs.get("dim_varying", True), dtype=bool), len(space))
            has = (
                bool(data.attrs.get("sample_varying", True)),
                bool(data.attrs.get("time_varying", True)),
                *map(bool, varies),
            )
            for index in np.ndindex(*data.shape[data.ndim - rank :]):
                ending = "".join(space[i] if i < len(space) else str(i) for i in index)
                parts[f"{name}_{ending}" if rank else name] = _Part([data], has, index)
    return _Layout(axes, tuple(x in cyclic for x in space), parts)


def _coordinates(time: Sequence[tuple[str, Any]], space: Sequence[tuple[str, Any]]) -> list[NDArray[np.float64]]:
    """Coordinates along time and along the axes of space that there are."""
    axes = []
    for name, data in (*time, *((n, d) for n, d in space if d is not None)):
        values = np.asarray(data, dtype=np.float64)
        if values.ndim == 2 and bool((values == values[:1]).all()):  # one row for each solution
            values = values[0]
        if (
            values.ndim != 1
            or len(values) < 2
            or not bool(np.isfinite(values).all())
            or bool((np.diff(values) <= 0).any())
        ):
            raise ConfigurationError(
                f"path: expected increasing coordinates {name} of at least two points, the same for all solutions, got "
                f"shape {list(values.shape)}"
            )
        axes.append(values)
    return axes


def _values_of(name: str, layout: _Layout, number: int | None, strides: Sequence[int]) -> Tensor:
    """Values of one unknown, ``[b, s, *n]``; of one solution where all share them."""
    data, has, component = layout.parts[name]
    counts = [len(axis) for axis in layout.axes]
    wanted = [n for n, is_there in zip(counts, has[1:], strict=True) if is_there]
    for d in data:
        if list(d.shape[has[0] : d.ndim - len(component)]) != wanted:
            raise ShapeError(f"path: expected {name} at {wanted} times and places, got {list(d.shape)}")
    solutions = [slice(None, number)] if has[0] else []
    places = [slice(None, None, k) for k, is_there in zip(strides, has[1:], strict=True) if is_there]
    arrays = [np.asarray(d[(*solutions, *places, *component)], dtype=np.float64) for d in data[:number]]
    array = arrays[0] if has[0] else np.stack(arrays)
    values = torch.from_numpy(array)
    for place, (is_there, n, k) in enumerate(zip(has[1:], counts, strides, strict=True)):
        if not is_there:
            values = values.unsqueeze(1 + place).expand(
                *values.shape[: 1 + place], math.ceil(n / k), *values.shape[1 + place :]
            )
    return values


def _grid_of(axes: Sequence[NDArray[np.float64]], batch: int, dtype: torch.dtype) -> Grid:
    """The grid of coordinates of time and space, if it is regular in space."""
    time, *space = axes
    steps = []
    for name, axis in zip(_SPACE_NAMES, space, strict=False):
        step = float(axis[-1] - axis[0]) / (len(axis) - 1)
        off = float(np.abs(np.diff(axis) - step).max()) / step
        if off > _MAX_STEP_ERROR:
            raise ConfigurationError(
                f"path: expected a regular grid, got coordinates {name} whose steps differ by {off:.1%}: interpolate "
                "the values to equal steps"
            )
        steps.append(step)
    origin = torch.tensor([[*(float(axis[0]) for axis in space), t] for t in time.tolist()], dtype=dtype)
    matrix = torch.diag(torch.tensor(steps, dtype=dtype)).expand(batch, len(time), -1, -1)
    return Grid(origin.expand(batch, -1, -1), matrix)


def _text(value: Any) -> str:
    """A string of HDF5, which may be bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
