"""Fourier features of noise levels."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.checks import check_count

__all__ = ["LevelFeatures"]


class LevelFeatures(nn.Module):
    """Fourier features of the logarithm of a noise level, for backbones: ``[b]`` to ``[b, 1 + 2 frequencies]``.

    Args:
        frequencies: number of octaves, from a period of 4 pi.
    """

    frequencies: Tensor

    def __init__(self, frequencies: int = 4) -> None:
        super().__init__()
        check_count("frequencies", frequencies)
        self.size = 1 + 2 * frequencies
        self.register_buffer("frequencies", 0.5 * 2.0 ** torch.arange(frequencies), persistent=False)

    def forward(self, level: Float[Tensor, " b"]) -> Float[Tensor, "b f"]:
        """Return log sigma for noise levels sigma, ``level`` ``[b]``, with its sines and cosines, ``[b, f]``."""
        log = level.log().unsqueeze(-1)
        angle = log * self.frequencies.to(log.dtype)
        return torch.cat([log, angle.sin(), angle.cos()], -1)
