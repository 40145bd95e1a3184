"""Search by Langevin dynamics of the transformation posterior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.stages.chains import Replicate
from trivgeo.inversion.stages.langevin_dynamics import Langevin

__all__ = ["KineticLangevin"]


class KineticLangevin(Inverter):
    """Searches by kinetic Langevin dynamics of the transformation posterior, from the identity (Kong and Tao 2024).

    The chains are draws of the posterior only once they have mixed, which nothing checks, and seldom go from one well
    to another: the share of chains in a well is not the weight of the well. For weights use `PosteriorSampler`. Stages:
    `Replicate`, `Langevin`. The defaults are the published ones for images; those for differential equations are 1,000
    steps of 1e-5 to 1e-4.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        steps: number of steps of the splitting scheme, see `Langevin`.
        step_size: time of a step.
        num_hypotheses: number K of chains.
        friction: decay rate of the momentum, positive.
        temperature: T of the density :math:`e^{-E(g) / T}`, see `Langevin`.
        coadjoint: keep the coadjoint term of the momentum, see `KineticLangevinSDE`.

    Raises:
        ConfigurationError: a setting is out of its range, or an argument is not an action or an energy.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        steps: int = 1600,
        step_size: float = 2e-4,
        num_hypotheses: int = 4,
        friction: float = 1.0,
        temperature: float = 1.0,
        coadjoint: bool = True,
    ) -> None:
        stage = Langevin(steps, step_size, friction, temperature, coadjoint)
        super().__init__(action, as_energy(energy), [Replicate(num_hypotheses), stage])
