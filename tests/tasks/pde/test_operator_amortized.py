"""Learned inversion of operator inputs: what the network reads, training from the command line, files."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tasks.checkpoints import load_checkpoint, save_checkpoint
from tasks.cli import main
from tasks.learned import NoiseNetwork, TrainedInverter, load_score
from tasks.pde.heat import HeatEquation
from tasks.pde.learned import CleanProblems, OperatorDenoising, OperatorNetwork
from tasks.pde.problems import MixedProblems
from tasks.seeds import generator_of
from tests.helpers import assert_relative, random_elements
from trivgeo.actions import OperatorAction
from trivgeo.errors import CheckpointError, ConfigurationError
from trivgeo.groups import BurgersSymmetry, HeatSymmetry
from trivgeo.inversion.energies.domain_distance import hull_points
from trivgeo.inversion.learned import LearnedScore
from trivgeo.inversion.learned.operator_backbone import OperatorReader
from trivgeo.inversion.learned.score_files import describe
from trivgeo.sde import GeometricSchedule

CONFIGS = Path(__file__).parents[3] / "tasks" / "configs"
SPREAD = [0.1, 1.0, 0.01, 0.5, 0.03, 0.5]
SCALE = (0.2, 2.0, 0.02, 1.0, 0.06, 1.0)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tasks"])
    monkeypatch.chdir(tmp_path)


def untrained(width: int = 8) -> LearnedScore:
    equation = HeatEquation()
    module = OperatorDenoising(equation, list(SCALE), GeometricSchedule(0.01, 2.5), width=width, depth=1)
    return module.score.eval()


def save(score: LearnedScore, path: str, metadata: dict[str, Any]) -> None:
    assert isinstance(score.backbone, NoiseNetwork)
    save_checkpoint(score.backbone, path, metadata, describe(score))


class TestReader:
    def test_commutes_with_the_action(self) -> None:
        """The same points, whether chosen before or after a transformation."""
        data = MixedProblems(HeatEquation(), SPREAD, [0], cases=4, nx=9, nt=7)
        problems = data.problems(0)
        reader = OperatorReader(5)
        action = OperatorAction(data.group.action())
        before = reader(action(problems.elements, problems.canonical))
        after = action(problems.elements, reader(problems.canonical))
        assert_relative(before.initial, after.initial, 1e-12)
        assert before.query.shape == (4, 4, 2)
        for a, b in zip(before.query, after.query, strict=True):
            assert_relative(a[a[:, 0].argsort()], b[b[:, 0].argsort()], 1e-10)

    def test_the_network_does_not_see_the_order_of_the_hull(self) -> None:
        data = MixedProblems(HeatEquation(), SPREAD, [0], cases=3, nx=5, nt=4)
        y = OperatorReader(16)(data.problems(0).x)
        network = untrained().backbone
        level = torch.full((3,), 0.1)
        with torch.no_grad():
            value = network(y, level)
            assert value.dtype == torch.float64
            assert_relative(network(y._replace(query=y.query.flip(1)), level), value, 1e-6)
            assert not torch.allclose(network(y._replace(query=1.1 * y.query), level), value, atol=1e-3)
            assert not torch.allclose(network(y._replace(initial=1.1 * y.initial), level), value, atol=1e-3)
        assert hull_points(y.query).shape == y.query.shape


class TestTraining:
    def fit(self, *extra: str) -> Path:
        main(
            [
                "fit",
                f"--config={CONFIGS / 'heat' / 'amortized_fit.yaml'}",
                "--trainer.enable_progress_bar=false",
                "--trainer.enable_model_summary=false",
                "--model.export=score.safetensors",
                *extra,
            ]
        )
        return Path("score.safetensors")

    def test_exports_what_was_trained(self) -> None:
        """Twenty steps already beat knowing nothing, and the file gives the same score."""
        path = self.fit(
            "--trainer.max_epochs=1",
            "--data.steps_per_epoch=20",
            "--data.batch_size=128",
            "--model.learning_rate=0.01",
            "--trainer.log_every_n_steps=1",
        )
        metadata = load_checkpoint(OperatorNetwork, str(path)).metadata
        score = load_score(str(path), OperatorAction(HeatSymmetry(0.1).action()))
        assert metadata["nu"] == 0.1
        assert 0 < metadata["metrics"]["noise"] < 0.9
        assert score.group.scale.tolist() == list(SCALE)
        clean = CleanProblems(HeatEquation()).dataset[2**31 + 1]
        loss = score.loss(clean, generator_of(0, 0, 0)) / 6
        assert float(loss) == pytest.approx(metadata["metrics"]["noise"], rel=0.2)

    @pytest.mark.slow
    def test_undoes_mixed_transformations(self) -> None:
        """A short training: the true element to a few hundredths of the noise's scale."""
        path = self.fit("--trainer.max_epochs=2")
        problems = MixedProblems(HeatEquation(), SPREAD, [0], nx=9, nt=7).problems(0)
        inverter = TrainedInverter(OperatorAction(HeatSymmetry(0.1).action()), None, str(path), steps=10)
        result = inverter(problems.x)
        assert (result.energy_evaluations, result.network_evaluations) == (0, 10)
        group = inverter.action.group
        left = group.log(group.compose(group.inverse(result.best()), problems.elements))
        assert float(left.abs().max()) < 0.05
        assert float(group.log(problems.elements).abs().max()) > 0.5

    def test_configured_for_another_group(self) -> None:
        with pytest.raises(ConfigurationError, match="scale"):
            OperatorDenoising(HeatEquation(), [1.0] * 5, GeometricSchedule(0.1, 1.0))


