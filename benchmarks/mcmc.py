"""Markov chains on groups: gauge fields of lattices with exact plaquettes, beside the steppers without adjustment.

python -m benchmarks.mcmc                          writes results/mcmc-cpu.json; about ten minutes of one core
python -m benchmarks.mcmc --only "SU(2) beta 2"    some rows, printed, not kept

Links of SU(n) on a torus of 4 x 4 sites have the energy -beta / n sum Re tr P over plaquettes P. The mean of
Re tr P / n is known in closed form (Migdal 1975). ESS is the effective sample size for the mean plaquette.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.special import ive
from torch import Tensor

from benchmarks.timing import environment
from trivgeo.groups import SU, LieGroup
from trivgeo.sde import solve, uniform_grid
from trivgeo.sde.mcmc import MALA, HamiltonianMonteCarlo, MarkovKernel, mean_effective_sample_size, r_hat, sample
from trivgeo.sde.processes import overdamped_langevin
from trivgeo.sde.solvers import GeometricHeun

_MAX_WEIGHT = 12  # largest entry of highest weights in the sum over representations
_DIFFERENCE = 1e-4  # step of the difference of log Z

COUPLINGS = ((2, 1.0), (2, 2.0), (2, 4.0), (3, 2.0), (3, 4.0), (3, 6.0))
COMPARED = ((2, 2.0),)  # couplings at which other methods run, too


@dataclass(frozen=True)
class GaugeTorus:
    """Links of SU(n) on a torus of ``size`` times ``size`` sites, in the group SU(n) ** (2 size^2)."""

    n: int
    beta: float
    size: int = 4

    @property
    def group(self) -> LieGroup:
        """The group of all links: those in the first direction, then those in the second one."""
        return SU(self.n) ** (2 * self.size**2)

    def plaquettes(self, g: Tensor) -> Tensor:
        """Re tr P / n of all plaquettes, ``[*batch, size^2]``."""
        links = torch.view_as_complex(g.unflatten(-1, (2, self.size, self.size, self.n, self.n, 2)))
        first, second = links.unbind(-5)  # U_x(s), U_y(s), with sites [x, y]
        there, back = first @ second.roll(-1, -4), second @ first.roll(-1, -3)
        return (there * back.conj()).real.sum((-2, -1)).flatten(-2) / self.n

    def energy(self, g: Tensor) -> Tensor:
        """-beta / n sum of Re tr P."""
        return -self.beta * self.plaquettes(g).sum(-1)

    def mean_plaquette(self, g: Tensor) -> Tensor:
        """The average over the lattice, ``[*batch]``."""
        return self.plaquettes(g).mean(-1)

    @property
    def exact(self) -> float:
        """The mean plaquette: the derivative of log Z by beta, over the number of plaquettes."""
        low, high = (self._log_sum(self.beta + sign * _DIFFERENCE) for sign in (-1, 1))
        return (high - low) / (2 * _DIFFERENCE * self.size**2)

    def _log_sum(self, beta: float) -> float:
        """log Z, the sum over representations of (c / dim)^area; c are coefficients of e^(-energy) in characters."""
        n, area = self.n, self.size**2
        shifts = np.arange(-_MAX_WEIGHT * 3, _MAX_WEIGHT * 3 + 1)
        i, j = np.meshgrid(range(n), range(n), indexing="ij")
        terms = []
        for weight in np.ndindex(*[_MAX_WEIGHT + 1] * (n - 1)):
            entries = np.array([*weight, 0])
            if (np.diff(entries) > 0).any():
                continue
            orders = entries[j] - j + i + shifts[:, None, None]
            c = np.linalg.det(ive(orders, beta / n)).sum()
            order = entries - np.arange(n)
            dim = math.prod((order[a] - order[b]) / (b - a) for a in range(n) for b in range(a + 1, n))
            if c > 0:
                terms.append(area * (math.log(c / dim) + beta))  # `ive` leaves out e^(beta / n) in each of n factors
        return float(np.logaddexp.reduce(terms))


@dataclass(frozen=True)
class Row:
    """One run: the mean plaquette, its error, and what it cost."""

    target: str
    method: str
    mean: float
    standard_error: float
    exact: float
    r_hat: float
    ess: float
    seconds: float  # of CPU time, with the warm-up
    seconds_of_sampling: float

    @property
    def errors_off(self) -> float:
        """The distance from the exact value in standard errors."""
        return (self.mean - self.exact) / self.standard_error

    def __str__(self) -> str:
        return (
            f"{self.target:24} {self.method:26} {self.mean:.5f} +- {self.standard_error:.5f} (exact {self.exact:.5f}, "
            f"{self.errors_off:+.1f} errors)  R-hat {self.r_hat:.3f}  {self.ess / self.seconds_of_sampling:.0f} ESS/s  "
            f"{self.seconds:.0f} s"
        )


def chain_row(lattice: GaugeTorus, kernel: MarkovKernel, num_samples: int, chains: int, warmup: int, seed: int) -> Row:
    """A run of Markov chains from random links."""
    generator = torch.Generator().manual_seed(seed)
    start = lattice.group.random_haar(chains, generator=generator)
    begin = time.process_time()
    warm = sample(kernel, 4, start=start, warmup=warmup, generator=generator)
    middle = time.process_time()
    found = sample(
        kernel,
        num_samples,
        start=warm.state,
        warmup=0,
        statistics=lattice.mean_plaquette,
        generator=generator,
    )
    end = time.process_time()
    mean, error, size = (float(x) for x in found.mean(lattice.mean_plaquette))
    name = f"{type(kernel).__name__}, {found.state.num_leapfrog_steps} steps"
    agreement = float(found.r_hat.max())
    target = f"SU({lattice.n}) beta {lattice.beta:g}"
    return Row(target, name, mean, error, lattice.exact, agreement, size, end - begin, end - middle)


def heun_row(lattice: GaugeTorus, step: float, num_steps: int, chains: int, warmup: int, seed: int) -> Row:
    """A run of the unadjusted `GeometricHeun` from random links."""
    generator = torch.Generator().manual_seed(seed)
    process = overdamped_langevin(lattice.group, lattice.energy)
    g = lattice.group.random_haar(chains, generator=generator)
    begin = time.process_time()
    g = solve(process, g, uniform_grid(warmup, 0.0, warmup * step), stepper=GeometricHeun(), generator=generator).final
    middle = time.process_time()
    values = []
    for _ in range(num_steps):
        g = solve(process, g, uniform_grid(1, 0.0, step), stepper=GeometricHeun(), generator=generator).final
        values.append(lattice.mean_plaquette(g))
    draws = torch.stack(values, 1).unsqueeze(-1)
    end = time.process_time()
    size = float(mean_effective_sample_size(draws))
    error = float(draws.std()) / math.sqrt(size)
    return Row(
        f"SU({lattice.n}) beta {lattice.beta:g}",
        f"GeometricHeun, step {step:g}",
        float(draws.mean()),
        error,
        lattice.exact,
        float(r_hat(draws)),
        size,
        end - begin,
        end - middle,
    )


def rows(only: str) -> Iterator[Row]:
    """All rows whose target is ``only``, or begins with it."""
    for n, beta in COUPLINGS:
        if f"SU({n}) beta {beta:g}".startswith(only):
            lattice = GaugeTorus(n, beta)
            hmc = HamiltonianMonteCarlo(lattice.group, lattice.energy)
            yield chain_row(lattice, hmc, num_samples=400, chains=16, warmup=150, seed=0)
            if (n, beta) in COMPARED:
                mala = MALA(lattice.group, lattice.energy)
                yield chain_row(lattice, mala, num_samples=1500, chains=16, warmup=150, seed=0)
                for step in (0.02, 0.05, 0.1):
                    yield heun_row(lattice, step, num_steps=1500, chains=16, warmup=round(6 / step), seed=0)


def main() -> None:
    """Print the rows, and keep them if they are all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mcmc")
    parser.add_argument("--only", default="", help="a target, or its beginning")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    found = []
    for row in rows(only):
        print(row, flush=True)
        found.append(asdict(row))
    if not only:
        report = {"suite": "mcmc", "environment": environment(torch.device("cpu")), "rows": found}
        path = Path(__file__).parent / "results" / "mcmc-cpu.json"
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
