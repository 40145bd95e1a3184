"""The interface of a set of labelled images."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from jaxtyping import Int, UInt8
from torch import Tensor

from .models import ImageFormat


class LabelledImages(NamedTuple):
    """Images with their classes.

    Attributes:
        images: bytes, ink is 255, `[n, c, h, w]`.
        labels: numbers of the classes from 0 on, `[n]`.
    """

    images: UInt8[Tensor, "n c h w"]
    labels: Int[Tensor, " n"]


class ImageSource(ABC):
    """Training and test images of one size.

    Attributes:
        channels: number of channels of the images.
        classes: number of classes.
        frame: height and width in pixels of the frame that networks see, the images in its middle.
    """

    channels: int
    classes: int
    frame: tuple[int, int]

    @property
    def format(self) -> ImageFormat:
        """The format of the images that networks take."""
        return ImageFormat(self.channels, *self.frame, self.classes)

    def prepare(self) -> None:  # noqa: B027 (most sources have nothing to prepare)
        """Download missing files; called once, in one process."""

    @abstractmethod
    def train(self) -> LabelledImages:
        """The images for training."""

    @abstractmethod
    def test(self) -> LabelledImages:
        """The images for tests, none of them in `train`."""
