"""Scores: estimates of the left-trivialized gradient of log p_t, with their by-products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._text import Described, described
from trivgeo.checks import check_arguments, check_tensor, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.schedule import Schedule


@dataclass(frozen=True)
class SolveContext:
    """Context of a solve, from which an equation and its scores prepare what every step needs.

    Attributes:
        times: times at which the drift will be evaluated, in order.
        batch: the batch shape of the chains.
        dtype: dtype of their state.
        device: device of their state.
        generator: the source of noise of the solve.
    """

    times: tuple[float, ...]
    batch: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    generator: torch.Generator | None


class EnergySamples(NamedTuple):
    """Energies of the samples of one Monte Carlo estimate, without gradients.

    Attributes:
        elements: arguments of the energy, ``[*batch, N, *element_shape]``.
        energy: energies of the elements, ``[*batch, N]``.
        finite: samples whose energy and gradient are finite, ``[*batch, N]``; the others are masked.
        weights: weights of the N samples of each chain, summing to one, ``[*batch, N]``.
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
    """The value of a score, and the samples it was estimated from.

    Attributes:
        score: the value, ``[*batch, dim]``.
        samples: the energies that were evaluated; ``None`` if there were none.
    """

    score: Float[Tensor, "*batch n"]
    samples: EnergySamples | None = None

    def __repr__(self) -> str:
        return described(self)


@checked
class Score(Described, ABC):
    """An estimate of the trivialized score of p_t, the density with respect to left Haar measure."""

    @property
    def shares_noise(self) -> bool:
        """True if all estimates along the first batch dimension use the same noise."""
        return False

    @property
    def takes_row_times(self) -> bool:
        """True if the time may be a tensor with a time for each element, ``[*batch]``; by default not."""
        return False

    @abstractmethod
    def estimate(self, g: Tensor, t: float) -> ScoreEstimate:
        """Return the score ``[*batch, dim]``, with by-products of its evaluation.

        Args:
            g: elements ``[*batch, *element_shape]``.
            t: time of all elements.
        """

    @final
    def __call__(self, g: Tensor, t: float) -> Float[Tensor, "*batch n"]:
        """Return the score alone, see `estimate`."""
        return self.estimate(g, t).score

    def prepare(self, run: SolveContext) -> Score:
        """Return the score for one solve, described by ``run``; by default the score itself."""
        return self

    def check_noise(self, group: LieGroup, schedule: Schedule) -> None:
        """Check that the score belongs to the noise of ``schedule`` on ``group``; by default it belongs to any.

        Raises:
            ConfigurationError: the score belongs to other noise.
        """


@checked
class FunctionScore(Score):
    """A score given as a function ``(g, t) -> [*batch, dim]``: a closed form or a network."""

    def __init__(self, function: Callable[[Tensor, float], Tensor]) -> None:
        self._function = function

    @property
    def takes_row_times(self) -> bool:
        return True

    def estimate(self, g: Tensor, t: float) -> ScoreEstimate:
        """Return the value of the function, see `Score.estimate`.

        Raises:
            ConfigurationError: the function takes its time for a tensor.
        """
        try:
            return ScoreEstimate(self._function(g, t))
        except (TypeError, AttributeError) as error:
            if not isinstance(t, float) or "float" not in str(error):
                raise
            raise ConfigurationError(
                f"score or drift: expected a function of elements {list(g.shape)} and a time t, one number for all of "
                f"them, got one that takes t for a tensor: {error}"
            ) from error


def check_drift(value: Any, group: LieGroup, g: Tensor, name: str = "score") -> Tensor:
    """Return the value of a drift or a score at elements, in their dtype.

    Raises:
        ConfigurationError: the value is no floating-point tensor.
        ShapeError: the shape is not ``[*batch, dim]``; nothing is broadcast, for that hides mistakes.
    """
    value, shape = check_tensor(name, value), (*group.batch_shape(g), group.dim)
    if tuple(value.shape) != shape:
        raise ShapeError(f"{name}: expected algebra vectors {list(shape)}, got {list(value.shape)}")
    return value.to(g.dtype)


def as_score(score: Score | Callable[[Tensor, float], Tensor], name: str = "score") -> Score:
    """Return a `Score` as it is, and a plain function (g, t) -> ``[*batch, dim]`` as a `Score`; see `check_drift`.

    Raises:
        ConfigurationError: ``score`` is neither.
    """
    if isinstance(score, Score):
        return score
    if not callable(score):
        raise ConfigurationError(f"{name}: expected a Score or a function (g, t) -> [*batch, dim], got {score!r}")
    return FunctionScore(score)


def checked_score(score: Score | Callable[[Tensor, float], Tensor], name: str = "score") -> Score:
    """Return the result of `as_score`, after a check that a function takes an element and a time.

    Raises:
        ConfigurationError: ``score`` is neither, or a function of other arguments.
    """
    found = as_score(score, name)
    if not isinstance(score, Score):
        check_arguments(name, score, "g", "t")
    return found
