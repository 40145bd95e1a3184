"""Posteriors of a distribution and an energy of elements, by weighted draws of the distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import choice
from trivgeo._signatures import check_calls
from trivgeo.checks import check_arguments, check_count, check_tensor
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.sde.weights import effective_sample_size

__all__ = ["PosteriorDraws", "draw_posterior"]


class PosteriorDraws(NamedTuple):
    """Weighted elements of a posterior, see `draw_posterior`.

    Attributes:
        elements: ``[m, *element_shape]``.
        weights: of sum one, ``[m]``.
        log_evidence: logarithm of the mean of :math:`e^{-E}` under the prior.
    """

    elements: Tensor
    weights: Tensor
    log_evidence: float

    @property
    def effective_sample_size(self) -> float:
        """Number of independent elements of equal weight that say as much: one over the sum of squares of weights."""
        return float(effective_sample_size(self.weights))

    def resample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw elements without weights, with repetition, ``[num_samples, *element_shape]``.

        Args:
            num_samples: number of elements; many more than the effective number repeat each other.
            generator: random numbers; ``None`` is torch's.
        """
        index = choice(self.weights.unsqueeze(0), check_count("num_samples", num_samples), generator)[0]
        return self.elements[index]


def draw_posterior(
    prior: Any,
    energy: Callable[[Tensor], Float[Tensor, " m"]],
    num_samples: int,
    *,
    generator: torch.Generator | None = None,
) -> PosteriorDraws:
    r"""Draw from the posterior :math:`p(g) e^{-E(g)} / Z` of a prior p, with weights.

    The draws are those of the prior, with weights proportional to :math:`e^{-E}` (self-normalised importance sampling).
    Averages converge to those of the posterior with their number, whatever the energy. The effective sample size says
    how many draws the posterior leaves: for a narrow posterior take more draws, or
    `trivgeo.inversion.PosteriorSampler`, which searches and needs a density of the prior.

    ```python
    draws = draw_posterior(model.distribution(condition=c), energy, 10_000)
    draws.weights, draws.effective_sample_size, draws.resample(100)
    ```

    Args:
        prior: a distribution with ``sample(num_samples, generator=...)``, such as a `GroupDiffusion`, one of its
            `ConditionalLaw.distribution`, or a `BaseDistribution`.
        energy: minus the logarithm of a likelihood, up to a constant: a function of elements
            ``[m, *element_shape]`` to ``[m]``; infinity where the likelihood is zero.
        num_samples: m, the number of draws.
        generator: random numbers of the prior.

    Raises:
        ConfigurationError: the prior has no samples, or the number is less than one.
        ShapeError: the energy returns other than a number for each element.
        NonFiniteError: an energy is NaN or minus infinity at an element that is finite.
        DomainError: no draw has a finite energy.
    """
    check_count("num_samples", num_samples)
    if isinstance(prior, type) or not callable(getattr(prior, "sample", None)):
        raise ConfigurationError(
            f"prior: expected a distribution with sample(num_samples, generator=...), got {prior!r}"
        )
    check_arguments("energy", energy, "elements")
    with torch.no_grad():
        elements = check_tensor("prior.sample", prior.sample(num_samples, generator=generator))
        energies = check_tensor("energy", energy(elements))
    if energies.shape != (num_samples,):
        raise ShapeError(f"energy: expected a number for each element [{num_samples}], got {list(energies.shape)}")
    lost = ~torch.isfinite(elements.flatten(1)).all(-1)  # samples that a network could not follow
    logs = torch.where(lost, -math.inf, -energies.detach().double())
    if bool((logs.isnan() | (logs == math.inf)).any()):
        raise NonFiniteError("energy: expected numbers, or infinity where the likelihood is zero, got NaN or -infinity")
    if not bool((logs > -math.inf).any()):
        raise DomainError(f"energy: expected a finite one for some of {num_samples} draws of the prior, got none")
    return PosteriorDraws(elements, logs.softmax(0), float(logs.logsumexp(0)) - math.log(num_samples))


check_calls(__name__, __all__)
