"""Lie algebra canonicalization (LieLAC)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from trivgeo.checks import check_positive
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.stages.chains import Replicate
from trivgeo.inversion.stages.descend import Adam, AlgebraCoordinates, Descend, Parametrization

__all__ = ["LieLAC"]


class LieLAC(Inverter):
    r"""Minimises the posterior energy by Adam from K random starts (Shumaylov et al. 2025).

    As published, over algebra coordinates: :math:`\min_v E(\exp v)`, started at :math:`v \sim N(0, \sigma^2 I)`. With
    ``GroupElements()`` the same Adam runs on the group, by left-trivialized gradients and steps
    :math:`g \leftarrow g \exp v`: Riemannian Adam, which does not depend on the chart and reaches elements without a
    logarithm. Stages: `Replicate`, `Descend`.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        steps: gradient steps of each chain.
        learning_rate: the size of a step of `Adam`, in units of the group's basis.
        num_hypotheses: number K of starts.
        start_std: standard deviation of random starts about the identity; 0 for the identity itself, see `Descend`.
        parametrization: `AlgebraCoordinates` (the default) or `GroupElements`.
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
        parametrization: Parametrization | None = None,
        keep_best: bool = False,
    ) -> None:
        space = AlgebraCoordinates() if parametrization is None else parametrization
        descent = Descend(steps, Adam(learning_rate), space, check_positive("start_std", start_std), keep_best)
        super().__init__(action, as_energy(energy), [Replicate(num_hypotheses), descent])
