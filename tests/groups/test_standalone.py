"""Exported actions run in a process that cannot import trivgeo, and give the same points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.helpers import seeded
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE, Affine, PointAction, export_action
from trivgeo.symmetry import find_symmetries

ALONE = """
import sys
sys.modules["trivgeo"] = None  # an import is an error
import torch
for path in sys.argv[1:]:
    given = torch.load(path + ".pt", weights_only=True)
    given["moved"] = torch.export.load(path + ".pt2").module()(given["v"], given["points"])
    torch.save(given, path + ".pt")
"""


def _actions(equations: list[str]) -> list[PointAction]:
    return [find_symmetries(e).group().action() for e in equations]


def _alone(actions: list[PointAction], folder: Path) -> list[tuple[Tensor, Tensor]]:
    """Points moved elsewhere and here, more elements and points than were traced."""
    expected = []
    for i, action in enumerate(actions):
        v = 0.2 * torch.randn(7, action.group.dim, dtype=torch.float64, generator=seeded(i))
        points = 0.4 + 0.3 * torch.rand(7, 5, action.point_dims[0], dtype=torch.float64, generator=seeded(i + 50))
        torch.save({"v": v, "points": points}, folder / f"{i}.pt")
        torch.export.save(export_action(action), folder / f"{i}.pt2")
        expected.append(action(action.group.exp(v), points))
    paths = [str(folder / str(i)) for i in range(len(actions))]
    subprocess.run([sys.executable, "-I", "-c", ALONE, *paths], check=True, cwd=folder)
    moved = [torch.load(path + ".pt", weights_only=True)["moved"] for path in paths]
    return list(zip(moved, expected, strict=True))


def test_the_same_points() -> None:
    """In this process, with other numbers of elements and points than were traced."""
    action = SE(2).action()
    v = 0.2 * torch.randn(7, 3, dtype=torch.float64, generator=seeded(0))
    points = torch.rand(7, 5, 2, dtype=torch.float64, generator=seeded(1))
    expected = action(action.group.exp(v), points)
    torch.testing.assert_close(export_action(action).module()(v, points), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_without_the_package(tmp_path: Path) -> None:
    for moved, expected in _alone([Affine(2).action()], tmp_path):
        assert expected.isfinite().any()
        torch.testing.assert_close(moved, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.slow
def test_symmetries_of_equations(tmp_path: Path) -> None:
    """Solvable, with sl(2), conformal, and with quadratures."""
    equations = ["u_t + u*u_x = u_xx", "u_t = u_xx", "u_t + u*u_x + u_xxx = 0", "u_t = u^3*u_xxx", "u_t^2 + u_x^2 = 1"]
    for moved, expected in _alone(_actions(equations), tmp_path):
        assert expected.isfinite().any()
        torch.testing.assert_close(moved, expected, rtol=1e-11, atol=1e-11, equal_nan=True)


def test_what_cannot_be_traced() -> None:
    """An action that decides by values."""

    class Undecided(PointAction):
        def _transform(self, g: Tensor, x: Tensor) -> Tensor:
            return x if float(g.sum()) > 0 else -x

    with pytest.raises(ConfigurationError, match=r"torch\.export can trace"):
        export_action(Undecided(SE(2), (2,)))
