"""Inversion of unknown transformations, and test-time equivariance by it."""

from trivgeo._signatures import check_calls
from trivgeo.inversion.amortized import AmortizedInverter, Denoise
from trivgeo.inversion.backbones import (
    ImageBackbone,
    NoiseNetwork,
    OperatorBackbone,
    PointsBackbone,
    backbone_for,
)
from trivgeo.inversion.calibration import calibrated_scale
from trivgeo.inversion.check import EnergyCheck, check_energy
from trivgeo.inversion.descent import Adam, AlgebraCoordinates, Descend, GroupElements, HeavyBall, Parametrization
from trivgeo.inversion.distillation import consistency_loss
from trivgeo.inversion.domain import DomainDistance
from trivgeo.inversion.energy import CurvedEnergy, DataEnergy, FunctionEnergy
from trivgeo.inversion.equivariant import TestTimeEquivariant
from trivgeo.inversion.equivariant_operator import EquivariantOperator
from trivgeo.inversion.field_backbone import FieldBackbone
from trivgeo.inversion.field_energy import FieldBox, FieldComponents, FieldSpectrum
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
from trivgeo.inversion.learned_inverter import LearnedInverter
from trivgeo.inversion.least_squares import (
    GemanMcClure,
    Laplace,
    LeastSquares,
    LevenbergMarquardt,
    NearestPoints,
    PairedPoints,
    Trimmed,
    with_normals,
)
from trivgeo.inversion.lielac import LieLAC
from trivgeo.inversion.modes import Modes
from trivgeo.inversion.newton import Newton
from trivgeo.inversion.posterior import GivenPosterior, Posterior, PosteriorEnergy
from trivgeo.inversion.prior import PriorEnergy
from trivgeo.inversion.result import InversionResult, Population
from trivgeo.inversion.search import Draw, GradientDescent, RandomSearch
from trivgeo.inversion.stages import Choose, KeepLower, Noise, Propose, Start, Under
from trivgeo.inversion.tied import TIED, Reverse

__all__ = [
    "ITS",
    "TIED",
    "Adam",
    "AlgebraCoordinates",
    "AmortizedInverter",
    "Choose",
    "CurvedEnergy",
    "DataEnergy",
    "Denoise",
    "Descend",
    "DomainDistance",
    "Draw",
    "EnergyCheck",
    "EquivariantOperator",
    "FieldBackbone",
    "FieldBox",
    "FieldComponents",
    "FieldSpectrum",
    "FoCal",
    "FramedEnergy",
    "FunctionEnergy",
    "GaussianInitialEnergy",
    "GemanMcClure",
    "GivenPosterior",
    "GradientDescent",
    "GroupElements",
    "HeavyBall",
    "ImageBackbone",
    "InversionResult",
    "Inverter",
    "KeepLower",
    "KineticLangevin",
    "Langevin",
    "Laplace",
    "LearnedInverter",
    "LearnedScore",
    "LeastSquares",
    "LevelFeatures",
    "LevenbergMarquardt",
    "LieLAC",
    "LowestEnergy",
    "Modes",
    "NearestPoints",
    "Newton",
    "Noise",
    "NoiseNetwork",
    "OperatorBackbone",
    "Optimise",
    "OrbitCriterion",
    "OrbitCurvature",
    "PairedPoints",
    "Parametrization",
    "PointsBackbone",
    "Population",
    "Posterior",
    "PosteriorEnergy",
    "PriorEnergy",
    "Propose",
    "RandomSearch",
    "Reverse",
    "SearchLevel",
    "SearchOrbits",
    "Stage",
    "Start",
    "TestTimeEquivariant",
    "Trimmed",
    "Under",
    "affine_levels",
    "backbone_for",
    "basis_levels",
    "calibrated_scale",
    "check_energy",
    "consistency_loss",
    "with_normals",
]

check_calls(__name__, __all__)
