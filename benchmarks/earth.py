"""Densities of events on the Earth by a model on the sphere, beside published figures.

TRIVGEO_EARTH=folder python -m benchmarks.earth                  writes results/earth-cpu.json
TRIVGEO_EARTH=folder python -m benchmarks.earth --only flood     one catalogue, kept beside the others
TRIVGEO_EARTH=folder python -m benchmarks.earth --flows 5        with a flow for each of the five splits

Rows are kept one by one; a run that was ended goes on. Kernel densities, which take seconds, have five splits. The
folder holds the four files that the repositories of Riemannian score-based models publish; "made" needs none. Each
catalogue is split at random, in 80, 10 and 10 per cent. The held-out part chooses the weights of the model and of the
kernels, and the test part is looked at once. Where test events are at places of training events (copies), densities
have no bound: the narrower, the better.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.timing import environment
from tasks.generative.earth import CATALOGUES, earth_split
from trivgeo.generative.kernel_density import KernelDensity
from trivgeo.generative.spaces import SpaceDiffusion, Sphere

RESULTS = Path(__file__).parent / "results" / "earth-cpu.json"
_BATCH_SIZE, _WIDTH, _STEPS = 512, 128, 4000
_NUM_SPLITS = 5
_COPY_DISTANCE = 1e-5  # distance in radians below which events are at one place


@dataclass(frozen=True)
class Row:
    """One model of one split: negative log-likelihoods for the area of the unit sphere, in nats."""

    catalogue: str
    seed: int
    events: int
    copies: float  # share of the test events that are at places of training events
    kernel_nll: float  # of a kernel density
    nll: float | None = None  # of the flow, where one was trained
    mixed_nll: float | None = None  # of kernels and flow together
    flow_weight: float | None = None  # in the mixture
    held_out_nll: float | None = None  # of the flow
    steps: int | None = None
    seconds: float | None = None  # of CPU time, of the training


def row(name: str, seed: int, has_flow: bool) -> Row:
    """Fit one split, and evaluate its test part."""
    split = earth_split(name, seed)
    gaps = torch.cdist(split.test.double(), split.train.double(), compute_mode="donot_use_mm_for_euclid_dist")
    copies = float((gaps.amin(1) < _COPY_DISTANCE).double().mean())
    kernels = KernelDensity(Sphere(2)).fit(split.train, split.validation)
    found = Row(name, seed, sum(map(len, split)), copies, mean_nll(kernels, split.test))
    if not has_flow:
        return found
    start = time.process_time()
    model = SpaceDiffusion(Sphere(2), seed=seed, width=_WIDTH)
    model.fit(split.train, held_out=split.validation, steps=_STEPS, seconds=3600.0, batch_size=_BATCH_SIZE)
    seconds = time.process_time() - start
    assert model.history is not None
    mixture = KernelDensity(Sphere(2), models=[model]).fit(split.train, split.validation)
    return replace(
        found,
        nll=mean_nll(model, split.test),
        mixed_nll=mean_nll(mixture, split.test),
        flow_weight=float(mixture.model_weights),
        held_out_nll=mean_nll(model, split.validation),
        steps=model.history.best_step,
        seconds=seconds,
    )


def mean_nll(density: SpaceDiffusion | KernelDensity, points: Tensor) -> float:
    """The mean negative log-density of points for the area."""
    return -float(torch.cat([density.log_prob(x, measure="volume") for x in points.split(500)]).double().mean())


def main() -> None:
    """Add the rows that are missing to the kept ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.earth")
    parser.add_argument("--only", choices=[*CATALOGUES, "made"], help="one catalogue")
    parser.add_argument("--flows", type=int, default=1, help="number of splits with a flow")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    for seed in range(_NUM_SPLITS):
        for name in [options.only] if options.only else [*CATALOGUES, "made"]:
            has_flow = seed < options.flows
            old = next((r for r in kept if (r["catalogue"], r["seed"]) == (name, seed)), None)
            if old is not None and (old["nll"] is not None or not has_flow):
                continue
            kept = [r for r in kept if r is not old] + [asdict(row(name, seed, has_flow))]
            print(kept[-1], flush=True)
            report = {"suite": "earth", "environment": environment(torch.device("cpu")), "rows": kept}
            RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
