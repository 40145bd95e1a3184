"""Learned inversion of affNIST and homNIST by `LearnedInverter.fit`, beside the networks that the repository keeps.

python -m benchmarks.learned [--sets affnist homnist] [--images 10000] [--folder runs/learned]

Training sees clean digits and the law below, nothing of a test set; it takes half an hour on one core for each set, and
goes on from its folder after an interruption. All inversions are of the same images, for the same classifier
(``resnet18``, see `tasks.checkpoints`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from benchmarks.timing import environment
from tasks.images.data import framed
from tasks.images.energies import load_classifier
from tasks.images.laws import AffineRecipe, HomographyRecipe, TransformationLaw
from tasks.images.mnist import MNIST
from tasks.images.testsets import DrawnProblems
from tasks.learned import TrainedInverter
from tasks.overlays import read
from trivgeo.actions import ImageWarp
from trivgeo.groups import Affine
from trivgeo.inversion import ImageBackbone, LearnedInverter
from trivgeo.inversion.law import Law

WIDE = Affine(2, scale=[0.2] * 4 + [0.36] * 2)


class Setting(NamedTuple):
    """How one set is learned."""

    recipe: TransformationLaw
    steps: int
    law: str
    draw: Callable[[Tensor], Law]
    backbone: Callable[[Tensor], ImageBackbone | None]


def _homographies(clean: Tensor) -> Law:
    recipe = HomographyRecipe()

    def draw(count: int, generator: torch.Generator) -> Tensor:
        some = clean[torch.randint(len(clean), (count,), generator=generator)]
        return recipe.draw(some, [generator] * count).float()

    return draw


def _normal(clean: Tensor) -> Law:
    return lambda count, generator: WIDE.exp(torch.randn(count, WIDE.dim, generator=generator))


def _fast(clean: Tensor) -> ImageBackbone:
    return ImageBackbone(6, clean.shape[1:], precision="bfloat16", mean=[float(clean.mean())], std=[float(clean.std())])


SETS = {
    "affnist": Setting(AffineRecipe(), 14_000, f"normal, {WIDE.scale.tolist()}", _normal, _fast),
    "homnist": Setting(HomographyRecipe(), 10_000, "of the test set", _homographies, lambda clean: None),
}


def measure(name: str, images: int, folder: Path) -> dict[str, Any]:
    """Train, invert, classify."""
    setting, source = SETS[name], MNIST()
    action = ImageWarp(setting.recipe.group)
    clean = framed(source.train().images, source.frame)
    learned = LearnedInverter(action, backbone=setting.backbone(clean), seed=0)
    learned.fit(clean, setting.draw(clean), steps=setting.steps, seconds=None, folder=folder / name)
    kept = TrainedInverter(action, None, **read(f"{name}/amortized")["model"]["init_args"]["inverter"]["init_args"])
    problems, classifier = DrawnProblems(source, setting.recipe, 0), load_classifier("resnet18").eval()
    right: dict[str, list[float]] = {}
    for first in tqdm(range(0, images, 500), desc=name, disable=None):
        batch = problems[list(range(first, min(first + 500, images)))]
        seen = {
            "clean": batch.clean,
            "moved": batch.image,
            "true transformation": action(action.group.inverse(batch.element.to(batch.image.dtype)), batch.image),
        }
        for method, inverter in (("kept network", kept), ("LearnedInverter.fit", learned)):
            seen[method] = inverter(batch.image, generator=torch.Generator().manual_seed(first)).restore(batch.image)
        for method, x in seen.items():
            with torch.no_grad():
                logits = classifier(x)
            entropy = functional.cross_entropy(logits, batch.label, reduction="sum")
            sums = right.setdefault(method, [0.0, 0.0])
            sums[0] += float((logits.argmax(-1) == batch.label).sum())
            sums[1] += float(entropy)
    rows = {method: {"accuracy": a / images, "cross entropy": b / images} for method, (a, b) in right.items()}
    return {"steps": setting.steps, "law": setting.law, "images": images, "rows": rows}


def main() -> None:
    """Parse the command line, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learned", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--sets", nargs="+", choices=[*SETS], default=[*SETS])
    parser.add_argument("--images", type=int, default=10_000, help="of each test set")
    parser.add_argument("--folder", type=Path, default=Path("runs/learned"), help="of the trainings")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "learned-cpu.json")
    options = parser.parse_args()
    tables = {}
    for name in options.sets:
        tables[name] = measure(name, options.images, options.folder)
        for method, row in tables[name]["rows"].items():
            print(f"{name}, {method}: accuracy {row['accuracy']:.4f}, cross entropy {row['cross entropy']:.4f}")
    document = {"environment": environment(torch.device("cpu")), "sets": tables}
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
