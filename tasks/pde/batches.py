"""Batches of the training of a DeepONet: random points of an equation, or points of known solutions."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import Dataset

from ..seeds import generator_of
from .equation import Equation


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


class SolutionBatch(NamedTuple):
    """Functions with known solutions.

    Attributes:
        sensors: initial conditions at the sensors, `[f, num_sensors]`.
        points: points (x, t), `[q, 2]`.
        solution: the solutions there, `[f, q]`.
    """

    sensors: Tensor
    points: Tensor
    solution: Tensor


def root_mean_square(sensors: Float[Tensor, "f m"]) -> Float[Tensor, "f 1"]:
    """The size of each initial condition, which the losses are relative to."""
    return sensors.square().mean(dim=-1, keepdim=True).sqrt()


class CollocationDataset(Dataset[CollocationBatch]):
    """Random collocation batches; batch `i` is a function of `(seed, i)` alone.

    Times are drawn as t = t_max r^time_power with r ~ U(0, 1): above 1, more points at early times. Positions are
    uniform, initial conditions from the distribution of the equation.
    """

    def __init__(
        self,
        equation: Equation,
        *,
        num_sensors: int,
        functions: int,
        interior_points: int,
        initial_points: int,
        boundary_points: int,
        time_power: float,
        seed: int,
    ) -> None:
        self.equation = equation
        self.sensor_x = equation.domain.sensors(num_sensors)
        self.functions = functions
        self.interior_points = interior_points
        self.initial_points = initial_points
        self.boundary_points = boundary_points
        self.time_power = time_power
        self.seed = seed

    def __getitem__(self, index: int) -> CollocationBatch:
        """Draw batch `index`."""
        generator = generator_of(self.seed, index)
        (x_min, x_max), (t_min, t_max), _ = self.equation.domain.line()

        def positions(n: int) -> Tensor:
            return x_min + (x_max - x_min) * torch.rand(n, generator=generator)

        def times(n: int) -> Tensor:
            return t_min + (t_max - t_min) * torch.rand(n, generator=generator) ** self.time_power

        solutions = self.equation.sample(self.functions, generator, torch.float32)
        interior = torch.stack((positions(self.interior_points), times(self.interior_points)), dim=-1)
        initial_x = positions(self.initial_points)
        boundary_t = times(self.boundary_points)
        return CollocationBatch(
            sensors=solutions.initial(self.sensor_x),
            interior=interior,
            initial=torch.stack((initial_x, torch.full_like(initial_x, t_min)), dim=-1),
            initial_values=solutions.initial(initial_x),
            left=torch.stack((torch.full_like(boundary_t, x_min), boundary_t), dim=-1),
            right=torch.stack((torch.full_like(boundary_t, x_max), boundary_t), dim=-1),
        )


class SolutionDataset(Dataset[SolutionBatch]):
    """Random batches of known solutions at random points of their grid; batch `i` is a function of `(seed, i)`.

    Args:
        data: the whole training set on a grid.
        functions: functions a batch.
        points: points a batch, the same for all functions.
        seed: seed of the choices.
    """

    def __init__(self, data: SolutionBatch, *, functions: int, points: int, seed: int) -> None:
        self.data = data
        self.functions = functions
        self.points = points
        self.seed = seed

    def __getitem__(self, index: int) -> SolutionBatch:
        """Draw batch `index`."""
        generator = generator_of(self.seed, index)
        f = torch.randint(len(self.data.sensors), (self.functions,), generator=generator)
        q = torch.randint(len(self.data.points), (self.points,), generator=generator)
        return SolutionBatch(self.data.sensors[f], self.data.points[q], self.data.solution[f[:, None], q])
