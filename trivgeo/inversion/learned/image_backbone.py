"""The backbone of a learned score for images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from trivgeo.actions import ImageWarp
from trivgeo.checks import check_choice, check_count, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.inversion.learned.backbone import FeatureNetwork, LevelFeatures, NoiseNetwork, _spread, backbone_for

Precision = Literal["float32", "bfloat16"]
_MAX_MAP_SIDE = 7  # side in pixels of the map after the convolutions


@checked
class ImageBackbone(FeatureNetwork):
    """The noise of the transformation of an image: convolutions of stride 2, then linear layers, all told the level.

    There is no pooling to a mean and no normalisation: the network has to tell where things are.

    Args:
        dim: dimension of the group.
        shape: channels, height and width of the images.
        channels: channels of the convolutions; the first is 5 x 5, the others 3 x 3. Default: as many of 32, 64, 64,
            ... as leave a map of at most seven by seven.
        width: width of the hidden linear layers.
        precision: precision of the convolutions and the hidden layers; ``"bfloat16"`` takes half the time where the
            processor has instructions for it. It rounds to three digits, so that a change in the last digit of an
            image, as another batch size or an exported program make, may change its answers in the third.
        mean: mean of the values of each channel, subtracted; default 0.
        std: standard deviation of the values of each channel, divided by; default 1.

    Raises:
        ConfigurationError: a number below one, an unknown precision, or convolutions that leave nothing of the image.
    """

    finest = 0.1  # a pixel or so

    def __init__(
        self,
        dim: int,
        shape: Sequence[int],
        channels: Sequence[int] | None = None,
        width: int = 96,
        precision: Precision = "float32",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ConfigurationError(f"shape: expected channels, height and width, got {list(shape)}")
        self.dim = check_count("dim", dim)
        self.shape = tuple(check_count("shape", number) for number in shape)
        self.channels = _channels(self.shape) if channels is None else [check_count("channels", n) for n in channels]
        self.width = check_count("width", width)
        self.precision: Precision = check_choice("precision", precision, ("float32", "bfloat16"))
        if not self.channels:
            raise ConfigurationError("channels: expected at least one convolution, got none")
        most = min(self.shape[1:]).bit_length() - 1
        if channels is not None and len(self.channels) > most:
            raise ConfigurationError(
                f"channels: expected at most {most} convolutions on images of {self.shape[1]} x {self.shape[2]} "
                f"pixels, got {len(self.channels)}"
            )
        self.register_units(((self.shape[0],), (self.shape[0],)), mean, std)
        self.features = LevelFeatures()
        level = 32
        self.level = nn.Sequential(nn.Linear(self.features.size, level), nn.SiLU())
        cells = math.prod(-(-side // 2 ** len(self.channels)) for side in self.shape[1:])
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3 if place else 5, 2, 1 if place else 2)
            for place, (a, b) in enumerate(itertools.pairwise([self.shape[0], *self.channels]))
        )
        self.modulations = nn.ModuleList(nn.Linear(level, 2 * b) for b in self.channels)
        self.first = nn.Linear(self.channels[-1] * cells + level, width)
        self.second = nn.Linear(width + level, width)
        self.last = nn.Linear(width, dim)

    @property
    def last_layer(self) -> nn.Module:
        return self.last

    def embed(self, y: Float[Tensor, "b c h w"], level: Float[Tensor, " b"]) -> Float[Tensor, "b f"]:
        """Return the inputs of the last layer, ``[b, f]``, by which unusual images are recognised.

        Raises:
            ShapeError: the images have another shape than those of the training.
        """
        if tuple(y.shape[1:]) != self.shape:
            raise ShapeError(f"x: expected images [b, {', '.join(map(str, self.shape))}], got {list(y.shape)}")
        mean, std = (units.reshape(-1, 1, 1) for units in (self.mean, self.std))
        x, level = (y.to(mean.dtype) - mean) / std, level.to(mean.dtype)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            e = self.level(self.features(level))
            h = x.contiguous(memory_format=torch.channels_last)
            for convolution, modulation in zip(self.convolutions, self.modulations, strict=True):
                scale, shift = modulation(e)[..., None, None].chunk(2, 1)
                h = functional.silu(convolution(h) * (1 + scale) + shift)
            h = functional.silu(self.first(torch.cat([h.flatten(1), e], 1)))
            h = functional.silu(self.second(torch.cat([h, e], 1)))
        return h.to(x.dtype)


def _channels(shape: Sequence[int]) -> list[int]:
    """Return the channels of as many convolutions as leave a small map."""
    number = max(1, math.ceil(math.log2(min(shape[1:]) / _MAX_MAP_SIDE)))
    return [32, *[64] * (number - 1)]


@backbone_for.register
def _(action: ImageWarp, x: Tensor) -> NoiseNetwork:
    action.check_data(x)
    if action.dims != 2:
        raise ConfigurationError(f"action: expected one on images of the plane, got {action!r}; give a network")
    flat = x.movedim(1, 0).flatten(1)
    return ImageBackbone(action.group.dim, x.shape[1:], mean=flat.mean(1).tolist(), std=_spread(flat).tolist())
