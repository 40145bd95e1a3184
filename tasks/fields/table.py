"""A neural operator with and without the symmetries of its equation: `python -m tasks.fields.table kdv`.

Test sets are moved by random symmetries. Columns: the network alone; trained on fields each moved once; trained with
augmentation; inversion by TIED; by a learned score; augmented training and learned inversion; the true transformation.
Every network is trained for the same number of steps. A row of the JSON file is one training; rows that are there are
not run again.
"""

import argparse
import importlib
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tasks.fields import problems
from tasks.fields.data import FieldData
from tasks.fields.fno import SmallFNO
from tasks.fields.problems import FieldProblem, Pairs
from tasks.fields.training import WithParameters, relative_error, train
from trivgeo.inversion import (
    TIED,
    AmortizedInverter,
    EquivariantOperator,
    FieldBackbone,
    FieldBox,
    FieldSpectrum,
    Inverter,
    LearnedScore,
    Newton,
)
from trivgeo.sde import GeometricSchedule, RefiningStep

PROBLEMS: dict[str, Callable[[], FieldProblem]] = {
    "kdv": problems.kdv,
    "kuramoto_sivashinsky": problems.kuramoto_sivashinsky,
    "burgers": problems.burgers,
}
MOVES = ("never", "once", "always")
SIZES = (64, 128, 256, 512, 1024)
COLUMNS = {
    ("never", "network"): "alone",
    ("once", "network"): "trained on fields moved once",
    ("always", "network"): "augmented",
    ("always", "learned"): "augmented, learned inversion",
    ("never", "tied"): "TIED",
    ("never", "learned"): "learned inversion",
    ("never", "true transformation"): "true transformation",
}
"""What was moved in training, and the column of errors; how tables and pictures call it."""
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def network(kind: str, seed: int) -> WithParameters:
    """A Fourier neural operator: `small`, or that of the package neuraloperator."""
    torch.manual_seed(seed)
    if kind == "small":
        return WithParameters(SmallFNO(2, 1, (12,), 32))
    fno = importlib.import_module("neuralop.models").FNO
    return WithParameters(fno(n_modes=(24,), in_channels=2, out_channels=1, hidden_channels=32, n_layers=4))


def energy(problem: FieldProblem, fields: int, seed: int) -> FieldSpectrum:
    """The grid and the spectrum of the training set."""
    return FieldSpectrum(FieldBox(problem.grid), problem.solutions(fields, seed, [0.0]).values, weight=0.1)


def learned(problem: FieldProblem, fields: int, seed: int, steps: int = 400) -> Inverter:
    """A learned score of clean training fields, what looks at a field eight times with it, and three Newton steps."""
    torch.manual_seed(seed)
    clean = problem.solutions(fields, seed, [0.0])
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(fields, (512,), generator=generator)
    examples = problem.action(problem.draw(512, generator), _take(clean, rows))
    backbone = FieldBackbone(problem.action.group.dim, examples)
    schedule = GeometricSchedule(0.02, 4.5)
    score = LearnedScore(problem.action, schedule, backbone)
    optimizer = torch.optim.Adam(backbone.parameters(), 2e-3)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        loss = score.loss(_take(clean, torch.randint(fields, (96,), generator=generator)), generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    looks = AmortizedInverter(score, energy(problem, fields, seed), steps=8, stepper=RefiningStep(), start="identity")
    return looks.then(Newton(3))


def _take(x: Any, rows: Tensor) -> Any:
    return torch.utils._pytree.tree_map(lambda leaf: leaf[rows], x)


def errors_of(problem: FieldProblem, net: nn.Module, inverter: Inverter, test: Pairs) -> tuple[Tensor, float]:
    """Relative errors with an inverter, and its milliseconds a field on one core."""
    operator = EquivariantOperator(net, inverter, [problem.horizon])
    start = time.process_time()
    g = inverter(test.initial, generator=torch.Generator().manual_seed(0)).best()
    elapsed = 1e3 * (time.process_time() - start) / len(g)
    return solved(problem, operator, g, test), elapsed


def solved(problem: FieldProblem, operator: EquivariantOperator, g: Tensor, test: Pairs) -> Tensor:
    """Relative errors with given transformations; the prediction is for the time to which these take the horizon."""
    with torch.no_grad():
        moved = operator.predict(test.initial, g)
        prediction = problem.action.resample(moved, test.initial.grid.at(moved.grid.times))
    return relative_error(prediction.values[:, :, 0], test.target)


def plain(problem: FieldProblem, net: nn.Module, test: Pairs) -> Tensor:
    """Relative errors of the network by itself, told the scale of the grid."""
    with torch.no_grad():
        out = net(test.initial.values[:, :, 0].float(), problem.parameters(test.initial).float())
    return relative_error(out.to(test.target), test.target)


def row(problem: FieldProblem, kind: str, fields: int, trained: str, steps: int, tests: int) -> dict[str, Any]:
    """One training: on fields as they are, each moved once, or always moved anew (augmented)."""
    moved, clean = problem.test(tests, 1_000_001, True), problem.test(tests, 1_000_002, False)
    net = train(network(kind, 0), FieldData(problem, fields, trained), steps)  # type: ignore[arg-type]
    errors, milliseconds = {"network": float(plain(problem, net, moved).mean())}, {}
    if trained != "once":
        inverters = {"learned": learned(problem, fields, 0)}
        if trained == "never":
            operator = EquivariantOperator(net, inverters["learned"], [problem.horizon])
            errors["true transformation"] = float(solved(problem, operator, moved.elements, moved).mean())
            inverters["tied"] = TIED(
                problem.action,
                energy(problem, fields, 0),
                GeometricSchedule(0.05, 1.0),
                num_hypotheses=16,
                keep_seen=True,
            ).then(Newton(2))
        for name, inverter in inverters.items():
            error, milliseconds[name] = errors_of(problem, net, inverter, moved)
            errors[name] = float(error.mean())
    return {
        "fields": fields,
        "moved in training": trained,
        "steps": steps,
        "tests": tests,
        "error on clean fields": float(plain(problem, net, clean).mean()),
        "error on moved fields": errors,
        "milliseconds a field": milliseconds,
    }


def main() -> None:
    """Run what is missing and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--network", default="small", choices=["small", "neuraloperator"])
    parser.add_argument("--fields", type=int, nargs="+", default=SIZES)
    parser.add_argument("--moved", nargs="+", default=MOVES, choices=MOVES)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--tests", type=int, default=128)
    options = parser.parse_args()
    path = RESULTS / f"fields_{options.problem}_{options.network}.json"
    problem = PROBLEMS[options.problem]()
    for fields, trained in itertools.product(options.fields, options.moved):
        if (fields, trained) not in {key(entry) for entry in kept(path)}:
            new = row(problem, options.network, fields, trained, options.steps, options.tests)
            # several runs may share the file
            path.write_text(json.dumps(sorted([*kept(path), new], key=key), indent=1) + "\n")


def key(entry: dict[str, Any]) -> tuple[int, str]:
    """What tells rows apart."""
    return entry["fields"], entry["moved in training"]


def kept(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that may not exist."""
    return json.loads(path.read_text()) if path.exists() else []


if __name__ == "__main__":
    main()
