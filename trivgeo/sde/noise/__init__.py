"""Noise on a group: schedules, kernels, sample paths, and targets of denoising."""

from trivgeo.groups.harmonic import HeatKernel, heat_kernel
from trivgeo.sde.noise.kernel import NoiseKernel, NoisePaths, VirtualNoisePaths, noise_log_density
from trivgeo.sde.noise.kinetic_noise import KineticNoise, KineticSample
from trivgeo.sde.noise.schedule import ConstantSchedule, CosineSchedule, GeometricSchedule, LinearSchedule, Schedule
from trivgeo.sde.noise.target import NoiseSample, noise_with_target

__all__ = [
    "ConstantSchedule",
    "CosineSchedule",
    "GeometricSchedule",
    "HeatKernel",
    "KineticNoise",
    "KineticSample",
    "LinearSchedule",
    "NoiseKernel",
    "NoisePaths",
    "NoiseSample",
    "Schedule",
    "VirtualNoisePaths",
    "heat_kernel",
    "noise_log_density",
    "noise_with_target",
]
