"""A kind of one's own is one class: `GroupDiffusion` takes it, fits, samples, evaluates densities and writes files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch
from torch import Tensor

from tests.helpers import seeded
from trivgeo.errors import CheckpointError
from trivgeo.generative import GroupDiffusion, GroupDistribution, ProbabilityPath
from trivgeo.generative.paths import TrainingBatch
from trivgeo.groups import LieGroup, Torus
from trivgeo.sde import ConstantSchedule, TrivializedSDE


@dataclass(frozen=True)
class EasedPath(ProbabilityPath):
    """Flow matching along geodesics that leave the data and reach the base distribution slowly."""

    group: LieGroup
    base: GroupDistribution
    start_time: ClassVar[float] = 0.0  # type: ignore[misc]
    end_time: ClassVar[float] = 1.0  # type: ignore[misc]

    @classmethod
    def fit(
        cls, group: LieGroup, data: Tensor, generator: torch.Generator | None
    ) -> tuple[dict[str, Any], GroupDistribution]:
        return {}, cls.fit_base(group, data)

    @classmethod
    def build(cls, group: LieGroup, settings: Mapping[str, Any], base: GroupDistribution) -> Self:
        return cls(group, base)

    def training_batch(self, data: Tensor, generator: torch.Generator | None) -> TrainingBatch:
        t = torch.rand(len(data), generator=generator)
        u = self.group.log(self.group.compose(self.group.inverse(data), self.base.sample(len(data), generator)))
        place, rate = 0.5 * (1.0 - (math.pi * t).cos()), 0.5 * math.pi * (math.pi * t).sin()
        g = self.group.retract(data, place.unsqueeze(-1) * u)
        return TrainingBatch(g, t, None, rate.unsqueeze(-1) * u, torch.ones_like(t))

    def flow(self, network: Any) -> TrivializedSDE:
        def drift(g: Tensor, t: float) -> Tensor:
            return network(g, g.new_full(self.group.batch_shape(g), t), None)

        return TrivializedSDE(self.group, ConstantSchedule(0.0), drift, noisy=False)


def test_new_kind(tmp_path: Path) -> None:
    data = 0.4 * torch.randn(1000, 1, generator=seeded(0))
    model = GroupDiffusion(Torus(1), EasedPath, width=32, depth=1)
    model.fit(data, steps=300, batch_size=256, learning_rate=5e-3, progress=False)
    g = model.sample(500, generator=seeded(1))
    assert float((g.abs() < 1.2).float().mean()) > 0.9
    angle = (torch.arange(64) + 0.5) * (2.0 * math.pi / 64)
    density = model.log_prob(angle.unsqueeze(-1), tolerance=1e-3).exp()
    assert float(density.mean()) == pytest.approx(1.0, abs=0.1)
    path = tmp_path / "model.safetensors"
    model.save(path)
    assert torch.equal(g, GroupDiffusion.load(path, Torus(1), EasedPath).sample(500, generator=seeded(1)))
    with pytest.raises(CheckpointError, match="EasedPath"):
        GroupDiffusion.load(path, Torus(1))
    stepped = model.sample(500, generator=seeded(1), steps=200)  # along its flow, as without a number of steps
    assert float(Torus(1).wrap(stepped - g).abs().median()) < 0.01
