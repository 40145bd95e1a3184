"""Normals of surfaces, estimated from points on them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from scipy.spatial import KDTree
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo.errors import NonFiniteError, ShapeError

__all__ = ["normals_of", "with_normals"]

_NUM_NEIGHBOURS = 10
"""Points of a reference, the point itself among them, that make its normal."""


def with_normals(points: Float[Tensor, "*batch k n"]) -> Float[Tensor, "*batch k m"]:
    """Clouds with the normals of the surfaces that they lie on, ``[*batch, k, 2 n]``, for `NearestPoints`.

    Args:
        points: of the surfaces; the normal at each is the direction in which its ten nearest ones vary least.

    Raises:
        ShapeError: they are no clouds.
        NonFiniteError: they hold NaN or infinity.
    """
    if points.ndim < 2 or 0 in points.shape:
        raise ShapeError(f"points: expected clouds [*batch, k, n], got {list(points.shape)}")
    if not bool(torch.isfinite(points).all()):
        raise NonFiniteError("points: expected finite coordinates, got NaN or infinity")
    return torch.cat([points, normals_of(points)], -1)


def normals_of(points: Float[Tensor, "*batch k n"]) -> Float[Tensor, "*batch k n"]:
    """Return unit normals of clouds: at each point, the direction in which its nearest neighbours vary least.

    Args:
        points: clouds ``[*batch, k, n]``.

    Returns:
        Normals ``[*batch, k, n]``, without gradients; their sign is arbitrary.
    """
    clouds = points.detach().double().cpu().reshape(-1, *points.shape[-2:])
    number = min(_NUM_NEIGHBOURS, clouds.shape[1])
    # one tree for all: clouds lie in layers of one more coordinate, further apart than any is wide
    layer = torch.arange(len(clouds)) * (2.0 * (clouds.amax((0, 1)) - clouds.amin((0, 1))).norm() + 1.0)
    layered = torch.cat([clouds, layer.reshape(-1, 1, 1).expand(*clouds.shape[:2], 1)], -1).flatten(0, 1).numpy()
    index = KDTree(layered).query(layered, k=[*range(1, number + 1)])[1]
    about = clouds.flatten(0, 1)[torch.from_numpy(index)]
    about = about - about.mean(1, keepdim=True)
    return torch.linalg.eigh(matmul(about.mT, about))[1][..., 0].reshape(points.shape).to(points)
