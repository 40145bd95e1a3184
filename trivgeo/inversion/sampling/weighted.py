"""Weighted samples of posteriors: as a population between stages, and as a result."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from trivgeo.inversion.checked import CheckedPopulation, CheckedResult, Checks
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.result import PosteriorModes, modes_of

__all__ = ["ImportanceWeights", "PosteriorSample", "WeightedPopulation"]


@dataclass(frozen=True, repr=False, kw_only=True)
class ImportanceWeights(Checks):
    """Weights of the elements of a sample, and checks of the sample by them; see `PosteriorSample`.

    Attributes:
        reasons: why the sample of a datum is not to be trusted; empty texts where it is.
        weights: ``[b, K]``.
        effective_sample_size: ``[b]``.
        log_evidence: ``[b]``.
    """

    weights: Float[Tensor, "b k"]
    effective_sample_size: Float[Tensor, " b"]
    log_evidence: Float[Tensor, " b"]


@dataclass(frozen=True, repr=False, kw_only=True)
class PosteriorSample(CheckedResult):
    r"""Weighted sample of the posteriors :math:`p_0(g)\, e^{-E(g) / T}` of a batch of data.

    Averages over the sample with its `weights` estimate averages over the posterior; for any function f of elements

    .. math:: \sum_k w_k f(g_k) \approx \int f \, p \, d\mu

    Attributes:
        checks: the weights, and the verdicts on the sample.
    """

    checks: ImportanceWeights

    @property
    def importance(self) -> ImportanceWeights:
        """Importance weights of the elements, with verdicts on the sample."""
        return self.checks

    @property
    def is_sample(self) -> bool:
        return True

    @property
    def weights(self) -> Float[Tensor, "b k"]:
        """Weights of the elements, ``[b, K]``, with sum one."""
        return self.importance.weights

    @property
    def effective_sample_size(self) -> Float[Tensor, " b"]:
        """Number of independent draws of the posterior that would be as good: of the draws weighted, at most K."""
        return self.importance.effective_sample_size

    @property
    def log_evidence(self) -> Float[Tensor, " b"]:
        """Logarithm of the integral of :math:`p_0 e^{-E / T}`, for the measure of base distributions.

        That is left Haar measure of total mass one on compact groups, else the one that is Lebesgue measure of the
        algebra at the identity; see `trivgeo.generative.distributions.GroupDistribution`.
        """
        return self.importance.log_evidence

    def __repr__(self) -> str:
        """Sizes, counts and trust."""
        data, size = self.energies.shape
        ess = self.effective_sample_size
        sizes = f"{float(ess.min()):.3g} to {float(ess.max()):.3g}" if data else "none"
        return (
            f"PosteriorSample({data} data, {size} weighted elements each, of {self.group!r}; "
            f"effective sample size {sizes}; "
            f"{int(self.trusted.sum())} trusted; "
            f"for each {self.energy_evaluations} energies, {self.gradient_evaluations} gradients, "
            f"{self.network_evaluations} networks)"
        )

    def modes(self, radius: float = 0.3) -> PosteriorModes:
        r"""Return the modes of the posterior, with their weights and the standard errors of the weights.

        The standard errors are those of importance sampling, :math:`(\sum_k w_k^2 (1_m(k) - \pi_m)^2)^{1/2}`. They do
        not account for modes that were not found.
        """
        used = self.weights > 0.0
        return modes_of(
            self.group, self.elements, used, radius, weights=self.weights, effective_size=self.effective_sample_size
        )

    def averaging_weights(self) -> Float[Tensor, "b k"]:
        return self.weights


@dataclass(frozen=True, repr=False, kw_only=True)
class WeightedPopulation(CheckedPopulation):
    """Population that is a weighted sample of the posterior; an inverter that ends with one returns a
    `PosteriorSample`.

    Elements that a later stage moves or chooses are no longer such a sample: they are a `Population` without weights.

    Attributes:
        checks: the weights, and the verdicts on the sample. All other attributes (``elements``, ``num_masked_steps``,
            ``energies``, ``time``) are those of `Population`.
    """

    checks: ImportanceWeights

    def result(self, posterior: ConditionalPosterior) -> PosteriorSample:
        return PosteriorSample(**vars(self.unchecked().result(posterior)), checks=self.checks)
