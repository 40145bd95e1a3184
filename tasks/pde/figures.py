"""Pictures of solutions on space-time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..files import write_picture


def draw_solutions(
    path: str | Path,
    points: Float[Tensor, "nx nt 2"],
    fields: Mapping[str, Float[Tensor, "nx nt"]],
    regions: Mapping[str, Float[Tensor, "nx nt 2"]],
) -> None:
    """Draw fields side by side over (t, x), below each its difference from the first, and where the problem lies.

    Args:
        path: the PNG file.
        points: (x, t) of a grid, which may be curved.
        fields: the fields by title; the first one is the reference and sets the colours.
        regions: grids whose outlines are drawn in the panel below the first field, by label.
    """
    x, t = (c.numpy() for c in points.detach().cpu().unbind(-1))
    reference = next(iter(fields.values())).detach().cpu().numpy()
    limit = float(abs(reference).max())
    figure = Figure(figsize=(4.4 * len(fields), 6.6), layout="constrained")
    axes = figure.subplots(2, len(fields), squeeze=False)
    for column, (title, field) in enumerate(fields.items()):
        values = field.detach().cpu().numpy()
        top, bottom = axes[0, column], axes[1, column]
        image = top.pcolormesh(t, x, values, cmap="RdBu_r", vmin=-limit, vmax=limit, shading="gouraud", rasterized=True)
        top.set(title=title, ylabel="x" if column == 0 else "")
        if column == len(fields) - 1:
            figure.colorbar(image, ax=top, label="u")
        if column == 0:
            _draw_regions(bottom, regions)
            continue
        difference = values - reference
        bound = max(float(abs(difference).max()), 1e-12)
        below = bottom.pcolormesh(
            t, x, difference, cmap="PuOr", vmin=-bound, vmax=bound, shading="gouraud", rasterized=True
        )
        figure.colorbar(below, ax=bottom, label="prediction - exact")
        bottom.set_xlabel("t")
    write_picture(figure, path, 110)


def _draw_regions(axes: Axes, regions: Mapping[str, Tensor]) -> None:
    styles = ("--", "-", ":", "-.")
    for (label, region), style in zip(regions.items(), styles, strict=False):
        grid = region.detach().cpu()
        edge = torch.cat([grid[:, 0], grid[-1, :], grid[:, -1].flip(0), grid[0, :].flip(0)]).numpy()
        axes.plot(edge[:, 1], edge[:, 0], style, label=label)
    axes.set(title="where the problem lies", xlabel="t", ylabel="x")
    axes.margins(y=0.5)
    axes.legend(loc="best", fontsize=8)


class ErrorSeries(NamedTuple):
    """Errors of one method on cases of different sizes.

    Attributes:
        label: the name in the legend.
        size: size of the transformation of each case.
        error: relative error of each case.
    """

    label: str
    size: Sequence[float]
    error: Sequence[float]


def draw_errors(path: str | Path, series: Sequence[ErrorSeries], floor: float, title: str) -> None:
    """Draw errors against the size of the transformation: a dot a case, and the running median of each method.

    Args:
        path: the PNG file.
        series: the methods.
        floor: mean error inside the training domain, drawn as a line.
        title: title of the figure.
    """
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for index, (label, size, error) in enumerate(series):
        x, y = torch.tensor(size), torch.tensor(error)
        order = x.argsort()
        x, y = x[order], y[order]
        window = max(1, len(x) // 8)
        axes.plot(x, y, ".", color=f"C{index}", alpha=0.35, markersize=5)
        middle = [(x[i : i + window].median(), y[i : i + window].median()) for i in range(len(x) - window + 1)]
        axes.plot(*zip(*middle, strict=True), color=f"C{index}", label=label)
    axes.axhline(floor, color="0.4", linestyle="--", linewidth=1, label="inside the training domain")
    axes.set(
        xscale="log",
        yscale="log",
        title=title,
        xlabel="root mean square displacement, in sides of the training domain",
        ylabel="relative L2 error",
    )
    axes.legend(fontsize=8)
    write_picture(figure, path, 110)
