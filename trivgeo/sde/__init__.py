"""Trivialized stochastic differential equations: forward noise, scores, reverse diffusion, Langevin dynamics."""

from trivgeo._random import NoiseStreams
from trivgeo._signatures import check_calls
from trivgeo.sde.adaptive import AdaptiveSolution, DormandPrince5, solve_adaptive
from trivgeo.sde.denoising import (
    AncestralStep,
    DenoisingStep,
    FlowStep,
    NoiseSample,
    RefiningStep,
    RenoisingStep,
    noise_with_target,
)
from trivgeo.sde.diagnostics import (
    EnergyTrace,
    ScoreMonitor,
    ScoreTrace,
    effective_sample_size,
    maximum_mean_discrepancy,
    stein_z_scores,
)
from trivgeo.sde.energy_score import EnergyScore
from trivgeo.sde.flow import probability_flow, probability_flow_sample
from trivgeo.sde.gradient import trivialized_grad, trivialized_grad_and_value
from trivgeo.sde.group_diffusion import GroupDiffusion
from trivgeo.sde.group_network import GroupNetwork
from trivgeo.sde.heat import HeatKernel, heat_kernel
from trivgeo.sde.kinetic import (
    KineticAncestralStep,
    KineticDiffusion,
    KineticNoise,
    KineticPoint,
    KineticSample,
    SplittingAOA,
)
from trivgeo.sde.langevin import PhasePoint, SplittingOBABO, UnderdampedLangevin, overdamped_langevin
from trivgeo.sde.learned import ScoreNetwork, denoising_loss, implicit_loss
from trivgeo.sde.likelihood import (
    Divergence,
    ExactDivergence,
    FlowLikelihood,
    HutchinsonDivergence,
    flow_likelihood,
)
from trivgeo.sde.noise import NoiseKernel, NoisePaths, NoiseReplay, forward_noising
from trivgeo.sde.process import (
    Displacement,
    ExponentialEuler,
    Fold,
    Process,
    Solution,
    Stepper,
    StepState,
    TrivializedSDE,
    gathered,
    solve,
    uniform_grid,
)
from trivgeo.sde.resampling import PopulationWeights, Resampling, noise_log_density, systematic_indices
from trivgeo.sde.reverse import reverse_diffusion, reverse_process
from trivgeo.sde.schedule import ConstantSchedule, CosineSchedule, GeometricSchedule, LinearSchedule, Schedule
from trivgeo.sde.score import EnergySamples, FunctionScore, Run, Score, ScoreEstimate
from trivgeo.sde.steppers import GeometricHeun, RungeKuttaMuntheKaas4
from trivgeo.sde.terminal import HaarLaw, MixtureLaw, NormalLaw, TerminalLaw, fit_terminal_law
from trivgeo.sde.transport import DiffusionTransport, FlowTransport, Lesson, MomentumTransport, Transport

__all__ = [
    "AdaptiveSolution",
    "AncestralStep",
    "ConstantSchedule",
    "CosineSchedule",
    "DenoisingStep",
    "DiffusionTransport",
    "Displacement",
    "Divergence",
    "DormandPrince5",
    "EnergySamples",
    "EnergyScore",
    "EnergyTrace",
    "ExactDivergence",
    "ExponentialEuler",
    "FlowLikelihood",
    "FlowStep",
    "FlowTransport",
    "Fold",
    "FunctionScore",
    "GeometricHeun",
    "GeometricSchedule",
    "GroupDiffusion",
    "GroupNetwork",
    "HaarLaw",
    "HeatKernel",
    "HutchinsonDivergence",
    "KineticAncestralStep",
    "KineticDiffusion",
    "KineticNoise",
    "KineticPoint",
    "KineticSample",
    "Lesson",
    "LinearSchedule",
    "MixtureLaw",
    "MomentumTransport",
    "NoiseKernel",
    "NoisePaths",
    "NoiseReplay",
    "NoiseSample",
    "NoiseStreams",
    "NormalLaw",
    "PhasePoint",
    "PopulationWeights",
    "Process",
    "RefiningStep",
    "RenoisingStep",
    "Resampling",
    "Run",
    "RungeKuttaMuntheKaas4",
    "Schedule",
    "Score",
    "ScoreEstimate",
    "ScoreMonitor",
    "ScoreNetwork",
    "ScoreTrace",
    "Solution",
    "SplittingAOA",
    "SplittingOBABO",
    "StepState",
    "Stepper",
    "TerminalLaw",
    "Transport",
    "TrivializedSDE",
    "UnderdampedLangevin",
    "denoising_loss",
    "effective_sample_size",
    "fit_terminal_law",
    "flow_likelihood",
    "forward_noising",
    "gathered",
    "heat_kernel",
    "implicit_loss",
    "maximum_mean_discrepancy",
    "noise_log_density",
    "noise_with_target",
    "overdamped_langevin",
    "probability_flow",
    "probability_flow_sample",
    "reverse_diffusion",
    "reverse_process",
    "solve",
    "solve_adaptive",
    "stein_z_scores",
    "systematic_indices",
    "trivialized_grad",
    "trivialized_grad_and_value",
    "uniform_grid",
]

check_calls(__name__, __all__)
