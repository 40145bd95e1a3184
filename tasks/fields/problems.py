"""Equations with their groups, the law of their initial fields, and test sets moved by random symmetries."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trivgeo.actions import Field, FieldAction, Grid
from trivgeo.checks import check_count, check_positive
from trivgeo.groups import KdVSymmetry, LieGroup, from_generators
from trivgeo.pde import Burgers, GaussianField, KdV, KuramotoSivashinsky, SpectralEquation, solve


class Pairs(NamedTuple):
    """What an operator is trained and tested on.

    Attributes:
        initial: fields at one time.
        target: values of the solution on the same lattice a horizon later, `[b, c, *n]`.
        elements: what moved them, `[b, *element_shape]`.
        canonical: the fields before that.
    """

    initial: Field
    target: Tensor
    elements: Tensor
    canonical: Field


class FieldProblem:
    """The solution of a periodic equation after a time, from Gaussian random fields, and the symmetries of it.

    Args:
        equation: for the solver.
        group: its symmetries, scaled so that unit steps are as large as the transformations of the test set.
        law: of initial fields, on the circle of its length.
        horizon: the time after which the solution is wanted.
        points: of the grid.
        max_step: of the solver.

    Raises:
        ConfigurationError: a number is not positive.
    """

    def __init__(
        self,
        equation: SpectralEquation,
        group: LieGroup,
        law: GaussianField,
        horizon: float,
        points: int = 32,
        max_step: float = 0.02,
    ) -> None:
        self.equation, self.law = equation, law
        self.horizon = check_positive("horizon", horizon)
        self.points = check_count("points", points, 8)
        self.max_step = max_step
        self.action = FieldAction(group)

    @property
    def grid(self) -> Grid:
        """Of the training set, at its first time."""
        values = torch.zeros(1, self.points, dtype=torch.float64)
        return Field.on_box(values, [(0.0, self.law.length)]).grid

    def solutions(self, count: int, seed: int, times: Sequence[float]) -> Field:
        """Solutions from random fields, on a finer grid by two of which every second point is kept."""
        fine = 2 * self.points
        x = self.law.length * torch.arange(fine, dtype=torch.float64) / fine
        u = self.law.sample(count, torch.Generator().manual_seed(seed))(x).unsqueeze(-2)
        block = solve(self.equation, Field.on_box(u, [(0.0, self.law.length)]), times, self.max_step)
        return Field(block.values[..., ::2], Grid(block.grid.origin, 2 * block.grid.steps))

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Random transformations, the same for augmentation and for tests."""
        return self.action.group.random(count, generator=generator, dtype=torch.float64)

    def pairs(self, block: Field, elements: Tensor) -> Pairs:
        """Solutions at two times, moved: the first, and the second one on the lattice of the first."""
        moved = self.action(elements, block)
        start = moved.slice(0)
        end = self.action.resample(moved, start.grid.at(moved.grid.times[:, -1:]))
        return Pairs(start, end.values[:, :, 0], elements, block.slice(0))

    def test(self, count: int, seed: int, move: bool) -> Pairs:
        """A test set, of the training law or moved."""
        block = self.solutions(count, seed, [0.0, self.horizon])
        generator = torch.Generator().manual_seed(seed)
        elements = self.draw(count, generator) if move else self.action.group.identity(count, dtype=torch.float64)
        return self.pairs(block, elements)

    def parameters(self, initial: Field) -> Tensor:
        """What a network must know of a grid besides the values: the logarithm of its scale, `[b, 1]`."""
        return (initial.grid.steps[:, 0, 0] / self.grid.steps[0, 0].to(initial.values)).log()


def kdv(points: int = 32) -> FieldProblem:
    """Korteweg-de Vries on a circle of length 16 for 4 units of time; scaling, later starts, boosts, translations."""
    group = KdVSymmetry(scale=[0.2, 1.0, 0.5, 2.0])
    return FieldProblem(KdV(), group, GaussianField(0.2, 0.5, 6.0, 8, 16.0), 4.0, points)


def kuramoto_sivashinsky(points: int = 32) -> FieldProblem:
    """Kuramoto-Sivashinsky on a circle of length 22 for 4 units of time; it has no scaling."""
    law = GaussianField(0.4, 0.5, 6.0, 8, 22.0)
    return FieldProblem(KuramotoSivashinsky(), galilean_group([1.0, 0.5, 2.0]), law, 4.0, points)


def burgers(points: int = 32) -> FieldProblem:
    """Burgers' equation of viscosity 0.1 on a circle of length 8 for 4 units of time; the part that keeps circles."""
    law = GaussianField(0.3, 0.8, 6.0, 8, 8.0)
    return FieldProblem(Burgers(0.1), burgers_group([0.2, 1.0, 0.5, 2.0]), law, 4.0, points)


def galilean_group(scale: list[float] | None = None) -> LieGroup:
    """Later starts, boosts and translations: T = d/dt, C = t d/dx + d/du, X = d/dx."""
    return from_generators({"T": _later, "C": _boost, "X": _translation}, variables=3, scale=scale)


def burgers_group(scale: list[float] | None = None) -> LieGroup:
    """The symmetries of Burgers' equation that keep periodic fields periodic, with S = x d/dx + 2 t d/dt - u d/du."""
    fields = {"S": _diffusive_scaling, "T": _later, "C": _boost, "X": _translation}
    return from_generators(fields, variables=3, scale=scale)


def _diffusive_scaling(p: Tensor) -> Tensor:
    return p * torch.tensor([1.0, 2.0, -1.0], dtype=p.dtype)


def _later(p: Tensor) -> Tensor:
    return 0.0 * p + torch.tensor([0.0, 1.0, 0.0], dtype=p.dtype)


def _boost(p: Tensor) -> Tensor:
    one = torch.ones_like(p[..., 0])
    return torch.stack([p[..., 1], 0.0 * one, one], -1)


def _translation(p: Tensor) -> Tensor:
    return 0.0 * p + torch.tensor([1.0, 0.0, 0.0], dtype=p.dtype)
