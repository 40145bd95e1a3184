"""Simulations, manifolds, registration, conditions and further stages on a device: there, and as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.devices.test_inversion import TRIANGLE, Distance, images, shapes
from tests.helpers import random_elements, seeded
from tests.pde.equations import KDV
from trivgeo._torch import pytree
from trivgeo.actions import Field, FieldAction, ImageWarp
from trivgeo.generative import GroupDiffusion, distributions
from trivgeo.generative import model as model_module
from trivgeo.geoopt import GroupManifold
from trivgeo.groups import SE, SO, Affine, KdVSymmetry, Similarity, Torus
from trivgeo.inversion import Inverter
from trivgeo.inversion.stages import Descend, InDoublePrecision, KeepLower, Replicate
from trivgeo.pde import solve
from trivgeo.registration import register


def as_on_the_cpu(f: Callable[[torch.device | str], Any], device: torch.device, tolerance: float = 1e-6) -> None:
    """The same numbers on the device and on the CPU, with generators of the CPU."""
    for there, here in zip(*(pytree.tree_leaves(f(place)) for place in (device, "cpu")), strict=True):
        assert there.device == device
        torch.testing.assert_close(there.cpu(), here, rtol=tolerance, atol=tolerance)


def test_simulation(device: torch.device) -> None:
    def found(place: torch.device | str) -> Field:
        x = torch.arange(16.0, dtype=torch.float64, device=place)
        initial = Field.on_box((0.4 * x).cos()[None, None], [(0.0, 16.0)])
        return solve(KDV, initial, [0.0, 0.1], 0.05)

    as_on_the_cpu(found, device)


def test_actions(device: torch.device) -> None:
    def found(place: torch.device | str) -> tuple[Any, ...]:
        g = random_elements(Affine(2), 2, std=0.2).to(place)
        pixels = torch.rand(2, 1, 6, 8, generator=seeded(0), dtype=torch.float64).to(place)
        warp = ImageWarp(Affine(2), fill=0.5)
        field = Field.on_box(pixels[:, :, 0], [(0.0, 8.0)])
        moved = FieldAction(KdVSymmetry())(random_elements(KdVSymmetry(), 2, std=0.1).to(place), field)
        return warp(g, pixels), warp.coverage(g, (6, 8)), warp.to_pixels(g, (6, 8)), moved

    as_on_the_cpu(found, device)


def test_manifold(device: torch.device) -> None:
    manifold = GroupManifold(SO(3))

    def found(place: torch.device | str) -> tuple[Tensor, ...]:
        x, y = random_elements(SO(3), 2, std=0.3).to(place)
        u = manifold.logmap(x, y)
        return u, manifold.expmap(x, u), manifold.dist(x, y), manifold.egrad2rgrad(x, y), manifold.transp(x, y, u)

    as_on_the_cpu(found, device)


@pytest.mark.parametrize("group", [SE(2), Similarity(2)], ids=repr)
def test_registration(group: Any, device: torch.device) -> None:
    cloud = torch.randn(12, 2, generator=seeded(0), dtype=torch.float64)
    g = random_elements(group, 1, std=0.3)[0]
    fixed = group.action()(g, cloud)

    def found(place: torch.device | str) -> tuple[Tensor, ...]:
        r = register(cloud.to(place), fixed.to(place), group)
        return r.element, r.covariance

    as_on_the_cpu(found, device, 1e-5)


def test_conditions(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditions come to the model from anywhere."""
    monkeypatch.setattr(model_module, "_NUM_FIT_ROWS", 64)
    monkeypatch.setattr(distributions, "_NUM_MASS_DRAWS", 100)
    data, labels = Torus(1).random_haar(40, generator=seeded(0)), torch.arange(40) % 3
    for condition, given in ((nn.Embedding(3, 4), labels), (2, torch.randn(40, 2, generator=seeded(1)))):
        model = GroupDiffusion(Torus(1), "flow", condition=condition, width=8, depth=1).to(device)
        model.fit(data, given, steps=2, batch_size=8, progress=False)
        for c in (given[0], given[0].to(device)):
            assert model.sample(3, condition=c, guidance=2.0, tolerance=0.5, generator=seeded(0)).device == device
        assert model.sample(3, tolerance=0.5).device == device
        assert model.log_prob(data[:2], condition=given[:2], tolerance=0.5).device == device


def test_stages(device: torch.device) -> None:
    for action, energy, x in (shapes(), images()):
        for stages in ([Replicate(2), KeepLower(Descend(2))], [Replicate(2), InDoublePrecision(Descend(2))]):

            def found(place: torch.device | str, stages: Any = stages, problem: Any = (action, energy, x)) -> Any:
                act, given, data = problem
                inverter = Inverter(act, given, stages).to(place)
                result = inverter(data.to(place), generator=seeded(3))
                return result.elements, result.energies

            as_on_the_cpu(found, device)
    assert Distance(TRIANGLE).datum.device.type == "cpu"
