"""Physics-informed training of a DeepONet for the heat equation: module, collocation data, export."""

import math
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import lightning.pytorch as pl
import numpy as np
import torch
from jaxtyping import Float
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from tasks.pde.deeponet import DeepONet, save_deeponet
from tasks.pde.heat import (
    HEAT_NU,
    HeatDomain,
    exact_solution,
    initial_condition,
    query_grid,
    relative_l2,
    sensor_locations,
)
from tasks.pde.soap import SOAP
from trivgeo.errors import ConfigurationError


class CollocationBatch(NamedTuple):
    """Points of one training step; every one of the `f` functions is held to the equation at all points.

    Attributes:
        sensors: initial conditions at the sensors, `[f, num_sensors]`.
        interior: points (x, t) where the equation is imposed, `[p, 2]`.
        initial: points (x, 0) where the initial condition is imposed, `[i, 2]`.
        initial_values: the initial conditions there, `[f, i]`.
        left: points (x_min, t) of the boundary, `[b, 2]`.
        right: points (x_max, t) at the same times, `[b, 2]`.
    """

    sensors: Tensor
    interior: Tensor
    initial: Tensor
    initial_values: Tensor
    left: Tensor
    right: Tensor


class ValidationBatch(NamedTuple):
    """Functions with known solutions on a grid.

    Attributes:
        sensors: initial conditions at the sensors, `[f, num_sensors]`.
        points: the grid, `[q, 2]`.
        solution: the exact solutions, `[f, q]`.
    """

    sensors: Tensor
    points: Tensor
    solution: Tensor


