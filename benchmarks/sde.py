"""Cost of the diffusion on SO(10): a step against a bare loop, memory, and the published algorithm as written.

python -m benchmarks.sde [--samples 20] [--loop-samples 1000]      writes results/sde-cpu.json
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import environment, steady_allocator
from tasks.so10.corner_distribution import CornerDistribution
from tasks.so10.samplers import ReverseDiffusion
from trivgeo.groups import SO
from trivgeo.sde import (
    EnergyScore,
    GeometricSchedule,
    NoiseKernel,
    Schedule,
    TrivializedSDE,
    solve,
    trivialized_grad,
    uniform_grid,
)
from trivgeo.sde.processes import reverse_process
from trivgeo.sde.solvers import ExponentialEuler, GeometricHeun

DISTRIBUTION = CornerDistribution()


def published(schedule: Schedule, steps: int, num_mc: int, samples: int, generator: torch.Generator) -> Tensor:
    """Algorithm 1 of Kim et al. 2026 line by line: noise is simulated from time 0 anew for every score.

    All chains at once and plain matrix operations, so that only the algorithm differs from the library's.
    """
    n = DISTRIBUTION.n
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
        total = torch.logsumexp(-DISTRIBUTION.energy(moved), -1).sum()
        (score,) = torch.autograd.grad(total, v)
        z = torch.randn(v.shape, generator=generator) * dt**0.5
        g = g @ torch.linalg.matrix_exp(hat(gamma**2 * score * dt + gamma * z))
    return g


def hand_written(g: Tensor, sigma: float, steps: int, heun: bool, generator: torch.Generator) -> Tensor:
    """The operations of a solve of overdamped dynamics, without the loop of the library."""
    group = SO(DISTRIBUTION.n)
    h = sigma**2
    third, area = (c.matching(g) for c in group.algebra.noise_corrections)
    for _ in range(steps):
        noise = sigma * torch.randn(len(g), group.dim, generator=generator)
        u = -h * trivialized_grad(group, DISTRIBUTION.energy, g)
        if not heun:
            g = group.retract(g, noise + u)
            continue
        other = -h * trivialized_grad(group, DISTRIBUTION.energy, group.retract(g, u + noise))
        v = noise + 0.5 * (u + other)
        eta = torch.randn(len(g), group.dim, generator=generator)
        v = v + h * (v @ third.mT + eta @ area.mT) + 0.25 * group.algebra.bracket(noise, other - u)
        g = group.retract(g, v)
    return g


def solved(g: Tensor, sigma: float, steps: int, heun: bool, generator: torch.Generator) -> Tensor:
    """The same by `solve`."""
    group = SO(DISTRIBUTION.n)
    schedule = GeometricSchedule(sigma * steps**0.5, sigma * steps**0.5)
    sde = TrivializedSDE(group, schedule, score_drift=lambda x, t: -trivialized_grad(group, DISTRIBUTION.energy, x))
    stepper = GeometricHeun() if heun else ExponentialEuler()
    return solve(sde, g, uniform_grid(steps), stepper=stepper, generator=generator).final


def seconds(f: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def loop_rows(count: int, repeats: int, generator: torch.Generator) -> list[dict[str, Any]]:
    """Best of alternating runs of a solve and of its hand-written loop, ten steps."""
    g = SO(DISTRIBUTION.n).random_haar(count, generator=generator)
    rows = []
    for heun, name in ((False, "ExponentialEuler"), (True, "GeometricHeun")):
        times: dict[str, list[float]] = {"loop": [], "solve": []}
        for _ in range(repeats + 1):
            for label, f in (("loop", hand_written), ("solve", solved)):
                generator.manual_seed(0)
                times[label].append(seconds(lambda f=f, heun=heun: f(g, 0.2, 10, heun, generator)))
        loop, solve_ = min(times["loop"][1:]), min(times["solve"][1:])
        rows.append(
            {
                "measure": "step of a solve against a hand-written loop",
                "stepper": name,
                "chains": count,
                "loop_seconds": loop,
                "solve_seconds": solve_,
                "ratio": solve_ / loop,
            }
        )
        print(f"{name}: loop {loop:.3f} s, solve {solve_:.3f} s, ratio {solve_ / loop:.2f}", flush=True)
    return rows


def memory_rows(chains: int = 64, num_mc: int = 16) -> list[dict[str, Any]]:
    """The most bytes of live tensors between the steps of a reverse diffusion, by its number of steps."""

    def tensors() -> dict[int, int]:
        found = (x for x in gc.get_objects() if type(x) is torch.Tensor)
        return {x.data_ptr(): x.untyped_storage().nbytes() for x in found}

    group, schedule, rows = SO(DISTRIBUTION.n), GeometricSchedule(0.3, 1.0), []
    for replay in (True, False):
        for steps in (10, 40, 160):
            most = 0
            before = tensors()

            def observe(
                index: int, t: float, g: Tensor, before: dict[int, int] = before, every: int = steps // 5
            ) -> None:
                nonlocal most
                if index % every == 0:
                    most = max(most, sum(size for key, size in tensors().items() if key not in before))

            score = EnergyScore(DISTRIBUTION.energy, NoiseKernel(group, schedule, steps), num_mc, replay=replay)
            generator = torch.Generator().manual_seed(0)
            start, _ = score.kernel.sample(chains, t=1.0, generator=generator)
            process, grid = reverse_process(group, schedule, score), uniform_grid(steps, 1.0, 0.0)
            solve(process, start, grid, generator=generator, observe=observe)
            rows.append({"measure": "memory of a solve", "replay": replay, "steps": steps, "megabytes": most / 1e6})
            print(f"memory, {'replay' if replay else 'paths kept'}, {steps} steps: {most / 1e6:.1f} MB", flush=True)
    return rows


def sampling_rows(count: int, generator: torch.Generator) -> list[dict[str, Any]]:
    """Seconds a sample of the published algorithm as written and of the library, and their gradient evaluations."""
    schedule = GeometricSchedule(0.01, 10.0)
    old = seconds(lambda: published(schedule, 100, 100, count, generator)) / count
    rows: list[dict[str, Any]] = [
        {
            "measure": "sampling on SO(10)",
            "method": "algorithm as written, 100 steps, N = 100",
            "samples": count,
            "seconds_a_sample": old,
            "gradient_evaluations_a_sample": 100 * 100,
        }
    ]
    same = ReverseDiffusion(schedule, 100, 100, uniform_start=False, antithetic=False)
    tuned = ReverseDiffusion(GeometricSchedule(0.3, 1.0), 12, 40, GeometricHeun())
    for sampler, name, number in (
        (same, "trivgeo, same setting", 10 * count),
        (tuned, "trivgeo, tied.yaml", 50 * count),
    ):
        start = time.perf_counter()
        draw = sampler.sample(DISTRIBUTION, number, generator)
        new = (time.perf_counter() - start) / number
        rows.append(
            {
                "measure": "sampling on SO(10)",
                "method": name,
                "samples": number,
                "seconds_a_sample": new,
                "gradient_evaluations_a_sample": draw.gradient_evaluations,
                "times_faster": old / new,
            }
        )
    for row in rows:
        print(
            f"SO(10), {row['method']}: {row['seconds_a_sample']:.4f} s and {row['gradient_evaluations_a_sample']} "
            f"gradients a sample" + (f", {row['times_faster']:.0f} times faster" if "times_faster" in row else ""),
            flush=True,
        )
    return rows


def main() -> None:
    """Run, print and write ``results/sde-cpu.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sde", description=__doc__)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--loop-samples", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    steady = steady_allocator()
    generator = torch.Generator().manual_seed(0)
    rows = loop_rows(options.loop_samples, options.repeats, generator)
    rows += memory_rows()
    rows += sampling_rows(options.samples, generator)
    report = {
        "suite": "sde",
        "environment": {**environment(torch.device("cpu")), "steady_allocator": steady},
        "rows": rows,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "sde-cpu.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
