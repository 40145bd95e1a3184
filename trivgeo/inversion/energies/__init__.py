"""Energies of data, which are low where the data look like clean ones."""

from trivgeo._signatures import check_calls
from trivgeo.inversion.energies.base import CurvedEnergy, DataEnergy, FunctionEnergy
from trivgeo.inversion.energies.domain_distance import DomainDistance
from trivgeo.inversion.energies.fields import FieldBox, FieldComponents, FieldSpectrum
from trivgeo.inversion.energies.framed import FramedEnergy
from trivgeo.inversion.energies.gaussian_initial import GaussianInitialEnergy
from trivgeo.inversion.energies.least_squares import LeastSquares
from trivgeo.inversion.energies.normals import with_normals
from trivgeo.inversion.energies.paired_images import PairedImages, with_coverage
from trivgeo.inversion.energies.point_residuals import NearestPoints, PairedPoints, SymmetricNearestPoints
from trivgeo.inversion.energies.prior import PriorEnergy

__all__ = [
    "CurvedEnergy",
    "DataEnergy",
    "DomainDistance",
    "FieldBox",
    "FieldComponents",
    "FieldSpectrum",
    "FramedEnergy",
    "FunctionEnergy",
    "GaussianInitialEnergy",
    "LeastSquares",
    "NearestPoints",
    "PairedImages",
    "PairedPoints",
    "PriorEnergy",
    "SymmetricNearestPoints",
    "with_coverage",
    "with_normals",
]

check_calls(__name__, __all__)
