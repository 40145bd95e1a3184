"""Names that are on their way out: each works until a version that is said, and tells what to write in its place.

```python
__getattr__ = old_names(__name__, {"Descent": Renamed("trivgeo.inversion.stages.Descend", until="0.4")})
```
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, TypeVar, cast

__all__ = [
    "Converted",
    "Renamed",
    "RenamedAttribute",
    "beneath_renaming",
    "current_arguments",
    "current_name",
    "old_names",
    "overdue",
    "renamed_arguments",
]

F = TypeVar("F", bound=Callable[..., Any])

_KNOWN: dict[str, Renamed] = {}
"""All old names of modules that were imported."""

_DECORATORS = ("trivgeo._deprecation", "trivgeo._numerics", "trivgeo._signatures")
"""Modules whose decorators stand between a function with an old argument and its caller."""


class Renamed(NamedTuple):
    """Where something went.

    Attributes:
        to: the full name of what stands in its place.
        until: the version that no longer has the old name.
    """

    to: str
    until: str


class Converted(NamedTuple):
    """An argument with a new name and another unit, see `renamed_arguments`.

    Attributes:
        to: the new name.
        convert: the new value of an old one.
    """

    to: str
    convert: Callable[[Any], Any]


def old_names(module: str, renamed: Mapping[str, Renamed]) -> Callable[[str], Any]:
    """A ``__getattr__`` for a module: old names are what they are called now, with a ``DeprecationWarning``.

    Args:
        module: the module that had them.
        renamed: by old name.
    """

    _KNOWN.update({f"{module}.{name}": entry for name, entry in renamed.items()})

    def getattribute(name: str) -> Any:
        # jsonargparse tries every parent of a module for the shortest path of a class: the path is to be the new one
        if name not in renamed or sys._getframe(1).f_code.co_name == "get_import_path":
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        to, until = renamed[name]
        warnings.warn(f"{module}.{name} is now {to}, and is gone in {until}", DeprecationWarning, stacklevel=2)
        home, _, new = to.rpartition(".")
        return getattr(import_module(home), new)

    return getattribute


def renamed_arguments(until: str, **renamed: str | Converted) -> Callable[[F], F]:
    """Decorator: pass keyword arguments on under their new names, with a ``DeprecationWarning`` for old ones.

    Args:
        until: the version that no longer takes the old names.
        **renamed: the new name of an argument, or a `Converted` one, by its old name.

    Example:
        >>> @renamed_arguments(until="0.4", number="num_samples")
        ... def sample(num_samples: int) -> Tensor: ...
    """

    def decorate(function: F) -> F:
        name = function.__qualname__
        changes = {old: Converted(new, lambda x: x) if isinstance(new, str) else new for old, new in renamed.items()}
        where = f"{function.__module__}.{name}"
        _KNOWN.update({f"{where}({old}=)": Renamed(new, until) for old, (new, _) in changes.items()})

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            for old in renamed.keys() & named.keys():
                new, convert = changes[old]
                if new in named:
                    raise TypeError(f"{name}() got both {new!r} and its old name {old!r}")
                message = f"{name}(): the argument {old!r} is now {new!r}, and is gone in {until}"
                warnings.warn(message, DeprecationWarning, stacklevel=_stack_level())
                named[new] = convert(named.pop(old))
            return function(*arguments, **named)

        call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        call.renaming = (decorate, function)  # type: ignore[attr-defined]  # for `beneath_renaming`
        return cast(F, call)

    return decorate


def _stack_level() -> int:
    """The ``stacklevel`` of a line that calls a decorated function. Python hides warnings about lines of libraries."""
    level, frame = 2, sys._getframe(2)
    while frame.f_globals.get("__name__") in _DECORATORS and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    return level


def beneath_renaming(function: F, change: Callable[[F], F]) -> F | None:
    """Apply a decorator to what `renamed_arguments` has decorated, so that it meets new names alone.

    Args:
        function: the function, decorated by `renamed_arguments`; for any other one the result is ``None``.
        change: the decorator.
    """
    renaming: tuple[Callable[[F], F], F] | None = vars(function).get("renaming")
    if renaming is None:
        return None
    decorate, inner = renaming
    if inner is not getattr(function, "__wrapped__", None):  # a decorator above has the same attributes
        return None
    changed = change(inner)
    return function if changed is inner else decorate(changed)


class RenamedAttribute:
    """The old name of an attribute of a class, which reads the new one with a ``DeprecationWarning``.

    Args:
        new: the new name of the attribute, dotted for one of an attribute; ``None`` on the way to it is the value.
        until: the version that no longer has the old name.

    Example:
        >>> class Sampler:
        ...     number = RenamedAttribute("num_samples", until="0.4")
    """

    def __init__(self, new: str, until: str) -> None:
        self._new = new
        self._until = until

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = f"{owner.__qualname__}.{name}"
        _KNOWN[f"{owner.__module__}.{self._old}"] = Renamed(self._new, self._until)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        message = f"{self._old} is now {self._new!r}, and is gone in {self._until}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        for name in self._new.split("."):
            instance = None if instance is None else getattr(instance, name)
        return instance


def current_name(path: str) -> str:
    """The new dotted name of an old one of an imported module; any other name as it is.

    Args:
        path: such as ``trivgeo.inversion.Descent``.
    """
    return _KNOWN[path].to if path in _KNOWN else path


def current_arguments(old: str) -> dict[str, list[str]]:
    """The classes and functions of imported modules that have renamed an argument, by its new name.

    Args:
        old: the old name, such as ``samples``.
    """
    found: dict[str, list[str]] = {}
    for path, entry in sorted(_KNOWN.items()):
        if path.endswith(f"({old}=)"):
            owner = path.removesuffix(f"({old}=)").removesuffix(".__init__").rpartition(".")[2]
            found.setdefault(entry.to, []).append(owner)
    return found


def overdue(version: str) -> list[str]:
    """Old names of imported modules that a version should no longer have; a release must have none.

    Args:
        version: such as ``0.4.0``.
    """
    return sorted(name for name, entry in _KNOWN.items() if _numbers(entry.until) <= _numbers(version))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
