"""A set of images of another size, with colours and other classes, and a network: defined here, and nothing else."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from tasks.checkpoints import load_checkpoint, save_checkpoint
from tasks.cli import main
from tasks.images.models import ImageClassifier
from tasks.images.sources import ImageSource, LabelledImages
from tasks.images.testsets import DrawnProblems
from tasks.images.transformations import AffineRecipe
from tests.helpers import seeded
from trivgeo.errors import ConfigurationError, ShapeError

pytestmark = pytest.mark.usefixtures("workplace")

HERE = __name__


class Squares(ImageSource):
    """A square of 12 x 12 pixels in one of five colours, on images of 24 x 28 pixels in a frame of 32 x 32."""

    channels = 3
    classes = 5
    frame = (32, 32)

    def _drawn(self, count: int, seed: int) -> LabelledImages:
        labels = torch.randint(5, (count,), generator=seeded(seed))
        colours = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1]])
        images = torch.zeros(count, 3, 24, 28, dtype=torch.uint8)
        images[:, :, 6:18, 8:20] = (255 * colours[labels]).byte()[..., None, None]
        return LabelledImages(images, labels)

    def train(self) -> LabelledImages:
        return self._drawn(200, 1)

    def test(self) -> LabelledImages:
        return self._drawn(12, 2)


class Colours(ImageClassifier):
    """One linear layer on the mean colours."""

    def __init__(self, images: list[int]) -> None:
        super().__init__(images)
        self.layer = nn.Linear(self.images.channels, self.images.classes)

    @property
    def architecture(self) -> dict[str, list[int]]:
        return {"images": list(self.images)}

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(10 * x.mean((-2, -1)))


FIT = {
    "trainer": {"max_epochs": 12, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False},
    "model": {
        "class_path": "tasks.images.training.ClassifierTraining",
        "init_args": {"network": {"class_path": f"{HERE}.Colours"}, "learning_rate": 0.1, "export": "colours"},
    },
    "data": {
        "class_path": "tasks.images.data.CleanTraining",
        "init_args": {"source": {"class_path": f"{HERE}.Squares"}, "batch_size": 25, "validation": 50},
    },
}
TEST = {
    "trainer": {"default_root_dir": "out", "accelerator": "cpu", "enable_progress_bar": False},
    "model": {
        "class_path": "tasks.images.inversion.ImageInversion",
        "init_args": {
            "classifier": "checkpoints/colours.safetensors",
            "action": {
                "class_path": "trivgeo.actions.ImageWarp",
                "init_args": {"group": {"class_path": "trivgeo.groups.Affine", "init_args": {"n": 2}}},
            },
            "energy": {
                "class_path": "tasks.images.energies.ClassifierEnergy",
                "init_args": {"classifier": "checkpoints/colours.safetensors"},
            },
            "inverter": {
                "class_path": "trivgeo.inversion.RandomSearch",
                "init_args": {"num_samples": 4, "num_hypotheses": 1, "std": 0.1},
            },
        },
    },
    "data": {
        "class_path": "tasks.images.testsets.DrawnTest",
        "init_args": {
            "transformations": {"class_path": "tasks.images.transformations.AffineRecipe"},
            "source": {"class_path": f"{HERE}.Squares"},
            "batch_size": 5,
            "seeds": [3, 4],
        },
    },
}


def run(subcommand: str, config: object) -> None:
    Path(f"{subcommand}.yaml").write_text(yaml.safe_dump(config))
    main([subcommand, f"--config={subcommand}.yaml"])


def test_trained_and_inverted_from_the_command_line() -> None:
    run("fit", FIT)
    loaded = load_checkpoint(Colours, "checkpoints/colours.safetensors")
    assert loaded.network.images == (3, 32, 32, 5)
    assert loaded.metadata["metrics"]["accuracy"] == 1.0
    run("test", TEST)
    document = json.loads(Path("out/results.json").read_text())
    assert [(row["seed"], row["case"]) for row in document["rows"]] == [(s, c) for s in (3, 4) for c in range(12)]
    assert document["metrics"]["accuracy on clean images"]["mean"] == 1.0
    assert {row["label"] for row in document["rows"]} <= set(range(5))
    assert Path("out/figure.png").read_bytes()[:4] == b"\x89PNG"


class Larger(Squares):
    frame = (36, 32)


class Halved(AffineRecipe):
    """Transformations that are no elements of its group."""

    def draw(self, images: torch.Tensor, generators: Sequence[torch.Generator]) -> torch.Tensor:
        return super().draw(images, generators)[..., :2]


def test_what_does_not_fit_the_images_is_named() -> None:
    """Networks of another frame than that of the test, transformations of another group than that of the action."""
    network = Colours([3, 32, 32, 5])
    save_checkpoint(network, "checkpoints/colours.safetensors", {})
    data = TEST["data"]["init_args"]
    with pytest.raises(ConfigurationError) as frame:
        run("test", TEST | {"data": TEST["data"] | {"init_args": data | {"source": {"class_path": f"{HERE}.Larger"}}}})
    assert str(frame.value) == (
        "classifier: expected a network of images [3, 36, 32], as those of the test, got a Colours of images "
        "[3, 32, 32]: fit and test need the same frame"
    )
    group = {"class_path": "trivgeo.groups.SO", "init_args": {"n": 2}}
    turns = {"class_path": "trivgeo.actions.ImageWarp", "init_args": {"group": group}}
    model = TEST["model"] | {"init_args": TEST["model"]["init_args"] | {"action": turns}}
    with pytest.raises(
        ConfigurationError, match=r"transformations: expected .* group SO\(2\), got .* of Affine\(2\) by AffineRecipe"
    ):
        run("test", TEST | {"model": model})
    with pytest.raises(ShapeError, match=r"Halved\.draw: expected elements \[2, 2, 3\] .*, got \[2, 2, 2\]"):
        DrawnProblems(Squares(), Halved(), 0)[[0, 1]]
    with pytest.raises(ShapeError, match=r"Colours: expected images \[\*batch, 3, 32, 32\], got"):
        network(torch.zeros(2, 3, 36, 32))
