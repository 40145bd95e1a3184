"""Floors for every other method: random search, and gradient descent with restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action
from trivgeo.inversion.base import InversionResult
from trivgeo.inversion.counting import CountedPosterior, CountingInverter, rows_like
from trivgeo.inversion.descent import GroupElements, HeavyBall, descend
from trivgeo.inversion.energy import DataEnergy

__all__ = ["GradientDescent", "RandomSearch"]


class RandomSearch(CountingInverter):
    r"""Draws elements :math:`\exp(\sigma z)`, z standard normal, and keeps the K of lowest energy.

    Args:
        action: the action on data.
        energy: a `DataEnergy`, or a function from a batch of data to ``[batch]``.
        samples: number of elements drawn for each datum; by default as many as `LieLAC` evaluates.
        num_hypotheses: number K of elements kept, in order of their energies.
        std: sigma, in units of the group's basis.
        at_once: elements of one datum that are evaluated together.
        log_det: keep the log-determinant of the action in the posterior energy.
        max_evaluations: the largest number of energies evaluated at once, to bound memory: the data are inverted in
            parts; ``None`` for all at once.
        on_step: called with the number of elements so far and the share of the run that is done.

    Raises:
        ConfigurationError: a setting out of its range, more hypotheses than samples, or an action or energy that is
            none.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        samples: int = 6400,
        num_hypotheses: int = 64,
        std: float = 0.3,
        *,
        at_once: int = 64,
        log_det: bool = False,
        max_evaluations: int | None = None,
        on_step: Callable[[int, float], None] | None = None,
    ) -> None:
        self.at_once = check_count("at_once", at_once)
        super().__init__(action, energy, at_once=at_once, log_det=log_det, max_evaluations=max_evaluations)
        self.samples = check_count("samples", samples)
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        if num_hypotheses > samples:
            raise ConfigurationError(f"num_hypotheses: expected at most samples = {samples}, got {num_hypotheses}")
        self.std = check_positive("std", std)
        self.on_step = on_step

    def search(self, posterior: CountedPosterior, generator: torch.Generator | None) -> InversionResult:
        """Draw, and keep the best so far."""
        group, batch = posterior.group, posterior.batch
        elements = group.identity(batch, 0, dtype=posterior.like.dtype, device=posterior.like.device)
        energies = elements.new_empty(batch, 0)
        done = 0
        while done < self.samples:
            number = min(self.at_once, self.samples - done)
            drawn = group.exp(self.std * posterior.normal(batch, number, group.dim, generator=generator))
            done += number
            elements = torch.cat([elements, drawn], 1)
            energies, index = torch.cat([energies, posterior.energies(drawn)], 1).sort(dim=1, stable=True)
            energies, index = energies[:, : self.num_hypotheses], index[:, : self.num_hypotheses]
            elements = torch.take_along_dim(elements, rows_like(index, elements), 1)
            if self.on_step is not None:
                self.on_step(done, done / self.samples)
        return posterior.result(elements, energies)


class GradientDescent(CountingInverter):
    r"""Plain gradient descent on the group from K random starts.

    :math:`v \leftarrow \mu v - \eta \nabla_{\mathfrak g} E(g)`, :math:`g \leftarrow g \exp v`, the gradient no longer
    than a bound; started at :math:`\exp(\sigma z)`, z standard normal. The number of starts and of steps is the budget.

    Args:
        action: the action on data.
        energy: a `DataEnergy`, or a function from a batch of data to ``[batch]``.
        steps: gradient steps of each start.
        learning_rate: eta, in units of the group's basis.
        num_hypotheses: number K of starts.
        start_std: sigma, in units of the group's basis.
        momentum: mu, in [0, 1).
        max_gradient_norm: the bound; ``None`` for none.
        keep_seen: return the element of lowest energy that each start has met in place of its end.
        log_det: keep the log-determinant of the action in the posterior energy.
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
        momentum: float = 0.0,
        max_gradient_norm: float | None = 1.0,
        *,
        keep_seen: bool = False,
        log_det: bool = False,
        max_evaluations: int | None = None,
        on_step: Callable[[int, float], None] | None = None,
    ) -> None:
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        super().__init__(action, energy, at_once=num_hypotheses, log_det=log_det, max_evaluations=max_evaluations)
        self.steps = check_count("steps", steps)
        self.start_std = check_positive("start_std", start_std)
        self.rule = HeavyBall(learning_rate, momentum, max_gradient_norm)
        self.keep_seen = keep_seen
        self.on_step = on_step

    def search(self, posterior: CountedPosterior, generator: torch.Generator | None) -> InversionResult:
        """Descend from K random starts."""
        shape = (posterior.batch, self.num_hypotheses, posterior.group.dim)
        start = self.start_std * posterior.normal(*shape, generator=generator)
        return descend(
            posterior,
            posterior.group.exp(start),
            GroupElements(),
            self.rule,
            self.steps,
            keep_seen=self.keep_seen,
            on_step=self.on_step,
        )
