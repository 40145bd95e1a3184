"""Throughput and accuracy of the search on affNIST with the classifier's energy: as published, and as trivgeo runs it.

python -m benchmarks.images [--images 256] [--batch 16] [--methods 0 1 2 3]

The settings are those of `affnist/tied_published_classifier` but K = 8 hypotheses, and changes are named in the rows.
The methods take turns, batch by batch; the ratios of the batches give a range. All see the same images, the same energy
and the same float32 classifier for the final answer.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.published import action_of, published_search
from benchmarks.timing import environment, median_seconds
from tasks.images.energies import ClassifierEnergy, Precision, load_classifier
from tasks.images.testsets import DrawnTest
from tasks.images.transformations import AffineRecipe
from trivgeo.inversion.energies import FramedEnergy

CONFIG = "affnist/tied_published_classifier"
K = 8
PRUNING = ((0.8, 4), (0.6, 2), (0.4, 1))
FEWER, EARLIER = 20, ((0.9, 4), (0.75, 2), (0.5, 1))


def faster(source: str, images: Tensor) -> Precision:
    """The arithmetic in which this machine evaluates the energy and its gradient in less time."""
    found: dict[Precision, float] = {}
    for precision in get_args(Precision):
        energy = ClassifierEnergy(source, precision)
        gradient = torch.func.grad(lambda x, energy=energy: energy(x).sum())
        found[precision] = median_seconds(lambda gradient=gradient: gradient(images), images.device)
    return min(found, key=lambda precision: found[precision])


def main() -> None:
    """Run both, print and write the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16, help="images at a time")
    parser.add_argument("--output", default=str(Path(__file__).parent / "results" / "images-cpu.json"))
    parser.add_argument("--methods", nargs="+", type=int, help="which rows of the table, from 0; default: all")
    options = parser.parse_args()
    source = "resnet18"
    classifier = load_classifier(source)
    data = DrawnTest(AffineRecipe(), limit=options.images, batch_size=options.batch)
    data.prepare_data()
    data.setup("test")
    batches = list(data.test_dataloader())
    action = action_of(CONFIG)
    group = action.group

    precision = faster(source, batches[0].image)

    def ours(**changes: Any) -> Callable[[Tensor, torch.Generator], tuple[Tensor, int]]:
        energy = FramedEnergy(ClassifierEnergy(source, precision))
        inverter = published_search(CONFIG, action, energy, num_hypotheses=K, **changes)

        def invert(images: Tensor, generator: torch.Generator) -> tuple[Tensor, int]:
            result = inverter(images, generator=generator)
            return result.best(), (result.energy_evaluations + result.gradient_evaluations) * len(images)

        return invert

    methods: dict[str, Callable[[Tensor, torch.Generator], tuple[Tensor, int]]] = {
        "as published": ours(),
        "exact on all groups": ours(published=False),
        "best seen, pruned": ours(published=False, keep_best=True, pruning=PRUNING),
        f"best seen, pruned earlier, {FEWER} steps": ours(
            published=False, steps=FEWER, keep_best=True, pruning=EARLIER
        ),
    }
    methods = {
        name: methods[name] for i, name in enumerate(list(methods)) if options.methods is None or i in options.methods
    }
    with torch.no_grad():
        alone = sum(int((classifier(b.image).argmax(-1) == b.label).sum()) for b in batches) / options.images
    print(f"{options.images} images, accuracy without inversion {alone:.4f}", flush=True)
    generators = {name: torch.Generator().manual_seed(0) for name in methods}
    correct, evaluations = dict.fromkeys(methods, 0), dict.fromkeys(methods, 0)
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for batch in tqdm(batches, disable=None):
        for name, invert in methods.items():  # in turns: a machine that slows down slows all of them
            start = time.perf_counter()
            g, count = invert(batch.image, generators[name])
            seconds[name].append(time.perf_counter() - start)
            evaluations[name] += count
            with torch.no_grad():
                restored = action(group.inverse(g), batch.image)
                correct[name] += int((classifier(restored).argmax(-1) == batch.label).sum())
    first, *_ = seconds.values()
    rows: list[dict[str, Any]] = []
    for name, taken in seconds.items():
        ratios = sorted(a / b for a, b in zip(first, taken, strict=True))
        row = {
            "method": name,
            "accuracy": correct[name] / options.images,
            "images_per_second": options.images / sum(taken),
            "evaluations_per_image": evaluations[name] / options.images,
            "speedup": sum(first) / sum(taken),
            "slowest batch": ratios[0],
            "fastest batch": ratios[-1],
        }
        rows.append(row)
        print(
            f"  {name}: accuracy {row['accuracy']:.4f}, {row['images_per_second']:.3f} images/s, "
            f"{row['evaluations_per_image']:.0f} evaluations an image, {row['speedup']:.2f} times as fast "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f} by batch)",
            flush=True,
        )
    document = {
        "environment": environment(torch.device("cpu")),
        "setting": {"images": options.images, "batch": options.batch, "K": K, "config": CONFIG, "precision": precision},
        "accuracy_without_inversion": alone,
        "rows": rows,
    }
    Path(options.output).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
