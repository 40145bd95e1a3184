"""Noise schedules: the diffusion coefficient as a function of time."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from trivgeo.checks import check_positive, check_tensor, checked
from trivgeo.errors import ConfigurationError, DomainError

Time = TypeVar("Time", float, Tensor)
_GAUSS_LEGENDRE_RULE = [each.tolist() for each in np.polynomial.legendre.leggauss(12)]
"""Nodes and weights on [-1, 1]: error 1e-17 for products of the four sines of `CosineSchedule` on a unit interval."""


@checked
class Schedule(ABC):
    r"""A diffusion coefficient :math:`\gamma(t)`, t in [0, horizon], with its integral in closed form.

    A time may be a number, or a tensor with one time for each row. A number outside of [0, horizon] raises
    `DomainError`. A row of a tensor outside of [0, horizon] gives NaN instead, since an error would make the CPU wait
    for the device.
    """

    @property
    def horizon(self) -> float:
        """The last time at which the schedule is defined: 1, unless a subclass says otherwise."""
        return 1.0

    @abstractmethod
    def __call__(self, t: Time) -> Time:
        r"""The diffusion coefficient :math:`\gamma(t)`."""

    @abstractmethod
    def variance(self, start: float, end: Time) -> Time:
        r"""Return :math:`\int_{start}^{end} \gamma(s)^2 ds`, negative where ``end < start``.

        Args:
            start: a time in [0, horizon].
            end: a time, or one for every row, ``[*batch]``; NaN for rows outside, see `Schedule`.

        Raises:
            DomainError: a number lies outside of [0, horizon].
        """


@checked
class _Bounded(Schedule):
    """A schedule between a coefficient at t = 0 and one at t = 1."""

    def __init__(self, minimum: float, maximum: float) -> None:
        for name, value in (("minimum", minimum), ("maximum", maximum)):
            check_positive(name, value)
        self.minimum = float(minimum)
        self.maximum = float(maximum)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.minimum:g}, {self.maximum:g})"


@checked
class GeometricSchedule(_Bounded):
    r"""The geometric schedule :math:`\gamma(t) = \gamma_{\min} (\gamma_{\max} / \gamma_{\min})^t` (Song et al. 2021).

    The noise grows by the same factor in equal times: for data with structure at many scales.

    Args:
        minimum: gamma at t = 0.
        maximum: gamma at t = 1, positive; equal values give a constant schedule.

    Raises:
        ConfigurationError: a bound is not positive and finite.
    """

    def __init__(self, minimum: float, maximum: float) -> None:
        super().__init__(minimum, maximum)
        self._rate = math.log(self.maximum / self.minimum)

    def __call__(self, t: Time) -> Time:
        return self.minimum * _exp(self._rate * check_time(t))

    def variance(self, start: float, end: Time) -> Time:
        r"""Return :math:`[\gamma(end)^2 - \gamma(start)^2] / (2 \log(\gamma_{\max} / \gamma_{\min}))`, the integral."""
        duration = check_time(end) - check_time(start)
        base = self(start) ** 2
        return base * duration if self._rate == 0.0 else base * _expm1(2.0 * self._rate * duration) / (2.0 * self._rate)


@checked
class LinearSchedule(_Bounded):
    r"""The variance a unit of time grows linearly: :math:`\gamma(t)^2 = \gamma_{\min}^2 + t (\gamma_{\max}^2 -
    \gamma_{\min}^2)` (Ho, Jain and Abbeel 2020).

    Args:
        minimum: gamma at t = 0.
        maximum: gamma at t = 1.

    Raises:
        ConfigurationError: a number is not positive and finite.
    """

    def __call__(self, t: Time) -> Time:
        return (self.minimum**2 + (self.maximum**2 - self.minimum**2) * check_time(t)) ** 0.5

    def variance(self, start: float, end: Time) -> Time:
        """Return the integral of the squared rate: the mean of the values at both ends, times the duration."""
        slope = self.maximum**2 - self.minimum**2
        first, last = check_time(start), check_time(end)
        return (self.minimum**2 + 0.5 * slope * (first + last)) * (last - first)


@checked
class CosineSchedule(_Bounded):
    r"""Half a cosine, flat at both ends: :math:`\gamma(t) = \gamma_{\min} + (\gamma_{\max} - \gamma_{\min})
    \sin^2(\pi t / 2)` (after Nichol and Dhariwal 2021).

    Args:
        minimum: gamma at t = 0.
        maximum: gamma at t = 1.

    Raises:
        ConfigurationError: a number is not positive and finite.
    """

    def __call__(self, t: Time) -> Time:
        return self._at(check_time(t))

    def variance(self, start: float, end: Time) -> Time:
        """Return the integral of the squared rate by quadrature, exact to rounding.

        The closed form would cancel where the rate is small.
        """
        first, last = check_time(start), check_time(end)
        middle, half = 0.5 * (first + last), 0.5 * (last - first)
        return half * sum(w * self._at(middle + x * half) ** 2 for x, w in zip(*_GAUSS_LEGENDRE_RULE, strict=True))

    def _at(self, t: Time) -> Time:
        angle = 0.5 * math.pi * t
        return self.minimum * _cos(angle) ** 2 + self.maximum * _sin(angle) ** 2


@checked
class ConstantSchedule(Schedule):
    """Constant diffusion coefficient at all times t >= 0, for processes without an end such as Langevin's.

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
        return f"ConstantSchedule({self.gamma:g})"

    @property
    def horizon(self) -> float:
        return math.inf

    def __call__(self, t: Time) -> Time:
        t = check_time(t, self.horizon)
        return torch.where(t.isnan(), t, self.gamma) if isinstance(t, Tensor) else self.gamma

    def variance(self, start: float, end: Time) -> Time:
        r"""Return :math:`\gamma^2 (end - start)`, the integral of the squared rate."""
        return self.gamma**2 * (check_time(end, self.horizon) - check_time(start, self.horizon))


def check_time(t: Time, horizon: float = 1.0) -> Time:
    """Return a time t in [0, horizon].

    Args:
        t: a number, or a tensor; its entries outside of the interval become NaN.

    Raises:
        DomainError: the number t is not finite, or outside of the interval.
    """
    if isinstance(t, Tensor):
        check_tensor("t", t)
        return torch.where((t >= 0.0) & (t <= horizon) & t.isfinite(), t, math.nan)
    if not 0.0 <= t <= min(horizon, sys.float_info.max):
        raise DomainError(f"t: expected a time in [0, {horizon:g}], got {t}")
    return t


def _exp(x: Time) -> Time:
    return x.exp() if isinstance(x, Tensor) else math.exp(x)


def _expm1(x: Time) -> Time:
    return x.expm1() if isinstance(x, Tensor) else math.expm1(x)


def _sin(x: Time) -> Time:
    return x.sin() if isinstance(x, Tensor) else math.sin(x)


def _cos(x: Time) -> Time:
    return x.cos() if isinstance(x, Tensor) else math.cos(x)
