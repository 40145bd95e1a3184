"""Augmentation in workers of a data loader, as the guide says it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trivgeo.groups import SE


class Moved(Dataset):
    """One point, moved by random elements; nothing else is random."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return SE(2).action()(SE(2).random(), torch.ones(1, 2))


class MovedBy(Moved):
    """The same by a group that the data set holds."""

    def __init__(self, group: SE) -> None:
        self.group = group

    def __getitem__(self, index: int) -> Tensor:
        return self.group.action()(self.group.random(), torch.ones(1, 2))


def test_workers_draw_apart() -> None:
    """Each worker and each epoch has elements of its own, a function of the seed of the program."""
    loader = DataLoader(Moved(), batch_size=4, num_workers=2)
    torch.manual_seed(0)
    epochs = [torch.cat(list(loader)).flatten(1) for _ in range(2)]
    points = torch.cat(epochs)
    assert len(torch.unique(points, dim=0)) == 16
    torch.manual_seed(0)
    assert torch.equal(torch.cat(list(loader)).flatten(1), epochs[0])


@pytest.mark.slow(reason="a process that imports torch anew; forked workers stay")
def test_spawned_workers_draw_apart() -> None:
    """They unpickle the data set, and with it its group."""
    group = SE(2)
    loader = DataLoader(MovedBy(group), batch_size=4, num_workers=2, multiprocessing_context="spawn")
    torch.manual_seed(0)
    epochs = [torch.cat(list(loader)).flatten(1) for _ in range(2)]
    assert len(torch.unique(torch.cat(epochs), dim=0)) == 16
    torch.manual_seed(0)
    assert torch.equal(torch.cat(list(loader)).flatten(1), epochs[0])
