"""Operators made equivariant by their own answers alone: errors beside those of the true transformation.

python -m benchmarks.operator_consistency [--cases 10] [--released FOLDER] [--save]

Each network is asked for solutions that were moved by random symmetries of its equation. The search knows no training
data: `trivgeo.inversion.energies.OperatorConsistency`, with the equation, without it, and with the box of the training
points instead, is lowered by draws and Levenberg-Marquardt steps over all directions of the group. FOLDER is a checkout
of the method's released code, with its two networks for the heat equation; their problems are the published ones,
multiples of a sine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.timing import environment
from tasks.pde.burgers import BurgersEquation
from tasks.pde.domain import relative_l2, values_of
from tasks.pde.equation import Equation
from tasks.pde.heat import HeatEquation
from tasks.pde.kdv import KdVEquation, kdv_from_generators
from tasks.pde.problems import FactorProblems, MixedProblems, OperatorProblems, SymmetryProblems
from tasks.pde.released import load_operator
from tasks.released import FILES
from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.groups import LieGroup
from trivgeo.inversion import Inverter
from trivgeo.inversion.energies import OperatorConsistency
from trivgeo.inversion.stages import GaussianSearch, LevenbergMarquardt

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


def main() -> None:
    """Parse the command line, measure, print, and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_consistency", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--cases", type=int, default=10, help="problems of each network")
    parser.add_argument("--draws", type=int, default=64, help="draws of the search")
    parser.add_argument("--chains", type=int, default=2, help="draws that are descended from")
    parser.add_argument("--steps", type=int, default=12, help="Levenberg-Marquardt steps")
    parser.add_argument("--released", type=Path, default=None, help="a checkout of the method's released code")
    parser.add_argument("--save", action="store_true", help="keep the rows")
    options = parser.parse_args()
    rows = []
    cases = own_cases(options.cases)
    if options.released is not None:
        cases = [*released_cases(options.released, options.cases), *cases]
    for case in cases:
        rows.append(row(case, options.draws, options.chains, options.steps))
        print(json.dumps(rows[-1]), flush=True)
    if options.save:
        document = {
            "environment": environment(torch.device("cpu")),
            "search": {name: getattr(options, name) for name in ("draws", "chains", "steps")},
            "rows": rows,
        }
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
