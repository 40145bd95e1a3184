"""Mutual information against that of normal variables."""

import math

import pytest
import torch

from tests.helpers import randn
from trivgeo.groups import SE, Translation
from trivgeo.registration.inverse_compositional import Exposure, Grid, Picture
from trivgeo.registration.mutual_information import MutualComparison


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_information_of_normal_values(correlation: float) -> None:
    """What a normal variable leaves of the variance of another one is 1 - rho^2."""
    size = (40, 42, 44)
    fixed = randn(1, *size, seed=0).float()
    moving = -correlation * fixed + math.sqrt(1.0 - correlation**2) * randn(1, *size, seed=1).float()
    pictures = [Picture(image, Grid(size, torch.eye(4, dtype=torch.float64))) for image in (moving, fixed)]
    group = SE(3)
    comparison = MutualComparison(group, group.action(), *pictures)
    sums = comparison.sums(group.identity(1, dtype=torch.float64), Exposure.none(1, fixed), None)
    assert float(sums.energy) == pytest.approx(1.0 - correlation**2, abs=0.06)


def test_slope_is_the_derivative_of_information() -> None:
    """Of smooth images moved by shifts, which change no volume."""
    size = (36, 38, 40)
    image = randn(1, *size, seed=2).float()
    for _ in range(16):
        image = torch.nn.functional.avg_pool3d(image, 3, 1, 1)
    image = image / image.std()
    matrix = torch.eye(4, dtype=torch.float64)
    fixed = Picture(image, Grid(size, matrix), margin=4)
    moving = Picture(torch.cos(image), Grid(size, matrix))
    group = Translation(3)
    comparison = MutualComparison(group, group.action(), moving, fixed)
    exposure = Exposure.none(1, image)
    shifts = torch.tensor([0.8, -0.5, 0.4], dtype=torch.float64) + 0.1 * torch.tensor([[0.0], [1.0], [-1.0]])
    h = group.exp(shifts)
    energy = comparison.sums(h, exposure, None).energy
    # the energy is exp(-2 information)
    number = math.prod(side - 8 for side in size)
    measured = -number * float(energy[1].log() - energy[2].log()) / (2.0 * 0.2)
    close = comparison.closely(h[0], exposure, math.inf, math.inf)
    assert float(close.sums.scores.sum()) == pytest.approx(measured, rel=0.1)
    # steps at a distance go the same way
    assert float(comparison.sums(h[:1], exposure, None).slope.sum()) == pytest.approx(-measured, rel=0.4)
