"""Flow matching along geodesics."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo.errors import ConfigurationError
from trivgeo.generative.base_distributions import BaseDistribution
from trivgeo.generative.paths.base import Network, ProbabilityPath, TrainingBatch, followed
from trivgeo.generative.paths.levels import stratified
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.schedule import ConstantSchedule
from trivgeo.sde.processes.trivialized import TrivializedSDE

__all__ = ["FlowMatchingPath"]


@dataclass(frozen=True)
class FlowMatchingPath(ProbabilityPath):
    r"""Flow matching along geodesics (Chen and Lipman 2024): the network is to tell the velocity.

    From a datum x_1 to a draw x_0 of the terminal law goes :math:`x_1 \exp(t u), u = \log(x_1^{-1} x_0)`, whose
    left-trivialized velocity is u at every t; the flow of :math:`E[u \mid x_t]` carries one law to the other, on every
    group, for that is a fact about one-parameter subgroups. Time runs from the data, as for the other kinds. Pairs
    without a logarithm do not count.

    Attributes:
        group: see `TrivializedSDE`.
        law: the terminal law.
        speed: the size of u.
    """

    group: LieGroup
    law: BaseDistribution
    speed: float

    @property
    def first(self) -> float:  # type: ignore[override]
        """The flow begins at the data themselves."""
        return 0.0

    def lesson(self, clean: Tensor, generator: torch.Generator | None) -> TrainingBatch:
        """At stratified times."""
        t = stratified(len(clean), clean, generator)
        u = self.group.log(self.group.compose(self.group.inverse(clean), self.law.sample(len(clean), generator)))
        found = torch.isfinite(u).all(-1, keepdim=True)
        g = self.group.retract(clean, t.unsqueeze(-1) * torch.where(found, u, 0.0))
        return TrainingBatch(g, t, None, u / self.speed, torch.ones_like(t))

    def noised(self, clean: Tensor, generator: torch.Generator | None) -> Tensor:
        """A draw of the terminal law."""
        return self.law.sample(len(clean), generator)

    def flow(self, network: Network) -> TrivializedSDE:
        """With the network's velocity."""

        def drift(g: Tensor, t: float) -> Tensor:
            return self.speed * network(g, g.new_full(self.group.batch_shape(g), t), None)

        return TrivializedSDE(self.group, ConstantSchedule(0.0), drift, noisy=False)

    def sample(
        self, network: Network, start: Tensor, generator: torch.Generator | None, tolerance: float, steps: int | None
    ) -> Tensor:
        """By the flow; there are no random steps."""
        if steps is not None:
            raise ConfigurationError('steps: expected none for kind="flow", which has no random steps')
        return followed(self.flow(network), start, 1.0, self.first, tolerance)
