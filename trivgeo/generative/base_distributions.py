"""Base distributions, at which a flow ends: with samples, and densities in closed form."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._autocast import matmul
from trivgeo._random import choice, integers, normal, permutation
from trivgeo._signatures import check_calls
from trivgeo.checks import check_count, check_positive, promoted
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.generative.measure import sum_over_compact
from trivgeo.groups import DirectProduct, LieGroup
from trivgeo.groups.harmonic import log_haar_volume
from trivgeo.groups.product import scaled_factors
from trivgeo.sde.noise.kernel import is_principal, log_about

__all__ = [
    "BaseDistribution",
    "EmpiricalDistribution",
    "HaarDistribution",
    "MixtureDistribution",
    "NormalDistribution",
    "factor_log_densities",
    "fit_base_distribution",
]

_NUM_MASS_DRAWS = 20_000
_NUM_EM_ROUNDS = 50


class BaseDistribution(nn.Module, ABC):
    """A distribution on a group.

    Densities are for left Haar measure: of total mass one on compact groups, else the one that is Lebesgue measure of
    the algebra, in the basis of the group, at the identity; factor by factor of a `DirectProduct` that is not compact,
    unless its scale mixes the factors.
    """

    @abstractmethod
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw independent elements, ``[num_samples, *element_shape]``.

        Args:
            num_samples: number of elements.
            generator: random numbers; ``None`` is torch's.
        """

    @abstractmethod
    def log_density(self, g: Tensor) -> Float[Tensor, "*batch"]:
        """Return the log-density at elements g, ``[*batch, *element_shape]``, as ``[*batch]``; -inf outside of the
        support.
        """


class HaarDistribution(BaseDistribution):
    """The uniform distribution on a compact group.

    Args:
        group: a compact group.

    Raises:
        ConfigurationError: the group is not known to be compact.
    """

    def __init__(self, group: LieGroup) -> None:
        super().__init__()
        if not group.is_compact:
            raise ConfigurationError(f"group: expected a compact one, got {group!r}")
        self.group = group
        self.register_buffer("reference", torch.zeros(()), persistent=False)  # dtype and device of the samples
        self.reference: Tensor

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw independent uniform elements by `LieGroup.random_haar`, ``[num_samples, *element_shape]``."""
        dtype, device = self.reference.dtype, self.reference.device
        return self.group.random_haar(num_samples, generator=generator, dtype=dtype, device=device)

    def log_density(self, g: Tensor) -> Tensor:
        return g.new_zeros(self.group.batch_shape(g))


class NormalDistribution(BaseDistribution):
    r"""The distribution of :math:`c \exp v` with v normal, conditioned on v being the logarithm of exp v.

    .. math:: \log p(g) = \log N(v; m, F F^T) - \log |\det J_r(v)| - \log Z + \log \mathrm{vol},
        \quad v = \log(c^{-1} g)

    Z is the probability of the condition, estimated by 20,000 draws with a fixed seed; one on groups whose exponential
    is one to one. vol is the volume of the compact factors, see `log_haar_volume`: 8 pi^2 on SO(3). Elements without a
    logarithm have no density: on groups with such elements, keep the distribution narrow.

    Args:
        group: the group of the elements.
        centre: c, ``[*element_shape]``.
        mean: m, ``[dim]``.
        factor: F, lower triangular, ``[dim, dim]``.

    Raises:
        ShapeError: an argument has another shape.
        DomainError: F is not lower triangular with a positive diagonal, or none of the draws is the logarithm of its
            exponential.
        ConfigurationError: the group is compact, or has a compact factor, whose volume is not known, see
            `log_haar_volume`.
    """

    def __init__(
        self, group: LieGroup, centre: Tensor, mean: Float[Tensor, " n"], factor: Float[Tensor, "n n"]
    ) -> None:
        super().__init__()
        group.check_elements(centre, "centre")
        if mean.shape != (group.dim,):
            raise ShapeError(f"mean: expected an algebra vector [{group.dim}], got {list(mean.shape)}")
        if factor.shape != (group.dim, group.dim):
            raise ShapeError(f"factor: expected a matrix [{group.dim}, {group.dim}], got {list(factor.shape)}")
        if not bool((factor.diagonal() > 0.0).all()) or bool(factor.triu(1).any()):
            raise DomainError(
                "factor: expected a lower triangular matrix with a positive diagonal, such as the cholesky factor of a "
                f"covariance, got {factor.tolist()}"
            )
        centre, mean, factor = promoted(centre=centre, mean=mean, factor=factor)
        self.group = group
        self._log_volume = sum_over_compact(group, log_haar_volume)
        for name, value in (("centre", centre), ("mean", mean), ("factor", factor)):
            self.register_buffer(name, value.detach().clone())
        self.centre: Tensor
        self.mean: Tensor
        self.factor: Tensor
        self.register_buffer("log_mass", torch.zeros((), dtype=mean.dtype, device=mean.device))
        self.log_mass: Tensor
        generator = torch.Generator().manual_seed(0)  # the same on every device
        accepted = len(self._accepted(_NUM_MASS_DRAWS, generator))
        if not accepted:
            raise DomainError(
                "factor: expected a law of vectors that are logarithms, v = log(exp(v)), got none in "
                f"{_NUM_MASS_DRAWS} draws"
            )
        self.log_mass.fill_(math.log(accepted / _NUM_MASS_DRAWS))

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw independent elements, ``[num_samples, *element_shape]``, by rejection of vectors outside of the
        support.
        """
        check_count("num_samples", num_samples, 0)
        found = self._accepted(num_samples, generator)
        while len(found) < num_samples:
            found = torch.cat([found, self._accepted(num_samples, generator)])
        return self.group.retract(self.centre, found[:num_samples])

    def log_density(self, g: Tensor) -> Tensor:
        """Return the log-density of the logarithm, corrected by the derivative of the exponential."""
        v, volume = log_about(self.group, self.centre, g)
        return _normal_log_density(v, self.mean, self.factor) - self.log_mass - volume + self._log_volume

    def _accepted(self, num_draws: int, generator: torch.Generator | None) -> Tensor:
        """Draw normal vectors, and keep the ones that are logarithms of their exponentials."""
        v = self.mean + matmul(normal((num_draws, self.group.dim), self.mean, generator), self.factor.mT)
        return v[is_principal(v, self.group.log(self.group.exp(v)))]


