"""The stage that starts several chains."""

from __future__ import annotations

import torch

from trivgeo.checks import check_count
from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.stage import Stage

__all__ = ["Replicate"]


class Replicate(Stage):
    """Several chains for each hypothesis.

    Args:
        num_hypotheses: chains for each.

    Raises:
        ConfigurationError: the number is below one.
    """

    def __init__(self, num_hypotheses: int) -> None:
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """Copies of the population."""
        return population.copies(self.num_hypotheses)
