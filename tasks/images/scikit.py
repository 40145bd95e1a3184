"""The digits that scikit-learn ships: a data set with nothing to download."""

import torch
from torch.nn import functional as F

from trivgeo.errors import missing_package

from .sources import ImageSource, LabelledImages

_MAX_INK = 16.0  # largest grey value of the originals
_NUM_TRAINING_IMAGES = 1297


class ScikitDigits(ImageSource):
    """The 1,797 digits of `sklearn.datasets.load_digits`, twice as large, in the middle of 32 x 32 pixels.

    The originals have 8 x 8 pixels and 17 grey values; shuffled once, 1,297 are for training and 500 for tests. E.
    Alpaydin and C. Kaynak, "Optical recognition of handwritten digits", 1998.
    """

    channels = 1
    classes = 10
    frame = (32, 32)

    def train(self) -> LabelledImages:
        return self._part(slice(_NUM_TRAINING_IMAGES))

    def test(self) -> LabelledImages:
        """The 500 digits for tests."""
        return self._part(slice(_NUM_TRAINING_IMAGES, None))

    def _part(self, part: slice) -> LabelledImages:
        try:
            from sklearn.datasets import load_digits
        except ModuleNotFoundError as error:
            raise missing_package("ScikitDigits", "scikit-learn", "digits") from error
        pixels, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[part]
        small = torch.from_numpy(pixels).reshape(-1, 1, 8, 8)[order] / _MAX_INK
        large = F.interpolate(small, scale_factor=2, mode="bilinear")
        return LabelledImages((255 * large).round().byte(), torch.from_numpy(labels).long()[order])
