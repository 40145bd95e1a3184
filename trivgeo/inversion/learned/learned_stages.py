"""Stages of a learned score: the reverse diffusion with it, and what its calibration adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trivgeo._numerics import is_traced
from trivgeo.checks import check_count, check_type, checked
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.learned.calibration import Calibration
from trivgeo.inversion.learned.score import LearnedScore
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.rows import where_rows
from trivgeo.inversion.stage import CheckedPopulation, Population, Stage
from trivgeo.sde import Stepper, TrivializedSDE, solve, uniform_grid
from trivgeo.sde.processes import reverse_process
from trivgeo.sde.solvers import AncestralStep

_CHECK_EVALUATIONS = 2  # evaluations of the network for a datum


@checked
class _CalibratedStage(Stage):
    """A stage of a trained score and its calibration."""

    def __init__(self, score: LearnedScore, calibration: Calibration) -> None:
        self.score = check_type("score", score, LearnedScore)
        self.calibration = check_type("calibration", calibration, Calibration)


@checked
class CalibratedDraws(_CalibratedStage):
    """Draws from the calibrated density that the population, draws of a learned reverse diffusion, stands for.

    Args:
        score: the trained score.
        calibration: calibration of the score.
        num_hypotheses: number K of draws.

    Raises:
        ConfigurationError: a score or calibration is of another type, or a number is below one.
    """

    def __init__(self, score: LearnedScore, calibration: Calibration, num_hypotheses: int) -> None:
        super().__init__(score, calibration)
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        density = self.calibration.density(self.score, population.elements)
        elements = density.sample_principal(self.num_hypotheses, generator)
        return Population.at(elements)


@checked
class CleanGate(_CalibratedStage):
    """Leaves data alone that look clean: every hypothesis for them becomes the identity.

    A datum looks clean if its features resemble those of clean data, and the transformation found resembles those found
    for clean data: all but three in a thousand of held-out clean data do. The stage takes one more evaluation of the
    network.

    Args:
        score: the trained score.
        calibration: calibration of the score.
    """

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        posterior.count(networks=1)
        x = self.score.prepared(posterior.x)
        number = _number_at_once(self.score, x, posterior)
        clean = self.calibration.looks_clean(self.score, x, population.elements[:, 0], number)
        g = population.elements
        unit = posterior.group.identity(dtype=g.dtype, device=g.device)
        return replace(population, elements=where_rows(clean, unit.expand_as(g), g), energies=None)


@checked
class OutlierCheck(_CalibratedStage):
    """Checks of each datum whether it is like those of the training, and the transformation found like the drawn ones.

    The result has their verdicts: `trusted`, and `reasons` where not. Thresholds are such that one in twenty-five of
    held-out clean data, moved or not, is flagged. The stage takes two more evaluations of the network. An exported
    program does not check.

    Args:
        score: the trained score.
        calibration: calibration of the score.
    """

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        if is_traced():
            return population
        posterior.count(networks=_CHECK_EVALUATIONS)
        known = population.evaluated(posterior)
        best = _best(known.elements, known.energies)
        x = self.score.prepared(posterior.x)
        verdicts = self.calibration.verdicts(self.score, x, best, _number_at_once(self.score, x, posterior))
        return CheckedPopulation(known.elements, known.num_masked_steps, known.energies, known.time, verdicts=verdicts)


def _number_at_once(score: LearnedScore, x: Any, posterior: Posterior) -> int | None:
    return score.number_at_once(x, posterior.bound, posterior.max_memory)


def _best(elements: Tensor, energies: Tensor) -> Tensor:
    rows = torch.arange(len(elements), device=elements.device)
    return elements[rows, energies.argmin(-1)]


@checked
class LearnedReverseDiffusion(Stage):
    r"""Follows the reverse diffusion of a `LearnedScore` in a few steps, one evaluation of the network each.

    The scheme says what comes out: `trivgeo.sde.solvers.AncestralStep` (the reverse diffusion) and `FlowStep` (its
    probability flow) make draws of the learned posterior, as does a network that was distilled (`consistency_loss`)
    with `RenoisingStep`, in one or two steps; `RefiningStep` makes a best guess for a posterior with one mode.

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

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        """Return the hypotheses that the chains reach.

        Raises:
            ConfigurationError: the score is one on another group.
        """
        group = self.score.group
        if not group.is_same_group(posterior.group):
            raise ConfigurationError(f"score: expected one on {posterior.group!r}, got one on {group!r}")
        score = self.score.given(posterior.x, _number_at_once(self.score, self.score.prepared(posterior.x), posterior))
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
