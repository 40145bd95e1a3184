"""Pictures of registrations: both data, one on the other, and how far points may be off; needs matplotlib."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from trivgeo.errors import missing_package
from trivgeo.groups import PointAction

try:
    from matplotlib import pyplot as plt
except ModuleNotFoundError as missing:
    raise missing_package("plot", "Matplotlib", "plots") from missing

_NUM_TILES = 8  # tiles of a checkerboard along the longer side
_MAX_POINTS = 4000  # points of a cloud that are drawn
_SPREAD_POINTS = 50  # points of which the standard deviation is computed


def standard_deviation(
    action: PointAction, element: Tensor, covariance: Float[Tensor, "n n"], x: Float[Tensor, "p k"]
) -> float:
    r"""Return the root mean square, over points x, of the standard deviation of their places after :math:`g \exp(v)`.

    To first order in v, of the given covariance; in units of the points.
    """
    group, x = action.group, x[:: -(-len(x) // _SPREAD_POINTS)].double()
    zero = torch.zeros(group.dim, dtype=torch.float64, device=x.device)
    slopes = torch.func.jacfwd(lambda v: action(group.perturb(element.double(), v), x))(zero)  # [p, k, n]
    return float((slopes @ covariance.double() @ slopes.mT).diagonal(dim1=-2, dim2=-1).sum(-1).mean().sqrt())


def draw_grids(
    moving: Float[Tensor, "c *m"], fixed: Float[Tensor, "q *k"], matrix: Float[Tensor, "d d"], title: str
) -> Any:
    """Draw the moving picture, the fixed one, and a checkerboard of both after the homography; return the figure.

    Args:
        moving: image ``[c, h, w]``, or volume ``[c, d, h, w]``, of which the middle slice is drawn.
        fixed: likewise, of any size.
        matrix: the homography from pixels (x, y, 1), or voxels (i, j, k, 1), of ``moving`` to those of ``fixed``.
        title: of the checkerboard.
    """
    height, width = fixed.shape[-2:]
    y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    layer = [torch.full_like(x, float(fixed.shape[1] // 2))] if fixed.ndim == 4 else []
    places = torch.stack([x, y, *layer, torch.ones_like(x)], -1) @ torch.linalg.inv(matrix.cpu().double()).mT
    places = places[..., :-1] / places[..., -1:]
    sizes = torch.tensor(moving.shape[:0:-1]).double()
    grid = ((2.0 * places + 1.0) / sizes - 1.0)[None]
    source = moving.detach().cpu().double()[None]
    sample = functional.grid_sample(source, grid[:, None] if layer else grid, align_corners=False)[0]
    inside = (grid[0].abs() <= 1.0).all(-1)
    pictures = [_picture(_slice(moving)), _picture(_slice(fixed)), _picture(sample[:, 0] if layer else sample)]
    if pictures[0].shape[-1] != pictures[1].shape[-1]:  # grey beside colour
        pictures = [picture.mean(-1, keepdim=True) for picture in pictures]
    pictures[2] = _exposed_like(pictures[2], pictures[1], inside)
    tile = max(height, width) / _NUM_TILES
    shown = ((x // tile + y // tile) % 2 == 0) & inside
    pictures[2] = torch.where(shown[..., None], pictures[2], pictures[1])
    figure, axes = plt.subplots(1, 3, figsize=(10, 10 / 3 * height / width + 0.4), layout="constrained")
    for axis, picture, name in zip(axes, pictures, ("moving", "fixed", title), strict=True):
        axis.imshow(picture.numpy(), cmap="gray", vmin=0.0, vmax=1.0)
        axis.set_title(name)
        axis.set_axis_off()
    return figure


def draw_clouds(
    moving: Float[Tensor, "m n"], moved: Float[Tensor, "m n"], fixed: Float[Tensor, "k n"], title: str
) -> Any:
    """Draw two clouds of the plane or of space, before and after one is moved to the other; return the figure.

    Of points of more dimensions the first three are drawn.
    """
    n = min(fixed.shape[-1], 3)
    figure = plt.figure(figsize=(9, 4.2), layout="constrained")
    for place, (cloud, name) in enumerate(((moving, "before"), (moved, title)), start=1):
        axis: Any = figure.add_subplot(1, 2, place, **({"projection": "3d"} if n == 3 else {}))
        for points, label in ((cloud, "moving"), (fixed, "fixed")):
            shown = points[:: -(-len(points) // _MAX_POINTS), :n].detach().cpu()
            axis.scatter(*shown.T.numpy(), s=2, label=label)
        axis.set_title(name)
        axis.set_aspect("equal")
        axis.locator_params(nbins=4)
        for side in (axis.xaxis, axis.yaxis, axis.zaxis) if n == 3 else ():
            side.pane.fill = False
    axis.legend(markerscale=4)
    return figure


def _slice(x: Tensor) -> Tensor:
    """An image, or the middle slice of a volume, ``[c, h, w]``."""
    return x[:, x.shape[1] // 2] if x.ndim == 4 else x


def _picture(x: Float[Tensor, "c h w"]) -> Float[Tensor, "h w c2"]:
    """Values from zero to one, in three channels or one."""
    x = x.detach().cpu().double().movedim(0, -1)
    x = x if x.shape[-1] == 3 else x.mean(-1, keepdim=True)
    low, high = float(x.min()), float(x.max())
    return (x - low) / (high - low if high > low else 1.0)


def _exposed_like(
    x: Float[Tensor, "h w c"], reference: Float[Tensor, "h w c"], shared: Bool[Tensor, "h w"]
) -> Float[Tensor, "h w c"]:
    """A picture with the medians and the median deviations that another one has where both show something."""
    if not bool(shared.any()):
        return x
    middles = [picture[shared].median(0).values for picture in (x, reference)]
    spreads = [(p[shared] - m).abs().median(0).values for p, m in zip((x, reference), middles, strict=True)]
    gain = torch.where((spreads[0] > 0) & (spreads[1] > 0), spreads[1] / spreads[0], 1.0)
    return ((x - middles[0]) * gain + middles[1]).clamp(0.0, 1.0)
