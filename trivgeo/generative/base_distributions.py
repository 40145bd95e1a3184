"""Laws that a flow may end at: they can be drawn from, and their density is known."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import singledispatch

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._random import choice, normal, permutation
from trivgeo.checks import check_count, check_positive, promoted
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import SO, SU, DirectProduct, LieGroup, Torus, U
from trivgeo.sde.noise.density import log_volume

__all__ = [
    "BaseDistribution",
    "HaarDistribution",
    "MixtureDistribution",
    "NormalDistribution",
    "fit_base_distribution",
    "group_mean",
    "is_isotropic",
    "log_angles",
    "over_compact",
    "scaled_factors",
]

_TRIES = 20_000
_ROUNDS = 50  # of expectation-maximization


class BaseDistribution(nn.Module, ABC):
    """A law on a group. Densities are for left Haar measure: of total mass one on compact groups, else that which is
    Lebesgue measure of the algebra, in the basis of the group, at the identity; factor by factor of a `DirectProduct`
    that is not compact, unless its scale joins the factors.
    """

    @abstractmethod
    def sample(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent elements, ``[number, *element_shape]``."""

    @abstractmethod
    def log_density(self, g: Tensor) -> Float[Tensor, "*batch"]:
        """At elements ``[*batch, *element_shape]``; minus infinity outside of the support."""


