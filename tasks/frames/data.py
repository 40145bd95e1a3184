"""Frames of digits for training, and the seeds of a test."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from trivgeo.checks import check_count
from trivgeo.training import DealtSampler

from ..problems import Problems, Request
from ..seeds import generator_of
from .digits import FrameSplit, bundled_frames


class RandomBatches(Sampler[list[int]]):
    """Indices drawn with replacement, the same ones for the same seed and epoch.

    Args:
        number: number of rows to draw from.
        size: number of rows of a batch.
        batches: number of batches of an epoch.
        seed: seed of the draws.
    """

    def __init__(self, number: int, size: int, batches: int, seed: int) -> None:
        self.number, self.size, self.batches, self.seed = number, size, batches, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        generator = generator_of(self.seed, self.epoch)
        for _ in range(self.batches):
            yield torch.randint(self.number, (self.size,), generator=generator).tolist()


class DigitFrames(Problems):
    """The bundled frames.

    Args:
        batch_size: number of rows of a training batch.
        steps_per_epoch: batches of an epoch.
        seeds: seeds of the test, one set of samples each.
        seed: seed of the batches.

    Raises:
        ConfigurationError: counts below one, no seeds, or repeated ones.
    """

    def __init__(
        self, batch_size: int = 1024, steps_per_epoch: int = 500, seeds: tuple[int, ...] = (0,), seed: int = 0
    ) -> None:
        super().__init__(seeds)
        self.batch_size = check_count("batch_size", batch_size)
        self.steps_per_epoch = check_count("steps_per_epoch", steps_per_epoch)
        self.seed = seed
        self.frames: FrameSplit = bundled_frames()

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Batches ``[batch_size, 5]``."""
        rows = self.frames.train
        batches = RandomBatches(len(rows), self.batch_size, self.steps_per_epoch, self.seed)
        # as a sampler: the trainer tells no batch sampler the epoch
        return DataLoader(rows, batch_size=None, sampler=DealtSampler(batches))  # type: ignore[arg-type]

    def batch(self, seed: int, number: int) -> Request:
        return Request(seed, number)
