"""Flows in few steps: energy distances of samples by the map that `GroupDiffusion.distil` learns, and by the flow.

TRIVGEO_RNA=file TRIVGEO_EARTH=folder python -m benchmarks.few_steps     writes results/few-steps-cpu.json
python -m benchmarks.few_steps --only "SO(3)"                            one target, kept beside the others

Each is the mean over several samples, with its standard error. Rows are kept one by one; a run that was ended goes on.
An evaluation is one call of a network: a step of the map takes one, a step of Heun's method along the
flow two.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import environment
from tasks.frames.statistics import energy_distance
from tasks.generative.earth import earth_split
from tasks.generative.sources import Checkerboard, RNATorsions, RotationMixture, TimeEvolutions
from trivgeo.generative import GroupDiffusion
from trivgeo.generative.spaces import SpaceDiffusion, Sphere
from trivgeo.groups import SE, LieGroup

RESULTS = Path(__file__).parent / "results" / "few-steps-cpu.json"
EVALUATIONS = (1, 2, 4, 8, 100)
_NUM_SAMPLES, _NUM_DRAWS, _NUM_DENSITIES = 2000, 4, 500
_WIDTH, _FIT_STEPS, _MAP_STEPS, _BATCH_SIZE = 128, 1500, 4000, 512


@dataclass(frozen=True)
class Row:
    """Energy distances to the test set and their standard errors, by number of evaluations."""

    target: str
    training_set: float
    learned_map: dict[int, tuple[float, float]]
    flow: dict[int, tuple[float, float]]
    nll: float  # of the flow, in nats, for Haar measure
    seconds_of_fit: float  # of CPU time
    seconds_of_map: float


def poses(count: int, seed: int) -> Tensor:
    """A mixture of three narrow distributions on SE(3)."""
    group = SE(3)
    centres = group.random(3, std=1.0, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(3, (count,), generator=generator)
    return group.compose(centres[which], group.random(count, std=0.25, generator=generator))


def split_of(source: Any) -> tuple[LieGroup, Tensor, Tensor]:
    """Group, training and test elements of a source."""
    return source.group, *source.split(0)


def earth() -> tuple[Sphere, Tensor, Tensor]:
    """Floods."""
    split = earth_split("flood", 0)
    return Sphere(2), split.train, split.test


TARGETS: dict[str, Callable[[], tuple[Any, Tensor, Tensor]]] = {
    "RNA torsions, T^7": lambda: split_of(RNATorsions()),
    "SO(3), 32 modes": lambda: split_of(RotationMixture()),
    "SU(4), oscillator": lambda: split_of(TimeEvolutions(4)),
    "SE(3), 3 modes": lambda: (SE(3), poses(20_000, 0), poses(2000, 1)),
    "Earth, floods": earth,
    "T^2, checkerboard": lambda: split_of(Checkerboard()),
}


def entries(space: Any, g: Tensor) -> Tensor:
    """Entries of elements or points; of angles, their cosines and sines."""
    flat = g.double().flatten(1)
    if not isinstance(space, LieGroup):
        return flat
    periods = torch.tensor(space.fingerprint()["periods"], dtype=torch.float64).flatten()
    angles, others = flat[:, periods > 0] * (2.0 * torch.pi / periods[periods > 0]), flat[:, ~(periods > 0)]
    return torch.cat([others, angles.cos(), angles.sin()], -1)


def row(name: str) -> Row:
    """Fit a flow, learn its map, and compare samples of both with the test set."""
    space, train, test = TARGETS[name]()
    settings: dict[str, Any] = {"width": _WIDTH, "seed": 0}
    model = (
        GroupDiffusion(space, "flow", **settings) if isinstance(space, LieGroup) else SpaceDiffusion(space, **settings)
    )
    fit: dict[str, Any] = {"batch_size": _BATCH_SIZE, "seconds": 3600.0, "progress": False}
    begin = time.process_time()
    model.fit(train, steps=_FIT_STEPS, **fit)
    middle = time.process_time()
    truth = entries(space, test[:_NUM_SAMPLES])

    def distance(evaluations: int, evaluations_per_step: int) -> tuple[float, float]:
        found = []
        for seed in range(_NUM_DRAWS):
            steps = max(1, evaluations // evaluations_per_step)
            drawn = model.sample(_NUM_SAMPLES, steps=steps, generator=torch.Generator().manual_seed(seed))
            found.append(energy_distance(entries(space, drawn[torch.isfinite(drawn.flatten(1)).all(-1)]), truth))
        return statistics.mean(found), statistics.stdev(found) / math.sqrt(_NUM_DRAWS)

    flow = {n: distance(n, 2) for n in EVALUATIONS if n > 1}
    few = test[:_NUM_DENSITIES]
    nll = -float(model.log_prob(few, tolerance=1e-2).mean())
    start = time.process_time()
    model.distil(steps=_MAP_STEPS, **fit)
    end = time.process_time()
    learned = {n: distance(n, 1) for n in EVALUATIONS}
    alike = energy_distance(entries(space, train[:_NUM_SAMPLES]), truth)
    return Row(name, alike, learned, flow, nll, middle - begin, end - start)


def main() -> None:
    """Add the rows that are missing to the kept ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.few_steps")
    parser.add_argument("--only", default="", help="the beginning of the name of a target")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    for name in TARGETS:
        if name.startswith(only) and all(r["target"] != name for r in kept):
            kept.append(asdict(row(name)))
            print(kept[-1], flush=True)
            report = {"suite": "few-steps", "environment": environment(torch.device("cpu")), "rows": kept}
            RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
