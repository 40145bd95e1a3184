"""What hypotheses say against the best of them, on energies whose wells are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.helpers import seeded
from trivgeo.actions import ImageWarp
from trivgeo.groups import SE, SO, Translation
from trivgeo.inversion import TIED, GradientDescent, InversionResult, Inverter, ReverseDiffusionSearch
from trivgeo.inversion.agreement import DEEPEST, FEW, FLAT, RANDOM, UNRANKED, UNUSABLE
from trivgeo.inversion.agreement import TIED as EQUAL
from trivgeo.inversion.energies import FramedEnergy
from trivgeo.inversion.stages import Descend, Replicate

POINTS = torch.tensor([[1.0, 0.0], [0.0, 0.6], [-0.8, 0.1], [0.2, -0.3], [-0.2, -0.5], [0.7, 0.4]]).double()
SQUARE = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]]).double()
ACTION = SO(2).action()


def nearest(points: Tensor) -> Callable[[Tensor], Tensor]:
    """Squares of distances to the nearest of points."""
    return lambda y: 200 * torch.cdist(y, points.expand(len(y), -1, -1)).square().amin(-1).sum(-1)


def rough(y: Tensor) -> Tensor:
    """As good as random: a wave far shorter than the distances of hypotheses."""
    return torch.sin(1e4 * y[:, 0, 0] + 2e4 * y[:, 1, 1])


def turned(points: Tensor, count: int = 40) -> tuple[Tensor, Tensor]:
    """Points at angles all around."""
    g = ACTION.group.exp(torch.linspace(-3.0, 3.0, count).double().unsqueeze(-1))
    return g, ACTION(g, points.expand(count, -1, -1))


SEARCHES: dict[str, Callable[[Callable[[Tensor], Tensor]], Inverter]] = {
    "TIED": lambda energy: TIED(ACTION, energy),
    "ReverseDiffusionSearch": lambda energy: ReverseDiffusionSearch(ACTION, energy, num_hypotheses=24),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
class TestOfSearches:
    def test_one_well(self, search: Callable[[Callable[[Tensor], Tensor]], Inverter]) -> None:
        """Trusted, and right."""
        g, x = turned(POINTS)
        result = search(lambda y: 200 * (y - POINTS).square().sum((1, 2)))(x, generator=seeded(0))
        assert result.trusted.all()
        assert DEEPEST in result.verdicts[0].assumptions
        off = ACTION.group.log(ACTION.group.compose(ACTION.group.inverse(result.best()), g))
        assert float(off.abs().max()) < 0.3
        assert "40 trusted" in repr(result)
        assert ">yes<" in result._repr_html_()

    @pytest.mark.parametrize(
        ("energy", "points", "reasons"),
        [
            (lambda y: 0.0 * y.sum((1, 2)), POINTS, {FLAT}),
            (lambda y: 1e6 + 0.0 * y.sum((1, 2)), POINTS.float(), {FLAT}),
            (rough, POINTS, {RANDOM, EQUAL, FLAT}),
            (nearest(SQUARE), SQUARE, {EQUAL}),
            (lambda y: torch.inf + y.sum((1, 2)), POINTS, {UNUSABLE}),
        ],
        ids=["flat", "flat and high", "random", "square", "undefined"],
    )
    def test_no_single_well(
        self,
        search: Callable[[Callable[[Tensor], Tensor]], Inverter],
        energy: Callable[[Tensor], Tensor],
        points: Tensor,
        reasons: set[str],
    ) -> None:
        _, x = turned(points.double())
        result = search(energy)(x.to(points.dtype), generator=seeded(0))
        assert float(result.trusted.double().mean()) < 0.1
        assert {text for text in result.reasons if text} <= reasons


class TestOfAddedEnergies:
    """Pictures that fill the frame: the cost of lost content, or a prior, holds hypotheses together."""

    action = ImageWarp(SE(2))
    pictures = functional.interpolate(torch.rand(20, 1, 6, 6, generator=seeded(1)), size=16, mode="bicubic")

    @pytest.mark.parametrize("added", [lambda e: e, lambda e: FramedEnergy(e, 0.1)], ids=["guard", "guard and frame"])
    @pytest.mark.parametrize(
        ("energy", "most"),
        [
            (lambda y: 0 * y.sum((1, 2, 3)) + 3.0, 0),
            (lambda y: torch.sin(1e4 * y[:, 0, 3, 4] + 2e4 * y[:, 0, 9, 7]), 3),
        ],
        ids=["flat", "random"],
    )
    def test_what_the_energy_does_not_tell(
        self, energy: Callable[[Tensor], Tensor], most: int, added: Callable[[Any], Any]
    ) -> None:
        result = TIED(self.action, added(energy), evaluations=200)(self.pictures, generator=seeded(0))
        assert result.added_energies is not None
        assert float((result.energies - result.added_energies)[result.usable].abs().max()) <= 3.0 + 1e-4
        assert int(result.trusted.sum()) <= most

    def test_what_it_does(self) -> None:
        """The same pictures, and an energy that is lowest on them."""
        g = SE(2).exp(0.2 * torch.randn(20, 3, generator=seeded(2)))
        for i in range(2):
            energy = lambda y, i=i: 50 * (y - self.pictures[i]).square().mean((1, 2, 3))  # noqa: E731
            moved = self.action(g, self.pictures[i].expand(20, -1, -1, -1))
            result = TIED(self.action, energy, evaluations=200)(moved, generator=seeded(0))
            assert int(result.trusted.sum()) >= 18


class TestOfHypotheses:
    def test_hypotheses_that_tell_nothing(self) -> None:
        """One hypothesis, few, or no energy: assumptions."""
        _, x = turned(POINTS, 2)
        energy = nearest(POINTS)
        for number in (1, 3):
            verdict = Inverter(ACTION, energy, [Replicate(number), Descend(3)])(x).verdicts[0]
            assert verdict.trusted
            assert FEW in verdict.assumptions
        assert Inverter(ACTION, None, [])(x).verdicts[0].assumptions == (UNRANKED,)
        assert FEW not in GradientDescent(ACTION, energy, steps=2)(x, generator=seeded(0)).verdicts[0].assumptions


class TestOfEnergies:
    """Of hypotheses on a line, whose energies are given."""

    def reasons(self, places: list[float], energies: list[float]) -> str:
        elements = torch.tensor(places).double().reshape(1, -1, 1)
        energy = torch.tensor(energies).double().unsqueeze(0)
        steps = torch.zeros(energy.shape, dtype=torch.long)
        return InversionResult(Translation(1).action(), elements, energy, steps, len(places), 0).reasons[0]

    @pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
    @pytest.mark.parametrize("offset", [-20.0, 0.0, 20.0])
    def test_units_do_not_matter(self, scale: float, offset: float) -> None:
        away = [3.0, 5.0, 7.0, 9.0, 11.0]

        def reasons(places: list[float], energies: list[float]) -> str:
            return self.reasons(places, [scale * (e + offset) for e in energies])

        assert reasons([0.0, 0.01, 0.02, *away], [0.0, 0.1, 0.1, 5.0, 6.0, 7.0, 8.0, 9.0]) == ""
        assert reasons([0.0, 0.01, 0.02, *away], [0.0, 0.1, 0.1, 0.05, 6.0, 7.0, 8.0, 9.0]) == EQUAL
        assert reasons([0.0, *away], [0.0, 8.0, 9.0, 9.5, 10.0, 10.5]) == ""
        assert reasons([0.0, *away], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]) == RANDOM
        assert reasons([0.0, 0.1, 0.2, *away], [0.0, 6.0, 9.0, 5.0, 6.0, 7.0, 8.0, 9.0]) in (RANDOM, EQUAL)

    def test_agreement(self) -> None:
        """Chains in one place are right to have equal energies; along a valley they are not."""
        assert self.reasons([1.0] * 8, [2.0] * 8) == ""
        assert self.reasons([0.1 * i for i in range(8)], [2.0] * 8) == FLAT
        # what is undefined, and a few stragglers, count for nothing
        assert self.reasons([*[1.0 + 0.01 * i for i in range(6)], 5.0, 9.0], [2.0] * 6 + [math.inf, 30.0]) == ""
