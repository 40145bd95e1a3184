"""Sampling of the transformation posterior by Langevin dynamics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trivgeo.checks import check_count, check_positive
from trivgeo.groups import Action
from trivgeo.inversion.base import InversionResult
from trivgeo.inversion.counting import CountedPosterior, CountingInverter
from trivgeo.inversion.energy import DataEnergy
from trivgeo.sde import KineticLangevin as KineticLangevinProcess
from trivgeo.sde import solve
from trivgeo.sde.process import uniform_grid

__all__ = ["KineticLangevin"]


class KineticLangevin(CountingInverter):
    r"""Samples the transformation posterior by kinetic Langevin dynamics from the identity (Kong and Tao 2024).

    K chains of each datum follow `trivgeo.sde.KineticLangevin` for :math:`p(g \mid \tilde x) \propto e^{-E(g) / T}`, in
    steps of its splitting scheme. They are sampled where they end, which is the posterior only once they have mixed.

    The defaults are the published ones for images; those for differential equations are 1,000 steps of 1e-5 to 1e-4.

    Args:
        action: the action on data.
        energy: a `DataEnergy`, or a function from a batch of data to ``[batch]``.
        steps: number of steps.
        step_size: time of a step.
        num_hypotheses: number K of chains.
        friction: gamma, positive.
        temperature: T, positive.
        coadjoint: the coadjoint term of the motion; otherwise the constant force, see
            `trivgeo.sde.KineticLangevin`.
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
        steps: int = 1600,
        step_size: float = 2e-4,
        num_hypotheses: int = 4,
        friction: float = 1.0,
        temperature: float = 1.0,
        *,
        coadjoint: bool = True,
        log_det: bool = False,
        max_evaluations: int | None = None,
        on_step: Callable[[int, float], None] | None = None,
    ) -> None:
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        super().__init__(action, energy, at_once=num_hypotheses, log_det=log_det, max_evaluations=max_evaluations)
        self.steps = check_count("steps", steps)
        self.step_size = check_positive("step_size", step_size)
        self.friction = check_positive("friction", friction)
        self.temperature = check_positive("temperature", temperature)
        self.coadjoint = coadjoint
        self.on_step = on_step

    def search(self, posterior: CountedPosterior, generator: torch.Generator | None) -> InversionResult:
        """Run K chains from the identity."""
        like, on_step = posterior.like, self.on_step
        process = KineticLangevinProcess(
            posterior.group, posterior.differentiable, self.friction, self.temperature, self.coadjoint
        )
        identity = posterior.group.identity(posterior.batch, self.num_hypotheses, dtype=like.dtype, device=like.device)
        solution = solve(
            process,
            process.start(identity, generator=generator),
            uniform_grid(self.steps, 0.0, self.steps * self.step_size),
            generator=generator,
            on_step=None if on_step is None else lambda index, t: on_step(index, index / self.steps),
        )
        elements = solution.final.elements
        return posterior.result(elements, posterior.energies(elements), solution.failures)
