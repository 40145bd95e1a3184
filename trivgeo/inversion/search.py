"""Floors for every other method: random search, and gradient descent with restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action
from trivgeo.inversion.descent import Descend, GroupElements, HeavyBall
from trivgeo.inversion.energy import DataEnergy, as_energy
from trivgeo.inversion.inverter import Inverter, Stage
from trivgeo.inversion.posterior import GivenPosterior, rows_like
from trivgeo.inversion.result import Population
from trivgeo.inversion.stages import Start

__all__ = ["Draw", "GradientDescent", "RandomSearch"]

DRAWN_TOGETHER = 64
"""Elements of one datum that are drawn together."""


class Draw(Stage):
    r"""Draws elements :math:`g \exp(\sigma z)` around the first hypothesis of each datum, and keeps the best.

    Args:
        samples: number of elements drawn for each datum.
        num_hypotheses: number K of elements kept, in order of their energies.
        std: sigma, in units of the group's basis.

    Raises:
        ConfigurationError: a setting out of its range, or more hypotheses than samples.
    """

    def __init__(self, samples: int, num_hypotheses: int, std: float) -> None:
        self.samples = check_count("samples", samples)
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        if num_hypotheses > samples:
            raise ConfigurationError(f"num_hypotheses: expected at most samples = {samples}, got {num_hypotheses}")
        self.std = check_positive("std", std)
        self.steps = -(-samples // DRAWN_TOGETHER)

    def __call__(
        self, posterior: GivenPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The best of all that were drawn."""
        group, center = posterior.group, population.elements[:, :1]
        elements = population.elements[:, :0]
        energies = elements.new_empty(posterior.batch, 0)
        for done in range(0, self.samples, DRAWN_TOGETHER):
            number = min(DRAWN_TOGETHER, self.samples - done)
            v = self.std * posterior.normal(posterior.batch, number, group.dim, generator=generator)
            drawn = group.retract(center, v)
            elements = torch.cat([elements, drawn], 1)
            energies, index = torch.cat([energies, posterior.energies(drawn)], 1).sort(dim=1, stable=True)
            energies, index = energies[:, : self.num_hypotheses], index[:, : self.num_hypotheses]
            elements = torch.take_along_dim(elements, rows_like(index, elements), 1)
            posterior.step()
        return Population(elements, torch.zeros_like(index), energies)


class RandomSearch(Inverter):
    """The best of random elements around the identity: the stage `Draw`, whose arguments these are.

    Args:
        action: the action on data.
        energy: see `Inverter`.
        samples: by default as many as `LieLAC` evaluates.
        num_hypotheses: see `Draw`.
        std: see `Draw`.

    Raises:
        ConfigurationError: a setting out of its range, or an action or energy that is none.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        samples: int = 6400,
        num_hypotheses: int = 64,
        std: float = 0.3,
    ) -> None:
        super().__init__(action, as_energy(energy), [Draw(samples, num_hypotheses, std)])


class GradientDescent(Inverter):
    r"""Plain gradient descent on the group from K random starts; the number of starts and of steps is the budget.

    :math:`v \leftarrow \mu v - \eta \nabla_{\mathfrak g} E(g)`, :math:`g \leftarrow g \exp v`: `Start`, and `Descend`
    by `HeavyBall`, whose arguments these are.

    Args:
        action: the action on data.
        energy: see `Inverter`.
        steps: see `Descend`.
        learning_rate: see `HeavyBall`.
        num_hypotheses: number K of starts.
        start_std: see `Descend`.
        momentum: see `HeavyBall`.
        max_gradient_norm: see `HeavyBall`.
        keep_seen: see `Descend`.

    Raises:
        ConfigurationError: a setting out of its range, or an action or energy that is none.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        steps: int = 100,
        learning_rate: float = 0.01,
        num_hypotheses: int = 64,
        start_std: float = 0.3,
        momentum: float = 0.0,
        max_gradient_norm: float | None = 1.0,
        keep_seen: bool = False,
    ) -> None:
        rule = HeavyBall(learning_rate, momentum, max_gradient_norm)
        descent = Descend(steps, rule, GroupElements(), check_positive("start_std", start_std), keep_seen)
        super().__init__(action, as_energy(energy), [Start(num_hypotheses), descent])
