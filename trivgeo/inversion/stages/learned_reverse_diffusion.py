"""Reverse diffusion with a learned score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trivgeo.checks import check_type
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.learned.score import LearnedScore
from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.stage import Stage
from trivgeo.sde import Stepper, TrivializedSDE, solve, uniform_grid
from trivgeo.sde.processes import reverse_process
from trivgeo.sde.solvers import AncestralStep

__all__ = ["LearnedReverseDiffusion"]


class LearnedReverseDiffusion(Stage):
    r"""Follows the reverse diffusion of a `LearnedScore` in a few steps, one evaluation of the network each.

    The scheme says what comes out: `trivgeo.sde.solvers.AncestralStep` (the reverse diffusion) and `FlowStep` (its
    probability flow) make draws of the learned posterior, a network that was distilled (`consistency_loss`) with
    `RenoisingStep` likewise, in one or two steps; `RefiningStep` a best guess for a posterior with one mode.

    The population is taken to be at the first of the times, whatever noise is on it: the identity is a good guess, and
    the best single one, when the transformations of the data are no larger than the noise that the network was
    trained on. The network never saw data further away than that.

    Equivariant exactly: :math:`h \tilde x` from :math:`h g_1`, with the same noise, leads to :math:`h g_0`.

    Steps are taken in the basis that the score was trained in, whatever the scale of the inverter's action; a stage
    `AddNoise` before it works in that of the inverter.

    Args:
        score: the trained score.
        steps: number of equal steps.
        stepper: the scheme; default `AncestralStep`.
        times: a falling grid that ends at 0, in place of ``steps`` equal steps from 1.

    Raises:
        ConfigurationError: a score or scheme is of another type, a count is below one, or times do not fall to 0.
    """

    def __init__(
        self,
        score: LearnedScore,
        steps: int = 4,
        stepper: Stepper[TrivializedSDE, Tensor] | None = None,
        times: Sequence[float] | None = None,
    ) -> None:
        self.score = check_type("score", score, LearnedScore)
        self.stepper = AncestralStep() if stepper is None else check_type("stepper", stepper, Stepper)  # type: ignore[type-abstract]
        grid = uniform_grid(steps, 1.0, 0.0) if times is None else [float(t) for t in times]
        if len(grid) < 2 or grid[0] > 1 or grid[-1] != 0 or grid != sorted(set(grid), reverse=True):
            raise ConfigurationError(f"times: expected a grid that falls from at most 1 to 0, got {grid}")
        self.times = grid
        self.steps = len(grid) - 1

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The hypotheses that the chains reach.

        Raises:
            ConfigurationError: the score is one on another group.
        """
        group = self.score.group
        if not group.is_same_group(posterior.group):
            raise ConfigurationError(f"score: expected one on {posterior.group!r}, got one on {group!r}")
        score = self.score.given(posterior.x, posterior.max_evaluations)
        solution = solve(
            reverse_process(group, self.score.schedule, score),
            population.elements,
            self.times,
            stepper=self.stepper,
            generator=generator,
            observe=lambda index, t, g: posterior.step() if index else None,
        )
        posterior.count(networks=score.evaluations)
        return replace(population.moved(solution.final, masked=solution.num_masked_steps), time=0.0)
