"""Differentiable geometry on matrix-free Lie groups, trivialized diffusion on them, and transformation inversion.

- `trivgeo.groups`: groups whose elements are plain tensors, with their actions on points.
- `trivgeo.actions`: actions on other data.
- `trivgeo.sde`: trivialized stochastic differential equations, scores, reverse diffusion.
- `trivgeo.inversion`: sampling the posterior of an unknown transformation, and test-time equivariance.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("trivgeo")
except PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
