"""Probability paths from data to a base distribution: what a network learns, and how it samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._text import described
from trivgeo.generative.base_distributions import BaseDistribution
from trivgeo.groups import LieGroup
from trivgeo.sde.likelihood import Divergence, flow_likelihood
from trivgeo.sde.processes.trivialized import TrivializedSDE
from trivgeo.sde.solvers.adaptive import solve_adaptive

__all__ = ["ProbabilityPath", "TrainingBatch", "followed"]

Network = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Elements, levels ``[*batch]`` in [0, 1] and momenta (or none) to ``[*batch, dim]``."""


class TrainingBatch(NamedTuple):
    """A batch for a network: it is to make the target of the rest, in the mean of the square.

    Attributes:
        elements: ``[b, *element_shape]``.
        level: in [0, 1], from data to noise, ``[b]``.
        momentum: ``[b, dim]``, or none.
        target: of size one, about, ``[b, dim]``; rows that are not finite do not count.
        weight: of the rows in the mean of the square, ``[b]``.
    """

    elements: Tensor
    level: Float[Tensor, " b"]
    momentum: Float[Tensor, "b n"] | None
    target: Float[Tensor, "b n"]
    weight: Float[Tensor, " b"]

    def __repr__(self) -> str:
        return described(self)


class ProbabilityPath(ABC):
    """A way from data to a `BaseDistribution` on a group.

    Attributes:
        group: see `TrivializedSDE`.
        sees_momentum: whether the network is given momenta.
        version: of what the network is to tell; networks that learned another are of no use.
    """

    group: LieGroup
    sees_momentum: bool = False
    version: int = 1
    first: float

    @abstractmethod
    def flow(self, network: Network) -> TrivializedSDE:
        """The equation without noise that carries the data, at the time ``first``, to the terminal law."""

    @abstractmethod
    def lesson(self, clean: Tensor, generator: torch.Generator | None) -> TrainingBatch:
        """A batch made from data ``[b, *element_shape]``."""

    @abstractmethod
    def noised(self, clean: Tensor, generator: torch.Generator | None) -> Tensor:
        """Data at the end of the way, to which the terminal law is fitted."""

    @abstractmethod
    def sample(
        self, network: Network, start: Tensor, generator: torch.Generator | None, tolerance: float, steps: int | None
    ) -> Tensor:
        """Carry elements of the terminal law to the data: by the flow, or in ``steps`` random steps."""

    def log_density(
        self,
        network: Network,
        g: Tensor,
        law: BaseDistribution,
        generator: torch.Generator | None,
        tolerance: float,
        divergence: Divergence | None,
    ) -> Float[Tensor, " b"]:
        """For the measure of the terminal law, by the flow."""
        return flow_likelihood(
            self.flow(network),
            g,
            law.log_density,
            start=self.first,
            tolerance=tolerance,
            divergence=divergence,
            generator=generator,
        ).log_density


def followed(flow: TrivializedSDE, start: Tensor, first: float, last: float, tolerance: float) -> Tensor:
    """Where a flow carries elements."""
    return solve_adaptive(flow, start, first, last, tolerance=tolerance).final
