"""Test of a solution operator on transformed problems, with and without inversion of the transformation."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from tasks.pde.deeponet import load_deeponet
from tasks.pde.figures import draw_solutions
from tasks.pde.heat import relative_l2, sensor_locations
from tasks.pde.predictor import OperatorPredictor
from tasks.pde.problems import HeatProblems, OperatorProblems
from tasks.results import ResultsWriter
from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.errors import ConfigurationError
from trivgeo.groups import LieGroup
from trivgeo.inversion import DataEnergy, DomainDistance, Inverter, TestTimeEquivariant, calibrated_scale


class OperatorInversion(pl.LightningModule):
    """Relative L2 errors of a network on transformed problems: alone, with inversion, with the true transformation.

    The error on the problems before the transformation is the floor; the error with the true transformation is what
    a perfect inversion would reach.

    Args:
        checkpoint: a DeepONet in safetensors.
        group: the symmetry group; its scale is the unit of ``calibrate``, or the sampler's basis without it.
        energy: the distance to the training domain.
        inverter: makes the inverter from an action and an energy.
        calibrate: step of `trivgeo.inversion.calibrated_scale`, which replaces the group's basis by one in which the
            energy of the network's own training problem is round; ``None`` keeps the basis.
        seed: of the inverter; each batch of problems adds its own.
        figure: file name of the figure in the results' directory; ``None`` for none.

    Raises:
        CheckpointError: the checkpoint cannot be read or does not fit.
        ConfigurationError: the checkpoint was trained for another equation than the group's.
    """

    def __init__(
        self,
        checkpoint: str,
        group: LieGroup,
        energy: DomainDistance,
        inverter: Callable[[OperatorAction, DataEnergy], Inverter],
        calibrate: float | None = None,
        seed: int = 0,
        figure: str | None = "figure.png",
    ) -> None:
        super().__init__()
        network, metadata = load_deeponet(checkpoint)
        nu = getattr(group, "nu", None)
        if nu is not None and metadata.get("nu") != nu:
            raise ConfigurationError(f"checkpoint: expected a network for nu = {nu}, got nu = {metadata.get('nu')}")
        self.predictor = OperatorPredictor(network, sensor_locations(network.num_sensors))
        self.group = group
        self.energy = energy
        self.make_inverter = inverter
        self.calibrate = calibrate
        self.seed = seed
        self.figure = figure
        self.equivariant: TestTimeEquivariant | None = None

    def on_test_start(self) -> None:
        """Build the inverter, in a basis calibrated on a clean problem if asked for."""
        group = self.group
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, HeatProblems):
            raise ConfigurationError(f"data: expected HeatProblems, got {type(data).__name__}")
        if self.calibrate is not None:
            clean = self._in_domain(data.clean())
            generator = torch.Generator(self.device).manual_seed(self.seed)
            action = OperatorAction(group.action())
            scale = calibrated_scale(action, self.energy, clean, step=self.calibrate, generator=generator)
            group = group.with_scale(scale)
        action = OperatorAction(group.action())
        inverter = self.make_inverter(action, self.energy)
        self.equivariant = TestTimeEquivariant(self.predictor, inverter, output_action=action.point_action)

    def _in_domain(self, clean: OperatorInput) -> OperatorInput:
        """A clean problem scaled to the range of u that the energy asks for."""
        u = clean.initial[..., 2:]
        factor = self.energy.u[1] / u.amax(-2, keepdim=True)
        initial = torch.cat([clean.initial[..., :2], factor * u], -1)
        return OperatorInput(initial.to(self.device), clean.query.to(self.device))

    def test_step(self, batch: OperatorProblems, index: int) -> None:
        """Invert and predict all problems of one seed."""
        writer = self._writer()
        if writer is not None and writer.done(batch.seed):
            return
        equivariant = self.equivariant
        assert equivariant is not None
        generator = torch.Generator(self.device).manual_seed(1_000_003 * (self.seed + 1) + batch.seed)
        start = time.perf_counter()
        result = equivariant.inverter(batch.x, generator=generator)
        with torch.no_grad():
            inverted = equivariant.predict(batch.x, result)[..., 2]
            seconds = (time.perf_counter() - start) / len(inverted)
            alone = self.predictor(batch.x)[..., 2]
            floor = self.predictor(batch.canonical)[..., 2]
            action = equivariant.inverter.action
            assert isinstance(action, OperatorAction)
            restored = action(action.group.inverse(batch.elements), batch.x)
            exact = action.point_action(batch.elements, self.predictor(restored))[..., 2]
        errors = {
            "with inversion": relative_l2(inverted, batch.solution),
            "without inversion": relative_l2(alone, batch.solution),
            "with the true transformation": relative_l2(exact, batch.solution),
            "inside the training domain": relative_l2(floor, batch.canonical_solution),
        }
        self.log_dict({name.replace(" ", "_"): e.mean() for name, e in errors.items()}, batch_size=len(inverted))
        rows = [
            {
                "seed": batch.seed,
                "case": case,
                "metrics": {name: float(e[case]) for name, e in errors.items()},
                "energy": float(result.best_energy()[case]),
                "masked_steps": int(result.failures[case].sum()),
                "energy_evaluations": result.energy_evaluations,
                "gradient_evaluations": result.gradient_evaluations,
                "seconds": seconds,
                "element": result.best()[case].tolist(),
                "true_element": batch.elements[case].tolist(),
            }
            for case in range(len(inverted))
        ]
        if writer is not None:
            writer.write(rows)
            if self.figure is not None and index == 0:
                best = action(action.group.inverse(result.best()), batch.x)
                self._draw(writer.directory / self.figure, batch, alone, inverted, best, errors)

    def _draw(
        self,
        path: Path,
        batch: OperatorProblems,
        alone: Tensor,
        inverted: Tensor,
        restored: OperatorInput,
        errors: dict[str, Tensor],
    ) -> None:
        """The case whose error without inversion is the median one."""
        without, with_ = errors["without inversion"], errors["with inversion"]
        case = int(without.argsort()[len(without) // 2])
        fields = {
            "exact solution": batch.solution,
            f"network alone, relative error {float(without[case]):.2g}": alone,
            f"with inversion, relative error {float(with_[case]):.2g}": inverted,
        }
        regions = {
            "training domain": batch.canonical.query,
            "as given": batch.x.query,
            "inverted": restored.query,
        }
        draw_solutions(
            path,
            batch.x.query[case].reshape(*batch.grid, 2),
            {title: field[case].reshape(batch.grid) for title, field in fields.items()},
            {label: region[case].reshape(*batch.grid, 2) for label, region in regions.items()},
        )

    def _writer(self) -> ResultsWriter | None:
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        return next((c for c in callbacks if isinstance(c, ResultsWriter)), None)
