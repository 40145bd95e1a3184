"""The test of a neural operator on fields moved by symmetries: alone, augmented, inverted."""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from trivgeo._devices import on_device
from trivgeo.actions import FieldAction
from trivgeo.checks import check_count
from trivgeo.inversion import EquivariantOperator, Inverter, LearnedInverter, Stage
from trivgeo.inversion.energies import DataEnergy

from ..inverters import finished
from ..problems import Request
from ..results import ShardedTest
from ..seeds import generator_of
from .data import FieldData, Moves
from .problems import FieldProblem, Pairs
from .training import WithParameters, relative_error, train

MOVES: dict[Moves, str] = {"never": "network alone", "once": "trained on fields moved once", "always": "augmented"}
"""What was moved in training, and the metric of the network by itself."""
_LEARNED_BATCH_SIZE = 96  # fields of a training step of the learned inverter


class FieldComparison(ShardedTest):
    """Trains a network on clean fields, on fields each moved once, and augmented; tests it on moved fields.

    The network of clean fields is tested alone, with an inverter, with learned inversion, and with the true
    transformation; the augmented one alone and with learned inversion. Errors are relative, in L2, of the solution
    after the horizon: what an `EquivariantOperator` predicts is for the time to which g takes that. A field for which
    an inverter finds no element is predicted without inversion, and counted as lost.

    Args:
        problem: the equation, its symmetries and its fields.
        network: makes an untrained one, from values and one parameter, `[b, c + 1, *n]`, to values.
        inverter: inverter of the column `inverter`, made from the action and the energy of the training set.
        finish: a stage after that, and after learned inversion; `null` for none.
        fields: solutions that are simulated for training.
        steps: number of steps of each training of the network, of `batch_size` fields.
        learned_steps: number of steps of the training of learned inversion.
        batch_size: see `FieldData`.
        learning_rate: see `tasks.fields.training.OperatorTraining`.

    Raises:
        ConfigurationError: a count below one.
    """

    def __init__(
        self,
        problem: FieldProblem,
        network: Callable[[], nn.Module],
        inverter: Callable[[FieldAction, DataEnergy], Inverter],
        finish: Stage | None = None,
        fields: int = 128,
        steps: int = 600,
        learned_steps: int = 400,
        batch_size: int = 32,
        learning_rate: float = 3e-3,
    ) -> None:
        super().__init__()
        self.problem, self.network, self.inverter, self.finish = problem, network, inverter, finish
        self.fields = check_count("fields", fields)
        self.steps, self.learned_steps = check_count("steps", steps), check_count("learned_steps", learned_steps)
        self.batch_size = check_count("batch_size", batch_size)
        self.learning_rate = learning_rate

    def test_step(self, batch: Request, index: int) -> None:
        """All trainings and tests of one seed."""
        if not self.is_due(batch, index):
            return
        start = time.perf_counter()
        with torch.inference_mode(False), torch.enable_grad():
            networks = {moved: self._trained(moved, batch.seed) for moved in MOVES}
            inverters = self._inverters(batch.seed)
        metrics = {}
        clean, moved = (
            on_device(self.problem.test(batch.size, batch.seed + 1_000_000 + move, bool(move)), self.device)
            for move in (0, 1)
        )
        for moves, name in MOVES.items():
            metrics[name] = self._alone(networks[moves], moved)
            metrics[f"{name}, on clean fields"] = self._alone(networks[moves], clean)
        operators = {
            moves: EquivariantOperator(network, inverters["learned inversion"], [self.problem.horizon])
            for moves, network in networks.items()
        }
        metrics["true transformation"] = self._inverted(operators["never"], moved, moved.elements)
        seconds = {}
        for name, inverter in inverters.items():
            before = time.process_time()
            result = inverter(moved.initial, generator=generator_of(batch.seed, 1))
            g, found = result.best(), result.has_usable.reshape(-1, *[1] * (moved.elements.ndim - 1))
            g = torch.where(found, g, self.problem.action.group.identity(len(g), dtype=g.dtype, device=g.device))
            metrics[f"lost by {name}"] = (~result.has_usable).double()
            seconds[name] = (time.process_time() - before) / batch.size
            metrics[name] = self._inverted(operators["never"], moved, g)
        metrics["augmented, learned inversion"] = self._inverted(operators["always"], moved, g)
        costs = {f"milliseconds of {name}": 1e3 * value for name, value in seconds.items()}
        rows = [
            {
                "seed": batch.seed,
                "case": case,
                "metrics": {name: float(values[case]) for name, values in metrics.items()} | costs,
                "seconds": (time.perf_counter() - start) / batch.size,
            }
            for case in range(batch.size)
        ]
        self.log("error", metrics["learned inversion"].mean(), batch_size=1)
        writer = self.writer
        if writer is not None:
            writer.write(rows)

    def _trained(self, moved: Moves, seed: int) -> WithParameters:
        torch.default_generator.manual_seed(seed)
        data = FieldData(self.problem, self.fields, moved, self.batch_size, seed)
        return train(WithParameters(self.network()), data, self.steps, self.learning_rate, self.device)

    def _inverters(self, seed: int) -> dict[str, Inverter]:
        """Inverters by the name of their metric; learned inversion is last."""
        problem = self.problem
        clean = on_device(problem.solutions(self.fields, seed, [0.0]), self.device)
        energy = problem.energy(clean)
        learned = LearnedInverter(problem.action, energy, seed=seed).fit(
            clean, problem.draw, steps=self.learned_steps, batch_size=_LEARNED_BATCH_SIZE, seconds=None, progress=False
        )
        searched = self.inverter(problem.action, energy)
        return {
            "inverter": finished(searched, self.finish, None),
            "learned inversion": finished(learned, self.finish, None),
        }

    def _alone(self, network: WithParameters, test: Pairs) -> Tensor:
        """Errors of the network by itself, told the scale of the grid."""
        values = test.initial.values.select(2, 0)
        with torch.no_grad():
            out = network(values.float(), self.problem.parameters(test.initial).float())
        return relative_error(out.to(test.target), test.target)

    def _inverted(self, operator: EquivariantOperator, test: Pairs, g: Tensor) -> Tensor:
        """Errors with given transformations."""
        with torch.no_grad():
            moved = operator.predict(test.initial, g)
            prediction = self.problem.action.resample(moved, test.initial.grid.at(moved.grid.times))
        return relative_error(prediction.values.select(2, 0), test.target)
