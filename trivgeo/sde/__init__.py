"""Trivialized stochastic differential equations: forward noise, scores, reverse diffusion."""

from trivgeo.sde.gradient import trivialized_grad, trivialized_grad_and_value
from trivgeo.sde.noise import NoiseKernel, NoisePaths, forward_noising
from trivgeo.sde.process import ExponentialEuler, Solution, Stepper, TrivializedSDE, solve
from trivgeo.sde.reverse import reverse_diffusion, reverse_solution
from trivgeo.sde.schedule import GeometricSchedule, Schedule
from trivgeo.sde.score import EnergyScore, FunctionScore, Run, Score

__all__ = [
    "EnergyScore",
    "ExponentialEuler",
    "FunctionScore",
    "GeometricSchedule",
    "NoiseKernel",
    "NoisePaths",
    "Run",
    "Schedule",
    "Score",
    "Solution",
    "Stepper",
    "TrivializedSDE",
    "forward_noising",
    "reverse_diffusion",
    "reverse_solution",
    "solve",
    "trivialized_grad",
    "trivialized_grad_and_value",
]
