"""Test sets: batches of problems for one seed after another, each a function of its seed and number alone."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import lightning.pytorch as pl
from torch.utils.data import DataLoader, Dataset

from .seeds import check_seeds


class Request(NamedTuple):
    """A batch without data, for tests that draw all that they need.

    Attributes:
        seed: seed of the draws.
        number: number of the batch among those of its seed.
        size: number of data to be drawn.
    """

    seed: int
    number: int = 0
    size: int = 0


class Problems(pl.LightningDataModule, ABC):
    """Batches of a test, all of one seed, then all of the next; each says its `seed` and its `number` in that seed.

    Args:
        seeds: seeds of the test; every method that draws random numbers at a batch draws them by its seed and number.

    Attributes:
        is_due: whether a batch, known as a `Request`, and of this index, is to be tested; others are not made, for data
            may be costly. ``None`` for all.

    Raises:
        ConfigurationError: no seeds, or a seed twice.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__()
        self.seeds = check_seeds(seeds)
        self.is_due: Callable[[Request, int], bool] | None = None

    @property
    def batches(self) -> int:
        """Number of batches of a seed."""
        return 1

    @abstractmethod
    def batch(self, seed: int, number: int) -> Any:
        """One batch, with attributes `seed` and `number`."""

    def keys(self) -> set[tuple[int, int]]:
        """Seed and number of every batch."""
        return {(seed, number) for seed in self.seeds for number in range(self.batches)}

    def test_dataloader(self) -> DataLoader[Any]:
        """All batches."""
        return DataLoader(_Batches(self), batch_size=None)


class _Batches(Dataset[Any]):
    def __init__(self, problems: Problems) -> None:
        self._problems = problems

    def __len__(self) -> int:
        return len(self._problems.seeds) * self._problems.batches

    def __getitem__(self, index: int) -> Any:
        problems = self._problems
        place, number = divmod(index, problems.batches)
        request = Request(problems.seeds[place], number)
        if problems.is_due is not None and not problems.is_due(request, index):
            return request
        return problems.batch(*request[:2])
