"""Classes of other libraries to inherit from, and what is said where a library is missing."""

from __future__ import annotations

import importlib
from typing import Any

from trivgeo.errors import ConfigurationError, missing_package


def base_class(module: str, name: str, package: str) -> Any:
    """Return a class of another library; where it cannot be imported, one whose constructor raises the reason.

    Args:
        module: module of the class.
        name: name of the class.
        package: name of the library on the package index.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, RuntimeError) as error:  # torchvision beside another build of torch raises a RuntimeError
        reason = error

    class Missing:
        """Stands for a class of a library that cannot be imported."""

        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__()

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            if isinstance(reason, ModuleNotFoundError):
                raise missing_package(cls.__name__, package, "bridges") from reason
            raise ConfigurationError(
                f"{cls.__name__}: expected {package} that can be imported, got {type(reason).__name__}: {reason}"
            ) from reason

    return Missing
