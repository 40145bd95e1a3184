"""Scores: estimates of the left-trivialized gradient of log p_t, with what they evaluated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._text import Described, described
from trivgeo.checks import check_tensor
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.schedule import Schedule

__all__ = ["EnergySamples", "FunctionScore", "Score", "ScoreEstimate", "SolveContext", "as_score", "check_drift"]


@dataclass(frozen=True)
class SolveContext:
    """What an equation and its scores may know of the solve to come, to prepare once what every step needs.

    Attributes:
        times: the times at which the drift will be asked, in order.
        batch: the batch shape of the chains.
        dtype: of their state.
        device: of their state.
        generator: the source of noise of the solve.
    """

    times: tuple[float, ...]
    batch: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    generator: torch.Generator | None


class EnergySamples(NamedTuple):
    """The energies that one Monte Carlo estimate was made of, without gradients.

    Attributes:
        elements: where the energy was evaluated, ``[*batch, N, *element_shape]``.
        energy: there, ``[*batch, N]``.
        finite: samples whose energy and gradient are finite, ``[*batch, N]``; the others are masked.
        weights: of the N samples of each chain, summing to one, ``[*batch, N]``.
        log_density: logarithm of the estimate of p_t, up to the same constant for all chains and times, ``[*batch]``.
    """

    elements: Tensor
    energy: Float[Tensor, "*batch n"]
    finite: Bool[Tensor, "*batch n"]
    weights: Float[Tensor, "*batch n"]
    log_density: Float[Tensor, "*batch"]

    def __repr__(self) -> str:
        return described(self)


class ScoreEstimate(NamedTuple):
    """The value of a score, and what it took.

    Attributes:
        score: ``[*batch, dim]``.
        samples: the energies that were evaluated; ``None`` for a score that evaluates none.
    """

    score: Float[Tensor, "*batch n"]
    samples: EnergySamples | None = None

    def __repr__(self) -> str:
        return described(self)


class Score(Described, ABC):
    """An estimate of the trivialized score of p_t, the density with respect to left Haar measure."""

    @property
    def shares_noise(self) -> bool:
        """Whether the estimates along the first batch dimension are made of the same noise."""
        return False

    @abstractmethod
    def estimate(self, g: Tensor, t: float) -> ScoreEstimate:
        """The score at elements ``[*batch, *element_shape]`` and one time."""

    @final
    def __call__(self, g: Tensor, t: float) -> Float[Tensor, "*batch n"]:
        """The value alone of `estimate`."""
        return self.estimate(g, t).score

    def prepare(self, run: SolveContext) -> Score:
        """The score for one solve; by default the score itself."""
        return self

    def check_noise(self, group: LieGroup, schedule: Schedule) -> None:
        """Raise `ConfigurationError` if this is the score of other noise; by default it is that of any."""


class FunctionScore(Score):
    """A score given as a function ``(g, t) -> [*batch, dim]``: a closed form or a network."""

    def __init__(self, function: Callable[[Tensor, float], Tensor]) -> None:
        self._function = function

    def estimate(self, g: Tensor, t: float) -> ScoreEstimate:
        """The given function."""
        return ScoreEstimate(self._function(g, t))


def check_drift(value: Any, group: LieGroup, g: Tensor, name: str = "score") -> Tensor:
    """Return what a drift or a score gave, in the dtype of the elements.

    Raises:
        ConfigurationError: no floating-point tensor.
        ShapeError: another shape than ``[*batch, dim]``; nothing is broadcast, for that hides mistakes.
    """
    value, shape = check_tensor(name, value), (*group.batch_shape(g), group.dim)
    if tuple(value.shape) != shape:
        raise ShapeError(f"{name}: expected algebra vectors {list(shape)}, got {list(value.shape)}")
    return value.to(g.dtype)


def as_score(score: Score | Callable[[Tensor, float], Tensor], name: str = "score") -> Score:
    """A `Score` from a score or a plain function."""
    if isinstance(score, Score):
        return score
    if not callable(score):
        raise ConfigurationError(f"{name}: expected a Score or a function (g, t) -> [*batch, dim], got {score!r}")
    return FunctionScore(score)
