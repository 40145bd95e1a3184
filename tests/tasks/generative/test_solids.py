"""Five solids: their symmetries, their pictures, networks of their poses, and a small run of the benchmark."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tasks.cli import main
from tasks.generative import poses
from tasks.generative.pose_networks import BodyFrameNetwork
from tasks.generative.poses import PoseTest
from tasks.generative.solids import UNIFORM, Solid, render, solids
from tests.helpers import seeded
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SO

CONFIGS = Path(__file__).parents[3] / "tasks" / "configs" / "generative"
SOLIDS = {solid.name: solid for solid in solids()}
ORDERS = {"tetrahedron": 12, "cube": 24, "icosahedron": 60}


def alike(solid: Solid, count: int) -> torch.Tensor:
    """Rotations that leave a solid as it is; of bodies of revolution those of the polygons that stand for them."""
    if solid.symmetries is not None:
        return solid.symmetries[torch.arange(count) % len(solid.symmetries)].float()
    angle = 2.0 * math.pi / (len(solid.normals) - (2 if solid.flips else 1)) * torch.arange(count)
    turns = SO(3).exp(torch.stack([0.0 * angle, 0.0 * angle, angle], -1))
    return turns @ torch.diag(torch.tensor([1.0, -1.0, -1.0])) if solid.flips else turns


@pytest.mark.parametrize("solid", SOLIDS.values(), ids=SOLIDS.keys())
def test_symmetric_poses_look_the_same(solid: Solid) -> None:
    """And no others; the angle to the nearest of them is zero for them, and that of a small turn for a small turn."""
    r = SO(3).random_haar(1, generator=seeded(0))
    same = r @ alike(solid, 5)
    pictures = render(solid, same, 16)
    assert float((pictures - pictures[:1]).abs().max()) < 1e-4
    assert float(solid.angle(same, r).max()) < 0.1
    tilt = SO(3).exp(torch.tensor([0.2, 0.0, 0.0]))
    assert float(solid.angle(same @ tilt, r).max()) == pytest.approx(math.degrees(0.2), abs=0.2)
    assert float((render(solid, r @ tilt, 16) - pictures[:1]).abs().max()) > 0.02
    assert 0.1 < float((pictures > 0).float().mean()) < 0.75


@pytest.mark.parametrize("name", ORDERS)
def test_groups(name: str) -> None:
    """Of the order that is known, closed under products, each pose the nearest to itself."""
    solid = SOLIDS[name]
    assert solid.symmetries is not None
    assert len(solid.symmetries) == ORDERS[name]
    products = (solid.symmetries.unsqueeze(1) @ solid.symmetries).flatten(0, 1).flatten(1)
    assert float(torch.cdist(products, solid.symmetries.flatten(1)).amin(-1).max()) < 1e-6
    r = SO(3).random_haar(generator=seeded(0), dtype=torch.float64)
    assert solid.nearest(r @ solid.symmetries, r).tolist() == list(range(ORDERS[name]))
    away = solid.angle(SO(3).random_haar(2000, generator=seeded(1), dtype=torch.float64), r)
    # as many poses as the group has elements: the mean angle to the nearest falls with their number
    assert (
        {12: 40.0, 24: 30.0, 60: 22.0}[ORDERS[name]] < float(away.mean()) < {12: 55.0, 24: 45.0, 60: 33.0}[ORDERS[name]]
    )


def test_uniform() -> None:
    assert pytest.approx(-2.29, abs=0.005) == UNIFORM


def test_polynomials_are_orthonormal() -> None:
    """And complete: a turned polynomial of degree six is one again."""
    network = BodyFrameNetwork(functions=1, points=8, context=0, width=8, depth=1)
    assert network.num_features == sum(2 * order + 1 for order in range(7))
    drawn = torch.randn(3, 20_000, generator=seeded(0))
    points = drawn / drawn.norm(dim=0)
    values = network.basis.T @ network._monomials(points)
    assert float((values @ values.T / 20_000 - torch.eye(49)).abs().max()) < 0.1  # five standard deviations
    turn = SO(3).random_haar(generator=seeded(1))
    turned = network.basis.T @ network._monomials(turn @ points)
    found = torch.linalg.lstsq(values.T, turned.T).solution.T
    assert float((found @ values - turned).abs().max()) < 1e-3


def test_network_sees_the_relative_pose() -> None:
    """Turning the pose and the functions on the sphere together leaves the velocity alone; turning one does not."""
    network = BodyFrameNetwork(functions=2, degree=2, points=12, context=3, width=16, depth=1)
    torch.nn.init.normal_(network.last.weight, generator=seeded(0))
    g, turn = SO(3).random_haar(2, generator=seeded(1))
    grid = torch.randn(3, 50, generator=seeded(2))
    grid = grid / grid.norm(dim=0)
    values = network.basis.T @ network._monomials(grid)
    back = network.basis.T @ network._monomials(turn.T @ grid)
    change = torch.linalg.lstsq(values.T, back.T).solution.T  # basis(turn^-1 p) = change basis(p)
    features = torch.randn(2, 9, generator=seeded(3))
    context, t = torch.randn(3, generator=seeded(4)), torch.tensor(0.3)
    plain = network(g, t, torch.cat([features.flatten(), context]))
    turned = torch.cat([(features @ change).flatten(), context])
    assert torch.allclose(network(turn @ g, t, turned), plain, atol=1e-3)
    assert not torch.allclose(network(g, t, turned), plain, atol=0.1)


@pytest.mark.parametrize("bad", [{"kind": "momentum"}, {"kind": "flows"}, {"size": 12}, {"channels": 20}])
def test_refused_at_construction(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(bad))):
        PoseTest(**bad)


def test_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a solid of a finite group and a body of revolution."""
    monkeypatch.setattr(poses, "solids", lambda: [SOLIDS["cube"], SOLIDS["cone"]])
    config: dict[str, Any] = yaml.safe_load((CONFIGS / "solids_flow.yaml").read_text())
    config["base"] = [str(CONFIGS.parent / "test.yaml")]
    config["trainer"] |= {"default_root_dir": str(tmp_path), "enable_progress_bar": False}
    config["model"]["init_args"] |= {"train": 8, "test": 1, "samples": 12, "size": 16, "steps": 2, "batch_size": 8}
    config["model"]["init_args"] |= {"width": 8, "channels": 16, "evaluations": 4, "tolerance": 0.5}
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(config))
    main(["test", "--config", str(path)])
    metrics = json.loads((tmp_path / "results.json").read_text())["metrics"]
    # an untrained model is far from the poses
    assert metrics["spread, degrees, cube"]["mean"] > 20.0
    assert metrics["log-likelihood"]["mean"] < 0.0
    assert metrics["lost samples, cone"]["mean"] == 0.0
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
