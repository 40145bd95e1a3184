"""Checks of arguments: by the annotations of a function, and by functions that return a value or say what was expected.

Shapes are compared by jaxtyping. Other types are not compared by beartype, which checks before every call, also in
inner loops, and whose errors are none of `trivgeo.errors`. A test uses both to check that the library keeps to its own
annotations (`tests/test_runtime_types.py`).
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal, TypeVar, Union, overload

import jaxtyping
import numpy as np
import torch
from jaxtyping import Float, jaxtyped
from torch import Tensor, nn

from trivgeo._numerics import is_abstract, is_traced, on_cpu
from trivgeo._torch import pytree
from trivgeo.errors import ConfigurationError, ShapeError, TrivgeoError

__all__ = [
    "check_arguments",
    "check_choice",
    "check_count",
    "check_device",
    "check_dtype",
    "check_fraction",
    "check_positive",
    "check_seed",
    "check_tensor",
    "check_type",
    "check_values",
    "checked",
    "promoted",
    "with_tensors",
]

T = TypeVar("T")

Fits = Callable[[Any], bool]
F = TypeVar("F", bound=Callable[..., Any])

_MAX_CHARACTERS = 120  # characters of a value in a message
_MAX_NUMBERS = 9  # numbers of a tensor in a message
# errors that a bad argument may raise in a function, and that its annotations may explain
_EXPLAINED_ERRORS = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError, RuntimeError, AssertionError)
_SPECIAL_METHODS = ("__init__", "__call__")  # decorated beside public methods
_SEQUENCE_TYPES = (list, tuple)  # by `type`: named tuples are data of several parts
_ARRAY_TYPES = (np.ndarray, np.floating)


@overload
def checked(target: F) -> F: ...


@overload
def checked(*, but: Collection[str]) -> Callable[[F], F]: ...


def checked(target: Any = None, *, but: Collection[str] = ()) -> Any:
    """Decorate a public function, or a public class, so that bad arguments are explained by their annotations.

    Where a call raises an error that is none of `trivgeo.errors`, its arguments are compared with the annotations, and
    the first that does not fit is named in a `ConfigurationError` or a `ShapeError`. Arrays and lists that should be
    tensors are made tensors before the call. Of a class all public methods are decorated, the constructor and
    ``__call__``; constants that a constructor makes are on the CPU, whatever the default device, unless the class is a
    network.

    ```python
    @checked(but=("step",))
    class Walk:
        def __init__(self, group: LieGroup, size: float) -> None: ...
    ```

    Args:
        target: the function or the class.
        but: methods of a class that are not decorated, since they check by other means or are called in inner loops.

    Raises:
        ConfigurationError: the target is neither.
    """
    if target is not None and not callable(target):
        raise ConfigurationError(f"target: expected a function or a class, got {target!r}")
    if target is None:
        return functools.partial(checked, but=but)
    if not isinstance(target, type):
        return _explained(target)
    for name, member in list(vars(target).items()):
        # constructors of records only keep their arguments
        record = name == "__init__" and dataclasses.is_dataclass(target) and "__post_init__" not in dir(target)
        if name not in but and not record and (name in _SPECIAL_METHODS or not name.startswith("_")):
            if isinstance(member, classmethod | staticmethod):
                setattr(target, name, type(member)(_explained(member.__func__)))
            elif inspect.isfunction(member) and (found := _explained(member)) is not member:
                own_device = name == "__init__" and not issubclass(target, nn.Module)  # networks follow the default
                setattr(target, name, on_cpu(found) if own_device else found)
    return target


def _explained(function: F) -> F:
    """The function, whose arguments are compared with its annotations when it raises an error that is none of ours.

    A successful call has no further cost, except for constructors, whose arguments are always compared, since they are
    used later; the function's own typed errors come first. Sizes that share a name, as n in ``Float[Tensor, "n n"]``,
    must agree, also between arguments. Arrays and lists that should be tensors are made tensors before the call. The
    function is called once: an error that no argument explains, such as one of a function that was passed, is raised
    unchanged.
    """
    if inspect.unwrap(function) is not function:
        return function
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)

    @functools.cache
    def rules() -> dict[str, _Rule]:
        # the annotation of the result may name a module that is not imported yet
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
        given = (*arguments, *named.values())
        if any(type(value) in _SEQUENCE_TYPES or isinstance(value, _ARRAY_TYPES) for value in given):
            with contextlib.suppress(TrivgeoError):  # messages of the function itself are better
                values, named = fitted(arguments, named)
                arguments = tuple(values)
        try:
            result = function(*arguments, **named)
            if function.__name__ == "__init__":
                fitted(arguments, named)
            return result
        except (TrivgeoError, jaxtyping.TypeCheckError):
            raise
        except _EXPLAINED_ERRORS as error:
            try:
                fitted(arguments, named)
            except TrivgeoError as refusal:
                raise refusal from error
            raise

    return typing.cast(F, call)


def check_arguments(name: str, function: Callable[..., Any], *arguments: str, keywords: Sequence[str] = ()) -> None:
    """Check that a function takes a number of positional arguments, and keywords.

    Functions without a signature pass.

    Args:
        name: name of the function in messages.
        function: a function, or a module, of which ``forward`` is checked.
        arguments: names of the positional arguments in messages.
        keywords: names of the keyword arguments.

    Raises:
        ConfigurationError: the function cannot be called with such arguments.
    """
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return
    try:
        signature.bind(*arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        expected = ", ".join([*arguments, *(f"{keyword}=..." for keyword in keywords)])
        raise ConfigurationError(f"{name}: expected a function of ({expected}), got one of {signature}") from error


@checked
def check_count(name: str, value: int, minimum: int = 1) -> int:
    """Return ``value`` if it is an integer of at least ``minimum``; the message of the error calls it ``name``.

    Raises:
        ConfigurationError: ``value`` is no integer, a truth value, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigurationError(f"{name}: expected an integer of at least {minimum}, got {_shortened(value)}")
    return value


