"""Transformed heat problems whose exact solutions are known: the test sets."""

import math
from abc import abstractmethod
from typing import NamedTuple

import lightning.pytorch as pl
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tasks.pde.heat import HEAT_NU, exact_solution, initial_condition, query_grid, sensor_locations
from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.errors import ConfigurationError
from trivgeo.groups import HeatSymmetry


class OperatorProblems(NamedTuple):
    """A batch of transformed problems, all of one seed.

    Attributes:
        seed: the seed that drew them.
        x: the transformed problems, what an inverter sees.
        solution: the exact solutions at the query points, `[b, q]`.
        elements: the transformations g, `[b, *element_shape]`.
        canonical: the problems before the transformation, inside the training domain.
        canonical_solution: their exact solutions, `[b, q]`.
        grid: the numbers (nx, nt) of query points, q = nx nt, x-major.
    """

    seed: int
    x: OperatorInput
    solution: Tensor
    elements: Tensor
    canonical: OperatorInput
    canonical_solution: Tensor
    grid: tuple[int, int]


class ProblemSet(Dataset[OperatorProblems]):
    """One batch of problems for each seed."""

    def __init__(self, owner: "HeatProblems") -> None:
        self._owner = owner

    def __len__(self) -> int:
        """The number of seeds."""
        return len(self._owner.seeds)

    def __getitem__(self, index: int) -> OperatorProblems:
        """The problems of one seed, a function of that seed alone."""
        return self._owner.problems(self._owner.seeds[index])


class HeatProblems(pl.LightningDataModule):
    """Solutions A exp(-0.4 t) sin(2x) of u_t = 0.1 u_xx, moved by elements of the symmetry group of the equation.

    Args:
        seeds: one batch of problems for each.
        cases: problems a seed.
        amplitude_min: smallest amplitude A before the transformation.
        amplitude_max: largest amplitude.
        num_sensors: points of the initial condition.
        nx: query points in x.
        nt: query points in t.

    Raises:
        ConfigurationError: no seeds, or a count below one.
    """

    def __init__(
        self,
        seeds: list[int],
        cases: int = 10,
        amplitude_min: float = 1.0,
        amplitude_max: float = 1.0,
        num_sensors: int = 200,
        nx: int = 256,
        nt: int = 101,
    ) -> None:
        super().__init__()
        if not seeds or len(set(seeds)) != len(seeds):
            raise ConfigurationError(f"seeds: expected distinct seeds, got {seeds}")
        for name, value in (("cases", cases), ("num_sensors", num_sensors), ("nx", nx), ("nt", nt)):
            if value < 1:
                raise ConfigurationError(f"{name}: expected at least 1, got {value}")
        if not 0 < amplitude_min <= amplitude_max:
            raise ConfigurationError(
                f"expected 0 < amplitude_min <= amplitude_max, got {amplitude_min} and {amplitude_max}"
            )
        self.seeds = list(seeds)
        self.cases = cases
        self.amplitudes = (amplitude_min, amplitude_max)
        self.num_sensors = num_sensors
        self.grid = (nx, nt)
        self.group = HeatSymmetry(HEAT_NU)

    @abstractmethod
    def draw(self, generator: torch.Generator, canonical: OperatorInput) -> Tensor:
        """Transformations g for the cases, `[cases, *element_shape]`."""

    def problems(self, seed: int) -> OperatorProblems:
        """The problems of one seed, in float64."""
        generator = torch.Generator().manual_seed(seed)
        low, high = self.amplitudes
        amplitude = low + (high - low) * torch.rand(self.cases, 1, generator=generator, dtype=torch.float64)
        canonical = self.clean(amplitude)
        query = canonical.query
        u = exact_solution(amplitude, query[..., 0], query[..., 1])
        g = self.draw(generator, canonical)
        moved = self.group.action()(g, torch.cat([query, u.unsqueeze(-1)], -1))
        x = OperatorInput(self.group.action()(g, canonical.initial), moved[..., :2])
        return OperatorProblems(seed, x, moved[..., 2], g, canonical, u, self.grid)

    def clean(self, amplitude: Float[Tensor, "b 1"] | None = None) -> OperatorInput:
        """Problems inside the training domain; the mean amplitude when `None`."""
        if amplitude is None:
            amplitude = torch.tensor([[sum(self.amplitudes) / 2]], dtype=torch.float64)
        place = sensor_locations(self.num_sensors, dtype=torch.float64).expand(len(amplitude), -1)
        initial = torch.stack([place, torch.zeros_like(place), initial_condition(amplitude, place)], -1)
        return OperatorInput(initial, query_grid(*self.grid, dtype=torch.float64).expand(len(amplitude), -1, -1))

    def test_dataloader(self) -> DataLoader[OperatorProblems]:
        """One batch a seed."""
        return DataLoader(ProblemSet(self), batch_size=None)


