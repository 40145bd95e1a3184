"""Random periodic functions of one variable: initial conditions for equations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import normal
from trivgeo._text import Described
from trivgeo.checks import check_count, check_positive, checked


@checked
@dataclass(frozen=True)
class GaussianField:
    r"""Gaussian random field N(0, sigma^2 (-Laplace + tau^2)^-gamma) without its mean, periodic on [0, length].

    .. math:: u(x) = \sum_{k=1}^{m} s_k \sqrt 2\, (a_k \cos \kappa_k x + b_k \sin \kappa_k x) / \sqrt{\text{length}},
        \quad s_k = \sigma (\kappa_k^2 + \tau^2)^{-\gamma / 2}, \quad \kappa_k = 2 \pi k / \text{length},

    with independent standard normal :math:`a_k, b_k`: the basis is orthonormal in L2, the mean value is zero.

    Args:
        sigma: amplitude.
        tau: inverse correlation length.
        gamma: decay; realisations have fewer than gamma - 1/2 square-integrable derivatives.
        num_modes: number m of wave numbers.
        length: the period.

    Raises:
        ConfigurationError: a number is not positive and finite.
    """

    sigma: float
    tau: float
    gamma: float
    num_modes: int
    length: float = 1.0

    def __post_init__(self) -> None:
        for name in ("sigma", "tau", "gamma", "length"):
            check_positive(name, getattr(self, name))
        check_count("num_modes", self.num_modes)

    def deviations(self) -> Float[Tensor, " m"]:
        """Standard deviations of the coefficients of cos and sin, float64."""
        wave = 2.0 * math.pi / self.length * torch.arange(1, self.num_modes + 1, dtype=torch.float64)
        return math.sqrt(2.0 / self.length) * self.sigma * (wave**2 + self.tau**2) ** (-self.gamma / 2)

    def sample(self, num_samples: int, generator: torch.Generator) -> FourierSeries:
        """Draw independent fields on the torus, in float64.

        Args:
            num_samples: number of fields.
            generator: random numbers.
        """
        check_count("num_samples", num_samples, 0)
        deviations = self.deviations()
        return FourierSeries(deviations * normal((num_samples, 2, self.num_modes), deviations, generator), self.length)

    def covariance(self, distance: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Return the covariance of two values at a ``distance``, the same everywhere, ``[*batch]``."""
        wave = 2.0 * math.pi / self.length * torch.arange(1, self.num_modes + 1, dtype=torch.float64)
        return torch.cos(distance.unsqueeze(-1) * wave) @ self.deviations() ** 2


@checked
@dataclass(frozen=True, repr=False)
class FourierSeries(Described):
    """Real periodic functions without mean, by their Fourier coefficients; they can be evaluated anywhere.

    Attributes:
        coefficients: coefficients of cos and sin, ``[*batch, 2, m]``, for wave numbers 1, ..., m.
        length: the period.
    """

    coefficients: Tensor
    length: float

    def __call__(self, x: Float[Tensor, " p"]) -> Float[Tensor, "*batch p"]:
        """The values at positions that all functions share."""
        modes = self.coefficients.shape[-1]
        phase = 2.0 * math.pi / self.length * x.unsqueeze(-1) * torch.arange(1, modes + 1, dtype=x.dtype)
        return self.coefficients[..., 0, :] @ torch.cos(phase).mT + self.coefficients[..., 1, :] @ torch.sin(phase).mT
