"""CMA-ES on groups, against the library `cmaes` and known minima, and energies on which TIED takes it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.helpers import randn, random_elements, seeded
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE, Translation
from trivgeo.inversion import TIED, Inverter
from trivgeo.inversion.stages import AdaptiveSearch, EvolutionStrategy
from trivgeo.inversion.stages.evolution_strategy import _Rates

CLOUD = randn(9, 3, seed=1)


def distance(y: Tensor) -> Tensor:
    return (y - CLOUD).square().sum((-1, -2))


def test_rates_of_the_library() -> None:
    """Weights and learning rates in six dimensions are those of the library cmaes, 0.12."""
    assert EvolutionStrategy(1).size(6) == 9
    own = _Rates(6, 9)
    weights = [0.4937384, 0.2810968, 0.1567095, 0.0684553, 0.0, -0.2311082, -0.4265073, -0.5957698, -0.7450699]
    assert own.weights == pytest.approx(weights, abs=1e-6)
    mine = (own.c_one, own.c_mu, own.c_sigma, own.damping, own.c_path, own.chi)
    assert mine == pytest.approx((0.0356312, 0.0356863, 0.3497397, 1.3497397, 0.4086499, 2.3506677), abs=1e-6)


def test_learns_the_curvatures_of_a_quadratic() -> None:
    """Curvatures of 1 to 1,000: in 150 generations the library falls to 3e-10 (mean of the logarithms of 20 runs)."""
    curvatures = torch.logspace(0, 3, 6).double()
    x = torch.ones(20, 1, 6).double()
    energy = lambda y: (curvatures * y.square()).sum((1, 2))  # noqa: E731
    result = Inverter(Translation(6).action(), energy, [EvolutionStrategy(150)])(x, generator=seeded(0))
    assert abs(float(result.best_energy().log10().mean()) + 9.5) < 1.0
    assert result.energy_evaluations == 1 + 150 * 9


def test_on_a_group() -> None:
    """A motion of points that is known, from far; an element does not depend on where the search is moved to."""
    g = random_elements(SE(3), 5, std=1.0, seed=2)
    stages = [EvolutionStrategy(150, 0.5)]
    result = Inverter(SE(3).action(), distance, stages)(SE(3).action()(g, CLOUD), generator=seeded(0))
    found = (result.best() - g).abs().amax((-1, -2))
    assert float(found.median()) < 1e-3
    assert bool((result.energies.diff(dim=1) >= 0).all())


def rippled(height: float, number: float) -> tuple[Inverter, Tensor, Tensor]:
    """A quadratic well with cosine ripples on it, whose lowest point is known, and twenty data."""
    action = Translation(4).action()

    def energy(y: Tensor) -> Tensor:
        return (10 * y.square() + height * (1 - torch.cos(2 * math.pi * number * y))).sum((1, 2))

    x = 0.7 * randn(20, 1, 4, seed=3)
    return TIED(action, energy, evaluations=1000), x, x[:, 0]


def test_the_search_takes_it_where_there_are_ripples_on_a_well() -> None:
    search, x, truth = rippled(1.0, 4.0)
    result = search(x, generator=seeded(0))
    assert "ripples on a wide well\n" in result.report
    assert "an evolution strategy went on" in result.report
    near = ((result.best() - truth).abs().amax(-1) < 0.05).double().mean()
    stages = [AdaptiveSearch(1000, evolution=False)]
    descents = Inverter(search.action, search.energy, stages)(x, generator=seeded(0))
    assert float(near) > 0.6 > float(((descents.best() - truth).abs().amax(-1) < 0.05).double().mean())
    assert result.energy_evaluations + result.gradient_evaluations <= 1000


def test_the_search_descends_where_there_are_none() -> None:
    search, x, truth = rippled(0.0, 4.0)
    result = search(x, generator=seeded(0))
    assert "no ripples" in result.report
    assert float((result.best() - truth).abs().max()) < 1e-5


def test_refused() -> None:
    for settings in ({"generations": 0}, {"generations": 3, "std": 0.0}, {"generations": 3, "population": 3}):
        with pytest.raises(ConfigurationError):
            EvolutionStrategy(**settings)
