"""Flows between two sets of samples: the optimal map of normal distributions, round trips, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import seeded
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.generative import GroupDiffusion
from trivgeo.generative.paths import Bridge
from trivgeo.groups import SO, Translation

SMALL: dict[str, Any] = {"width": 32, "depth": 1}
FIT: dict[str, Any] = {"steps": 200, "batch_size": 96, "learning_rate": 5e-3, "progress": False}
SCALE, SHIFT = torch.tensor([0.5, 2.0]), torch.tensor([3.0, -1.0])


@pytest.fixture(scope="module")
def bridge() -> GroupDiffusion:
    """From a standard normal distribution on the plane to one of other widths, in an order that says nothing."""
    source = torch.randn(2000, 2, generator=seeded(0))
    data = SHIFT + SCALE * torch.randn(2000, 2, generator=seeded(1))
    return GroupDiffusion(Translation(2), "flow", **SMALL).fit(data, coupling=Bridge(source), **FIT)


def test_optimal_map(bridge: GroupDiffusion) -> None:
    """The optimal map of normal distributions with aligned axes is linear (Olkin and Pukelsheim 1982)."""
    x = torch.randn(200, 2, generator=seeded(2))
    error = bridge.carry(x) - (SHIFT + SCALE * x)
    assert float(error.square().mean().sqrt()) < 0.25
    assert float(error.mean(0).abs().max()) < 0.15


def test_there_and_back(bridge: GroupDiffusion) -> None:
    x = torch.randn(3, 4, 2, generator=seeded(3))
    there = bridge.carry(x, tolerance=1e-6)
    assert torch.allclose(bridge.carry(there, reverse=True, tolerance=1e-6), x, atol=1e-4)


def test_samples_start_at_the_source(bridge: GroupDiffusion, tmp_path: Path) -> None:
    drawn = bridge.sample(1000, generator=seeded(4))
    assert torch.allclose(drawn.mean(0), SHIFT, atol=0.3)
    assert torch.allclose(drawn.std(0), SCALE, rtol=0.25)
    with pytest.raises(ConfigurationError, match="bridge"):
        bridge.log_prob(drawn[:2])
    bridge.save(tmp_path / "model.safetensors")
    loaded = GroupDiffusion.load(tmp_path / "model.safetensors", Translation(2))
    assert torch.equal(loaded.sample(5, generator=seeded(5)), bridge.sample(5, generator=seeded(5)))
    assert torch.equal(loaded.carry(drawn[:5]), bridge.carry(drawn[:5]))


def test_flows_of_other_kinds_transport_too() -> None:
    """With a base distribution: the density of what is carried there is that of the model."""
    data = SO(3).random(500, std=0.4, generator=seeded(0))
    model = GroupDiffusion(SO(3), "flow", **SMALL).fit(data, **{**FIT, "steps": 30})
    start = SO(3).random_haar(20, generator=seeded(1))
    there = model.carry(start, tolerance=1e-5)
    assert torch.allclose(model.carry(there, reverse=True, tolerance=1e-5), start, atol=1e-3)


def test_bad_input() -> None:
    data = torch.randn(20, 2, generator=seeded(0))
    for kind in ("diffusion", "momentum"):
        with pytest.raises(ConfigurationError, match="expected no Bridge"):
            GroupDiffusion(Translation(2), kind, **SMALL).fit(
                data, coupling=Bridge(data, "independent"), steps=1, progress=False
            )
    with pytest.raises(ShapeError):
        GroupDiffusion(Translation(2), "flow", **SMALL).fit(data, coupling=Bridge(data[0]), steps=1, progress=False)
    momentum = GroupDiffusion(Translation(2), "momentum", **SMALL).fit(data, steps=1, progress=False)
    with pytest.raises(ConfigurationError, match="flow on the group"):
        momentum.carry(data)


@pytest.mark.parametrize(
    ("coupling", "error"),
    [
        (3, ConfigurationError),
        ("best", ConfigurationError),
        (Bridge(torch.zeros(5, 2), "best"), ConfigurationError),
        (Bridge(torch.full((5, 2), torch.nan)), NonFiniteError),
        (Bridge(torch.zeros(5, 3)), ShapeError),
        (Bridge(torch.zeros(0, 2)), ShapeError),
        (Bridge("source"), ConfigurationError),  # type: ignore[arg-type]
        (lambda data, drawn: drawn[:1], ShapeError),
        (lambda data, drawn: None, ConfigurationError),
    ],
)
def test_refused_before_the_work(coupling: Any, error: type[Exception]) -> None:
    data = torch.randn(20, 2, generator=seeded(0))
    with pytest.raises(error):
        GroupDiffusion(Translation(2), "flow", **SMALL).fit(data, coupling=coupling, steps=1, progress=False)
