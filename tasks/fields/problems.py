"""Equations with their groups, the distribution of their initial fields, and test sets moved by random symmetries."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from trivgeo.actions import Field, FieldAction, Grid
from trivgeo.checks import check_count, check_positive
from trivgeo.groups import KdVSymmetry, from_generators
from trivgeo.inversion.energies import DataEnergy, FieldBox, FieldComponents, FieldSpectrum
from trivgeo.pde import GaussianField, SpectralEquation, Vorticity, solve

from ..seeds import generator_of


class InitialFields(Protocol):
    """A distribution of initial fields, such as `GaussianField`."""

    def sample(self, count: int, generator: torch.Generator, /) -> Callable[..., Tensor]:
        """Fields, as a function of the coordinates of p points, `[p]` each, to values `[count, p]`."""


class Pairs(NamedTuple):
    """Inputs and solutions on which an operator is trained and tested.

    Attributes:
        initial: fields at one time.
        target: values of the solution on the same lattice a horizon later, `[b, c, *n]`.
        elements: the transformations of the fields, `[b, *element_shape]`.
    """

    initial: Field
    target: Tensor
    elements: Tensor


class FieldProblem:
    """The solution of a periodic equation after a time, from random fields, and the symmetries of it.

    Args:
        equation: equation for the solver.
        action: action of its symmetries, scaled so that unit steps are as large as the transformations of the test set.
        initial: distribution of initial fields.
        box: the range of each x.
        horizon: the time after which the solution is wanted.
        points: number of points of the grid along each axis.
        energy: energy of initial fields, made from those of the training set.
        max_step: longest step of the solver.

    Raises:
        ConfigurationError: a number is not positive.
    """

    def __init__(
        self,
        equation: SpectralEquation,
        action: FieldAction,
        initial: InitialFields,
        box: Sequence[tuple[float, float]],
        horizon: float,
        points: int,
        energy: Callable[[Field], DataEnergy],
        max_step: float = 0.02,
    ) -> None:
        self.equation, self.action, self.initial, self.energy = equation, action, initial, energy
        self.box = list(box)
        self.horizon = check_positive("horizon", horizon)
        self.points = check_count("points", points, 8)
        self.max_step = check_positive("max_step", max_step)

    def solutions(self, count: int, seed: int, times: Sequence[float]) -> Field:
        """Solutions from random fields, on a finer grid by two of which every second point is kept."""
        fine = [2 * self.points] * len(self.box)
        axes = [
            low + (high - low) * torch.arange(n, dtype=torch.float64) / n
            for (low, high), n in zip(self.box, fine, strict=True)
        ]
        places = [x.flatten() for x in torch.meshgrid(*axes, indexing="ij")]
        u = self.initial.sample(count, torch.Generator().manual_seed(seed))(*places).reshape(count, 1, *fine)
        block = solve(self.equation, Field.on_box(u, self.box), times, self.max_step)
        every_second: tuple[Any, ...] = (..., *[slice(None, None, 2)] * len(fine))
        return Field(block.values[every_second], Grid(block.grid.origin, 2 * block.grid.steps))

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Random transformations, the same for augmentation and for tests."""
        return self.action.group.random(count, generator=generator, dtype=torch.float64)

    def mover(self, seed: int) -> torch.Generator:
        """Generator of the transformations of a seed, whose numbers are not those that made the solutions."""
        return generator_of(seed, 1)

    def pairs(self, block: Field, elements: Tensor) -> Pairs:
        """Solutions at two times, moved: the first, and the second one on the lattice of the first."""
        moved = self.action(elements, block)
        start = moved.slice(0)
        end = self.action.resample(moved, start.grid.at(moved.grid.times[:, -1:]))
        return Pairs(start, end.values.select(2, 0), elements)

    def test(self, count: int, seed: int, move: bool) -> Pairs:
        """A test set, of the training distribution or moved."""
        block = self.solutions(count, seed, [0.0, self.horizon])
        stay = self.action.group.identity(count, dtype=torch.float64)
        return self.pairs(block, self.draw(count, self.mover(seed)) if move else stay)

    def parameters(self, initial: Field) -> Tensor:
        """What a network must know of a grid besides the values: the logarithm of its scale, `[b, 1]`."""
        high = torch.tensor([high - low for low, high in self.box], dtype=torch.float64)
        cell = initial.grid.steps[:, 0].det().abs() * self.points ** len(self.box) / high.prod()
        return cell.log().unsqueeze(-1) / len(self.box)


