"""A small convolutional classifier for quick runs."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError

from .models import ImageClassifier


class ConvNet(ImageClassifier):
    """3 x 3 convolutions with batch normalisation and pooling, the mean over the image, one linear layer.

    Args:
        images: `ImageFormat` of the training images; others may have another size.
        channels: numbers of channels of the convolutions; maximum pooling of stride 2 after each but the last.

    Raises:
        ConfigurationError: no convolutions, or a number below one.
    """

    def __init__(self, images: Sequence[int], channels: Sequence[int] = (16, 32, 64)) -> None:
        super().__init__(images, any_size=True)
        if not channels:
            raise ConfigurationError("channels: expected at least one number, got none")
        self.channels = [check_count("channels", count) for count in channels]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([self.images.channels, *self.channels]):
            layers += [nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            layers += [nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*layers[:-1])
        self.head = nn.Linear(self.channels[-1], self.images.classes)

    @property
    def architecture(self) -> dict[str, Any]:
        return {"images": list(self.images), "channels": self.channels}

    def _logits(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean((-2, -1)))
