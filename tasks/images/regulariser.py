"""The adversarial regulariser: a network that scores transformed images higher than clean ones."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.checks import check_count

from .models import ImageNetwork

_NEGATIVE_SLOPE = 0.2


class AdversarialRegulariser(ImageNetwork):
    """A function R of images; S. Lunz et al., "Adversarial regularizers in inverse problems", 2018.

    4 x 4 convolutions of stride 2 with leaky rectifiers, then two linear layers, which see where the ink is. There is
    no normalisation: the penalty on the gradient is on that of each image by itself.

    Args:
        images: `ImageFormat` of the images.
        channels: numbers of channels of the convolutions.
        width: width of the hidden linear layer.

    Raises:
        ConfigurationError: a number below one, or nothing is left of the image after the convolutions.
    """

    def __init__(self, images: Sequence[int], channels: Sequence[int] = (16, 32, 64), width: int = 128) -> None:
        super().__init__(images)
        self.channels = [check_count("channels", count) for count in channels]
        self.width = check_count("width", width)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([self.images.channels, *self.channels]):
            layers += [nn.Conv2d(inputs, outputs, 4, 2, 1), nn.LeakyReLU(_NEGATIVE_SLOPE)]
        self.images.check_halvings(len(self.channels))
        cells = math.prod(side >> len(self.channels) for side in self.images.size)
        layers += [nn.Flatten(), nn.Linear(self.channels[-1] * cells, width), nn.LeakyReLU(_NEGATIVE_SLOPE)]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    @property
    def architecture(self) -> dict[str, Any]:
        return {"images": list(self.images), "channels": self.channels, "width": self.width}

    def forward(self, x: Float[Tensor, "*batch c h w"]) -> Float[Tensor, "*batch"]:
        """R(x); only its differences have a meaning.

        Raises:
            ShapeError: see `per_image`.
        """
        return self.per_image(self._scores, x)

    def _scores(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(-1)