class HaarDistribution(BaseDistribution):
    """The uniform law of a compact group.

    Args:
        group: see `TrivializedSDE`; a compact one.

    Raises:
        ConfigurationError: it is not known to be compact.
    """

    def __init__(self, group: LieGroup) -> None:
        super().__init__()
        if not group.is_compact:
            raise ConfigurationError(f"group: expected a compact one, got {group!r}")
        self._group = group
        self.register_buffer("like", torch.zeros(()), persistent=False)
        self.like: Tensor

    def sample(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        """By `LieGroup.random_haar`."""
        return self._group.random_haar(number, generator=generator, dtype=self.like.dtype, device=self.like.device)

    def log_density(self, g: Tensor) -> Tensor:
        """Zero."""
        return g.new_zeros(self._group.batch_shape(g))


class NormalDistribution(BaseDistribution):
    r"""The law of :math:`c \exp v` with v normal, given that v is the logarithm of exp v.

    .. math:: \log p(g) = \log N(v; m, F F^T) - \log |\det J_r(v)| - \log Z + \log \mathrm{vol},
        \quad v = \log(c^{-1} g)

    Z is the probability of the condition, counted among 20,000 draws with a fixed seed; one on groups whose exponential
    is one to one. vol is the volume of what is compact, see `BaseDistribution`: 8 pi^2 on SO(3). Elements without a
    logarithm have no density: on groups that have such, keep the law narrow.

    Args:
        group: see `TrivializedSDE`.
        centre: c, ``[*element_shape]``.
        mean: m, ``[dim]``.
        factor: F, lower triangular, ``[dim, dim]``.

    Raises:
        ShapeError: an argument has another shape.
        DomainError: F is not lower triangular with a positive diagonal, or none of the draws is the logarithm of its
            exponential.
        ConfigurationError: the group is a compact one, or has such a factor, of another kind than `SO`, `SU`, `U`,
            `Torus` and their products, so that its volume is not known.
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
        self._group = group
        self._log_volume = over_compact(group, _log_total_mass)
        for name, value in (("centre", centre), ("mean", mean), ("factor", factor)):
            self.register_buffer(name, value.detach().clone())
        self.centre: Tensor
        self.mean: Tensor
        self.factor: Tensor
        self.register_buffer("log_mass", torch.zeros((), dtype=mean.dtype, device=mean.device))
        self.log_mass: Tensor
        generator = torch.Generator(mean.device).manual_seed(0)
        accepted = len(self._accepted(_TRIES, generator))
        if not accepted:
            raise DomainError(
                f"factor: expected a law of vectors that are logarithms of their exponentials, got none in {_TRIES}"
            )
        self.log_mass.fill_(math.log(accepted / _TRIES))

    def sample(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        """By rejection."""
        check_count("number", number, 0)
        found = self._accepted(number, generator)
        while len(found) < number:
            found = torch.cat([found, self._accepted(number, generator)])
        return self._group.retract(self.centre, found[:number])

    def log_density(self, g: Tensor) -> Tensor:
        """By the logarithm and its derivative."""
        v, volume = _seen_from(self._group, self.centre, g)
        return _normal_log_density(v, self.mean, self.factor) - self.log_mass - volume + self._log_volume

    def _accepted(self, number: int, generator: torch.Generator | None) -> Tensor:
        v = self.mean + normal((number, self._group.dim), self.mean, generator) @ self.factor.mT
        back = self._group.log(self._group.exp(v))
        bound = torch.finfo(v.dtype).eps ** 0.4 * (1.0 + v.abs().amax(-1))
        return v[(back - v).abs().amax(-1) < bound]


class MixtureDistribution(BaseDistribution):
    r"""The law :math:`\sum_k w_k p_k` of one of some laws on the same group, taken by chance.

    Args:
        laws: the laws p_k.
        weights: the chances w_k, positive, of sum one, ``[K]``.

    Raises:
        ShapeError: there are not as many weights as laws, or none.
        DomainError: the weights are no chances.
    """

    def __init__(self, laws: Sequence[BaseDistribution], weights: Float[Tensor, " K"]) -> None:
        super().__init__()
        if not laws or weights.shape != (len(laws),):
            raise ShapeError(f"weights: expected one for each of {len(laws)} laws, got {list(weights.shape)}")
        if not bool((weights > 0.0).all()) or abs(float(weights.sum()) - 1.0) > 1e-4:
            raise DomainError(f"weights: expected positive numbers of sum one, got {weights.tolist()}")
        self.laws = nn.ModuleList(laws)
        self.register_buffer("weights", weights.detach().clone())
        self.weights: Tensor

    def sample(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        """As many of each as chance has it, in random order."""
        check_count("number", number, 0)
        counts = choice(self.weights.unsqueeze(0), number, generator)[0].bincount(minlength=len(self.laws)).tolist()
        g = torch.cat([law.sample(count, generator) for law, count in zip(_laws_of(self.laws), counts, strict=True)])
        return g[permutation((number,), self.weights, generator)]

    def log_density(self, g: Tensor) -> Tensor:
        """By the densities of all."""
        each = torch.stack([law.log_density(g) for law in _laws_of(self.laws)], -1)
        return (each + self.weights.log()).logsumexp(-1)


class _ProductDistribution(BaseDistribution):
    """Independent factors of a product."""

    def __init__(self, group: DirectProduct, laws: list[BaseDistribution]) -> None:
        super().__init__()
        self._group, self.laws = group, nn.ModuleList(laws)

    def sample(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        return self._group.join(*(law.sample(number, generator) for law in _laws_of(self.laws)))

    def log_density(self, g: Tensor) -> Tensor:
        parts = zip(_laws_of(self.laws), self._group.split(g), strict=True)
        return torch.stack([law.log_density(part) for law, part in parts]).sum(0)


def _laws_of(modules: nn.ModuleList) -> list[BaseDistribution]:
    """What a list of modules holds, by its type."""
    return [law for law in modules if isinstance(law, BaseDistribution)]


def fit_base_distribution(
    group: LieGroup, samples: Tensor, widen: float = 1.0, components: int = 1
) -> BaseDistribution:
    """The Haar law of what is compact of a group, and a normal one, or a mixture, fitted to samples on the rest.

    Args:
        group: see `TrivializedSDE`.
        samples: elements ``[m, *element_shape]``; a normal law has their mean and covariance, in logarithms about
            their `group_mean`.
        widen: factor on the standard deviations of normal laws.
        components: normal laws of a `MixtureDistribution`, each in logarithms about an element of its own, by
            expectation-maximization from these: for laws with long tails, and on groups where some elements have no
            logarithm.

    Raises:
        ShapeError: there are fewer than two samples, or than components, or they are no elements.
        ConfigurationError: ``components`` is less than one, ``widen`` not positive, or the samples in half precision.
        DomainError: their logarithms have no covariance: there are none, or they are too large.
        NonFiniteError: the samples hold NaN or infinity.
    """
    group.check_elements(samples, "samples")
    check_count("components", components)
    check_positive("widen", widen)
    if len(group.batch_shape(samples)) != 1 or len(samples) < max(2, components):
        expected = f"at least {max(2, components)} elements [m, ...]"
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
            group, [fit_base_distribution(factor, part, widen, components) for factor, part in parts]
        )
    if components > 1:
        return _fit_mixture(group, samples, widen, components)
    centre, v = group_mean(group, samples)
    if len(v) < 2:
        raise DomainError(f"samples: expected elements that have logarithms, got {len(v)} of them")
    factor = widen * _factor(torch.atleast_2d(torch.cov(v.double().mT)))
    return NormalDistribution(group, centre, v.mean(0), factor.to(v))


def scaled_factors(group: DirectProduct) -> list[LieGroup]:
    """The factors, each with its part of the scale; none where the scale joins them."""
    if group.scale.ndim > 1:
        return []
    scales = group.scale.split([factor.dim for factor in group.factors])
    return [factor.with_scale(scale) for factor, scale in zip(group.factors, scales, strict=True)]


def is_isotropic(group: LieGroup) -> bool:
    """Whether the basis is the natural one, turned, or a multiple of it."""
    axes = torch.linalg.svdvals(group.basis.rows)
    return bool(axes[0] - axes[-1] <= 1e-9 * axes[0])


def over_compact(group: LieGroup, log_size: Callable[[LieGroup], float]) -> float:
    """The sum of a logarithm over what is compact of a group, for the measure of `BaseDistribution`."""
    if group.is_compact:
        return log_size(group)
    factors = scaled_factors(group) if isinstance(group, DirectProduct) else []
    return math.fsum(over_compact(factor, log_size) for factor in factors)


def log_angles(group: LieGroup) -> float:
    r"""Of the turns of the angles of a compact group: of :math:`d\theta_1 \dots d\theta_n` on a torus, else zero."""
    periods = torch.tensor(group.fingerprint()["periods"], dtype=torch.float64)
    return float(periods[periods > 0].log().sum())


def _log_total_mass(group: LieGroup) -> float:
    """Of Haar measure that is Lebesgue measure of the algebra of a compact group, in its basis, at the identity."""
    return _log_natural_mass(group) - float(torch.linalg.slogdet(group.basis.rows).logabsdet)


@singledispatch
def _log_natural_mass(group: LieGroup) -> float:
    """The same in the natural basis."""
    raise ConfigurationError(f"group: expected SO, SU, U, Torus or a product, whose volume is known, got {group!r}")


@_log_natural_mass.register
def _(group: Torus) -> float:
    return group.dim * math.log(2.0 * math.pi)


@_log_natural_mass.register
def _(group: SO) -> float:
    """A sphere of each dimension below n, in a basis that acts on them by unit vectors."""
    return _log_spheres(range(2, group.size + 1))


@_log_natural_mass.register
def _(group: SU) -> float:
    return _log_special_unitary(group.size)


@_log_natural_mass.register
def _(group: U) -> float:
    """Determinant one, and multiples of the unit matrix, of which these hold n each."""
    n = group.size
    return _log_special_unitary(n) + math.log(2.0 * math.pi * math.sqrt(0.5 * n) / n)


@_log_natural_mass.register
def _(group: DirectProduct) -> float:
    return math.fsum(map(_log_natural_mass, group.factors))


def _log_special_unitary(n: int) -> float:
    r"""Spheres of dimension 2 k - 1: one direction of each is longer, by :math:`\sqrt{2 (k - 1) / k}`."""
    stretch = 0.5 * math.fsum(math.log(2.0 * (k - 1) / k) for k in range(2, n + 1))
    return _log_spheres(range(4, 2 * n + 1, 2)) - stretch


def _log_spheres(dims: Iterable[int]) -> float:
    """Of the surfaces of unit balls of these dimensions."""
    return math.fsum(math.log(2.0) + 0.5 * k * math.log(math.pi) - math.lgamma(0.5 * k) for k in dims)


def _fit_mixture(group: LieGroup, samples: Tensor, widen: float, components: int) -> MixtureDistribution:
    """By expectation-maximization; logarithms about the centres, which stay, are taken once."""
    order = permutation((len(samples),), samples, torch.Generator(samples.device).manual_seed(0))
    seen, centres = [], []
    for _ in range(components):
        centres.append(samples[order[0]])
        seen.append(_seen_from(group, centres[-1], samples))
        unseen = torch.stack([volume for _, volume in seen]).isinf().all(0)[order]
        order = torch.cat([order[unseen], order[~unseen][1:]])  # the next one where there was no logarithm yet
    v, volumes = (torch.stack(x).double() for x in zip(*seen, strict=True))  # [K, m, n], [K, m]
    # from the samples nearest to each centre
    nearest = v.square().sum(-1).masked_fill(volumes.isinf(), math.inf)
    shares = (nearest <= nearest.kthvalue(len(samples) // components, -1, keepdim=True).values).double()
    for _ in range(_ROUNDS):
        counts = shares.sum(-1, keepdim=True).clamp(min=1e-6)
        means = (shares.unsqueeze(-1) * v).sum(-2) / counts
        away = v - means.unsqueeze(-2)
        factors = _factor((shares.unsqueeze(-1) * away).mT @ away / counts.unsqueeze(-1))
        weights = counts.squeeze(-1) / counts.sum()
        each = _normal_log_density(v, means.unsqueeze(-2), factors) - volumes + weights.log().unsqueeze(-1)
        shares = each.softmax(0).nan_to_num(0.0)  # seen from no centre
    laws = [
        NormalDistribution(group, *law)
        for law in zip(centres, means.to(samples), (widen * factors).to(samples), strict=True)
    ]
    return MixtureDistribution(laws, weights.to(samples))


def _factor(covariance: Float[Tensor, "*b n n"]) -> Float[Tensor, "*b n n"]:
    """A triangular square root; samples may span fewer dimensions than the group has."""
    ridge = 1e-6 * covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-12)
    unit = torch.eye(covariance.shape[-1]).to(covariance)
    factor, fault = torch.linalg.cholesky_ex(covariance + ridge[..., None, None] * unit)
    if bool(fault.any()) or not bool(torch.isfinite(factor).all()):
        raise DomainError("samples: expected elements whose logarithms have a covariance, got some that are none")
    return factor


def _seen_from(group: LieGroup, centre: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    r"""The logarithm v about a centre, and :math:`\log |\det J_r(v)|`; zero and infinity where there is none."""
    v = group.log(group.compose(group.inverse(centre), g))
    found = torch.isfinite(v).all(-1)
    v = torch.where(found.unsqueeze(-1), v, 0.0)
    return v, torch.where(found, log_volume(group, v), torch.inf)


def _normal_log_density(v: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """Of rows of vectors."""
    n, mean, factor = v.shape[-1], mean.to(v), factor.to(v)
    inverse = torch.linalg.solve_triangular(factor, torch.eye(n).to(factor), upper=False)
    squares = ((v - mean) @ inverse.mT).square().sum(-1)
    size = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True) + 0.5 * n * math.log(2.0 * math.pi)
    return -0.5 * squares - (size if factor.ndim > 2 else size.squeeze(-1))


def group_mean(group: LieGroup, samples: Tensor, rounds: int = 5) -> tuple[Tensor, Float[Tensor, "m n"]]:
    r"""The element about which logarithms of samples have mean zero, and these, ``[m, dim]``, where there are any.

    By :math:`c \leftarrow c \exp(\overline{\log(c^{-1} g)})` (Pennec and Arsigny 2013).
    """
    centre = samples[0]
    v = samples.new_zeros(0)
    for _ in range(rounds):
        v = group.log(group.compose(group.inverse(centre), samples))
        v = v[torch.isfinite(v).all(-1)]
        centre = group.retract(centre, v.mean(0))
    v = group.log(group.compose(group.inverse(centre), samples))
    return centre, v[torch.isfinite(v).all(-1)]
