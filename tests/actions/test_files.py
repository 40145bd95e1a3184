"""Files in the layouts of PDEBench and of The Well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trivgeo.actions.files import read_solutions
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.inversion import EquivariantOperator
from trivgeo.symmetry import symmetries_from_data
from trivgeo.symmetry.__main__ import main

h5py = pytest.importorskip("h5py")
LENGTH, POINTS = 2.0, 48
X = (np.arange(POINTS) + 0.5) * LENGTH / POINTS  # centres of cells, as in PDEBench
TIMES = np.linspace(0.0, 1.0, 31)


def heat(number: int = 6) -> np.ndarray:
    """Exact solutions of u_t = u_xx / 20, [b, s, n]."""
    draw, waves = np.random.default_rng(0), np.pi * 2 / LENGTH * np.arange(1, 5)
    a, b = draw.normal(size=(2, number, 4))
    fade = np.exp(-(waves**2) / 20 * TIMES[:, None])
    parts = a[:, None, None] * np.cos(waves * X[:, None]) + b[:, None, None] * np.sin(waves * X[:, None])
    return 1.0 + np.einsum("bsnk,sk->bsn", np.broadcast_to(parts, (number, len(TIMES), POINTS, 4)), fade)


def written(path: Path, **data: Any) -> Path:
    """A file with data sets; names hold groups after slashes."""
    with h5py.File(path, "w") as file:
        for name, values in data.items():
            file[name.replace("__", "/").replace("coordinate", "-coordinate")] = values
    return path


def test_one_data_set_of_all_solutions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files of PDEBench on a line; times have an end that no state belongs to."""
    u, times = heat().astype(np.float32), np.append(TIMES, TIMES[-1] + TIMES[1])
    path = written(tmp_path / "line.hdf5", tensor=u, xcoordinate=X, tcoordinate=times)
    solutions = read_solutions(path)
    assert (solutions.names, solutions.periodic) == (("tensor",), (False,))
    assert torch.equal(solutions.field.values[:, 0], torch.from_numpy(u))
    points = solutions.field.grid.points(POINTS)[0]
    assert torch.allclose(points[3, :, 0], torch.from_numpy(X).float())
    assert torch.allclose(points[:, 0, 1], torch.from_numpy(TIMES).float())
    some = read_solutions(path, number=2, stride=(3, 2), dtype=torch.float64)
    assert torch.equal(some.field.values[:, 0], torch.from_numpy(u[:2, ::3, ::2]).double())
    found = symmetries_from_data(solutions.field)
    assert (found.equations[0].text, found.dimension) == ("u_t = (1/20)*diff(u, x, 2)", 6)
    assert main(["--data", str(path)]) == 0
    text = capsys.readouterr().out
    assert "u_t = (1/20)*diff(u, x, 2)" in text
    assert "all: the dimension beside superposition is 6" in text


