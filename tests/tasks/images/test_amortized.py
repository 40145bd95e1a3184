"""Learned inversion of images: the network, training from the command line, and the inverters made of it."""

import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tasks.checkpoints import load_checkpoint, save_checkpoint
from tasks.cli import main
from tasks.images.convnet import ConvNet
from tasks.images.mnist import BundledSample
from tasks.images.pose import PoseNetwork
from tasks.images.testsets import DrawnProblems
from tasks.images.transformations import AffineRecipe
from tasks.inverters import ProposedInverter
from tasks.learned import TrainedInverter, load_score
from tests.helpers import seeded
from tests.tasks.sample_runs import CONFIGS, DIGITS, framed_digits, run_on_sample
from trivgeo.actions import ImageWarp
from trivgeo.errors import CheckpointError, ConfigurationError, ShapeError
from trivgeo.groups import SL, Affine, Projective, from_generators
from trivgeo.inversion.energies import FunctionEnergy
from trivgeo.inversion.learned import LearnedScore
from trivgeo.inversion.learned.score_files import describe
from trivgeo.inversion.stages import AddNoise, KeepLower, ReverseDiffusion, Select
from trivgeo.networks import initialise
from trivgeo.sde import GeometricSchedule
from trivgeo.sde.solvers import AncestralStep

pytestmark = pytest.mark.usefixtures("workplace")

SCALE = [0.25, 0.25, 0.25, 0.25, 0.45, 0.45]
SMALL = ("--model.network.init_args.channels=[8,8]", "--model.network.init_args.width=16")


def small() -> PoseNetwork:
    """A network that was not trained."""
    network = PoseNetwork(6, DIGITS, channels=[4, 8], width=16, precision="float32")
    initialise(network, seeded(1))
    return network


def saved(name: str, dim: int = 6) -> Path:
    """A score that was not trained, in a file."""
    network = PoseNetwork(dim, DIGITS, channels=[4], width=8, precision="float32")
    group = Affine(2, scale=SCALE) if dim == 6 else Projective(2)
    schedule = GeometricSchedule(0.1, 2.4)
    path = Path("checkpoints") / f"{name}.safetensors"
    save_checkpoint(network, path, {}, describe(LearnedScore(ImageWarp(group), schedule, network)))
    return path


class TestNetwork:
    def test_rows_are_independent(self) -> None:
        """What it says of one image depends on that image and its level."""
        network = small()
        x = torch.rand(3, 1, 40, 40, generator=seeded(0))
        level = torch.tensor([0.1, 0.5, 0.9])
        each = torch.cat([network(x[i : i + 1], level[i : i + 1]) for i in range(3)])
        torch.testing.assert_close(network(x, level), each, atol=1e-5, rtol=1e-4)
        assert not torch.allclose(network(x, level.flip(0)), each, atol=1e-3)
        assert not torch.allclose(network(x.roll(4, -1), level), each, atol=1e-3)

    def test_precision(self) -> None:
        """bfloat16 changes the answer by its rounding, in the type of the image."""
        network = small()
        coarse = PoseNetwork(**(network.architecture | {"precision": "bfloat16"}))
        coarse.load_state_dict(network.state_dict())
        x, level = torch.rand(5, 1, 40, 40, generator=seeded(0)), torch.full((5,), 0.3)
        with torch.no_grad():
            fine, rough = network(x, level), coarse(x, level)
        assert rough.dtype == torch.float32
        assert 0 < float((rough - fine).norm() / fine.norm()) < 0.05

    def test_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="channels"):
            PoseNetwork(6, (1, 8, 8, 10), channels=[4] * 4)
        with pytest.raises(ConfigurationError, match="dim"):
            PoseNetwork(0, DIGITS)
        with pytest.raises(ShapeError, match="40"):
            PoseNetwork(6, DIGITS, channels=[4])(torch.zeros(2, 1, 28, 28), torch.ones(2))


