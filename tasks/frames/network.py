"""The network of `tasks.frames.diffusion`, with all that a sampler needs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trivgeo.generative.score_matching import ScoreNetwork
from trivgeo.networks import Network
from trivgeo.sde import GeometricSchedule

from .group import frame_group


class FrameScore(Network):
    """A score on `frame_group`, and the normal distribution of coordinates that samples start from before they are
    noised.

    Args:
        scale: see `FrameDiffusion`.
        schedule: smallest and largest noise of a `GeometricSchedule`, in units of ``scale``.
        width: see `ScoreNetwork`.
        depth: see `ScoreNetwork`.
    """

    mean: Tensor
    factor: Tensor

    def __init__(self, scale: Sequence[float], schedule: Sequence[float], width: int = 128, depth: int = 3) -> None:
        super().__init__()
        self.group = frame_group(list(scale))
        self.schedule = GeometricSchedule(*schedule)
        self.score = ScoreNetwork(self.group, self.schedule, width, depth, data_std=1.0)
        self.register_buffer("mean", torch.zeros(self.group.dim))
        self.register_buffer("factor", torch.eye(self.group.dim))
        self._architecture = {"scale": list(scale), "schedule": list(schedule), "width": width, "depth": depth}

    @property
    def architecture(self) -> dict[str, Any]:
        """See `Network`."""
        return dict(self._architecture)

    def forward(self, g: Tensor, t: float) -> Tensor:
        """The score, see `ScoreNetwork`."""
        return self.score(g, t)

    def fit_start(self, rows: Tensor) -> None:
        """Take mean and covariance of coordinates ``[n, 5]`` for those of the start."""
        self.mean.copy_(rows.mean(0))
        self.factor.copy_(torch.linalg.cholesky(torch.cov(rows.T)))

    def start(self, number: int, generator: torch.Generator) -> Tensor:
        """Elements of normal coordinates, ``[number, 5]``."""
        noise = torch.randn(number, self.group.dim, generator=generator).to(self.mean)
        return self.mean + noise @ self.factor.mT
