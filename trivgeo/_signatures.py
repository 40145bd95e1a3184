"""Bad arguments of public callables are explained by their annotations, in one place for all of them.

Shapes are compared by jaxtyping. The rest is by hand, for beartype checks before every call, also in inner loops, and
its errors are none of `trivgeo.errors`. That the library itself keeps to its annotations is tested with both
(`tests/test_runtime_types.py`).
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, TypeVar, Union

import jaxtyping
import numpy as np
from jaxtyping import Float, jaxtyped
from torch import Tensor, nn

from trivgeo._numerics import is_traced, on_cpu
from trivgeo.checks import check_tensor
from trivgeo.errors import ConfigurationError, ShapeError, TrivgeoError

__all__ = ["check_calls", "checked"]

Fits = Callable[[Any], bool]
F = TypeVar("F", bound=Callable[..., Any])

_RAW = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError, RuntimeError, AssertionError)
_SPECIAL = ("__init__", "__call__")
_SEQUENCES = (list, tuple)  # not named tuples, which are data of several parts
_ARRAYS = (np.ndarray, np.floating)


def check_calls(package: str, names: Iterable[str], *, but: Collection[str] = ()) -> None:
    """Let the public callables of a package explain bad arguments, see `checked`.

    Args:
        package: its name; it is called where all names are defined.
        names: of classes, with their methods, and functions.
        but: methods that are left as they are, since they check by other means, or are called in inner loops.
    """
    for name in names:
        thing = getattr(sys.modules[package], name)
        if inspect.isfunction(thing):
            for module in (package, thing.__module__):  # where it is found when a pickle is read
                setattr(sys.modules[module], name, checked(thing))
        elif isinstance(thing, type) and not issubclass(thing, Exception):
            for kind in thing.__mro__:
                if kind.__module__.startswith("trivgeo"):
                    _check_class(kind, but)


def _check_class(kind: type, but: Collection[str]) -> None:
    for name, member in list(vars(kind).items()):
        # a record holds what it is given
        record = name == "__init__" and dataclasses.is_dataclass(kind) and "__post_init__" not in dir(kind)
        if name not in but and not record and (name in _SPECIAL or not name.startswith("_")):
            if isinstance(member, classmethod | staticmethod):
                setattr(kind, name, type(member)(checked(member.__func__)))
            elif inspect.isfunction(member) and (found := checked(member)) is not member:
                # networks alone follow the default device
                setattr(kind, name, on_cpu(found) if name == "__init__" and not issubclass(kind, nn.Module) else found)


def checked(function: F) -> F:
    """The function, whose arguments are checked by their annotations when it raises an error that is none of ours.

    What works is called at no cost, but for constructors, whose arguments are checked in any case, since what they keep
    is used later; a typed error of its own comes first. Sizes that share a name, as n in
    ``Float[Tensor, "n n"]``, must agree, also between arguments. Arrays and lists that should be tensors are made
    tensors before the call. The function is called once: an error that no argument explains is raised as it is, since
    it came from a function that was handed over, say.
    """
    if inspect.unwrap(function) is not function:
        return function
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)

    @functools.cache
    def rules() -> dict[str, _Rule]:
        # not what is returned, which may be of a module that is not imported yet
        annotations = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
        holder = types.SimpleNamespace(__annotations__=annotations)
        hints = typing.get_type_hints(holder, function.__globals__, _Names(function.__globals__))
        unchecked = {p.name for p in parameters if p.kind is p.VAR_KEYWORD}
        found = {name: _Rule(name, hint) for name, hint in hints.items() if name not in unchecked}
        return {name: rule for name, rule in found.items() if rule.fits is not None}

    def fitted(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        known, shapes = rules(), dict[str, list[int]]()
        values = list(arguments)
        with jaxtyped("context"):  # sizes that share a name agree within it
            for place, value in enumerate(values):
                name = positional[place] if place < len(positional) else rest
                if name in known:
                    values[place] = known[name](value, shapes)
            return values, {name: known[name](x, shapes) if name in known else x for name, x in named.items()}

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if is_traced():
            return function(*arguments, **named)
        if any(type(value) in _SEQUENCES or isinstance(value, _ARRAYS) for value in (*arguments, *named.values())):
            with contextlib.suppress(TrivgeoError):  # the function has better words for what does not fit
                values, named = fitted(arguments, named)
                arguments = tuple(values)
        try:
            result = function(*arguments, **named)
            if function.__name__ == "__init__":
                fitted(arguments, named)
            return result
        except (TrivgeoError, jaxtyping.TypeCheckError):
            raise
        except _RAW as error:
            try:
                fitted(arguments, named)
            except TrivgeoError as refusal:
                raise refusal from error
            raise

    return typing.cast(F, call)


class _Names(dict[str, Any]):
    """The names of a module; those that it imports for its annotations alone are those of the library."""

    def __missing__(self, name: str) -> Any:
        for module in [m for key, m in sys.modules.items() if key.startswith("trivgeo.")]:
            if name in vars(module):
                return vars(module)[name]
        raise KeyError(name)


class _Rule:
    """What an argument must be."""

    def __init__(self, name: str, hint: Any) -> None:
        self.name = name
        self.fits = _fits(hint)
        alternatives = _alternatives(hint)
        # a tensor of any shape holds floats
        self.tensors = [Float[Tensor, "..."] if h is Tensor else h for h in alternatives if _is_tensor(h)]
        self.expected = " or ".join(map(_described, alternatives))

    def __call__(self, value: Any, shapes: dict[str, list[int]]) -> Any:
        """The argument, if it fits.

        Args:
            value: the argument.
            shapes: those of the tensors before it, by name; that of the argument is added.

        Raises:
            ConfigurationError: it is of another kind.
            ShapeError: it is a tensor of another shape.
        """
        assert self.fits is not None
        if self.tensors and isinstance(value, (*_SEQUENCES, *_ARRAYS)) and not self.fits(value):
            value = check_tensor(self.name, value)
        if isinstance(value, Tensor) and self.tensors:
            if not any(_has_dtype(value, hint) for hint in self.tensors):
                raise ConfigurationError(f"{self.name}: expected {self.expected}, got a tensor of {value.dtype}")
            if not any(isinstance(value, hint) for hint in self.tensors):  # type: ignore[arg-type]
                others = f" beside {', '.join(f'{name} {shape}' for name, shape in shapes.items())}" if shapes else ""
                raise ShapeError(f"{self.name}: expected {self.expected}, got {list(value.shape)}{others}")
            shapes[self.name] = list(value.shape)
        elif not self.fits(value):
            raise ConfigurationError(f"{self.name}: expected {self.expected}, got {value!r:.200}")
        return value


def _has_dtype(value: Tensor, hint: Any) -> bool:
    """Whether the dtype of a tensor is one of an annotation such as ``Float[Tensor, "*batch n"]``."""
    return isinstance(hint.dtypes, str) or str(value.dtype).removeprefix("torch.") in hint.dtypes


def _fits(hint: Any) -> Fits | None:
    """Whether a value is what an annotation says; ``None`` if it says nothing that can be seen."""
    if hint is None or hint is type(None):
        return lambda value: value is None
    if _is_tensor(hint):
        return lambda value: isinstance(value, Tensor)
    if len(alternatives := _alternatives(hint)) > 1:
        parts = [_fits(part) for part in alternatives]
        known = [part for part in parts if part is not None]
        return (lambda value: any(part(value) for part in known)) if len(known) == len(parts) else None
    if isinstance(hint, TypeVar):
        bound = hint.__bound__
        if isinstance(bound, typing.ForwardRef):
            bound = _Names()[bound.__forward_arg__]
        return None if bound is None else _fits(bound)
    if hint in (Any, object):
        return None
    if hint in _NUMBERS:
        return lambda value: isinstance(value, _NUMBERS[hint]) and not isinstance(value, bool)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return lambda value: isinstance(value, str | int) and value in inner
    if origin is tuple and Ellipsis not in inner:
        each = [_fits(part) for part in inner]
        return lambda value: (
            _is_sequence(value)
            and len(value) == len(each)
            and all(fits is None or fits(item) for fits, item in zip(each, value, strict=True))
        )
    if origin in (collections.abc.Sequence, tuple, list):
        item = _fits(inner[0]) if inner else None
        return lambda value: _is_sequence(value) and (item is None or all(map(item, value)))
    if origin is collections.abc.Callable or hint is collections.abc.Callable:
        return callable
    kind = hint if origin is None else origin
    if not isinstance(kind, type) or typing.is_typeddict(kind):
        return None
    if kind is collections.abc.Iterable:
        part = _fits(inner[0]) if inner else None  # of what can be read twice
        return lambda value: (
            isinstance(value, kind)
            and not isinstance(value, Tensor)
            and (part is None or not _is_sequence(value) or all(map(part, value)))
        )
    return lambda value: isinstance(value, kind)


# the checks themselves
_CHECKS = ("check_count", "check_choice", "check_type")

_NUMBERS: dict[Any, tuple[type, ...]] = {int: (int, np.integer), float: (int, float, np.integer, np.floating)}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """What an argument may be: the parts of a union, the constraints of a type variable."""
    if isinstance(hint, TypeVar) and hint.__constraints__:
        return hint.__constraints__
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_tensor(hint: Any) -> bool:
    return hint is Tensor or (isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, collections.abc.Sequence) and not isinstance(value, str | bytes)


def _described(hint: Any) -> str:
    """An annotation in words."""
    if _is_tensor(hint) and hint is not Tensor:
        return f"{hint.__name__.partition('[')[0].lower()} tensor [{hint.dim_str}]"
    if hint is None or hint is type(None):
        return "None"
    return inspect.formatannotation(hint).replace("collections.abc.", "").replace("trivgeo.", "")


check_calls("trivgeo.checks", _CHECKS)
