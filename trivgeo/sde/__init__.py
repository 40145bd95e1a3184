"""Trivialized stochastic differential equations: forward noise, scores, reverse diffusion, Langevin dynamics."""

from trivgeo.sde.diagnostics import (
    EnergyTrace,
    ScoreMonitor,
    effective_sample_size,
    maximum_mean_discrepancy,
    stein_z_scores,
)
from trivgeo.sde.flow import probability_flow, probability_flow_sample
from trivgeo.sde.gradient import trivialized_grad, trivialized_grad_and_value
from trivgeo.sde.langevin import KineticLangevin, PhasePoint, SplittingOBABO, overdamped_langevin
from trivgeo.sde.learned import ScoreNetwork, denoising_loss, implicit_loss, noised_with_target
from trivgeo.sde.noise import NoiseKernel, NoisePaths, NoiseReplay, forward_noising
from trivgeo.sde.process import ExponentialEuler, Process, Solution, Stepper, TrivializedSDE, solve
from trivgeo.sde.resampling import Population, Resampling, noise_log_density, systematic_indices
from trivgeo.sde.reverse import reverse_diffusion, reverse_solution
from trivgeo.sde.schedule import ConstantSchedule, GeometricSchedule, Schedule
from trivgeo.sde.score import EnergyScore, FunctionScore, Run, Score, ScoreEstimate
from trivgeo.sde.steppers import GeometricHeun, RungeKuttaMuntheKaas4

__all__ = [
    "ConstantSchedule",
    "EnergyScore",
    "EnergyTrace",
    "ExponentialEuler",
    "FunctionScore",
    "GeometricHeun",
    "GeometricSchedule",
    "KineticLangevin",
    "NoiseKernel",
    "NoisePaths",
    "NoiseReplay",
    "PhasePoint",
    "Population",
    "Process",
    "Resampling",
    "Run",
    "RungeKuttaMuntheKaas4",
    "Schedule",
    "Score",
    "ScoreEstimate",
    "ScoreMonitor",
    "ScoreNetwork",
    "Solution",
    "SplittingOBABO",
    "Stepper",
    "TrivializedSDE",
    "denoising_loss",
    "effective_sample_size",
    "forward_noising",
    "implicit_loss",
    "maximum_mean_discrepancy",
    "noise_log_density",
    "noised_with_target",
    "overdamped_langevin",
    "probability_flow",
    "probability_flow_sample",
    "reverse_diffusion",
    "reverse_solution",
    "solve",
    "stein_z_scores",
    "systematic_indices",
    "trivialized_grad",
    "trivialized_grad_and_value",
]
