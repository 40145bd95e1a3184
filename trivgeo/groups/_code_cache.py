"""Compilation beside broken files in the cache of `torch.compile`."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

__all__ = ["DifferentResultError", "ForkedProcessError", "call_compiled", "caller_level"]

Result = TypeVar("Result")

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # torch reads it at every compilation, and sets it at the first
_SPARE = "trivgeo_spare"
_PROCESS = os.getpid()
"""The process that imported this; its children have this number, too, but not the workers of torch's compiler."""


class ForkedProcessError(Exception):
    """Compiling in a process that was forked: its parent may have started workers of the compiler, which stay there."""


class DifferentResultError(Exception):
    """The first compiled result is not the eager one."""


def call_compiled(call: Callable[[], Result]) -> Result:
    """Return the result of a function that compiles, in a folder of its own where the cache may be broken.

    A file that is cut, emptied or damaged in the cache of `torch.compile` makes compilation fail in every process that
    reads it. What fails is compiled again with an empty cache, in a folder below the first, for this process and later
    ones; a warning names both.

    Args:
        call: the function, which may be called three times.

    Raises:
        ForkedProcessError: this process was forked from one that imported the library.
        Exception: what the first call raised, if the others raise, too.
    """
    if os.getpid() != _PROCESS:
        raise ForkedProcessError("torch's compiler may hang here; start processes by spawn or forkserver")
    try:
        return call()
    except Exception as error:  # whatever the compiler raises
        found = _call_in_spare(call)
        if found is None:
            raise
        first_line, *_ = str(error).strip().splitlines() or [""]
        cache = os.environ.get(_VARIABLE)
        warnings.warn(
            f"torch.compile: a file in its cache {cache} seems to be broken ({type(error).__name__}: "
            f"{first_line[:200]}); compiled anew in {_SPARE} below it. Delete the folder to be rid of this warning",
            RuntimeWarning,
            stacklevel=caller_level(),
        )
        return found[0]


def _call_in_spare(call: Callable[[], Result]) -> tuple[Result] | None:
    """The result with the cache of the spare folder, or where that is broken, too, with an empty one."""
    cache = os.environ.get(_VARIABLE)
    if cache is None:  # torch has not come that far
        return None
    spare = Path(cache) / _SPARE
    was_there = spare.exists()
    for _ in range(1 + was_there):
        try:
            with _cache_folder(spare):
                return (call(),)
        except Exception:  # the cache is not the reason, or the spare folder is as broken
            shutil.rmtree(spare, ignore_errors=True)
    return None


@contextmanager
def _cache_folder(folder: Path) -> Iterator[None]:
    before = os.environ[_VARIABLE]
    os.environ[_VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ[_VARIABLE] = before


def caller_level() -> int:
    """The level, for warnings of the calling function, of the first frame outside the library."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("trivgeo."):
        frame, level = frame.f_back, level + 1
    return level
