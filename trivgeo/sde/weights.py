"""Weights of samples."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["effective_sample_size"]


def effective_sample_size(weights: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    r"""Effective sample size of Kish, :math:`(\sum_i \omega_i)^2 / \sum_i \omega_i^2`, between 1 and n.

    It is zero where all weights are zero, and NaN where one is not finite.
    """
    largest = nn.functional.pad(weights.abs(), (0, 1)).amax(-1, keepdim=True)  # with a zero: there may be none
    weights = weights / torch.where(largest > 0, largest, 1.0)  # whose squares neither vanish nor overflow
    square = (weights**2).sum(-1)
    return weights.sum(-1) ** 2 / torch.where(square == 0, 1.0, square)
