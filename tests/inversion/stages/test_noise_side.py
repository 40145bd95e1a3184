"""The side of the noise where it is narrow against the transformation: warps of one digit, the digit known."""

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tasks.images.mnist import BundledSample
from tests.helpers import seeded
from trivgeo.actions import ImageWarp, WithReference
from trivgeo.groups import Affine, LieGroup, Projective, Similarity
from trivgeo.inversion import ReverseDiffusionSearch
from trivgeo.inversion.stages.chains import Side
from trivgeo.inversion.stages.reverse_diffusion import ReverseDiffusion, score_bound
from trivgeo.sde import GeometricSchedule

AFFINE = Affine(2)
SIDES: tuple[Side, ...] = get_args(Side)
RECOVERED = 0.4
"""Squared distance of a restored image to the template, relative to that of an empty one; 1.5 before (median)."""


def recovered(number: int, pixels: int, group: LieGroup = AFFINE, seed: int = 1, **options: Any) -> float:
    """The share of warps by exp(0.25 z) of one digit that the search undoes."""
    digit = F.pad(BundledSample().test().images[:1].float() / 255, (6,) * 4)
    template = F.interpolate(digit, (pixels, pixels), mode="area")
    weight = 10 * (40 / pixels) ** 2
    action = ImageWarp(group)
    g = group.exp(0.25 * torch.randn(number, group.dim, generator=seeded(0)))
    x = action(g, template.expand(number, -1, -1, -1))

    def energy(y: Tensor) -> Tensor:
        return weight * (y - template).square().sum((1, 2, 3))

    inverter = ReverseDiffusionSearch(action, energy, **options)
    best = inverter(x, generator=seeded(seed)).best()
    error = (action(action.group.inverse(best), x) - template).square().sum((1, 2, 3)) / template.square().sum()
    return float((error < RECOVERED).double().mean())


def by_bound(side: Side, number: int, chains: int, pixels: int) -> float:
    """With scores of at most 500."""
    noise = GeometricSchedule(0.005, 0.25)
    options = {
        "schedule": noise,
        "steps": 50,
        "num_mc": 4,
        "num_hypotheses": chains,
        "max_score_norm": 500.0,
        "side": side,
    }
    return recovered(number, pixels, **options)


def test_the_given_side_finds_more() -> None:
    """Smaller images, fewer chains."""
    shares = [by_bound(side, 16, 8, 20) for side in SIDES]
    assert shares[1] >= 0.85
    assert shares[1] >= shares[0] + 0.2, shares


@pytest.mark.slow
def test_the_template_problem() -> None:
    """The problem as it was posed: 0.50 with noise on the restored side, 0.91 on the other."""
    assert by_bound("given", 32, 32, 40) >= 0.85
    assert by_bound("restored", 32, 32, 40) <= 0.65


def test_the_side_matters_less_with_the_adaptive_bound() -> None:
    """All but the noise by default, as many energies as above; a bound of 500 is far too low for this energy."""
    assert recovered(16, 28) >= 0.9


@pytest.mark.slow(reason="the affine group stays")
@pytest.mark.parametrize("group", [AFFINE, Projective(2)], ids=str)
def test_the_template_problem_by_default(group: LieGroup) -> None:
    """It was 0.38 for both groups with a bound of 100 and a fitting schedule; by default .31 and .06 (28 pixels)."""
    assert (recovered(32, 40, group, seed=1) + recovered(32, 40, group, seed=2)) / 2 >= 0.9


@pytest.mark.parametrize("steps", [12, 50, 200])
def test_the_adaptive_bound(steps: int) -> None:
    """Its three parts by hand, where each rules."""
    schedule, dim = GeometricSchedule(0.1, 5.0), 9
    at = [score_bound(schedule, 1 / steps, dim, t) for t in (1.0, 0.5, 0.0)]
    spread = math.sqrt((25.0 - 0.01) / (2 * math.log(50.0)))
    assert at[0] == pytest.approx(3 * 2 / spread)
    middle = math.sqrt(0.5)  # of the noise, whose variance up to there is (0.5 - 0.01) / (2 log 50)
    assert at[1] == pytest.approx(
        3 * min(3 * math.sqrt(steps) / middle, max(2.5 / middle**2, 2 / math.sqrt(0.49 / (2 * math.log(50.0)))))
    )
    first = 0.1 * 50.0 ** (1 / steps)
    start = math.sqrt((first**2 - 0.01) / (2 * math.log(50.0)))
    assert at[2] == pytest.approx(3 * min(3 * math.sqrt(steps) / 0.1, max(250.0, 2 / start)))


def test_chains_stay_finite() -> None:
    """On a group that scales, with a steep energy: without a bound many leave."""
    group = Similarity(2)
    action = group.action()
    cloud = torch.randn(12, 2, generator=seeded(0))
    x = action(group.exp(torch.randn(8, 4, generator=seeded(1))), cloud)

    def lost(**options: Any) -> float:
        inverter = ReverseDiffusionSearch(
            action, lambda y: 100 * (y - cloud).square().mean((1, 2)), num_hypotheses=32, **options
        )
        elements = inverter(x, generator=seeded(2)).elements
        away = elements.flatten(2).abs().amax(-1)
        return float((~(away < 1e3)).double().mean())

    assert lost() == 0.0
    assert lost(max_score_norm=None) > 0.05


def test_the_default_noise_is_that_of_the_action() -> None:
    """Of the data where there are references beside them."""
    schedules = []
    for action in (ImageWarp(AFFINE), WithReference(ImageWarp(AFFINE)), AFFINE.action()):
        stage = ReverseDiffusionSearch(action, lambda y: y).stages[-1]
        assert isinstance(stage, ReverseDiffusion)
        schedules.append(repr(stage.schedule))
    assert schedules == [*["GeometricSchedule(0.01, 0.35)"] * 2, "GeometricSchedule(0.1, 1)"]
