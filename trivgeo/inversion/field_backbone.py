"""The backbone of a learned score that looks at fields."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.actions import Field
from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.learned import LevelFeatures

__all__ = ["FieldBackbone"]

_MODES = 8
_POOLED = 4
_CHANNELS = 32


class FieldBackbone(nn.Module):
    """The noise of the transformation of a field on a grid of one or two dimensions, from what moves with it.

    It is told the place, the times and the edges of the grid, mean, size and power spectrum of every unknown, and what
    a few circular convolutions say of the shape of the field; all in units of their spread among examples.

    Args:
        dim: of the group.
        examples: fields moved as far as those that the network will see, with one batch dimension.
        width: of the hidden layers.

    Raises:
        ConfigurationError: a count below one, or fields of more than two dimensions.
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, dim: int, examples: Field, width: int = 128) -> None:
        super().__init__()
        check_count("width", width)
        dims = len(examples.counts)
        if dims not in (1, 2):
            raise ConfigurationError(f"examples: expected fields of one or two dimensions, got {dims}")
        convolution: type[nn.Conv1d | nn.Conv2d] = nn.Conv1d if dims == 1 else nn.Conv2d
        pool: type[nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d] = (
            nn.AdaptiveAvgPool1d if dims == 1 else nn.AdaptiveAvgPool2d
        )
        features = _features(examples)
        self.register_buffer("centre", features.mean(0).float())
        self.register_buffer("spread", features.std(0).clamp(min=1e-6).float())
        channels = examples.values.shape[1] * examples.values.shape[2]
        self.shape = nn.Sequential(
            convolution(channels, _CHANNELS, 5, stride=2, padding=2, padding_mode="circular"),
            nn.SiLU(),
            convolution(_CHANNELS, _CHANNELS, 5, stride=2, padding=2, padding_mode="circular"),
            nn.SiLU(),
            pool(_POOLED),
            nn.Flatten(),
        )
        self.level = LevelFeatures()
        inputs = features.shape[-1] + _CHANNELS * _POOLED**dims + self.level.size
        self.head = nn.Sequential(
            nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, dim)
        )

    def forward(self, y: Field, level: Float[Tensor, " b"]) -> Float[Tensor, "b d"]:
        """The noise in units of its size, in the dtype of the data."""
        features = (_features(y).to(self.centre.dtype) - self.centre) / self.spread
        values = rearrange(y.values.to(self.centre.dtype), "b c s ... -> b (c s) ...")
        size = values.flatten(1).std(-1).reshape(-1, *[1] * (values.ndim - 1))
        shape = self.shape(values / size.clamp(min=1e-6))
        # differences of a few hundredths of the spread must show at the lowest levels
        return self.head(torch.cat([features, shape, self.level(level.to(features.dtype))], -1)).to(y.values.dtype)


def _features(y: Field) -> Float[Tensor, "b f"]:
    """Numbers that tell how a field was moved."""
    values = y.values.flatten(1, 2)
    flat = values.flatten(2)
    mean = flat.mean(-1)
    size = flat.std(-1).clamp(min=1e-6).log()
    power = [
        torch.fft.rfft(values, dim=axis, norm="forward").abs().square().movedim(axis, -1)[..., 1 : _MODES + 1]
        for axis in range(2, values.ndim)
    ]
    spectrum = [(p.flatten(2, -2).mean(2) if p.ndim > 3 else p).clamp(min=1e-12).log().flatten(1) for p in power]
    edges = y.grid.steps.diagonal(dim1=-2, dim2=-1).abs().clamp(min=1e-12).log()
    return torch.cat([y.grid.origin.flatten(1), edges.flatten(1), y.grid.steps.flatten(1), mean, size, *spectrum], -1)
