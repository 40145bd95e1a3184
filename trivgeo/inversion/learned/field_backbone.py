"""The backbone of a learned score for fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.actions import Field, FieldAction
from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.inversion.learned.backbone import FeatureNetwork, LevelFeatures, NoiseNetwork, backbone_for

_NUM_MODES = 8  # modes of the power spectrum of each axis
_POOLED_SIDE = 4  # side in cells that the convolutions are pooled to
_NUM_CHANNELS = 32
_EXAMPLES = 512  # moved fields that give the units of the features


@checked
class FieldBackbone(FeatureNetwork):
    """The noise of the transformation of a field on a grid of one or two dimensions, from what moves with it.

    Its inputs are the place, the times and the edges of the grid, mean, size and power spectrum of every unknown, and
    the shape of the field by a few circular convolutions; all in units of their spread among examples.

    Args:
        dim: dimension of the group.
        examples: fields moved as far as those that the network will see, with one batch dimension; or the shape
            ``(c, s, *n)`` of the values of one, for a network whose weights and units come from a file.
        width: width of the hidden layers.

    Raises:
        ConfigurationError: a count below one, or fields of more than two dimensions.
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, dim: int, examples: Field | Sequence[int], width: int = 128) -> None:
        super().__init__()
        self.dim, self.width = check_count("dim", dim), check_count("width", width)
        given = examples.values.shape[1:] if isinstance(examples, Field) else examples
        self.values_shape = tuple(check_count("examples", number) for number in given)
        dims = len(self.values_shape) - 2
        if dims not in (1, 2):
            raise ConfigurationError(f"examples: expected fields of one or two dimensions, got {dims}")
        convolution: type[nn.Conv1d | nn.Conv2d] = nn.Conv1d if dims == 1 else nn.Conv2d
        pool: type[nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d] = (
            nn.AdaptiveAvgPool1d if dims == 1 else nn.AdaptiveAvgPool2d
        )
        features = _features(examples if isinstance(examples, Field) else _unit_field(self.values_shape))
        self.register_buffer("centre", features.mean(0).float())
        self.register_buffer("spread", features.std(0).clamp(min=1e-6).float())
        channels = self.values_shape[0] * self.values_shape[1]
        self.shape = nn.Sequential(
            convolution(channels, _NUM_CHANNELS, 5, stride=2, padding=2, padding_mode="circular"),
            nn.SiLU(),
            convolution(_NUM_CHANNELS, _NUM_CHANNELS, 5, stride=2, padding=2, padding_mode="circular"),
            nn.SiLU(),
            pool(_POOLED_SIDE),
            nn.Flatten(),
        )
        self.level = LevelFeatures()
        inputs = features.shape[-1] + _NUM_CHANNELS * _POOLED_SIDE**dims + self.level.size
        self.head = nn.Sequential(
            nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, dim)
        )

    @property
    def architecture(self) -> dict[str, Any]:
        return {"dim": self.dim, "examples": list(self.values_shape), "width": self.width}

    @property
    def last_layer(self) -> nn.Module:
        return self.head[-1]

    def embed(self, y: Field, level: Float[Tensor, " b"]) -> Float[Tensor, "b f"]:
        features = (_features(y).to(self.centre.dtype) - self.centre) / self.spread
        values = rearrange(y.values.to(self.centre.dtype), "b c s ... -> b (c s) ...")
        size = values.flatten(1).std(-1).reshape(-1, *[1] * (values.ndim - 1))
        shape = self.shape(values / size.clamp(min=1e-6))
        # differences of a few hundredths of the spread must show at the lowest levels
        return self.head[:-1](torch.cat([features, shape, self.level(level.to(features.dtype))], -1))


@backbone_for.register
def _(action: FieldAction, x: Field) -> NoiseNetwork:
    """Return a backbone whose examples are clean data moved by elements as large as the scale of the group."""
    action.check_data(x)
    rows = torch.arange(_EXAMPLES, device=x.values.device) % len(x.values)
    generator = torch.Generator().manual_seed(0)
    moved = action(action.group.random(_EXAMPLES, generator=generator, dtype=torch.float64).to(x.values), x.take(rows))
    known = torch.isfinite(moved.values).flatten(1).all(-1)
    if int(known.sum()) < 2:
        raise DomainError(
            f"x: expected fields that stay known when they are moved, got {int(known.sum())} of {_EXAMPLES}"
        )
    return FieldBackbone(action.group.dim, moved.take(known.nonzero().squeeze(-1)))


def _unit_field(shape: Sequence[int]) -> Field:
    """Return two zero fields on the unit box at times 0, 1, ..."""
    values = torch.zeros(2, *shape)
    return Field.on_box(values, [(0.0, 1.0)] * (len(shape) - 2), [float(k) for k in range(shape[1])])


def _features(y: Field) -> Float[Tensor, "b f"]:
    """Return numbers that tell how a field was moved."""
    values = y.values.flatten(1, 2)
    flat = values.flatten(2)
    mean = flat.mean(-1)
    size = flat.std(-1).clamp(min=1e-6).log()
    power = [
        torch.fft.rfft(values, dim=axis, norm="forward").abs().square().movedim(axis, -1)[..., 1 : _NUM_MODES + 1]
        for axis in range(2, values.ndim)
    ]
    spectrum = [(p.flatten(2, -2).mean(2) if p.ndim > 3 else p).clamp(min=1e-12).log().flatten(1) for p in power]
    edges = y.grid.steps.diagonal(dim1=-2, dim2=-1).abs().clamp(min=1e-12).log()
    return torch.cat([y.grid.origin.flatten(1), edges.flatten(1), y.grid.steps.flatten(1), mean, size, *spectrum], -1)