class TestTraining:
    def test_learns_exports_and_restores(self) -> None:
        """A few seconds of training already undo most of the translation of test images."""
        settings = (*SMALL, "--data.batch_size=100", "--model.learning_rate=0.008")
        metrics = run_on_sample("fit", "affnist/amortized_fit", *settings, epochs=6).trainer.callback_metrics
        assert metrics["val/noise"] < 0.92  # one without knowledge
        loaded = load_checkpoint(PoseNetwork, "checkpoints/amortized_affine.safetensors")
        assert loaded.score is not None
        assert loaded.score["scale"] == SCALE
        action = ImageWarp(Affine(2))
        problems = DrawnProblems(BundledSample(), AffineRecipe(), seed=0)[list(range(200))]
        inverter = TrainedInverter(action, None, "amortized_affine", times=(1.0, 0.5, 0.0))
        result = inverter(problems.image)
        assert result.network_evaluations == 2
        left = action.group.compose(action.group.inverse(result.best()), problems.element)
        assert float(left[..., 2].std()) < 0.5 * float(problems.element[..., 2].std())

    @pytest.mark.slow(reason="inversion/test_learned_inverter distils")
    def test_distils(self) -> None:
        """Configured like the training; starts from the teacher, which stays, and changes its own network."""
        saved("amortized_affine")
        before = load_checkpoint(PoseNetwork, "amortized_affine").network.state_dict()
        settings = ("--data.batch_size=300", "--model.learning_rate=1e-3")
        run_on_sample("fit", "affnist/distilled_fit", *settings, epochs=1)
        after = load_checkpoint(PoseNetwork, "distilled_affine")
        assert after.score is not None
        assert after.score["schedule"] == [0.1, 2.4]
        assert after.metadata["metrics"]["consistency"] >= 0
        changes = [float((after.network.state_dict()[name] - tensor).abs().max()) for name, tensor in before.items()]
        assert 0 < max(changes) < 0.1
        assert load_checkpoint(PoseNetwork, "amortized_affine").network.state_dict().keys() == before.keys()


class TestScores:
    def test_the_scale_comes_from_the_file(self) -> None:
        saved("one")
        score = load_score("checkpoints/one.safetensors", ImageWarp(Affine(2, scale=3.0)))
        assert score.group.scale.tolist() == SCALE
        assert describe(score)["schedule"] == [0.1, 2.4]
        assert not any(p.requires_grad for p in score.parameters())

    def test_of_another_group(self) -> None:
        saved("one")
        with pytest.raises(CheckpointError, match="Projective"):
            load_score("checkpoints/one.safetensors", ImageWarp(Projective(2)))

    def test_of_another_representation(self) -> None:
        """Vectors and covectors: equal brackets and dimensions, but the same tensor is another element."""
        basis = SL(2).hat(torch.eye(3, dtype=torch.float64))
        vectors = from_generators([lambda p, m=m: p @ m.mT for m in basis], variables=2).action()
        covectors = from_generators([lambda p, m=m: -p @ m for m in basis], variables=2).action()
        network = PoseNetwork(3, DIGITS, channels=[4], width=8)
        score = LearnedScore(vectors, GeometricSchedule(0.1, 2.4), network)
        save_checkpoint(network, "three.safetensors", {}, describe(score))
        with pytest.raises(CheckpointError, match="another group, of dimension 3"):
            load_score("three.safetensors", covectors)
        assert load_score("three.safetensors", vectors).group.is_same_group(vectors.group)

    def test_of_no_group(self) -> None:
        network = PoseNetwork(6, DIGITS, channels=[4], width=8)
        for group in ({}, {"group": {"dim": 6}}):
            save_checkpoint(network, "four.safetensors", {}, group)
            with pytest.raises(CheckpointError, match="expected the group of a score in the header"):
                load_score("four.safetensors", ImageWarp(Affine(2)))

    def test_without_a_score(self) -> None:
        network = PoseNetwork(6, DIGITS, channels=[4], width=8)
        save_checkpoint(network, "checkpoints/two.safetensors", {})
        with pytest.raises(CheckpointError, match="noise of a score"):
            load_score("checkpoints/two.safetensors", ImageWarp(Affine(2)))


