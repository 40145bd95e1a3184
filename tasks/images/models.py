"""Base classes of image networks: the format of the images as plain data, and the energy of a classifier."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.networks import Network


class ImageFormat(NamedTuple):
    """Format of the images of a data set as networks take them.

    Attributes:
        channels: one for grey values, three for colours.
        height: pixels from top to bottom of the frame.
        width: pixels from left to right.
        classes: number of classes.
    """

    channels: int
    height: int
    width: int
    classes: int

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.height, self.width

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image: channels, height, width."""
        return self.channels, self.height, self.width

    def check_halvings(self, count: int) -> None:
        """Raise unless something is left of an image whose sides are halved ``count`` times.

        Raises:
            ConfigurationError: nothing is.
        """
        most = min(self.size).bit_length() - 1
        if count > most:
            raise ConfigurationError(
                f"channels: expected at most {most} convolutions on images of {self.height} x {self.width} pixels, "
                f"got {count}"
            )


class ImageNetwork(Network):
    """A network on images `[*batch, c, h, w]`, with any batch dimensions, that sees each image by itself.

    Args:
        images: the format of the images, an `ImageFormat`.
        any_size: whether height and width may be others.

    Raises:
        ConfigurationError: not four numbers of at least one.
    """

    def __init__(self, images: Sequence[int], any_size: bool = False) -> None:
        super().__init__()
        if len(images) != len(ImageFormat._fields):
            raise ConfigurationError(f"images: expected channels, height, width and classes, got {list(images)}")
        self.images = ImageFormat(*(check_count("images", number) for number in images))
        self.any_size = any_size

    def takes(self, images: ImageFormat) -> bool:
        """Whether images of a format have the channels and the size of this network's."""
        return self.images.channels == images.channels and (self.any_size or self.images.size == images.size)

    def per_image(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """A function `[b, c, h, w] -> [b, *out]` at images with any batch dimensions, `[*batch, *out]`.

        Raises:
            ShapeError: the images have other channels, or another size.
        """
        expected = (self.images.channels, *(x.shape[-2:] if self.any_size else self.images.size))
        if tuple(x.shape[-3:]) != expected:
            size = "h, w" if self.any_size else f"{self.images.height}, {self.images.width}"
            raise ShapeError(
                f"{type(self).__name__}: expected images [*batch, {self.images.channels}, {size}], got {list(x.shape)}"
            )
        y = function(x.reshape(-1, *x.shape[-3:]))
        return y.reshape((*x.shape[:-3], *y.shape[1:]))


class ImageClassifier(ImageNetwork):
    """A network from images to logits, and its confidence as an energy."""

    @abstractmethod
    def _logits(self, x: Tensor) -> Tensor:
        """Logits `[b, classes]` of images `[b, c, h, w]`."""

    def forward(self, x: Float[Tensor, "*batch c h w"]) -> Float[Tensor, "*batch classes"]:
        """The logits.

        Raises:
            ShapeError: see `per_image`.
        """
        return self.per_image(self._logits, x)

    def energy(self, x: Float[Tensor, "*batch c h w"]) -> Float[Tensor, "*batch"]:
        """E(x) = -logsumexp of the logits: low where the classifier is confident. Grathwohl et al., 2020.

        Raises:
            ShapeError: see `per_image`.
        """
        return -torch.logsumexp(self(x), -1)
