"""Clean digits for training: 28 x 28 pixels in a 40 x 40 frame, in batches that a resumed run repeats exactly."""

from collections.abc import Iterator
from typing import NamedTuple

import lightning.pytorch as pl
import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

from tasks.images.mnist import MNIST, Digits, DigitSource
from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError

FRAME = 40
"""Pixels a side of every image that a network sees."""

_MARGIN = 6
_WHITE = 255.0


class ImageBatch(NamedTuple):
    """Images with their classes.

    Attributes:
        image: grey values in [0, 1], ink is 1, `[b, 1, 40, 40]`.
        label: the digits, `[b]`.
    """

    image: Float[Tensor, "b 1 40 40"]
    label: Int[Tensor, " b"]


def grey(images: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Bytes as numbers in [0, 1]; other numbers as they are; float32."""
    return images.float() / _WHITE if images.dtype == torch.uint8 else images.float()


def framed(images: UInt8[Tensor, "b 28 28"]) -> Float[Tensor, "b 1 40 40"]:
    """The images as numbers in [0, 1] with a margin of six empty pixels on every side, float32."""
    return F.pad(grey(images.unsqueeze(1)), (_MARGIN,) * 4)


class CleanDigits(Dataset[ImageBatch]):
    """Batches of digits: the index is a list of places."""

    def __init__(self, digits: Digits) -> None:
        self.digits = digits

    def __len__(self) -> int:
        """The number of digits."""
        return len(self.digits.labels)

    def __getitem__(self, places: list[int]) -> ImageBatch:
        """The digits at these places."""
        return ImageBatch(framed(self.digits.images[places]), self.digits.labels[places])


class ShuffledBatches(Sampler[list[int]]):
    """Places of one epoch in random order, in whole batches; the order is a function of (seed, epoch) alone.

    Args:
        count: how many places there are.
        batch_size: places a batch; what is left over at the end of the epoch is not used.
        seed: of the order.
    """

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        self.count = count
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration; the trainer calls this."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        """Run through the batches; the epoch is read at the first one, for a resumed trainer sets it that late."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.count, generator=generator)[: len(self) * self.batch_size]
        for places in order.split(self.batch_size):
            yield places.tolist()

    def __len__(self) -> int:
        """Batches an epoch."""
        return self.count // self.batch_size


class OrderedBatches(Sampler[list[int]]):
    """All places in order, the last batch as small as it comes.

    Args:
        count: how many places there are.
        batch_size: places a batch.
    """

    def __init__(self, count: int, batch_size: int) -> None:
        self.count = count
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        """Run through the batches."""
        for start in range(0, self.count, self.batch_size):
            yield list(range(start, min(start + self.batch_size, self.count)))

    def __len__(self) -> int:
        """Batches in all."""
        return -(-self.count // self.batch_size)


class CleanTraining(pl.LightningDataModule):
    """Clean digits: training digits less some held out for validation, and the test digits.

    Args:
        source: where the digits come from; MNIST when None.
        batch_size: digits a batch.
        validation: training digits held out, chosen by the seed.
        seed: of the choice and of the order of the training digits.

    Raises:
        ConfigurationError: a count is not positive; at set-up, the training digits do not fill one batch.
    """

    def __init__(
        self, source: DigitSource | None = None, batch_size: int = 128, validation: int = 5_000, seed: int = 0
    ) -> None:
        super().__init__()
        self.source = MNIST() if source is None else source
        self.batch_size = check_count("batch_size", batch_size)
        self.validation = check_count("validation", validation)
        self.seed = seed

    def prepare_data(self) -> None:
        """Fetch the digits."""
        self.source.prepare()

    def setup(self, stage: str) -> None:
        """Read the digits and split them."""
        digits = self.source.train()
        count = len(digits.labels)
        if count - self.validation < self.batch_size:
            raise ConfigurationError(
                f"expected at least {self.batch_size + self.validation} training digits for batches of "
                f"{self.batch_size} and {self.validation} held out, got {count}"
            )
        order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))
        held_out, kept = order[: self.validation].sort().values, order[self.validation :].sort().values
        self.train_set = CleanDigits(Digits(digits.images[kept], digits.labels[kept]))
        self.validation_set = CleanDigits(Digits(digits.images[held_out], digits.labels[held_out]))
        self.test_set = CleanDigits(self.source.test())

    def train_dataloader(self) -> DataLoader[ImageBatch]:
        """Batches in random order."""
        batches = ShuffledBatches(len(self.train_set), self.batch_size, self.seed)
        return DataLoader(self.train_set, batch_size=None, sampler=batches)

    def val_dataloader(self) -> DataLoader[ImageBatch]:
        """The digits held out."""
        return self._ordered(self.validation_set)

    def test_dataloader(self) -> DataLoader[ImageBatch]:
        """The test digits."""
        return self._ordered(self.test_set)

    def _ordered(self, digits: CleanDigits) -> DataLoader[ImageBatch]:
        return DataLoader(digits, batch_size=None, sampler=OrderedBatches(len(digits), self.batch_size))
