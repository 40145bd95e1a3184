"""Inversion of unknown transformations, and test-time equivariance by it.

Methods and what they return are here; their parts are in `trivgeo.inversion.stages`, `trivgeo.inversion.energies` and
`trivgeo.inversion.learned`; ready distributions in `trivgeo.inversion.transformations`.
"""

from importlib import import_module
from typing import Any

from trivgeo.inversion.energy_check import EnergyReport, check_energy
from trivgeo.inversion.energy_measurement import calibrated_scale
from trivgeo.inversion.equivariant.equivariant_model import TestTimeEquivariant
from trivgeo.inversion.equivariant.equivariant_operator import EquivariantOperator
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.learned.amortized import AmortizedInverter
from trivgeo.inversion.learned.learned_inverter import LearnedInverter
from trivgeo.inversion.methods.baselines import (
    ITS,
    GradientDescent,
    KineticLangevin,
    LieLAC,
    RandomSearch,
    ReverseDiffusionSearch,
)
from trivgeo.inversion.methods.posterior_sampler import PosteriorSampler
from trivgeo.inversion.methods.tied import TIED
from trivgeo.inversion.posterior import InverseProblem, Posterior
from trivgeo.inversion.result import InversionResult, PosteriorModes, PosteriorSample
from trivgeo.inversion.stage import Population, Stage

__all__ = [
    "ITS",
    "TIED",
    "AmortizedInverter",
    "EnergyReport",
    "EquivariantOperator",
    "GradientDescent",
    "InverseProblem",
    "InversionResult",
    "Inverter",
    "KineticLangevin",
    "LearnedInverter",
    "LieLAC",
    "Population",
    "Posterior",
    "PosteriorModes",
    "PosteriorSample",
    "PosteriorSampler",
    "RandomSearch",
    "ReverseDiffusionSearch",
    "Stage",
    "TestTimeEquivariant",
    "calibrated_scale",
    "check_energy",
]

_OF_PACKAGES_ABOVE = {
    "FeatureEnergy": "trivgeo.features",
    "LearnedEnergy": "trivgeo.features",
    "register": "trivgeo.registration",
}
"""Names that are reached from here, too; their packages import this one, so they are loaded when asked for."""


def __getattr__(name: str) -> Any:
    if name in _OF_PACKAGES_ABOVE:
        return getattr(import_module(_OF_PACKAGES_ABOVE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
