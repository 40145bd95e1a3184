"""Checks of arguments that library and tasks share: each returns what it was given, or says what was expected."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from trivgeo._torch import pytree
from trivgeo.errors import ConfigurationError

__all__ = [
    "check_arguments",
    "check_choice",
    "check_count",
    "check_device",
    "check_dtype",
    "check_fraction",
    "check_positive",
    "check_tensor",
    "check_type",
    "promoted",
    "with_tensors",
]

T = TypeVar("T")

_LONGEST_TEXT = 120  # largest number of letters of a value in a message


def check_arguments(name: str, function: Callable[..., Any], *arguments: str, keywords: Sequence[str] = ()) -> None:
    """Check that a function takes so many positional arguments; the message of the error calls it ``name``.

    Functions without a signature pass.

    Args:
        name: name of the function in messages.
        function: a function, or a module, whose ``forward`` is meant.
        arguments: names of the arguments in messages.
        keywords: arguments that are given by these names.

    Raises:
        ConfigurationError: the function takes others.
    """
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # of built-in functions
        return
    try:
        signature.bind(*arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        expected = ", ".join([*arguments, *(f"{keyword}=..." for keyword in keywords)])
        raise ConfigurationError(f"{name}: expected a function of ({expected}), got one of {signature}") from error


def check_count(name: str, value: int, minimum: int = 1) -> int:
    """Return ``value`` if it is an integer of at least ``minimum``; the message of the error calls it ``name``.

    Raises:
        ConfigurationError: ``value`` is no integer, a truth value, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigurationError(f"{name}: expected an integer of at least {minimum}, got {value!r}")
    return value


def check_positive(name: str, value: float) -> float:
    """Return ``value`` if it is a positive finite number; the message of the error calls it ``name``.

    Raises:
        ConfigurationError: ``value`` is no number, not positive, or not finite.
    """
    if not _is_number(value) or not (math.isfinite(value) and value > 0):
        raise ConfigurationError(f"{name}: expected a positive finite number, got {value!r}")
    return value


def check_fraction(name: str, value: float) -> float:
    """Return ``value`` if it is a number in [0, 1); the message of the error calls it ``name``.

    Raises:
        ConfigurationError: ``value`` is no number, or outside of [0, 1).
    """
    if not _is_number(value) or not 0 <= value < 1:
        raise ConfigurationError(f"{name}: expected a number in [0, 1), got {value!r}")
    return value


def check_choice(name: str, value: T, choices: Iterable[T]) -> T:
    """Return ``value`` if it is one of ``choices``; the message of the error calls it ``name``.

    Raises:
        ConfigurationError: ``value`` is none of ``choices``, or has another type than the equal one.
    """
    choices = list(choices)
    # values of other kinds than the choices, such as arrays, may not be comparable
    comparable = not isinstance(value, Tensor | np.ndarray)
    if not any(value is known or (comparable and type(value) is type(known) and value == known) for known in choices):
        raise ConfigurationError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_type(name: str, value: Any, kind: type[T]) -> T:
    """Return ``value`` if it is an instance of ``kind``; the message of the error calls it ``name``.

    Raises:
        ConfigurationError: ``value`` is an instance of another class.
    """
    if not isinstance(value, kind):
        raise ConfigurationError(f"{name}: expected an instance of {kind.__name__}, got {value!r}")
    return value


