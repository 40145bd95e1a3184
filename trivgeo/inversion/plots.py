"""Pictures of inversions of images and of energies; needs matplotlib.

The functions take tensors, not the records of a call, so that records may draw themselves without a circle of imports.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.actions import ImageWarp
from trivgeo.checks import check_type
from trivgeo.errors import ConfigurationError, missing_package
from trivgeo.groups import Action

try:
    from matplotlib import pyplot as plt
except ModuleNotFoundError as missing:
    raise missing_package("plot", "Matplotlib", "plots") from missing


def angle_and_scale(action: Action, g: Tensor) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Return how far elements turn the plane (radians, from x to y) and enlarge it, at the middle of the frame.

    Of the linear part A there: the angle of its nearest rotation, and the root of its determinant.

    Raises:
        ConfigurationError: the action is no `ImageWarp` of the plane.
    """
    warp = check_type("action", action, ImageWarp)
    if warp.dims != 2:
        raise ConfigurationError(f"action: expected one on images of the plane, got {action!r}")
    a = warp.point_action.jacobian(g, g.new_zeros(1, 2)).squeeze(-3)
    angle = torch.atan2(a[..., 1, 0] - a[..., 0, 1], a[..., 0, 0] + a[..., 1, 1])
    return angle, torch.linalg.det(a).abs().sqrt()


def draw_images(
    action: Action,
    elements: Tensor,
    best: Tensor,
    x: Float[Tensor, "b c h w"],
    restored: Float[Tensor, "b c h w"],
) -> Any:
    """Draw images, restored ones, and hypotheses over angle and scale, a column for each image; return the figure."""
    count = len(x)
    angle, scale = angle_and_scale(action, elements)
    best_angle, best_scale = angle_and_scale(action, best)
    low, high = float(x.min()), float(x.max())
    figure, axes = plt.subplots(3, count, figsize=(2.2 * count, 6.6), squeeze=False, layout="constrained")
    for i in range(count):
        for row, (title, images) in enumerate((("given", x), ("restored", restored))):
            picture = images[i].detach().float().cpu().movedim(0, -1)
            picture = picture.clamp(low, high).sub(low) / max(high - low, 1e-12)
            if picture.shape[-1] != 3:  # other numbers of channels are drawn in grey
                picture = picture.mean(-1)
            axes[row, i].imshow(picture.numpy(), cmap="gray_r", vmin=0, vmax=1)
            axes[row, i].set_title(title)
            axes[row, i].set_axis_off()
        axes[2, i].scatter(angle[i].rad2deg().cpu().numpy(), scale[i].cpu().numpy(), s=8, alpha=0.5)
        axes[2, i].scatter(float(best_angle[i].rad2deg()), float(best_scale[i]), marker="x", color="tab:red")
        shown = scale[i][torch.isfinite(scale[i])]
        around = (0.9 * float(shown.min()), 1.1 * float(shown.max())) if len(shown) else None
        axes[2, i].set(xlabel="angle (degrees)", ylabel="scale" if i == 0 else None, xlim=(-180, 180), ylim=around)
    return figure


def draw_well(
    radii: Float[Tensor, " r"], rises: Float[Tensor, "r 3"], depth: float, share_below: float, axes: Any = None
) -> Any:
    """Draw the rise of an energy against the distance from a clean datum, and return the axes.

    Args:
        rises: quartiles of the rise at each of the radii.
        share_below: share of random transformations whose energy lies below that of the clean datum.
    """
    if axes is None:
        axes = plt.subplots(figsize=(5, 3.5), layout="constrained")[1]
    distances, quartiles = radii.numpy(), rises.clamp(max=1e30).numpy()
    axes.fill_between(distances, quartiles[:, 0], quartiles[:, 2], alpha=0.3)
    axes.plot(distances, quartiles[:, 1])
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.axhline(depth, color="tab:gray", linestyle="--", linewidth=0.8)
    axes.set(
        xscale="log",
        xlabel="distance from the clean datum (spread of the transformations = 1)",
        ylabel="rise of the energy",
        title=f"{share_below:.0%} of random transformations lie below",
    )
    return axes
