r"""The heat equation u_t = nu u_xx on [0, 2 pi] x [0, 16]: initial conditions and the exact solution.

Initial conditions are u_0(x) = A sin(2 x), with solution A exp(-4 nu t) sin(2 x).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.checks import check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import HeatSymmetry
from trivgeo.pde import EvolutionEquation

from .domain import Domain
from .equation import ResidualEquation, Solutions

HEAT_NU = 0.1
"""Diffusivity."""

_WAVE_NUMBER = 2.0


def initial_condition(amplitude: Float[Tensor, "*#batch"], x: Float[Tensor, "*#batch"]) -> Float[Tensor, "*batch"]:
    """Initial condition A sin(2 x); the arguments broadcast."""
    return amplitude * torch.sin(_WAVE_NUMBER * x)


def exact_solution(
    amplitude: Float[Tensor, "*#batch"], x: Float[Tensor, "*#batch"], t: Float[Tensor, "*#batch"], nu: float = HEAT_NU
) -> Float[Tensor, "*batch"]:
    """Exact solution A exp(-4 nu t) sin(2 x); the arguments broadcast."""
    return initial_condition(amplitude, x) * torch.exp(-nu * _WAVE_NUMBER**2 * t)


@dataclass(frozen=True)
class HeatSolutions(Solutions):
    """Solutions of amplitudes A, `[b, 1]`, on a domain."""

    amplitude: Tensor
    domain: Domain
    nu: float = HEAT_NU

    def initial(self, x: Float[Tensor, " p"]) -> Float[Tensor, "b p"]:
        return initial_condition(self.amplitude, x)

    def on_grid(self, *counts: int) -> Float[Tensor, "b q"]:
        x, t = self.domain.grid(*counts, dtype=self.amplitude.dtype).unbind(-1)
        return exact_solution(self.amplitude, x, t, self.nu)


class HeatEquation(ResidualEquation):
    """u_t = nu u_xx with u_0 = A sin(2 x), A ~ U(amplitude_min, amplitude_max).

    The published networks know A = 1 ("fixed") or A ~ U(0.5, 5) ("augmented").

    Args:
        amplitude_min: smallest amplitude A.
        amplitude_max: largest amplitude; equal to the smallest for a single function.
        nu: diffusivity.

    Raises:
        ConfigurationError: the amplitudes are not 0 < min <= max.
    """

    formula = EvolutionEquation("u_t = nu*u_xx")

    def __init__(self, amplitude_min: float = 1.0, amplitude_max: float = 1.0, nu: float = HEAT_NU) -> None:
        if not 0.0 < amplitude_min <= amplitude_max:
            raise ConfigurationError(
                f"expected 0 < amplitude_min <= amplitude_max, got {amplitude_min} and {amplitude_max}"
            )
        self.nu = float(check_positive("nu", nu))
        self.amplitudes = (amplitude_min, amplitude_max)
        self.domain = Domain(0.0, 2.0 * math.pi, 0.0, 16.0, -amplitude_max, amplitude_max)

    def group(self) -> HeatSymmetry:
        return HeatSymmetry(self.nu)

    def sample(self, count: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> HeatSolutions:
        low, high = self.amplitudes
        return HeatSolutions(
            low + (high - low) * torch.rand(count, 1, generator=generator, dtype=dtype), self.domain, self.nu
        )

    def held_out(self, count: int) -> HeatSolutions:
        """Equidistant amplitudes, the mean one if alone."""
        low, high = self.amplitudes
        if count == 1:
            low = high = (low + high) / 2
        return HeatSolutions(torch.linspace(low, high, count, dtype=torch.float64)[:, None], self.domain, self.nu)
