"""One classifier made equivariant by equiadapt and by trivgeo: accuracy, CPU seconds, lines of code.

python -m benchmarks.equiadapt [--images 500] [--epochs 8]

The scikit-learn digits and the classifier of docs/examples/digits.py, moved by rotations up to 90 degrees to either
side, and by its similarity transformations. equiadapt (Mondal et al. 2023) has rotations and reflections; its
canonicalizer with a network without constraints (Panigrahi and Mondal 2024) is trained on the clean images with their
prior, the classifier as it is. Every method sees clean images alone. equiadapt asks for older versions of others,
so it goes into an environment of its own, where only what it imports is added:

    pip install --no-deps equiadapt==0.1.2 torchvision==0.15.2 kornia==0.6.12 e2cnn==0.2.3 \\
        omegaconf hydra-core antlr4-python3-runtime==4.9.3
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from equiadapt.images.canonicalization.discrete_group import OptimizedGroupEquivariantImageCanonicalization
from equiadapt.images.canonicalization_networks import ConvNetwork
from torch import Tensor

from benchmarks.timing import environment
from trivgeo.actions import ImageWarp
from trivgeo.groups import SO, LieGroup, Similarity
from trivgeo.inversion import TIED, LearnedInverter, TestTimeEquivariant

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
Classifier = Callable[[Tensor], Tensor]
Transformations = Callable[[int, torch.Generator], Tensor]


def with_equiadapt(clean: Tensor, classifier: Classifier, epochs: int) -> Classifier:
    """Its canonicalizer for 16 rotations."""
    shape = tuple(clean.shape[1:])
    settings = SimpleNamespace(
        beta=1.0,
        input_crop_ratio=1.0,
        resize_shape=shape[-1],
        group_type="rotation",
        num_rotations=16,
        artifact_err_wt=10.0,  # without it, what no interpolation has blurred is taken for upright
        learn_ref_vec=False,
    )
    network = ConvNetwork(shape, out_channels=16, kernel_size=3, num_layers=3, out_vector_size=128)
    canonicalizer = OptimizedGroupEquivariantImageCanonicalization(network, settings, shape)
    optimiser = torch.optim.Adam(canonicalizer.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(clean), generator=generator).split(64):
            canonicalizer(clean[rows])
            prior = canonicalizer.get_prior_regularization_loss()
            loss = 10 * prior + canonicalizer.get_optimization_specific_loss()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    canonicalizer.eval()
    return lambda x: classifier(canonicalizer(x))


def with_learned_inversion(
    clean: Tensor, classifier: Classifier, action: ImageWarp, transformations: Transformations
) -> Classifier:
    """A learned inversion."""
    inverter = LearnedInverter(action, seed=0).fit(clean, transformations, steps=1200)
    return TestTimeEquivariant(classifier, inverter)


def with_tied(
    clean: Tensor,
    classifier: Classifier,
    action: ImageWarp,
    transformations: Transformations,
    energy: Callable[[Tensor], Tensor],
) -> Classifier:
    """A search with the energy of an autoencoder."""
    search = TIED(action, energy, transformations, clean)
    return TestTimeEquivariant(classifier, search)


def problems() -> dict[str, tuple[LieGroup, Transformations]]:
    """The two groups, each with the distribution of its elements."""
    turn, similarity = SO(2), Similarity(2)

    def rotations(count: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(count, 1, generator=generator, dtype=torch.float64)
        return turn.exp(math.pi * (u - 0.5))

    def similarities(count: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(count, 4, generator=generator, dtype=torch.float64)
        rotation = turn.exp(math.pi * (u[:, :1] - 0.5))
        return similarity.from_parts(rotation, 0.6 * (1.6 / 0.6) ** u[:, 1], 0.8 * u[:, 2:] - 0.4)

    return {"rotations": (turn, rotations), "similarities": (similarity, similarities)}


def lines(function: Callable[..., Any]) -> int:
    """Lines of code of a function, without its signature and docstring."""
    source = inspect.getsource(function)
    body = source.split('"""')[-1]
    return sum(bool(line.strip()) for line in body.splitlines())


def main() -> None:
    """Print the table of all methods."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--output", default=str(Path(__file__).parent / "results" / "equiadapt-cpu.json"))
    arguments = parser.parse_args()
    networks = runpy.run_path(str(EXAMPLES / "digits_networks.py"))
    x, y = networks["images"]()
    clean, labels, x, y = x[:1297], y[:1297], x[1297:][: arguments.images], y[1297:][: arguments.images]
    classifier, autoencoder = networks["classifier_of"](clean, labels), networks["autoencoder_of"](clean)

    def energy(z: Tensor) -> Tensor:
        unknown, ink = (autoencoder(z) - z).square(), (z - z[..., :1, :1]).square()
        return 10 * unknown.sum((1, 2, 3)) / (1 + ink.sum((1, 2, 3)))

    tables: dict[str, dict[str, dict[str, float]]] = {}
    for name, (group, transformations) in problems().items():
        action = ImageWarp(group)
        moved = action(transformations(len(x), torch.Generator().manual_seed(1)).to(x), x)
        methods: dict[str, tuple[Callable[..., Any] | None, Callable[[], Classifier]]] = {
            "classifier alone": (None, lambda: classifier),
            "equiadapt": (with_equiadapt, lambda: with_equiadapt(clean, classifier, arguments.epochs)),
            "learned inversion": (
                with_learned_inversion,
                lambda action=action, transformations=transformations: with_learned_inversion(
                    clean, classifier, action, transformations
                ),
            ),
            "TIED": (
                with_tied,
                lambda action=action, transformations=transformations: with_tied(
                    clean, classifier, action, transformations, energy
                ),
            ),
        }
        table = tables[name] = {}
        for method, (function, build) in methods.items():
            torch.manual_seed(0)
            begin = time.process_time()
            model = build()
            trained = time.process_time()
            found = model(moved).argmax(-1)
            table[method] = {
                "accuracy": float((found == y).float().mean()),
                "accuracy, clean": float((model(x).argmax(-1) == y).float().mean()),
                "seconds before": trained - begin,
                "ms an image": 1e3 * (time.process_time() - trained) / (2 * len(x)),
                "lines": lines(function) if function else 0,
            }
            print(name, method, table[method], file=sys.stderr, flush=True)
    settings = {name: value for name, value in vars(arguments).items() if name != "output"}
    document = {"environment": environment(torch.device("cpu")), **settings, "tables": tables}
    Path(arguments.output).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
