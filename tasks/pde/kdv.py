r"""The Korteweg-de Vries equation u_t + u u_x + u_xxx = 0, periodic, and its symmetry group from its generators."""

from typing import Any

import sympy

from trivgeo.groups import KdVSymmetry, LieGroup, from_generators
from trivgeo.pde import EvolutionEquation, GaussianField

from .periodic import PeriodicEquation


class KdVEquation(PeriodicEquation):
    r"""u_t + u u_x + u_xxx = 0 on a circle of length 16 for 4 units of time.

    Initial conditions are fields :math:`N(0, \sigma^2 (-\Delta + \tau^2)^{-\gamma})` of mean zero; at the defaults
    their standard deviation is 1.1, and steepening and dispersion about balance.

    Args:
        sigma: amplitude of the field.
        tau: see `tasks.pde.burgers.BurgersEquation`.
        gamma: decay of the field.
        modes: highest wave number of the field.
        points: points in x of the solver, at least. 96 and 400 steps are exact to 1e-5.
        steps: see `tasks.pde.periodic.PeriodicEquation`.

    Raises:
        ConfigurationError: a number is not positive.
    """

    formula = EvolutionEquation("u_t + u*u_x + u_xxx = 0")

    def __init__(
        self,
        sigma: float = 0.2,
        tau: float = 0.5,
        gamma: float = 6.0,
        modes: int = 8,
        points: int = 96,
        steps: int = 400,
    ) -> None:
        # at the default sigma most fields stay within 2.5
        super().__init__(GaussianField(sigma, tau, gamma, modes, 16.0), 4.0, 2.5 * sigma / 0.2, points, steps)

    @property
    def description(self) -> dict[str, Any]:
        """The equation and the field of the initial conditions."""
        return {**super().description, **self.field_constants, "length": self.field.length}

    def group(self) -> KdVSymmetry:
        return KdVSymmetry()


def kdv_from_generators(scale: list[float] | None = None) -> LieGroup:
    """The symmetry group of the KdV equation, built from nothing but its infinitesimal generators.

    S = x d/dx + 3 t d/dt - 2 u d/du (scaling), T = d/dt, C = t d/dx + d/du (Galilean boost), X = d/dx (Olver 1993,
    example 2.44). The group is solvable and not unimodular.

    Args:
        scale: lengths of S, T, C and X; see `trivgeo.groups.LieGroup`.
    """

    x, t, u = sympy.symbols("x t u")
    fields = {"S": [x, 3 * t, -2 * u], "T": [0, 1, 0], "C": [t, 0, 1], "X": [1, 0, 0]}
    return from_generators(fields, variables=[x, t, u], scale=scale)
