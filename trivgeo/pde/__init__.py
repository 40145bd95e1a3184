"""Solvers for periodic evolution equations, and random initial conditions: fields to train and test on."""

from trivgeo._signatures import check_calls
from trivgeo.pde.equations import Burgers, Heat, KdV, KuramotoSivashinsky, SpectralEquation, Vorticity
from trivgeo.pde.random_fields import FourierSeries, GaussianField
from trivgeo.pde.solver import Modes, solve

__all__ = [
    "Burgers",
    "FourierSeries",
    "GaussianField",
    "Heat",
    "KdV",
    "KuramotoSivashinsky",
    "Modes",
    "SpectralEquation",
    "Vorticity",
    "solve",
]

check_calls(__name__, __all__)
