"""Equations for `trivgeo.sde.solve`: forward noise, its reversal, probability flow, Langevin dynamics."""

from trivgeo.sde.processes.base import Process, merge_evaluated
from trivgeo.sde.processes.kinetic_diffusion import KineticDiffusion, KineticState
from trivgeo.sde.processes.langevin import KineticLangevinSDE, KineticLangevinState, overdamped_langevin
from trivgeo.sde.processes.reverse import probability_flow, reverse_process
from trivgeo.sde.processes.trivialized import DriftIncrement, TrivializedSDE

__all__ = [
    "DriftIncrement",
    "KineticDiffusion",
    "KineticLangevinSDE",
    "KineticLangevinState",
    "KineticState",
    "Process",
    "TrivializedSDE",
    "merge_evaluated",
    "overdamped_langevin",
    "probability_flow",
    "reverse_process",
]
