"""Names that are on their way out: each works until a version that is said, and tells what to write in its place.

```python
__getattr__ = old_names(__name__, {"Descent": Renamed("trivgeo.inversion.Descend", until="0.4")})
```
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

__all__ = ["Renamed", "old_names", "overdue"]

_KNOWN: dict[str, Renamed] = {}
"""All old names of modules that were imported."""


class Renamed(NamedTuple):
    """Where something went.

    Attributes:
        to: the full name of what stands in its place.
        until: the version that no longer has the old name.
    """

    to: str
    until: str


def old_names(module: str, renamed: Mapping[str, Renamed]) -> Callable[[str], Any]:
    """A ``__getattr__`` for a module: old names are what they are called now, with a ``DeprecationWarning``.

    Args:
        module: the module that had them.
        renamed: by old name.
    """

    _KNOWN.update({f"{module}.{name}": entry for name, entry in renamed.items()})

    def getattribute(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        to, until = renamed[name]
        warnings.warn(f"{module}.{name} is now {to}, and is gone in {until}", DeprecationWarning, stacklevel=2)
        home, _, new = to.rpartition(".")
        return getattr(import_module(home), new)

    return getattribute


def overdue(version: str) -> list[str]:
    """Old names of imported modules that a version should no longer have; a release must have none.

    Args:
        version: such as ``0.4.0``.
    """
    return sorted(name for name, entry in _KNOWN.items() if _numbers(entry.until) <= _numbers(version))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
