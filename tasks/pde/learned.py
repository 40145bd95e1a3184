"""Learned inversion of operator inputs: the network's inputs, and its training on clean problems."""

from functools import partial
from typing import Any

import lightning.pytorch as pl
from torch.utils.data import DataLoader, Dataset

from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.checks import check_count
from trivgeo.inversion.learned import OperatorBackbone
from trivgeo.sde import GeometricSchedule
from trivgeo.training import DealtSampler, EpochSampler

from ..learned import NoiseNetwork, ScoreTraining
from ..seeds import generator_of
from .equation import Equation

_VALIDATION_BATCH = 2**31  # number of a batch that training does not reach


class OperatorNetwork(OperatorBackbone, NoiseNetwork):
    """See `trivgeo.inversion.learned.OperatorBackbone`."""


class CleanProblemsDataset(Dataset[OperatorInput]):
    """Batches of problems inside the training domain; batch `i` is a function of `(seed, i)` alone."""

    def __init__(self, equation: Equation, num_sensors: int, batch_size: int, seed: int) -> None:
        self.equation = equation
        self.num_sensors = num_sensors
        self.batch_size = batch_size
        self.seed = seed

    def __getitem__(self, index: int) -> OperatorInput:
        """Draw batch `index`; of the query grid the corners are enough."""
        solutions = self.equation.sample(self.batch_size, generator_of(self.seed, index))
        clean = self.equation.inputs(solutions, self.num_sensors, (2, 2))
        return OperatorInput(clean.initial.float(), clean.query.float())


class CleanProblems(pl.LightningDataModule):
    """Problems inside the training domain, none of them transformed.

    Args:
        equation: see `tasks.pde.problems.SymmetryProblems`.
        num_sensors: points of the initial condition.
        batch_size: problems a step.
        steps_per_epoch: steps between validations.
        seed: seed of the problems.

    Raises:
        ConfigurationError: a count is not positive.
    """

    def __init__(
        self,
        equation: Equation,
        num_sensors: int = 16,
        batch_size: int = 512,
        steps_per_epoch: int = 250,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.equation = equation
        self.steps_per_epoch = check_count("steps_per_epoch", steps_per_epoch)
        self.dataset = CleanProblemsDataset(
            equation, check_count("num_sensors", num_sensors), check_count("batch_size", batch_size), seed
        )

    def train_dataloader(self) -> DataLoader[OperatorInput]:
        """New problems at every step."""
        return DataLoader(self.dataset, batch_size=None, sampler=DealtSampler(EpochSampler(self.steps_per_epoch)))

    def val_dataloader(self) -> DataLoader[OperatorInput]:
        """One batch that training does not see."""
        return self._alone(_VALIDATION_BATCH)

    def test_dataloader(self) -> DataLoader[OperatorInput]:
        """A second batch that training does not see."""
        return self._alone(_VALIDATION_BATCH + 1)

    def _alone(self, index: int) -> DataLoader[OperatorInput]:
        return DataLoader([self.dataset[index]], batch_size=None)  # type: ignore[arg-type]


class OperatorDenoising(ScoreTraining):
    """A `tasks.learned.ScoreTraining` on the clean problems of an equation.

    Args:
        equation: see `tasks.pde.problems.SymmetryProblems`.
        scale: scale of the symmetry group, which sets how far the noise goes in each direction.
        schedule: the noise.
        num_sensors: see `OperatorNetwork`.
        width: see `OperatorNetwork`.
        depth: see `OperatorNetwork`.
        options: see `ScoreTraining`.

    Raises:
        ConfigurationError: the scale does not fit the group, or a number is out of range.
    """

    def __init__(
        self,
        equation: Equation,
        scale: list[float],
        schedule: GeometricSchedule,
        num_sensors: int = 16,
        width: int = 128,
        depth: int = 3,
        noise_steps: int = 2,
        lowest_time: float = 0.05,
        learning_rate: float = 2e-3,
        warmup: float = 0.0,
        seed: int = 0,
        export: str | None = None,
    ) -> None:
        super().__init__(
            partial(OperatorNetwork, num_sensors=num_sensors, width=width, depth=depth),
            equation.domain.bounds,
            OperatorAction(equation.group().with_scale(scale).action()),
            schedule,
            noise_steps=noise_steps,
            lowest_time=lowest_time,
            augmentation=False,
            learning_rate=learning_rate,
            weight_decay=0.0,
            warmup=warmup,
            seed=seed,
            export=export,
        )
        self.equation = equation

    def export_metadata(self) -> dict[str, Any]:
        return super().export_metadata() | self.equation.description
