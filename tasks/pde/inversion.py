"""Test of a solution operator on transformed problems, with and without inversion of the transformation."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import LieGroup, PointAction
from trivgeo.inversion import InverseProblem, Inverter, Stage, TestTimeEquivariant, calibrated_scale
from trivgeo.inversion.energies import DataEnergy, OperatorConsistency
from trivgeo.sde import NoiseStreams

from ..inverters import finished
from ..results import ShardedTest
from ..seeds import generator_of
from .domain import relative_l2, values_of
from .energies import TrainingBox
from .equation import Equation
from .equivariance import equivariance_error
from .figures import draw_solutions
from .problems import OperatorProblems, SymmetryProblems
from .released import load_operator

_CALIBRATION_POINTS = 81  # query points of a datum of the calibration, about


class OperatorInversion(ShardedTest):
    """Relative L2 errors of a network on transformed problems: alone, with inversion, with the true transformation.

    The error on the problems before the transformation is the floor; the error with the true transformation is what
    a perfect inversion would reach. A problem for which the inverter finds no element at which the energy is defined
    is predicted without inversion; its row says so.

    Args:
        checkpoint: see `tasks.pde.released.load_operator`.
        equation: equation of the problems, from the data; the network must have been trained for it.
        inverter: see `tasks.images.inversion.ImageInversion`.
        finish: see `tasks.inverters.finished`.
        max_evaluations: see `trivgeo.inversion.Inverter`.
        trained_on: the equation and the distribution that the network was trained on, for the energy and the
            calibration, where they are not those of the problems.
        scale: scale of the equation's symmetry group: the unit of ``calibrate``, or the sampler's basis without it.
        group: another form of that group, such as one from its generators.
        energy: makes the distance to the training domain from the equation; default `tasks.pde.energies.TrainingBox`.
            "consistency" asks the network itself instead: `trivgeo.inversion.energies.OperatorConsistency`.
        calibrate: step of `trivgeo.inversion.calibrated_scale`, which replaces the group's basis by one in which the
            energy of the network's own training problems is round; ``None`` keeps the basis.
        calibration_unit: unit of `trivgeo.inversion.calibrated_scale`.
        calibration_functions: training problems of the calibration; more than one if the energy depends on u_0.
        equivariance: measure how far the predictor is from commuting with the group, too; takes two more inversions.
        figure: see `tasks.images.inversion.ImageInversion`.

    Raises:
        CheckpointError: the checkpoint cannot be read or does not fit.
        ConfigurationError: the checkpoint was trained for another equation, or the scale does not fit the group.
    """

    def __init__(
        self,
        checkpoint: str,
        equation: Equation,
        inverter: Callable[[OperatorAction, DataEnergy], Inverter],
        scale: list[float] | None = None,
        group: LieGroup | None = None,
        energy: Callable[[Equation], DataEnergy] | Literal["consistency"] | None = None,
        calibrate: float | None = None,
        calibration_unit: float = 1.0,
        calibration_functions: int = 1,
        equivariance: bool = False,
        figure: str | None = "figure.png",
        finish: Stage | None = None,
        max_evaluations: int | None = None,
        trained_on: Equation | None = None,
    ) -> None:
        super().__init__()
        equation = equation if trained_on is None else trained_on
        loaded = load_operator(checkpoint)
        network, metadata = loaded.network, loaded.metadata
        trained_for = {name: metadata.get(name) for name in equation.description}
        if trained_for != equation.description:
            raise ConfigurationError(f"checkpoint: expected a network for {equation.description}, got {trained_for}")
        self.predictor = network.predictor(equation.domain)
        self.num_sensors = network.num_sensors
        self.equation = equation
        self.group = equation.group() if group is None else group
        if scale is not None:
            self.group = self.group.with_scale(scale)
        if energy == "consistency":
            self.energy: DataEnergy = OperatorConsistency(self.predictor, equation.formula, equation.constants)
        else:
            self.energy = TrainingBox(equation) if energy is None else energy(equation)
        self.make_inverter = lambda action, energy: finished(inverter(action, energy), finish, max_evaluations)
        self.calibrate = calibrate
        self.calibration_unit = check_positive("calibration_unit", calibration_unit)
        self.calibration_functions = check_count("calibration_functions", calibration_functions)
        self.equivariance = equivariance
        self.figure = figure
        self.equivariant: TestTimeEquivariant | None = None

    def on_test_start(self) -> None:
        """Build the inverter, in a basis calibrated on clean problems if asked for."""
        super().on_test_start()
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, SymmetryProblems):
            raise ConfigurationError(f"data: expected SymmetryProblems, got {type(data).__name__}")
        group = self.group
        if self.calibrate is not None:
            held_out = self.equation.held_out(self.calibration_functions)
            axes = len(self.equation.domain.base)
            grid = [round(_CALIBRATION_POINTS ** (1 / axes))] * axes
            clean = self.equation.inputs(held_out, self.num_sensors, grid)
            clean = OperatorInput(*(part.to(self.device) for part in clean))
            generator = generator_of(0, device=self.device)
            action = OperatorAction(group.action())
            scale = calibrated_scale(
                action, self.energy, clean, step=self.calibrate, unit=self.calibration_unit, generator=generator
            )
            group = group.with_scale(scale)
        action = OperatorAction(group.action())
        inverter = self.make_inverter(action, self.energy)
        # networks of the inverter come after the module has gone to its device
        equivariant = TestTimeEquivariant(self.predictor, inverter, output_action=action.point_action)
        self.equivariant = equivariant.to(self.device)

    def test_step(self, batch: OperatorProblems, index: int) -> None:
        """Invert and predict all problems of one seed."""
        if not self.is_due(batch, index):
            return
        equivariant = self.equivariant
        assert equivariant is not None
        action = equivariant.inverter.action
        assert isinstance(action, OperatorAction)
        start = time.perf_counter()
        result = equivariant.inverter(batch.x, generator=self._noise(batch, 0))
        inversion_seconds = (time.perf_counter() - start) / len(batch.solution)
        with torch.no_grad():
            inverted = equivariant.predict(batch.x, result)
            seconds = (time.perf_counter() - start) / len(inverted)
            alone, floor = self.predictor(batch.x), self.predictor(batch.canonical)
            found = result.has_usable
            inverted = torch.where(found[:, None, None], inverted, alone)
            unit = action.group.identity(len(alone), dtype=batch.solution.dtype, device=self.device)
            before = InverseProblem(action, self.energy).given(batch.x).energies(unit)
            true = OperatorAction(self.equation.group().action())
            restored = true(true.group.inverse(batch.elements), batch.x)
            exact = true.point_action(batch.elements, self.predictor(restored))
            sides = batch.solution.new_tensor([high - low for low, high in self.equation.domain.base])
            displacement = ((batch.x.query - batch.canonical.query) / sides).square().sum(-1).mean(-1).sqrt()
            metrics = {
                "with inversion": self._error(inverted, batch.solution),
                "without inversion": self._error(alone, batch.solution),
                "with the true transformation": self._error(exact, batch.solution),
                "inside the training domain": self._error(floor, batch.canonical_solution),
            }
        if self.equivariance:
            metrics.update(self._equivariance(batch, true.point_action, inverted, alone, floor))
        names = {name: name.replace(",", "").replace(" ", "_") for name in metrics}
        self.log_dict({names[name]: metric.mean() for name, metric in metrics.items()}, batch_size=len(alone))
        rows = [
            {
                "seed": batch.seed,
                "case": case,
                "metrics": {name: float(metric[case]) for name, metric in metrics.items()},
                "energy": float(result.best_energy()[case]),
                "energy_before": float(before[case]),
                "displacement": float(displacement[case]),
                "found": bool(found[case]),
                "masked_steps": int(result.num_masked_steps[case].sum()),
                "energy_evaluations": result.energy_evaluations,
                "gradient_evaluations": result.gradient_evaluations,
                "network_evaluations": result.network_evaluations,
                "inversion_seconds": inversion_seconds,
                "seconds": seconds,
                "element": result.best()[case].tolist(),
                "true_element": batch.elements[case].tolist(),
            }
            for case in range(len(inverted))
        ]
        writer = self.writer
        if writer is not None:
            writer.write(rows, batch.number)
            if self.figure is not None and index == 0:
                best = action(action.group.inverse(result.best()), batch.x)
                self._draw(writer.directory / self.figure, batch, alone, inverted, best, metrics)

    def _error(self, jets: Tensor, solution: Tensor) -> Tensor:
        """The relative error of each case, over all query points and unknowns."""
        u = values_of(jets, len(self.equation.domain.base))
        return relative_l2(u.flatten(1), solution.flatten(1))

    def _equivariance(
        self, batch: OperatorProblems, action: PointAction, inverted: Tensor, alone: Tensor, floor: Tensor
    ) -> dict[str, Tensor]:
        """Errors of the predictor, once with noise of its own at each input and once with the same, and the network."""
        assert self.equivariant is not None
        predictions = {"equivariance error without inversion": (floor, alone)}
        for name, other in (("equivariance error", 1), ("equivariance error, same noise", 0)):
            result = self.equivariant.inverter(batch.canonical, generator=self._noise(batch, other))
            with torch.no_grad():
                predictions[name] = (self.equivariant.predict(batch.canonical, result), inverted)
        unknowns = len(self.equation.domain.unknowns)
        return {name: equivariance_error(action, batch.elements, *pair, unknowns) for name, pair in predictions.items()}

    def _noise(self, batch: OperatorProblems, number: int) -> NoiseStreams:
        return NoiseStreams(torch.arange(len(batch.solution), device=self.device), batch.seed, number)

    def _draw(
        self,
        path: Path,
        batch: OperatorProblems,
        alone: Tensor,
        inverted: Tensor,
        restored: OperatorInput,
        errors: dict[str, Tensor],
    ) -> None:
        """Draw u_1 of the case of median error without inversion; of several x all but one are in the middle."""
        without, with_ = errors["without inversion"], errors["with inversion"]
        case = int(without.argsort()[len(without) // 2])
        space = len(self.equation.domain.space)

        def section(field: Tensor) -> Tensor:
            """The values on the points of a section through the grid, `[nx, nt, n]`."""
            grid = field[case].reshape(*batch.grid, -1)
            for count in batch.grid[1:space]:
                grid = grid[:, count // 2]
            return grid

        fields = {
            "exact solution": batch.solution,
            f"network alone, relative error {float(without[case]):.2g}": alone[..., space + 1 :],
            f"with inversion, relative error {float(with_[case]):.2g}": inverted[..., space + 1 :],
        }
        regions = {
            "training domain": batch.canonical.query,
            "as given": batch.x.query,
            "inverted": restored.query,
        }
        draw_solutions(
            path,
            section(batch.x.query)[..., [0, space]],
            {title: section(field)[..., 0] for title, field in fields.items()},
            {label: section(region)[..., [0, space]] for label, region in regions.items()},
        )
