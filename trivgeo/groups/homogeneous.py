r"""Points of homogeneous spaces as elements of a group: Stiefel and Grassmann manifolds, positive definite matrices.

A space M is the quotient of a group that moves it, by the subgroup that leaves one point alone. A lift of a point is a
random element that takes the base point there, uniform among all of them. Lift the data, fit a model on the group, and
project its samples. For spheres see `trivgeo.groups.rotations.sphere_to_rotation`.

Densities of models of compact groups are for measures of mass one on group and space:
:math:`p_M(x) = E[p_G(g)]` over the lifts g of x.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._numerics import in_single
from trivgeo._random import normal
from trivgeo._signatures import check_calls
from trivgeo.checks import check_count, check_tensor
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups.orthogonal import SO, is_proper

__all__ = [
    "grassmann_from_rotation",
    "grassmann_to_rotation",
    "spd_from_linear",
    "spd_to_linear",
    "stiefel_from_rotation",
    "stiefel_to_rotation",
]

_MAX_ENTRY_ERROR = 0.01  # of points that are given


def stiefel_from_rotation(g: Float[Tensor, "*batch n n"], k: int) -> Float[Tensor, "*batch n k"]:
    """Return the orthonormal k-frames of the Stiefel manifold V_k(R^n) in rotations g of SO(n): their first columns.

    Args:
        g: rotations ``[*batch, n, n]``.
        k: number of vectors, less than n.

    Raises:
        ShapeError: the elements are no square matrices.
        ConfigurationError: k is less than one, or not less than n.
    """
    return _check_square("g", g, k)[..., :k].clone()


def stiefel_to_rotation(x: Float[Tensor, "*batch n k"], generator: torch.Generator | None = None) -> Tensor:
    """Return rotations of SO(n) that begin with the frames x, ``[*batch, n, n]``, uniform among all of them.

    The columns of x are made orthonormal, in their order. Rows are NaN where x is not finite, or its columns are
    dependent: one is, to half of its digits, a combination of those before.

    ```python
    lifted = stiefel_to_rotation(frames)  # [m, 5, 2]
    model = GroupDiffusion(SO(5)).fit(lifted)
    drawn = stiefel_from_rotation(model.sample(1000), 2)
    ```

    Args:
        x: frames of k vectors, k less than n.
        generator: random numbers of the other columns; ``None`` is torch's.

    Raises:
        ShapeError: the frames are no matrices with more rows than columns.
    """
    x = _check_tall("x", x)
    return in_single(lambda x: complete_frame(x, generator), x)


def grassmann_from_rotation(g: Float[Tensor, "*batch n n"], k: int) -> Float[Tensor, "*batch n n"]:
    """Return the k-dimensional subspaces of R^n, points of the Grassmann manifold, that the first k columns span.

    Args:
        g: rotations ``[*batch, n, n]`` of SO(n).
        k: dimension of the subspaces, less than n.

    Returns:
        Orthogonal projectors on the subspaces, ``[*batch, n, n]``.

    Raises:
        ShapeError: the elements are no square matrices.
        ConfigurationError: k is less than one, or not less than n.
    """
    x = _check_square("g", g, k)[..., :k]
    return x @ x.mT


def grassmann_to_rotation(
    projector: Float[Tensor, "*batch n n"], k: int, generator: torch.Generator | None = None
) -> Tensor:
    """Return rotations of SO(n) whose first k columns span subspaces, ``[*batch, n, n]``, uniform among all of them.

    Rows are NaN where an entry is more than .01 away from the nearest orthogonal projector of rank k, or not finite.

    Args:
        projector: orthogonal projectors on the subspaces. Of a basis x of orthonormal columns it is ``x @ x.mT``.
        k: see `grassmann_from_rotation`.
        generator: see `stiefel_to_rotation`.

    Raises:
        ShapeError: the projectors are no square matrices.
        ConfigurationError: k is less than one, or not less than n.
    """
    projector = _check_square("projector", projector, k)

    def lift(p: Tensor) -> Tensor:
        finite = torch.isfinite(p).all(-1).all(-1)[..., None, None]
        p = torch.where(finite, p, torch.eye(p.shape[-1]).to(p))
        basis = torch.linalg.eigh(0.5 * (p + p.mT).detach())[1][..., -k:]
        near = ((p - basis @ basis.mT).abs() < _MAX_ENTRY_ERROR).all(-1).all(-1)[..., None, None]
        turn = _orthonormalised(normal((*p.shape[:-2], k, k), p, generator))[0]  # of O(k), by Haar's law
        return torch.where(finite & near, complete_frame(p @ basis @ turn, generator), torch.nan)

    return in_single(lift, projector)


def spd_from_linear(a: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Return the symmetric positive definite matrices :math:`A A^T` of linear maps A of GLPlus(n).

    Args:
        a: matrices of positive determinant, ``[*batch, n, n]``.

    Raises:
        ShapeError: the elements are no square matrices.
    """
    a = _check_square("a", a)
    return a @ a.mT