def check_tensor(name: str, value: Any) -> Tensor:
    """Return ``value`` as a floating-point tensor; NumPy arrays and (nested) lists of numbers are converted.

    Lists of Python numbers get the default dtype, and arrays keep their own. Lists of tensors are stacked, with their
    derivatives.

    Args:
        name: argument's name in messages.
        value: a tensor, an array, or a list.

    Raises:
        ConfigurationError: any other type, or integers, truth values or complex numbers, which would be truncated.
    """
    if not isinstance(value, Tensor):
        if not isinstance(value, np.ndarray | np.floating | list | tuple):
            raise ConfigurationError(f"{name}: expected a floating-point tensor, got {type(value).__name__}")
        try:
            converted = _stacked(value) if _holds_tensors(value) else torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigurationError(f"{name}: expected numbers of one shape, got {_shortened(value)}") from error
        if not isinstance(value, np.ndarray | np.floating) and converted.dtype == torch.int64:
            converted = converted.to(torch.get_default_dtype())  # [1, 0, 0] means numbers
        value = converted
    if not value.is_floating_point():
        raise ConfigurationError(f"{name}: expected floating-point numbers, got {value.dtype}")
    return value


def with_tensors(name: str, value: Any) -> Any:
    """Convert NumPy arrays and lists of numbers to tensors, in ``value`` itself or in a (named) tuple.

    Other values stay as they are: a later check knows what is expected of them. Messages call the value ``name``.

    Raises:
        ConfigurationError: numbers that `check_tensor` refuses.
    """
    if isinstance(value, Tensor):
        return value
    return pytree.tree_map(lambda x: check_tensor(name, x) if _holds_numbers(x) else x, value, is_leaf=_holds_numbers)


def promoted(**tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the wider of their floating-point dtypes.

    Raises:
        ConfigurationError: they are on several devices.
    """
    if not tensors:
        raise ConfigurationError("expected tensors, got none")
    first, *others = tensors.values()
    if len(others) == 1 and others[0].device == first.device and others[0].dtype == first.dtype:
        return first, others[0]  # the usual case, at a third of the time
    if any(x.device != first.device for x in others):
        places = ", ".join(f"{name} on {x.device}" for name, x in tensors.items())
        raise ConfigurationError(f"expected tensors on one device, got {places}")
    if all(x.dtype == first.dtype for x in others):
        return tuple(tensors.values())
    dtype = first.dtype
    for x in others:
        dtype = torch.promote_types(dtype, x.dtype)
    return tuple(x.to(dtype) for x in tensors.values())


def check_device(device: torch.device | str | None) -> None:
    """Check that tensors can be made on ``device``; ``None`` is torch's default.

    Raises:
        ConfigurationError: torch knows no such device, or cannot use it.
    """
    if device is not None and not isinstance(device, torch.device):
        try:
            torch.empty(0, device=device)
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:  # torch's, one for each kind of fault
            raise ConfigurationError(f"device: expected one that is there, got {device!r}: {error}") from error


def check_dtype(dtype: torch.dtype | None) -> None:
    """Check that ``dtype`` is a real floating-point dtype, or ``None``.

    Raises:
        ConfigurationError: any other value.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ConfigurationError(f"dtype: expected a floating-point dtype, got {dtype}")


def _shortened(value: Any) -> str:
    """The beginning of what a long value prints, on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ..."


def _holds_numbers(value: Any) -> bool:
    """Whether this is an array, or a (nested) list of numbers."""
    if type(value) not in (list, tuple):  # a named tuple is a datum of several parts
        return isinstance(value, np.ndarray)
    return all(isinstance(x, int | float | np.generic) for x in pytree.tree_leaves(value))


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(x, Tensor) for x in pytree.tree_leaves(value))


def _stacked(value: Any, reference: Tensor | None = None) -> Tensor:
    """Tensors, and numbers beside them, which are as exact as the widest of these."""
    if reference is None:
        tensors = [x for x in pytree.tree_leaves(value) if isinstance(x, Tensor)]
        dtype = tensors[0].dtype
        for x in tensors:
            dtype = torch.promote_types(dtype, x.dtype)
        reference = tensors[0].new_empty(0, dtype=dtype if dtype.is_floating_point else None)
    if isinstance(value, list | tuple):
        return torch.stack([_stacked(x, reference) for x in value])
    if isinstance(value, Tensor):
        return value
    return torch.as_tensor(
        value, dtype=reference.dtype if reference.is_floating_point() else None, device=reference.device
    )


def _is_number(value: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