class AmplitudeProblems(HeatProblems):
    """The published test: the network of A = 1 meets amplitudes A ~ U(factor_min, factor_max).

    Args:
        factor_min: smallest factor of u.
        factor_max: largest factor of u.
        options: see `HeatProblems`.
    """

    def __init__(
        self,
        seeds: list[int],
        cases: int = 10,
        factor_min: float = 0.5,
        factor_max: float = 5.0,
        amplitude_min: float = 1.0,
        amplitude_max: float = 1.0,
        num_sensors: int = 200,
        nx: int = 256,
        nt: int = 101,
    ) -> None:
        super().__init__(seeds, cases, amplitude_min, amplitude_max, num_sensors, nx, nt)
        if not 0 < factor_min <= factor_max:
            raise ConfigurationError(f"expected 0 < factor_min <= factor_max, got {factor_min} and {factor_max}")
        self.factors = (factor_min, factor_max)

    def draw(self, generator: torch.Generator, canonical: OperatorInput) -> Tensor:
        """Elements that multiply u."""
        low, high = self.factors
        v = torch.zeros(self.cases, self.group.dim, dtype=torch.float64)
        v[:, -1] = (low + (high - low) * torch.rand(self.cases, generator=generator, dtype=torch.float64)).log()
        return self.group.exp(v)


class MixedProblems(HeatProblems):
    r"""Solutions moved by elements exp(v) that mix all six directions of the group, v ~ N(0, diag(spread^2)).

    In the natural basis of `HeatSymmetry`: scaling, time translation, projective, space translation, boost, factor
    of u. Draws whose denominator gamma t + delta leaves [1 / limit, limit] on the box are drawn again: the local
    action must stay inside its domain, with room.

    Args:
        spread: standard deviations of the six coordinates.
        limit: bound of the denominator.
        options: see `HeatProblems`.
    """

    def __init__(
        self,
        seeds: list[int],
        cases: int = 10,
        spread: tuple[float, float, float, float, float, float] = (0.1, 1.0, 0.01, 0.5, 0.03, 0.5),
        limit: float = 2.0,
        amplitude_min: float = 1.0,
        amplitude_max: float = 1.0,
        num_sensors: int = 200,
        nx: int = 256,
        nt: int = 101,
    ) -> None:
        super().__init__(seeds, cases, amplitude_min, amplitude_max, num_sensors, nx, nt)
        if not all(math.isfinite(s) and s >= 0 for s in spread):
            raise ConfigurationError(f"spread: expected finite numbers of at least 0, got {list(spread)}")
        if not limit > 1:
            raise ConfigurationError(f"limit: expected a number above 1, got {limit}")
        self.spread = spread
        self.limit = limit

    def draw(self, generator: torch.Generator, canonical: OperatorInput) -> Tensor:
        """Elements that mix all directions, by rejection."""
        action = OperatorAction(self.group.action())
        kept: list[Tensor] = []
        while sum(len(k) for k in kept) < self.cases:
            v = torch.randn(self.cases, self.group.dim, generator=generator, dtype=torch.float64)
            g = self.group.exp(v * torch.tensor(self.spread, dtype=torch.float64))
            d = action.point_action.denominator(g, canonical.query)
            inside = (d.amin(-1) > 1 / self.limit) & (d.amax(-1) < self.limit)
            kept.append(g[inside])
        return torch.cat(kept)[: self.cases]