class CollocationDataset(Dataset[CollocationBatch]):
    """Random collocation batches; batch `i` is a function of `(seed, i)` alone, so that training resumes exactly.

    Times are drawn as t = t_max r^time_power with r ~ U(0, 1): above 1, more points at early times, where the solution
    is large. Positions and amplitudes are uniform.
    """

    def __init__(
        self,
        *,
        amplitudes: tuple[float, float],
        num_sensors: int,
        functions: int,
        interior_points: int,
        initial_points: int,
        boundary_points: int,
        time_power: float,
        seed: int,
    ) -> None:
        self.amplitudes = amplitudes
        self.sensor_x = sensor_locations(num_sensors)
        self.functions = functions
        self.interior_points = interior_points
        self.initial_points = initial_points
        self.boundary_points = boundary_points
        self.time_power = time_power
        self.seed = seed
        self.domain = HeatDomain()

    def __getitem__(self, index: int) -> CollocationBatch:
        """Draw batch `index`."""
        # the CPU generator takes 32 bits; SeedSequence mixes seed and index into them
        state = int(np.random.SeedSequence((self.seed, index)).generate_state(1)[0])
        generator = torch.Generator().manual_seed(state)

        def uniform(n: int, low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(n, generator=generator)

        def times(n: int) -> Tensor:
            return box.t_min + (box.t_max - box.t_min) * uniform(n, 0.0, 1.0) ** self.time_power

        box = self.domain
        amplitude = uniform(self.functions, *self.amplitudes)[:, None]
        interior_x = uniform(self.interior_points, box.x_min, box.x_max)
        interior = torch.stack((interior_x, times(self.interior_points)), dim=-1)
        initial_x = uniform(self.initial_points, box.x_min, box.x_max)
        boundary_t = times(self.boundary_points)
        return CollocationBatch(
            sensors=initial_condition(amplitude, self.sensor_x),
            interior=interior,
            initial=torch.stack((initial_x, torch.full_like(initial_x, box.t_min)), dim=-1),
            initial_values=initial_condition(amplitude, initial_x),
            left=torch.stack((torch.full_like(boundary_t, box.x_min), boundary_t), dim=-1),
            right=torch.stack((torch.full_like(boundary_t, box.x_max), boundary_t), dim=-1),
        )


class EpochSampler(Sampler[int]):
    """Indices `epoch * steps, ..., epoch * steps + steps - 1`; the trainer sets the epoch."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the block of indices of the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        """Run through the block; the epoch is read at the first index, for a resumed trainer sets it that late."""
        yield from range(self.epoch * self.steps, (self.epoch + 1) * self.steps)

    def __len__(self) -> int:
        """Indices an epoch."""
        return self.steps


class HeatCollocation(pl.LightningDataModule):
    """Collocation points and initial conditions u_0 = A sin(2 x), A ~ U(amplitude_min, amplitude_max).

    Training never sees the solution; validation compares with it on the full 256 x 101 grid.

    Args:
        amplitude_min: smallest amplitude A.
        amplitude_max: largest amplitude A; equal to the smallest for a single function.
        num_sensors: sensors of the initial condition.
        functions: initial conditions a step (all that is needed for a single function is 1).
        interior_points: points a step for the equation.
        initial_points: points a step for the initial condition.
        boundary_points: times a step for periodicity.
        time_power: exponent of the density of times, see `CollocationDataset`.
        steps_per_epoch: training steps between validations.
        validation_functions: equidistant amplitudes of the validation.
        seed: seed of all random points.

    Raises:
        ConfigurationError: a number is not positive, or the amplitudes are not 0 < min <= max.
    """

    def __init__(
        self,
        amplitude_min: float = 1.0,
        amplitude_max: float = 1.0,
        num_sensors: int = 200,
        functions: int = 1,
        interior_points: int = 512,
        initial_points: int = 256,
        boundary_points: int = 64,
        time_power: float = 1.5,
        steps_per_epoch: int = 500,
        validation_functions: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        counts = {
            "num_sensors": num_sensors,
            "functions": functions,
            "interior_points": interior_points,
            "initial_points": initial_points,
            "boundary_points": boundary_points,
            "steps_per_epoch": steps_per_epoch,
            "validation_functions": validation_functions,
        }
        for name, count in counts.items():
            if count < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {count}")
        if not 0.0 < amplitude_min <= amplitude_max:
            raise ConfigurationError(
                f"expected 0 < amplitude_min <= amplitude_max, got {amplitude_min}, {amplitude_max}"
            )
        if not time_power > 0.0:
            raise ConfigurationError(f"time_power must be positive, got {time_power}")
        self.num_sensors = num_sensors
        self.amplitudes = (amplitude_min, amplitude_max)
        self.steps_per_epoch = steps_per_epoch
        self.validation_functions = validation_functions
        self.dataset = CollocationDataset(
            amplitudes=self.amplitudes,
            num_sensors=num_sensors,
            functions=functions,
            interior_points=interior_points,
            initial_points=initial_points,
            boundary_points=boundary_points,
            time_power=time_power,
            seed=seed,
        )

    def train_dataloader(self) -> DataLoader[CollocationBatch]:
        """Random collocation batches."""
        return DataLoader(self.dataset, batch_size=None, sampler=EpochSampler(self.steps_per_epoch))

    def val_dataloader(self) -> DataLoader[ValidationBatch]:
        """All validation functions on the grid, as one batch."""
        amplitude = torch.linspace(*self.amplitudes, self.validation_functions)[:, None]
        points = query_grid()
        batch = ValidationBatch(
            sensors=initial_condition(amplitude, sensor_locations(self.num_sensors)),
            points=points,
            solution=exact_solution(amplitude, points[:, 0], points[:, 1]),
        )
        return DataLoader([batch], batch_size=None)  # type: ignore[arg-type]

    def test_dataloader(self) -> DataLoader[ValidationBatch]:
        """Same as validation."""
        return self.val_dataloader()


class HeatDeepONetTraining(pl.LightningModule):
    r"""Physics-informed training of a DeepONet for u_t = nu u_xx, periodic in x.

    With all terms relative to the root mean square of each initial condition,
    loss = initial_weight |u(x, 0) - u_0|^2 + boundary_weight (|u|^2 + |u_x|^2 of the jump across the period)
    + residual_weight |u_t - nu u_xx|^2, each a mean over random points. Sifan Wang et al., "Learning the solution
    operator of parametric partial differential equations with physics-informed DeepONets", 2021.

    Args:
        num_sensors: sensors of the initial condition.
        width: width of branch and trunk.
        depth: layers of branch and trunk.
        u_max: largest |u| of the training functions; scales the network and bounds its domain.
        learning_rate: peak step size of SOAP.
        warmup_steps: steps over which it rises linearly; then it falls to zero along a cosine.
        precondition_frequency: steps between refreshes of SOAP's eigenvectors.
        initial_weight: weight of the initial condition.
        boundary_weight: weight of the periodicity.
        residual_weight: weight of the equation.
        seed: seed of the initial weights.
        export_path: where the trained network goes as safetensors; nowhere when None.
    """

    def __init__(
        self,
        num_sensors: int = 200,
        width: int = 100,
        depth: int = 7,
        u_max: float = 1.0,
        learning_rate: float = 3e-3,
        warmup_steps: int = 100,
        precondition_frequency: int = 10,
        initial_weight: float = 1.0,
        boundary_weight: float = 1.0,
        residual_weight: float = 1.0,
        seed: int = 0,
        export_path: str | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore="export_path")  # where a resumed run exports is its own choice
        self.domain = HeatDomain(u_min=-u_max, u_max=u_max)
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.precondition_frequency = precondition_frequency
        self.initial_weight = initial_weight
        self.boundary_weight = boundary_weight
        self.residual_weight = residual_weight
        self.seed = seed
        self.export_path = export_path
        self.network = DeepONet(
            num_sensors,
            width,
            depth,
            x_range=(self.domain.x_min, self.domain.x_max),
            t_range=(self.domain.t_min, self.domain.t_max),
            u_scale=u_max,
            generator=torch.Generator().manual_seed(seed),
        )

    def training_step(self, batch: CollocationBatch, batch_idx: int) -> Tensor:
        """Physics-informed loss of one batch."""
        losses = self.losses(batch)
        loss = (
            self.initial_weight * losses["initial"]
            + self.boundary_weight * losses["boundary"]
            + self.residual_weight * losses["residual"]
        )
        self.log_dict({f"train/{name}": value for name, value in losses.items()})
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def losses(self, batch: CollocationBatch) -> dict[str, Float[Tensor, ""]]:
        """Terms of the loss without weights: "initial", "boundary" and "residual"."""
        scale = batch.sensors.square().mean(dim=-1, keepdim=True).sqrt()
        initial = (self.network(batch.sensors, batch.initial) - batch.initial_values) / scale
        sizes = (len(batch.interior), len(batch.left), len(batch.right))
        jet = self.network.forward_jet(batch.sensors, torch.cat((batch.interior, batch.left, batch.right)))
        residual = (jet.t - HEAT_NU * jet.xx)[:, : sizes[0]] / scale
        _, value_left, value_right = jet.value.split(sizes, dim=-1)
        _, slope_left, slope_right = jet.x.split(sizes, dim=-1)
        boundary = torch.cat((value_left - value_right, slope_left - slope_right), dim=-1) / scale
        return {
            "initial": initial.square().mean(),
            "boundary": boundary.square().mean(),
            "residual": residual.square().mean(),
        }

    def validation_step(self, batch: ValidationBatch, batch_idx: int) -> None:
        """Log the relative L2 error over the grid: its mean and its largest value over the functions."""
        self._log_error("val", batch)

    def test_step(self, batch: ValidationBatch, batch_idx: int) -> None:
        """As validation."""
        self._log_error("test", batch)

    def _log_error(self, stage: str, batch: ValidationBatch) -> None:
        error = relative_l2(self.network(batch.sensors, batch.points), batch.solution)
        self.log(f"{stage}/relative_l2", error.mean(), prog_bar=True, batch_size=len(error))
        self.log(f"{stage}/relative_l2_worst", error.max(), batch_size=len(error))

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

    def on_train_end(self) -> None:
        """Export the network."""
        if self.export_path is not None and self.trainer.is_global_zero:
            save_deeponet(self.network, Path(self.export_path), self.export_metadata())

    def export_metadata(self) -> dict[str, Any]:
        """What goes into the header of the exported file: equation, domain, seed, measured errors, versions."""
        domain = {name: getattr(self.domain, name) for name in HeatDomain.__dataclass_fields__}
        measured = {
            name.removeprefix("val/"): float(value)
            for name, value in self.trainer.callback_metrics.items()
            if name.startswith("val/")
        }
        return {
            "equation": "u_t = nu u_xx",
            "nu": HEAT_NU,
            "domain": domain,
            "seed": self.seed,
            "steps": self.trainer.global_step,
            "validation": measured,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "lightning": lightning.__version__,
            },
        }
