"""Weighted samples: effective sample size, ancestors drawn by weight, and steps of tempering.

Weights are given by their logarithms ``[*batch, n]``, up to a constant of each row. Minus infinity is the weight zero.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from trivgeo._random import uniform
from trivgeo.checks import check_count, checked

__all__ = [
    "LARGEST_SHAPE",
    "LARGEST_WEIGHT_ERROR",
    "SMALLEST_EFFECTIVE_SIZE",
    "effective_sample_size",
    "next_inverse_temperature",
    "normalized_log_weights",
    "normalized_weights",
    "pareto_shape",
    "resample",
    "systematic_indices",
    "take_rows",
    "thinned_indices",
]

LARGEST_SHAPE = 0.7
"""Pareto shape above which averages with weights are not reliable (Vehtari et al. 2024, section 3.2)."""
LARGEST_WEIGHT_ERROR = 0.05
"""Error of the largest log-weight, by rounding, above which averages with weights are not trusted."""
SMALLEST_EFFECTIVE_SIZE = 10.0
"""Effective number of draws below which averages with weights are not trusted."""
_MIN_TAIL_SIZE = 5  # weights in a tail below which nothing is said of it
_PRIOR_WEIGHT, _PRIOR_SHAPE = 10.0, 0.5  # number of weights as which the prior of the shape counts, and its mean
_MAX_RATE_IN_QUARTILES = 3.0  # candidates of the rate, in quartiles of the tail (Zhang and Stephens 2009, section 3)
_NUM_BISECTIONS = 30
"""Number of halvings of the interval of inverse temperatures, which leave 1e-9 of it."""
_MAX_SIZE_LOSS = 0.3
"""Share of the present effective sample size that a step of tempering may cost where the size is low already."""
_TOTAL_ADDED_WEIGHT = 1e-12
"""Sum of equal weights that are added to make all weights of a row positive."""


@checked
def effective_sample_size(weights: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    r"""Effective sample size of Kish, :math:`(\sum_i \omega_i)^2 / \sum_i \omega_i^2`, between 1 and n.

    It is zero where all weights are zero, and NaN where one is not finite.
    """
    largest = nn.functional.pad(weights.abs(), (0, 1)).amax(-1, keepdim=True)  # padded by zero for an empty row
    weights = weights / torch.where(largest > 0, largest, 1.0)  # scaled, their squares neither vanish nor overflow
    square = (weights**2).sum(-1)
    return weights.sum(-1) ** 2 / torch.where(square == 0, 1.0, square)


@checked
def normalized_weights(log_weights: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Return weights of sum one in each row of ``log_weights``; zero in a row without a positive weight."""
    return torch.softmax(log_weights, -1).nan_to_num(0.0)


