"""The stage that selects or resamples chains."""

from __future__ import annotations

from typing import Literal

import torch

from trivgeo._random import choice as draw_choice
from trivgeo.checks import check_choice, check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.stage import Stage

__all__ = ["Select"]


class Select(Stage):
    r"""Goes on with k of the chains of each datum.

    Those of lowest energy E, or drawn with replacement with the weights :math:`e^{-E / T}`: then they are a sample of
    the product of the law that they came from and of :math:`e^{-E / T}` as their number grows, so that a learned
    posterior (`AmortizedInverter`) is a prior.

    Args:
        num_hypotheses: the number k.
        choice: ``"lowest"`` or ``"resample"``.
        temperature: T, positive.

    Raises:
        ConfigurationError: a setting out of its range; or (when run) fewer than k chains are to be among the lowest.
    """

    def __init__(
        self,
        num_hypotheses: int = 1,
        choice: Literal["lowest", "resample"] = "lowest",
        temperature: float = 1.0,
    ) -> None:
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        self.choice = check_choice("choice", choice, ("lowest", "resample"))
        self.temperature = check_positive("temperature", temperature)

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The chains that were chosen."""
        evaluated = population.evaluated(posterior)
        energies, number = evaluated.energies, self.num_hypotheses
        if self.choice == "lowest":
            if population.size < number:
                raise ConfigurationError(f"num_hypotheses: expected at most {population.size} chains, got {number}")
            return evaluated.take(energies.topk(number, dim=1, largest=False).indices)
        finite = torch.isfinite(energies)
        logits = torch.where(finite, -energies / self.temperature, -torch.inf)
        logits = torch.where(finite.any(1, keepdim=True), logits, 0.0)
        return evaluated.take(draw_choice(logits.softmax(1), number, generator))
