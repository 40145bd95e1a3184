"""Baselines: random search, and gradient descent from random starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from trivgeo.checks import check_positive
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.stages.chains import Replicate
from trivgeo.inversion.stages.descend import Descend, GroupElements, HeavyBall
from trivgeo.inversion.stages.gaussian_search import GaussianSearch

__all__ = ["GradientDescent", "RandomSearch"]


class RandomSearch(Inverter):
    """Search for the best of random elements around the identity: the stage `GaussianSearch`, with its arguments.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        num_samples: by default as many as `LieLAC` evaluates.
        num_hypotheses: number K of elements kept, see `GaussianSearch`.
        std: standard deviation of the draws, in units of the group's basis.

    Raises:
        ConfigurationError: a setting is out of its range, or an argument is not an action or an energy.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        num_samples: int = 6400,
        num_hypotheses: int = 64,
        std: float = 0.3,
    ) -> None:
        super().__init__(action, as_energy(energy), [GaussianSearch(num_samples, num_hypotheses, std)])


class GradientDescent(Inverter):
    r"""Plain gradient descent on the group from K random starts; the number of starts and of steps is the budget.

    :math:`v \leftarrow \mu v - \eta \nabla_{\mathfrak g} E(g)`, :math:`g \leftarrow g \exp v`: `Replicate`, and
    `Descend` by `HeavyBall`, whose arguments these are.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        steps: gradient steps of each chain.
        learning_rate: the size of a step.
        num_hypotheses: number K of starts.
        start_std: standard deviation of random starts about the identity; 0 for the identity itself, see `Descend`.
        momentum: the share of the last step that is kept, see `HeavyBall`.
        max_gradient_norm: longer gradients are shortened to this length, see `HeavyBall`.
        keep_best: return the element of lowest energy that a chain has met, not its last one, see `Descend`.

    Raises:
        ConfigurationError: a setting is out of its range, or an argument is not an action or an energy.
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
        keep_best: bool = False,
    ) -> None:
        rule = HeavyBall(learning_rate, momentum, max_gradient_norm)
        descent = Descend(steps, rule, GroupElements(), check_positive("start_std", start_std), keep_best)
        super().__init__(action, as_energy(energy), [Replicate(num_hypotheses), descent])
