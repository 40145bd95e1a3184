"""Checks of arguments that library and tasks share: each returns what it was given, or says what was expected."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

from trivgeo.errors import ConfigurationError

__all__ = ["check_choice", "check_count", "check_fraction", "check_positive", "check_type"]

T = TypeVar("T")


def check_count(name: str, value: int, minimum: int = 1) -> int:
    """Return ``value`` if it is an integer of at least ``minimum``, else raise `ConfigurationError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigurationError(f"{name}: expected an integer of at least {minimum}, got {value!r}")
    return value


def check_positive(name: str, value: float) -> float:
    """Return ``value`` if it is a positive finite number, else raise `ConfigurationError`."""
    if not _is_number(value) or not (math.isfinite(value) and value > 0):
        raise ConfigurationError(f"{name}: expected a positive finite number, got {value!r}")
    return value


def check_fraction(name: str, value: float) -> float:
    """Return ``value`` if it is a number in [0, 1), else raise `ConfigurationError`."""
    if not _is_number(value) or not 0 <= value < 1:
        raise ConfigurationError(f"{name}: expected a number in [0, 1), got {value!r}")
    return value


def check_choice(name: str, value: T, choices: Iterable[T]) -> T:
    """Return ``value`` if it is one of ``choices``, else raise `ConfigurationError`."""
    choices = list(choices)
    if value not in choices:
        raise ConfigurationError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_type(name: str, value: Any, kind: type[T]) -> T:
    """Return ``value`` if it is an instance of ``kind``, else raise `ConfigurationError`."""
    if not isinstance(value, kind):
        raise ConfigurationError(f"{name}: expected an instance of {kind.__name__}, got {value!r}")
    return value


def _is_number(value: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
