"""Equations of the tests, derived from their text."""

from trivgeo.pde import SpectralEquation

KDV = SpectralEquation.from_equation("u_t + u*u_x + u_xxx = 0")
KURAMOTO_SIVASHINSKY = SpectralEquation.from_equation("u_t + u*u_x + u_xx + u_xxxx = 0")


def burgers(nu: float) -> SpectralEquation:
    return SpectralEquation.from_equation("u_t + u*u_x = nu*u_xx", nu=nu)


def heat(nu: float) -> SpectralEquation:
    """In the plane."""
    return SpectralEquation.from_equation("u_t = nu*(u_xx + u_yy)", nu=nu)
