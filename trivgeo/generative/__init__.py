"""Models fitted to samples on any group: probability paths, base distributions, networks."""

from trivgeo._signatures import check_calls
from trivgeo.generative.base_distributions import BaseDistribution, fit_base_distribution
from trivgeo.generative.group_network import GroupNetwork
from trivgeo.generative.model import GroupDiffusion
from trivgeo.generative.paths import ProbabilityPath

__all__ = [
    "BaseDistribution",
    "GroupDiffusion",
    "GroupNetwork",
    "ProbabilityPath",
    "fit_base_distribution",
]

check_calls(__name__, __all__)
