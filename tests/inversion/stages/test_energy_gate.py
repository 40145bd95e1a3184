"""A gate by an energy, in a problem whose gains are known: the square of a point, which a shift makes zero."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.helpers import assert_relative, randn, seeded
from trivgeo.actions import PointCloud
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import Translation
from trivgeo.inversion import Inverter
from trivgeo.inversion.stages import EnergyGate, GaussianSearch, Newton, Replicate

ACTION = PointCloud(Translation(2))


def well(x: Tensor) -> Tensor:
    return 0.5 * x.square().sum((1, 2))


@pytest.fixture(scope="module")
def inverter() -> Inverter:
    return Inverter(ACTION, well, [Newton(2)], progress=False)


@pytest.mark.parametrize(("share", "number"), [(0.95, 19), (0.5, 10), (0.01, 1)])
def test_margin_is_a_gain_of_clean_data(inverter: Inverter, share: float, number: int) -> None:
    clean = randn(20, 1, 2, seed=1)
    gate = EnergyGate.for_data(inverter, clean, share)
    assert_relative(torch.tensor(gate.margin).double(), well(clean).sort().values[number - 1], 1e-6)
    left = inverter.then(gate)(clean).best().abs().amax(-1) == 0
    assert int(left.sum()) == number


def test_what_gains_more_is_moved(inverter: Inverter) -> None:
    x = torch.tensor([0.1, 3.0]).double().reshape(2, 1, 1).repeat(1, 1, 2)
    r = inverter.then(EnergyGate(1.0))(x)
    assert_relative(r.best(), torch.tensor([[0.0, 0.0], [3.0, 3.0]]).double(), 1e-9, floor=1.0)
    assert_relative(r.best_energy(), torch.tensor([0.01, 0.0]).double(), 1e-9, floor=1.0)
    several = Inverter(ACTION, well, [Replicate(3), GaussianSearch(8, 3, 0.01), EnergyGate(1.0)], progress=False)
    assert torch.equal(several(x, generator=seeded(0)).elements, torch.zeros(2, 3, 2).double())


def test_what_is_not_found_stays() -> None:
    """The search leaves the domain of the energy, where the datum is."""
    energy = lambda x: torch.where(x[:, 0, 0] > 0, well(x), math.inf)  # noqa: E731
    stage = lambda posterior, population, generator: population.moved(population.elements + 9.0)  # noqa: E731
    r = Inverter(ACTION, energy, [stage, EnergyGate(0.0)], progress=False)(torch.ones(1, 1, 2).double())
    assert_relative(r.best_energy(), torch.ones(1).double(), 1e-12)


def test_refusals(inverter: Inverter) -> None:
    for error, make in (
        (ConfigurationError, lambda: EnergyGate(-1.0)),
        (ConfigurationError, lambda: EnergyGate(math.inf)),
        (ConfigurationError, lambda: EnergyGate.for_data(inverter, torch.ones(3, 1, 2), 1.5)),
        (ConfigurationError, lambda: EnergyGate.for_data(Inverter(ACTION, None, []), torch.ones(3, 1, 2))),
        (ShapeError, lambda: EnergyGate.for_data(inverter, torch.ones(0, 1, 2))),
    ):
        with pytest.raises(error):
            make()
    assert bool(Inverter(ACTION, None, [EnergyGate(1.0)])(torch.ones(1, 1, 2)).has_usable.all())
