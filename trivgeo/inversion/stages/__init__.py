"""Stages of methods of inversion, see `Stage`.

A stage that is an algorithm of its own has the name of the algorithm (`Newton`, `ReverseDiffusion`); one that arranges
chains or other stages is a verb (`Replicate`, `Select`, `KeepLower`).
"""

from trivgeo.inversion.learned.learned_stages import CalibratedDraws, CleanGate, LearnedReverseDiffusion, OutlierCheck
from trivgeo.inversion.sampling.importance import ImportanceSampling
from trivgeo.inversion.stages.adaptive_search import AdaptiveSearch
from trivgeo.inversion.stages.chains import AddNoise, Replicate, Select, WarmStart
from trivgeo.inversion.stages.descend import (
    Adam,
    AlgebraCoordinates,
    Descend,
    GroupElements,
    HeavyBall,
    Parametrization,
    UpdateRule,
)
from trivgeo.inversion.stages.energy_gate import EnergyGate
from trivgeo.inversion.stages.evolution_strategy import EvolutionStrategy
from trivgeo.inversion.stages.gaussian_search import DistributionSearch, GaussianSearch
from trivgeo.inversion.stages.langevin_dynamics import Langevin
from trivgeo.inversion.stages.laplace import Laplace
from trivgeo.inversion.stages.levenberg_marquardt import LevenbergMarquardt
from trivgeo.inversion.stages.nested import InDoublePrecision, KeepLower, WithEnergy
from trivgeo.inversion.stages.newton import Newton
from trivgeo.inversion.stages.quasi_newton import QuasiNewton
from trivgeo.inversion.stages.reverse_diffusion import ReverseDiffusion
from trivgeo.inversion.stages.search_orbits import (
    LowestEnergy,
    OrbitCriterion,
    OrbitCurvature,
    SearchLevel,
    SearchOrbits,
    affine_levels,
    basis_levels,
)

__all__ = [
    "Adam",
    "AdaptiveSearch",
    "AddNoise",
    "AlgebraCoordinates",
    "CalibratedDraws",
    "CleanGate",
    "Descend",
    "DistributionSearch",
    "EnergyGate",
    "EvolutionStrategy",
    "GaussianSearch",
    "GroupElements",
    "HeavyBall",
    "ImportanceSampling",
    "InDoublePrecision",
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
    "QuasiNewton",
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
