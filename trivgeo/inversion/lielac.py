"""Lie algebra canonicalization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action
from trivgeo.inversion.base import InversionResult
from trivgeo.inversion.counting import CountedPosterior, CountingInverter
from trivgeo.inversion.descent import Adam, AlgebraCoordinates, Parametrization, descend
from trivgeo.inversion.energy import DataEnergy

__all__ = ["LieLAC"]


class LieLAC(CountingInverter):
    r"""Minimises the posterior energy by Adam from K random starts (Shumaylov et al. 2025).

    As published, over algebra coordinates: :math:`\min_v E(\exp v)`, started at :math:`v \sim N(0, \sigma^2 I)`. With
    ``GroupElements()`` the same Adam runs on the group, by left-trivialized gradients and steps
    :math:`g \leftarrow g \exp v`: Riemannian Adam, which does not depend on the chart and reaches elements without a
    logarithm.

    Args:
        action: the action on data.
        energy: a `DataEnergy`, or a function from a batch of data to ``[batch]``.
        steps: gradient steps.
        learning_rate: of Adam, in units of the group's basis.
        num_hypotheses: number K of starts.
        start_std: standard deviation sigma of the starts, in units of the group's basis.
        parametrization: `AlgebraCoordinates` (the default) or `GroupElements`.
        betas: of Adam.
        epsilon: of Adam.
        keep_seen: return the element of lowest energy that each start has met in place of its end.
        log_det: keep the log-determinant of the action in the posterior energy (published: off).
        max_evaluations: the largest number of energies evaluated at once, to bound memory: the data are inverted in
            parts; ``None`` for all at once.
        on_step: called with the index of every step and the share of the run that is done, for progress bars.

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
        parametrization: Parametrization | None = None,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        keep_seen: bool = False,
        log_det: bool = False,
        max_evaluations: int | None = None,
        on_step: Callable[[int, float], None] | None = None,
    ) -> None:
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        super().__init__(action, energy, at_once=num_hypotheses, log_det=log_det, max_evaluations=max_evaluations)
        self.steps = check_count("steps", steps)
        self.start_std = check_positive("start_std", start_std)
        self.rule = Adam(learning_rate, betas, epsilon)
        self.parametrization = AlgebraCoordinates() if parametrization is None else parametrization
        if not isinstance(self.parametrization, Parametrization):
            raise ConfigurationError(f"parametrization: expected a Parametrization, got {parametrization!r}")
        self.keep_seen = keep_seen
        self.on_step = on_step

    def search(self, posterior: CountedPosterior, generator: torch.Generator | None) -> InversionResult:
        """Descend from K random starts."""
        shape = (posterior.batch, self.num_hypotheses, posterior.group.dim)
        start = self.start_std * posterior.normal(*shape, generator=generator)
        return descend(
            posterior,
            self.parametrization.start(posterior.group, start),
            self.parametrization,
            self.rule,
            self.steps,
            keep_seen=self.keep_seen,
            on_step=self.on_step,
        )
