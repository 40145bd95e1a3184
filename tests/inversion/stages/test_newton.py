"""Newton's steps on groups, against known minima."""

import pytest
import torch
from torch import Tensor

from tests.helpers import assert_relative, randn, random_elements
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE, HeatSymmetry, Translation
from trivgeo.inversion import Inverter
from trivgeo.inversion.stages import Newton

GROUP = SE(2)
TEMPLATE = randn(7, 2, seed=1)


def mismatch(x: Tensor) -> Tensor:
    return (x - TEMPLATE).square().sum((-1, -2))


def test_finishes_what_is_nearly_right() -> None:
    """Errors of 0.1 are below 1e-9 after four steps, quadratically."""
    g = random_elements(GROUP, 5, std=0.8, seed=2)
    moved = GROUP.action()(g, TEMPLATE)
    start = GROUP.compose(g, random_elements(GROUP, 5, std=0.1, seed=3))[:, None]
    errors = []
    for steps in (1, 2, 4):
        found = Inverter(GROUP.action(), mismatch, [Newton(steps)])(moved, initial=start).best()
        errors.append(float((found - g).abs().max()))
    assert errors[0] < 0.1
    assert errors[1] < 5 * errors[0] ** 2
    assert errors[2] < 1e-8


def test_from_a_maximum_it_goes_down_by_the_size_of_the_curvature() -> None:
    """cos y at y = x - g: from g = 0 the step is -sin x / |-cos x|, away from the maximum."""
    x = torch.tensor([0.5, -0.3]).double().reshape(2, 1, 1)
    start = torch.zeros(2, 1, 1).double()
    found = Inverter(Translation(1).action(), lambda y: y.cos().sum((-1, -2)), [Newton(1)])(x, initial=start)
    assert_relative(found.elements, -x.tan(), 1e-6)


def test_steps_that_rise_are_shortened() -> None:
    """sqrt(1 + y^2): from y the whole step leads to -y^3, away from the minimum wherever |y| > 1."""
    x = torch.tensor([3.0, -8.0, 0.5]).double().reshape(3, 1, 1)
    start = torch.zeros(3, 1, 1).double()
    energy = lambda y: (1 + y.square()).sqrt().sum((-1, -2))  # noqa: E731
    found = Inverter(Translation(1).action(), energy, [Newton(12)])(x, initial=start)
    assert float((found.elements - x).abs().max()) < 1e-6


def test_no_chain_rises_and_the_count_is_right() -> None:
    g = random_elements(GROUP, 3, std=0.8, seed=4)
    moved = GROUP.action()(g, TEMPLATE)
    start = random_elements(GROUP, 3, 6, std=2.0, seed=5)
    before = Inverter(GROUP.action(), mismatch, [])(moved, initial=start)
    after = Inverter(GROUP.action(), mismatch, [Newton(2)])(moved, initial=start)
    assert bool((after.energies <= before.energies).all())
    assert bool((after.energies < before.energies).any())
    assert after.gradient_evaluations == 2 * 6 * (1 + 2 * GROUP.dim)
    bounded = Inverter(GROUP.action(), mismatch, [Newton(2)], max_evaluations=4)(moved, initial=start)
    assert_relative(bounded.elements, after.elements, 1e-8)


def test_chains_that_are_undefined_stay() -> None:
    """A projective element whose inverse tears the points apart has no energy and no gradient."""
    group = HeatSymmetry(0.1)
    jets = torch.tensor([[[0.0, 0.0, 1.0], [1.0, 1.0, 2.0]]], dtype=torch.float64)
    torn = group.exp(torch.tensor([[[0.0, 0, 0, 0, 0, 0], [0.0, 0, 1.0, 0, 0, 0]]], dtype=torch.float64))
    energy = lambda x: (x - jets).square().sum((-1, -2))  # noqa: E731
    result = Inverter(group.action(), energy, [Newton(1)])(jets, initial=torn)
    assert_relative(result.elements[:, 0], torn[:, 0], 1e-10)
    assert bool(torch.isfinite(result.elements).all())


def test_needs_an_energy() -> None:
    with pytest.raises(ConfigurationError, match="energy"):
        Inverter(GROUP.action(), None, [Newton()])(GROUP.action()(random_elements(GROUP, 1, std=0.1), TEMPLATE))
    with pytest.raises(ConfigurationError, match="steps"):
        Newton(0)
