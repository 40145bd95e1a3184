"""Models fitted to samples on any group: probability paths, base distributions, networks."""

from trivgeo.generative.distribution_fitting import fit_base_distribution
from trivgeo.generative.distributions import GroupDistribution
from trivgeo.generative.group_network import GroupNetwork
from trivgeo.generative.model import GroupDiffusion
from trivgeo.generative.paths import ProbabilityPath

__all__ = [
    "GroupDiffusion",
    "GroupDistribution",
    "GroupNetwork",
    "ProbabilityPath",
    "fit_base_distribution",
]
