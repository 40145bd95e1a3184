"""FoCal: all problems of a batch together against one problem at a time, on the same problems, with energies.

python -m benchmarks.focal [--problems 512] [--published 16]

The problems are point clouds moved by affine maps; their energy costs next to nothing, so that what is timed is the
optimisation. ``--published`` problems are also solved by bayesian-optimization, the package of the published runs,
where it is installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import environment, version_of
from tasks.focal import FoCal
from trivgeo.groups import Affine
from trivgeo.inversion import InverseProblem, Posterior

Row = dict[str, Any]


class Problems:
    """Clouds ``g.template``, g = exp(v), v normal, and the mean squared distance of restored ones to the template."""

    def __init__(self, number: int, device: torch.device, spread: float = 0.3) -> None:
        generator = torch.Generator(device).manual_seed(0)
        options: dict[str, Any] = {"generator": generator, "dtype": torch.float64, "device": device}
        group = Affine(2)
        self.action = group.action()
        self.template = 2.0 * torch.rand(7, 2, **options) - 1.0
        self.x = self.action(group.random(number, std=spread, **options), self.template)

    def energy(self, y: Tensor) -> Tensor:
        """One number for each cloud."""
        return (y - self.template).square().mean(-2).sum(-1)


def with_focal(problems: Problems, x: Tensor, initial: int, evaluations: int, together: int) -> Tensor:
    """The lowest energies, so many problems at a time."""
    inverter = FoCal(problems.action, problems.energy, initial, evaluations)
    generator = torch.Generator(x.device).manual_seed(1)
    return torch.cat([inverter(part, generator=generator).best_energy() for part in x.split(together)])


def with_bayesian_optimization(problems: Problems, x: Tensor, initial: int, evaluations: int) -> Tensor:
    """The same by bayesian-optimization: expected improvement, squared exponential kernel, its own other settings."""
    bayes_opt = importlib.import_module("bayes_opt")
    kernels = importlib.import_module("sklearn.gaussian_process.kernels")
    acquisition = importlib.import_module("bayes_opt.acquisition")
    group = problems.action.group
    names = [f"v{i}" for i in range(group.dim)]
    found = []
    for index in range(x.shape[0]):
        posterior = InverseProblem(problems.action, problems.energy).given(x[index : index + 1])

        def negative(posterior: Posterior = posterior, **v: float) -> float:
            return -float(posterior.energies(group.exp(x.new_tensor([[v[name] for name in names]]))))

        optimizer = bayes_opt.BayesianOptimization(
            negative,
            dict.fromkeys(names, (-1.0, 1.0)),
            acquisition_function=acquisition.ExpectedImprovement(xi=0.0),
            random_state=index,
            verbose=0,
            allow_duplicate_points=True,
        )
        optimizer.set_gp_params(kernel=kernels.RBF(length_scale=0.01))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.maximize(init_points=initial, n_iter=evaluations)
        found.append(-optimizer.max["target"])
    return x.new_tensor(found)


def timed(name: str, solve: Callable[[], Tensor]) -> Row:
    """Seconds and energies of one way to solve some problems."""
    start = time.perf_counter()
    energies = solve()
    if energies.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    number = energies.numel()
    row: Row = {
        "name": name,
        "problems": number,
        "seconds": seconds,
        "problems_per_second": number / seconds,
        "mean_energy": float(energies.mean()),
        "standard_error": float(energies.std() / number**0.5),
        "median_energy": float(energies.median()),
    }
    print(
        f"  {name}: {number} problems in {seconds:.2f} s, {number / seconds:.3g} a second, energy "
        f"{row['mean_energy']:.3f} ± {row['standard_error']:.3f}, median {row['median_energy']:.3f}"
    )
    return row


def main() -> None:
    """Run, print and write ``results/focal-<device>.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.focal", description=__doc__)
    parser.add_argument("--problems", type=int, default=512)
    parser.add_argument("--published", type=int, default=16, help="problems for bayesian-optimization")
    parser.add_argument("--initial", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    problems = Problems(options.problems, device)
    counts = (options.initial, options.evaluations)
    with_focal(problems, problems.x[:2], *counts, together=2)  # imports, first calls

    print(f"{counts[0]} + {counts[1]} evaluations of affine maps of the plane, {device}")
    rows = [
        timed("together", lambda: with_focal(problems, problems.x, *counts, together=options.problems)),
        timed("one at a time", lambda: with_focal(problems, problems.x, *counts, together=1)),
    ]
    if importlib.util.find_spec("bayes_opt") is not None and options.published:
        some = problems.x[: options.published]
        rows.append(timed("bayesian-optimization", lambda: with_bayesian_optimization(problems, some, *counts)))
    for row in rows[1:]:
        row["throughput_of_together"] = rows[0]["problems_per_second"] / row["problems_per_second"]
        print(f"  together over {row['name']}: {row['throughput_of_together']:.0f} times the throughput")
    report = {
        "suite": "focal",
        "environment": {
            **environment(device),
            "botorch": version_of("botorch"),
            "bayesian-optimization": version_of("bayesian-optimization"),
        },
        "settings": {"initial": counts[0], "evaluations": counts[1]},
        "rows": rows,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"focal-{device.type}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
