"""Trivialized stochastic differential equations: forward noise, scores, reverse diffusion, Langevin dynamics."""

from trivgeo.sde.flow import probability_flow, probability_flow_sample
from trivgeo.sde.gradient import trivialized_grad, trivialized_grad_and_value
from trivgeo.sde.langevin import KineticLangevin, PhasePoint, SplittingOBABO, overdamped_langevin
from trivgeo.sde.noise import NoiseKernel, NoisePaths, NoiseReplay, forward_noising
from trivgeo.sde.process import ExponentialEuler, Process, Solution, Stepper, TrivializedSDE, solve
from trivgeo.sde.reverse import reverse_diffusion, reverse_solution
from trivgeo.sde.schedule import ConstantSchedule, GeometricSchedule, Schedule
from trivgeo.sde.score import EnergyScore, FunctionScore, Run, Score, ScoreEstimate
from trivgeo.sde.steppers import GeometricHeun, RungeKuttaMuntheKaas4

__all__ = [
    "ConstantSchedule",
    "EnergyScore",
    "ExponentialEuler",
    "FunctionScore",
    "GeometricHeun",
    "GeometricSchedule",
    "KineticLangevin",
    "NoiseKernel",
    "NoisePaths",
    "NoiseReplay",
    "PhasePoint",
    "Process",
    "Run",
    "RungeKuttaMuntheKaas4",
    "Schedule",
    "Score",
    "ScoreEstimate",
    "Solution",
    "SplittingOBABO",
    "Stepper",
    "TrivializedSDE",
    "forward_noising",
    "overdamped_langevin",
    "probability_flow",
    "probability_flow_sample",
    "reverse_diffusion",
    "reverse_solution",
    "solve",
    "trivialized_grad",
    "trivialized_grad_and_value",
]
