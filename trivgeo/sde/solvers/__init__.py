"""The time loop `solve`, and all schemes that it steps by."""

from trivgeo.sde.processes.base import Stepper, StepState
from trivgeo.sde.processes.kinetic_diffusion import KineticAncestralStep, SplittingAOA
from trivgeo.sde.processes.langevin import SplittingOBABO
from trivgeo.sde.processes.trivialized import ExponentialEuler
from trivgeo.sde.solvers.denoising import AncestralStep, DenoisingStep, FlowStep, RefiningStep, RenoisingStep
from trivgeo.sde.solvers.runge_kutta import (
    AdaptiveSolution,
    ButcherTableau,
    DormandPrince5,
    GeometricHeun,
    RungeKuttaMuntheKaas,
    RungeKuttaMuntheKaas4,
    solve_adaptive,
)
from trivgeo.sde.solvers.sequential_monte_carlo import PopulationWeights, Resampling
from trivgeo.sde.solvers.time_loop import Accumulator, Solution, solve

__all__ = [
    "Accumulator",
    "AdaptiveSolution",
    "AncestralStep",
    "ButcherTableau",
    "DenoisingStep",
    "DormandPrince5",
    "ExponentialEuler",
    "FlowStep",
    "GeometricHeun",
    "KineticAncestralStep",
    "PopulationWeights",
    "RefiningStep",
    "RenoisingStep",
    "Resampling",
    "RungeKuttaMuntheKaas",
    "RungeKuttaMuntheKaas4",
    "Solution",
    "SplittingAOA",
    "SplittingOBABO",
    "StepState",
    "Stepper",
    "solve",
    "solve_adaptive",
]
