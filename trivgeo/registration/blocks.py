"""Covariances and checks of estimates from sums over blocks of data, which hold where residuals are correlated."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from trivgeo.registration.record import UNKNOWN_STD

LEAST_STD = 1e-8  # standard deviation beyond which steps are not followed, in units of the basis
_MIN_COMPONENT = 0.05  # component of a free direction, a unit vector, below which it is taken for noise
_MIN_SPREAD = 0.1  # least variance of the scores in a direction, in units of the mean
_NUMBER_PER_DIRECTION = 10.0  # number of independent sums, for each direction, of which half of the shape is believed
_REGION = 0.9  # probability of the regions that hold the truth whatever the number of independent sets
_MIN_FREEDOM = 4.0  # degrees of freedom of a factor
_LEAST_VARIANCE = 1e-6  # relative variance of a factor that is as good as known
MIN_SHARED_CURVATURE = 0.1  # share of the curvature of one datum that the other has, too, in a direction that is known
_MIN_NOISE_STDS = 6.0  # shared curvature in a direction that is known, in standard deviations of that of noise alone
# standard deviation of the curvature that two independent noises share in a block, in units of that of the residuals
_SHARED_NOISE_PER_BLOCK = 0.25


class BlockSums(NamedTuple):
    r"""Sums over k blocks of data at an estimate: parts of equations :math:`\sum_b s_b(v) = 0` for v in R^n.

    Attributes:
        scores: s_b, ``[k, n]``.
        descent: positive curvature for steps to the solution, ``[k, n, n]``.
        shared: curvature that both data share: minus the derivative of the expected s_b, ``[k, n, n]``. Noise of one
            datum that the other does not have adds nothing to it on average.
        own: curvature of one datum, with its noise, ``[k, n, n]``.
        noise: curvature of the residuals, ``[k, n, n]``.
        alone: sum of products of the scores of each residual with themselves, ``[n, n]``.
        around: sum of products of the scores of each residual with those that it is correlated with, ``[n, n]``.
        number: number of sets of residuals that are not correlated with each other.
        variance: relative variance of the ratio of ``around`` to ``alone``, by the curvature of neighbours.
    """

    scores: Float[Tensor, "k n"]
    descent: Float[Tensor, "k n n"]
    shared: Float[Tensor, "k n n"]
    own: Float[Tensor, "k n n"]
    noise: Float[Tensor, "k n n"]
    alone: Float[Tensor, "n n"]
    around: Float[Tensor, "n n"]
    number: float
    variance: float


class BlockEstimate(NamedTuple):
    """What sums over blocks say of v.

    Attributes:
        step: the step to the solution of the equations, none in free directions, ``[n]``.
        covariance: the covariance of the solution, ``[n, n]``; variance ``UNKNOWN_STD^2`` in free directions.
        free: directions that the data do not determine, unit vectors ``[m, n]``.
    """

    step: Float[Tensor, " n"]
    covariance: Float[Tensor, "n n"]
    free: Float[Tensor, "m n"]


def block_estimate(sums: BlockSums, least_std: float, least_share: float = MIN_SHARED_CURVATURE) -> BlockEstimate:
    r"""Solve linearised equations, with the sandwich covariance :math:`A^{-1} B A^{-1}` (Huber 1967; White 1982).

    A is the shared curvature and B the covariance of the sum of the scores. A direction is free where A is less than a
    share of the curvature of one datum, or than noise alone may give: noise that has nothing in common with that of the
    other datum makes the curvature of one datum as large as one likes, and the shared one zero on average.

    Args:
        least_std: standard deviation of residuals that are all rounding.
        least_share: share of the curvature of one datum that the other has, too, in a direction that is known.
    """
    basis, shares = _whitened(sums.own.sum(0), sums.shared.sum(0))
    noise = torch.einsum("iu,kij,ju->ku", basis, sums.noise, basis)
    bound = _MIN_NOISE_STDS * _SHARED_NOISE_PER_BLOCK * noise.square().sum(0).sqrt()
    known = (shares > least_share) & (shares > bound)  # false for NaN
    free = basis[:, ~known]
    free = torch.where(free.abs() > _MIN_COMPONENT * free.norm(dim=0), free, 0.0)
    free = free / free.norm(dim=0)
    covariance = UNKNOWN_STD**2 * free @ free.mT + LEAST_STD**2 * torch.eye(len(free)).to(free)
    if not bool(known.any()):
        return BlockEstimate(torch.zeros_like(sums.scores[0]), covariance, free.mT)
    basis, shares = basis[:, known], shares[known]
    descent, scores = basis.mT @ sums.descent.sum(0) @ basis, basis.mT @ sums.scores.sum(0)
    root = basis @ torch.diag(1.0 / shares) @ _spread_root(basis, sums, least_std)
    return BlockEstimate(basis @ torch.linalg.solve(descent, scores), covariance + root @ root.mT, free.mT)


def _spread_root(basis: Float[Tensor, "n m"], sums: BlockSums, least_std: float) -> Float[Tensor, "m m"]:
    """Return a root of the covariance of the sum of the scores along directions.

    The sums over neighbours are few independent numbers: they say by what factor correlation makes the covariance of
    uncorrelated scores larger, and its shape only as far as there are many of them (a shrinkage estimate).
    """
    n = basis.shape[1]
    values, vectors = torch.linalg.eigh(basis.mT @ sums.alone @ basis)
    root = vectors * (values.clamp(min=0.0) + least_std**2).sqrt()
    ratio = torch.linalg.solve(root, torch.linalg.solve(root, basis.mT @ sums.around @ basis).mT)
    values, vectors = torch.linalg.eigh(0.5 * (ratio + ratio.mT))
    factor = _for_regions(n, 2.0 / max(sums.variance, _LEAST_VARIANCE)) / squares_left(sums.number)
    factor = factor * values.mean().clamp(min=1.0)
    share = sums.number / (sums.number + _NUMBER_PER_DIRECTION * n)
    values = (1.0 - share) * factor + share * torch.maximum(values, _MIN_SPREAD * factor)
    return root @ vectors * values.sqrt()


def squares_left(number: float) -> float:
    """Return the share of the squares of residuals of so many independent sets that is left at an estimate."""
    return max(number - 1.0, 1.0) / number


def _for_regions(n: int, freedom: float) -> float:
    """Return what makes regions of 90 % right that have a factor of so many degrees of freedom: F over chi^2."""
    return float(n * stats.f.ppf(_REGION, n, max(freedom, _MIN_FREEDOM)) / stats.chi2.ppf(_REGION, n))


def _whitened(own: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
    """Return directions ``[n, n]``, as columns, in which ``own`` is one and ``shared`` diagonal, and its diagonal."""
    digits = torch.finfo(own.dtype).eps
    own = own.nan_to_num(0.0)
    diagonal = own.diagonal().clamp(min=0.0)
    scale = (diagonal + digits * diagonal.amax() + digits**2).rsqrt()
    values, vectors = torch.linalg.eigh(scale.unsqueeze(-1) * own * scale)
    least = len(own) ** 2 * digits * values[-1].clamp(min=digits)
    basis = scale.unsqueeze(-1) * vectors * values.clamp(min=least).rsqrt()
    shares, turn = torch.linalg.eigh(basis.mT @ shared.nan_to_num(0.0) @ basis)
    return basis @ turn, shares
