"""Fits of a distribution on a group to samples: uniform, normal, or a mixture of normal distributions."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import permutation
from trivgeo.checks import check_count, check_positive, checked
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.generative.distributions import (
    GroupDistribution,
    HaarDistribution,
    MixtureDistribution,
    NormalDistribution,
    ProductDistribution,
    normal_log_density,
)
from trivgeo.groups import DirectProduct, LieGroup
from trivgeo.groups.product import scaled_factors
from trivgeo.sde.noise.kernel import log_about

_NUM_EM_ROUNDS = 50


@checked
def fit_base_distribution(
    group: LieGroup, samples: Tensor, widen: float = 1.0, num_components: int = 1
) -> GroupDistribution:
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
        return ProductDistribution(
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
    # initial responsibilities: each centre takes the samples nearest to it
    nearest = v.square().sum(-1).masked_fill(volumes.isinf(), math.inf)
    shares = (nearest <= nearest.kthvalue(len(samples) // num_components, -1, keepdim=True).values).double()
    for _ in range(_NUM_EM_ROUNDS):
        counts = shares.sum(-1, keepdim=True).clamp(min=1e-6)
        means = (shares.unsqueeze(-1) * v).sum(-2) / counts
        away = v - means.unsqueeze(-2)
        factors = _factor((shares.unsqueeze(-1) * away).mT @ away / counts.unsqueeze(-1))
        weights = counts.squeeze(-1) / counts.sum()
        each = normal_log_density(v, means.unsqueeze(-2), factors) - volumes + weights.log().unsqueeze(-1)
        shares = each.softmax(0).nan_to_num(0.0)  # zero for samples without a logarithm about any centre
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
