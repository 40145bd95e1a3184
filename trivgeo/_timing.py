"""Time of long work: measured by a few evaluations, bounded by a deadline, and said beforehand."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger("trivgeo")

_GROWTH = 4  # ratio of numbers of data that are timed one after the other
_REPEATED_SHARE = 0.2  # share of the time of a measurement in which a first evaluation leaves time for another
_MOST_EVALUATIONS = 10**9  # evaluations that take no time
_SHORTEST_WORK_IN_SECONDS = 5.0  # work of which it is said beforehand how long it takes


def deadline_after(seconds: float | None) -> float | None:
    """Return the value of `time.perf_counter` when so many seconds are over; ``None`` for no bound."""
    return None if seconds is None else time.perf_counter() + seconds


def seconds_until(deadline: float | None) -> float:
    """Return the time that is left, not below zero; infinite for no bound."""
    return math.inf if deadline is None else max(0.0, deadline - time.perf_counter())


@dataclass(frozen=True)
class EvaluationTime:
    """Time of evaluations of several data at once.

    Attributes:
        call: time of an evaluation of any number.
        each: further time of each datum.
        sizes: numbers of data that were evaluated to measure it.
    """

    call: float
    each: float
    sizes: tuple[int, ...] = ()

    def of(self, number: float, at_once: int | None = None) -> float:
        """Return the time of ``number`` evaluations, so many at once."""
        calls = 1 if at_once is None else math.ceil(number / at_once)
        return self.call * calls + self.each * number

    def number_in(self, seconds: float) -> int:
        """Return the largest number of evaluations at once in a time; zero where one takes longer."""
        left = seconds - self.call
        if left < self.each:
            return 0
        return int(min(left / self.each, _MOST_EVALUATIONS)) if self.each > 0.0 else _MOST_EVALUATIONS


def time_evaluations(evaluate: Callable[[int], Any], most: int, seconds: float) -> EvaluationTime:
    """Time evaluations of one datum, of two, of eight and so on, as long as the next is likely to end in the time.

    Args:
        evaluate: evaluates a number of data.
        most: the largest number.
        seconds: time that this may take; one datum is evaluated however short it is.
    """
    end = time.perf_counter() + seconds
    first = _seconds_of(evaluate, 1)
    sizes = [1]
    if first < _REPEATED_SHARE * seconds:  # what is made once does not count
        first = _seconds_of(evaluate, 1)
        sizes.append(1)
    each, call, last, before = first, 0.0, first, 1
    size = 2
    while size <= most and time.perf_counter() + last + each * (size - before) <= end:
        now = _seconds_of(evaluate, size)
        sizes.append(size)
        each = max(0.0, now - last) / (size - before)
        call, last, before = max(0.0, now - each * size), now, size
        size = min(_GROWTH * size, most) if size < most else most + 1
    return EvaluationTime(call, each, tuple(sizes))


def _seconds_of(evaluate: Callable[[int], Any], size: int) -> float:
    began = time.perf_counter()
    outcome = evaluate(size)
    if isinstance(outcome, Tensor) and outcome.is_cuda:
        torch.cuda.synchronize(outcome.device)
    return time.perf_counter() - began


def announce(work: str, seconds: float) -> None:
    """Say in the log ``trivgeo``, at the level of information, how long work of more than a few seconds will take."""
    if math.isfinite(seconds) and seconds > _SHORTEST_WORK_IN_SECONDS:
        _log.info("%s: about %s", work, in_words(seconds))


def in_words(seconds: float) -> str:
    """Return a time with two digits in seconds, minutes or hours."""
    for length, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.2g} {unit}"
    return f"{seconds:.2g} s"
