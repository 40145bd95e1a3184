"""Real and generated frames side by side."""

from pathlib import Path

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..files import write_picture
from .group import COORDINATES

_COORDINATE_PAIRS = ((0, 1), (0, 3), (2, 4))
_RANGE_QUANTILES = (0.002, 0.998)  # quantiles that bound the axis of a histogram
_MAX_POINTS = 2500  # points in one scatter plot


def draw_frames(path: str | Path, generated: Float[Tensor, "n 5"], real: Float[Tensor, "m 5"]) -> None:
    """Scatter plots of three pairs of coordinates, real above generated, and the marginals below.

    Args:
        path: the PNG file.
        generated: elements.
        real: elements.
    """
    figure = Figure(figsize=(9.6, 8.4), layout="constrained")
    axes = figure.subplots(3, 3)
    for column, (i, j) in enumerate(_COORDINATE_PAIRS):
        for row, (name, points) in enumerate((("test digits", real), ("generated", generated))):
            axis: Axes = axes[row][column]
            axis.plot(points[:_MAX_POINTS, i], points[:_MAX_POINTS, j], ".", ms=2, alpha=0.35, color=f"C{row}")
            axis.set(title=name, xlabel=COORDINATES[i], ylabel=COORDINATES[j])
            axis.set(xlim=_limits(real[:, i]), ylim=_limits(real[:, j]))
    for axis, i in zip(axes[2], (0, 2, 3), strict=True):
        for row, (name, points) in enumerate((("test digits", real), ("generated", generated))):
            axis.hist(
                points[:, i].numpy(),
                60,
                range=_limits(real[:, i]),
                density=True,
                histtype="step",
                color=f"C{row}",
                label=name,
            )
        axis.set(xlabel=COORDINATES[i])
    axes[2][0].legend()
    write_picture(figure, path, 100)


def _limits(x: Tensor) -> tuple[float, float]:
    low, high = (float(x.quantile(q)) for q in _RANGE_QUANTILES)
    margin = 0.1 * (high - low)
    return low - margin, high + margin
