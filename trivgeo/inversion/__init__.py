"""Inversion of unknown transformations, and test-time equivariance by it."""

from trivgeo.inversion.base import InversionResult, Inverter
from trivgeo.inversion.calibration import calibrated_scale
from trivgeo.inversion.domain import DomainDistance
from trivgeo.inversion.energy import DataEnergy, FunctionEnergy, PosteriorEnergy
from trivgeo.inversion.equivariant import TestTimeEquivariant
from trivgeo.inversion.frame import FramedEnergy
from trivgeo.inversion.tied import TIED

__all__ = [
    "TIED",
    "DataEnergy",
    "DomainDistance",
    "FramedEnergy",
    "FunctionEnergy",
    "InversionResult",
    "Inverter",
    "PosteriorEnergy",
    "TestTimeEquivariant",
    "calibrated_scale",
]
