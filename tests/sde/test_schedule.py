"""Noise schedules against quadrature."""

import math

import pytest
from scipy.integrate import quad

from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.sde import GeometricSchedule

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


@pytest.mark.parametrize("t", [-1e-9, 1.0 + 1e-9, math.nan, math.inf])
def test_times_outside(t: float) -> None:
    schedule = GeometricSchedule(0.1, 1.0)
    for call in (lambda: schedule(t), lambda: schedule.variance(0.0, t), lambda: schedule.variance(t, 1.0)):
        with pytest.raises(DomainError, match=r"\[0, 1\]"):
            call()