class MixtureDistribution(BaseDistribution):
    r"""The mixture :math:`\sum_k w_k p_k` of distributions on the same group.

    Args:
        components: the distributions p_k.
        weights: the probabilities w_k, positive, of sum one, ``[K]``.

    Attributes:
        group: the group of the first component; ``None`` if that does not say.

    Raises:
        ShapeError: there are not as many weights as components, or none.
        DomainError: the weights are no probabilities.
    """

    def __init__(self, components: Sequence[BaseDistribution], weights: Float[Tensor, " K"]) -> None:
        super().__init__()
        if not components or weights.shape != (len(components),):
            raise ShapeError(
                f"weights: expected one for each of {len(components)} components, got {list(weights.shape)}"
            )
        if not bool((weights > 0.0).all()) or abs(float(weights.sum()) - 1.0) > 1e-4:
            raise DomainError(f"weights: expected positive numbers of sum one, got {weights.tolist()}")
        self.group: LieGroup | None = getattr(components[0], "group", None)
        self.laws = nn.ModuleList(components)  # the name is that of the file format
        self.register_buffer("weights", weights.detach().clone())
        self.weights: Tensor

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw independent elements, ``[num_samples, *element_shape]``: each from a component that is drawn by its
        weight.
        """
        check_count("num_samples", num_samples, 0)
        counts = (
            choice(self.weights.unsqueeze(0), num_samples, generator)[0].bincount(minlength=len(self.laws)).tolist()
        )
        g = torch.cat(
            [law.sample(count, generator) for law, count in zip(_distributions(self.laws), counts, strict=True)]
        )
        return g[permutation((num_samples,), self.weights, generator)]

    def log_density(self, g: Tensor) -> Tensor:
        """Return the logarithm of the weighted sum of the densities of all components."""
        each = torch.stack([law.log_density(g) for law in _distributions(self.laws)], -1)
        return (each + self.weights.log()).logsumexp(-1)


class EmpiricalDistribution(BaseDistribution):
    """Uniform distribution on the elements of a sample: the source of a `Bridge`. It has no density.

    Args:
        group: the group of the elements.
        elements: the sample ``[m, *element_shape]``.

    Raises:
        ShapeError: there are no elements, or not one batch dimension.
    """

    def __init__(self, group: LieGroup, elements: Tensor) -> None:
        super().__init__()
        elements = group.check_elements(elements, "elements")
        if len(group.batch_shape(elements)) != 1 or not len(elements):
            raise ShapeError(f"elements: expected some [m, ...], got {list(elements.shape)}")
        self.register_buffer("elements", elements.detach().clone())
        self.elements: Tensor

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        check_count("num_samples", num_samples, 0)
        return self.elements[integers(len(self.elements), (num_samples,), self.elements, generator)]

    def log_density(self, g: Tensor) -> Tensor:
        """Refuse to evaluate elements g, for the distribution of a sample has no density.

        Args:


        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            "log_prob: expected a model from a base distribution, got a bridge from a sample, which has no density"
        )


