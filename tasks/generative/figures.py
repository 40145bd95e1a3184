"""Pictures of real and generated elements."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from ..files import write_picture

_MAX_POINTS = 2000  # points in one scatter plot
_MAX_PANELS = 4


class Panel(NamedTuple):
    """Points of a plane, two panels one above the other.

    Attributes:
        title: title of both panels.
        names: names of the two coordinates.
        real: points of the test, `[n, 2]`.
        generated: points drawn from a model, `[m, 2]`.
    """

    title: str
    names: tuple[str, str]
    real: Tensor
    generated: Tensor


def draw_panels(path: str | Path, panels: Sequence[Panel], largest: float | None = None) -> None:
    """Write a picture of panels side by side: real points above generated ones.

    Args:
        path: the PNG file.
        panels: contents of the panels.
        largest: size of coordinates at the ends of all axes; ``None`` for axes that fit the points.
    """
    figure = Figure(figsize=(2.6 * len(panels) + 0.6, 5.4), layout="constrained")
    axes = figure.subplots(2, len(panels), squeeze=False, sharex="col", sharey="col")
    for column, panel in enumerate(panels):
        for row, (title, points) in enumerate((("test", panel.real), ("generated", panel.generated))):
            axis = axes[row][column]
            axis.plot(points[:_MAX_POINTS, 0], points[:_MAX_POINTS, 1], ".", ms=2, alpha=0.35, color=f"C{row}")
            whole = f"{panel.title}, {title}" if panel.title else title
            axis.set(xlabel=panel.names[0], ylabel=panel.names[1], title=whole)
            if largest is not None:
                axis.set(xlim=(-largest, largest), ylim=(-largest, largest))
    write_picture(figure, path, 100)


def draw_pairs(
    path: str | Path, names: Sequence[str], real: Float[Tensor, "n c"], generated: Float[Tensor, "m c"]
) -> None:
    """Coordinates against the next one, as in a plot of Ramachandran: real above generated.

    Args:
        path: the PNG file.
        names: names of the coordinates.
        real: see `Panel`, like `generated`.
        generated: points drawn from a model.
    """
    pairs = [(i, i + 1) for i in range(len(names) - 1)][:_MAX_PANELS]
    draw_panels(path, [Panel("", (names[i], names[j]), real[:, [i, j]], generated[:, [i, j]]) for i, j in pairs])


def draw_rows(path: str | Path, names: Sequence[str], rows: Sequence[Tensor]) -> None:
    """Write a picture with a row for each name.

    Args:
        path: the PNG file.
        names: names of the rows.
        rows: pictures `[c, 1, h, w]`, from black, zero, to white, one.
    """
    columns = len(rows[0])
    figure = Figure(figsize=(columns + 0.6, len(rows) + 0.2), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, name, pictures in zip(axes, names, rows, strict=True):
        line[0].set_ylabel(name)
        for axis, picture in zip(line, pictures, strict=True):
            axis.imshow(picture[0].numpy(), cmap="gray", vmin=0.0, vmax=1.0)
            axis.set(xticks=[], yticks=[])
    write_picture(figure, path, 100)
