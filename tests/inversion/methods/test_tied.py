"""TIED: what it finds with how many evaluations and how much time, what it says of itself, and its refusals."""

from __future__ import annotations

import itertools
import math
import time

import pytest
import torch
from torch import Tensor

from tests.helpers import randn, seeded
from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE, SO, Affine, Translation
from trivgeo.inversion import TIED, Inverter, Stage
from trivgeo.inversion.energies import PriorEnergy
from trivgeo.inversion.rows import farthest_first, highest_apart
from trivgeo.inversion.stages import (
    AdaptiveSearch,
    Descend,
    DistributionSearch,
    EvolutionStrategy,
    GaussianSearch,
    Newton,
    QuasiNewton,
    Select,
)
from trivgeo.inversion.stages.adaptive_search import SearchPlan

CLOUD = randn(9, 3, seed=1)


def distance(y: Tensor) -> Tensor:
    return (y - CLOUD).square().sum((-1, -2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finds_any_motion_by_its_defaults(dtype: torch.dtype) -> None:
    """All of SE(3) is one well of this energy and its saddles: the motion is known, and found to rounding."""
    group = SE(3)
    g = group.random(30, generator=seeded(1), dtype=torch.float64)
    x = group.action()(g, CLOUD).to(dtype)
    result = TIED(group.action(), lambda y: (y - CLOUD.to(y)).square().sum((-1, -2)))(x, generator=seeded(0))
    assert float((result.best() - g).abs().max()) < 10 * torch.finfo(dtype).eps ** 0.5
    assert result.trusted.all()


@pytest.mark.parametrize("evaluations", [16, 23, 50, 300])
@pytest.mark.parametrize("num_hypotheses", [None, 1, 7, 1000])
def test_evaluates_no_more_than_asked_for(evaluations: int, num_hypotheses: int | None) -> None:
    seen = []

    def energy(y: Tensor) -> Tensor:
        seen.append(len(y))
        return distance(y)

    search = TIED(SE(3).action(), energy, evaluations=evaluations, num_hypotheses=num_hypotheses)
    result = search(randn(2, 9, 3, seed=2), generator=seeded(0))
    assert sum(seen) / 2 == result.energy_evaluations + result.gradient_evaluations
    assert sum(seen) / 2 <= evaluations
    # where all descents have arrived early, others begin at further draws
    assert result.energy_evaluations >= round(0.3 * (evaluations - 1))
    assert ("further ones began" in result.report) == (result.energy_evaluations > round(0.3 * (evaluations - 1)))


def test_plans_use_what_they_may() -> None:
    """Their evaluations add up to the number asked for, up to the last step of the descents that go on."""
    for evaluations, chains in itertools.product([*range(16, 200, 7), 1000, 3000, 100_000], [None, 1, 5, 64]):
        plan = SearchPlan.of(evaluations, round(0.3 * evaluations), chains)
        used = sum(plan.sequence())
        last = plan.sequence()[-1]
        assert evaluations - last < used <= evaluations
        assert plan.steps > max([0, *(step for step, _ in plan.pruning)])


def test_draws_where_the_distribution_is() -> None:
    """A narrow well in a flat energy, five units away, is met by draws of a distribution that is there alone."""
    action, place = Translation(2).action(), torch.tensor([5.0, 0.0]).double()
    energy = lambda y: -(-(y.square().sum((-1, -2))) / 0.01).exp()  # noqa: E731
    law = lambda n, g: place + 0.3 * torch.randn(n, 2, generator=g, dtype=torch.float64)  # noqa: E731
    x = action(law(20, seeded(3)), torch.zeros(20, 1, 2).double())
    blind, told = (TIED(action, energy, known)(x, generator=seeded(0)) for known in (None, law))
    assert float((blind.best_energy() < -0.9).double().mean()) < 0.2
    assert float((told.best_energy() < -0.9).double().mean()) > 0.9
    assert "the given distribution" in told.report
    assert "0.1, 0.3, 1" in blind.report


def test_prior() -> None:
    """The lowest of a quadratic and a normal prior, weighted by T, in closed form: x / (1 + T / (2 s^2))."""
    action, spread, temperature = Translation(2).action(), 0.5, 0.3
    law = lambda n, g: spread * torch.randn(n, 2, generator=g, dtype=torch.float64)  # noqa: E731
    x = 0.4 * randn(5, 1, 2, seed=4)
    search = TIED(action, lambda y: y.square().sum((-1, -2)), law, temperature=temperature)
    assert isinstance(search.energy, PriorEnergy)
    shrunk = x[:, 0] / (1 + temperature / (2 * spread**2))
    assert float((search(x, generator=seeded(0)).best() - shrunk).abs().max()) < 0.02  # the spread is measured


@pytest.mark.parametrize("evaluations", [100, 300])
@pytest.mark.parametrize("kind", ["detached", "counts", "integers"])
def test_energies_without_a_gradient(kind: str, evaluations: int) -> None:
    """An evolution strategy goes on where gradients are missing or vanish, with the evaluations asked for."""
    action, seen = Translation(2).action(), [0]

    def energy(y: Tensor) -> Tensor:
        seen[0] += len(y)
        square = y.square().sum((-1, -2))
        return {
            "detached": square.detach(),
            "counts": (8 * square).floor() + 0 * square,
            "integers": (8 * square).int(),
        }[kind]

    x = 0.7 * randn(12, 1, 2, seed=4)
    result = TIED(action, energy, evaluations=evaluations)(x, generator=seeded(0))
    near = (result.best() - x[:, 0]).norm(dim=-1) < (0.1 if kind == "detached" else 0.4)
    assert float(near.double().mean()) > 0.9
    assert "an evolution strategy went on" in result.report or (kind == "counts" and evaluations == 100)
    assert "has no gradient" in result.report or kind == "counts"
    assert 0.7 * evaluations < seen[0] / 12 <= evaluations


def test_descents_begin_again_where_all_have_arrived() -> None:
    """One deep narrow well among shallow ones: of two descents at a time, most evaluations would be left."""
    centres = torch.tensor([[0.0, 0.0], [1.5, 0.0], [-1.5, 0.0], [0.0, 1.5], [0.0, -1.5]]).double()
    depths = torch.tensor([3.0, 1.0, 1.0, 1.0, 1.0]).double()

    def energy(y: Tensor) -> Tensor:
        away = (y - centres).square().sum(-1)
        return -(depths * (-away / 0.08).exp()).sum(-1)

    search = TIED(Translation(2).action(), energy, evaluations=600, num_hypotheses=2)
    result = search(randn(20, 1, 2, seed=4).expand(20, 1, 2), generator=seeded(0))
    assert 500 < result.energy_evaluations + result.gradient_evaluations <= 600
    assert "further ones began" in result.report
    assert float((result.best_energy() < -2.9).double().mean()) == 1.0


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_the_unit_of_an_energy(unit: float) -> None:
    """Images under an energy that is low for an empty one: found in any unit, and none is emptied."""
    side = torch.linspace(-1, 1, 16).double()
    y, x = torch.meshgrid(side, side, indexing="ij")
    image = (-((x - 0.2) ** 2) / 0.05 - (y + 0.1) ** 2 / 0.2).exp()[None, None]
    other = (-((x + 0.2) ** 2) / 0.1 - (y - 0.1) ** 2 / 0.1).exp()[None, None]

    def energy(z: Tensor) -> Tensor:
        flat, basis = z.flatten(1), torch.linalg.qr(torch.cat([image, other]).flatten(1).T).Q
        return unit * (0.2 * flat.square().sum(1).sqrt() + (flat - flat @ basis @ basis.T).square().sum(1))

    action = ImageWarp(SE(2))
    g = SE(2).random(8, std=0.5, generator=seeded(2), dtype=torch.float64)
    result = TIED(action, energy, evaluations=400)(action(g, image), generator=seeded(0))
    restored = result.restore(action(g, image))
    assert float(restored.square().sum((1, 2, 3)).min() / image.square().sum()) > 0.5


def test_images() -> None:
    side = torch.linspace(-1, 1, 16).double()
    y, x = torch.meshgrid(side, side, indexing="ij")
    image = (-((x - 0.2) ** 2) / 0.05 - (y + 0.1) ** 2 / 0.2).exp()[None, None]
    action = ImageWarp(SE(2))
    g = SE(2).exp(torch.tensor([[0.7, 0.2, -0.1], [-0.5, 0.0, 0.2]]).double())
    result = TIED(action, lambda z: (z - image).square().sum((1, 2, 3)), evaluations=300)(
        action(g, image), generator=seeded(0)
    )
    assert float((result.best() - g).abs().max()) < 0.1


class Clock:
    """A clock that an energy moves by ``each`` for every datum that it sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, each: float) -> None:
        self.now, self.each = 100.0, each
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def energy(self, y: Tensor) -> Tensor:
        self.now += self.each * len(y)
        return distance(y)


@pytest.mark.parametrize("seconds", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_call_takes_the_time_asked_for(monkeypatch: pytest.MonkeyPatch, seconds: float, batch: int) -> None:
    """Of evaluations that take a millisecond each, as many as fit."""
    clock = Clock(monkeypatch, 1e-3)
    search = TIED(SE(3).action(), clock.energy, evaluations=5000, seconds=seconds).replace(progress=False)
    result = search(randn(batch, 9, 3, seed=2), generator=seeded(0))
    assert 0.6 * seconds < clock.now - 100.0 < 1.05 * seconds or result.gradient_evaluations > 1000
    assert "5,000 evaluations would take about" in result.report


def test_a_machine_that_becomes_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there when the time is up is returned, while draws are made or descents under way."""
    for slow_after in (20, 100):
        clock, seen = Clock(monkeypatch, 1e-3), [0]

        def energy(y: Tensor, clock: Clock = clock, seen: list[int] = seen, after: int = slow_after) -> Tensor:
            seen[0] += len(y)
            clock.each = 1e-3 if seen[0] < after else 2e-2
            return clock.energy(y)

        search = TIED(SE(3).action(), energy, seconds=1.0).replace(progress=False)
        result = search(randn(1, 9, 3, seed=2), generator=seeded(0))
        assert clock.now - 100.0 < 3.0  # a block of draws is not taken apart
        assert bool(torch.isfinite(result.best_energy()).all())


@pytest.mark.parametrize("stage", [Descend(100), Newton(100), QuasiNewton(100), EvolutionStrategy(100)])
def test_every_descent_ends_with_the_time(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    clock = Clock(monkeypatch, 1e-2)
    search = Inverter(SE(3).action(), clock.energy, [stage], seconds=0.1, progress=False)
    result = search(randn(1, 9, 3, seed=2), generator=seeded(0))
    assert 0.1 <= clock.now - 100.0 < 0.5
    assert bool(torch.isfinite(result.best_energy()).all())


def test_lists_of_images_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def energy(y: Tensor) -> Tensor:
        now[0] += 1e-3 * len(y)
        return y.square().mean((1, 2, 3))

    images = [torch.rand(1, 8, 8), torch.rand(1, 12, 12), torch.rand(1, 8, 8), torch.rand(1, 6, 9)]
    search = TIED(ImageWarp(SO(2)), energy, evaluations=5000, seconds=2.0).replace(progress=False)
    result = search(images, generator=seeded(0))
    assert result.elements.shape[0] == 4
    assert 1.0 < now[0] - 100.0 < 2.2


def test_farthest_first() -> None:
    """Against the definition, by loops; places that do not count are not chosen."""
    places = randn(2, 12, 3, seed=5)
    counted = torch.ones(2, 12, dtype=torch.bool)
    counted[0, 3] = counted[1, 7] = False
    found = farthest_first(places, counted, 5)
    for row in range(2):
        chosen = [0]
        while len(chosen) < 5:
            gaps = [
                min(math.dist(places[row, i], places[row, j]) for j in chosen) if counted[row, i] else -1.0
                for i in range(12)
            ]
            chosen.append(max(range(12), key=gaps.__getitem__))
        assert found[row].tolist() == sorted(chosen)


def test_highest_apart() -> None:
    """Against the definition, by loops; a row that has too few says so."""
    places, heights = randn(2, 12, 2, seed=5), randn(2, 12, seed=6)
    heights[1, 2:] = -torch.inf
    rows = torch.arange(2)
    near = lambda index: (places - places[rows, index].unsqueeze(1)).norm(dim=-1) < 0.7  # noqa: E731
    found, used = highest_apart(heights, 4, near)
    for row in range(2):
        free = [i for i in range(12) if heights[row, i] > -torch.inf]
        for k in range(4):
            assert bool(used[row, k]) == bool(free)
            if free:
                best = max(free, key=lambda i: float(heights[row, i]))
                assert int(found[row, k]) == best
                free = [i for i in free if math.dist(places[row, i], places[row, best]) >= 0.7]


def test_draws_of_a_distribution_do_not_depend_on_the_batch() -> None:
    group = SO(2)
    law = lambda n, g: group.exp(torch.randn(n, 1, generator=g).double())  # noqa: E731
    x = randn(3, 4, 2, seed=6)
    energy = lambda y: (y - x[0]).square().sum((1, 2))  # noqa: E731
    search = Inverter(group.action(), energy, [DistributionSearch(law, 100, 4, 8)])
    together, alone = search(x, generator=seeded(0)), search(x[:1], generator=seeded(0))
    torch.testing.assert_close(together.elements[:1], alone.elements)


def test_several_scales_take_turns() -> None:
    """Of draws at 0.01 and 10 half are near, half are far."""
    search = Inverter(Translation(2).action(), lambda y: y.sum((1, 2)), [GaussianSearch(200, 200, [0.01, 10.0])])
    lengths = search(torch.zeros(1, 1, 2), generator=seeded(0)).elements[0].norm(dim=-1)
    assert int((lengths < 0.1).sum()) == pytest.approx(100, abs=1)
    with pytest.raises(ConfigurationError, match="candidates"):
        GaussianSearch(10, 4, 1.0, 3)
    with pytest.raises(ConfigurationError, match="std"):
        GaussianSearch(10, 4, [])


def test_further_stages_and_settings() -> None:
    search = TIED(Affine(2).action(), lambda y: (y - CLOUD[:, :2]).square().sum((1, 2)), evaluations=100)
    result = search.then(Select(1)).replace(progress=False)(CLOUD[None, :, :2], generator=seeded(0))
    assert result.elements.shape == (1, 1, 3, 3) or result.elements.shape[:2] == (1, 1)
    assert "30 elements were drawn" in result.report


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"evaluations": 3}, "at least 16"),
        ({"clean": CLOUD[None]}, "beside clean"),
        ({"temperature": 1.0}, "beside temperature"),
        ({"scales": [0.1], "transformations": lambda n, g: SE(3).random(n, generator=g)}, "none beside"),
        ({"scales": []}, "scales"),
        ({"seconds": 0.0}, "seconds"),
        ({"num_hypotheses": 0}, "num_hypotheses"),
    ],
)
def test_refusals(settings: dict, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        TIED(SE(3).action(), distance, **settings)
    with pytest.raises(ConfigurationError, match="share_drawn"):
        AdaptiveSearch(share_drawn=1.0)
