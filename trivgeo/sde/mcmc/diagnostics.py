"""Convergence of Markov chains: rank-normalised R-hat and effective sample sizes.

The formulas are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner (Bayesian Analysis 16, 2021). Draws are
``[chains, draws, k]``, for k functions of the state.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from scipy.special import chdtri
from torch import Tensor

from trivgeo.checks import checked
from trivgeo.errors import ShapeError

__all__ = [
    "bulk_effective_sample_size",
    "mean_effective_sample_size",
    "r_hat",
    "r_hat_bound",
    "tail_effective_sample_size",
]

_MIN_DRAWS = 4  # draws of a chain, so that its halves have a variance
_NUM_ROUNDS = 4  # rounds of the variance of means and the autocorrelation, which explain each other
_TAIL_PROBABILITIES = 0.05, 0.95  # of the quantiles whose effective sample sizes are those of the tails


@checked
def r_hat(draws: Float[Tensor, "chains draws k"]) -> Float[Tensor, " k"]:
    """Return the rank-normalised split R-hat, about one if chains agree: the larger one of location and of scale.

    NaN where all ``draws`` are equal.

    Raises:
        ShapeError: fewer than four draws a chain.
    """
    return torch.maximum(*map(_split_r_hat, _location_and_scale(draws)))


@checked
def r_hat_bound(draws: Float[Tensor, "chains draws k"], probability: float = 1e-3) -> Float[Tensor, " k"]:
    """Return the values that `r_hat` exceeds with a small probability where chains agree.

    Means of chains that agree still differ, by the error that the autocorrelation within each of them explains: R-hat
    squared is about 1 + X / ((m - 1) n), for X chi-squared with m - 1 degrees of freedom, m halves of chains and n
    effective draws in each.

    Args:
        draws: the draws.
        probability: of one of the k functions or more above the bound.

    Raises:
        ShapeError: fewer than four draws a chain.
    """
    bounds = []
    for values in _location_and_scale(draws):
        halves, number, k = values.shape
        size = _effective_sample_size(values, between=False) / halves
        quantile = float(chdtri(max(1, halves - 1), 0.5 * probability / k)) / max(1, halves - 1)
        bounds.append((1.0 + quantile / size - 1.0 / number).clamp(min=1.0).sqrt())
    return torch.maximum(*bounds)


def _location_and_scale(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Normalised ranks of the halves of chains, and of their distances from the median."""
    halves = _split(draws)
    centre = _by_function(halves).median(-1).values  # of an even number the lower one
    upper = -(-_by_function(halves)).median(-1).values
    folded = (halves - 0.5 * (centre + upper)).abs()
    return _rank_normalized(halves), _rank_normalized(folded)


@checked
def bulk_effective_sample_size(draws: Float[Tensor, "chains draws k"]) -> Float[Tensor, " k"]:
    """Return the effective sample size for the location of ``draws``, by their normalised ranks.

    Raises:
        ShapeError: fewer than four draws a chain.
    """
    return _effective_sample_size(_rank_normalized(_split(draws)))


@checked
def tail_effective_sample_size(draws: Float[Tensor, "chains draws k"]) -> Float[Tensor, " k"]:
    """Return the lower one of the effective sample sizes for the quantiles of ``draws`` at .05 and .95.

    Raises:
        ShapeError: fewer than four draws a chain.
    """
    every = _by_function(draws)
    sizes = []
    for probability in _TAIL_PROBABILITIES:
        quantile = _quantile(every, probability)
        sizes.append(_effective_sample_size(_split((draws <= quantile).to(draws.dtype))))
    return torch.minimum(*sizes)


@checked
def mean_effective_sample_size(draws: Float[Tensor, "chains draws k"]) -> Float[Tensor, " k"]:
    """Return the effective sample size for the mean of ``draws``: its standard error is std / sqrt(size).

    Raises:
        ShapeError: fewer than four draws a chain.
    """
    return _effective_sample_size(_split(draws))


def _split(draws: Tensor) -> Tensor:
    """The halves of chains as chains of their own, without the middle draw of an odd number."""
    if draws.shape[1] < _MIN_DRAWS:
        raise ShapeError(f"draws: expected at least {_MIN_DRAWS} draws a chain, got {draws.shape[1]}")
    half = draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, -half:]])


def _by_function(draws: Tensor) -> Tensor:
    """All draws of each function, ``[k, chains * draws]``."""
    return draws.flatten(0, 1).mT.contiguous()


def _quantile(x: Tensor, probability: float) -> Tensor:
    """Quantiles of rows, by linear interpolation; `torch.quantile` takes no large rows."""
    place = probability * (x.shape[-1] - 1)
    low = math.floor(place)
    ordered = x.sort(-1).values
    return torch.lerp(ordered[..., low], ordered[..., min(low + 1, x.shape[-1] - 1)], place - low)


def _rank_normalized(draws: Tensor) -> Tensor:
    """Normal quantiles of the ranks among all draws; equal draws have their average rank."""
    x = _by_function(draws)
    ordered = x.sort(-1).values
    ranks = 0.5 * (torch.searchsorted(ordered, x) + torch.searchsorted(ordered, x, right=True) + 1)
    share = (ranks.to(draws.dtype) - 0.375) / (x.shape[-1] + 0.25)
    return torch.special.ndtri(share).mT.unflatten(0, draws.shape[:2])


def _split_r_hat(draws: Tensor) -> Tensor:
    number = draws.shape[1]
    between = number * draws.mean(1).var(0)
    within = draws.var(1).mean(0)
    return ((between / within + number - 1.0) / number).sqrt()


def _effective_sample_size(draws: Tensor, between: bool = True) -> Tensor:
    """Sizes from autocorrelations, cut where Geyer's initial monotone sequence ends; all of them for equal draws.

    Without the variance ``between`` chains they are those of chains that agree, whose means differ by the error that
    the size explains.
    """
    chains, number, _ = draws.shape
    total = chains * number
    centred = draws - draws.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * number, dim=1)
    correlation = torch.fft.irfft(spectrum.real**2 + spectrum.imag**2, n=2 * number, dim=1)[:, :number] / number
    covariance = correlation.mean(0)  # [lags, k]
    within = covariance[0] * number / (number - 1.0)
    constant = (draws.amax((0, 1)) - draws.amin((0, 1))) <= torch.finfo(draws.dtype).eps
    means = draws.mean(1).var(0) if chains > 1 and between else torch.zeros_like(within)
    for _ in range(1 if between else _NUM_ROUNDS):
        rho = 1.0 - (within - covariance) / (covariance[0] + means)
        rho[0] = 1.0
        time = _autocorrelation_time(rho).clamp(min=1.0 / math.log10(total))
        means = within * time / number
    return torch.where(constant, float(total), total / time)


def _autocorrelation_time(rho: Tensor) -> Tensor:
    """Sums of autocorrelations ``[lags, k]`` of both signs of the lag, cut as Geyer says."""
    number = len(rho)
    lags = 2 * max(1, (number - 1) // 2)
    pairs = rho[:lags].unflatten(0, (-1, 2)).sum(1)  # [lags / 2, k]
    # the first pair that is negative ends the sequence; its even lag still counts if positive
    positive = (pairs >= 0.0).to(rho.dtype).cumprod(0)
    positive[-1] = 0.0
    monotone = torch.cummin(pairs, 0).values
    last = positive.sum(0, keepdim=True).long()
    even = rho[:lags:2].gather(0, last).squeeze(0).clamp(min=0.0)
    return 2.0 * (monotone * positive).sum(0) - 1.0 + even
