"""Functions on the circle by their harmonics, turned by SO(2) without any error: posteriors of known answer."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from trivgeo.errors import ShapeError
from trivgeo.groups import SO, Action
from trivgeo.inversion.learned import LearnedScore, LevelFeatures
from trivgeo.sde import GeometricSchedule

HARMONICS = 4


class Turns(Action):
    """Turns of r(theta) = sum_m c_m cos(m theta) + s_m sin(m theta), data ``[*batch, m, 2]``."""

    def __init__(self) -> None:
        self.group = SO(2)

    def __call__(self, g: Tensor, x: Tensor) -> Tensor:
        angle = self.group.log(g) * torch.arange(1, HARMONICS + 1, dtype=g.dtype)
        cos, sin = angle.cos(), angle.sin()
        return torch.stack([cos * x[..., 0] - sin * x[..., 1], sin * x[..., 0] + cos * x[..., 1]], -1)

    def is_valid(self, g: Tensor, x: Tensor) -> Tensor:
        return torch.ones(torch.broadcast_shapes(self.group.batch_shape(g), x.shape[:-2]), dtype=torch.bool)

    def log_abs_det_jacobian(self, g: Tensor, x: Tensor) -> Tensor:
        return torch.zeros(self.is_valid(g, x).shape, dtype=x.dtype)

    def sum_points(self, per_part: Tensor) -> Tensor:
        return per_part

    def batch_shape(self, x: Any) -> torch.Size:
        return x.shape[:-2]

    def check_data(self, x: Any, name: str = "x") -> None:
        if x.shape[-2:] != (HARMONICS, 2):
            raise ShapeError(f"{name}: expected harmonics [*batch, {HARMONICS}, 2], got {list(x.shape)}")


class Perceptron(nn.Module):
    """A backbone for flat data."""

    def __init__(self, size: int, dim: int, width: int = 64, depth: int = 3, seed: int = 0) -> None:
        super().__init__()
        self.features = LevelFeatures(3)
        sizes = [size + self.features.size, *[width] * depth, dim]
        layers: list[nn.Module] = []
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for a, b in pairwise(sizes):
                layers += [nn.Linear(a, b), nn.SiLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, y: Tensor, level: Tensor) -> Tensor:
        return self.layers(torch.cat([y.flatten(1), self.features(level)], 1))


def shape(angle: Tensor, fold: int) -> Tensor:
    """The shape r(theta) = cos(k (theta - angle)), which looks the same after a k-th of a turn."""
    x = torch.zeros(*angle.shape, HARMONICS, 2)
    x[..., fold - 1, 0], x[..., fold - 1, 1] = (fold * angle).cos(), (fold * angle).sin()
    return x


def untrained(seed: int = 0) -> LearnedScore:
    """A score on the circle whose noise reaches all of it: exp(-sigma^2 / 2) = 1 % of the first harmonic is left."""
    return LearnedScore(Turns(), GeometricSchedule(0.1, 9.0), Perceptron(2 * HARMONICS, 1, seed=seed), lowest_time=0.05)


def angles(elements: Tensor) -> Tensor:
    """Rotations ``[..., 2, 2]`` as angles from -pi to pi."""
    return torch.atan2(elements[..., 1, 0], elements[..., 0, 0])


def wrapped(angle: Tensor) -> Tensor:
    """Angles from -pi to pi."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
