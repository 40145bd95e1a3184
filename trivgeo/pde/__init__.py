"""Solvers for periodic evolution equations, equations written once, and random initial conditions.

SymPy is imported by `EvolutionEquation` on first use.
"""

from trivgeo.pde.evolution import EvolutionEquation
from trivgeo.pde.random_fields import FourierSeries, GaussianField
from trivgeo.pde.solver import solve
from trivgeo.pde.spectral import FourierModes, SpectralEquation, Vorticity

__all__ = [
    "EvolutionEquation",
    "FourierModes",
    "FourierSeries",
    "GaussianField",
    "SpectralEquation",
    "Vorticity",
    "solve",
]
