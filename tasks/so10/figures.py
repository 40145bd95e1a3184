"""The two published pictures: the histogram of X_11, and |mean of X_11| over the steps."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from ..files import write_picture
from .corner_distribution import CornerDistribution


def draw_sampling(
    path: str | Path, distribution: CornerDistribution, x: Float[Tensor, " m"], means: Mapping[int, float]
) -> None:
    """Draw both panels.

    Args:
        path: the PNG file.
        distribution: the exact distribution.
        x: a sample of X_11.
        means: |mean of X_11| of the chains by the number of the step.
    """
    values = x.detach().double().cpu().numpy()
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.hist(values, bins=60, range=(-1.0, 1.0), density=True, alpha=0.55, label=f"{len(values)} samples")
    grid = np.linspace(-1.0, 1.0, 801)
    left.plot(grid, distribution.density(grid), "k", label="exact density")
    left.set(title="distribution of $X_{11}$", xlabel="$X_{11}$", ylabel="density", xticks=(-1.0, -0.5, 0.0, 0.5, 1.0))
    left.legend()
    steps = list(means)
    noise = math.sqrt(distribution.mean_square() / len(values))
    right.semilogy(steps, [max(m, 1e-6) for m in means.values()], label="sampler")
    right.axhline(noise, color="k", linestyle="--", label="standard error of an exact sample")
    right.set(title="$|$mean of $X_{11}|$", xlabel="step")
    right.legend()
    write_picture(figure, path, 110)
