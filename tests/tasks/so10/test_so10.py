"""`python -m tasks test` on SO(10): the exact distribution, both samplers, results and figure."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tasks.cli import main
from tasks.config_inheritance import read
from tasks.so10.corner_distribution import CornerDistribution
from tasks.so10.data import SampleRequests
from tasks.so10.samplers import Langevin, ReverseDiffusion
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SO
from trivgeo.sde import GeometricSchedule
from trivgeo.sde.solvers import GeometricHeun

CONFIGS = Path("tasks/configs/so10")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run a config of the repository, made small, writing to a temporary folder; returns the results."""
    monkeypatch.setattr("sys.argv", ["tasks"])

    def go(name: str, count: int, seeds: list[int], **changes: Any) -> dict[str, Any]:
        config = read(CONFIGS / name)
        config["trainer"]["default_root_dir"] = str(tmp_path)
        config["trainer"]["enable_progress_bar"] = False
        config["data"]["init_args"] = {"seeds": seeds, "count": count}
        config["model"]["init_args"]["sampler"]["init_args"].update(changes)
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(config))
        main(["test", "--config", str(path)])
        return json.loads((tmp_path / "results.json").read_text())

    return go


class TestDistribution:
    def test_uniform(self) -> None:
        """Without energy X_11 is an entry of a uniform unit vector."""
        distribution = CornerDistribution(10, 0.0)
        x = SO(10).random_haar(4000, generator=torch.Generator().manual_seed(0))[:, 0, 0]
        assert distribution.kolmogorov_smirnov(x) < 1.95 / math.sqrt(4000)
        assert distribution.mean_square() == pytest.approx(0.1, abs=1e-4)

    def test_density(self) -> None:
        distribution = CornerDistribution()
        x = np.array([0.0, 0.3, -0.8])
        shape = (1 - x**2) ** 3.5 * np.exp(10 * x**2)
        assert distribution.density(x) / distribution.density(x)[0] == pytest.approx(shape / shape[0], rel=1e-3)
        assert distribution.cumulative(np.array([-1.0, 0.0, 1.0])) == pytest.approx([0.0, 0.5, 1.0])
        with pytest.raises(ConfigurationError, match="at least 3"):
            CornerDistribution(2)

    def test_distance(self) -> None:
        distribution = CornerDistribution()
        assert distribution.kolmogorov_smirnov(torch.zeros(10)) == pytest.approx(0.5, abs=1e-6)


class TestTask:
    def test_tied(self, run: Any, tmp_path: Path) -> None:
        results = run("tied.yaml", 600, [0])
        metrics = results["metrics"]
        assert metrics["kolmogorov-smirnov distance"]["mean"] < 0.03 + 1.36 / math.sqrt(600)
        assert metrics["|mean of X_11|"]["mean"] < 4 * math.sqrt(0.5 / 600)
        assert metrics["defect of orthogonality"]["mean"] < 1e-4
        row = results["rows"][0]
        assert row["gradient_evaluations_per_sample"] <= 1000
        assert list(row["trace"]) == [str(m) for m in range(13)]
        assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"

    def test_two_seeds_and_langevin(self, run: Any) -> None:
        results = run("langevin.yaml", 100, [0, 3], steps=3)
        assert [row["seed"] for row in results["rows"]] == [0, 3]
        assert results["rows"][0]["gradient_evaluations_per_sample"] == 4
        assert results["rows"][0]["metrics"] != results["rows"][1]["metrics"]

    @pytest.mark.slow
    def test_bars(self, run: Any) -> None:
        """10,000 samples, a tenth of the published gradients."""
        results = run("tied.yaml", 10_000, [0, 1])
        assert results["metrics"]["kolmogorov-smirnov distance"]["worst"] < 0.03
        assert results["rows"][0]["gradient_evaluations_per_sample"] <= 1000

    @pytest.mark.slow
    def test_langevin_reaches_the_distribution(self, run: Any) -> None:
        results = run("langevin_short.yaml", 4000, [0])
        assert results["metrics"]["kolmogorov-smirnov distance"]["worst"] < 0.045

    @pytest.mark.parametrize("name", [p.name for p in sorted(CONFIGS.glob("*.yaml")) if p.stem != "base"])
    def test_configs_are_whole(self, name: str) -> None:
        config = read(CONFIGS / name)
        assert config["trainer"]["default_root_dir"] == f"runs/so10/{name.removesuffix('.yaml')}"

    def test_bad_input(self) -> None:
        for seeds in ([], [1, 1]):
            with pytest.raises(ConfigurationError, match="seeds"):
                SampleRequests(seeds)
        with pytest.raises(ConfigurationError, match="count"):
            SampleRequests([0], 0)
        with pytest.raises(ConfigurationError, match="steps"):
            Langevin(0)
        with pytest.raises(ConfigurationError, match="num_mc"):
            ReverseDiffusion(GeometricSchedule(0.1, 1.0), 3, 0, GeometricHeun())
