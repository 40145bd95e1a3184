"""Frames of digits: the group against matrices, the frames against dense moments, training and test from the config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy.stats import ks_2samp

from tasks.cli import main
from tasks.config_inheritance import read
from tasks.frames.data import DigitFrames, RandomBatches
from tasks.frames.diffusion import FrameDiffusion
from tasks.frames.digits import BUNDLED, bundled_frames, extract, ink_frames, relative_frames
from tasks.frames.group import COORDINATES, frame_group, from_affine, to_affine
from tasks.frames.statistics import energy_distance, kolmogorov_smirnov, mean_embedding_distance
from tasks.images.mnist import BundledSample
from tests.helpers import assert_relative, randn
from trivgeo.errors import CheckpointError, ConfigurationError, ShapeError
from trivgeo.groups import Affine

CONFIG = Path("tasks/configs/frames/score.yaml")


class TestGroup:
    def test_is_a_subgroup_of_the_affine_group(self) -> None:
        group, plane = frame_group([0.5, 0.3, 0.7, 0.8, 1.6]), Affine(2)
        g, h, v = 0.7 * randn(6, 5, seed=1), 0.7 * randn(6, 5, seed=2), 0.5 * randn(6, 5, seed=3)
        assert_relative(to_affine(group.compose(g, h)), plane.compose(to_affine(g), to_affine(h)), 1e-12)
        assert_relative(to_affine(group.inverse(g)), plane.inverse(to_affine(g)), 1e-12)
        assert_relative(from_affine(to_affine(g)), g, 1e-12)
        unit = torch.func.jvp(lambda x: to_affine(group.exp(x)), (0 * v,), (v,))[1]
        assert_relative(
            to_affine(group.exp(v)), plane.exp(torch.cat([unit[..., :2].flatten(-2), unit[..., 2]], -1)), 1e-10
        )

    def test_modular_function(self) -> None:
        g = randn(6, 5, seed=1)
        assert_relative(frame_group().log_modular(g), -2 * g[:, 0], 1e-10)
        assert not frame_group().algebra.is_unimodular


class TestFrames:
    def images(self) -> torch.Tensor:
        return BundledSample().test().images[:20].squeeze(1)

    def test_moments(self) -> None:
        """Against sums over a fine subdivision of the pixels."""
        image = self.images()[:1]
        fine = image.double().repeat_interleave(40, 1).repeat_interleave(40, 2)[0].numpy()
        centres = (np.arange(28 * 40) + 0.5) / (14 * 40) - 1
        x, y = np.meshgrid(centres, centres)
        points = np.stack([x.ravel(), y.ravel()])
        a = ink_frames(image.double())[0]
        mean = np.average(points, axis=1, weights=fine.ravel())
        second = np.cov(points, aweights=fine.ravel(), ddof=0)
        assert_relative(a[:, 2], torch.from_numpy(mean), 1e-10)
        assert_relative(a[:, :2] @ a[:, :2].mT, torch.from_numpy(second), 1e-3, floor=0.01)
        assert float(a[1, 0]) == 0.0

    def test_relative_frames(self) -> None:
        """Moving the digit by whole pixels changes nothing; so does doubling it in size, but for its pixels."""
        images = self.images()
        room = torch.nn.functional.pad(images, (6, 6, 6, 6))
        frames = relative_frames(room)
        moved = relative_frames(room.roll((3, -4), (-2, -1)))
        assert_relative(moved, frames, 1e-9)
        # the share of an edge row in the halves and the size of a pixel stay, relative to the digit
        large = relative_frames(room.repeat_interleave(2, -1).repeat_interleave(2, -2))
        assert float((large - frames).abs().median()) < 0.03

    def test_upper_and_lower_half(self) -> None:
        """Two bars of known place and size."""
        image = torch.zeros(1, 20, 20, dtype=torch.uint8)
        image[0, 2:6, 4:12] = 255  # above: 4 high, 8 wide, centre (8, 4)
        image[0, 14:16, 6:14] = 255  # below: 2 high, 8 wide, centre (10, 15); half the ink
        image[0, 16:18, 6:14] = 255
        p, q, slant, down, z = relative_frames(image)[0].tolist()
        assert (p, q, slant) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
        # in units of the upper bar's standard deviations, 8 / sqrt(12) and 4 / sqrt(12) pixels
        assert down == pytest.approx(12 / (4 / 12**0.5))
        assert z == pytest.approx(2 / (8 / 12**0.5))

    def test_no_ink(self) -> None:
        with pytest.raises(ShapeError, match="ink"):
            relative_frames(torch.zeros(2, 8, 8, dtype=torch.uint8))

    def test_bundled(self) -> None:
        frames = bundled_frames()
        assert frames.train.shape == (8000, 5)
        assert frames.test.shape == (4000, 5)
        assert torch.isfinite(frames.train).all()
        assert BUNDLED.stat().st_size < 300_000

    def test_extraction(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tasks.frames.digits.MNIST", lambda root: BundledSample())
        extract(None, tmp_path / "frames.safetensors")
        monkeypatch.setattr("tasks.frames.digits.BUNDLED", tmp_path / "frames.safetensors")
        assert torch.isfinite(bundled_frames().test).all()
        monkeypatch.setattr("tasks.frames.digits.BUNDLED", tmp_path / "none.safetensors")
        with pytest.raises(CheckpointError, match="none"):
            bundled_frames()


class TestStatistics:
    def test_closed_forms(self) -> None:
        x, y = torch.zeros(3, 1).double(), torch.full((5, 1), 2.0).double()
        assert energy_distance(x, y) == pytest.approx(4.0)
        assert mean_embedding_distance(x, y, 1.0) == pytest.approx((2 - 2 * np.exp(-2.0)) ** 0.5)
        assert mean_embedding_distance(x, x, 1.0) == 0.0
        a, b = randn(300, seed=1), 0.3 + randn(200, seed=2)
        assert kolmogorov_smirnov(a, b) == pytest.approx(ks_2samp(a.numpy(), b.numpy()).statistic)


class TestData:
    def test_batches(self) -> None:
        batches = RandomBatches(100, 7, 3, seed=1)
        first = list(batches)
        assert [len(b) for b in first] == [7, 7, 7] == [7] * len(batches)
        assert list(batches) == first
        batches.set_epoch(1)
        assert list(batches) != first

    def test_bad_input(self) -> None:
        with pytest.raises(ConfigurationError, match="seeds"):
            DigitFrames(seeds=(1, 1))
        with pytest.raises(ConfigurationError, match="batch_size"):
            DigitFrames(batch_size=0)


class TestTask:
    @pytest.fixture
    def run(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
        monkeypatch.setattr("sys.argv", ["tasks"])

        def go(command: str, **changes: dict[str, Any]) -> dict[str, Any]:
            config = read(CONFIG)
            config["trainer"] |= {"default_root_dir": str(tmp_path), "enable_progress_bar": False}
            config["model"]["init_args"] |= changes.get("model", {})
            config["data"]["init_args"] |= changes.get("data", {})
            config["trainer"] |= changes.get("trainer", {})
            path = tmp_path / "small.yaml"
            path.write_text(yaml.safe_dump(config))
            main([command, "--config", str(path)])
            results = tmp_path / "results.json"
            return json.loads(results.read_text()) if results.exists() else {}

        return go

    def test_fit_and_test(self, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A small network gets nearer to the digits by a little training; both losses agree on it."""
        monkeypatch.setenv("TRIVGEO_CHECKPOINTS", str(tmp_path))
        frames = bundled_frames()
        few = type(frames)(frames.train, frames.test[:400])
        monkeypatch.setattr("tasks.frames.data.bundled_frames", lambda: few)
        distances = []
        for steps in (1, 80):
            model = {
                "checkpoint": str(tmp_path / f"score{steps}.safetensors"),
                "export": str(tmp_path / f"score{steps}.safetensors"),
                "width": 32,
                "decay": 0.9,
                "learning_rate": 5e-3,
                "reuse": 16,
                "steps": 20,
            }
            data = {"seeds": [0], "batch_size": 512, "steps_per_epoch": steps}
            run("fit", model=model, data=data, trainer={"max_epochs": 1})
            metrics = {name: m["mean"] for name, m in run("test", model=model, data=data)["metrics"].items()}
            distances.append(metrics["MMD of generated"])
            assert metrics["implicit against denoising loss, standard errors"] < 4.5
            assert metrics["MMD of training digits"] < 0.1
        assert distances[1] < 0.8 * distances[0], distances
        assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"

    @pytest.mark.slow
    def test_bars(self, run: Any) -> None:
        """With the bundled weights: the bar is twice the distance of training digits, the best one can hope for one."""
        metrics = run("test")["metrics"]
        assert metrics["MMD, generated / training digits"]["worst"] < 2.0
        for name in COORDINATES:
            generated, real = (metrics[f"KS of {name}, {kind}"]["mean"] for kind in ("generated", "training digits"))
            assert generated < real + 0.05
        assert metrics["implicit against denoising loss, standard errors"]["worst"] < 4.5

    def test_no_weights(self, run: Any, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="expected a readable safetensors file, there is none"):
            run("test", model={"checkpoint": str(tmp_path / "none.safetensors")})
        with pytest.raises(CheckpointError, match="this network"):
            run("test", model={"width": 17})

    def test_bad_settings(self) -> None:
        with pytest.raises(ConfigurationError, match="decay"):
            FrameDiffusion([1.0] * 5, (0.1, 1.0), "none", decay=1.0)
