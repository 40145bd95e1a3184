"""Flow matching along geodesics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from trivgeo.generative.base_distributions import BaseDistribution, fit_base_distribution
from trivgeo.generative.paths.base import Network, ProbabilityPath, TrainingBatch
from trivgeo.generative.paths.simulation import stratified
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.schedule import ConstantSchedule
from trivgeo.sde.processes.trivialized import TrivializedSDE

__all__ = ["FlowMatchingPath"]

PathT = TypeVar("PathT", bound="FlowMatchingPath")

_WIDEN = 1.2  # factor on standard deviations: the base distribution covers the data


@dataclass(frozen=True)
class FlowMatchingPath(ProbabilityPath):
    r"""Flow matching along geodesics (Chen and Lipman 2024): the network predicts the velocity.

    From a datum x_1 to a draw x_0 of the base distribution goes :math:`x_1 \exp(t u), u = \log(x_1^{-1} x_0)`, whose
    left-trivialized velocity is u at every t; the flow of :math:`E[u \mid x_t]` carries one distribution to the other,
    on every group, for that is a fact about one-parameter subgroups. Time runs from the data, as on the other paths.
    Pairs without a logarithm are skipped.

    Attributes:
        group: see `TrivializedSDE`.
        base: the base distribution.
        speed: root mean square of u, by which the target is divided.
    """

    group: LieGroup
    base: BaseDistribution
    speed: float
    start_time: ClassVar[float] = 0.0  # type: ignore[misc]
    end_time: ClassVar[float] = 1.0  # type: ignore[misc]

    @classmethod
    def fit_base(cls, group: LieGroup, samples: Tensor) -> BaseDistribution:
        """Haar's distribution on compact factors, normal ones wider than the samples elsewhere."""
        return fit_base_distribution(group, samples, _WIDEN)

    @classmethod
    def fit(
        cls, group: LieGroup, data: Tensor, generator: torch.Generator | None
    ) -> tuple[dict[str, Any], BaseDistribution]:
        """Fit the base distribution to the data, and measure the speed of the geodesics between both."""
        base = cls.fit_base(group, data)
        velocity = cls(group, base, 1.0).training_batch(data, generator).target
        return {"speed": float(velocity[torch.isfinite(velocity).all(-1)].square().mean().sqrt())}, base

    @classmethod
    def build(cls: type[PathT], group: LieGroup, settings: Mapping[str, Any], base: BaseDistribution) -> PathT:
        """Build the path of a speed to a base distribution."""
        return cls(group, base, settings["speed"])

    def training_batch(self, data: Tensor, generator: torch.Generator | None) -> TrainingBatch:
        """Draw stratified times, and geodesics from the data to draws of the base distribution."""
        t = stratified(len(data), data, generator)
        u = self.group.log(self.group.compose(self.group.inverse(data), self.base.sample(len(data), generator)))
        found = torch.isfinite(u).all(-1, keepdim=True)
        g = self.group.retract(data, t.unsqueeze(-1) * torch.where(found, u, 0.0))
        return TrainingBatch(g, t, None, u / self.speed, torch.ones_like(t))

    def flow(self, network: Network) -> TrivializedSDE:
        """The equation of the network's velocity."""

        def drift(g: Tensor, t: float) -> Tensor:
            return self.speed * network(g, g.new_full(self.group.batch_shape(g), t), None)

        return TrivializedSDE(self.group, ConstantSchedule(0.0), drift, noisy=False)
