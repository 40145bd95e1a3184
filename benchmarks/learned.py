"""Learned inversion by `LearnedInverter.fit`, beside the networks that the repository keeps.

python -m benchmarks.learned [--sets affnist homnist heat burgers] [--images 10000] [--folder runs/learned]

Training sees clean data and the distributions below, nothing of a test set, and goes on from its folder after an
interruption; it takes half an hour on one core for each set of images, eight minutes for each equation. All inversions
are of the same problems, for the same network: of images the classifier ``resnet18`` (see `tasks.checkpoints`), of
equations the solution operators kept.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from benchmarks.timing import environment
from tasks.config_inheritance import read
from tasks.images.data import framed
from tasks.images.energies import load_classifier
from tasks.images.mnist import MNIST
from tasks.images.testsets import DrawnProblems
from tasks.images.transformations import AffineRecipe, HomographyRecipe, RandomTransformations
from tasks.learned import TrainedInverter
from tasks.pde.burgers import BurgersEquation
from tasks.pde.equation import Equation
from tasks.pde.heat import HeatEquation
from tasks.pde.inversion import OperatorInversion
from tasks.pde.problems import FactorProblems, MixedProblems, SymmetryProblems
from trivgeo.actions import ImageWarp, OperatorAction, OperatorInput
from trivgeo.groups import Action, Affine
from trivgeo.inversion import LearnedInverter
from trivgeo.inversion.learned import ImageBackbone
from trivgeo.inversion.transformations import Transformations

WIDE = Affine(2, scale=[0.2] * 4 + [0.36] * 2)


class ImageSetting(NamedTuple):
    """How one set of images is learned."""

    recipe: RandomTransformations
    steps: int
    described: str
    draw: Callable[[Tensor], Transformations]
    backbone: Callable[[Tensor], ImageBackbone | None]


def _homographies(clean: Tensor) -> Transformations:
    recipe = HomographyRecipe()

    def draw(count: int, generator: torch.Generator) -> Tensor:
        some = clean[torch.randint(len(clean), (count,), generator=generator)]
        return recipe.draw(some, [generator] * count).float()

    return draw


def _normal(clean: Tensor) -> Transformations:
    return lambda count, generator: WIDE.exp(torch.randn(count, WIDE.dim, generator=generator))


def _fast(clean: Tensor) -> ImageBackbone:
    return ImageBackbone(6, clean.shape[1:], precision="bfloat16", mean=[float(clean.mean())], std=[float(clean.std())])


class OperatorSetting(NamedTuple):
    """How the symmetries of one equation are learned: by a normal distribution of these standard deviations."""

    equation: Equation
    widths: list[float]
    problems: SymmetryProblems


_HEAT, _BURGERS, _SEEDS = HeatEquation(), BurgersEquation(), [0, 1, 2, 3, 4]
_OPERATOR_STEPS, _OPERATOR_BATCH = 5_000, 512
IMAGES = {
    "affnist": ImageSetting(AffineRecipe(), 14_000, f"normal, {WIDE.scale.tolist()}", _normal, _fast),
    "homnist": ImageSetting(HomographyRecipe(), 10_000, "of the test set", _homographies, lambda clean: None),
}
EQUATIONS = {
    "heat": OperatorSetting(_HEAT, [0.12, 1.2, 0.012, 0.6, 0.036, 0.6], FactorProblems(_HEAT, _SEEDS)),
    "burgers": OperatorSetting(
        _BURGERS,
        [0.24, 0.48, 0.24, 0.48, 0.48],
        MixedProblems(_BURGERS, [0.2, 0.4, 0.2, 0.4, 0.4], _SEEDS, num_sensors=101, nx=101, nt=101),
    ),
}


def _kept(name: str, action: Action) -> TrainedInverter:
    """The network of the repository, with the looks of its configuration."""
    return TrainedInverter(action, None, **read(f"{name}/amortized")["model"]["init_args"]["inverter"]["init_args"])


def measure_operator(name: str, folder: Path) -> dict[str, Any]:
    """Train, invert, predict."""
    equation, widths, problems = EQUATIONS[name]
    action = OperatorAction(equation.group().action())
    wide = equation.group().with_scale(widths)

    def clean(count: int, generator: torch.Generator) -> OperatorInput:
        inputs = equation.inputs(equation.sample(count, generator), problems.num_sensors, (2, 2))
        return OperatorInput(inputs.initial.float(), inputs.query.float())

    def transformations(count: int, generator: torch.Generator) -> Tensor:
        return wide.exp(torch.randn(count, wide.dim, generator=generator))

    learned = LearnedInverter(action, seed=0)
    learned.fit(
        clean, transformations, steps=_OPERATOR_STEPS, batch_size=_OPERATOR_BATCH, seconds=None, folder=folder / name
    )
    kept = _kept(name, action)
    rows = {}
    for method, inverter in (("kept network", kept), ("LearnedInverter.fit", learned)):
        test = OperatorInversion(f"{name}_deeponet", equation, lambda *_, i=inverter: i, figure=None)
        trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
        (errors,) = trainer.test(test, problems, verbose=False)
        rows["inside the domain"] = {"error": errors["inside_the_training_domain"]}
        rows["moved"] = {"error": errors["without_inversion"]}
        rows["true transformation"] = {"error": errors["with_the_true_transformation"]}
        rows[method] = {"error": errors["with_inversion"]}
    return {"steps": _OPERATOR_STEPS, "law": f"normal, {widths}", "rows": rows}


def measure_images(name: str, images: int, folder: Path) -> dict[str, Any]:
    """Train, invert, classify."""
    setting, source = IMAGES[name], MNIST()
    action = ImageWarp(setting.recipe.group)
    clean = framed(source.train().images, source.frame)
    learned = LearnedInverter(action, backbone=setting.backbone(clean), seed=0)
    learned.fit(clean, setting.draw(clean), steps=setting.steps, seconds=None, folder=folder / name)
    kept = _kept(name, action)
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
    return {"steps": setting.steps, "law": setting.described, "images": images, "rows": rows}


def main() -> None:
    """Parse the command line, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learned", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--sets", nargs="+", choices=[*IMAGES, *EQUATIONS], default=[*IMAGES, *EQUATIONS])
    parser.add_argument("--images", type=int, default=10_000, help="of each test set of images")
    parser.add_argument("--folder", type=Path, default=Path("runs/learned"), help="of the trainings")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "learned-cpu.json")
    options = parser.parse_args()
    tables = {}
    for name in options.sets:
        if name in IMAGES:
            tables[name] = measure_images(name, options.images, options.folder)
        else:
            tables[name] = measure_operator(name, options.folder)
        for method, row in tables[name]["rows"].items():
            print(f"{name}, {method}: " + ", ".join(f"{what} {value:.4g}" for what, value in row.items()), flush=True)
    document = {"environment": environment(torch.device("cpu")), "sets": tables}
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
