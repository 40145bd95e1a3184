"""Training of a DeepONet: the data, the optimiser, physics-informed and supervised losses, export."""

import math
from abc import abstractmethod
from dataclasses import asdict
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Float
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.training import DealtSampler, EpochSampler, versions

from ..checkpoints import save_checkpoint
from ..made_once import made_once
from ..seeds import generator_of
from ..training import NamedExport
from .batches import CollocationBatch, CollocationDataset, SolutionBatch, SolutionDataset, root_mean_square
from .deeponet import DeepONet
from .domain import relative_l2
from .equation import Equation, ResidualEquation, identifying
from .soap import SOAP


class OperatorData(pl.LightningDataModule):
    """Training batches of an equation; validation is the error on a grid of solutions that are held out.

    Args:
        equation: the equation and the distribution of its initial conditions.
        num_sensors: sensors of the initial condition.
        steps_per_epoch: training steps between validations.
        validation_functions: number of solutions held out.
        grid: numbers (nx, nt) of grid points of the validation.

    Raises:
        ConfigurationError: a count is not positive.
    """

    def __init__(
        self,
        equation: Equation,
        num_sensors: int,
        steps_per_epoch: int = 500,
        validation_functions: int = 100,
        grid: tuple[int, int] = (101, 101),
    ) -> None:
        super().__init__()
        self.equation = equation
        self.num_sensors = check_count("num_sensors", num_sensors)
        self.steps_per_epoch = check_count("steps_per_epoch", steps_per_epoch)
        self.validation_functions = check_count("validation_functions", validation_functions)
        self.grid = (check_count("grid[0]", grid[0]), check_count("grid[1]", grid[1]))

    @property
    @abstractmethod
    def dataset(self) -> Dataset:
        """Training batches by their index."""

    def train_dataloader(self) -> DataLoader[Any]:
        """Training batches."""
        return DataLoader(self.dataset, batch_size=None, sampler=DealtSampler(EpochSampler(self.steps_per_epoch)))

    def val_dataloader(self) -> DataLoader[SolutionBatch]:
        """All validation functions on the grid, as one batch."""
        equation, domain = self.equation, self.equation.domain

        def make() -> dict[str, Tensor]:
            held_out = equation.held_out(self.validation_functions)
            sensors = held_out.initial(domain.sensors(self.num_sensors, dtype=torch.float64))
            return {"sensors": sensors.float(), "solution": held_out.on_grid(*self.grid).float()}

        made_from = [*identifying(equation), self.num_sensors, self.validation_functions, self.grid]
        tensors = made_once("held-out", made_from, make, [type(equation)]) if equation.is_simulated else make()
        batch = SolutionBatch(tensors["sensors"], domain.grid(*self.grid), tensors["solution"])
        return DataLoader([batch], batch_size=None)  # type: ignore[arg-type]

    def test_dataloader(self) -> DataLoader[SolutionBatch]:
        """The batch of `val_dataloader`."""
        return self.val_dataloader()


