"""Pair plots of real and generated elements."""

from collections.abc import Sequence
from pathlib import Path

from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from ..files import write_picture

_POINTS = 2000
_PANELS = 4


def draw_pairs(
    path: str | Path, names: Sequence[str], real: Float[Tensor, "n c"], generated: Float[Tensor, "m c"]
) -> None:
    """Coordinates against the next one, as in a plot of Ramachandran: real above generated.

    Args:
        path: the PNG file.
        names: of the coordinates.
        real: of the test.
        generated: of a model.
    """
    pairs = [(i, i + 1) for i in range(len(names) - 1)][:_PANELS]
    figure = Figure(figsize=(2.6 * len(pairs) + 0.6, 5.4), layout="constrained")
    axes = figure.subplots(2, len(pairs), squeeze=False, sharex="col", sharey="col")
    for row, (title, points) in enumerate((("test", real), ("generated", generated))):
        for axis, (i, j) in zip(axes[row], pairs, strict=True):
            axis.plot(points[:_POINTS, i], points[:_POINTS, j], ".", ms=2, alpha=0.35, color=f"C{row}")
            axis.set(xlabel=names[i], ylabel=names[j], title=title)
    write_picture(figure, path, 100)
