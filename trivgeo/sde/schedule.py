"""Noise schedules: the diffusion coefficient as a function of time in [0, 1]."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from trivgeo.errors import ConfigurationError, DomainError

__all__ = ["GeometricSchedule", "Schedule"]


class Schedule(ABC):
    r"""A diffusion coefficient :math:`\gamma(t)`, t in [0, 1], with its integral in closed form."""

    @abstractmethod
    def __call__(self, t: float) -> float:
        r"""The diffusion coefficient :math:`\gamma(t)`."""

    @abstractmethod
    def variance(self, start: float, end: float) -> float:
        r""":math:`\int_{start}^{end} \gamma(s)^2 ds`, negative when ``end < start``."""


class GeometricSchedule(Schedule):
    r"""The geometric schedule :math:`\gamma(t) = \gamma_{\min} (\gamma_{\max} / \gamma_{\min})^t` (Song et al. 2021).

    Args:
        minimum: gamma at t = 0, positive.
        maximum: gamma at t = 1, positive; equal values give a constant schedule.

    Raises:
        ConfigurationError: a bound is not positive and finite.
    """

    def __init__(self, minimum: float, maximum: float) -> None:
        for name, value in (("minimum", minimum), ("maximum", maximum)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"{name}: expected a positive finite number, got {value}")
        self.minimum = float(minimum)
        self.maximum = float(maximum)
        self._rate = math.log(self.maximum / self.minimum)

    def __repr__(self) -> str:
        """The two bounds."""
        return f"GeometricSchedule({self.minimum:g}, {self.maximum:g})"

    def __call__(self, t: float) -> float:
        """The diffusion coefficient at t."""
        return self.minimum * math.exp(self._rate * check_time(t))

    def variance(self, start: float, end: float) -> float:
        r""":math:`[\gamma(end)^2 - \gamma(start)^2] / (2 \log(\gamma_{\max} / \gamma_{\min}))`."""
        width = 2.0 * self._rate * (check_time(end) - check_time(start))
        base = self(start) ** 2 * (end - start)
        return base if width == 0.0 else base * math.expm1(width) / width


def check_time(t: float) -> float:
    """Return ``t`` if it lies in [0, 1], else raise `DomainError`."""
    if not 0.0 <= t <= 1.0:
        raise DomainError(f"t: expected a time in [0, 1], got {t}")
    return t
