r"""Burgers' equation u_t + u u_x = nu u_xx, periodic on [0, 1], t in [0, 1], from Gaussian random fields."""

from typing import Any

from trivgeo.checks import check_positive
from trivgeo.groups import BurgersSymmetry
from trivgeo.pde import EvolutionEquation, GaussianField

from .equation import ResidualEquation
from .periodic import PeriodicEquation


class BurgersEquation(PeriodicEquation, ResidualEquation):
    r"""u_t + u u_x = nu u_xx on the unit circle for a unit of time.

    Initial conditions are fields :math:`N(0, \sigma^2 (-\Delta + \tau^2)^{-\gamma})` of mean zero. The papers print the
    factor 25^2; the data that they use were made with sigma = 25^2 (Sifan Wang et al., "Learning the solution operator
    of parametric partial differential equations with physics-informed DeepONets", 2021, released code). That is the
    default: u_0 then has the standard deviation 0.21 and slopes that grow to 20, where with sigma = 25 it would be
    0.0086 and the equation all but linear.

    Args:
        nu: viscosity.
        sigma: amplitude of the field.
        tau: inverse correlation length of the field.
        gamma: decay of the field.
        modes: highest wave number of the field, see `KdVEquation`.
        points: points in x of the solver, at least. 200 and 200 steps are exact to 1e-7.
        steps: see `tasks.pde.periodic.PeriodicEquation`.

    Raises:
        ConfigurationError: a number is not positive.
    """

    formula = EvolutionEquation("u_t + u*u_x = nu*u_xx")

    def __init__(
        self,
        nu: float = 0.01,
        sigma: float = 625.0,
        tau: float = 5.0,
        gamma: float = 4.0,
        modes: int = 32,
        points: int = 200,
        steps: int = 200,
    ) -> None:
        # at the default sigma nine tenths of the fields stay within 0.5
        super().__init__(GaussianField(sigma, tau, gamma, modes), 1.0, 0.5 * sigma / 625.0, points, steps)
        self.nu = float(check_positive("nu", nu))

    @property
    def description(self) -> dict[str, Any]:
        """The equation, nu and the field of the initial conditions."""
        return {**super().description, **self.field_constants}

    def group(self) -> BurgersSymmetry:
        return BurgersSymmetry()
