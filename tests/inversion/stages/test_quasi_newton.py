"""Quasi-Newton steps on groups, against known minima, and successive halving."""

import pytest
import torch
from torch import Tensor

from tests.helpers import randn, random_elements
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE, HeatSymmetry, Translation
from trivgeo.inversion import InversionResult, Inverter
from trivgeo.inversion.stages import QuasiNewton

GROUP = SE(2)
TEMPLATE = randn(7, 2, seed=1)


def mismatch(x: Tensor) -> Tensor:
    return (x - TEMPLATE).square().sum((-1, -2))


def test_converges_faster_than_linearly() -> None:
    g = random_elements(GROUP, 5, std=0.8, seed=2)
    moved = GROUP.action()(g, TEMPLATE)
    start = GROUP.compose(g, random_elements(GROUP, 5, std=0.3, seed=3))[:, None]
    errors = []
    for steps in (8, 12, 18):
        found = Inverter(GROUP.action(), mismatch, [QuasiNewton(steps)])(moved, initial=start).best()
        errors.append(float((found - g).abs().max()))
    assert errors[1] < 0.1 * errors[0]
    assert errors[2] < 1e-7


def test_a_quadratic_of_any_condition_in_as_many_steps_as_a_plane_method() -> None:
    """Curvatures of 1 to 10,000: gradient steps would need thousands; the minimum is that of the normal equations."""
    curvatures = torch.tensor([1.0, 30.0, 1e3, 1e4], dtype=torch.float64)
    x = randn(3, 1, 4, seed=4)
    energy = lambda y: (curvatures * y.square()).sum((-1, -2))  # noqa: E731
    start = torch.zeros(3, 1, 4).double()
    found = Inverter(Translation(4).action(), energy, [QuasiNewton(60, max_length=5.0)])(x, initial=start)
    assert float((found.elements - x).abs().max()) < 1e-5


def test_no_chain_rises_whatever_the_energy() -> None:
    rough = lambda y: y.sin().sum((-1, -2)) + (40 * y).sin().abs().sum((-1, -2))  # noqa: E731
    x = randn(4, 3, 2, seed=5)
    start = random_elements(GROUP, 4, 6, std=1.0, seed=6)
    before = Inverter(GROUP.action(), rough, [])(x, initial=start)
    after = Inverter(GROUP.action(), rough, [QuasiNewton(5)])(x, initial=start)
    assert bool((after.energies <= before.energies.sort(1).values).all())
    assert bool((after.energies.sum(1) < before.energies.sum(1)).all())
    assert after.gradient_evaluations == 6 * 6


def test_halving_moves_the_lowest_and_saves_gradients() -> None:
    x = randn(2, 7, 2, seed=7)
    start = random_elements(GROUP, 2, 8, std=1.0, seed=8)
    after = Inverter(GROUP.action(), mismatch, [QuasiNewton(6, pruning=[(2, 4), (4, 1)])])(x, initial=start)
    assert after.energies.shape == (2, 8)
    assert bool((after.energies.diff(dim=1) >= 0).all())
    assert after.gradient_evaluations == 8 + 2 * 8 + 2 * 4 + 2 * 1
    first = Inverter(GROUP.action(), mismatch, [QuasiNewton(2)])(x, initial=start)  # eight chains, in order
    alone = start.gather(1, _places(first, x, start)[:, :1, None, None].expand(-1, -1, *GROUP.element_shape))
    expected = Inverter(GROUP.action(), mismatch, [QuasiNewton(6)])(x, initial=alone)
    halved = Inverter(GROUP.action(), mismatch, [QuasiNewton(6, pruning=[(2, 1)])])(x, initial=start)
    torch.testing.assert_close(halved.elements[:, :1], expected.elements)
    torch.testing.assert_close(halved.energies[:, 1:], first.energies[:, 1:])


def _places(found: InversionResult, x: Tensor, start: Tensor) -> Tensor:
    """Return the places in ``start`` of the chains of a result in order: those of two steps by each start alone."""
    each = [Inverter(GROUP.action(), mismatch, [QuasiNewton(2)])(x, initial=start[:, i : i + 1]) for i in range(8)]
    energies = torch.cat([one.energies for one in each], 1)
    torch.testing.assert_close(energies.sort(1).values, found.energies)
    return energies.argsort(dim=1)


def test_chains_that_leave_the_domain_stay_where_they_were() -> None:
    """A denominator that crosses zero makes elements undefined: the step is taken back, and counted."""
    group = HeatSymmetry(1.0)
    x = randn(2, 5, 3, seed=9)
    start = random_elements(group, 2, 3, std=0.3, seed=10)
    energy = lambda y: 1e6 * y.square().sum((-1, -2))  # noqa: E731
    found = Inverter(group.action(), energy, [QuasiNewton(10, max_length=50.0)])(x, initial=start)
    before = Inverter(group.action(), energy, [])(x, initial=start)
    assert bool(torch.isfinite(before.energies).any())
    assert bool((found.energies <= before.energies.sort(1).values).all())
    assert bool(torch.isfinite(found.elements).all())


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 0},
        {"first_length": 0.0},
        {"max_length": -1.0},
        {"steps": 5, "pruning": [(5, 2)]},
        {"pruning": [(2, 2), (3, 4)]},
    ],
)
def test_bad_settings(settings: dict) -> None:
    with pytest.raises(ConfigurationError):
        QuasiNewton(**settings)


def test_too_few_chains() -> None:
    search = Inverter(GROUP.action(), mismatch, [QuasiNewton(6, pruning=[(2, 4)])])
    with pytest.raises(ConfigurationError, match="below 3 chains"):
        search(randn(1, 7, 2, seed=1), initial=random_elements(GROUP, 1, 3, std=0.1, seed=1))
