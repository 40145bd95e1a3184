"""The seeds of a sampling task, one batch each."""

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError


class SampleRequests(pl.LightningDataModule):
    """Asks for samples, once for each seed.

    Args:
        seeds: one run for each.
        count: samples a run.

    Raises:
        ConfigurationError: no seeds, repeated ones, or a count below one.
    """

    def __init__(self, seeds: list[int], count: int = 10_000) -> None:
        super().__init__()
        if not seeds or len(set(seeds)) != len(seeds):
            raise ConfigurationError(f"seeds: expected distinct seeds, got {seeds}")
        self.requests = [(seed, check_count("count", count)) for seed in seeds]

    def test_dataloader(self) -> DataLoader[tuple[int, int]]:
        """The pairs (seed, count)."""
        return DataLoader(self.requests, batch_size=None, collate_fn=_same)  # type: ignore[arg-type]


def _same(request: tuple[int, int]) -> tuple[int, int]:
    return request
