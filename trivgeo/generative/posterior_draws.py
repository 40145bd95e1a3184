"""Weighted draws from the posterior of a prior distribution and an energy of elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import choice
from trivgeo.checks import check_arguments, check_count, check_tensor, checked
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.resampling import (
    LARGEST_SHAPE,
    LARGEST_WEIGHT_ERROR,
    SMALLEST_EFFECTIVE_SIZE,
    effective_sample_size,
    pareto_shape,
)
from trivgeo.verdict import Verdict

__all__ = ["PosteriorDraws", "draw_posterior"]


@checked
class PosteriorDraws(NamedTuple):
    """Weighted elements of a posterior, see `draw_posterior`.

    Attributes:
        elements: ``[m, *element_shape]``.
        weights: weights of sum one, ``[m]``, in the dtype of the elements.
        log_evidence: logarithm of the mean of :math:`e^{-E}` under the prior.
        num_lost: draws of the prior that were NaN or infinite, beside the m elements.
        verdict: whether averages with the weights are to be relied on: not where energies are rounded by more than a
            twentieth, where the effective sample size is below ten, or where the largest weights have a tail of Pareto
            shape above .7, so that draws that are rare and weigh much are missing.
    """

    elements: Tensor
    weights: Tensor
    log_evidence: float
    num_lost: int = 0
    verdict: Verdict = Verdict()

    @property
    def effective_sample_size(self) -> float:
        """Effective sample size of Kish: one over the sum of squared weights."""
        return float(effective_sample_size(self.weights))

    def resample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw elements without weights, with repetition, ``[num_samples, *element_shape]``.

        Args:
            num_samples: number of elements; many more than the effective number repeat each other.
            generator: random numbers; ``None`` is torch's.
        """
        index = choice(self.weights.unsqueeze(0), check_count("num_samples", num_samples), generator)[0]
        return self.elements[index]


@checked
def draw_posterior(
    prior: Any,
    energy: Callable[[Tensor], Float[Tensor, " m"]],
    num_samples: int,
    *,
    generator: torch.Generator | None = None,
) -> PosteriorDraws:
    r"""Draw from the posterior :math:`p(g) e^{-E(g)} / Z` of a prior p, with weights.

    The draws come from the prior, with weights proportional to :math:`e^{-E}` (self-normalised importance sampling).
    As their number grows, averages converge to those of the posterior, whatever the energy. The effective sample size
    tells how many draws the posterior leaves: for a narrow posterior take more draws, or
    `trivgeo.inversion.PosteriorSampler`, which searches and needs a density of the prior.

    ```python
    draws = draw_posterior(model.distribution(condition=c), energy, 10_000)
    draws.weights, draws.effective_sample_size, draws.resample(100)
    ```

    Draws that are not finite, which the network of a model could not follow, are left out and counted.

    Args:
        prior: a distribution with ``sample(num_samples, generator=...)``, such as a `GroupDistribution`,
            a `GroupDiffusion`, or its `GroupDiffusion.distribution` given a condition.
        energy: minus the logarithm of a likelihood, up to a constant: a function of elements
            ``[m, *element_shape]`` to ``[m]``; infinity where the likelihood is zero.
        num_samples: number of draws.
        generator: random numbers of the prior.

    Raises:
        ConfigurationError: the prior has no samples, or the number is less than one.
        ShapeError: the prior draws another number of elements, or the energy returns other than a number for each.
        NonFiniteError: no draw is finite, or an energy is NaN or minus infinity.
        DomainError: no draw has a finite energy.
    """
    check_count("num_samples", num_samples)
    if isinstance(prior, type) or not callable(getattr(prior, "sample", None)):
        raise ConfigurationError(
            f"prior: expected a distribution with sample(num_samples, generator=...), got {prior!r}"
        )
    check_arguments("prior.sample", prior.sample, "num_samples", keywords=["generator"])
    check_arguments("energy", energy, "elements")
    with torch.no_grad():
        drawn = _checked(prior, prior.sample(num_samples, generator=generator), num_samples)
        elements = drawn[torch.isfinite(drawn.flatten(1)).all(-1)]
        count = len(elements)
        if not count:
            raise NonFiniteError(f"prior: expected finite elements, got {num_samples} draws with NaN or infinity")
        energies = check_tensor("energy", energy(elements)).to(elements.device)
    if energies.shape != (count,):
        raise ShapeError(f"energy: expected a number for each element [{count}], got {list(energies.shape)}")
    logs = -energies.detach().double()
    if bool((logs.isnan() | (logs == math.inf)).any()):
        raise NonFiniteError("energy: expected numbers, or infinity where the likelihood is zero, got NaN or -infinity")
    if not bool((logs > -math.inf).any()):
        raise DomainError(f"energy: expected a finite one for some of {count} draws of the prior, got none")
    evidence = float(logs.logsumexp(0)) - math.log(count)
    verdict = _verdict(logs, torch.finfo(energies.dtype).eps)
    return PosteriorDraws(elements, logs.softmax(0).to(elements.dtype), evidence, num_samples - count, verdict)


def _verdict(logs: Float[Tensor, " m"], rounding: float) -> Verdict:
    """Return the verdict on weights, by their logarithms and the relative rounding of energies."""
    size, shape = float(effective_sample_size(logs.softmax(0))), float(pareto_shape(logs.unsqueeze(0)))
    error = float(logs.max().abs()) * rounding
    reasons = []
    if error > LARGEST_WEIGHT_ERROR:
        reasons.append(f"energies are rounded by {error:.2g}: take a constant off, or double precision")
    if size < SMALLEST_EFFECTIVE_SIZE:
        reasons.append(f"effective sample size {size:.3g} of {len(logs)} draws: take more, or a PosteriorSampler")
    elif shape > LARGEST_SHAPE:
        reasons.append(
            f"weights with a tail of Pareto shape {shape:.2f}, above {LARGEST_SHAPE}: draws that are rare and weigh "
            "much are missing; take more"
        )
    return Verdict(tuple(reasons), ("the posterior has no part that no draw of the prior has met",))


def _checked(prior: Any, drawn: Any, count: int) -> Tensor:
    """Check ``count`` elements of a prior, ``[count, *element_shape]``; a prior may name its group."""
    drawn, group = check_tensor("prior.sample", drawn), getattr(prior, "group", None)
    shape = [count, *(group.element_shape if isinstance(group, LieGroup) else drawn.shape[1:])]
    if list(drawn.shape) != shape or drawn.ndim < 2:
        expected = shape if isinstance(group, LieGroup) else f"[{count}, *element_shape]"
        raise ShapeError(f"prior.sample: expected elements {expected}, got {list(drawn.shape)}")
    return drawn