class _ProductDistribution(BaseDistribution):
    """Independent distributions on the factors of a product."""

    def __init__(self, group: DirectProduct, laws: list[BaseDistribution]) -> None:
        super().__init__()
        self.group, self.laws = group, nn.ModuleList(laws)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        return self.group.join(*(law.sample(num_samples, generator) for law in _distributions(self.laws)))

    def log_density(self, g: Tensor) -> Tensor:
        return torch.stack(self.of_factors(g)).sum(0)

    def of_factors(self, g: Tensor) -> list[Tensor]:
        """The log-densities of the factors, each ``[*batch]``."""
        parts = zip(_distributions(self.laws), self.group.split(g), strict=True)
        return [law.log_density(part) for law, part in parts]


def factor_log_densities(base: BaseDistribution, g: Tensor) -> Float[Tensor, "*batch m"]:
    """Log-densities of the factors of elements g, for a base distribution that `fit_base_distribution` makes.

    Args:
        base: independent distributions on the m factors of a product that is not compact.
        g: elements ``[*batch, *element_shape]``.

    Raises:
        ConfigurationError: the distribution is another.
    """
    if not isinstance(base, _ProductDistribution):
        raise ConfigurationError(f"base: expected independent factors, got {type(base).__name__}")
    return torch.stack(base.of_factors(g), -1)


def _distributions(modules: nn.ModuleList) -> list[BaseDistribution]:
    """The distributions of a module list, with their type."""
    return [law for law in modules if isinstance(law, BaseDistribution)]


def fit_base_distribution(
    group: LieGroup, samples: Tensor, widen: float = 1.0, num_components: int = 1
) -> BaseDistribution:
    """Fit a base distribution: uniform (Haar) on compact factors of a group, normal or a mixture on other factors.

    Args:
        group: the group of the elements.
        samples: elements ``[m, *element_shape]``; a normal distribution has their mean and covariance, in logarithms
            about their `group_mean`.
        widen: factor on the standard deviations of normal distributions.
        num_components: number of normal components of a `MixtureDistribution`, fitted by expectation-maximization.
            Each has logarithms about its own centre, which helps with long tails and with missing logarithms.

    Raises:
        ShapeError: there are fewer than two samples, or fewer than components, or they are not elements of the group.
        ConfigurationError: ``num_components`` is less than one, ``widen`` is not positive, or the samples are in half
            precision.
        DomainError: the logarithms have no finite covariance: they do not exist, or are too large.
        NonFiniteError: the samples hold NaN or infinity.
    """
    group.check_elements(samples, "samples")
    check_count("num_components", num_components)
    check_positive("widen", widen)
    if len(group.batch_shape(samples)) != 1 or len(samples) < max(2, num_components):
        expected = f"at least {max(2, num_components)} elements [m, ...]"
        raise ShapeError(f"samples: expected {expected}, got {list(samples.shape)}")
    if torch.finfo(samples.dtype).bits < 32:
        raise ConfigurationError(f"samples: expected float32 or float64, got {samples.dtype}")
    if not bool(torch.isfinite(samples).all()):
        raise NonFiniteError("samples: expected finite numbers, got NaN or infinity")
    if group.is_compact:
        return HaarDistribution(group).to(samples)
    if isinstance(group, DirectProduct) and (factors := scaled_factors(group)):
        parts = zip(factors, group.split(samples), strict=True)
        return _ProductDistribution(
            group, [fit_base_distribution(factor, part, widen, num_components) for factor, part in parts]
        )
    if num_components > 1:
        return _fit_mixture(group, samples, widen, num_components)
    centre, v = group_mean(group, samples)
    if len(v) < 2:
        raise DomainError(f"samples: expected elements that have logarithms, got {len(v)} of them")
    factor = widen * _factor(torch.atleast_2d(torch.cov(v.double().mT)))
    return NormalDistribution(group, centre, v.mean(0), factor.to(v))