def check_positive(name: str, value: float) -> float:
    """Return ``value`` if it is a positive finite number; the message of the error calls it ``name``.

    Raises:
        ConfigurationError: ``value`` is no number, not positive, or not finite.
    """
    if not _is_number(value) or not (math.isfinite(value) and value > 0):
        raise ConfigurationError(f"{name}: expected a positive finite number, got {_shortened(value)}")
    return value


def check_seed(seed: int) -> int:
    """Return ``seed`` if it is an integer that torch's generators take, in [0, 2^63).

    Raises:
        ConfigurationError: it is none.
    """
    if check_count("seed", seed, 0) >= 2**63:
        raise ConfigurationError(f"seed: expected an integer below 2^63, got {seed}")
    return seed


def check_fraction(name: str, value: float) -> float:
    """Return ``value`` if it is a number in [0, 1); the message of the error calls it ``name``.

    Raises:
        ConfigurationError: ``value`` is no number, or outside of [0, 1).
    """
    if not _is_number(value) or not 0 <= value < 1:
        raise ConfigurationError(f"{name}: expected a number in [0, 1), got {_shortened(value)}")
    return value


@checked
def check_choice(name: str, value: T, choices: Iterable[T]) -> T:
    """Return ``value`` if it is one of ``choices``; the message of the error calls it ``name``.

    Raises:
        ConfigurationError: ``value`` is none of ``choices``, or has another type than the choice that it equals.
    """
    choices = list(choices)
    # values of other kinds than the choices, such as arrays, may not be comparable
    comparable = not isinstance(value, Tensor | np.ndarray)
    if not any(value is known or (comparable and type(value) is type(known) and value == known) for known in choices):
        raise ConfigurationError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {_shortened(value)}")
    return value


@checked
def check_type(name: str, value: Any, kind: type[T]) -> T:
    """Return ``value`` if it is an instance of ``kind``; the message of the error calls it ``name``.

    Raises:
        ConfigurationError: ``value`` is an instance of another class.
    """
    if not isinstance(value, kind):
        raise ConfigurationError(f"{name}: expected an instance of {kind.__name__}, got {_shortened(value)}")
    return value


def check_values(name: str, x: Tensor) -> Tensor:
    """Return ``x`` if its values can be read, as steps need that are chosen by errors, and refusals of wrong data.

    Args:
        name: what the message of the error calls it.
        x: a tensor.

    Raises:
        ConfigurationError: they cannot, under ``torch.func.vmap``, while traced, or on the meta device; or x is no
            tensor.
    """
    if is_abstract(check_type(name, x, Tensor)):
        raise ConfigurationError(
            f"{name}: expected a tensor whose values can be read, got one under torch.func.vmap, in compiled code or "
            "on the meta device; instead of vmap give all rows in one call, as a batch"
        )
    return x


