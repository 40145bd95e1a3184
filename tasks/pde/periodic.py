"""Periodic equations in one dimension with Gaussian random initial conditions, solved numerically."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.actions import Field
from trivgeo.checks import check_count, check_positive
from trivgeo.pde import FourierSeries, GaussianField, SpectralEquation, solve

from .domain import Domain
from .equation import Equation, Solutions

_HELD_OUT_SEED = 2_147_483_647  # seed of validation fields; test sets and training batches have smaller ones


class PeriodicEquation(Equation):
    """An equation on [0, length] x [0, duration], periodic in x, u_0 a Gaussian random field of mean zero.

    Args:
        field: the field; its length is the period.
        duration: the last time.
        amplitude: most initial conditions stay in [-amplitude, amplitude].
        points: points in x of the solver, at least.
        steps: least number of steps in t.

    Raises:
        ConfigurationError: a number is not positive.
    """

    is_simulated = True

    def __init__(self, field: GaussianField, duration: float, amplitude: float, points: int, steps: int) -> None:
        check_positive("duration", duration)
        check_positive("amplitude", amplitude)
        self.field = field
        self.domain = Domain(0.0, field.length, 0.0, duration, -amplitude, amplitude)
        self.points = check_count("points", points)
        self.steps = check_count("steps", steps)

    @property
    def field_constants(self) -> dict[str, float]:
        """Numbers of the field of the initial conditions, for the description."""
        return {"sigma": self.field.sigma, "tau": self.field.tau, "gamma": self.field.gamma}

    @property
    def spectral(self) -> SpectralEquation:
        """The formula in Fourier space, for the solver."""
        return SpectralEquation.from_equation(self.formula, **self.constants)

    def sample(self, count: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> "PeriodicSolutions":
        drawn = self.field.sample(count, generator)
        return PeriodicSolutions(FourierSeries(drawn.coefficients.to(dtype), drawn.length), self)

    def held_out(self, count: int) -> "PeriodicSolutions":
        return self.sample(count, torch.Generator().manual_seed(_HELD_OUT_SEED))


@dataclass(frozen=True)
class PeriodicSolutions(Solutions):
    """Solutions from periodic initial conditions, by `trivgeo.pde.solve`."""

    field: FourierSeries
    equation: PeriodicEquation

    def initial(self, x: Float[Tensor, " p"]) -> Float[Tensor, "b p"]:
        return self.field(x)

    def on_grid(self, *counts: int) -> Float[Tensor, "b q"]:
        """Solutions at the resolution of the equation, or a finer one that the grid is part of."""
        nx, nt = counts
        (_, length), (_, duration), _ = self.equation.domain.line()
        finer = math.ceil(self.equation.points / (nx - 1))
        x = torch.arange(finer * (nx - 1), dtype=self.field.coefficients.dtype) / (finer * (nx - 1)) * length
        times = [duration * i / (nt - 1) for i in range(nt)]
        initial = Field.on_box(self.field(x).unsqueeze(-2), [(0.0, length)])
        solution = solve(self.equation.spectral, initial, times, max_step=duration / self.equation.steps)
        kept = solution.values[..., 0, :, ::finer].mT
        return torch.cat([kept, kept[..., :1, :]], -2).flatten(-2)
