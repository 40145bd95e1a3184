"""Distances between two samples that are never negative, so that ratios of them make sense."""

import math

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor


def mean_embedding_distance(x: Float[Tensor, "m d"], y: Float[Tensor, "k d"], bandwidth: float) -> float:
    """The MMD of the empirical distributions with a Gaussian kernel (Gretton et al. 2012, biased, not squared)."""

    def kernel(a: Tensor, b: Tensor) -> float:
        return float(torch.exp(-0.5 * (torch.cdist(a, b) / bandwidth) ** 2).mean())

    return math.sqrt(max(0.0, kernel(x, x) + kernel(y, y) - 2.0 * kernel(x, y)))


def energy_distance(x: Float[Tensor, "m d"], y: Float[Tensor, "k d"]) -> float:
    """Székely's energy distance of the empirical distributions: 2 E|x - y| - E|x - x'| - E|y - y'|."""
    return float(2.0 * torch.cdist(x, y).mean() - torch.cdist(x, x).mean() - torch.cdist(y, y).mean())


def kolmogorov_smirnov(x: Float[Tensor, " m"], y: Float[Tensor, " k"]) -> float:
    """The largest distance between the distribution functions of two samples of numbers."""
    return float(stats.ks_2samp(x.cpu().numpy(), y.cpu().numpy()).statistic)