def test_network_of_a_file(tmp_path: Path) -> None:
    """The box that the file's fields fill is the training box: a field on twice its length needs a scaling by two."""
    path = written(tmp_path / "line.hdf5", tensor=heat(), xcoordinate=X, tcoordinate=TIMES)
    clean = read_solutions(path, dtype=torch.float64).field.slice(0)
    seen: list[torch.Tensor] = []

    def network(u: torch.Tensor) -> torch.Tensor:
        seen.append(u)
        wave = 2 * torch.pi / LENGTH * torch.arange(POINTS // 2 + 1, dtype=u.dtype)
        return torch.fft.irfft(torch.fft.rfft(u) * torch.exp(-(wave**2) / 20), POINTS)

    operator = EquivariantOperator.from_equation("u_t = u_xx/20", network, clean, times=[1.0])
    grid = clean.grid._replace(
        steps=2 * clean.grid.steps, origin=clean.grid.origin * torch.tensor([2.0, 1.0], dtype=torch.float64)
    )
    solution = operator(clean._replace(grid=grid))
    assert torch.allclose(solution.grid.times, torch.tensor(4.0, dtype=torch.float64))
    assert torch.allclose(solution.values[:, :, 0], network(clean.values[:, :, 0]), atol=1e-9)


def test_a_group_for_each_solution(tmp_path: Path) -> None:
    """The files of PDEBench in the plane."""
    values = np.random.default_rng(0).normal(size=(3, 5, 6, 7, 2)).astype(np.float32)
    grids = {"t": np.arange(5.0), "x": np.linspace(-1, 1, 6), "y": np.linspace(0, 3, 7)}
    parts = {f"{i:04}__data": values[i] for i in range(3)}
    parts |= {f"{i:04}__grid__{name}": axis for i in range(3) for name, axis in grids.items()}
    solutions = read_solutions(written(tmp_path / "plane.h5", **parts), names=["v", "u"], number=2)
    assert torch.equal(solutions.field.values, torch.from_numpy(values[:2, ..., ::-1].copy()).movedim(-1, 1))
    assert solutions.field.counts == (6, 7)
    assert torch.allclose(solutions.field.grid.steps[0, 0], torch.diag(torch.tensor([0.4, 0.5])))


@pytest.fixture
def well(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A file of The Well: a density, a velocity, a stress, a height that does not vary along y, and a steady field."""
    draw = np.random.default_rng(1)
    shapes = {"density": (2, 5, 6, 7), "height": (2, 5, 6), "steady": (6, 7)}
    values = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    values["velocity"] = draw.normal(size=(2, 5, 6, 7, 2)).astype(np.float32)
    values["stress"] = draw.normal(size=(2, 5, 6, 7, 2, 2)).astype(np.float32)
    with h5py.File(tmp_path / "well.hdf5", "w") as file:
        file.attrs.update({"grid_type": "cartesian", "n_spatial_dims": 2, "n_trajectories": 2})
        file["dimensions/time"], file["dimensions/x"] = np.arange(5.0) / 2, np.arange(6.0)
        file["dimensions/y"] = np.arange(7.0)
        file["dimensions"].attrs["spatial_dims"] = ["x", "y"]
        for axis, kind in (("x", "PERIODIC"), ("y", "WALL")):
            group = file.create_group(f"boundary_conditions/{axis}_ends")
            group.attrs.update({"associated_dims": [axis], "bc_type": kind})
        for group, names in (("t0_fields", list(shapes)), ("t1_fields", ["velocity"]), ("t2_fields", ["stress"])):
            for name in names:
                data = file.create_dataset(f"{group}/{name}", data=values[name])
                data.attrs["dim_varying"] = [True, name != "height"]
                data.attrs["sample_varying"] = data.attrs["time_varying"] = name != "steady"
    return tmp_path / "well.hdf5", values


def test_scalars_vectors_and_tensors(well: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, values = well
    solutions = read_solutions(path)
    stress = tuple(f"stress_{i}{j}" for i in "xy" for j in "xy")
    assert solutions.names == ("density", "height", "velocity_x", "velocity_y", *stress)
    assert solutions.periodic == (True, False)
    found = dict(zip(solutions.names, solutions.field.values.unbind(1), strict=True))
    assert np.array_equal(found["velocity_y"], values["velocity"][..., 1])
    assert np.array_equal(found["stress_yx"], values["stress"][..., 1, 0])
    assert np.array_equal(found["height"], np.broadcast_to(values["height"][..., None], (2, 5, 6, 7)))
    mixed = read_solutions(path, names=["steady", "density"], stride=(2, 1, 3)).field.values
    assert np.array_equal(mixed[1, 0, 2], values["steady"][:, ::3])
    assert np.array_equal(mixed[:, 1], values["density"][:, ::2, :, ::3])


def test_refusals(tmp_path: Path, well: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match="expected an HDF5 file, got"):
        read_solutions(tmp_path / "none.hdf5")
    (tmp_path / "text.hdf5").write_text("no data")
    with pytest.raises(ConfigurationError, match="expected an HDF5 file, got"):
        read_solutions(tmp_path / "text.hdf5")
    with pytest.raises(ConfigurationError, match=r"expected the layout of PDEBench .*, got nu \[2, 3, 3\]"):
        read_solutions(written(tmp_path / "a.hdf5", nu=np.ones((2, 3, 3))))
    u, at = heat(2), {"xcoordinate": X, "tcoordinate": TIMES}
    with pytest.raises(ConfigurationError, match="expected data sets"):
        read_solutions(written(tmp_path / "b.hdf5", tensor=u[0], **at))
    with pytest.raises(ShapeError, match=r"expected tensor at \[31, 48\]"):
        read_solutions(written(tmp_path / "c.hdf5", tensor=u[..., ::2], **at))
    with pytest.raises(NonFiniteError, match="in 1 of 2 solutions"):
        read_solutions(written(tmp_path / "d.hdf5", tensor=np.where(np.arange(2)[:, None, None], np.nan, u), **at))
    with pytest.raises(ConfigurationError, match="expected increasing coordinates t-coordinate"):
        read_solutions(written(tmp_path / "e.hdf5", tensor=u, xcoordinate=X, tcoordinate=TIMES[::-1]))
    path = written(tmp_path / "f.hdf5", tensor=u, xcoordinate=np.cos(np.pi * X[::-1] / 2), tcoordinate=TIMES)
    with pytest.raises(ConfigurationError, match="expected a regular grid, got coordinates x"):
        read_solutions(path)
    path, _ = well
    with pytest.raises(ConfigurationError, match="names: expected some of density, height"):
        read_solutions(path, names=["pressure"])
    with pytest.raises(ConfigurationError, match="stride: expected a positive integer, or 3 of them"):
        read_solutions(path, stride=(1, 0))
    with pytest.raises(ShapeError, match="expected at least 2 times and places, got"):
        read_solutions(path, stride=6)
    with h5py.File(path, "a") as file:
        file.attrs["grid_type"] = "spherical"
    with pytest.raises(ConfigurationError, match="expected a Cartesian grid, got grid_type 'spherical'"):
        read_solutions(path)
    assert main(["--data", str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: path: expected a Cartesian grid")
    for arguments in ([], ["u_t = u_xx", "--data", str(path)]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "expected equations, or --data FILE" in capsys.readouterr().err
