"""Training fields, with or without augmentation by symmetries."""

from typing import Literal

import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from tasks.fields.problems import FieldProblem
from trivgeo.actions import Field, Grid, augment
from trivgeo.checks import check_choice, check_count

Moves = Literal["never", "once", "always"]

_LATER = 8  # stored times in one horizon


class FieldData(LightningDataModule):
    """Pairs of an initial field and the solution a horizon later, of `fields` simulated solutions.

    Un-augmented, a pair is from the first time to the horizon: of the training law, or moved `once` by a symmetry of
    its own, as if simulated so. With augmentation, solutions are known for twice that time; a later start is drawn (a
    time translation that stays on the simulated solution), then `trivgeo.actions.augment` moves the pair by a random
    element: every batch is new.

    Args:
        problem: the equation and its group.
        fields: number of simulated solutions.
        moved: not at all, `once`, or `always` anew: augmented.
        batch_size: pairs in a batch, at most `fields`.
        seed: of the solutions and of what is drawn.

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
        self._block: Field | None = None

    @property
    def block(self) -> Field:
        """The simulated solutions."""
        if self._block is None:
            times = [self.problem.horizon * k / _LATER for k in range(2 * _LATER + 1)]
            self._block = self.problem.solutions(self.fields, self.seed, times)
        return self._block

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
        rows, count = torch.tensor(indices), len(indices)
        first = torch.zeros(count, dtype=torch.long)
        if self.moved == "always":
            first = torch.randint(_LATER + 1, (count,), generator=self._generator)
        both = torch.stack([first, first + _LATER], -1)
        pick = rows.unsqueeze(-1), both
        block = self.block
        values = block.values.movedim(2, 1)[pick].movedim(1, 2)
        pair = Field(values, Grid(*(leaf[pick] for leaf in block.grid)))
        identity = self.problem.action.group.identity(count, dtype=values.dtype)
        if self.moved == "always":
            pair = augment(pair, self.problem.action, self.problem.draw, generator=self._generator)
        elif self.moved == "once":
            own = self.problem.draw(self.fields, torch.Generator().manual_seed(self.seed))[rows]
            pair = self.problem.action(own, pair)
        start, target, _, _ = self.problem.pairs(pair, identity)
        return start.values[:, :, 0].float(), self.problem.parameters(start).float(), target.float()
