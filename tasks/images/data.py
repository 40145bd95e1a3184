"""Clean images for training, in the middle of their frame, in batches that a resumed run repeats exactly."""

from collections.abc import Iterator
from typing import NamedTuple

import lightning.pytorch as pl
import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from trivgeo._processes import num_processes, rank
from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError
from trivgeo.training import DealtSampler

from ..seeds import generator_of
from .mnist import MNIST
from .sources import ImageSource, LabelledImages

_MAX_BYTE = 255.0


class ImageBatch(NamedTuple):
    """Images with their classes.

    Attributes:
        image: numbers in [0, 1], ink is 1, `[b, c, h, w]`.
        label: the classes, `[b]`.
    """

    image: Float[Tensor, "b c h w"]
    label: Int[Tensor, " b"]


def unit_range(images: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Convert images to float32: bytes to numbers in [0, 1], other numbers as they are."""
    return images.float() / _MAX_BYTE if images.dtype == torch.uint8 else images.float()


def framed(images: UInt8[Tensor, "b c h w"], frame: tuple[int, int]) -> Float[Tensor, "b c height width"]:
    """The images as numbers in [0, 1] in the middle of a frame that is empty around them, float32.

    Args:
        images: bytes.
        frame: height and width of the frame in pixels.

    Raises:
        ConfigurationError: the frame is smaller than the images.
    """
    rows, columns = (outer - inner for outer, inner in zip(frame, images.shape[-2:], strict=True))
    if min(rows, columns) < 0:
        raise ConfigurationError(f"frame: expected at least {list(images.shape[-2:])} pixels, got {list(frame)}")
    return F.pad(unit_range(images), (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))


class CleanImages(Dataset[ImageBatch]):
    """Images by batches: an index is a list of numbers of images.

    Args:
        data: the images.
        frame: see `framed`.
    """

    def __init__(self, data: LabelledImages, frame: tuple[int, int]) -> None:
        self.data = data
        self.frame = frame

    def __len__(self) -> int:
        """The number of images."""
        return len(self.data.labels)

    def __getitem__(self, places: list[int]) -> ImageBatch:
        """The images at these places."""
        return ImageBatch(framed(self.data.images[places], self.frame), self.data.labels[places])


class ShuffledBatches(Sampler[list[int]]):
    """Indices of one epoch in random order, in whole batches; the order is a function of (seed, epoch) alone.

    Args:
        count: number of indices.
        batch_size: indices of a batch; what is left over at the end of the epoch is not used.
        seed: seed of the order.
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
        generator = generator_of(self.seed, self.epoch)
        order = torch.randperm(self.count, generator=generator)[: len(self) * self.batch_size]
        for places in order.split(self.batch_size):
            yield places.tolist()

    def __len__(self) -> int:
        """Batches an epoch."""
        return self.count // self.batch_size


class OrderedBatches(Sampler[list[int]]):
    """All indices in order; the last batch has what is left.

    Args:
        count: number of indices.
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


class DealtOrderedBatches(DistributedSampler):
    """The batches of `OrderedBatches` for each process a part of the indices, each once, in as many batches for all.

    Lightning's own sampler would give some indices twice, and means over the data would not be those of one process.

    Args:
        count: number of indices.
        batch_size: places a batch, about.

    Raises:
        ConfigurationError: (in several processes) there are more processes than indices.
    """

    def __init__(self, count: int, batch_size: int) -> None:
        self.count, self.batch_size = count, batch_size

    def __iter__(self) -> Iterator[list[int]]:
        number = num_processes()
        if number == 1:
            yield from OrderedBatches(self.count, self.batch_size)
        else:
            yield from (places.tolist() for places in torch.arange(rank(), self.count, number).tensor_split(len(self)))

    def __len__(self) -> int:
        number = num_processes()
        if number > self.count:
            raise ConfigurationError(f"validation: expected at least {number} images, one a process, got {self.count}")
        return min(-(-self.count // (number * self.batch_size)), self.count // number)


class CleanTraining(pl.LightningDataModule):
    """Clean images: training images less some held out for validation, and the test images.

    In several processes each takes every so many-th training batch, and a part of the validation images.

    Args:
        source: source of the images; MNIST when None.
        batch_size: images a batch of one process.
        validation: training images held out, chosen by the seed.
        seed: seed of the choice and of the order of the training images.

    Raises:
        ConfigurationError: a count is not positive; at set-up, the training images do not fill one batch.
    """

    def __init__(
        self, source: ImageSource | None = None, batch_size: int = 128, validation: int = 5_000, seed: int = 0
    ) -> None:
        super().__init__()
        self.source = MNIST() if source is None else source
        self.batch_size = check_count("batch_size", batch_size)
        self.inputs = self.source.format
        self.validation = check_count("validation", validation)
        self.seed = seed

    def prepare_data(self) -> None:
        """Fetch the images."""
        self.source.prepare()

    def setup(self, stage: str) -> None:
        """Read the images and split them."""
        images = self.source.train()
        count = len(images.labels)
        if count - self.validation < self.batch_size:
            raise ConfigurationError(
                f"expected at least {self.batch_size + self.validation} training images for batches of "
                f"{self.batch_size} and {self.validation} held out, got {count}"
            )
        order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))
        held_out, kept = order[: self.validation].sort().values, order[self.validation :].sort().values
        self.train_set = self._clean(LabelledImages(images.images[kept], images.labels[kept]))
        self.validation_set = self._clean(LabelledImages(images.images[held_out], images.labels[held_out]))
        self.test_set = self._clean(self.source.test())

    def train_dataloader(self) -> DataLoader[ImageBatch]:
        """Batches in random order."""
        batches = ShuffledBatches(len(self.train_set), self.batch_size, self.seed)
        return DataLoader(self.train_set, batch_size=None, sampler=DealtSampler(batches))

    def val_dataloader(self) -> DataLoader[ImageBatch]:
        """The images held out."""
        images = self.validation_set
        return DataLoader(images, batch_size=None, sampler=DealtOrderedBatches(len(images), self.batch_size))

    def test_dataloader(self) -> DataLoader[ImageBatch]:
        """The test images."""
        images = self.test_set
        return DataLoader(images, batch_size=None, sampler=OrderedBatches(len(images), self.batch_size))

    def _clean(self, images: LabelledImages) -> CleanImages:
        return CleanImages(images, self.source.frame)
