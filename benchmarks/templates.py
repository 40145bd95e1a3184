"""The template problem: one digit, known, under affine and projective warps; what TIED undoes by its defaults.

``python -m benchmarks.templates`` prints a row for each group: the share of warps that are undone by each noise
schedule and side. Energies are 10 times the squared difference to the digit; a warp counts as undone where the restored
image is closer to the digit than 0.4 of the squared distance of an empty image.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch import Tensor
from torch.nn import functional as F

from tasks.images.mnist import BundledSample
from trivgeo.actions import ImageWarp
from trivgeo.groups import Affine, LieGroup, Projective
from trivgeo.inversion import ReverseDiffusionSearch
from trivgeo.inversion.stages.chains import Side
from trivgeo.sde import GeometricSchedule, Schedule

__all__ = ["share_undone"]

PIXELS, STD, UNDONE = 40, 0.25, 0.4
SIDES: tuple[Side, ...] = ("restored", "given")
SCHEDULES: dict[str, Schedule | None] = {
    "default": None,
    "(0.1, 1)": GeometricSchedule(0.1, 1.0),
    "(0.005, 0.25)": GeometricSchedule(0.005, 0.25),
}


def share_undone(
    group: LieGroup, schedule: GeometricSchedule | None, side: str, number: int, seeds: list[int]
) -> float:
    """Return the share of warps that TIED undoes.

    Args:
        group: group of the warps, which are exponentials of normal vectors of standard deviation 0.25.
        schedule: noise; ``None`` for the default.
        side: side of the noise.
        number: of warps.
        seeds: of the searches, which are averaged.
    """
    digit = F.pad(BundledSample().test().images[:1].float() / 255, (6,) * 4)
    action = ImageWarp(group)
    g = group.exp(STD * torch.randn(number, group.dim, generator=torch.Generator().manual_seed(0)))
    x = action(g, digit.expand(number, -1, -1, -1))

    def energy(y: Tensor) -> Tensor:
        return 10 * (y - digit).square().sum((1, 2, 3))

    shares = []
    for seed in seeds:
        inverter = ReverseDiffusionSearch(action, energy, schedule, side=side)
        best = inverter(x, generator=torch.Generator().manual_seed(seed)).best()
        distance = (action(group.inverse(best), x) - digit).square().sum((1, 2, 3)) / digit.square().sum()
        shares.append(float((distance < UNDONE).double().mean()))
    return math.fsum(shares) / len(shares)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    for group in (Affine(2), Projective(2)):
        for name, schedule in SCHEDULES.items():
            for side in SIDES:
                start = time.perf_counter()
                share = share_undone(group, schedule, side, options.number, options.seeds)
                seconds = time.perf_counter() - start
                print(f"{group!r:14} {name:14} {side:9} {share:.3f}  {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
