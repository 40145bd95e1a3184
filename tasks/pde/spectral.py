r"""Periodic evolution equations u_t + (u^2 / 2)_x = L u by a Fourier method, and random initial conditions for them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from trivgeo.checks import check_count, check_positive
from trivgeo.errors import DomainError, ShapeError


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
        modes: m, the number of wave numbers.
        length: the period.

    Raises:
        ConfigurationError: a number is not positive and finite.
    """

    sigma: float
    tau: float
    gamma: float
    modes: int
    length: float = 1.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("sigma", "tau", "gamma", "length"):
            check_positive(name, getattr(self, name))
        check_count("modes", self.modes)

    def deviations(self) -> Float[Tensor, " m"]:
        """Standard deviations of the coefficients of cos and sin, float64."""
        wave = 2.0 * math.pi / self.length * torch.arange(1, self.modes + 1, dtype=torch.float64)
        return math.sqrt(2.0 / self.length) * self.sigma * (wave**2 + self.tau**2) ** (-self.gamma / 2)

    def sample(self, count: int, generator: torch.Generator) -> "FourierSeries":
        """Draw `count` fields, float64."""
        normal = torch.randn(count, 2, self.modes, generator=generator, dtype=torch.float64)
        return FourierSeries(self.deviations() * normal, self.length)

    def covariance(self, distance: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Covariance of two values at a distance, the same everywhere."""
        wave = 2.0 * math.pi / self.length * torch.arange(1, self.modes + 1, dtype=torch.float64)
        return torch.cos(distance.unsqueeze(-1) * wave) @ self.deviations() ** 2


@dataclass(frozen=True)
class FourierSeries:
    """Real periodic functions without mean, by their Fourier coefficients; they can be evaluated anywhere.

    Attributes:
        coefficients: of cos and sin, `[*batch, 2, m]`, for wave numbers 1, ..., m.
        length: the period.
    """

    coefficients: Tensor
    length: float

    def __call__(self, x: Float[Tensor, " p"]) -> Float[Tensor, "*batch p"]:
        """Values at positions shared by the batch."""
        modes = self.coefficients.shape[-1]
        phase = 2.0 * math.pi / self.length * x.unsqueeze(-1) * torch.arange(1, modes + 1, dtype=x.dtype)
        return self.coefficients[..., 0, :] @ torch.cos(phase).mT + self.coefficients[..., 1, :] @ torch.sin(phase).mT


def solve_periodic(
    initial: Float[Tensor, "*batch n"],
    symbol: Callable[[Tensor], Tensor],
    *,
    length: float,
    duration: float,
    outputs: int,
    substeps: int,
) -> Float[Tensor, "*batch n outputs"]:
    r"""Solve u_t + (u^2 / 2)_x = L u, periodic in x, for the Fourier multiplier L.

    Products are freed of aliasing by keeping wave numbers up to n / 3; time is advanced by the classical Runge-Kutta
    method of order 4 on :math:`e^{-tL} \hat u` (integrating factor), so that L, however stiff, costs no small steps.

    Args:
        initial: values at x = i length / n, i = 0, ..., n - 1.
        symbol: L as a function of the wave number k: `-nu k**2` for nu u_xx, `1j * k**3` for -u_xxx.
        length: the period.
        duration: the last time; the first is 0.
        outputs: number of equidistant times, at least 2, first and last included.
        substeps: steps between two outputs.

    Returns:
        Values at the positions of `initial` and all times; those at the first time have lost what lies above n / 3.

    Raises:
        ConfigurationError: a count or a length is not positive.
        DomainError: the solution blew up: take more substeps or points.
        ShapeError: fewer than two outputs, or fewer than 8 points.
    """
    check_positive("length", length)
    check_positive("duration", duration)
    check_count("substeps", substeps)
    count = initial.shape[-1]
    if outputs < 2 or count < 8:
        raise ShapeError(f"expected at least 2 outputs and 8 points, got {outputs} and {count}")
    wave = 2.0 * math.pi / length * torch.arange(count // 2 + 1, dtype=initial.dtype)
    kept = torch.arange(count // 2 + 1) <= count // 3
    step = duration / (outputs - 1) / substeps
    half = torch.exp(0.5 * step * symbol(wave))
    full = half * half
    derivative = -0.5j * wave * kept

    def slope(state: Complex[Tensor, "*batch k"]) -> Complex[Tensor, "*batch k"]:
        value = torch.fft.irfft(state, n=count)
        return derivative * torch.fft.rfft(value * value)

    state = torch.fft.rfft(initial) * kept
    values = [torch.fft.irfft(state, n=count)]
    for _ in range(outputs - 1):
        for _ in range(substeps):
            k1 = slope(state)
            k2 = slope(half * (state + 0.5 * step * k1))
            k3 = slope(half * state + 0.5 * step * k2)
            k4 = slope(full * state + step * half * k3)
            state = full * state + step / 6.0 * (full * k1 + 2.0 * half * (k2 + k3) + k4)
        values.append(torch.fft.irfft(state, n=count))
    solution = torch.stack(values, -1)
    if not bool(torch.isfinite(solution).all()):
        raise DomainError(f"the solution blew up with {count} points and steps of {step:.3g}")
    return solution
