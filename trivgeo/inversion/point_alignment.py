"""Transformations between points in the same order, in closed form."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo.groups import SE, SO, Affine, GLPlus, LieGroup, Projective, Similarity, Translation
from trivgeo.groups.inhomogeneous import InhomogeneousGroup
from trivgeo.groups.orthogonal import aligning_rotation
from trivgeo.groups.similarity import ScaledRotations


def num_points_needed(group: LieGroup, n: int) -> int:
    """Return the number of points of R^n in general position whose images determine an element."""
    if isinstance(group, Projective):
        return n + 2
    if isinstance(group, Translation):
        return 1
    return n + 1 if isinstance(group, Affine) else n


def fit_points(
    group: LieGroup, x: Float[Tensor, "*batch m n"], y: Float[Tensor, "*batch m n"]
) -> Float[Tensor, "*batch ..."] | None:
    """Return elements that take points x to points y, by least squares; ``None`` for a group without closed form.

    Rotations by Kabsch (1976), similarities by Umeyama (1991), homographies by the direct linear transformation, whose
    squares are those of the linear equations (Hartley and Zisserman, 4.1).
    """
    if isinstance(group, Projective):
        matrix = fit_homographies(x, y)
    elif isinstance(group, Translation):
        matrix = _joined(_eye(x), (y - x).mean(-2))
    elif isinstance(group, SO | SE | ScaledRotations | Similarity):
        matrix = _fit_similarities(
            x, y, centred=isinstance(group, InhomogeneousGroup), scaled=isinstance(group, ScaledRotations | Similarity)
        )
    elif isinstance(group, Affine | GLPlus):
        matrix = _fit_affine(x, y, centred=isinstance(group, Affine))
    else:
        return None
    return group.action().from_homogeneous(matrix)


def fit_homographies(x: Float[Tensor, "*batch m n"], y: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch k k"]:
    """Return matrices on (x, 1) of homographies that take points x to points y; the last entry is one.

    The points are to be of size one about the origin, for the sake of rounding.
    """
    n = x.shape[-1]
    lifted = torch.cat([x, torch.ones_like(x[..., :1])], -1)
    zero = torch.zeros_like(lifted)
    rows = [
        torch.cat([*(lifted if i == j else zero for j in range(n)), -y[..., i : i + 1] * lifted], -1) for i in range(n)
    ]
    equations = torch.cat(rows, -2)
    null = torch.linalg.svd(equations, full_matrices=equations.shape[-2] < equations.shape[-1])[2][..., -1, :]
    matrix = null.unflatten(-1, (n + 1, n + 1))
    return matrix / matrix[..., -1:, -1:]


def _fit_similarities(x: Tensor, y: Tensor, *, centred: bool, scaled: bool) -> Tensor:
    """Return rotations, with a scale or a shift if wanted."""
    mx, my = (p.mean(-2, keepdim=True) if centred else torch.zeros_like(p[..., :1, :]) for p in (x, y))
    a, values = aligning_rotation(matmul((y - my).mT, x - mx))
    if scaled:
        a = a * (values.sum(-1) / (x - mx).square().sum((-2, -1)))[..., None, None]
    return _joined(a, (my - matmul(mx, a.mT)).squeeze(-2))


def _fit_affine(x: Tensor, y: Tensor, *, centred: bool) -> Tensor:
    mx, my = (p.mean(-2, keepdim=True) if centred else torch.zeros_like(p[..., :1, :]) for p in (x, y))
    a = torch.linalg.lstsq(x - mx, y - my).solution.mT
    return _joined(a, (my - matmul(mx, a.mT)).squeeze(-2))


def _eye(x: Tensor) -> Tensor:
    n = x.shape[-1]
    return torch.eye(n, dtype=x.dtype, device=x.device).expand(*x.shape[:-2], n, n)


def _joined(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrices [[a, b], [0, 1]]."""
    upper = torch.cat([a, b.unsqueeze(-1)], -1)
    last = torch.zeros_like(upper[..., :1, :])
    last[..., -1] = 1.0
    return torch.cat([upper, last], -2)
