"""Energies of data, which are low where the data look like clean ones."""

from trivgeo.inversion.energies.base import CurvedEnergy, DataEnergy, FunctionEnergy
from trivgeo.inversion.energies.domain_distance import DomainDistance, GaussianInitialEnergy
from trivgeo.inversion.energies.field_energies import FieldBox, FieldComponents, FieldSpectrum
from trivgeo.inversion.energies.least_squares import GemanMcClure, LeastSquares, Trimmed
from trivgeo.inversion.energies.operator_consistency import OperatorConsistency
from trivgeo.inversion.energies.paired_images import PairedImages, with_coverage
from trivgeo.inversion.energies.point_residuals import NearestPoints, PairedPoints, SymmetricNearestPoints, with_normals
from trivgeo.inversion.energies.wrapped import FramedEnergy, PriorEnergy, WrappedEnergy

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
    "GemanMcClure",
    "LeastSquares",
    "NearestPoints",
    "OperatorConsistency",
    "PairedImages",
    "PairedPoints",
    "PriorEnergy",
    "SymmetricNearestPoints",
    "Trimmed",
    "WrappedEnergy",
    "with_coverage",
    "with_normals",
]
