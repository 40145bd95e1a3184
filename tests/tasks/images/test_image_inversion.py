"""The image task on the digits that come with the repository: accuracy, rows, resuming, several devices, pictures."""

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from tasks.cli import main
from tasks.files import encoded
from tasks.images.energies import ClassifierEnergy, NetworkEnergy, fused, load_classifier
from tasks.images.models import ImageClassifier
from tasks.images.resnet import ResNet18
from tasks.images.rotation import RotationPosterior
from tests.helpers import assert_relative, seeded
from tests.tasks.sample_runs import DIGITS
from trivgeo.errors import ConfigurationError
from trivgeo.sde import GeometricSchedule

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "tasks" / "configs"
Run = Callable[..., dict[str, Any]]


def override(folder: Path, name: str, **changes: Any) -> list[str]:
    """Arguments of a test of a shipped configuration, its results in ``folder``, with settings of the data changed."""
    writer = {"class_path": "tasks.results.ResultsWriter", "init_args": {"directory": str(folder)}}
    settings = {
        "trainer": {"callbacks": [writer], "default_root_dir": str(folder), "enable_progress_bar": False},
        **changes,
    }
    path = folder / "override.yaml"
    path.write_text(yaml.safe_dump(settings))
    return ["test", f"--config={CONFIGS / name}", f"--config={path}"]


def test_a_part_of_a_test_has_no_distances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest of the test prints one table, of all images: Lightning's would be of the images of this process."""
    features = {"init_args": {"features": "small_vae"}}
    arguments = override(
        tmp_path, "affnist/small.yaml", data={"init_args": {"limit": 4, "batch_size": 2}}, model=features
    )
    main([*arguments, "--trainer.limit_test_batches=0.5"])
    document = results(tmp_path)
    assert document["missing_batches"] > 0
    assert not document["complete"]
    assert not any(name.startswith("FID") for name in document["metrics"])
    capsys.readouterr()
    main([*arguments, "--verbose=true"])
    assert "FID with inversion" in results(tmp_path)["metrics"]
    printed = capsys.readouterr().out
    assert printed.count("accuracy with inversion") == 1
    assert "Test metric" not in printed


def small(folder: Path, limit: int = 10, batch_size: int = 4, seeds: list[int] | None = None) -> list[str]:
    return override(
        folder,
        "affnist/small.yaml",
        data={"init_args": {"limit": limit, "batch_size": batch_size, "seeds": seeds or [0]}},
    )


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