class Collocation(OperatorData):
    """Random collocation points and initial conditions: training never sees a solution.

    Args:
        functions: initial conditions a step.
        interior_points: points a step for the equation.
        initial_points: points a step for the initial condition.
        boundary_points: times a step for periodicity; 0 for a network that is periodic by itself.
        time_power: exponent of the density of times, see `CollocationDataset`.
        seed: seed of all random points and functions.
        options: see `OperatorData`.

    Raises:
        ConfigurationError: a number is not positive.
    """

    def __init__(
        self,
        equation: Equation,
        num_sensors: int = 200,
        functions: int = 1,
        interior_points: int = 512,
        initial_points: int = 256,
        boundary_points: int = 64,
        time_power: float = 1.5,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(equation, num_sensors, **options)
        if boundary_points < 0:
            raise ConfigurationError(f"boundary_points: expected at least 0, got {boundary_points}")
        self._dataset = CollocationDataset(
            equation,
            num_sensors=num_sensors,
            functions=check_count("functions", functions),
            interior_points=check_count("interior_points", interior_points),
            initial_points=check_count("initial_points", initial_points),
            boundary_points=boundary_points,
            time_power=check_positive("time_power", time_power),
            seed=seed,
        )

    @property
    def dataset(self) -> CollocationDataset:
        return self._dataset


class SolvedData(OperatorData):
    """A training set of solutions by the equation's solver, made once and kept in a file.

    Args:
        training_functions: size of the training set.
        functions: functions a step.
        points: points a step, of the grid, which is that of the validation.
        seed: seed of the training set and of the batches.
        cache: folder of the file; its name holds a hash of all that the set depends on. `None` for no file.
        options: see `OperatorData`.

    Raises:
        ConfigurationError: a number is not positive.
    """

    def __init__(
        self,
        equation: Equation,
        num_sensors: int = 101,
        training_functions: int = 2000,
        functions: int = 64,
        points: int = 512,
        seed: int = 0,
        cache: str | None = "runs/cache",
        **options: Any,
    ) -> None:
        super().__init__(equation, num_sensors, **options)
        self.training_functions = check_count("training_functions", training_functions)
        self.functions = check_count("functions", functions)
        self.points = check_count("points", points)
        self.seed = seed
        self.cache = cache
        self._dataset: SolutionDataset | None = None

    @property
    def dataset(self) -> SolutionDataset:
        if self._dataset is None:
            data = self._solutions()
            self._dataset = SolutionDataset(data, functions=self.functions, points=self.points, seed=self.seed)
        return self._dataset

    def _solutions(self) -> SolutionBatch:
        domain, equation = self.equation.domain, self.equation

        def make() -> dict[str, Tensor]:
            generator = generator_of(self.seed, 0, 0)  # no test set has these numbers
            solutions = equation.sample(self.training_functions, generator)
            sensors = solutions.initial(domain.sensors(self.num_sensors, dtype=torch.float64))
            return {"sensors": sensors.float(), "solution": solutions.on_grid(*self.grid).float()}

        made_from = [*identifying(equation), self.num_sensors, self.training_functions, self.grid, self.seed]
        tensors = (
            make() if self.cache is None else made_once("solutions", made_from, make, [type(equation)], self.cache)
        )
        return SolutionBatch(tensors["sensors"], domain.grid(*self.grid), tensors["solution"])


class OperatorTraining(NamedExport):
    """Training of a DeepONet by SOAP with warm-up and cosine decay; the loss is the subclass's.

    Args:
        equation: the equation; its domain gives the network's ranges.
        num_sensors: sensors of the initial condition.
        width: width of branch and trunk.
        depth: layers of branch and trunk.
        gated: see `DeepONet`.
        harmonics: see `DeepONet`.
        learning_rate: peak step size of SOAP.
        warmup_steps: steps over which it rises linearly; then it falls to zero along a cosine.
        precondition_frequency: steps between refreshes of SOAP's eigenvectors.
        seed: seed of the initial weights.
        export: see `tasks.training.NetworkTraining`.

    Raises:
        DomainError: there are several x or u.
    """

    def __init__(
        self,
        equation: Equation,
        num_sensors: int = 200,
        width: int = 100,
        depth: int = 7,
        gated: bool = False,
        harmonics: int = 0,
        learning_rate: float = 3e-3,
        warmup_steps: int = 100,
        precondition_frequency: int = 10,
        seed: int = 0,
        export: str | None = None,
    ) -> None:
        super().__init__()
        # where a resumed run exports is its own choice; the equation is no plain type
        self.save_hyperparameters(ignore=["equation", "export"])
        self.equation = equation
        x_range, t_range, (_, u_scale) = equation.domain.line()
        self.network = DeepONet(
            num_sensors,
            width,
            depth,
            x_range=x_range,
            t_range=t_range,
            u_scale=u_scale,
            gated=gated,
            harmonics=harmonics,
            generator=torch.Generator().manual_seed(seed),
        )
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.precondition_frequency = precondition_frequency
        self.seed = seed
        self.export = export

    @abstractmethod
    def losses(self, batch: Any) -> dict[str, tuple[float, Float[Tensor, ""]]]:
        """Terms of the loss by name: weight, and value without it."""

    def setup(self, stage: str) -> None:
        """Check that the data are for the same equation.

        Raises:
            ConfigurationError: they are not.
        """
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if data.equation.description != self.equation.description:
            raise ConfigurationError(
                f"data.equation: expected that of the model {self.equation.description}, got "
                f"{data.equation.description}"
            )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The weighted loss of one batch."""
        losses = self.losses(batch)
        loss = torch.stack([weight * value for weight, value in losses.values()]).sum()
        self.log_dict({f"train/{name}": value for name, (_, value) in losses.items()})
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: SolutionBatch, batch_idx: int) -> None:
        """Log the relative L2 error over the grid: its mean and its largest value over the functions."""
        self._log_error("val", batch)

    def test_step(self, batch: SolutionBatch, batch_idx: int) -> None:
        """Log the error of `validation_step`."""
        self._log_error("test", batch)

    def _log_error(self, stage: str, batch: SolutionBatch) -> None:
        error = relative_l2(self.network(batch.sensors, batch.points), batch.solution)
        self.log(f"{stage}/relative_l2", error.mean(), prog_bar=True, batch_size=len(error), sync_dist=True)
        self.log(f"{stage}/relative_l2_worst", error.max(), batch_size=len(error), reduce_fx="max", sync_dist=True)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """SOAP with linear warm-up and cosine decay, step by step."""
        optimizer = SOAP(
            self.network.parameters(), self.learning_rate, precondition_frequency=self.precondition_frequency
        )
        total = int(self.trainer.estimated_stepping_batches)

        def factor(step: int) -> float:
            return min(1.0, (step + 1) / self.warmup_steps) * 0.5 * (1.0 + math.cos(math.pi * min(step / total, 1.0)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        """Check the path of the export before the work.

        Raises:
            ConfigurationError: see `NamedExport.export_path`.
        """
        if self.export is not None:
            self.export_path(self.export)

    def on_train_end(self) -> None:
        """Export the network."""
        if self.export is not None and self.trainer.is_global_zero:
            save_checkpoint(self.network, self.export_path(self.export), self.export_metadata())

    def export_metadata(self) -> dict[str, Any]:
        """Metadata of the exported file: equation, domain, seed, measured errors, versions."""
        measured = {
            name.removeprefix("val/"): float(value)
            for name, value in self.trainer.callback_metrics.items()
            if name.startswith("val/")
        }
        return {
            **self.equation.description,
            "domain": asdict(self.equation.domain),
            "seed": self.seed,
            "steps": self.trainer.global_step,
            "validation": measured,
            "versions": versions(),
        }


class PhysicsInformedTraining(OperatorTraining):
    r"""Physics-informed training: the network is held to its equation, and never sees a solution.

    With all terms relative to the root mean square of each initial condition,
    loss = initial_weight |u(x, 0) - u_0|^2 + boundary_weight (|u|^2 + |u_x|^2 of the jump across the period)
    + residual_weight |residual|^2, each a mean over random points. Sifan Wang et al., "Learning the solution
    operator of parametric partial differential equations with physics-informed DeepONets", 2021.

    Args:
        equation: see `OperatorTraining`; it is imposed.
        initial_weight: weight of the initial condition.
        boundary_weight: weight of the periodicity.
        residual_weight: weight of the equation.
        options: see `OperatorTraining`.
    """

    def __init__(
        self,
        equation: ResidualEquation,
        initial_weight: float = 1.0,
        boundary_weight: float = 1.0,
        residual_weight: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(equation, **options)
        self._residual = equation.residual
        self.initial_weight = initial_weight
        self.boundary_weight = boundary_weight
        self.residual_weight = residual_weight

    def losses(self, batch: CollocationBatch) -> dict[str, tuple[float, Float[Tensor, ""]]]:
        """Terms "initial", "residual", and "boundary" if the batch has such points."""
        scale = root_mean_square(batch.sensors)
        initial = (self.network(batch.sensors, batch.initial) - batch.initial_values) / scale
        sizes = (len(batch.interior), len(batch.left), len(batch.right))
        jet = self.network.forward_jet(batch.sensors, torch.cat((batch.interior, batch.left, batch.right)))
        residual = self._residual(jet)[:, : sizes[0]] / scale
        terms = {
            "initial": (self.initial_weight, initial.square().mean()),
            "residual": (self.residual_weight, residual.square().mean()),
        }
        if sizes[1]:
            _, value_left, value_right = jet.value.split(sizes, dim=-1)
            _, slope_left, slope_right = jet.x.split(sizes, dim=-1)
            boundary = torch.cat((value_left - value_right, slope_left - slope_right), dim=-1) / scale
            terms["boundary"] = (self.boundary_weight, boundary.square().mean())
        return terms


class SupervisedTraining(OperatorTraining):
    """Training on solutions: the mean squared error at random points, relative to that of each initial condition."""

    def losses(self, batch: SolutionBatch) -> dict[str, tuple[float, Float[Tensor, ""]]]:
        scale = root_mean_square(batch.sensors)
        error = (self.network(batch.sensors, batch.points) - batch.solution) / scale
        return {"data": (1.0, error.square().mean())}
