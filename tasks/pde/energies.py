"""Energies from the distribution of a network's training data; a test calls them with its equation."""

from typing import Literal

import torch

from trivgeo.inversion.energies import DomainDistance, GaussianInitialEnergy

from .equation import Equation

_SAMPLES_SEED = 2_147_483_646  # seed of fields that fit energies; test sets and training batches have smaller ones


class TrainingBox(DomainDistance):
    """The distance to the box of the training set.

    Args:
        equation: the equation and the distribution on which the network was trained.
        u: the range of u that initial conditions have in common; ``None`` where they have none, such as random fields.
        fill: whether the query points fill the domain, see `trivgeo.inversion.energies.DomainDistance`.
    """

    def __init__(
        self, equation: Equation, u: tuple[float, float] | Literal["domain"] | None = "domain", fill: bool = True
    ) -> None:
        *space, time = equation.domain.base
        super().__init__(space, time, equation.domain.unknowns if u == "domain" else u, fill=fill)


class InitialConditionEnergy(GaussianInitialEnergy):
    """The training domain without a range of u, and the Gaussian of initial conditions, fitted to samples of it.

    Query points must lie in the domain, and need not fill it.

    Args:
        equation: see `TrainingBox`.
        sensors: see `trivgeo.inversion.energies.GaussianInitialEnergy`.
        samples: number of initial conditions that it is fitted to.
        weight: see there.
        floor: see there.
    """

    def __init__(
        self, equation: Equation, sensors: int = 41, samples: int = 2000, weight: float = 0.02, floor: float = 0.1
    ) -> None:
        place = equation.domain.sensors(sensors, dtype=torch.float64)
        solutions = equation.sample(samples, torch.Generator().manual_seed(_SAMPLES_SEED))
        super().__init__(TrainingBox(equation, u=None, fill=False), place, solutions.initial(place), weight, floor)
