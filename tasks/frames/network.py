"""The network of `tasks.frames.diffusion`, with all that a sampler needs."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trivgeo.checks import check_count
from trivgeo.networks import Network
from trivgeo.sde import GeometricSchedule

from .group import frame_group

_NUM_LEVEL_WAVES = 4


class _ScoreLayers(nn.Module):
    r"""Layers of SiLU on the entries of an element and Fourier features of the noise level, to vectors ``[b, dim]``.

    The output is divided by the level :math:`(1 + \int_0^t \gamma^2)^{1/2}`, the size of a score of data of unit width.
    """

    frequencies: Tensor

    def __init__(self, dim: int, width: int, depth: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(_NUM_LEVEL_WAVES))
        sizes = [dim + 1 + 2 * _NUM_LEVEL_WAVES, *[width] * depth]
        layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.SiLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], dim))

    def forward(self, g: Tensor, level: float) -> Tensor:
        angle = math.log(level) * self.frequencies.to(g.dtype)
        waves = torch.cat([angle[:1], angle.sin(), angle.cos()]).expand(*g.shape[:-1], -1)
        return self.layers(torch.cat([g, waves], -1)) / level


class FrameScore(Network):
    """A score on `frame_group`, and the normal distribution of coordinates that samples start from before the noise.

    Args:
        scale: see `FrameDiffusion`.
        schedule: smallest and largest noise of a `GeometricSchedule`, in units of ``scale``.
        width: width of the hidden layers.
        depth: number of hidden layers.
    """

    mean: Tensor
    factor: Tensor

    def __init__(self, scale: Sequence[float], schedule: Sequence[float], width: int = 128, depth: int = 3) -> None:
        super().__init__()
        self.group = frame_group(list(scale))
        self.schedule = GeometricSchedule(*schedule)
        self.score = _ScoreLayers(self.group.dim, check_count("width", width), check_count("depth", depth))
        self.register_buffer("mean", torch.zeros(self.group.dim))
        self.register_buffer("factor", torch.eye(self.group.dim))
        self._architecture = {"scale": list(scale), "schedule": list(schedule), "width": width, "depth": depth}

    @property
    def architecture(self) -> dict[str, Any]:
        return dict(self._architecture)

    def forward(self, g: Tensor, t: float) -> Tensor:
        """The score ``[*batch, 5]`` at elements and one time in [0, 1]."""
        return self.score(self.group.check_elements(g), math.sqrt(1.0 + self.schedule.variance(0.0, t)))

    def fit_start(self, rows: Tensor) -> None:
        """Take mean and covariance of coordinates ``[n, 5]`` for those of the start."""
        self.mean.copy_(rows.mean(0))
        self.factor.copy_(torch.linalg.cholesky(torch.cov(rows.T)))

    def start(self, number: int, generator: torch.Generator) -> Tensor:
        """Elements of normal coordinates, ``[number, 5]``."""
        noise = torch.randn(number, self.group.dim, generator=generator).to(self.mean)
        return self.mean + noise @ self.factor.mT
