"""Noise schedules: the diffusion coefficient as a function of time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from trivgeo.checks import check_positive
from trivgeo.errors import ConfigurationError, DomainError

__all__ = ["ConstantSchedule", "GeometricSchedule", "Schedule"]


class Schedule(ABC):
    r"""A diffusion coefficient :math:`\gamma(t)`, t in [0, horizon], with its integral in closed form."""

    @property
    def horizon(self) -> float:
        """The last time at which it is defined: 1, unless a subclass says otherwise."""
        return 1.0

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
            check_positive(name, value)
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


class ConstantSchedule(Schedule):
    """The same diffusion coefficient at all times t >= 0, for processes without an end such as Langevin's.

    Args:
        gamma: the diffusion coefficient, not negative.

    Raises:
        ConfigurationError: gamma is negative or not finite.
    """

    def __init__(self, gamma: float) -> None:
        if not (math.isfinite(gamma) and gamma >= 0):
            raise ConfigurationError(f"gamma: expected a finite number of at least 0, got {gamma}")
        self.gamma = float(gamma)

    def __repr__(self) -> str:
        """The coefficient."""
        return f"ConstantSchedule({self.gamma:g})"

    @property
    def horizon(self) -> float:
        """Infinite."""
        return math.inf

    def __call__(self, t: float) -> float:
        """The diffusion coefficient, whatever t."""
        return self.gamma

    def variance(self, start: float, end: float) -> float:
        """``gamma^2 (end - start)``."""
        return self.gamma**2 * (end - start)


def check_time(t: float) -> float:
    """Return ``t`` if it lies in [0, 1], else raise `DomainError`."""
    if not 0.0 <= t <= 1.0:
        raise DomainError(f"t: expected a time in [0, 1], got {t}")
    return t
