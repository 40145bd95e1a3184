"""The Boltzmann distribution of E(X) = -c X_11^2 on SO(n), and the exact distribution of X_11 under it."""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from trivgeo.errors import ConfigurationError

GRID = 20_001


class CornerDistribution:
    r"""The density proportional to :math:`\exp(c X_{11}^2)` for Haar measure on SO(n).

    The first column of a Haar-uniform rotation is uniform on the sphere, so that X_11 has the density
    :math:`\propto (1 - x^2)^{(n - 3) / 2} \exp(c x^2)` on [-1, 1].

    Args:
        n: the size of the matrices, at least 3.
        strength: c.

    Raises:
        ConfigurationError: n is less than 3.
    """

    def __init__(self, n: int = 10, strength: float = 10.0) -> None:
        if n < 3:
            raise ConfigurationError(f"n: expected at least 3, got {n}")
        self.n = n
        self.strength = strength
        self._x = np.linspace(-1.0, 1.0, GRID)
        density = (1.0 - self._x**2) ** ((n - 3) / 2) * np.exp(strength * (self._x**2 - 1.0))
        cumulative = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(self._x))])
        self._density = density / cumulative[-1]
        self._cumulative = cumulative / cumulative[-1]

    def energy(self, g: Tensor) -> Float[Tensor, "*batch"]:
        """``-c X_11^2`` of elements ``[*batch, n, n]``."""
        return -self.strength * g[..., 0, 0] ** 2

    def density(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The density of X_11."""
        return np.interp(x, self._x, self._density)

    def cumulative(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The distribution function of X_11."""
        return np.interp(x, self._x, self._cumulative)

    def mean_square(self) -> float:
        """The mean of X_11^2."""
        return float(np.trapezoid(self._x**2 * self._density, self._x))

    def kolmogorov_smirnov(self, x: Float[Tensor, " m"]) -> float:
        """The largest distance between the distribution function of a sample of X_11 and the exact one."""
        return float(stats.kstest(x.double().cpu().numpy(), self.cumulative).statistic)  # type: ignore[arg-type]
