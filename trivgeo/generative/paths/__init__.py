"""Probability paths from data to a base distribution: the kinds of a `trivgeo.generative.GroupDiffusion`."""

from trivgeo.generative.paths.base import ProbabilityPath, TrainingBatch
from trivgeo.generative.paths.diffusion import DiffusionPath
from trivgeo.generative.paths.flow_matching import Bridge, FlowMatchingPath
from trivgeo.generative.paths.kinetic import KineticPath

PATHS: dict[str, type[ProbabilityPath]] = {
    "diffusion": DiffusionPath,
    "momentum": KineticPath,
    "flow": FlowMatchingPath,
}
"""The shipped kinds of a `trivgeo.generative.GroupDiffusion` by name."""

__all__ = ["PATHS", "Bridge", "DiffusionPath", "FlowMatchingPath", "KineticPath", "ProbabilityPath", "TrainingBatch"]
