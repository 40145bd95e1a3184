"""Scores: closed forms, Monte Carlo estimates from an energy, trivialized gradients."""

from trivgeo.sde.scores.base import EnergySamples, FunctionScore, Score, ScoreEstimate, SolveContext
from trivgeo.sde.scores.energy import EnergyScore
from trivgeo.sde.scores.gradient import trivialized_grad, trivialized_grad_and_value

__all__ = [
    "EnergySamples",
    "EnergyScore",
    "FunctionScore",
    "Score",
    "ScoreEstimate",
    "SolveContext",
    "trivialized_grad",
    "trivialized_grad_and_value",
]