class TestSmallRun:
    def test_inversion_helps_and_everything_is_written(self, tmp_path: Path) -> None:
        main(small(tmp_path, limit=256, batch_size=128))
        document = results(tmp_path)
        metrics = document["metrics"]
        assert metrics["accuracy on clean images"]["mean"] > 0.9
        assert metrics["accuracy with inversion"]["mean"] > metrics["accuracy without inversion"]["mean"] + 0.03
        assert len(document["rows"]) == 256
        assert len({row["case"] for row in document["rows"]}) == 256
        assert {"label", "predicted", "predicted_alone", "energy", "element", "gradient_evaluations"} <= document[
            "rows"
        ][0].keys()
        assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"

    def test_distances_and_equivariance(self, tmp_path: Path) -> None:
        """Undone by the true transformation images are nearest to clean ones; predictions move less with inversion."""
        arguments = override(
            tmp_path,
            "affnist/small.yaml",
            data={"init_args": {"limit": 256, "batch_size": 128}},
            model={"init_args": {"features": "small_vae", "equivariance": True}},
        )
        main(arguments)
        mean = {name: metric["mean"] for name, metric in results(tmp_path)["metrics"].items()}
        assert 0 < mean["FID with the true transformation"] < 0.5 * mean["FID without inversion"]
        assert mean["FID with the true transformation"] < mean["FID with inversion"]
        assert 0 < mean["equivariance error"] < 0.7 * mean["equivariance error without inversion"] < 1

    def test_a_killed_run_loses_nothing(self, tmp_path: Path) -> None:
        main(small(tmp_path, seeds=[0, 1]))
        whole, path = results(tmp_path), tmp_path / "rows.jsonl"
        header = path.read_text().splitlines()[0]
        rows = sorted(whole["rows"], key=lambda row: (row["seed"], row["batch"]))
        kept = [encoded(row | {"energy": -1.0} if i == 0 else row) for i, row in enumerate(rows[:15])]
        path.write_text("\n".join([header, *kept]) + '\n{"seed": 0, "ca')
        main(small(tmp_path, seeds=[0, 1]))
        again = results(tmp_path)
        assert [(r["seed"], r["case"]) for r in again["rows"]] == [(r["seed"], r["case"]) for r in whole["rows"]]
        assert [r["element"] for r in again["rows"]] == [r["element"] for r in whole["rows"]]
        assert sum(r["energy"] == -1.0 for r in again["rows"]) == 1, "rows of whole batches are kept, not made again"

    @pytest.mark.slow(reason="test_results merges the rows of two processes")
    def test_two_devices_count_every_image_once_and_find_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "one").mkdir()
        (tmp_path / "two").mkdir()
        main(small(tmp_path / "one"))
        arguments = small(tmp_path / "two")
        extra = ["--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp"]
        done = subprocess.run(
            [sys.executable, "-m", "tasks", *arguments, *extra],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        one, two = results(tmp_path / "one"), results(tmp_path / "two")
        assert two["devices"] == 2
        assert [r["case"] for r in two["rows"]] == [r["case"] for r in one["rows"]]
        for a, b in zip(one["rows"], two["rows"], strict=True):
            assert_relative(torch.tensor(b["element"]), torch.tensor(a["element"]), 1e-3)


@pytest.mark.parametrize(
    "name",
    [
        "affnist/tied_classifier.yaml",
        pytest.param("homnist/tied_classifier.yaml", marks=pytest.mark.slow(reason="the other data set stays")),
    ],
)
def test_shipped_configurations_of_tied_run_with_other_networks_and_sizes(tmp_path: Path, name: str) -> None:
    classifier = "small_cnn"
    arguments = override(
        tmp_path,
        name,
        model={
            "init_args": {
                "classifier": classifier,
                "energy": {"init_args": {"classifier": classifier}},
                "inverter": {"init_args": {"num_hypotheses": 4, "steps": 5, "pruning": [[0.4, 2]]}},
                "features": None,
            }
        },
        data={
            "init_args": {
                "source": {"class_path": "tasks.images.mnist.BundledSample", "init_args": {}},
                "limit": 4,
                "batch_size": 4,
                "seeds": [3],
            }
        },
    )
    main(arguments)
    rows = results(tmp_path)["rows"]
    assert [row["seed"] for row in rows] == [3] * 4
    assert all(row["gradient_evaluations"] == 2 * (3 * 4 + 2 * 2) for row in rows)
    assert all(row["energy_evaluations"] == 2 + 2 for row in rows)  # two for the weight of the guard of the warp
    assert all(math.isfinite(row["energy"]) for row in rows)


class NormalisedLate(ImageClassifier):
    """Names its layers in another order than it calls them."""

    def __init__(self, images: Sequence[int], widths: tuple[int, int] = (4, 4), statistics: bool = True) -> None:
        super().__init__(images)
        one, other = widths
        self.first, self.second = nn.Conv2d(1, one, 3), nn.Conv2d(one, other, 3)
        self.of_first, self.of_second = (
            nn.BatchNorm2d(width, momentum=1.0, track_running_stats=statistics) for width in widths
        )
        self.head = nn.Linear(other, images[3])

    @property
    def architecture(self) -> dict[str, Any]:
        return {"images": list(self.images)}

    def _logits(self, x: Tensor) -> Tensor:
        x = self.of_first(self.first(x)).relu()
        return self.head(self.of_second(self.second(x)).relu().mean((-2, -1)))


class TestEnergies:
    def test_fused_networks_are_the_same_function(self) -> None:
        network = ResNet18(DIGITS)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=seeded(len(name))) * 0.1 + (parameter.ndim == 1))
            for name, buffer in network.named_buffers():
                if buffer.is_floating_point():
                    buffer.copy_(torch.rand(buffer.shape, generator=seeded(len(name))) + 0.5)
        network.eval()
        x = torch.rand(3, 1, 40, 40, generator=seeded(0))
        made = fused(network)
        assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in made.modules())
        assert any(isinstance(m, torch.nn.BatchNorm2d) for m in network.modules())
        assert_relative(made(x), network(x), 1e-4, event=1)

    def test_networks_that_call_their_layers_in_another_order_stay(self) -> None:
        network = NormalisedLate([1, 8, 8, 3])
        x = torch.rand(30, 1, 8, 8, generator=seeded(0))
        network(x)  # gives both normalisations their statistics
        network.eval()
        assert_relative(fused(network)(x), network(x), 1e-5)

    def test_normalisations_of_other_channels_stay(self) -> None:
        """Of the second convolution, by their order; or without statistics to make a part of it."""
        for late in (NormalisedLate([1, 8, 8, 3], widths=(8, 6)), NormalisedLate([1, 8, 8, 3], statistics=False)):
            x = torch.rand(30, 1, 8, 8, generator=seeded(0))
            late(x)
            late.eval()
            assert_relative(fused(late)(x), late(x), 1e-5)

    def test_bfloat16_is_close_and_comes_back_in_the_precision_of_the_images(self) -> None:
        source = "small_cnn"
        x = torch.rand(16, 1, 40, 40, generator=seeded(1))
        exact = ClassifierEnergy(source)(x)
        rough = ClassifierEnergy(source, "bfloat16")(x)
        assert rough.dtype == torch.float32
        assert_relative(rough, exact, 0.05)
        assert not torch.equal(rough, exact)
        assert_relative(exact, -load_classifier(source)(x).logsumexp(-1), 1e-3)

    def test_nan_images_have_nan_energies_and_leave_the_others_alone(self) -> None:
        energy = ClassifierEnergy("small_cnn")
        x = torch.rand(3, 1, 40, 40, generator=seeded(1))
        y = x.clone()
        y[1] = math.nan
        assert torch.isnan(energy(y)).tolist() == [False, True, False]
        assert_relative(energy(y)[[0, 2]], energy(x)[[0, 2]], 1e-5)


