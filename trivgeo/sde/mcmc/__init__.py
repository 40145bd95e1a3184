"""Markov chains on any Lie group, whose stationary distribution is exact: MALA, Hamiltonian Monte Carlo, tempering."""

from trivgeo.sde.mcmc.diagnostics import (
    bulk_effective_sample_size,
    mean_effective_sample_size,
    r_hat,
    r_hat_bound,
    tail_effective_sample_size,
)
from trivgeo.sde.mcmc.hamiltonian import (
    MALA,
    ChainState,
    HamiltonianMonteCarlo,
    MarkovKernel,
    ParallelTempering,
)
from trivgeo.sde.mcmc.markov_chains import MarkovSample, MonteCarloMean, sample, warm_up

__all__ = [
    "MALA",
    "ChainState",
    "HamiltonianMonteCarlo",
    "MarkovKernel",
    "MarkovSample",
    "MonteCarloMean",
    "ParallelTempering",
    "bulk_effective_sample_size",
    "mean_effective_sample_size",
    "r_hat",
    "r_hat_bound",
    "sample",
    "tail_effective_sample_size",
    "warm_up",
]
