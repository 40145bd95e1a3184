"""Inversion of unknown transformations, and test-time equivariance by it.

Methods and what they return are here; their parts are in `trivgeo.inversion.stages`, `trivgeo.inversion.energies`,
`trivgeo.inversion.energies.least_squares` and `trivgeo.inversion.learned`; ready distributions in `trivgeo.inversion.transformations`.
"""

from trivgeo._deprecation import Renamed, old_names
from trivgeo._signatures import check_calls
from trivgeo.inversion.energy_check import EnergyCheck, check_energy
from trivgeo.inversion.energy_measurement import calibrated_scale
from trivgeo.inversion.equivariant.equivariant_model import TestTimeEquivariant
from trivgeo.inversion.equivariant.equivariant_operator import EquivariantOperator
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.learned.amortized import AmortizedInverter
from trivgeo.inversion.learned.learned_inverter import LearnedInverter
from trivgeo.inversion.methods.baselines import GradientDescent, RandomSearch
from trivgeo.inversion.methods.focal import FoCal
from trivgeo.inversion.methods.its import ITS
from trivgeo.inversion.methods.kinetic_langevin import KineticLangevin
from trivgeo.inversion.methods.lielac import LieLAC
from trivgeo.inversion.methods.posterior_sampler import PosteriorSampler
from trivgeo.inversion.methods.tied import TIED
from trivgeo.inversion.posterior import ConditionalPosterior, Posterior, PosteriorEnergy
from trivgeo.inversion.result import InversionResult, PosteriorModes
from trivgeo.inversion.sampling.weighted import PosteriorSample
from trivgeo.inversion.stage import Population, Stage

__all__ = [
    "ITS",
    "TIED",
    "AmortizedInverter",
    "ConditionalPosterior",
    "EnergyCheck",
    "EquivariantOperator",
    "FoCal",
    "GradientDescent",
    "InversionResult",
    "Inverter",
    "KineticLangevin",
    "LearnedInverter",
    "LieLAC",
    "Population",
    "Posterior",
    "PosteriorEnergy",
    "PosteriorModes",
    "PosteriorSample",
    "PosteriorSampler",
    "RandomSearch",
    "Stage",
    "TestTimeEquivariant",
    "calibrated_scale",
    "check_energy",
]

_MOVED = {
    "trivgeo.inversion.energies": (
        "CurvedEnergy DataEnergy DomainDistance FieldBox FieldComponents FieldSpectrum FramedEnergy "
        "FunctionEnergy GaussianInitialEnergy LeastSquares NearestPoints PairedPoints PriorEnergy "
        "with_normals"
    ),
    "trivgeo.inversion.learned": (
        "FieldBackbone ImageBackbone LearnedScore LevelFeatures NoiseNetwork OperatorBackbone PointsBackbone "
        "backbone_for consistency_loss"
    ),
    "trivgeo.inversion.energies.least_squares": "GemanMcClure Trimmed",
    "trivgeo.inversion.stages": (
        "Adam AlgebraCoordinates Descend GroupElements HeavyBall KeepLower Langevin Laplace "
        "LevenbergMarquardt LowestEnergy Newton OrbitCriterion OrbitCurvature Parametrization SearchLevel "
        "SearchOrbits affine_levels basis_levels"
    ),
}
"""Where names of 0.2 are now."""

_RENAMED = {
    "Choose": "trivgeo.inversion.stages.Select",
    "Denoise": "trivgeo.inversion.stages.LearnedReverseDiffusion",
    "Draw": "trivgeo.inversion.stages.GaussianSearch",
    "GivenPosterior": "trivgeo.inversion.ConditionalPosterior",
    "Modes": "trivgeo.inversion.PosteriorModes",
    "Noise": "trivgeo.inversion.stages.AddNoise",
    "Optimise": "trivgeo.inversion.stages.BayesianOptimization",
    "Propose": "trivgeo.inversion.stages.WarmStart",
    "Reverse": "trivgeo.inversion.stages.ReverseDiffusion",
    "Start": "trivgeo.inversion.stages.Replicate",
    "Under": "trivgeo.inversion.stages.WithEnergy",
}
"""What names of 0.2 are called now."""

__getattr__ = old_names(
    __name__,
    {name: Renamed(f"{module}.{name}", until="0.4") for module, names in _MOVED.items() for name in names.split()}
    | {old: Renamed(new, until="0.4") for old, new in _RENAMED.items()},
)

check_calls(__name__, __all__)
