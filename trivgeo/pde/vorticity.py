"""The vorticity equation, which is not local: the velocity is an integral of the unknown."""

from __future__ import annotations

from jaxtyping import Complex
from torch import Tensor

from trivgeo.checks import check_positive, checked
from trivgeo.pde.spectral import FourierModes, SpectralEquation


@checked
class Vorticity(SpectralEquation):
    """The vorticity of a plane viscous flow without mean, w_t + v . grad w = nu Laplace w, v = rot (-Laplace)^-1 w.

    Args:
        nu: kinematic viscosity.

    Raises:
        ConfigurationError: the viscosity is not positive.
    """

    def __init__(self, nu: float) -> None:
        self.nu = check_positive("nu", nu)

    def linear(self, modes: FourierModes) -> Tensor:
        return -self.nu * modes.squared

    def nonlinear(self, modes: FourierModes, u: Complex[Tensor, "*batch c k l"]) -> Tensor:
        """Return the coefficients of -div(v w), where v = (psi_y, -psi_x) and -Laplace psi = w."""
        kx, ky = modes.along(0), modes.along(1)
        squared = modes.squared
        stream = u / squared.where(squared > 0, 1.0)
        w = modes.to_values(u)
        flux_x = modes.to_modes(modes.to_values(1j * ky * stream) * w)
        flux_y = modes.to_modes(modes.to_values(-1j * kx * stream) * w)
        return -1j * (kx * flux_x + ky * flux_y)
