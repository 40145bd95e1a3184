"""The emulated device finds what would fail on CUDA: mixed devices, and faults of this library that are put back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.devices import emulated
from tests.devices.test_diffusion import test_models as check_model
from tests.devices.test_inversion import TestLearned as LearnedChecks
from tests.devices.test_inversion import image_problem
from tests.helpers import seeded
from trivgeo.generative import model as model_module
from trivgeo.groups import Torus
from trivgeo.inversion.learned import ImageBackbone


@pytest.fixture
def device() -> torch.device:
    return emulated.load()


MIXED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sum": lambda x, y: x + y,
    "sum in place": lambda x, y: y.add_(x),
    "product of matrices": lambda x, y: x @ y.mT,
    "einsum": lambda x, y: torch.einsum("ij,ij->i", x, y),
    "stack": lambda x, y: torch.stack([x, y]),
    "stack of numbers": lambda x, y: torch.stack([x[0, 0], y[0, 0]]),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "gather": lambda x, y: y.gather(1, x.long()),
    "grid_sample": lambda x, y: functional.grid_sample(x[None, None], y[None, None].mT, align_corners=False),
    "solve": lambda x, y: torch.linalg.solve(x[:, :2], y[:, :2]),
    "numpy": lambda x, y: x.numpy(),
    "generator": lambda x, y: torch.randn(2, generator=seeded(0), device=x.device),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices_are_refused(name: str, device: torch.device) -> None:
    x, y = torch.eye(2, 3, device=device), torch.zeros(2, 3)
    with pytest.raises((RuntimeError, TypeError), match=r"device|numpy|generator"):
        MIXED[name](x, y if name != "grid_sample" else torch.zeros(2, 4))


def test_computes(device: torch.device) -> None:
    """Views, indices, derivatives, networks, random numbers: those of the CPU."""
    x = torch.randn(3, 4, generator=torch.Generator(device).manual_seed(0), device=device)
    y = torch.randn(3, 4, generator=seeded(0))
    assert x.device == device
    x[:, 1:].mul_(2.0)
    y[:, 1:].mul_(2.0)
    x[x[:, 0] > 0.0] = 0.5
    y[y[:, 0] > 0.0] = 0.5
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5)).requires_grad_(False)
    f = lambda z: torch.linalg.solve(torch.eye(5, device=z.device) + network(z).outer(network(z)), network(z))  # noqa: E731
    here = torch.func.vmap(torch.func.jacrev(f))(y)
    network.to(device)
    there = torch.func.vmap(torch.func.jacrev(f))(x)
    assert there.device == device
    torch.testing.assert_close(there.cpu(), here)
    assert float(x.sum()) == pytest.approx(float(y.sum()))
    assert (x + torch.tensor(1.0)).device == device  # numbers of the CPU are taken, as by CUDA
    assert x.to("cpu").equal(y)


class TestFaultsPutBack:
    def test_constants_on_the_cpu(self, device: torch.device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Mean and deviation of a backbone that are no buffers."""
        register = ImageBackbone.register_buffer

        def stay(self: ImageBackbone, name: str, value: Tensor, persistent: bool = True) -> None:
            if name in ("mean", "std"):
                vars(self)[name] = value
            else:
                register(self, name, value, persistent)

        monkeypatch.setattr(ImageBackbone, "register_buffer", stay)
        with pytest.raises(RuntimeError, match="same device"):
            LearnedChecks().test_fits_where_it_is(image_problem, device, tmp_path)

    def test_models_where_the_data_are(
        self, device: torch.device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A model that was moved, and trained on data of the CPU, drew its samples there."""
        monkeypatch.setattr(model_module.GroupDiffusion, "_like", lambda model: torch.empty(0))
        with pytest.raises(AssertionError, match="device"):
            check_model(Torus(2), "flow", device, tmp_path, monkeypatch)
