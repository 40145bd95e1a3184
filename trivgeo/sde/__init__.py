"""Trivialized stochastic differential equations: forward noise, scores, reverse diffusion, Langevin dynamics.

The guides use the names below. All other public names are in `trivgeo.sde.noise`, `trivgeo.sde.scores`,
`trivgeo.sde.processes`, `trivgeo.sde.solvers`, `trivgeo.sde.mcmc`, `trivgeo.sde.likelihood` and
`trivgeo.sde.resampling`. Models that are fitted to samples are in `trivgeo.generative`.
"""

from trivgeo._random import NoiseStreams
from trivgeo.sde.grid import uniform_grid
from trivgeo.sde.noise import (
    ConstantSchedule,
    CosineSchedule,
    GeometricSchedule,
    LinearSchedule,
    NoiseKernel,
    Schedule,
    heat_kernel,
)
from trivgeo.sde.processes import TrivializedSDE, probability_flow
from trivgeo.sde.resampling import effective_sample_size
from trivgeo.sde.sampling import forward_noising, probability_flow_sample, reverse_diffusion
from trivgeo.sde.scores import EnergyScore, Score, trivialized_grad
from trivgeo.sde.solvers import Stepper, solve

__all__ = [
    "ConstantSchedule",
    "CosineSchedule",
    "EnergyScore",
    "GeometricSchedule",
    "LinearSchedule",
    "NoiseKernel",
    "NoiseStreams",
    "Schedule",
    "Score",
    "Stepper",
    "TrivializedSDE",
    "effective_sample_size",
    "forward_noising",
    "heat_kernel",
    "probability_flow",
    "probability_flow_sample",
    "reverse_diffusion",
    "solve",
    "trivialized_grad",
    "uniform_grid",
]
