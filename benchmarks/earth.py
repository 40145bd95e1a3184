"""Densities of events on the Earth by a model on the sphere, beside published figures.

TRIVGEO_EARTH=folder python -m benchmarks.earth                  writes results/earth-cpu.json
TRIVGEO_EARTH=folder python -m benchmarks.earth --only flood     one catalogue, kept beside the others

Rows are kept one by one; a run that was ended goes on. The folder holds the four files that the repositories of
Riemannian score-based models publish; "made" needs none. Each catalogue is split at random, in 80, 10 and 10 per cent.
The held-out part chooses the weights of the model and the width of the kernels, and the test part is looked at once.
Where test events are at places of training events (copies), densities have no bound: the narrower, the better.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.timing import environment
from tasks.generative.earth import CATALOGUES, earth_split
from trivgeo.generative.spaces import SpaceDiffusion, Sphere

RESULTS = Path(__file__).parent / "results" / "earth-cpu.json"
_BATCH_SIZE, _WIDTH, _STEPS = 512, 128, 4000
_KERNEL_WIDTHS = [10.0 ** (-4.0 + 0.25 * k) for k in range(13)]  # in radians
_UNIFORM_SHARE = 0.03  # of a kernel density, for events far from all others
_COPY_DISTANCE = 1e-5  # distance in radians below which events are at one place


@dataclass(frozen=True)
class Row:
    """One model of one split: negative log-likelihoods for the area of the unit sphere, in nats."""

    catalogue: str
    seed: int
    events: int
    copies: float  # share of the test events that are at places of training events
    nll: float
    kernel_nll: float  # of a kernel density
    held_out_nll: float
    steps: int
    seconds: float  # of CPU time, of the training


def kernel_log_density(train: Tensor, points: Tensor, width: float) -> Tensor:
    """The log-density at points of von Mises-Fisher kernels at training events, and a uniform share, for the area."""
    cosine = 1.0 - 0.5 * torch.cdist(points.double(), train.double(), compute_mode="donot_use_mm_for_euclid_dist") ** 2
    concentration = width**-2
    top = math.log(concentration / (2.0 * math.pi)) - math.log1p(-math.exp(-2.0 * concentration))
    near = (top + concentration * (cosine - 1.0)).logsumexp(1) + math.log((1.0 - _UNIFORM_SHARE) / len(train))
    return torch.logaddexp(near, torch.full_like(near, math.log(_UNIFORM_SHARE / (4.0 * math.pi))))


def row(name: str, seed: int) -> Row:
    """Fit one split, and evaluate its test part."""
    split = earth_split(name, seed)
    start = time.process_time()
    model = SpaceDiffusion(Sphere(2), seed=seed, width=_WIDTH)
    model.fit(split.train, held_out=split.validation, steps=_STEPS, seconds=3600.0, batch_size=_BATCH_SIZE)
    seconds = time.process_time() - start
    nll, held = (
        -float(torch.cat([model.log_prob(x, measure="volume", tolerance=1e-3) for x in part.split(500)]).mean())
        for part in (split.test, split.validation)
    )
    assert model.history is not None
    width = max(_KERNEL_WIDTHS, key=lambda w: float(kernel_log_density(split.train, split.validation, w).mean()))
    kernel = -float(kernel_log_density(split.train, split.test, width).mean())
    gaps = torch.cdist(split.test.double(), split.train.double(), compute_mode="donot_use_mm_for_euclid_dist")
    copies = float((gaps.amin(1) < _COPY_DISTANCE).double().mean())
    events = sum(map(len, split))
    return Row(name, seed, events, copies, nll, kernel, held, model.history.best_step, seconds)


def main() -> None:
    """Add the rows that are missing to the kept ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.earth")
    parser.add_argument("--only", choices=[*CATALOGUES, "made"], help="one catalogue")
    parser.add_argument("--seeds", type=int, default=1, help="number of splits")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    for seed in range(options.seeds):
        for name in [options.only] if options.only else [*CATALOGUES, "made"]:
            if any((r["catalogue"], r["seed"]) == (name, seed) for r in kept):
                continue
            kept.append(asdict(row(name, seed)))
            print(kept[-1], flush=True)
            report = {"suite": "earth", "environment": environment(torch.device("cpu")), "rows": kept}
            RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