class TestInverters:
    IMAGES = framed_digits(BundledSample().test().images[:3])

    def test_ranked_or_not(self) -> None:
        saved("one")
        # the counts and energies are those of the inverter alone, without the guard of the warp
        action, energy = ImageWarp(Affine(2), guarded=False), FunctionEnergy(lambda x: x.sum((1, 2, 3)))
        options: dict[str, Any] = {
            "checkpoint": "checkpoints/one.safetensors",
            "num_hypotheses": 4,
            "stepper": AncestralStep(),
        }
        options["times"] = (1.0, 0.5, 0.0)
        r = TrainedInverter(action, energy, ranked=True, **options)(self.IMAGES, generator=seeded(0))
        restored = action(Affine(2).inverse(r.elements), self.IMAGES.unsqueeze(1))
        torch.testing.assert_close(r.energies, restored.sum((-3, -2, -1)))
        assert (r.energy_evaluations, r.network_evaluations) == (4, 8)
        assert TrainedInverter(action, energy, **options)(self.IMAGES).energy_evaluations == 0

    def test_weighed(self) -> None:
        saved("one")
        energy = FunctionEnergy(lambda x: x.square().sum((1, 2, 3)))
        proposals = functools.partial(
            TrainedInverter,
            checkpoint="checkpoints/one.safetensors",
            times=(1.0, 0.5, 0.0),
            num_hypotheses=5,
            stepper=AncestralStep(),
        )
        moves = KeepLower(AddNoise(steps=2, time=0.3), ReverseDiffusion(steps=2, temperature=0.1))
        inverter = ProposedInverter(ImageWarp(Affine(2), guarded=False), energy, proposals, [Select(2), moves])
        r = inverter(self.IMAGES, generator=seeded(0))
        assert r.elements.shape == (3, 2, 2, 3)
        assert (r.energy_evaluations, r.gradient_evaluations, r.network_evaluations) == (7, 8, 10)
        assert math.isfinite(float(r.energies.sum()))
        assert inverter.action.group.scale.tolist() == SCALE


class TestTask:
    @pytest.mark.parametrize("config", ["amortized", "hybrid"])
    def test_runs_from_the_command_line(self, tmp_path: Path, config: str) -> None:
        """The shipped tests on a few digits, with a score and a classifier that were not trained."""
        saved("amortized_affine")
        save_checkpoint(ConvNet(DIGITS, [4, 4]), "checkpoints/tiny.safetensors", {})
        classifier = "checkpoints/tiny.safetensors"
        writer = {"class_path": "tasks.results.ResultsWriter", "init_args": {"directory": str(tmp_path / "out")}}
        changes: dict[str, Any] = {
            "trainer": {"callbacks": [writer], "enable_progress_bar": False},
            "model": {
                "init_args": {
                    "classifier": classifier,
                    "energy": {"init_args": {"classifier": classifier}} if config == "hybrid" else None,
                    "features": None,
                    "figure": None,
                }
            },
            "data": {
                "init_args": {
                    "source": {"class_path": "tasks.images.mnist.BundledSample"},
                    "limit": 6,
                    "batch_size": 4,
                    "seeds": [0],
                }
            },
        }
        Path("override.yaml").write_text(yaml.safe_dump(changes))
        main(["test", f"--config={CONFIGS / 'affnist' / config}.yaml", "--config=override.yaml"])
        rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
        assert len(rows) == 6
        assert all(row["gradient_evaluations"] == 0 for row in rows)
        assert all((row["energy_evaluations"] > 0) == (config == "hybrid") for row in rows)