@checked
def normalized_log_weights(log_weights: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Return ``log_weights`` of weights of sum one in each row; all equal in a row without a positive weight."""
    return _uniform_where_zero(log_weights).log_softmax(-1)


@checked
def systematic_indices(
    log_weights: Float[Tensor, "*batch n"], generator: torch.Generator | None = None, num_samples: int | None = None
) -> Int[Tensor, "*batch k"]:
    """Draw k of n indices, with repetition, by systematic resampling (Kitagawa 1996).

    Index i is drawn k times its normalised weight, rounded down or up, and exactly on average. A row without a positive
    weight counts as one of equal weights.

    Args:
        log_weights: logarithms of the weights.
        generator: random numbers; ``None`` is torch's.
        num_samples: k; default n.

    Raises:
        ConfigurationError: fewer than one index.
    """
    number = log_weights.shape[-1] if num_samples is None else check_count("num_samples", num_samples)
    cumulative = torch.softmax(_uniform_where_zero(log_weights).double(), -1).cumsum(-1)
    cumulative = cumulative / cumulative[..., -1:]
    shift = uniform((*log_weights.shape[:-1], 1), cumulative, generator)
    positions = (torch.arange(number, dtype=torch.float64, device=log_weights.device) + shift) / number
    # searchsorted from the right with positions below one never selects an index of weight zero
    positions = positions.clamp(max=1.0 - torch.finfo(torch.float64).eps)
    return torch.searchsorted(cumulative, positions, right=True)


@checked
def resample(
    log_weights: Float[Tensor, "*batch n"],
    num_samples: int,
    generator: torch.Generator | None = None,
    *,
    power: float = 1.0,
) -> tuple[Int[Tensor, "*batch k"], Float[Tensor, "*batch k"]]:
    """Draw indices by a power of their weights, and return the logarithms of the remaining weights.

    With power 1 the remaining weights are equal. A lower power keeps samples of low weight; the weights to the power of
    1 - ``power`` remain.

    Args:
        log_weights: logarithms of the weights.
        num_samples: k, number of indices.
        generator: random numbers; ``None`` is torch's.
        power: power of the weights by which indices are drawn, in (0, 1].

    Returns:
        Indices by `systematic_indices`, and the logarithms of their weights, unnormalised.
    """
    log_weights = _uniform_where_zero(log_weights)
    index = systematic_indices(power * log_weights, generator, num_samples)
    return index, (1.0 - power) * log_weights.gather(-1, index)


@checked
def thinned_indices(
    log_weights: Float[Tensor, "*batch n"],
    num_samples: int,
    generator: torch.Generator | None = None,
    *,
    labels: Int[Tensor, "*batch n"] | None = None,
) -> tuple[Int[Tensor, "*batch k"], Float[Tensor, "*batch k"]]:
    """Draw k of n indices without repetition, with weights unbiased for all weights (Fearnhead, Clifford 2003).

    Indices with a weight above a bound c keep it. An index of weight w below c is drawn with probability w / c, and has
    the weight c from then on. This choice has the least variance.

    Args:
        log_weights: logarithms of the weights.
        num_samples: k, at most n.
        generator: random numbers; ``None`` is torch's.
        labels: strata, each of which keeps its share of the indices, up to rounding.

    Returns:
        Indices, and their weights in double precision, which sum to about one; zero in a row without a positive weight.
    """
    number = check_count("num_samples", num_samples)
    weights = normalized_weights(log_weights.double())
    order = (torch.zeros_like(weights) if labels is None else labels).argsort(dim=-1, stable=True)
    weights = weights.gather(-1, order)
    raised = weights + _TOTAL_ADDED_WEIGHT / weights.shape[-1]
    probability = (raised / _thinning_bound(raised, number)).clamp(max=1.0)
    cumulative = probability.cumsum(-1)
    cumulative = cumulative * (number / cumulative[..., -1:])
    shift = uniform((*weights.shape[:-1], 1), cumulative, generator)
    positions = torch.arange(number, dtype=torch.float64, device=weights.device) + shift
    index = torch.searchsorted(cumulative, positions, right=True).clamp(max=weights.shape[-1] - 1)
    return order.gather(-1, index), weights.gather(-1, index) / probability.gather(-1, index)


@checked
def next_inverse_temperature(
    log_ratios: Float[Tensor, "*batch n"],
    log_weights: Float[Tensor, "*batch n"],
    inverse_temperature: Float[Tensor, "*batch"],
    effective_size: float,
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch n"]]:
    r"""Return the largest inverse temperature up to 1 that leaves an effective sample size, by bisection, and weights.

    Samples of :math:`q^{1 - \beta} p^\beta` with weights w have weights :math:`w (p / q)^{\beta' - \beta}` for the next
    inverse temperature :math:`\beta'` (Del Moral, Doucet and Jasra 2006).

    Args:
        log_ratios: :math:`\log p / q` of the samples; where it is not finite, they get the weight zero.
        log_weights: logarithms of the weights w.
        inverse_temperature: :math:`\beta`.
        effective_size: `effective_sample_size` to keep; seven tenths of the present one if that is less.

    Returns:
        The next inverse temperature, and the logarithms of the weights there, unnormalised.
    """

    def weights_at(beta: Tensor) -> Tensor:
        step = (beta - inverse_temperature).unsqueeze(-1)
        return torch.where(torch.isfinite(log_ratios), log_weights + step * log_ratios, -torch.inf)

    def size_at(beta: Tensor) -> Tensor:
        return effective_sample_size(normalized_weights(weights_at(beta)))

    enough = ((1.0 - _MAX_SIZE_LOSS) * size_at(inverse_temperature)).clamp(max=effective_size)
    low, high = inverse_temperature, torch.ones_like(inverse_temperature)
    last = torch.ones_like(inverse_temperature)
    for _ in range(_NUM_BISECTIONS):
        middle = 0.5 * (low + high)
        good = size_at(middle) >= enough
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
    new = torch.where(size_at(last) >= enough, last, low)
    return new, weights_at(new)


@checked
def take_rows(x: Shaped[Tensor, "*rows"], index: Int[Tensor, "*batch k"]) -> Shaped[Tensor, "*taken"]:
    """Return the rows ``[*batch, k, ...]`` with numbers ``index`` of x ``[*batch, n, ...]``."""
    # not by `take_along_dim`, which makes the batch of an exported program a constant
    rows = index.reshape(*index.shape, *[1] * (x.ndim - index.ndim)).expand(*index.shape, *x.shape[index.ndim :])
    return x.gather(index.ndim - 1, rows)


def _uniform_where_zero(log_weights: Tensor) -> Tensor:
    """Logarithms of the weights, zero in rows without a positive weight."""
    return torch.where(torch.isfinite(log_weights).any(-1, keepdim=True), log_weights, 0.0)


def _thinning_bound(weights: Tensor, number: int) -> Tensor:
    """The c for which the sum of the weights over c, each at most one, is ``number``, ``[*batch, 1]``."""
    falling = weights.sort(-1, descending=True).values
    rest = falling.flip(-1).cumsum(-1).flip(-1)  # sums of each weight and all smaller ones
    kept = torch.arange(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    c = rest / (number - kept).clamp(min=1.0)
    possible = (falling <= c) & (kept < number)
    first = possible.to(torch.int64).argmax(-1, keepdim=True)
    return c.gather(-1, first)


@checked
def pareto_shape(log_weights: Float[Tensor, "b m"]) -> Float[Tensor, " b"]:
    r"""Return the shape k of the generalised Pareto distribution of the largest importance weights.

    Weights of shape k have :math:`1 / k` moments. Above one half their variance is infinite, above one their mean: then
    the effective sample size says nothing, since rare and heavy elements were not drawn. The tail consists of the
    :math:`\min(m / 5, 3 \sqrt m)` largest weights (Vehtari et al. 2024, Pareto smoothed importance sampling). The fit
    is that of Zhang and Stephens (2009), drawn towards one half as if by ten more weights.

    Args:
        log_weights: logarithms of the weights, up to a constant of each row.

    Returns:
        Shapes; minus infinity where the largest weights are equal, or less than five of a tail are positive.
    """
    weights = normalized_weights(log_weights.double())
    number = log_weights.shape[-1]
    size = min(number // 5, math.ceil(3.0 * math.sqrt(number)))
    if size < _MIN_TAIL_SIZE:
        return log_weights.new_full(log_weights.shape[:-1], -torch.inf)
    falling = weights.sort(-1, descending=True).values
    excess = (falling[..., :size] - falling[..., size : size + 1]).flip(-1)  # rising
    largest = excess[..., -1:]
    known = (falling[..., _MIN_TAIL_SIZE - 1] > 0.0) & (largest.squeeze(-1) > 1e-9 * falling[..., 0])
    x = excess / torch.where(known.unsqueeze(-1), largest, 1.0)
    quartile = x[..., int(size / 4 + 0.5) - 1].clamp(min=1e-6).unsqueeze(-1)
    count = 30 + int(math.sqrt(size))
    place = torch.arange(1, count + 1, dtype=x.dtype, device=x.device) - 0.5
    rates = 1.0 + (1.0 - (count / place).sqrt()) / (_MAX_RATE_IN_QUARTILES * quartile)  # [b, c]
    rates = torch.where(rates.abs() < 1e-12, 1e-12, rates).clamp(max=1.0 - 1e-12)
    shapes = torch.log1p(-rates.unsqueeze(-1) * x.unsqueeze(-2)).mean(-1)
    heights = size * ((-rates / shapes).log() - shapes - 1.0)
    rate = (heights.nan_to_num(nan=-torch.inf).softmax(-1) * rates).sum(-1, keepdim=True)
    shape = torch.log1p(-rate * x).mean(-1)
    shape = (size * shape + _PRIOR_WEIGHT * _PRIOR_SHAPE) / (size + _PRIOR_WEIGHT)
    return torch.where(known, shape, -torch.inf).to(log_weights)
