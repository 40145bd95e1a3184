"""Stages that know the calibration of a learned inverter: its posterior, the gate, and which data are unusual."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from trivgeo._numerics import is_traced
from trivgeo.checks import check_count, check_type
from trivgeo.inversion.checked import CheckedPopulation, Checks
from trivgeo.inversion.learned.calibration import Calibration
from trivgeo.inversion.learned.score import LearnedScore
from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.rows import where_rows
from trivgeo.inversion.stage import Stage

__all__ = ["CalibratedDraws", "CleanGate", "OutlierCheck"]

_LOOKS = 2
"""Evaluations of the network that a check takes."""


class _CalibratedStage(Stage):
    """A stage of a trained score and its calibration."""

    def __init__(self, score: LearnedScore, calibration: Calibration) -> None:
        self.score = check_type("score", score, LearnedScore)
        self.calibration = check_type("calibration", calibration, Calibration)


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

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The draws."""
        density = self.calibration.density(self.score, population.elements)
        elements = density.sample_principal(self.num_hypotheses, generator)
        masked = torch.zeros(elements.shape[:2], dtype=torch.int64, device=elements.device)
        return Population(elements, masked, time=0.0)


class CleanGate(_CalibratedStage):
    """Leaves data alone that look clean: every hypothesis for them becomes the identity.

    A datum looks clean if the network's features of it are as those of clean data, and the transformation found as
    those found for clean data, to which all but three in a thousand of held-out clean data belong. The network looks
    once more.

    Args:
        score: the trained score.
        calibration: calibration of the score.
    """

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The hypotheses, or the identity."""
        posterior.count(networks=1)
        clean = self.calibration.looks_clean(self.score, self.score.prepared(posterior.x), population.elements[:, 0])
        g = population.elements
        unit = posterior.group.identity(dtype=g.dtype, device=g.device)
        return replace(population, elements=where_rows(clean, unit.expand_as(g), g), energies=None)


class OutlierCheck(_CalibratedStage):
    """Says of each datum whether it is like those of the training, and the transformation found of the law.

    The result is a `CheckedResult`: `trusted`, and `reasons` where not. Thresholds are such that one in twenty-five of
    held-out clean data, moved by the law or not, is flagged. The network looks twice more. An exported program does
    not check.

    Args:
        score: the trained score.
        calibration: calibration of the score.
    """

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The same hypotheses, checked."""
        if is_traced():
            return population
        posterior.count(networks=_LOOKS)
        known = population.evaluated(posterior)
        best = _best(known.elements, known.energies)
        reasons = self.calibration.reasons(self.score, self.score.prepared(posterior.x), best)
        return CheckedPopulation(
            known.elements, known.num_masked_steps, known.energies, known.time, checks=Checks(reasons=reasons)
        )


def _best(elements: Tensor, energies: Tensor) -> Tensor:
    rows = torch.arange(len(elements), device=elements.device)
    return elements[rows, energies.argmin(-1)]