def kdv(points: int = 32) -> FieldProblem:
    """Korteweg-de Vries on a circle of length 16 for 4 units of time; scaling, later starts, boosts, translations."""
    action = FieldAction(KdVSymmetry(scale=[0.2, 1.0, 0.5, 2.0]))
    law = GaussianField(0.2, 0.5, 6.0, 8, 16.0)
    equation = SpectralEquation.from_equation("u_t + u*u_x + u_xxx = 0")
    return FieldProblem(equation, action, law, [(0.0, 16.0)], 4.0, points, spectrum)


def kuramoto_sivashinsky(points: int = 32) -> FieldProblem:
    """Kuramoto-Sivashinsky on a circle of length 22 for 4 units of time; it has no scaling."""
    fields = {"T": _later, "C": _boost, "X": _translation}
    action = FieldAction(from_generators(fields, variables=3, scale=[1.0, 0.5, 2.0]))
    law = GaussianField(0.4, 0.5, 6.0, 8, 22.0)
    equation = SpectralEquation.from_equation("u_t + u*u_x + u_xx + u_xxxx = 0")
    return FieldProblem(equation, action, law, [(0.0, 22.0)], 4.0, points, spectrum)


def burgers(points: int = 64) -> FieldProblem:
    """Burgers' equation of viscosity 0.1 on a circle of length 8 for 4 units of time; the part that keeps circles."""
    fields = {"S": _diffusive_scaling, "T": _later, "C": _boost, "X": _translation}
    action = FieldAction(from_generators(fields, variables=3, scale=[0.2, 1.0, 0.5, 2.0]))
    law = GaussianField(3.0, 0.8, 6.0, 8, 8.0)
    equation = SpectralEquation.from_equation("u_t + u*u_x = 0.1*u_xx")
    return FieldProblem(equation, action, law, [(0.0, 8.0)], 4.0, points, spectrum)


def vorticity(points: int = 32) -> FieldProblem:
    """Eddies in the plane for 1.5 units of time; rotations and translations, on a box that holds the eddies.

    The box is periodic for the solver, and so large that the eddies hardly feel it: solutions turn with their initial
    fields up to half a percent.
    """
    group = from_generators({"R": _turn, "X": _along, "Y": _across}, variables=4, scale=[0.7, 0.3, 0.3])
    action = FieldAction(group, (True, True), regrid=True)
    return FieldProblem(Vorticity(0.05), action, Eddies(), [(-6.0, 6.0)] * 2, 1.5, points, FieldComponents, 0.05)


def spectrum(initial: Field) -> FieldSpectrum:
    """The grid and the spectrum of initial fields."""
    return FieldSpectrum(FieldBox(initial.grid), initial.values, weight=0.1)


class Eddies:
    """The vorticity -Laplace psi of streams psi that are sums of a few oval bells, longer along x than along y."""

    count, amplitude = 3, 1.0
    axes, spread = (1.0, 0.7), (0.5, 0.3)

    def sample(self, count: int, generator: torch.Generator, /) -> Callable[[Tensor, Tensor], Tensor]:
        """Draw bells with normal amplitudes and centres."""
        spread = torch.tensor(self.spread, dtype=torch.float64)
        centres = spread * torch.randn(count, self.count, 2, generator=generator, dtype=torch.float64)
        amplitudes = torch.randn(count, self.count, 1, generator=generator, dtype=torch.float64)

        def vorticity(x: Tensor, y: Tensor) -> Tensor:
            z = (torch.stack([x, y]) - centres.unsqueeze(-1)) / torch.tensor(self.axes, dtype=x.dtype).unsqueeze(-1)
            stream = self.amplitude * amplitudes * torch.exp(-0.5 * z.square().sum(2))
            second = (z.square() - 1.0) / torch.tensor(self.axes, dtype=x.dtype).square().unsqueeze(-1)
            return -(stream * second.sum(2)).sum(1)

        return vorticity


def _diffusive_scaling(p: Tensor) -> Tensor:
    return p * torch.tensor([1.0, 2.0, -1.0], dtype=p.dtype)


def _later(p: Tensor) -> Tensor:
    return 0.0 * p + torch.tensor([0.0, 1.0, 0.0], dtype=p.dtype)


def _boost(p: Tensor) -> Tensor:
    one = torch.ones_like(p[..., 0])
    return torch.stack([p[..., 1], 0.0 * one, one], -1)


def _translation(p: Tensor) -> Tensor:
    return 0.0 * p + torch.tensor([1.0, 0.0, 0.0], dtype=p.dtype)


def _turn(p: Tensor) -> Tensor:
    zero = torch.zeros_like(p[..., 0])
    return torch.stack([-p[..., 1], p[..., 0], zero, zero], -1)


def _along(p: Tensor) -> Tensor:
    return 0.0 * p + torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=p.dtype)


def _across(p: Tensor) -> Tensor:
    return 0.0 * p + torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=p.dtype)