def _fit_mixture(group: LieGroup, samples: Tensor, widen: float, num_components: int) -> MixtureDistribution:
    """Fit by expectation-maximization with fixed centres, so that logarithms about them are taken once."""
    order = permutation((len(samples),), samples, torch.Generator().manual_seed(0))
    logs, centres = [], []
    for _ in range(num_components):
        centres.append(samples[order[0]])
        logs.append(log_about(group, centres[-1], samples))
        missing = torch.stack([volume for _, volume in logs]).isinf().all(0)[order]
        order = torch.cat([order[missing], order[~missing][1:]])  # next centres among samples without a logarithm yet
    v, volumes = (torch.stack(x).double() for x in zip(*logs, strict=True))  # [K, m, n], [K, m]
    # initial responsibilities: the samples nearest to each centre
    nearest = v.square().sum(-1).masked_fill(volumes.isinf(), math.inf)
    shares = (nearest <= nearest.kthvalue(len(samples) // num_components, -1, keepdim=True).values).double()
    for _ in range(_NUM_EM_ROUNDS):
        counts = shares.sum(-1, keepdim=True).clamp(min=1e-6)
        means = (shares.unsqueeze(-1) * v).sum(-2) / counts
        away = v - means.unsqueeze(-2)
        factors = _factor((shares.unsqueeze(-1) * away).mT @ away / counts.unsqueeze(-1))
        weights = counts.squeeze(-1) / counts.sum()
        each = _normal_log_density(v, means.unsqueeze(-2), factors) - volumes + weights.log().unsqueeze(-1)
        shares = each.softmax(0).nan_to_num(0.0)  # samples without a logarithm about any centre
    parameters = zip(centres, means.to(samples), (widen * factors).to(samples), strict=True)
    fitted = [NormalDistribution(group, *values) for values in parameters]
    return MixtureDistribution(fitted, weights.to(samples))


def _factor(covariance: Float[Tensor, "*b n n"]) -> Float[Tensor, "*b n n"]:
    """Cholesky factor of a covariance, with a small ridge: samples may span fewer dimensions than the group has."""
    ridge = 1e-6 * covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-12)
    unit = torch.eye(covariance.shape[-1]).to(covariance)
    factor, fault = torch.linalg.cholesky_ex(covariance + ridge[..., None, None] * unit)
    if bool(fault.any()) or not bool(torch.isfinite(factor).all()):
        raise DomainError("samples: expected elements whose logarithms have a finite covariance matrix")
    return factor


def _normal_log_density(v: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """Log-density of the normal distribution at rows of vectors."""
    n, mean, factor = v.shape[-1], mean.to(v), factor.to(v)
    inverse = torch.linalg.solve_triangular(factor, torch.eye(n).to(factor), upper=False)
    squares = matmul(v - mean, inverse.mT).square().sum(-1)
    size = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True) + 0.5 * n * math.log(2.0 * math.pi)
    return -0.5 * squares - (size if factor.ndim > 2 else size.squeeze(-1))


def group_mean(group: LieGroup, samples: Tensor, num_rounds: int = 5) -> tuple[Tensor, Float[Tensor, "m n"]]:
    r"""The element about which logarithms of samples have mean zero, and those logarithms that exist, ``[m, dim]``.

    Fixed-point iteration :math:`c \leftarrow c \exp(\overline{\log(c^{-1} g)})` (Pennec and Arsigny 2013).
    """
    centre = samples[0]
    v = samples.new_zeros(0)
    for _ in range(num_rounds):
        v = group.log(group.compose(group.inverse(centre), samples))
        v = v[torch.isfinite(v).all(-1)]
        centre = group.retract(centre, v.mean(0))
    v = group.log(group.compose(group.inverse(centre), samples))
    return centre, v[torch.isfinite(v).all(-1)]


check_calls(__name__, __all__)