def check_tensor(name: str, value: Any) -> Tensor:
    """Return ``value`` as a floating-point tensor; NumPy arrays and (nested) lists of numbers are converted.

    Lists of Python numbers get the default dtype, and arrays keep their own. Lists of tensors are stacked, with their
    derivatives.

    Args:
        name: name of ``value`` in messages.
        value: a tensor, an array, or a list.

    Raises:
        ConfigurationError: ``value`` has another type, or holds integers, truth values or complex numbers.
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

    Other values are returned unchanged, for later checks. Messages call the value ``name``.

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
        return first, others[0]  # the usual case, in a third of the time
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
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:  # which one depends on the fault
            raise ConfigurationError(f"device: expected a device of this machine, got {device!r}: {error}") from error


def check_dtype(dtype: torch.dtype | None) -> None:
    """Check that ``dtype`` is a real floating-point dtype, or ``None``.

    Raises:
        ConfigurationError: any other value.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ConfigurationError(f"dtype: expected a floating-point dtype, got {dtype}")


def _shortened(value: Any) -> str:
    """The text of a value on one line, cut if it is long; of many numbers their type and shape."""
    if isinstance(value, Tensor | np.ndarray) and math.prod(value.shape) > _MAX_NUMBERS:
        return f"{type(value).__name__} {value.dtype} {list(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]} ..."


def _holds_numbers(value: Any) -> bool:
    """Whether a value is an array, or a (nested) list of numbers."""
    if type(value) not in (list, tuple):  # a named tuple is a datum of several parts
        return isinstance(value, np.ndarray)
    return all(isinstance(x, int | float | np.generic) for x in pytree.tree_leaves(value))


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(x, Tensor) for x in pytree.tree_leaves(value))


def _stacked(value: Any, reference: Tensor | None = None) -> Tensor:
    """The tensor of a (nested) list of tensors and numbers; numbers get the widest dtype of the tensors."""
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


class _Names(dict[str, Any]):
    """The names of a module; others, which it imports for annotations alone, are looked up in the library."""

    def __missing__(self, name: str) -> Any:
        for module in [m for key, m in sys.modules.items() if key.startswith("trivgeo.")]:
            if name in vars(module):
                return vars(module)[name]
        raise KeyError(name)


class _Rule:
    """The requirements of an annotation on an argument."""

    def __init__(self, name: str, hint: Any) -> None:
        self.name = name
        self.fits = _fits(hint)
        alternatives = _alternatives(hint)
        # a tensor of any shape holds floats
        self.tensors = [Float[Tensor, "..."] if h is Tensor else h for h in alternatives if _is_tensor(h)]
        self.expected = " or ".join(map(_described, alternatives))

    def __call__(self, value: Any, shapes: dict[str, list[int]]) -> Any:
        """The argument, converted to a tensor if needed; its shape is added to those of the tensors before, by name.

        Raises:
            ConfigurationError: the argument is of another kind.
            ShapeError: the argument is a tensor of another shape.
        """
        assert self.fits is not None
        if self.tensors and isinstance(value, (*_SEQUENCE_TYPES, *_ARRAY_TYPES)) and not self.fits(value):
            value = check_tensor(self.name, value)
        if isinstance(value, Tensor) and self.tensors:
            if not any(_has_dtype(value, hint) for hint in self.tensors):
                raise ConfigurationError(f"{self.name}: expected {self.expected}, got a tensor of {value.dtype}")
            if not any(isinstance(value, hint) for hint in self.tensors):  # type: ignore[arg-type]
                others = f" beside {', '.join(f'{name} {shape}' for name, shape in shapes.items())}" if shapes else ""
                raise ShapeError(f"{self.name}: expected {self.expected}, got {list(value.shape)}{others}")
            shapes[self.name] = list(value.shape)
        elif not self.fits(value):
            raise ConfigurationError(f"{self.name}: expected {self.expected}, got {_shortened(value)}")
        return value


def _has_dtype(value: Tensor, hint: Any) -> bool:
    """Whether the dtype of a tensor is one of an annotation such as ``Float[Tensor, "*batch n"]``."""
    return not isinstance(hint.dtypes, list | tuple) or str(value.dtype).removeprefix("torch.") in hint.dtypes


def _fits(hint: Any) -> Fits | None:
    """The test whether a value has the type of an annotation; ``None`` if the annotation cannot be tested."""
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
    if hint in _NUMBER_TYPES:
        return lambda value: isinstance(value, _NUMBER_TYPES[hint]) and not isinstance(value, bool)
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
        part = _fits(inner[0]) if inner else None  # items are tested only where they can be read twice
        return lambda value: (
            isinstance(value, kind)
            and not isinstance(value, Tensor)
            and (part is None or not _is_sequence(value) or all(map(part, value)))
        )
    return lambda value: isinstance(value, kind)


_NUMBER_TYPES: dict[Any, tuple[type, ...]] = {int: (int, np.integer), float: (int, float, np.integer, np.floating)}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows: the parts of a union, the constraints of a type variable, or itself."""
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
