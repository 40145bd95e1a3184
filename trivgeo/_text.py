"""Short texts of objects for people who print them: sizes in place of numbers, names in place of addresses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any, NoReturn

import numpy as np
from torch import Tensor, nn

_BROKEN_PIPE_STATUS = 141  # 128 + SIGPIPE, as shells report of programs that write to a closed pipe


def text_of(value: Any) -> str:
    """The text of a value: the shape of a tensor, the name of a function, ``repr`` or the class of an object."""
    match value:
        case Tensor() | np.ndarray():
            return f"[{', '.join(map(str, value.shape))}]"
        case float():
            return f"{value:g}"
        case FunctionType() | MethodType():
            return value.__name__
        case tuple() | list() if type(value) in (tuple, list):
            return f"({', '.join(map(text_of, value))})" if len(value) <= 8 else f"{len(value)} entries"
        case nn.Module():
            return type(value).__name__
        case _:
            text = repr(value)
            return type(value).__name__ if " object at 0x" in text else text


def described(thing: Any, values: Mapping[str, Any] | None = None) -> str:
    """The class of an object and values by name, in one line.

    Default: its public attributes, or the entries of a named tuple.
    """
    if values is None:
        names = getattr(type(thing), "_fields", None)  # `None` unless it is a named tuple
        values = vars(thing) if names is None else dict(zip(names, thing, strict=True))
    shown = (f"{name}={text_of(value)}" for name, value in values.items() if not name.startswith("_"))
    return f"{type(thing).__name__}({', '.join(shown)})"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: ``1 symmetry``, ``3 symmetries``; the plural adds an s, or is given."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


class OneLineParser(argparse.ArgumentParser):
    """A parser of command lines whose errors are one line, without the usage of every option."""

    def error(self, message: str) -> NoReturn:
        """Print the reason and leave with status 2."""
        self.exit(2, f"error: {message} ({self.prog} --help)\n")


class Described:
    """Objects whose text is their class and their public attributes."""

    def __repr__(self) -> str:
        return described(self)


@contextmanager
def ending_quietly() -> Iterator[None]:
    """Context that ends a command with status 141, not a traceback, when its output pipe is closed (``| head -1``)."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        # a progress bar may have caught the error first and raised `SystemExit`
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # the rest of the buffer is discarded, or the interpreter would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_BROKEN_PIPE_STATUS)
