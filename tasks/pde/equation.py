"""The contract of an equation with random solutions in a training domain: what training and test sets are made of."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.actions import OperatorInput
from trivgeo.groups import LieGroup
from trivgeo.pde import EvolutionEquation

from .deeponet import Jet
from .domain import Domain, with_values


class Solutions(ABC):
    """A batch of solutions of one equation on its domain, known by their initial conditions.

    Values are `[b, p]`; those of a system of c equations `[b, p, c]`. Positions are `[p]`; in d dimensions `[p, d]`.
    """

    @abstractmethod
    def initial(self, x: Float[Tensor, "p ..."]) -> Float[Tensor, "b p ..."]:
        """The initial conditions at positions shared by the batch."""

    @abstractmethod
    def on_grid(self, *counts: int) -> Float[Tensor, "b q ..."]:
        """The solutions at the points of `Domain.grid`; exact, or by a solver of known error."""


class Equation(ABC):
    """An evolution equation with its symmetry group, and a distribution of solutions on which a network is trained.

    Attributes:
        domain: the box of the training set.
        formula: the equation, whose parameters are attributes of the same names.
        is_simulated: whether solutions take a solver and its time; test sets are then kept in a file.
    """

    is_simulated: ClassVar[bool] = False

    domain: Domain
    formula: EvolutionEquation

    @property
    def constants(self) -> dict[str, float]:
        """The values of the parameters of the formula."""
        return {name: getattr(self, name) for name in self.formula.parameters}

    @property
    def description(self) -> dict[str, Any]:
        """The equation and its constants in plain types: what a checkpoint records and is checked by."""
        return {"equation": self.formula.text.replace("*", " "), **self.constants}

    @abstractmethod
    def group(self) -> LieGroup:
        """The group of point symmetries, in its natural basis."""

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Solutions:
        """Draw solutions from the training distribution."""

    @abstractmethod
    def held_out(self, count: int) -> Solutions:
        """A fixed set of solutions for validation, in float64."""

    def inputs(self, solutions: Solutions, num_sensors: int, grid: Sequence[int]) -> OperatorInput:
        """What a network is given of solutions in its training domain: initial line and query grid, in float64."""
        domain, dtype = self.domain, torch.float64
        place = domain.sensors(num_sensors, dtype=dtype)
        u = solutions.initial(place)
        points = torch.cat([place.reshape(len(place), -1), place.new_full((len(place), 1), domain.t_min)], -1)
        initial = with_values(points.expand(len(u), -1, -1), u)
        return OperatorInput(initial, domain.grid(*grid, dtype=dtype).expand(len(u), -1, -1))


class ResidualEquation(Equation):
    """An equation for one unknown, of first order in t and second in x, which networks can be held to."""

    def residual(self, jet: Jet) -> Tensor:
        """Left side minus right side of the formula, which vanishes on solutions."""
        (u,) = self.formula.unknowns
        values = {u: jet.value, f"{u}_x": jet.x, f"{u}_t": jet.t, f"{u}_xx": jet.xx}
        return self.formula.residual(values, **self.constants)


def identifying(equation: Equation) -> list[Any]:
    """All that solutions of an equation depend on, for `tasks.made_once.made_once`."""
    return [str(type(equation)), equation.description, vars(equation)]
