"""Noise of many levels at once, with the targets of denoising score matching."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import in_single
from trivgeo._random import normal
from trivgeo._text import described
from trivgeo.checks import check_choice, check_count, check_tensor, checked
from trivgeo.groups import LieGroup
from trivgeo.groups.harmonic import heat_kernel


class NoiseSample(NamedTuple):
    r"""Noise on a group, and the target of its denoising score matching.

    Attributes:
        elements: w, ``[*batch, *element_shape]``.
        target: T with :math:`E[T \mid g_0 w] = \nabla \log p(g_0 w)`, ``[*batch, dim]``.
        log_modular: log lambda(w), ``[*batch]``.
    """

    elements: Tensor
    target: Float[Tensor, "*batch n"]
    log_modular: Float[Tensor, "*batch"]

    def __repr__(self) -> str:
        return described(self)


@checked
def noise_with_target(
    group: LieGroup,
    variance: Float[Tensor, "*batch"],
    *,
    steps: int = 4,
    order: int = 1,
    generator: torch.Generator | None = None,
) -> NoiseSample:
    r"""Draw noise :math:`w = x_1 \cdots x_m`, with a variance of its own in every row, and its denoising target T.

    .. math:: T = \frac1m \sum_k \mathrm{Ad}_{x_{k+1} \cdots x_m}^T s(x_k), \quad
        s(\exp v) = J_r(v)^{-T} \big(-m v / \sigma^2 - \nabla_v \log |\det J_r(v)|\big), \quad
        E[T \mid g_0 w] = \nabla \log p(g_0 w).

    The trivialized score s of a factor :math:`x_k = \exp(\sigma z / \sqrt m)` for left Haar measure is found by
    `LieGroup.exp_with_score`; for order 2 the score of its normal vector replaces :math:`-m v / \sigma^2`. A shift of
    w by :math:`\exp(\eta)` from the right is a shift of x_k by :math:`\exp(\mathrm{Ad} \eta)`, so each k gives an
    unbiased target (the modular factors agree, as :math:`a \cdot \mathrm{Ad}_g \eta = a \cdot \eta`). Their average
    has a variance of about :math:`1 / \sigma^2`, as on a vector space, where T is :math:`-w / \sigma^2`.
    The target is exact on every group for noise in m equal parts, as the exponential Euler scheme makes it, if exp is
    one to one where the factors fall; take enough factors for that. The noise depends on the schedule only by
    :math:`\sigma^2 = \int_0^t \gamma^2`. Where the `heat_kernel` is known, w is drawn from it, and T is its score.

    Args:
        group: the group of the elements.
        variance: :math:`\sigma^2 > 0`, whose shape is the batch shape; it has the dtype and the device of the result.
            Half precision computes the scores in single.
        steps: the number m of factors, where the noise has to be simulated.
        order: weak order in 1 / m in which w is distributed as Brownian motion: 1 for the noise of `NoiseKernel`; 2
            for a covariance of z that makes up for the commutators in a factor, see `LieAlgebra.noise_spread`.
        generator: random numbers; ``None`` is torch's.

    Raises:
        ConfigurationError: ``steps`` is less than one, the order is neither 1 nor 2, or the variance is no tensor.
    """
    check_count("steps", steps)
    check_choice("order", order, (1, 2))
    variance = check_tensor("variance", variance)
    kernel = heat_kernel(group)
    if kernel is not None:
        exact = kernel.sample(variance, generator)
        return NoiseSample(exact, in_single(kernel.score, exact, variance), torch.zeros_like(variance))
    each = (variance / steps).unsqueeze(-1)
    z = normal((steps, *variance.shape, group.dim), variance, generator)
    if order == 1 or group.algebra.is_abelian:
        v = each.sqrt() * z
        gradient = -v
    else:
        rates, directions = (x.matching(z) for x in group.algebra.noise_spread)
        bend = each * rates
        spread = torch.where(bend < 0.0, 1.0 / (1.0 - bend), 1.0 + bend)  # positive for every variance
        v, gradient = (matmul((each * s).sqrt() * z, directions.mT) for s in (spread, 1.0 / spread))
        gradient = -gradient
    x, scores = group.exp_with_score(v, gradient, each)
    w, total = x[0], scores[0]
    for factor, score in zip(x[1:], scores[1:], strict=True):
        w = group.compose(w, factor)
        total = group.coadjoint(factor, total) + score
    log_modular = -matmul(v.sum(0), group.algebra.trace_ad_like(v))
    return NoiseSample(w, total / variance.unsqueeze(-1), log_modular)
