"""Evolution equations with point symmetries, for the solver."""

from __future__ import annotations

from jaxtyping import Complex
from torch import Tensor

from trivgeo.checks import check_positive
from trivgeo.pde.spectral import FourierModes, SpectralEquation

__all__ = ["Burgers", "Heat", "KdV", "KuramotoSivashinsky", "Vorticity"]


class _Advected(SpectralEquation):
    """u_t + u u_x = L u in one dimension."""

    def nonlinear(self, modes: FourierModes, u: Complex[Tensor, "*batch c k"]) -> Tensor:
        return -0.5j * modes.along(0) * modes.to_modes(modes.to_values(u).square())


class KdV(_Advected):
    """The Korteweg-de Vries equation u_t + u u_x + u_xxx = 0; its group is `KdVSymmetry`."""

    def linear(self, modes: FourierModes) -> Tensor:
        return 1j * modes.along(0) ** 3


class KuramotoSivashinsky(_Advected):
    """The Kuramoto-Sivashinsky equation u_t + u u_x + u_xx + u_xxxx = 0: chaotic on circles that are long enough."""

    def linear(self, modes: FourierModes) -> Tensor:
        return modes.squared - modes.squared**2


class Burgers(_Advected):
    """Burgers' equation u_t + u u_x = nu u_xx; its group is `BurgersSymmetry`.

    Args:
        nu: viscosity.

    Raises:
        ConfigurationError: it is not positive.
    """

    def __init__(self, nu: float) -> None:
        self.nu = check_positive("nu", nu)

    def linear(self, modes: FourierModes) -> Tensor:
        return -self.nu * modes.squared


class Heat(SpectralEquation):
    """The heat equation u_t = nu Laplace u in any number of dimensions; in one its group is `HeatSymmetry`.

    Args:
        nu: diffusivity.

    Raises:
        ConfigurationError: it is not positive.
    """

    def __init__(self, nu: float) -> None:
        self.nu = check_positive("nu", nu)

    def linear(self, modes: FourierModes) -> Tensor:
        return -self.nu * modes.squared


class Vorticity(SpectralEquation):
    """The vorticity of a plane viscous flow without mean, w_t + v . grad w = nu Laplace w, v = rot (-Laplace)^-1 w.

    Args:
        nu: kinematic viscosity.

    Raises:
        ConfigurationError: it is not positive.
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
