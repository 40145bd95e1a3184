"""A hand reaches for an object that was moved: trajectories on SE(3) from few demonstrations, under all motions.

python -m benchmarks.grasps     writes results/grasps-cpu.json; about two minutes of one core

An object has a pose and a width. A trajectory is four poses of the hand, from a place above the object to one of two
grasps on opposite sides, as far apart as the object is wide. In the demonstrations objects stand nearly upright: turns
about the vertical axis up to 30 degrees, tilts up to 10. A trajectory succeeds if its last pose is within .1 and 15
degrees of a grasp, and none of its poses is further than .2 and 30 degrees from the demonstrated way to it.
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
from trivgeo.generative import GroupDiffusion
from trivgeo.generative.equivariant import EquivariantDiffusion
from trivgeo.groups import SE, SO

POSES, NUM_POSES = SE(3), 4
TRAJECTORIES = POSES**NUM_POSES
_NUM_DEMONSTRATIONS, _NUM_TEST, _NOISE, _STEPS = 50, 300, 0.03, 800


@dataclass(frozen=True)
class Row:
    """Shares of trajectories that succeed, for objects posed as in the demonstrations and in any way."""

    model: str
    demonstrations: int
    seen: float
    seen_error: float  # standard error, by the number of test scenes
    unseen: float
    unseen_error: float
    nll_seen: float
    nll_unseen: float
    seconds: float  # of CPU time, of the training


def seen_poses(count: int, generator: torch.Generator) -> Tensor:
    """Poses of objects as in the demonstrations."""
    tilt, turn = math.radians(10.0), math.radians(30.0)
    angles = (2.0 * torch.rand(count, 3, generator=generator) - 1.0) * torch.tensor([tilt, tilt, turn])
    place = torch.rand(count, 3, generator=generator) * torch.tensor([1.0, 1.0, 0.2])
    return torch.cat([SO(3).exp(angles), place.unsqueeze(-1)], -1)


def any_poses(count: int, generator: torch.Generator) -> Tensor:
    """Poses with every rotation, at places up to five units away."""
    place = 10.0 * torch.rand(count, 3, generator=generator) - 5.0
    return torch.cat([SO(3).random_haar(count, generator=generator), place.unsqueeze(-1)], -1)


def ways(width: Tensor) -> Tensor:
    """The two ways of the hand to an object in its standard pose, ``[b, 2, 4, 3, 4]``, for widths ``[b]``."""
    share = torch.linspace(0.0, 1.0, NUM_POSES)
    found = []
    for side in (1.0, -1.0):
        turn = SO(3).exp(torch.tensor([0.0, 0.0, 0.5 * math.pi * (1.0 - side)]) * share.unsqueeze(-1))
        above = torch.stack([torch.zeros(NUM_POSES), torch.zeros(NUM_POSES), 1.0 - share], -1)
        place = above + side * width[:, None, None] * torch.tensor([0.5, 0.0, 0.0]) * share.unsqueeze(-1)
        found.append(torch.cat([turn.expand(len(width), *turn.shape), place.unsqueeze(-1)], -1))
    return torch.stack(found, 1)


def scenes(poses: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Widths of objects, and a noisy demonstration for each pose, ``[b, 48]``."""
    width = 0.4 + 0.8 * torch.rand(len(poses), generator=generator)
    side = torch.randint(2, (len(poses),), generator=generator)
    way = ways(width)[torch.arange(len(poses)), side]
    noise = POSES.random(*way.shape[:2], std=_NOISE, generator=generator)
    moved = POSES.compose(poses.unsqueeze(1), POSES.compose(way, noise))
    return width.unsqueeze(-1), moved.flatten(1)


def success(drawn: Tensor, poses: Tensor, width: Tensor) -> float:
    """The share of trajectories ``[b, 48]`` that succeed."""
    exact = POSES.compose(poses[:, None, None], ways(width.squeeze(-1)))  # [b, 2, 4, 3, 4]
    found = drawn.unflatten(-1, (1, NUM_POSES, 3, 4))
    distance = (found - exact)[..., 3].norm(dim=-1)
    angle = SO(3).distance(found[..., :3].expand_as(exact[..., :3]), exact[..., :3]).rad2deg()
    reached = (distance[..., -1] < 0.1) & (angle[..., -1] < 15.0)
    on_way = ((distance < 0.2) & (angle < 30.0)).all(-1)
    return float((reached & on_way).any(-1).double().mean())


def row(name: str, demonstrations: int, seed: int = 0) -> Row:
    """Train a model on demonstrations, and test it on poses as in these, and on any."""
    generator = torch.Generator().manual_seed(seed)
    poses = seen_poses(demonstrations, generator)
    width, trajectories = scenes(poses, generator)
    start = time.process_time()
    settings = {"width": 128, "seed": seed, "condition_dropout": 0.0}
    fit = {"steps": _STEPS, "batch_size": 128, "progress": False}
    if name == "equivariant":
        model = EquivariantDiffusion(TRAJECTORIES, lambda c: c[0], lambda inverse, c: c[1], condition=1, **settings)
        model.fit(trajectories, (poses, width), **fit)
    else:
        model = GroupDiffusion(TRAJECTORIES, "flow", condition=13, **settings)
        model.fit(trajectories, torch.cat([poses.flatten(1), width], -1), **fit)
    seconds = time.process_time() - start
    shares, nlls = [], []
    for draw in (seen_poses, any_poses):
        test = draw(_NUM_TEST, generator)
        width, truth = scenes(test, generator)
        given = (test, width) if name == "equivariant" else torch.cat([test.flatten(1), width], -1)
        drawn = model.sample(_NUM_TEST, condition=given, generator=generator, tolerance=1e-3)
        share = success(drawn, test, width)
        shares += [share, math.sqrt(share * (1.0 - share) / _NUM_TEST)]
        few = (test[:50], width[:50]) if name == "equivariant" else given[:50]
        nlls.append(-float(model.log_prob(truth[:50], condition=few, tolerance=1e-2).mean()))
    return Row(name, demonstrations, *shares, *nlls, seconds)


def main() -> None:
    """Print the rows, and keep them."""
    argparse.ArgumentParser(prog="python -m benchmarks.grasps", description=__doc__).parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in ("equivariant", "given the pose"):
        rows.append(asdict(row(name, _NUM_DEMONSTRATIONS)))
        print(rows[-1], flush=True)
    report = {"suite": "grasps", "environment": environment(torch.device("cpu")), "rows": rows}
    path = Path(__file__).parent / "results" / "grasps-cpu.json"
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
