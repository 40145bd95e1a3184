"""The search as published, from its configuration, beside the released code: equal images, energies and networks.

python -m benchmarks.published --released FOLDER [--config affnist/tied_published] [--images 256] [--save]

FOLDER is a checkout of the code of Kim et al. (2026), whose sampler runs as it is, on our energy. The networks of
images that were published with it are no files of the checkout; both searches ask ours, by default the small networks
that come with the library, and move the digits that do. The released sampler differs from algorithm 1 of the paper in
two points: it returns the best of all elements at which a chain stood, and its steps move the given image.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import environment
from tasks.config_inheritance import read
from tasks.images.energies import ClassifierEnergy, NetworkEnergy, VAEEnergy, load_classifier
from tasks.images.mnist import MNIST, BundledSample
from tasks.images.testsets import DrawnTest
from tasks.images.transformations import AffineRecipe, HomographyRecipe
from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action, Affine, Projective
from trivgeo.inversion import InverseProblem, ReverseDiffusionSearch
from trivgeo.inversion.energies import DataEnergy, FramedEnergy
from trivgeo.sde import GeometricSchedule

RESULTS = Path(__file__).parent / "results" / "published-cpu.json"
SETS = {"affnist": (Affine, AffineRecipe, "ImageAffine"), "homnist": (Projective, HomographyRecipe, "ImageHomography")}


def settings(config: str) -> dict[str, Any]:
    """The settings of the search of a configuration, by the names of the arguments of `ReverseDiffusionSearch`."""
    found = dict(read(config)["model"]["init_args"]["inverter"]["init_args"])
    return found | {"schedule": GeometricSchedule(**found["schedule"]["init_args"])}


def action_of(config: str) -> ImageWarp:
    """The action of a configuration of images, in the published basis."""
    given = read(config)["model"]["init_args"]["action"]["init_args"]
    group = SETS[config.partition("/")[0]][0](2, scale=given["group"]["init_args"]["scale"])
    return ImageWarp(group, guarded=given.get("guarded", True))


def energy_of(config: str, full: bool) -> NetworkEnergy:
    """The energy of a configuration of images, or the same kind of the small networks that come with the library."""
    given = read(config)["model"]["init_args"]["energy"]
    if given["class_path"].endswith("ClassifierEnergy"):
        return ClassifierEnergy("resnet18" if full else "small_cnn")
    return VAEEnergy(**given["init_args"]) if full else VAEEnergy("small_vae")


def published_search(config: str, action: Action, energy: DataEnergy, **changes: Any) -> ReverseDiffusionSearch:
    """The search of a configuration, such as ``affnist/tied_published_classifier``.

    Args:
        config: name of the configuration.
        action: the action, such as that of `action_of`.
        energy: the energy.
        changes: settings in place of those of the configuration.
    """
    return ReverseDiffusionSearch(action, energy, **{**settings(config), **changes})


class _ReleasedEnergy(nn.Module):
    """Our energy as the released sampler asks for it: of matrices that map pixels of the restored image to the given.

    Attributes:
        group: the group of the released code.
        evaluations: so far.
    """

    def __init__(self, group: nn.Module, action: ImageWarp, energy: DataEnergy) -> None:
        super().__init__()
        self.group, self._action, self._energy = group, action, energy
        self.evaluations = 0

    def element(self, matrix: Tensor) -> Tensor:
        """The element g whose inverse moves an image as the matrix does."""
        if self._action.group.element_shape == (3, 3):
            return matrix / torch.linalg.det(matrix).abs().pow(1 / 3)[:, None, None]
        return matrix[:, :2]

    def forward(self, g_inverse: Tensor, x: Tensor, y: Tensor | None) -> Tensor:
        """Energies of restored images, one element for each."""
        self.evaluations += len(x)
        # the matrix samples the given image at (matrix p), which undoes the same matrix in our notation
        return InverseProblem(self._action, self._energy).given(x).energies(self.element(g_inverse))


def released_search(
    folder: Path, config: str, action: ImageWarp, energy: DataEnergy, **changes: Any
) -> Callable[[Tensor, int], tuple[Tensor, int]]:
    """The sampler of the released code with the settings of a configuration: images and a seed to elements and cost.

    Raises:
        ConfigurationError: the folder holds no such code.
    """
    if not (folder / "src" / "group_sampler.py").is_file():
        raise ConfigurationError(f"--released: expected a checkout with src/group_sampler.py, got {folder}")
    sys.path.insert(0, str(folder.resolve()))
    energies: Any = ModuleType("src.energies")  # the released one imports torchvision, for networks that are not used
    energies.Energy = nn.Module
    sys.modules["src.energies"] = energies
    sampler, groups = (importlib.import_module(f"src.{name}") for name in ("group_sampler", "groups"))
    group = getattr(groups, SETS[config.partition("/")[0]][2])()
    wrapped, given = _ReleasedEnergy(group, action, energy), {**settings(config), **changes}
    run = sampler.EnergyDiffusionSampler(
        wrapped,
        temperature=given["temperature"],
        steps=given["steps"],
        noise_min=given["schedule"].minimum,
        noise_max=given["schedule"].maximum,
        clip_norm=given["max_score_norm"],
        num_mc=given["num_mc"],
        num_hypothesis=given["num_hypotheses"],
        dtype="float32",
        verbose=False,
    )

    def search(images: Tensor, seed: int) -> tuple[Tensor, int]:
        wrapped.evaluations = 0
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            found = run.eval()(images, None)
        return wrapped.element(torch.linalg.inv(found)), wrapped.evaluations

    return search


def main() -> None:
    """Parse the command line, run both, print, and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--released", type=Path, required=True, help="a checkout of the released code")
    parser.add_argument("--config", nargs="+", default=["affnist/tied_published"])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32, help="images at a time, which share noise samples")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--chains", type=int, help="K in place of that of the configuration")
    parser.add_argument("--full", action="store_true", help="the networks of the configuration, not the small ones")
    parser.add_argument("--save", action="store_true", help="keep the rows")
    options = parser.parse_args()
    source = MNIST() if options.full else BundledSample()
    classifier = load_classifier("resnet18" if options.full else "small_cnn")
    rows: list[dict[str, Any]] = []
    for config in options.config:
        data = DrawnTest(
            SETS[config.partition("/")[0]][1](), source, limit=options.images, batch_size=options.batch, seeds=[0]
        )
        data.prepare_data()
        data.setup("test")
        # the small autoencoder has no regulariser, without which an empty frame has a low energy; both searches are
        # given what contrast outside of the frame costs in its place
        action = ImageWarp(action_of(config).group, guarded=not options.full)
        energy = FramedEnergy(energy_of(config, options.full))
        changes = {} if options.chains is None else {"num_hypotheses": options.chains}
        own = published_search(config, action, energy, **changes).replace(progress=False)
        released = released_search(options.released, config, action, energy, **changes)

        def invert(images: Tensor, seed: int, own: ReverseDiffusionSearch = own) -> tuple[Tensor, int]:
            result = own(images, generator=torch.Generator().manual_seed(seed))
            return result.best(), len(images) * (result.energy_evaluations + result.gradient_evaluations)

        for name, search in (("configuration", invert), ("released code", released)):
            for seed in options.seeds:
                correct = evaluations = 0
                seconds = 0.0
                for batch in data.test_dataloader():
                    start = time.process_time()
                    g, count = search(batch.image, 1000 * seed + batch.number)
                    seconds += time.process_time() - start
                    evaluations += count
                    with torch.no_grad():
                        restored = classifier(action(action.group.inverse(g), batch.image))
                        correct += int((restored.argmax(-1) == batch.label).sum())
                accuracy = correct / options.images
                row = {
                    "config": config,
                    "search": name,
                    "seed": seed,
                    "chains": settings(config)["num_hypotheses"] if options.chains is None else options.chains,
                    "images": options.images,
                    "accuracy": accuracy,
                    "standard error": math.sqrt(accuracy * (1 - accuracy) / options.images),
                    "evaluations an image": evaluations / options.images,
                    "CPU seconds an image": round(seconds / options.images, 3),
                }
                rows.append(row)
                print(json.dumps(row), flush=True)
    if options.save:
        document = {
            "environment": environment(torch.device("cpu")),
            "networks": "full" if options.full else "small",
            "rows": rows,
        }
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
