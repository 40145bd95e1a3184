"""Solutions moved by random symmetries of their equation: test sets whose exact answers are known."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from trivgeo.actions import OperatorInput
from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError, DomainError

from ..made_once import made_once
from ..problems import Problems
from .domain import values_of, with_values
from .equation import Equation, identifying

_MAX_DRAWS = 1000  # batches of elements that are drawn by rejection


class OperatorProblems(NamedTuple):
    """A batch of transformed problems, all of one seed.

    Attributes:
        seed: the seed that drew them.
        x: the transformed problems, what an inverter sees.
        solution: the solutions at the query points, `[b, q]`, or `[b, q, c]` of a system.
        elements: the transformations g, `[b, *element_shape]`.
        canonical: the problems before the transformation, inside the training domain.
        canonical_solution: solutions of the canonical problems.
        grid: the numbers of query points of one problem along each x and t, x-major; q is their product.
        number: number of the batch among those of its seed.
    """

    seed: int
    x: OperatorInput
    solution: Tensor
    elements: Tensor
    canonical: OperatorInput
    canonical_solution: Tensor
    grid: tuple[int, ...]
    number: int = 0


class SymmetryProblems(Problems):
    """Solutions inside the training domain, moved with their grid by elements of the symmetry group of the equation.

    The transformed solution at a transformed grid point is the transformed value: no error is added to that of the
    solution inside the domain.

    Args:
        equation: the equation and the distribution of its solutions.
        seeds: one batch of problems for each.
        cases: problems a seed.
        num_sensors: points of the initial condition, along each x.
        nx: query points along each x, over the whole domain.
        nt: query points in t.
        part: share of each side of the domain in which the solution is asked for, at a random place for each case.

    Raises:
        ConfigurationError: no seeds, one twice, a count below two, or a part outside (0, 1].
    """

    def __init__(
        self,
        equation: Equation,
        seeds: list[int],
        cases: int = 10,
        num_sensors: int = 200,
        nx: int = 256,
        nt: int = 101,
        part: float = 1.0,
    ) -> None:
        super().__init__(seeds)
        self.equation = equation
        self.cases = check_count("cases", cases)
        self.num_sensors = check_count("num_sensors", num_sensors)
        if min(check_count("nx", nx), check_count("nt", nt)) < 2:
            raise ConfigurationError(f"nx, nt: expected at least 2, got {nx} and {nt}")
        self.grid = (*[nx] * len(equation.domain.space), nt)
        if not 0 < part <= 1:
            raise ConfigurationError(f"part: expected a number in (0, 1], got {part}")
        self.part = part
        self.group = equation.group()

    @abstractmethod
    def draw(self, generator: torch.Generator, canonical: OperatorInput) -> Tensor:
        """Transformations g for the cases, `[cases, *element_shape]`."""

    def batch(self, seed: int, number: int) -> OperatorProblems:
        return self.problems(seed)

    def problems(self, seed: int) -> OperatorProblems:
        """The problems of one seed, in float64; those of an equation that is simulated are made once, and kept."""
        if self.equation.is_simulated:
            shared = vars(LightningDataModule()).keys() | {"equation", "group", "seeds"}
            own = {name: value for name, value in vars(self).items() if name not in shared}
            made_from = [str(type(self)), identifying(self.equation), own, seed]
            kept = made_once("problems", made_from, lambda: self._tensors(seed), [type(self), type(self.equation)])
        else:
            kept = self._tensors(seed)
        x, canonical = (OperatorInput(kept[f"{name}.initial"], kept[f"{name}.query"]) for name in ("x", "canonical"))
        grid = tuple(kept["grid"].tolist())
        return OperatorProblems(
            seed, x, kept["solution"], kept["elements"], canonical, kept["canonical_solution"], grid
        )

    def _tensors(self, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        solutions = self.equation.sample(self.cases, generator)
        canonical = self.equation.inputs(solutions, self.num_sensors, self.grid)
        u = solutions.on_grid(*self.grid)
        g = self.draw(generator, canonical)
        jets, grid = self._window(generator, with_values(canonical.query, u))
        coordinates = canonical.query.shape[-1]
        u = values_of(jets, coordinates)
        canonical = OperatorInput(canonical.initial, jets[..., :coordinates])
        x, moved = self.move(g, canonical, u)
        found = {"solution": moved, "elements": g, "canonical_solution": u, "grid": torch.tensor(grid)}
        for name, given in (("x", x), ("canonical", canonical)):
            found |= {f"{name}.initial": given.initial, f"{name}.query": given.query}
        return found

    def _window(self, generator: torch.Generator, jets: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """The jets of each case inside a random window of the grid, and the numbers of points along its sides."""
        if self.part == 1.0:
            return jets, self.grid
        inside = tuple(max(2, round(self.part * n)) for n in self.grid)
        index = torch.zeros(self.cases, 1, dtype=torch.long)
        for n, m in zip(self.grid, inside, strict=True):
            place = torch.randint(n - m + 1, (self.cases, 1, 1), generator=generator) + torch.arange(m)
            index = (index.unsqueeze(-1) * n + place).flatten(1)
        return jets.gather(1, index.unsqueeze(-1).expand(-1, -1, jets.shape[-1])), inside

    def move(self, g: Tensor, x: OperatorInput, solution: Tensor) -> tuple[OperatorInput, Tensor]:
        """Problems and their solutions at the query points, transformed by g."""
        action, coordinates = self.group.action(), x.query.shape[-1]
        jets = action(g, with_values(x.query, solution))
        return OperatorInput(action(g, x.initial), jets[..., :coordinates]), values_of(jets, coordinates)


class FactorProblems(SymmetryProblems):
    """The published test on the heat equation: u is multiplied by a factor ~ U(factor_min, factor_max).

    The last generator of the group must be the multiplication of u by a constant.

    Args:
        equation: see `SymmetryProblems`.
        seeds: see `SymmetryProblems`.
        cases: see `SymmetryProblems`.
        factor_min: smallest factor of u.
        factor_max: largest factor of u.
        num_sensors: see `SymmetryProblems`.
        nx: see `SymmetryProblems`.
        nt: see `SymmetryProblems`.

    Raises:
        ConfigurationError: the factors are not 0 < min <= max, or as `SymmetryProblems`.
    """

    def __init__(
        self,
        equation: Equation,
        seeds: list[int],
        cases: int = 10,
        factor_min: float = 0.5,
        factor_max: float = 5.0,
        num_sensors: int = 200,
        nx: int = 256,
        nt: int = 101,
    ) -> None:
        super().__init__(equation, seeds, cases, num_sensors, nx, nt)
        if not 0 < factor_min <= factor_max:
            raise ConfigurationError(f"expected 0 < factor_min <= factor_max, got {factor_min} and {factor_max}")
        self.factors = (factor_min, factor_max)

    def draw(self, generator: torch.Generator, canonical: OperatorInput) -> Tensor:
        low, high = self.factors
        v = torch.zeros(self.cases, self.group.dim, dtype=torch.float64)
        v[:, -1] = (low + (high - low) * torch.rand(self.cases, generator=generator, dtype=torch.float64)).log()
        return self.group.exp(v)


class MixedProblems(SymmetryProblems):
    r"""Solutions moved by elements exp(v) that mix all directions of the group, v ~ N(0, diag(spread^2)).

    Draws whose denominator leaves [1 / limit, limit] on the box are drawn again: a local action must stay inside its
    domain, with room.

    Args:
        equation: see `SymmetryProblems`.
        spread: standard deviations of the coordinates of v in the natural basis of the equation's group.
        seeds: see `SymmetryProblems`.
        cases: see `SymmetryProblems`.
        limit: bound of the denominator.
        num_sensors: see `SymmetryProblems`.
        nx: see `SymmetryProblems`.
        nt: see `SymmetryProblems`.
        part: see `SymmetryProblems`.

    Raises:
        ConfigurationError: the spread does not fit the group, the limit is not above one, or as `SymmetryProblems`.
        DomainError: (on drawing) hardly any element stays within the limit.
    """

    def __init__(
        self,
        equation: Equation,
        spread: Sequence[float],
        seeds: list[int],
        cases: int = 10,
        limit: float = 2.0,
        num_sensors: int = 200,
        nx: int = 256,
        nt: int = 101,
        part: float = 1.0,
    ) -> None:
        super().__init__(equation, seeds, cases, num_sensors, nx, nt, part)
        if len(spread) != self.group.dim or not all(math.isfinite(s) and s >= 0 for s in spread):
            raise ConfigurationError(
                f"spread: expected {self.group.dim} finite numbers of at least 0, got {list(spread)}"
            )
        if not limit > 1:
            raise ConfigurationError(f"limit: expected a number above 1, got {limit}")
        self.spread = torch.tensor(list(spread), dtype=torch.float64)
        self.limit = limit

    def draw(self, generator: torch.Generator, canonical: OperatorInput) -> Tensor:
        action = self.group.action()
        kept: list[Tensor] = []
        for _ in range(_MAX_DRAWS):
            v = torch.randn(self.cases, self.group.dim, generator=generator, dtype=torch.float64)
            g = self.group.exp(v * self.spread)
            d = action.denominator(g, canonical.query)
            inside = (d.amin(-1) > 1 / self.limit) & (d.amax(-1) < self.limit)
            kept.append(g[inside])
            if sum(map(len, kept)) >= self.cases:
                return torch.cat(kept)[: self.cases]
        raise DomainError(
            f"spread, limit: expected elements whose denominator stays in [1/{self.limit}, {self.limit}], got "
            f"{sum(map(len, kept))} in {_MAX_DRAWS * self.cases} draws"
        )
