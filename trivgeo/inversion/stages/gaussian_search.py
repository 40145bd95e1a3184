"""Search among random elements around a hypothesis."""

from __future__ import annotations

import torch

from trivgeo.checks import check_count, check_positive, checked
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.rows import rows_like
from trivgeo.inversion.stage import Population, Stage

DRAWN_TOGETHER = 64  # elements of one datum that are drawn at once


@checked
class GaussianSearch(Stage):
    r"""Draws elements :math:`g \exp(\sigma z)` around the first hypothesis of each datum, and keeps the best.

    Args:
        num_samples: number of elements drawn for each datum.
        num_hypotheses: number K of elements kept, in order of their energies.
        std: sigma, in units of the group's basis.

    Raises:
        ConfigurationError: a setting out of its range, or more hypotheses than samples.
    """

    def __init__(self, num_samples: int, num_hypotheses: int, std: float) -> None:
        self.num_samples = check_count("num_samples", num_samples)
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        if num_hypotheses > num_samples:
            raise ConfigurationError(
                f"num_hypotheses: expected at most num_samples = {num_samples}, got {num_hypotheses}"
            )
        self.std = check_positive("std", std)
        self.steps = -(-num_samples // DRAWN_TOGETHER)

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        group, center = posterior.group, population.elements[:, :1]
        elements = population.elements[:, :0]
        energies = elements.new_empty(posterior.batch, 0)
        for done in range(0, self.num_samples, DRAWN_TOGETHER):
            number = min(DRAWN_TOGETHER, self.num_samples - done)
            v = self.std * posterior.normal(posterior.batch, number, group.dim, generator=generator)
            drawn = group.retract(center, v)
            elements = torch.cat([elements, drawn], 1)
            energies, index = torch.cat([energies, posterior.energies(drawn)], 1).sort(dim=1, stable=True)
            energies, index = energies[:, : self.num_hypotheses], index[:, : self.num_hypotheses]
            elements = torch.take_along_dim(elements, rows_like(index, elements), 1)
            posterior.step()
        return Population(elements, torch.zeros_like(index), energies)
