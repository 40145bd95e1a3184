"""Time of work: measured by few evaluations, and within the time asked for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import randn, seeded
from trivgeo._timing import EvaluationTime, announce, in_words, time_evaluations
from trivgeo.features import LearnedEnergy
from trivgeo.groups import SE
from trivgeo.inversion import TIED, LearnedInverter

GROUP = SE(2)
ACTION = GROUP.action()
CLEAN = randn(1, 6, 2, seed=1).expand(80, 6, 2)


def moves(count: int, generator: torch.Generator) -> Tensor:
    """Elements about the identity."""
    return GROUP.exp(0.4 * torch.randn(count, 3, generator=generator, dtype=torch.float64))


class Clock:
    """A clock that evaluations move, by a time for each call and another for each datum."""

    def __init__(self, call: float, each: float) -> None:
        self.now, self.call, self.each = 100.0, call, each

    def energy(self, y: Tensor) -> Tensor:
        self.now += self.call + self.each * len(y)
        return (y - CLEAN[0]).square().sum((-1, -2))


@pytest.fixture
def clock_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], Clock]:
    def make(call: float, each: float) -> Clock:
        clock = Clock(call, each)
        monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
        return clock

    return make


@pytest.mark.parametrize(("call", "each"), [(0.0, 1e-3), (1e-2, 0.0), (1e-2, 1e-3), (1.0, 0.1)])
def test_the_measured_time_is_that_of_the_evaluations(
    clock_of: Callable[[float, float], Clock], call: float, each: float
) -> None:
    clock = clock_of(call, each)
    found = time_evaluations(lambda n: clock.energy(CLEAN[:n]), 64, 30.0)
    assert found.call == pytest.approx(call, abs=1e-9)
    assert found.each == pytest.approx(each, abs=1e-9)
    assert found.sizes[-1] == 64
    assert found.of(100, at_once=30) == pytest.approx(4 * call + 100 * each)
    assert EvaluationTime(call, each).number_in(call + 100.5 * each) >= 99 or each == 0.0


@pytest.mark.parametrize("seconds", [0.1, 1.0, 7.0])
def test_a_measurement_takes_no_longer_than_asked_for(
    clock_of: Callable[[float, float], Clock], seconds: float
) -> None:
    clock = clock_of(0.0, 0.2)
    time_evaluations(lambda n: clock.energy(CLEAN[:n]), 64, seconds)
    assert clock.now - 100.0 <= max(seconds, 0.2) + 1e-9


SLOW = [(0.0, 0.05), (0.5, 0.0), (0.02, 0.002)]
"""Times of a call and of a datum."""


@pytest.mark.parametrize(("call", "each"), SLOW)
@pytest.mark.parametrize("seconds", [5.0, 60.0])
@pytest.mark.parametrize("batch", [1, 40])
def test_searches_end_in_time(
    clock_of: Callable[[float, float], Clock], call: float, each: float, seconds: float, batch: int
) -> None:
    """Also where there is time for one energy of each datum alone, with and without a distribution."""
    for law in (None, moves):
        clock = clock_of(call, each)
        search = TIED(ACTION, clock.energy, law, seconds=seconds).replace(progress=False)
        result = search(CLEAN[:batch], generator=seeded(0))
        assert clock.now - 100.0 <= 1.2 * seconds
        assert bool(torch.isfinite(result.best_energy()).all())
        evaluations = result.energy_evaluations + result.gradient_evaluations
        assert evaluations > 900 or clock.now - 100.0 > 0.35 * seconds


@pytest.mark.parametrize(("call", "each"), SLOW)
@pytest.mark.parametrize("seconds", [2.0, 20.0, 500.0])
def test_the_measurement_of_clean_data_ends_in_time(
    clock_of: Callable[[float, float], Clock], call: float, each: float, seconds: float
) -> None:
    clock = clock_of(call, each)
    search = TIED(ACTION, clock.energy, moves, CLEAN, seconds=seconds)
    assert clock.now - 100.0 <= 1.2 * seconds
    clock.now = 100.0
    result = search.replace(progress=False)(CLEAN[:4], generator=seeded(0))
    assert clock.now - 100.0 <= 1.2 * seconds
    if seconds == 500.0:
        assert "too short" not in str(result.reasons)
    elif each == 0.05 and seconds == 2.0:
        assert "2 s were too short to try the search" in str(result.reasons)
        assert not bool(result.trusted.any())


class SlowNetwork(nn.Module):
    """Features of points, or their noise, whose evaluation moves the clock."""

    def __init__(self, clock: Clock, outputs: int) -> None:
        super().__init__()
        self.clock, self.most = clock, 0
        self.layer = nn.Linear(12, outputs, dtype=torch.float64)

    def forward(self, y: Tensor, level: Tensor | None = None) -> Tensor:
        self.clock.now += self.clock.call + self.clock.each * len(y)
        self.most = max(self.most, len(y))
        return self.layer(y.flatten(1))

    def __deepcopy__(self, memo: object) -> SlowNetwork:
        copied = SlowNetwork(self.clock, self.layer.out_features)
        copied.load_state_dict(self.state_dict())
        return copied


@pytest.mark.parametrize(("call", "each"), SLOW)
@pytest.mark.parametrize("seconds", [6.0, 60.0])
def test_energies_are_learned_in_time(
    clock_of: Callable[[float, float], Clock], call: float, each: float, seconds: float
) -> None:
    clock = clock_of(call, each)
    network = SlowNetwork(clock, 5)
    energy = LearnedEnergy.fit(network, CLEAN, moves, action=ACTION, num_samples=400, steps=3, seconds=seconds)
    assert energy.validation is not None
    assert clock.now - 100.0 <= 1.2 * seconds
    expected = 480 * 8 * each + 120 * call  # all moved data, four at once
    assert clock.now - 100.0 >= 0.6 * min(seconds, expected)


def test_too_short_for_two_moved_data(clock_of: Callable[[float, float], Clock]) -> None:
    clock = clock_of(0.0, 1.0)
    with pytest.warns(UserWarning, match="expected time for two moved data, which take about 16, got 2"):
        LearnedEnergy.fit(SlowNetwork(clock, 5), CLEAN, moves, action=ACTION, steps=3, seconds=2.0)
    assert clock.now - 100.0 <= 21.0


def test_features_are_bounded_by_memory(clock_of: Callable[[float, float], Clock]) -> None:
    """Features are the same whatever the bound."""
    clock = clock_of(0.0, 0.0)
    found = []
    for memory in (None, 1e-6):
        network = SlowNetwork(clock, 5)
        nn.init.normal_(network.layer.weight, generator=seeded(0))
        nn.init.zeros_(network.layer.bias)
        energy = LearnedEnergy.fit(network, CLEAN, moves, action=ACTION, num_samples=8, steps=2, max_memory=memory)
        found.append(energy(CLEAN[:2]))
        assert (network.most > 8) == (memory is None)
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize(("call", "each"), [(0.0, 0.01), (0.05, 0.0)])
@pytest.mark.parametrize("seconds", [8.0, 100.0])
@pytest.mark.filterwarnings("ignore:seconds")
def test_inverters_are_fitted_in_time(
    clock_of: Callable[[float, float], Clock], call: float, each: float, seconds: float
) -> None:
    clock = clock_of(call, each)
    inverter = LearnedInverter(ACTION, backbone=SlowNetwork(clock, 3), steps=2)
    inverter.fit(CLEAN, moves, steps=20, seconds=seconds, progress=False)
    # training steps are counted by another clock
    assert clock.now - 100.0 <= 1.2 * seconds + 20 * (call + 128 * each)


def test_long_work_says_how_long(clock_of: Callable[[float, float], Clock], caplog: pytest.LogCaptureFixture) -> None:
    """Within a factor of two, as the first line; short work says nothing."""
    assert in_words(7.123) == "7.1 s"
    assert in_words(600.0) == "10 min"
    assert in_words(8000.0) == "2.2 h"
    with caplog.at_level(logging.INFO, "trivgeo"):
        announce("short", 1.0)
        assert not caplog.records
        clock = clock_of(0.0, 0.2)
        TIED(ACTION, clock.energy).replace(progress=False)(CLEAN[:1], generator=seeded(0))
    said = caplog.records[0].getMessage()
    minutes = (clock.now - 100.0) / 60.0
    assert 0.5 * minutes < float(said.split("about ")[1].removesuffix(" min")) < 2.0 * minutes, said
