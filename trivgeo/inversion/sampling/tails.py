"""Tails of importance weights."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["LARGEST_SHAPE", "pareto_shape"]

LARGEST_SHAPE = 0.7
"""Pareto shape above which averages with weights are not reliable (Vehtari et al. 2024, section 3.2)."""
_FEWEST = 5
"""Number of weights in a tail below which nothing is said of it."""
_PRIOR_WEIGHT, _PRIOR_SHAPE = 10.0, 0.5
_SPREAD_OF_RATES = 3.0
"""Quartiles of the tail that candidates of the rate reach (Zhang and Stephens 2009, section 3)."""


def pareto_shape(log_weights: Float[Tensor, "b m"]) -> Float[Tensor, " b"]:
    r"""Return the shape k of the generalised Pareto distribution of the largest importance weights.

    Weights of shape k have :math:`1 / k` moments. Above one half their variance is infinite, above one their mean: then
    the effective sample size says nothing, since what is rare and heavy was not drawn. The tail are the
    :math:`\min(m / 5, 3 \sqrt m)` largest weights (Vehtari et al. 2024, Pareto smoothed importance sampling). The fit
    is that of Zhang and Stephens (2009), drawn towards one half as if by ten more weights.

    Args:
        log_weights: logarithms of the weights; minus infinity for none.

    Returns:
        Shapes; minus infinity where the largest weights are equal, or less than five of a tail are positive.
    """
    weights = torch.softmax(log_weights.double(), -1).nan_to_num(0.0)
    number = log_weights.shape[-1]
    size = min(number // 5, math.ceil(3.0 * math.sqrt(number)))
    if size < _FEWEST:
        return log_weights.new_full(log_weights.shape[:-1], -torch.inf)
    falling = weights.sort(-1, descending=True).values
    excess = (falling[..., :size] - falling[..., size : size + 1]).flip(-1)  # rising
    largest = excess[..., -1:]
    known = (falling[..., _FEWEST - 1] > 0.0) & (largest.squeeze(-1) > 1e-9 * falling[..., 0])
    x = excess / torch.where(known.unsqueeze(-1), largest, 1.0)
    quartile = x[..., int(size / 4 + 0.5) - 1].clamp(min=1e-6).unsqueeze(-1)
    count = 30 + int(math.sqrt(size))
    place = torch.arange(1, count + 1, dtype=x.dtype, device=x.device) - 0.5
    rates = 1.0 + (1.0 - (count / place).sqrt()) / (_SPREAD_OF_RATES * quartile)  # [b, c]
    rates = torch.where(rates.abs() < 1e-12, 1e-12, rates).clamp(max=1.0 - 1e-12)
    shapes = torch.log1p(-rates.unsqueeze(-1) * x.unsqueeze(-2)).mean(-1)
    heights = size * ((-rates / shapes).log() - shapes - 1.0)
    rate = (heights.nan_to_num(nan=-torch.inf).softmax(-1) * rates).sum(-1, keepdim=True)
    shape = torch.log1p(-rate * x).mean(-1)
    shape = (size * shape + _PRIOR_WEIGHT * _PRIOR_SHAPE) / (size + _PRIOR_WEIGHT)
    return torch.where(known, shape, -torch.inf).to(log_weights)
