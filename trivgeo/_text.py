"""Short texts of objects for people who print them: sizes in place of numbers, names in place of addresses."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from torch import Tensor, nn

_UNREAD = 141  # 128 + SIGPIPE: what a shell reports of a program that wrote to a reader who had left


def text_of(value: Any) -> str:
    """One value: a tensor by its shape, a function by its name, an object by its own text or else by its class."""
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
    """The class of an object and what it holds, in one line.

    Args:
        thing: the object.
        values: by name; default its public attributes, or the entries of a named tuple.
    """
    if values is None:
        names = getattr(type(thing), "_fields", None)  # of a named tuple
        values = vars(thing) if names is None else dict(zip(names, thing, strict=True))
    shown = (f"{name}={text_of(value)}" for name, value in values.items() if not name.startswith("_"))
    return f"{type(thing).__name__}({', '.join(shown)})"


class Described:
    """Objects whose text is their class and their public attributes."""

    def __repr__(self) -> str:
        return described(self)


@contextmanager
def ending_quietly() -> Iterator[None]:
    """A command whose reader leaves before the end (``| head -1``) ends without a traceback, with status 141."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        # a progress bar may have caught it first, and left in its own way
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # what is left in the buffer goes nowhere, or the interpreter complains when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_UNREAD)
