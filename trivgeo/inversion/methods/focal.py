"""Bayesian optimisation of the transformation (FoCal)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.stages.bayesian_optimization import BayesianOptimization

__all__ = ["FoCal"]


class FoCal(Inverter):
    """Bayesian optimisation of the transformation (Singhal et al. 2025): see `BayesianOptimization`.

    The defaults are the published ones for images; those for differential equations are 10 + 100 evaluations.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        initial: number of random points.
        evaluations: number of points that come after, see `BayesianOptimization`.
        length_scale: of the squared exponential kernel, in units of the group's basis.
        box: c of the box, in units of the group's basis, one number or one for each direction.
        num_hypotheses: number K of points kept, see `BayesianOptimization`.
        fit: fit the length scale to every datum before every point.

    Raises:
        ConfigurationError: see `BayesianOptimization`; or an argument is not an action or an energy.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        initial: int = 5,
        evaluations: int = 5,
        length_scale: float = 0.01,
        box: float | Sequence[float] = 1.0,
        num_hypotheses: int = 1,
        fit: bool = True,
    ) -> None:
        stage = BayesianOptimization(initial, evaluations, length_scale, box, num_hypotheses, fit)
        super().__init__(action, as_energy(energy), [stage])
        stage.check_group(self.action.group)
