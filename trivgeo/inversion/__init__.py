"""Inversion of unknown transformations, and test-time equivariance by it."""

from trivgeo.inversion.amortized import AmortizedInverter
from trivgeo.inversion.base import InversionResult, Inverter
from trivgeo.inversion.calibration import calibrated_scale
from trivgeo.inversion.descent import AlgebraCoordinates, Descent, GroupElements, Parametrization
from trivgeo.inversion.distillation import consistency_loss
from trivgeo.inversion.domain import DomainDistance
from trivgeo.inversion.energy import DataEnergy, FunctionEnergy, PosteriorEnergy
from trivgeo.inversion.equivariant import TestTimeEquivariant
from trivgeo.inversion.focal import FoCal
from trivgeo.inversion.frame import FramedEnergy
from trivgeo.inversion.hybrid import HybridInverter
from trivgeo.inversion.its import (
    ITS,
    LowestEnergy,
    OrbitCriterion,
    OrbitCurvature,
    SearchLevel,
    affine_levels,
    basis_levels,
)
from trivgeo.inversion.langevin import KineticLangevin
from trivgeo.inversion.learned import LearnedScore, LevelFeatures
from trivgeo.inversion.learned_energy import GaussianInitialEnergy
from trivgeo.inversion.lielac import LieLAC
from trivgeo.inversion.search import GradientDescent, RandomSearch
from trivgeo.inversion.tied import TIED

__all__ = [
    "ITS",
    "TIED",
    "AlgebraCoordinates",
    "AmortizedInverter",
    "DataEnergy",
    "Descent",
    "DomainDistance",
    "FoCal",
    "FramedEnergy",
    "FunctionEnergy",
    "GaussianInitialEnergy",
    "GradientDescent",
    "GroupElements",
    "HybridInverter",
    "InversionResult",
    "Inverter",
    "KineticLangevin",
    "LearnedScore",
    "LevelFeatures",
    "LieLAC",
    "LowestEnergy",
    "OrbitCriterion",
    "OrbitCurvature",
    "Parametrization",
    "PosteriorEnergy",
    "RandomSearch",
    "SearchLevel",
    "TestTimeEquivariant",
    "affine_levels",
    "basis_levels",
    "calibrated_scale",
    "consistency_loss",
]
