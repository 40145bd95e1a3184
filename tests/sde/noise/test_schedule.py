"""Noise schedules against quadrature."""

import math

import mpmath
import pytest
import torch
from scipy.integrate import quad

from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.sde import ConstantSchedule, CosineSchedule, GeometricSchedule, LinearSchedule, Schedule

SCHEDULES = [(0.1, 1.0), (1.0, 0.1), (0.5, 0.5), (0.5, 0.5 + 1e-9), (0.01, 50.0)]


@pytest.mark.parametrize(("minimum", "maximum"), SCHEDULES)
class TestGeometricSchedule:
    def test_values(self, minimum: float, maximum: float) -> None:
        schedule = GeometricSchedule(minimum, maximum)
        assert schedule(0.0) == pytest.approx(minimum, rel=1e-12)
        assert schedule(1.0) == pytest.approx(maximum, rel=1e-12)
        assert schedule(0.5) == pytest.approx(math.sqrt(minimum * maximum), rel=1e-12)
        assert schedule(0.3) == pytest.approx(minimum * (maximum / minimum) ** 0.3, rel=1e-12)

    @pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (0.2, 0.3), (0.7, 0.1), (0.4, 0.4)])
    def test_variance(self, minimum: float, maximum: float, start: float, end: float) -> None:
        schedule = GeometricSchedule(minimum, maximum)
        expected, _ = quad(lambda t: schedule(t) ** 2, start, end, epsabs=1e-13, epsrel=1e-12)
        assert schedule.variance(start, end) == pytest.approx(expected, rel=1e-10, abs=1e-14)

    def test_variance_adds_up(self, minimum: float, maximum: float) -> None:
        schedule = GeometricSchedule(minimum, maximum)
        parts = schedule.variance(0.0, 0.4) + schedule.variance(0.4, 1.0)
        assert parts == pytest.approx(schedule.variance(0.0, 1.0), rel=1e-12)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-0.1, 1.0), (0.1, math.inf), (math.nan, 1.0), (0.1, 0.0)])
def test_bad_bounds(bounds: tuple[float, float]) -> None:
    with pytest.raises(ConfigurationError, match="positive finite"):
        GeometricSchedule(*bounds)


@pytest.mark.parametrize(
    "schedule",
    [GeometricSchedule(0.1, 1.0), LinearSchedule(0.1, 1.0), CosineSchedule(0.1, 1.0), ConstantSchedule(0.7)],
    ids=repr,
)
@pytest.mark.parametrize("beyond", [-1e-9, 1e-9, math.nan, math.inf])
def test_times_outside(schedule: Schedule, beyond: float) -> None:
    t = beyond if beyond < 0.0 else schedule.horizon + beyond
    for call in (lambda: schedule(t), lambda: schedule.variance(0.0, t), lambda: schedule.variance(t, 1.0)):
        with pytest.raises(DomainError, match=rf"\[0, {schedule.horizon:g}\]"):
            call()
    rows = torch.tensor([0.5, t], dtype=torch.float64)
    for found in (schedule(rows), schedule.variance(0.0, rows)):
        assert found.isnan().tolist() == [False, True]


@pytest.mark.parametrize("kind", [GeometricSchedule, LinearSchedule, CosineSchedule])
@pytest.mark.parametrize(("minimum", "maximum"), [(0.1, 2.0), (2.0, 0.1), (0.5, 0.5)])
class TestEverySchedule:
    def test_bounds_and_variance(self, kind: type[Schedule], minimum: float, maximum: float) -> None:
        schedule = kind(minimum, maximum)
        assert schedule(0.0) == pytest.approx(minimum, rel=1e-12)
        assert schedule(1.0) == pytest.approx(maximum, rel=1e-12)
        for start, end in ((0.0, 1.0), (0.2, 0.3), (0.7, 0.1)):
            expected, _ = quad(lambda t: schedule(t) ** 2, start, end, epsabs=1e-13, epsrel=1e-12)
            assert schedule.variance(start, end) == pytest.approx(expected, rel=1e-10)

    def test_a_time_for_every_row(self, kind: type[Schedule], minimum: float, maximum: float) -> None:
        schedule = kind(minimum, maximum)
        times = [0.0, 0.25, 1.0]
        rows = torch.tensor([*times, -0.1, 1.1], dtype=torch.float64)
        for found, expected in (
            (schedule(rows), [schedule(t) for t in times]),
            (schedule.variance(0.0, rows), [schedule.variance(0.0, t) for t in times]),
        ):
            assert found[:3].tolist() == pytest.approx(expected, rel=1e-12)
            assert found[3:].isnan().all()


@pytest.mark.parametrize("bounds", [(1e-9, 1.0), (1.0, 1e-9), (1e-3, 50.0)])
@pytest.mark.parametrize(("start", "end"), [(0.0, 1e-6), (0.0, 0.01), (0.5, 0.5 + 1e-7), (1 - 1e-5, 1.0), (0.0, 1.0)])
def test_small_coefficients(bounds: tuple[float, float], start: float, end: float) -> None:
    """Relative accuracy against fifty digits, where the sum of primitives has lost all of float64's."""
    with mpmath.workdps(50):
        a, b = map(mpmath.mpf, bounds)
        square = lambda t: (a + (b - a) * mpmath.sin(mpmath.pi * t / 2) ** 2) ** 2  # noqa: E731
        expected = mpmath.quad(square, [mpmath.mpf(start), mpmath.mpf(end)])
        schedule = CosineSchedule(*bounds)
        assert schedule(end) == pytest.approx(float(mpmath.sqrt(square(mpmath.mpf(end)))), rel=1e-11)
    assert schedule.variance(start, end) == pytest.approx(float(expected), rel=1e-11)
    if start == 0.0:
        single = float(schedule.variance(start, torch.tensor(end)))
        assert single == pytest.approx(float(expected), rel=1e-5)


def test_constant_rows() -> None:
    rows = torch.tensor([0.0, 3.0])
    assert ConstantSchedule(2.0)(rows).tolist() == [2.0, 2.0]
    assert ConstantSchedule(2.0)(rows).dtype == rows.dtype
    assert ConstantSchedule(2.0).variance(1.0, rows).tolist() == [-4.0, 8.0]
