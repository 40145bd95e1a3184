"""Stages of methods of inversion, see `Stage`.

A stage that is an algorithm of its own has the name of the algorithm (`Newton`, `ReverseDiffusion`); one that arranges
chains or other stages is a verb (`Replicate`, `Select`, `KeepLower`).
"""

from trivgeo._signatures import check_calls
from trivgeo.inversion.stages.add_noise import AddNoise
from trivgeo.inversion.stages.bayesian_optimization import BayesianOptimization
from trivgeo.inversion.stages.descend import Descend
from trivgeo.inversion.stages.descent_rules import (
    Adam,
    AlgebraCoordinates,
    GroupElements,
    HeavyBall,
    Parametrization,
    UpdateRule,
)
from trivgeo.inversion.stages.energy_gate import EnergyGate
from trivgeo.inversion.stages.gaussian_search import GaussianSearch
from trivgeo.inversion.stages.importance_sampling import ImportanceSampling
from trivgeo.inversion.stages.keep_lower import KeepLower
from trivgeo.inversion.stages.langevin import Langevin
from trivgeo.inversion.stages.laplace import Laplace
from trivgeo.inversion.stages.learned_checks import CalibratedDraws, CleanGate, OutlierCheck
from trivgeo.inversion.stages.learned_reverse_diffusion import LearnedReverseDiffusion
from trivgeo.inversion.stages.levenberg_marquardt import LevenbergMarquardt
from trivgeo.inversion.stages.newton import Newton
from trivgeo.inversion.stages.orbit_criteria import LowestEnergy, OrbitCriterion, OrbitCurvature
from trivgeo.inversion.stages.promote import Promote
from trivgeo.inversion.stages.replicate import Replicate
from trivgeo.inversion.stages.reverse_diffusion import ReverseDiffusion
from trivgeo.inversion.stages.search_levels import SearchLevel, affine_levels, basis_levels
from trivgeo.inversion.stages.search_orbits import SearchOrbits
from trivgeo.inversion.stages.select import Select
from trivgeo.inversion.stages.warm_start import WarmStart
from trivgeo.inversion.stages.with_energy import WithEnergy

__all__ = [
    "Adam",
    "AddNoise",
    "AlgebraCoordinates",
    "BayesianOptimization",
    "CalibratedDraws",
    "CleanGate",
    "Descend",
    "EnergyGate",
    "GaussianSearch",
    "GroupElements",
    "HeavyBall",
    "ImportanceSampling",
    "KeepLower",
    "Langevin",
    "Laplace",
    "LearnedReverseDiffusion",
    "LevenbergMarquardt",
    "LowestEnergy",
    "Newton",
    "OrbitCriterion",
    "OrbitCurvature",
    "OutlierCheck",
    "Parametrization",
    "Promote",
    "Replicate",
    "ReverseDiffusion",
    "SearchLevel",
    "SearchOrbits",
    "Select",
    "UpdateRule",
    "WarmStart",
    "WithEnergy",
    "affine_levels",
    "basis_levels",
]

check_calls(__name__, __all__)
