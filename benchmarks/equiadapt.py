"""Learned inversion beside equiadapt, the nearest library: same digits, same classifier.

python -m benchmarks.equiadapt [--epochs 30] [--steps 600] [--json FILE]

equiadapt (Mondal et al. 2023) trains a network that names the rotation to undo; it knows rotations and reflections of
the plane, no scales and no shifts. So there are two laws: any rotation, where both can undo everything, and the
similarity transformations of docs/examples/digits.py. Both train on clean digits alone, the classifier stays as it is.

equiadapt 0.1.2 needs torchvision, which does not import beside a CPU build of torch from 0.16 on. An environment of its
own with the last version before that works, for nothing compiled of it is used:

    pip install --no-deps equiadapt==0.1.2 torchvision==0.15.2 kornia==0.6.12 e2cnn==0.2.3 omegaconf hydra-core \\
        antlr4-python3-runtime==4.9.3
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import runpy
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.timing import environment
from trivgeo.actions import ImageWarp
from trivgeo.groups import SO, LieGroup, Similarity
from trivgeo.inversion import LearnedInverter, TestTimeEquivariant

NETWORKS = Path(__file__).parents[1] / "docs" / "examples" / "digits_networks.py"


def trivgeo_model(classifier: nn.Module, clean: Tensor, labels: Tensor, group: LieGroup, law, steps: int):
    """What a user of trivgeo writes."""
    inverter = LearnedInverter(ImageWarp(group), seed=0).fit(clean, law, steps=steps, seconds=None, progress=False)
    return TestTimeEquivariant(classifier, inverter)


def equiadapt_model(classifier: nn.Module, clean: Tensor, labels: Tensor, epochs: int) -> Callable[[Tensor], Tensor]:
    """What a user of equiadapt writes: the training loop of its examples, with the classifier kept as it is."""
    from equiadapt.images.canonicalization.continuous_group import OptimizedSteerableImageCanonicalization
    from equiadapt.images.canonicalization_networks import ConvNetwork
    from omegaconf import DictConfig

    torch.manual_seed(0)
    shape = tuple(clean.shape[1:])
    options = DictConfig({"group_type": "rotation", "input_crop_ratio": 1.0, "resize_shape": shape[-1]})
    network = ConvNetwork(shape, 32, 3, num_layers=3, out_vector_size=2)
    canonicalizer = OptimizedSteerableImageCanonicalization(network, options, shape)
    optimiser = torch.optim.Adam(canonicalizer.parameters(), 1e-3)
    canonicalizer.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(clean)).split(64):
            optimiser.zero_grad()
            loss = functional.cross_entropy(classifier(canonicalizer(clean[rows])), labels[rows])
            loss = loss + 100 * canonicalizer.get_prior_regularization_loss()
            loss = loss + 10 * canonicalizer.get_optimization_specific_loss()
            loss.backward()
            optimiser.step()
    canonicalizer.eval()
    return lambda x: classifier(canonicalizer(x))


def rotations(count: int, generator: torch.Generator) -> Tensor:
    """Any of SO(2)."""
    return SO(2).random_haar(count, generator=generator, dtype=torch.float64)


def similarities(count: int, generator: torch.Generator) -> Tensor:
    """As in docs/examples/digits.py."""
    u = torch.rand(count, 4, generator=generator, dtype=torch.float64)
    turn = SO(2).exp(math.pi * (u[:, :1] - 0.5))
    return Similarity(2).from_parts(turn, 0.6 * (1.6 / 0.6) ** u[:, 1], 0.8 * u[:, 2:] - 0.4)


def main() -> None:
    """Print the table as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30, help="of equiadapt")
    parser.add_argument("--steps", type=int, default=600, help="of trivgeo")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    own = runpy.run_path(str(NETWORKS))
    x, y = own["images"]()
    clean, labels, x, y = x[:1297], y[:1297], x[1297:], y[1297:]
    classifier = own["classifier_of"](clean, labels)

    def accuracy(model: Callable[[Tensor], Tensor], z: Tensor) -> float:
        with torch.no_grad():
            return float((model(z).argmax(-1) == y).float().mean())

    begin = time.process_time()
    rival = equiadapt_model(classifier, clean, labels, arguments.epochs)
    rival_seconds = time.process_time() - begin
    rows = {}
    for name, group, law in (("rotations", SO(2), rotations), ("similarity", Similarity(2), similarities)):
        action, g = ImageWarp(group), law(len(x), torch.Generator().manual_seed(1)).to(x)
        moved = action(g, x)
        begin = time.process_time()
        model = trivgeo_model(classifier, clean, labels, group, law, arguments.steps)
        seconds = time.process_time() - begin
        rows[name] = {
            "clean": accuracy(classifier, x),
            "alone": accuracy(classifier, moved),
            "true transformation": accuracy(classifier, action(group.inverse(g), moved)),
            "equiadapt": {"accuracy": accuracy(rival, moved), "training CPU seconds": rival_seconds},
            "trivgeo": {"accuracy": accuracy(model, moved), "training CPU seconds": seconds},
        }
    lines = {
        name: len([line for line in inspect.getsource(f).splitlines()[2:] if line.strip()])
        for name, f in (("equiadapt", equiadapt_model), ("trivgeo", trivgeo_model))
    }
    settings = {"epochs": arguments.epochs, "steps": arguments.steps}
    report = {"environment": environment(torch.device("cpu")), **settings, "lines of user code": lines, "laws": rows}
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
