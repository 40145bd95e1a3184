"""Energies made from the training law of a network."""

import torch

from tasks.pde.equation import Equation
from trivgeo.inversion import DataEnergy, DomainDistance
from trivgeo.inversion.learned_energy import GaussianInitialEnergy

_SAMPLES_SEED = 2_147_483_646


def gaussian_initial_energy(
    equation: Equation, sensors: int = 41, samples: int = 2000, weight: float = 0.02, floor: float = 0.1
) -> DataEnergy:
    """The training domain without a range of u, and the Gaussian law of initial conditions, fitted to samples of it.

    Query points must lie in the domain, and need not fill it.

    Args:
        equation: the equation and the law on which the network was trained.
        sensors: see `trivgeo.inversion.GaussianInitialEnergy`.
        samples: number of initial conditions that it is fitted to.
        weight: see there.
        floor: see there.
    """
    domain = equation.domain
    box = DomainDistance((domain.x_min, domain.x_max), (domain.t_min, domain.t_max), fill=False)
    place = domain.sensors(sensors, dtype=torch.float64)
    law = equation.sample(samples, torch.Generator().manual_seed(_SAMPLES_SEED))
    return GaussianInitialEnergy(box, place, law.initial(place), weight, floor)
