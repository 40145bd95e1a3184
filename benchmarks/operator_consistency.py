"""Operators made equivariant by their own answers alone: errors beside those of the true transformation.

python -m benchmarks.operator_consistency [--cases 10] [--released FOLDER] [--networks NAME ...] [--save]

Each network is asked for solutions that were moved by random symmetries of its equation. The search knows no training
data: `trivgeo.inversion.energies.OperatorConsistency`, with the equation, without it, and with the box of the training
points instead, is lowered by draws and Levenberg-Marquardt steps over all directions of the group. FOLDER is a checkout
of the method's released code, with its two networks for the heat equation; their problems are the published ones,
multiples of a sine.

Networks that only step, Fourier neural operators from a field to the field one or two times later, are trained here and
wrapped by `EquivariantOperator.from_equation` without clean data. The same is asked of networks that are wrong on every
field but keep its mean: answers of the trained ones that are mirrored, or moved along the circle, and the mean itself.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.timing import environment
from tasks.fields.fno import SmallFNO
from tasks.pde.burgers import BurgersEquation
from tasks.pde.domain import relative_l2, values_of
from tasks.pde.equation import Equation
from tasks.pde.heat import HeatEquation
from tasks.pde.kdv import KdVEquation, kdv_from_generators
from tasks.pde.problems import FactorProblems, MixedProblems, OperatorProblems, SymmetryProblems
from tasks.pde.released import load_operator
from tasks.released import FILES
from trivgeo.actions import Field, OperatorAction, OperatorInput
from trivgeo.groups import LieGroup
from trivgeo.inversion import EquivariantOperator, Inverter
from trivgeo.inversion.energies import OperatorConsistency
from trivgeo.inversion.stages import GaussianSearch, LevenbergMarquardt
from trivgeo.pde import GaussianField, SpectralEquation, solve

RESULTS = Path(__file__).parent / "results" / "operator-consistency-cpu.json"
HEAT_SPREAD = [0.1, 1.0, 0.01, 0.5, 0.03, 0.5]
HEAT_SCALE = [0.02, 0.35, 0.003, 0.35, 0.02, 0.5]

Operator = Callable[[OperatorInput], Tensor]


class Case(NamedTuple):
    """A network, the group of its equation in the basis of the search, and its problems."""

    name: str
    operator: Operator
    equation: Equation
    group: LieGroup
    data: SymmetryProblems
    seed: int


def own_cases(cases: int) -> list[Case]:
    """The networks that come with the library."""
    heat, augmented, burgers, kdv = HeatEquation(), HeatEquation(0.5, 5.0), BurgersEquation(), KdVEquation()
    plane = {"num_sensors": 101, "nx": 101, "nt": 101}
    settings: list[tuple[str, str, Equation, LieGroup, list[float], int, dict[str, int]]] = [
        ("heat", "heat_deeponet", heat, heat.group().with_scale(HEAT_SCALE), HEAT_SPREAD, 0, {}),
        (
            "heat, amplitudes .5 to 5",
            "heat_deeponet_augmented",
            augmented,
            augmented.group().with_scale(HEAT_SCALE),
            HEAT_SPREAD,
            0,
            {},
        ),
        (
            "Burgers",
            "burgers_deeponet",
            burgers,
            burgers.group().with_scale([0.2, 0.4, 0.2, 0.4, 0.4]),
            [0.2, 0.4, 0.2, 0.4, 0.4],
            0,
            plane,
        ),
        # the network was trained on fields that seed 0 draws first
        (
            "Korteweg-de Vries",
            "kdv_deeponet",
            kdv,
            kdv_from_generators([0.2, 1.0, 0.5, 4.0]),
            [0.2, 1.0, 0.5, 4.0],
            1,
            plane,
        ),
    ]
    found = []
    for name, checkpoint, equation, group, spread, seed, sizes in settings:
        network = load_operator(checkpoint).network
        data = MixedProblems(equation, seeds=[seed], cases=cases, spread=spread, **sizes)
        found.append(Case(name, network.predictor(equation.domain), equation, group, data, seed))
    return found


def released_cases(folder: Path, cases: int) -> list[Case]:
    """The released networks for the heat equation, trained at one amplitude and at many."""
    equation = HeatEquation()
    group = equation.group().with_scale(HEAT_SCALE)
    data = FactorProblems(equation, seeds=[0], cases=cases)
    names = {"heat, released": "heat_deeponet", "heat, released, many amplitudes": "heat_deeponet_augmented"}
    return [
        Case(
            name, load_operator(str(folder / FILES[file])).network.predictor(equation.domain), equation, group, data, 0
        )
        for name, file in names.items()
    ]


def row(case: Case, draws: int, chains: int, steps: int) -> dict[str, Any]:
    """Mean relative errors on the problems, and CPU seconds of one search."""
    problems = case.data.problems(case.seed)
    true = OperatorAction(case.equation.group().action())
    action = OperatorAction(case.group.action())
    found: dict[str, Any] = {"network": case.name, "cases": len(problems.solution)}

    def errors(jets: Tensor) -> Tensor:
        return relative_l2(values_of(jets, 2).flatten(1), problems.solution.flatten(1))

    def undone(act: OperatorAction, g: Tensor) -> Tensor:
        with torch.no_grad():
            return errors(act.point_action(g, case.operator(act(act.group.inverse(g), problems.x))))

    with torch.no_grad():
        found["alone"] = float(errors(case.operator(problems.x)).mean())
    exact = undone(true, problems.elements)
    found["true transformation"] = float(exact.mean())
    formula, constants, base = case.equation.formula, case.equation.constants, case.equation.domain.base
    energies = {
        "with the equation": OperatorConsistency(case.operator, formula, constants),
        "without it": OperatorConsistency(case.operator),
        "with the box": OperatorConsistency(case.operator, box=base),
    }
    for name, energy in energies.items():
        inverter = Inverter(action, energy, [GaussianSearch(draws, chains, 1.0), LevenbergMarquardt(steps)])
        begin = time.process_time()
        result = inverter(problems.x, generator=torch.Generator().manual_seed(0))
        seconds = (time.process_time() - begin) / len(exact)
        reached = undone(action, result.best())
        found[name] = {
            "error": float(reached.mean()),
            "median ratio": float((reached / exact).median()),
            "estimate": float(_estimate(energy, action, problems, result.best()).mean()),
            "CPU seconds": round(seconds, 2),
        }
    return found


def _estimate(energy: OperatorConsistency, action: OperatorAction, problems: OperatorProblems, g: Tensor) -> Tensor:
    with torch.no_grad():
        return energy.relative_error(action(action.group.inverse(g), problems.x))


class Stepping(NamedTuple):
    """An equation on a circle, the law of its initial fields, and times that networks predict."""

    equation: str
    law: GaussianField
    length: float
    points: int
    times: tuple[float, ...]

    def solutions(self, count: int, seed: int) -> Tensor:
        """Values ``[count, 1, s + 1, n]`` of random fields and their solutions, from a grid that is twice as fine."""
        x = self.length * torch.arange(2 * self.points, dtype=torch.float64) / (2 * self.points)
        u = self.law.sample(count, torch.Generator().manual_seed(seed))(x)[:, None]
        spectral = SpectralEquation.from_equation(self.equation)
        return solve(spectral, Field.on_box(u, self.box), [0.0, *self.times], 0.02).values[..., ::2]

    @property
    def box(self) -> list[tuple[float, float]]:
        """The range of x."""
        return [(0.0, self.length)]


_BUMPS = GaussianField(3.0, 0.8, 6.0, 8, 8.0)
STEPPING = {
    "heat": Stepping("u_t = 0.1*u_xx", _BUMPS, 8.0, 32, (2.0, 4.0)),
    "Burgers": Stepping("u_t + u*u_x = 0.1*u_xx", _BUMPS, 8.0, 64, (2.0, 4.0)),
    "Korteweg-de Vries": Stepping(
        "u_t + u*u_x + u_xxx = 0", GaussianField(0.2, 0.5, 6.0, 8, 16.0), 16.0, 32, (2.0, 4.0)
    ),
}
_TRAINING_FIELDS, _TRAINING_STEPS, _BATCH = 512, 800, 32
WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "mirrored": lambda u: u.flip(-1),
    "moved by an eighth": lambda u: u.roll(u.shape[-1] // 8, -1),
    "the mean": lambda u: u.mean(-1, keepdim=True).expand_as(u),
}
_MOVES = 0.3  # standard deviation of the transformations, in units of the group's basis


def trained(problem: Stepping, outputs: Sequence[int]) -> nn.Module:
    """A Fourier neural operator from fields to some of the later times, ``[b, 1, n]`` to ``[b, 1, s, n]``."""
    values = problem.solutions(_TRAINING_FIELDS, 0).float()
    torch.default_generator.manual_seed(0)
    network = nn.Sequential(SmallFNO([problem.points // 4], 1, len(outputs)), nn.Unflatten(1, (1, len(outputs))))
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3, weight_decay=1e-5)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=_TRAINING_STEPS, pct_start=0.1)
    for _ in range(_TRAINING_STEPS):
        batch = values[torch.randint(len(values), (_BATCH,))]
        target = batch[:, :, list(outputs)]
        relative_l2(network(batch[:, :, 0]).flatten(1), target.flatten(1)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        cycle.step()
    return network.eval()


def stepping_row(name: str, outputs: Sequence[int], cases: int) -> dict[str, Any]:
    """Mean relative errors of a network that steps at its last time, on moved fields, and CPU seconds of a search."""
    problem, network = STEPPING[name], trained(STEPPING[name], outputs)
    times = [problem.times[i - 1] for i in outputs]

    def operator_of(function: Callable[[Tensor], Tensor]) -> EquivariantOperator:
        return EquivariantOperator.from_equation(problem.equation, function, times=times, box=problem.box)

    operator = operator_of(network)
    group = operator.action.group
    g = group.random(cases, std=_MOVES, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    values = problem.solutions(cases, 7)[:, :, [0, *outputs]]
    moved = operator.action(g, Field.on_box(values, problem.box, times=[0.0, *times]))
    initial, last = moved.slice(0), moved.slice(len(times))

    def error(solution: Tensor) -> Tensor:
        return relative_l2(solution.flatten(1), last.values.flatten(1))

    def undone(h: Tensor) -> Tensor:
        return error(operator.predict(initial, h, last.grid).values)

    with torch.no_grad():
        alone = error(network(initial.values[:, :, 0].float()).double()[:, :, -1:])
        exact = undone(g)
    begin = time.process_time()
    result = operator.invert(initial, last.grid, generator=torch.Generator().manual_seed(0))
    seconds = (time.process_time() - begin) / cases
    found = undone(result.best())
    wrong = 0
    for change in WRONG.values():
        changed = operator_of(lambda u, change=change: change(network(u.float()).to(u)))  # type: ignore[misc]
        wrong += int(changed.invert(initial, last.grid, generator=torch.Generator().manual_seed(0)).trusted.sum())
    return {
        "network": name,
        "times": times,
        "cases": cases,
        "alone": float(alone.mean()),
        "true transformation": float(exact.mean()),
        "own answers": float(found.mean()),
        "median ratio": float((found / exact).median()),
        "estimate": float(result.best_energy().mean()),
        "trusted": int(result.trusted.sum()),
        "wrong and trusted": wrong,
        "wrong cases": len(WRONG) * cases,
        "CPU seconds": round(seconds, 2),
    }


def main() -> None:
    """Parse the command line, measure, print, and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_consistency", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--cases", type=int, default=10, help="problems of each network")
    parser.add_argument("--draws", type=int, default=128, help="draws of the search")
    parser.add_argument("--chains", type=int, default=4, help="draws that are descended from")
    parser.add_argument("--steps", type=int, default=12, help="Levenberg-Marquardt steps")
    parser.add_argument("--released", type=Path, default=None, help="a checkout of the method's released code")
    parser.add_argument("--networks", nargs="+", default=None, help="rows of these names alone; keeps the other rows")
    parser.add_argument("--save", action="store_true", help="keep the rows")
    options = parser.parse_args()
    document = json.loads(RESULTS.read_text()) if options.networks else {"rows": [], "stepping": []}
    search = {name: getattr(options, name) for name in ("draws", "chains", "steps")}
    if document.setdefault("search", search) != search:
        parser.error(f"--networks: expected the search of the rows that are kept, {document['search']}, got {search}")
    document["environment"] = environment(torch.device("cpu"))
    cases = own_cases(options.cases)
    if options.released is not None:
        cases = [*released_cases(options.released, options.cases), *cases]
    stepping = {f"{name}, steps": name for name in STEPPING}
    known = [*(case.name for case in cases), *stepping]
    if unknown := set(options.networks or ()) - set(known):
        parser.error(f"--networks: expected names among {known}, got {sorted(unknown)}")

    def keep(part: str, at: dict[str, Any], found: dict[str, Any]) -> None:
        print(json.dumps(found), flush=True)
        same = [i for i, kept in enumerate(document[part]) if all(kept[key] == value for key, value in at.items())]
        document[part][slice(*(same[0], same[0] + 1) if same else (len(document[part]), None))] = [found]

    for case in cases:
        if options.networks is None or case.name in options.networks:
            keep("rows", {"network": case.name}, row(case, options.draws, options.chains, options.steps))
    for title, name in stepping.items():
        for outputs in ([1], [2], [1, 2]):
            if options.networks is None or title in options.networks:
                found = stepping_row(name, outputs, 3 * options.cases)
                keep("stepping", {key: found[key] for key in ("network", "times")}, found)
    if options.save:
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
