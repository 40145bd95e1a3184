"""Cost of the diffusion on SO(10): against the published algorithm as written, and against a bare loop.

python -m benchmarks.sde [--samples 20] [--loop-samples 1000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from tasks.so10.law import CornerLaw
from tasks.so10.samplers import ReverseDiffusion
from trivgeo.groups import SO
from trivgeo.sde import (
    ExponentialEuler,
    GeometricHeun,
    GeometricSchedule,
    Schedule,
    TrivializedSDE,
    solve,
    trivialized_grad,
)

LAW = CornerLaw()


def published(schedule: Schedule, steps: int, num_mc: int, samples: int, generator: torch.Generator) -> Tensor:
    """Algorithm 1 of Kim et al. 2026 line by line: noise is simulated from time 0 anew for every score.

    All chains at once and plain matrix operations, so that only the algorithm differs from the library's.
    """
    n = LAW.n
    upper = torch.triu_indices(n, n, 1)
    dt = 1.0 / steps

    def hat(v: Tensor) -> Tensor:
        m = v.new_zeros(*v.shape[:-1], n, n)
        m[..., upper[1], upper[0]] = v
        return m - m.mT

    def noise(m: int, *batch: int) -> Tensor:
        w = torch.eye(n).expand(*batch, n, n)
        for k in range(1, m + 1):
            z = torch.randn(*batch, n * (n - 1) // 2, generator=generator) * dt**0.5
            w = w @ torch.linalg.matrix_exp(hat(schedule(k * dt) * z))
        return w

    g = noise(steps, samples)
    for m in range(steps, 0, -1):
        gamma = schedule(m * dt)
        w = noise(m, samples, num_mc)
        v = torch.zeros(samples, n * (n - 1) // 2, requires_grad=True)
        moved = (g @ torch.linalg.matrix_exp(hat(v))).unsqueeze(1) @ w.mT
        total = torch.logsumexp(-LAW.energy(moved), -1).sum()
        (score,) = torch.autograd.grad(total, v)
        z = torch.randn(v.shape, generator=generator) * dt**0.5
        g = g @ torch.linalg.matrix_exp(hat(gamma**2 * score * dt + gamma * z))
    return g


def hand_written(g: Tensor, sigma: float, steps: int, heun: bool, generator: torch.Generator) -> Tensor:
    """The operations of a solve of overdamped dynamics, without the loop of the library."""
    group = SO(LAW.n)
    h = sigma**2
    stepper = GeometricHeun()
    third, area = (c.like(g) for c in stepper._constants(group))
    for _ in range(steps):
        noise = sigma * torch.randn(len(g), group.dim, generator=generator)
        u = -h * trivialized_grad(group, LAW.energy, g)
        if not heun:
            g = group.retract(g, noise + u)
            continue
        other = -h * trivialized_grad(group, LAW.energy, group.retract(g, u + noise))
        v = noise + 0.5 * (u + other)
        eta = torch.randn(len(g), group.dim, generator=generator)
        v = v + h * (v @ third.mT + eta @ area.mT) + 0.25 * group.algebra.bracket(noise, other - u)
        g = group.retract(g, v)
    return g


def solved(g: Tensor, sigma: float, steps: int, heun: bool, generator: torch.Generator) -> Tensor:
    """The same by `solve`."""
    group = SO(LAW.n)
    schedule = GeometricSchedule(sigma * steps**0.5, sigma * steps**0.5)
    sde = TrivializedSDE(group, schedule, score_drift=lambda x, t: -trivialized_grad(group, LAW.energy, x))
    times = [m / steps for m in range(steps + 1)]
    stepper = GeometricHeun() if heun else ExponentialEuler()
    return solve(sde, g, times, stepper=stepper, generator=generator).final


def seconds(f: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--loop-samples", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    schedule = GeometricSchedule(0.01, 10.0)

    print(f"one solve against a hand-written loop, {options.loop_samples} chains, 10 steps, best of {options.repeats}")
    g = SO(LAW.n).uniform(options.loop_samples, generator=generator)
    for heun, name in ((False, "ExponentialEuler"), (True, "GeometricHeun")):
        times: dict[str, list[float]] = {"loop": [], "solve": []}
        for _ in range(options.repeats + 1):
            for label, f in (("loop", hand_written), ("solve", solved)):
                generator.manual_seed(0)
                times[label].append(seconds(lambda f=f, heun=heun: f(g, 0.2, 10, heun, generator)))
        loop, solve_ = min(times["loop"][1:]), min(times["solve"][1:])
        print(f"  {name}: loop {loop:.3f} s, solve {solve_:.3f} s, ratio {solve_ / loop:.2f}")

    count = options.samples
    print(f"SO(10), {count} samples")
    old = seconds(lambda: published(schedule, 100, 100, count, generator))
    print(f"  algorithm as written, 100 steps, N = 100: {old / count:.4f} s a sample")
    same = ReverseDiffusion(schedule, 100, 100, uniform_start=False, antithetic=False)
    tuned = ReverseDiffusion(GeometricSchedule(0.3, 1.0), 12, 40, GeometricHeun())
    for sampler, name, number in (
        (same, "trivgeo, same setting", 10 * count),
        (tuned, "trivgeo, tied.yaml", 50 * count),
    ):
        new = seconds(lambda s=sampler, m=number: s.sample(LAW, m, generator)) / number
        print(f"  {name} ({number} samples): {new:.4f} s a sample, {old / count / new:.0f} times faster")


if __name__ == "__main__":
    main()