def spd_to_linear(p: Float[Tensor, "*batch n n"], generator: torch.Generator | None = None) -> Tensor:
    """Return linear maps A of GLPlus(n) with :math:`A A^T = P`, ``[*batch, n, n]``, uniform among all of them.

    Rows are NaN where P is not positive definite, or not symmetric within .01 of its largest entry.

    Args:
        p: symmetric positive definite matrices.
        generator: random numbers of the rotations that A is multiplied by; ``None`` is torch's.

    Raises:
        ShapeError: the elements are no square matrices.
    """
    p = _check_square("p", p)

    def lift(p: Tensor) -> Tensor:
        finite = torch.isfinite(p).all(-1).all(-1)[..., None, None]
        p = torch.where(finite, p, torch.eye(p.shape[-1]).to(p))
        size = p.abs().amax((-2, -1), keepdim=True)
        symmetric = ((p - p.mT).abs() <= _MAX_ENTRY_ERROR * size).all(-1).all(-1)[..., None, None]
        factor, info = torch.linalg.cholesky_ex(0.5 * (p + p.mT))
        turn = SO(p.shape[-1]).random_haar(*p.shape[:-2], generator=generator, dtype=p.dtype, device=p.device)
        return torch.where(finite & symmetric & (info == 0)[..., None, None], factor @ turn, torch.nan)

    return in_single(lift, p)


def complete_frame(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """The rotations that begin with the orthonormalised columns of x ``[*batch, n, k]``, by QR of random others."""
    n, k = x.shape[-2:]
    size = x.detach().abs().amax(-2, keepdim=True)
    x = torch.where(torch.isfinite(size) & (size > 0), x / size, torch.nan)
    x = x / x.detach().norm(dim=-2, keepdim=True)
    others = normal((*x.shape[:-1], n - k), x, generator)
    q, sines = _orthonormalised(torch.cat([x, others], -1))
    independent = (sines[..., :k] > math.sqrt(torch.finfo(q.dtype).eps)).all(-1)
    q = torch.where(independent[..., None, None], q, torch.nan)
    sign = torch.where(is_proper(q.nan_to_num()), 1.0, -1.0).to(q.dtype)
    return torch.cat([q[..., :-1], q[..., -1:] * sign[..., None, None]], -1)


def _orthonormalised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of x ``[*batch, n, k]`` by Gram and Schmidt, and the distance of each from the span of those before."""
    q, r = torch.linalg.qr(x)
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    return q * torch.where(diagonal < 0, -1.0, 1.0).to(q.dtype).unsqueeze(-2), diagonal.abs()


def _check_square(name: str, x: Tensor, k: int | None = None) -> Tensor:
    """Matrices ``[*batch, n, n]``, of which k columns are asked for."""
    x = check_tensor(name, x)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or x.shape[-1] < 2:
        raise ShapeError(f"{name}: expected matrices [*batch, n, n] with n of at least 2, got {list(x.shape)}")
    if k is not None and not check_count("k", k) < x.shape[-1]:
        raise ConfigurationError(f"k: expected less than n = {x.shape[-1]}, got {k}")
    return x


def _check_tall(name: str, x: Tensor) -> Tensor:
    """Matrices ``[*batch, n, k]`` with k < n."""
    x = check_tensor(name, x)
    if x.ndim < 2 or not 0 < x.shape[-1] < x.shape[-2]:
        raise ShapeError(f"{name}: expected frames [*batch, n, k] with k less than n, got {list(x.shape)}")
    return x


check_calls(__name__, __all__)
