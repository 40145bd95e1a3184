"""Typed errors, whose messages say what was expected and what was given."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence

__all__ = [
    "AlgebraError",
    "CheckpointError",
    "ConfigurationError",
    "DomainError",
    "NonFiniteError",
    "ShapeError",
    "TrivgeoError",
]


class TrivgeoError(ValueError):
    """Base class of every error that trivgeo raises for bad input."""


class ShapeError(TrivgeoError):
    """A tensor has the wrong shape, or shapes do not broadcast."""


class DomainError(TrivgeoError):
    """A value lies outside the domain on which an operation is defined."""


class NonFiniteError(DomainError):
    """Data hold NaN or infinity where finite numbers are needed."""


class AlgebraError(TrivgeoError):
    """Structure constants do not define a Lie algebra, or a computation with one fails."""


class ConfigurationError(TrivgeoError):
    """Objects do not fit together, or a setting is out of range."""


class CheckpointError(TrivgeoError):
    """A checkpoint cannot be read, or does not fit the model."""


def missing_package(argument: str, package: str, extra: str) -> ConfigurationError:
    """Return the error of a feature whose package is not installed, with the command that installs it.

    Args:
        argument: name of the argument or feature that needs the package.
        package: name of the package.
        extra: the optional dependency of trivgeo in ``pyproject.toml`` that holds the package.
    """
    return ConfigurationError(f"{argument}: expected {package}, which is not installed: {how_to_install(extra)}")


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra, as in ``pip install 'lightning>=2.5' (trivgeo[training])``.

    trivgeo is not on a package index, so that ``pip install 'trivgeo[training]'`` finds nothing: the command names the
    packages themselves, as the metadata of the installed trivgeo have them.
    """
    try:
        requirements = importlib.metadata.requires("trivgeo") or []
    except importlib.metadata.PackageNotFoundError:  # the sources are on the path
        requirements = []
    packages = _packages_of(extra, requirements)
    if not packages:
        return f"pip install '.[{extra}]' in a checkout (trivgeo[{extra}])"
    return f"pip install {' '.join(repr(package) for package in packages)} (trivgeo[{extra}])"


def _packages_of(extra: str, requirements: Sequence[str]) -> list[str]:
    """Return the requirements of an extra, with those of extras that it names."""
    found: list[str] = []
    for requirement in requirements:
        package, _, marker = (part.strip() for part in requirement.partition(";"))
        if not re.search(rf"extra == ['\"]{re.escape(extra)}['\"]", marker):
            continue
        inner = re.fullmatch(r"trivgeo\[(.*)\]", package)
        names = inner[1].split(",") if inner else []
        found += [p for name in names for p in _packages_of(name.strip(), requirements)] if inner else [package]
    return list(dict.fromkeys(found))
