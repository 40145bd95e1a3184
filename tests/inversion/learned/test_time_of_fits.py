"""Training and calibration share the time of a fit; where it is short, the calibration is smaller or left out."""

import math
import time
import warnings

import pytest
import torch

from trivgeo.groups import SE
from trivgeo.inversion import LearnedInverter
from trivgeo.inversion.learned import calibration
from trivgeo.inversion.learned.learned_inverter import _Clock


@pytest.mark.parametrize(
    ("calibration_seconds", "training_seconds", "suffices"),
    [(1.0, 6.0, True), (5.0, 5.0, True), (6.9, 3.1, True), (30.0, 10.0, False)],
)
def test_shares(calibration_seconds: float, training_seconds: float, suffices: bool) -> None:
    clock = _Clock(time.perf_counter(), 10.0, calibration_seconds)
    assert clock.training_seconds() == pytest.approx(training_seconds, abs=0.2)
    assert clock.suffices() is suffices


@pytest.mark.parametrize(("left", "sizes"), [(math.inf, [64, 400]), (0.5, [64, 200]), (0.0, [64]), (None, [400])])
def test_a_calibration_fits_in_the_time(left: float | None, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest takes a tenth of a second here, and others as much for as many data."""
    done, now = [], [0.0]

    def calibrate(score: object, source: object, number: int, *others: object) -> int:
        done.append(number)
        now[0] += 0.1 * number / 64
        return number

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    monkeypatch.setattr(calibration.time, "perf_counter", lambda: now[0])
    deadline = None if left is None else 0.1 + left if math.isfinite(left) else 1e6
    found = calibration.calibrate_until(deadline, None, None, 400, 0)  # type: ignore[arg-type]
    assert done[0] == sizes[0]
    assert len(done) == len(sizes)
    assert found == done[-1] == pytest.approx(sizes[-1], rel=0.3)


def test_a_fit_without_time_for_a_calibration_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SE(2)
    clean = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)).expand(400, 5, 2).contiguous()
    monkeypatch.setattr(LearnedInverter, "_clock", lambda *given: _Clock(given[3], given[4], 1e6))
    inverter = LearnedInverter(group.action(), seed=0)
    with pytest.warns(UserWarning, match="60 leave no time for a calibration"):
        inverter.fit(
            clean,
            lambda count, generator: group.exp(0.3 * torch.randn(count, 3, generator=generator)),
            steps=2,
            batch_size=8,
            seconds=60.0,
        )
    assert inverter.calibration is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert inverter(clean[:2]).elements.shape == (2, 1, 2, 3)
