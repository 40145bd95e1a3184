"""Checks of arguments that several packages share."""

from __future__ import annotations

import math

from trivgeo.errors import ConfigurationError

__all__ = ["check_count", "check_positive"]


def check_count(name: str, value: int) -> int:
    """Return ``value`` if it is an integer of at least one, else raise `ConfigurationError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name}: expected an integer of at least 1, got {value!r}")
    return value


def check_positive(name: str, value: float) -> float:
    """Return ``value`` if it is a positive finite number, else raise `ConfigurationError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ConfigurationError(f"{name}: expected a positive finite number, got {value!r}")
    return value