class TestTask:
    def test_runs_from_the_command_line(self, tmp_path: Path) -> None:
        """The shipped test with an untrained score: results are written with their evaluations."""
        score = untrained()
        save(score, "score.safetensors", {})
        writer = {"class_path": "tasks.results.ResultsWriter", "init_args": {"directory": str(tmp_path / "out")}}
        changes: dict[str, Any] = {
            "trainer": {"callbacks": [writer], "enable_progress_bar": False},
            "model": {
                "init_args": {
                    "inverter": {"init_args": {"checkpoint": "score.safetensors", "steps": 2}},
                    "figure": None,
                }
            },
            "data": {"init_args": {"seeds": [0], "cases": 2, "nx": 9, "nt": 7}},
        }
        Path("override.yaml").write_text(yaml.safe_dump(changes))
        main(["test", f"--config={CONFIGS / 'heat' / 'amortized.yaml'}", "--config=override.yaml"])
        rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
        assert len(rows) == 2
        assert all(row["energy_evaluations"] == 0 for row in rows)
        assert all(math.isfinite(row["metrics"]["with inversion"]) for row in rows)


class TestFiles:
    def test_round_trip(self) -> None:
        score = untrained()
        save(score, "deep/score.safetensors", {"note": 1})
        loaded = load_score("deep/score.safetensors", OperatorAction(HeatSymmetry(0.1).action()))
        assert load_checkpoint(OperatorNetwork, "deep/score.safetensors").metadata == {"note": 1}
        x = CleanProblems(HeatEquation()).dataset[0]
        g = random_elements(score.group, 512, std=0.1, dtype=torch.float32)
        with torch.no_grad():
            assert torch.equal(loaded.given(x)(g, 0.5), score.given(x)(g, 0.5))

    def test_refused(self) -> None:
        heat = OperatorAction(HeatSymmetry(0.1).action())
        with pytest.raises(CheckpointError, match="expected a readable safetensors file"):
            load_score("none.safetensors", heat)
        with pytest.raises(CheckpointError, match="expected a network of class NoiseNetwork, got DeepONet"):
            load_score("heat_deeponet", heat)
        save(untrained(), "score.safetensors", {})
        with pytest.raises(CheckpointError, match="BurgersSymmetry"):
            load_score("score.safetensors", OperatorAction(BurgersSymmetry().action()))
        with pytest.raises(ConfigurationError, match="domain"):
            OperatorNetwork(6, [0.0, 1.0])
