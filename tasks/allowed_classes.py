"""Classes and functions that a configuration may name: a stranger's configuration runs no code but this.

Allowed is what this project defines; what the user wrote, that is, modules that no installer put where they are, and
installed packages that the user names in the environment variable TRIVGEO_PACKAGES, separated by commas; and those
classes of torch, Lightning, torchmetrics and geoopt that networks, distributions and trainers are made of.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import FunctionType
from typing import Any, get_type_hints

from jsonargparse import Namespace
from lightning.fabric.accelerators.accelerator import Accelerator
from lightning.fabric.loggers.logger import Logger
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment, Precision
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.plugins import LayerSync
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from torch import nn
from torch.distributions import Distribution
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from trivgeo._applications import importable, is_ours
from trivgeo.errors import ConfigurationError

from .run_identity import is_installed

PACKAGES_VARIABLE = "TRIVGEO_PACKAGES"
"""Environment variable with installed packages whose classes configurations may name."""

_KINDS = (
    *(nn.Module, Optimizer, LRScheduler),
    *(LightningDataModule, Callback, Strategy, Accelerator, Logger, Profiler),
    *(Precision, ClusterEnvironment, CheckpointIO, LayerSync),
    *(Dataset, Distribution),
)
# prefixes of modules with classes that are safe to construct; others, such as torch.fx, make networks of code
_MODULES_OF_KINDS = (
    *("torch.nn.", "torch.optim.", "torch.distributions.", "torch.utils.data.dataset.", "lightning."),
    *("torchmetrics.classification.", "torchmetrics.regression.", "geoopt."),
)


def check_callables(config: Any) -> None:
    """Check every class and function in a configuration, whatever the type of its argument.

    The parser checks a class against the type of its argument, but an argument may have none, or take any object. A
    class must be allowed, see above. A function must be of this project or the user's, and its annotation must say
    that it returns a module of torch or an object of a class of this project. The same holds of functions that the
    parser found by a path alone, for arguments that are called.

    Raises:
        ConfigurationError: a class or a function is not allowed.
    """
    _check(config, "configuration", None)


def import_modules(names: Iterable[str]) -> None:
    """Import modules that a configuration names, such as those of networks that a file holds.

    A checkpoint of a stranger must not choose what is imported, so the module of a network of the user's own is named
    by the configuration. What may be imported is what may be called: see `check_callables`.

    Args:
        names: dotted names of modules, in the order in which they are imported.

    Raises:
        ConfigurationError: there is no such module, it is one of others, or cannot be imported.
    """
    for name in map(importable, names):
        _check_module(name)
        try:
            importlib.import_module(name)
        except (ImportError, SyntaxError) as error:
            raise ConfigurationError(f"imports: expected a module that can be imported, got {name}: {error}") from error


def _check_module(name: str) -> None:
    """Raise unless a module is the project's or the user's, before code of it runs."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(f"imports: expected dotted names of modules, got {name!r}")
    package = name.split(".")[0]
    named = os.environ.get(PACKAGES_VARIABLE, "").split(",")
    if is_ours(name) or package in named:
        return
    try:
        spec = None if package in sys.stdlib_module_names else find_spec(package)
    except ValueError:  # a module that was made by hand, as __main__
        spec = None
    if spec is None and package not in sys.stdlib_module_names:
        raise ConfigurationError(
            f"imports: expected modules that Python finds, got {name}; PYTHONPATH names folders in which it looks"
        )
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    if not places or any(is_installed(Path(place)) for place in places if place is not None):
        raise ConfigurationError(
            f"imports: expected modules of yours (an installed package must be named in {PACKAGES_VARIABLE}), "
            f"got {name}"
        )


def _check(value: Any, name: str, owner: str | None) -> None:
    """`check_callables` for the argument ``name`` of the class at the path ``owner``."""
    if isinstance(value, list | tuple | set):
        for part in value:
            _check(part, name, None)
    elif isinstance(value, Namespace | Mapping):
        entries = vars(value) if isinstance(value, Namespace) else value
        path = entries.get("class_path")
        if isinstance(path, str):
            _check_callable(path)
            owner = path
        for key, part in entries.items():
            _check(part, str(key), owner)
    elif callable(value) and not _is_allowed(value) and not _is_default(value, name, owner):
        raise ConfigurationError(f"{name}: expected a function that returns an object of ours, got {value!r}")


def _check_callable(path: str) -> None:
    try:
        found = resolve_name(importable(path))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"class_path: expected a class that can be imported, got {path!r}: {error}") from error
    if not _is_allowed(found):
        raise ConfigurationError(
            "class_path: expected a class of ours, of yours (an installed package must be named in "
            f"{PACKAGES_VARIABLE}), or for networks and trainers of torch and Lightning, or a function that returns one"
            f" of ours, got {path}"
        )


def _is_allowed(found: object) -> bool:
    """Whether a configuration may call ``found``."""
    if isinstance(found, type):
        is_kind = issubclass(found, _KINDS) and f"{found.__module__}.".startswith(_MODULES_OF_KINDS)
        return is_kind or _is_ours_or_users(found.__module__)
    if not isinstance(found, FunctionType) or not _is_ours_or_users(found.__module__ or "builtins"):
        return False
    returned = get_type_hints(found).get("return")
    return isinstance(returned, type) and any(
        parent is nn.Module or is_ours(parent.__module__) for parent in returned.__mro__
    )


def _is_ours_or_users(module: str) -> bool:
    """Whether a module is of this project, or one that the user wrote or named."""
    package = module.split(".")[0]
    if is_ours(module) or package == "__main__":
        return True
    if package in sys.stdlib_module_names:
        return False
    if package in os.environ.get(PACKAGES_VARIABLE, "").split(","):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not is_installed(Path(file))


def _is_default(value: object, name: str, owner: str | None) -> bool:
    """Whether the owner has this value by default: then nobody named it."""
    found = None if owner is None else resolve_name(importable(owner))
    makers = [vars(parent).get("__init__") for parent in found.__mro__] if isinstance(found, type) else [found]
    parameters = [inspect.signature(maker).parameters.get(name) for maker in makers if isinstance(maker, FunctionType)]
    return any(parameter is not None and parameter.default is value for parameter in parameters)
