"""Inversion of unknown transformations, and test-time equivariance by it."""

from trivgeo.inversion.amortized import AmortizedInverter, Denoise
from trivgeo.inversion.calibration import calibrated_scale
from trivgeo.inversion.descent import Adam, AlgebraCoordinates, Descend, GroupElements, HeavyBall, Parametrization
from trivgeo.inversion.distillation import consistency_loss
from trivgeo.inversion.domain import DomainDistance
from trivgeo.inversion.energy import DataEnergy, FunctionEnergy
from trivgeo.inversion.equivariant import TestTimeEquivariant
from trivgeo.inversion.equivariant_operator import EquivariantOperator
from trivgeo.inversion.field_backbone import FieldBackbone
from trivgeo.inversion.field_energy import FieldBox, FieldSpectrum
from trivgeo.inversion.focal import FoCal, Optimise
from trivgeo.inversion.frame import FramedEnergy
from trivgeo.inversion.inverter import Inverter, Stage
from trivgeo.inversion.its import (
    ITS,
    LowestEnergy,
    OrbitCriterion,
    OrbitCurvature,
    SearchLevel,
    SearchOrbits,
    affine_levels,
    basis_levels,
)
from trivgeo.inversion.langevin import KineticLangevin, Langevin
from trivgeo.inversion.learned import LearnedScore, LevelFeatures
from trivgeo.inversion.learned_energy import GaussianInitialEnergy
from trivgeo.inversion.lielac import LieLAC
from trivgeo.inversion.newton import Newton
from trivgeo.inversion.posterior import GivenPosterior, Posterior, PosteriorEnergy
from trivgeo.inversion.result import InversionResult, Population
from trivgeo.inversion.search import Draw, GradientDescent, RandomSearch
from trivgeo.inversion.stages import Choose, KeepLower, Noise, Propose, Start
from trivgeo.inversion.tied import TIED, Reverse

__all__ = [
    "ITS",
    "TIED",
    "Adam",
    "AlgebraCoordinates",
    "AmortizedInverter",
    "Choose",
    "DataEnergy",
    "Denoise",
    "Descend",
    "DomainDistance",
    "Draw",
    "EquivariantOperator",
    "FieldBackbone",
    "FieldBox",
    "FieldSpectrum",
    "FoCal",
    "FramedEnergy",
    "FunctionEnergy",
    "GaussianInitialEnergy",
    "GivenPosterior",
    "GradientDescent",
    "GroupElements",
    "HeavyBall",
    "InversionResult",
    "Inverter",
    "KeepLower",
    "KineticLangevin",
    "Langevin",
    "LearnedScore",
    "LevelFeatures",
    "LieLAC",
    "LowestEnergy",
    "Newton",
    "Noise",
    "Optimise",
    "OrbitCriterion",
    "OrbitCurvature",
    "Parametrization",
    "Population",
    "Posterior",
    "PosteriorEnergy",
    "Propose",
    "RandomSearch",
    "Reverse",
    "SearchLevel",
    "SearchOrbits",
    "Stage",
    "Start",
    "TestTimeEquivariant",
    "affine_levels",
    "basis_levels",
    "calibrated_scale",
    "consistency_loss",
]
