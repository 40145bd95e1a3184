"""Trivialized stochastic differential equations: forward noise, scores, reverse diffusion, Langevin dynamics.

The names below are those that the guides use. The rest is public by room: `trivgeo.sde.noise`, `trivgeo.sde.scores`,
`trivgeo.sde.processes`, `trivgeo.sde.solvers`, `trivgeo.sde.likelihood`, `trivgeo.sde.diagnostics`. Models that are
fitted to samples are in `trivgeo.generative`.
"""

from trivgeo._deprecation import Renamed, old_names
from trivgeo._random import NoiseStreams
from trivgeo._signatures import check_calls
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
from trivgeo.sde.sampling import forward_noising, probability_flow_sample, reverse_diffusion
from trivgeo.sde.scores import EnergyScore, Score, trivialized_grad
from trivgeo.sde.solvers import Stepper, solve
from trivgeo.sde.solvers.resampling import effective_sample_size

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

check_calls(__name__, __all__)

_MOVED = {
    "AdaptiveSolution": "sde.solvers.AdaptiveSolution",
    "AncestralStep": "sde.solvers.AncestralStep",
    "DenoisingStep": "sde.solvers.DenoisingStep",
    "DiffusionTransport": "generative.paths.DiffusionPath",
    "Displacement": "sde.processes.DriftIncrement",
    "Divergence": "sde.likelihood.Divergence",
    "DormandPrince5": "sde.solvers.DormandPrince5",
    "EnergySamples": "sde.scores.EnergySamples",
    "EnergyTrace": "sde.diagnostics.EnergyTrace",
    "ExactDivergence": "sde.likelihood.ExactDivergence",
    "ExponentialEuler": "sde.solvers.ExponentialEuler",
    "FlowLikelihood": "sde.likelihood.FlowLikelihood",
    "FlowStep": "sde.solvers.FlowStep",
    "FlowTransport": "generative.paths.FlowMatchingPath",
    "Fold": "sde.solvers.Accumulator",
    "FunctionScore": "sde.scores.FunctionScore",
    "GeometricHeun": "sde.solvers.GeometricHeun",
    "GroupDiffusion": "generative.GroupDiffusion",
    "GroupNetwork": "generative.GroupNetwork",
    "HaarLaw": "generative.base_distributions.HaarDistribution",
    "HeatKernel": "sde.noise.HeatKernel",
    "HutchinsonDivergence": "sde.likelihood.HutchinsonDivergence",
    "KineticAncestralStep": "sde.solvers.KineticAncestralStep",
    "KineticDiffusion": "sde.processes.KineticDiffusion",
    "KineticNoise": "sde.noise.KineticNoise",
    "KineticPoint": "sde.processes.KineticState",
    "KineticSample": "sde.noise.KineticSample",
    "Lesson": "generative.paths.TrainingBatch",
    "MixtureLaw": "generative.base_distributions.MixtureDistribution",
    "MomentumTransport": "generative.paths.KineticPath",
    "NoisePaths": "sde.noise.NoisePaths",
    "NoiseReplay": "sde.noise.VirtualNoisePaths",
    "NoiseSample": "sde.noise.NoiseSample",
    "NormalLaw": "generative.base_distributions.NormalDistribution",
    "PhasePoint": "sde.processes.KineticLangevinState",
    "PopulationWeights": "sde.solvers.PopulationWeights",
    "Process": "sde.processes.Process",
    "RefiningStep": "sde.solvers.RefiningStep",
    "RenoisingStep": "sde.solvers.RenoisingStep",
    "Resampling": "sde.solvers.Resampling",
    "Run": "sde.scores.SolveContext",
    "RungeKuttaMuntheKaas4": "sde.solvers.RungeKuttaMuntheKaas4",
    "ScoreEstimate": "sde.scores.ScoreEstimate",
    "ScoreMonitor": "sde.diagnostics.ScoreMonitor",
    "ScoreNetwork": "generative.score_matching.ScoreNetwork",
    "ScoreTrace": "sde.diagnostics.ScoreTrace",
    "Solution": "sde.solvers.Solution",
    "SplittingAOA": "sde.solvers.SplittingAOA",
    "SplittingOBABO": "sde.solvers.SplittingOBABO",
    "StepState": "sde.solvers.StepState",
    "TerminalLaw": "generative.BaseDistribution",
    "Transport": "generative.ProbabilityPath",
    "UnderdampedLangevin": "sde.processes.KineticLangevinSDE",
    "denoising_loss": "generative.score_matching.denoising_loss",
    "fit_terminal_law": "generative.fit_base_distribution",
    "flow_likelihood": "sde.likelihood.flow_likelihood",
    "gathered": "sde.processes.merge_evaluated",
    "implicit_loss": "generative.score_matching.implicit_loss",
    "maximum_mean_discrepancy": "sde.diagnostics.maximum_mean_discrepancy",
    "noise_log_density": "sde.noise.noise_log_density",
    "noise_with_target": "sde.noise.noise_with_target",
    "overdamped_langevin": "sde.processes.overdamped_langevin",
    "reverse_process": "sde.processes.reverse_process",
    "solve_adaptive": "sde.solvers.solve_adaptive",
    "stein_z_scores": "sde.diagnostics.stein_z_scores",
    "systematic_indices": "sde.solvers.systematic_indices",
    "trivialized_grad_and_value": "sde.scores.trivialized_grad_and_value",
}

__getattr__ = old_names(__name__, {old: Renamed(f"trivgeo.{new}", until="0.4") for old, new in _MOVED.items()})
