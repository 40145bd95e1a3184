"""A network that sees how an image was moved."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from tasks.images.data import ImageBatch
from tasks.images.energies import Precision
from tasks.images.models import ImageNetwork
from tasks.learned import NoiseNetwork
from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError
from trivgeo.inversion import LevelFeatures


class PoseNetwork(ImageNetwork, NoiseNetwork):
    """The noise of the transformation of an image: convolutions of stride 2, then linear layers, all told the level.

    There is no pooling to a mean and no normalisation: what is asked for is where the ink is.

    Args:
        dim: of the group.
        images: see `tasks.images.models.ImageNetwork`.
        channels: of the convolutions; the first is 5 x 5, the others 3 x 3.
        width: of the hidden linear layers.
        precision: of the convolutions and the hidden layers; bfloat16 takes half the time where the processor has
            instructions for it.

    Raises:
        ConfigurationError: a number below one, or nothing is left of the image after the convolutions.
    """

    def __init__(
        self,
        dim: int,
        images: Sequence[int],
        channels: Sequence[int] = (32, 64, 64),
        width: int = 96,
        precision: Precision = "bfloat16",
    ) -> None:
        super().__init__(images)
        self.dim = check_count("dim", dim)
        self.channels = [check_count("channels", count) for count in channels]
        self.width = check_count("width", width)
        self.precision: Precision = precision
        if not self.channels:
            raise ConfigurationError("channels: expected at least one convolution, got none")
        self.images.check_halvings(len(self.channels))
        self.features = LevelFeatures()
        level = 32
        self.level = nn.Sequential(nn.Linear(self.features.size, level), nn.SiLU())
        sizes = [self.images.channels, *self.channels]
        cells = math.prod(-(-side // 2 ** len(self.channels)) for side in self.images.size)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3 if place else 5, 2, 1 if place else 2)
            for place, (a, b) in enumerate(itertools.pairwise(sizes))
        )
        self.modulations = nn.ModuleList(nn.Linear(level, 2 * b) for b in self.channels)
        self.first = nn.Linear(self.channels[-1] * cells + level, width)
        self.second = nn.Linear(width + level, width)
        self.last = nn.Linear(width, dim)

    @property
    def architecture(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {
            "dim": self.dim,
            "images": list(self.images),
            "channels": self.channels,
            "width": self.width,
            "precision": self.precision,
        }

    def data(self, batch: ImageBatch) -> Tensor:
        """The images."""
        return batch.image

    def forward(self, y: Float[Tensor, "b c h w"], level: Float[Tensor, " b"]) -> Float[Tensor, "b n"]:
        """The noise in units of its size, see `trivgeo.inversion.LearnedScore`.

        Raises:
            ShapeError: the images have another size.
        """
        return self.per_image(lambda x: self._noise(x, level), y)

    def _noise(self, x: Tensor, level: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            e = self.level(self.features(level))
            h = x.contiguous(memory_format=torch.channels_last)
            for convolution, modulation in zip(self.convolutions, self.modulations, strict=True):
                scale, shift = modulation(e)[..., None, None].chunk(2, 1)
                h = F.silu(convolution(h) * (1 + scale) + shift)
            h = F.silu(self.first(torch.cat([h.flatten(1), e], 1)))
            h = F.silu(self.second(torch.cat([h, e], 1)))
        return self.last(h.to(x.dtype))
