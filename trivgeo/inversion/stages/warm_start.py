"""The stage that starts from the hypotheses of another inverter."""

from __future__ import annotations

import torch

from trivgeo.checks import check_type
from trivgeo.errors import ConfigurationError, NonFiniteError
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.sampling.mixture import StudentMixture
from trivgeo.inversion.stage import Stage

__all__ = ["WarmStart"]


class WarmStart(Stage):
    """The hypotheses of another inverter, in place of those that come in; its evaluations count.

    Args:
        inverter: of the same action, or of one with another scale of the group.

    Raises:
        ConfigurationError: the inverter is none; or (when run) its group is another one.
    """

    def __init__(self, inverter: Inverter) -> None:
        self.inverter = check_type("inverter", inverter, Inverter)

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """Return the hypotheses of the inverter, without energies: those of this posterior may differ."""
        self._check_group(posterior)
        result = self.inverter(posterior.x, generator=generator)
        posterior.count(result.energy_evaluations, result.gradient_evaluations, result.network_evaluations)
        return Population(result.elements, result.num_masked_steps)

    def proposal(self, posterior: ConditionalPosterior, generator: torch.Generator | None) -> StudentMixture | None:
        """Return the density of the inverter for the data, in the basis of the posterior's group; ``None`` without one.

        Args:
            posterior: posterior of the data.
            generator: random numbers; None is torch's.

        Raises:
            NonFiniteError: the density has centres, factors or shares that are NaN or infinite.
        """
        self._check_group(posterior)
        found = self.inverter.proposal(posterior.x, generator)
        if found is None:
            return None
        mixture, evaluations = found
        numbers = (mixture.centres, mixture.factors, mixture.log_shares.exp())
        if not all(bool(torch.isfinite(part).all()) for part in numbers):
            raise NonFiniteError(
                "inverter: expected a density with finite centres, factors and shares, got NaN or infinity"
            )
        posterior.count(networks=evaluations)
        return mixture.in_basis_of(posterior.group)

    def _check_group(self, posterior: ConditionalPosterior) -> None:
        if not self.inverter.action.group.is_same_group(posterior.group):
            raise ConfigurationError(
                f"inverter: expected one of {posterior.group!r}, got one of {self.inverter.action.group!r}"
            )
