"""Learned inversion of operator inputs: what the network reads, and its training on clean problems."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tasks.learned import NoiseNetwork, ScoreTraining
from tasks.pde.domain import Domain
from tasks.pde.equation import Equation
from tasks.pde.training import EpochSampler
from tasks.seeds import generator_of
from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError
from trivgeo.inversion import LevelFeatures
from trivgeo.inversion.domain import hull_points
from trivgeo.sde import GeometricSchedule

_VALIDATION = 2**31  # a batch that training does not reach
_DIRECTIONS = 8
_CORNERS = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))


class OperatorReader:
    """Keeps of a problem a few points of its initial condition and the convex hull of its query points.

    Args:
        num_sensors: points of the initial condition, evenly chosen in their order.
    """

    def __init__(self, num_sensors: int) -> None:
        self.num_sensors = check_count("num_sensors", num_sensors)

    def __call__(self, x: OperatorInput) -> OperatorInput:
        """The smaller problem; symmetries that act projectively on (x, t) take hulls to hulls."""
        points = x.initial.shape[-2]
        chosen = torch.linspace(0, points - 1, self.num_sensors, device=x.initial.device).round().long()
        return OperatorInput(x.initial[..., chosen, :], hull_points(x.query))


class OperatorNetwork(NoiseNetwork):
    """The noise of the transformation of a problem, from what `OperatorReader` kept of it: a perceptron.

    It reads how far the hull of the query points, the ends and the time of the initial line and the extremes of u
    are from those of the training domain, as they are and in units of the noise level, and u at the sensors. u is
    compressed by asinh, the query points are read through the support function of their hull.

    Args:
        dim: of the group.
        domain: the bounds of the training domain, in the order of `Domain`.
        num_sensors: points of the initial condition.
        width: of the hidden layers.
        depth: their number.

    Raises:
        ConfigurationError: a count below one, or not six bounds.
    """

    directions: Tensor
    box: Tensor

    def __init__(
        self, dim: int, domain: Sequence[float], num_sensors: int = 16, width: int = 128, depth: int = 3
    ) -> None:
        super().__init__()
        if len(domain) != 6:
            raise ConfigurationError(f"domain: expected x_min, x_max, t_min, t_max, u_min, u_max, got {list(domain)}")
        self.dim = check_count("dim", dim)
        self.domain = Domain(*(float(bound) for bound in domain))
        self.num_sensors = check_count("num_sensors", num_sensors)
        self.width = check_count("width", width)
        self.depth = check_count("depth", depth)
        angle = 2 * math.pi / _DIRECTIONS * torch.arange(_DIRECTIONS)
        self.register_buffer("directions", torch.stack([angle.cos(), angle.sin()]), persistent=False)
        self.register_buffer("box", torch.tensor(_CORNERS), persistent=False)
        self.features = LevelFeatures()
        deviations = _DIRECTIONS + 5
        size = 2 * deviations + num_sensors + self.features.size
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(size, width), nn.SiLU()]
            size = width
        self.layers = nn.Sequential(*layers, nn.Linear(size, dim))

    @property
    def architecture(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {
            "dim": self.dim,
            "domain": self.domain.bounds,
            "num_sensors": self.num_sensors,
            "width": self.width,
            "depth": self.depth,
        }

    def initialise(self, seed: int) -> None:
        """Draw the weights by the layers' own laws."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for layer in self.layers:
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()

    def reduced(self, x: OperatorInput) -> OperatorInput:
        """By `OperatorReader`."""
        return OperatorReader(self.num_sensors)(x)

    def forward(self, y: OperatorInput, level: Float[Tensor, " b"]) -> Float[Tensor, "b n"]:
        """The noise in units of its size, in the dtype of the problem; the network runs in its own.

        Args:
            y: what `OperatorReader` kept.
            level: the noise levels.
        """
        dtype = self.box.dtype
        initial, query, level = y.initial.to(dtype), y.query.to(dtype), level.to(dtype)
        _, _, (u_min, u_max) = self.domain.line()
        origin = query.new_tensor([low for low, _ in self.domain.base])
        sides = query.new_tensor([high - low for low, high in self.domain.base])
        hull = ((query - origin) / sides @ self.directions).amax(1) - (self.box @ self.directions).amax(0)
        place = (initial[..., :2] - origin) / sides
        line = torch.stack([place[..., 0].amin(1), place[..., 0].amax(1) - 1.0, place[..., 1].mean(1)], -1)
        u = torch.asinh(2.0 / u_max * initial[..., 2])
        low, high = (math.asinh(2.0 * bound / u_max) for bound in (u_min, u_max))
        range_ = torch.stack([u.amin(1) - low, u.amax(1) - high], -1)
        deviation = torch.asinh(4.0 * torch.cat([hull, line, range_], -1))
        scaled = torch.asinh(deviation / level.unsqueeze(-1))
        return self.layers(torch.cat([deviation, scaled, u, self.features(level)], -1)).to(y.initial.dtype)


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
        seed: of the problems.

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
        return DataLoader(self.dataset, batch_size=None, sampler=EpochSampler(self.steps_per_epoch))

    def val_dataloader(self) -> DataLoader[OperatorInput]:
        """One batch that training does not see."""
        return self._alone(_VALIDATION)

    def test_dataloader(self) -> DataLoader[OperatorInput]:
        """Another one."""
        return self._alone(_VALIDATION + 1)

    def _alone(self, index: int) -> DataLoader[OperatorInput]:
        return DataLoader([self.dataset[index]], batch_size=None)  # type: ignore[arg-type]


class OperatorDenoising(ScoreTraining):
    """A `tasks.learned.ScoreTraining` on the clean problems of an equation.

    Args:
        equation: see `tasks.pde.problems.SymmetryProblems`.
        scale: that of its symmetry group, which sets how far the noise goes in each direction.
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
            carried=False,
            learning_rate=learning_rate,
            weight_decay=0.0,
            warmup=warmup,
            seed=seed,
            export=export,
        )
        self.equation = equation

    def export_metadata(self) -> dict[str, Any]:
        """With the equation."""
        return super().export_metadata() | self.equation.description
