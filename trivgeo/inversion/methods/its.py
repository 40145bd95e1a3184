"""Inverse transformation search (ITS)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.stages.search_orbits import OrbitCriterion, SearchLevel, SearchOrbits

__all__ = ["ITS"]


class ITS(Inverter):
    """Inverse transformation search (Schmidt and Stober 2024): the stage `SearchOrbits`, with its arguments.

    The method was made for affine transformations, but accepts any group.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        levels: levels of the search, or their number, see `SearchOrbits`.
        num_samples: samples of each level.
        num_hypotheses: number K of hypotheses.
        classes: function from a batch of data to classes ``[batch]``; ``None`` for no diversity.
        criterion: what a level minimises, see `SearchOrbits`.

    Raises:
        ConfigurationError: see `SearchOrbits`; or an argument is not an action or an energy.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        levels: int | Sequence[SearchLevel] | None = None,
        num_samples: int = 16,
        num_hypotheses: int = 3,
        classes: Callable[[Any], Any] | None = None,
        criterion: OrbitCriterion | None = None,
    ) -> None:
        stage = SearchOrbits(levels, num_samples, num_hypotheses, classes, criterion)
        super().__init__(action, as_energy(energy), [stage])
        stage.levels_of(self.action.group)
