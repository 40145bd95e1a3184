"""Training fields, with or without augmentation by symmetries."""

from functools import cached_property
from typing import Literal

import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from trivgeo._torch import pytree
from trivgeo.actions import Field, augment
from trivgeo.checks import check_choice, check_count

from .problems import FieldProblem, Pairs

Moves = Literal["never", "once", "always"]


class FieldData(LightningDataModule):
    """Pairs of an initial field and the solution a horizon later, of `fields` simulated solutions.

    Un-augmented, a solution is of the training distribution, or moved `once` by a symmetry of its own, as if it had
    been simulated so. With augmentation, `trivgeo.actions.augment` moves it by a random element each time: every batch
    is new.

    Args:
        problem: the equation and its group.
        fields: number of simulated solutions.
        moved: not at all, `once`, or `always` anew: augmented.
        batch_size: pairs in a batch, at most `fields`.
        seed: seed of the solutions and of what is drawn.

    Raises:
        ConfigurationError: a count below one, or another way to move.
    """

    def __init__(
        self, problem: FieldProblem, fields: int, moved: Moves = "never", batch_size: int = 32, seed: int = 0
    ) -> None:
        super().__init__()
        self.problem = problem
        self.fields = check_count("fields", fields)
        self.moved = check_choice("moved", moved, ("never", "once", "always"))
        self.batch_size = check_count("batch_size", batch_size)
        self.seed = seed
        self._generator = torch.Generator().manual_seed(seed)

    @cached_property
    def block(self) -> Field:
        """The simulated solutions, at the start and after the horizon."""
        return self.problem.solutions(self.fields, self.seed, [0.0, self.problem.horizon])

    @cached_property
    def pairs(self) -> Pairs:
        """All pairs, un-augmented."""
        elements = self.problem.action.group.identity(self.fields, dtype=torch.float64)
        if self.moved == "once":
            elements = self.problem.draw(self.fields, self.problem.mover(self.seed))
        return self.problem.pairs(self.block, elements)

    def train_dataloader(self) -> DataLoader:
        """Batches of values, parameters and targets, in single precision."""
        return DataLoader(
            range(self.fields),  # type: ignore[arg-type]
            min(self.batch_size, self.fields),
            shuffle=True,
            drop_last=True,
            generator=self._generator,
            collate_fn=self.collate,
        )

    def collate(self, indices: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """A batch of the solutions of these numbers."""
        if self.moved == "always":
            block = augment(self.block.take(indices), self.problem.action, self.problem.draw, generator=self._generator)
            pairs = self.problem.pairs(block, self.problem.action.group.identity(len(indices), dtype=torch.float64))
        else:
            pairs = pytree.tree_map(lambda leaf: leaf[indices], self.pairs)
        values = pairs.initial.values.select(2, 0)
        return values.float(), self.problem.parameters(pairs.initial).float(), pairs.target.float()
