"""Differentiable geometry on matrix-free Lie groups, trivialized diffusion on them, and transformation inversion.

- `trivgeo.groups`: groups whose elements are plain tensors, with their actions on points.
- `trivgeo.symmetry`: the point symmetries of an equation, and the group that they make (needs SymPy).
- `trivgeo.actions`: actions on other data.
- `trivgeo.pde`: solvers of periodic evolution equations.
- `trivgeo.sde`: trivialized stochastic differential equations, scores, reverse diffusion.
- `trivgeo.generative`: models fitted to samples on any group.
- `trivgeo.inversion`: sampling the posterior of an unknown transformation, and test-time equivariance.
- `trivgeo.geoopt`: groups as manifolds of geoopt (needs geoopt).

A subpackage is imported when it is first used: ``import trivgeo; trivgeo.groups.SO(3)``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

try:
    __version__ = version("trivgeo")
except PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0+unknown"

_SUBPACKAGES = (
    "actions",
    "checks",
    "errors",
    "expressions",
    "features",
    "generative",
    "geoopt",
    "groups",
    "inversion",
    "pde",
    "registration",
    "sde",
    "symmetry",
)

__all__ = ["__version__", *_SUBPACKAGES]


def __getattr__(name: str) -> ModuleType:
    if name in _SUBPACKAGES:
        return import_module(f"trivgeo.{name}")
    raise AttributeError(f"module 'trivgeo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBPACKAGES})