class Lopsided(NetworkEnergy):
    """An energy that sees where the ink is, with two unequal wells in the angle."""

    def evaluate(self, x: Tensor) -> Tensor:
        ramp = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)
        mass = x.sum((-1, -2, -3))
        horizontal = (x * ramp).sum((-1, -2, -3)) / mass
        vertical = (x * ramp[:, None]).sum((-1, -2, -3)) / mass
        return -8 * horizontal**2 - 1.5 * vertical


class TestRotationPosterior:
    def module(self, **changes: Any) -> RotationPosterior:
        options: dict[str, Any] = {"angles": 72, "bins": 18, "times": [0.0, 0.4, 1.0], **changes}
        return RotationPosterior(Lopsided(), GeometricSchedule(0.2, 3.0), **options)

    def image(self) -> Tensor:
        """A disc off the centre."""
        ramp = torch.linspace(-1, 1, 24)
        return (((ramp - 0.5) ** 2 + ramp[:, None] ** 2) < 0.09).float()[None, None]

    def test_the_exact_distribution_is_not_that_of_the_picture(self) -> None:
        module = self.module(times=[0.5, 1.0])
        assert torch.equal(module.exact(self.image(), [0.0])[0], self.module().exact(self.image())[0])
        with pytest.raises(ConfigurationError, match="times"):
            self.module(times=[])

    def test_densities_are_those_of_the_noised_angle(self) -> None:
        module = self.module()
        density = module.exact(self.image())
        start, width = density[0, 0].double(), 2 * math.pi / 72
        assert float(start.sum() * width) == pytest.approx(1, abs=1e-5)
        for t, found in zip(module.times[1:], density[1:, 0].double(), strict=True):
            variance = module.schedule.variance(0.0, t)
            shift = module.grid.double() - module.grid.double()[:, None]
            turns = 2 * math.pi * torch.arange(-8, 9, dtype=torch.float64)
            kernel = torch.exp(-((shift[..., None] + turns) ** 2) / (2 * variance)).sum(-1)
            expected = (start @ kernel) * width / math.sqrt(2 * math.pi * variance)
            assert_relative(found, expected, 2e-3)

    def test_samples_follow_the_exact_density(self, tmp_path: Path) -> None:
        """Roughly: at these settings scores are biased. tests/inversion/methods/test_tied.py has the limit of many."""
        arguments = override(
            tmp_path,
            "rotmnist/posterior.yaml",
            data={"init_args": {"limit": 2, "batch_size": 2}},
            model={"init_args": {"num_samples": 60, "steps": 15, "num_mc": 2, "bins": 12}},
        )
        main(arguments)
        metrics = results(tmp_path)["metrics"]
        assert metrics["total variation"]["worst"] < 0.45
        assert 0 < metrics["total variation of an exact sample"]["mean"] < metrics["total variation"]["worst"] + 0.1
        assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
