r"""Points of homogeneous spaces as elements of a group: spheres, Stiefel, Grassmann, and positive definite matrices.

A space M is the quotient of a group that moves it, by the subgroup that leaves one point alone. A lift of a point is a
random element that takes the base point there, uniform among all of them. Lift the data, fit a model on the group, and
project its samples.

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
from trivgeo.checks import check_count, check_tensor, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups.orthogonal import SO, is_proper, orthonormalized, random_isometry

__all__ = [
    "grassmann_from_rotation",
    "grassmann_to_rotation",
    "spd_from_linear",
    "spd_to_linear",
    "sphere_from_rotation",
    "sphere_to_rotation",
    "stiefel_from_rotation",
    "stiefel_to_rotation",
]

_MAX_ENTRY_ERROR = 0.01  # largest error of an entry: absolute in a projector, else relative to the largest entry


@checked
def sphere_from_rotation(g: Float[Tensor, "*batch k k"]) -> Float[Tensor, "*batch k"]:
    """Return the points of the sphere S^n to which rotations g of SO(n + 1) take the pole: their first columns.

    The quotient map SO(n + 1) -> S^n takes Haar measure to the uniform distribution. Sample on the group, then project.
    """
    return g[..., 0].clone()


@checked
def sphere_to_rotation(x: Float[Tensor, "*batch k"], generator: torch.Generator | None = None) -> Tensor:
    """A rotation of SO(n + 1), k = n + 1, that takes the pole to the point x of S^n, uniform among all of them.

    NaN where x has length zero, or is not finite.

    Args:
        x: points, of any length but zero.
        generator: random numbers of the rotation about the pole; ``None`` is torch's.

    Raises:
        ShapeError: points have fewer than two coordinates.
    """
    x = check_tensor("x", x)
    if x.ndim < 1 or x.shape[-1] < 2:
        raise ShapeError(f"x: expected points [*batch, k] with k of at least 2, got {list(x.shape)}")
    return in_single(lambda x: complete_frame(x.unsqueeze(-1), generator), x)


@checked
def stiefel_from_rotation(g: Float[Tensor, "*batch n n"], k: int) -> Float[Tensor, "*batch n k"]:
    """Return the orthonormal k-frames of the Stiefel manifold V_k(R^n) in rotations g of SO(n): their first columns.

    Args:
        g: rotations ``[*batch, n, n]``.
        k: number of vectors, less than n.

    Raises:
        ShapeError: ``g`` holds no square matrices.
        ConfigurationError: k is less than one, or not less than n.
    """
    return _check_square("g", g, k)[..., :k].clone()


@checked
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
        ShapeError: ``x`` holds no matrices with more rows than columns.
    """
    x = _check_tall("x", x)
    return in_single(lambda x: complete_frame(x, generator), x)


@checked
def grassmann_from_rotation(g: Float[Tensor, "*batch n n"], k: int) -> Float[Tensor, "*batch n n"]:
    """Return the k-dimensional subspaces of R^n, points of the Grassmann manifold, that the first k columns span.

    Args:
        g: rotations ``[*batch, n, n]`` of SO(n).
        k: dimension of the subspaces, less than n.

    Returns:
        Orthogonal projectors on the subspaces, ``[*batch, n, n]``.

    Raises:
        ShapeError: ``g`` holds no square matrices.
        ConfigurationError: k is less than one, or not less than n.
    """
    x = _check_square("g", g, k)[..., :k]
    return x @ x.mT


@checked
def grassmann_to_rotation(
    projector: Float[Tensor, "*batch n n"], k: int, generator: torch.Generator | None = None
) -> Tensor:
    """Return rotations of SO(n) whose first k columns span subspaces, ``[*batch, n, n]``, uniform among all of them.

    Rows are NaN where an entry is more than .01 away from the nearest orthogonal projector of rank k, or not finite.

    Args:
        projector: orthogonal projectors on the subspaces, ``x @ x.mT`` for a basis x of orthonormal columns.
        k: see `grassmann_from_rotation`.
        generator: see `stiefel_to_rotation`.

    Raises:
        ShapeError: ``projector`` holds no square matrices.
        ConfigurationError: k is less than one, or not less than n.
    """
    projector = _check_square("projector", projector, k)

    def lift(p: Tensor) -> Tensor:
        finite = torch.isfinite(p).all(-1).all(-1)[..., None, None]
        p = torch.where(finite, p, torch.eye(p.shape[-1]).to(p))
        basis = torch.linalg.eigh(0.5 * (p + p.mT).detach())[1][..., -k:]
        near = ((p - basis @ basis.mT).abs() < _MAX_ENTRY_ERROR).all(-1).all(-1)[..., None, None]
        turn = random_isometry(k, p.shape[:-2], p, generator)
        return torch.where(finite & near, complete_frame(p @ basis @ turn, generator), torch.nan)

    return in_single(lift, projector)


@checked
def spd_from_linear(a: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Return the symmetric positive definite matrices :math:`A A^T` of linear maps A of GLPlus(n).

    Args:
        a: matrices of positive determinant, ``[*batch, n, n]``.

    Raises:
        ShapeError: ``a`` holds no square matrices.
    """
    a = _check_square("a", a)
    return a @ a.mT


@checked
def spd_to_linear(p: Float[Tensor, "*batch n n"], generator: torch.Generator | None = None) -> Tensor:
    """Return linear maps A of GLPlus(n) with :math:`A A^T = P`, ``[*batch, n, n]``, uniform among all of them.

    Rows are NaN where P is not positive definite, or not symmetric within .01 of its largest entry.

    Args:
        p: symmetric positive definite matrices.
        generator: random numbers of the rotations that A is multiplied by; ``None`` is torch's.

    Raises:
        ShapeError: ``p`` holds no square matrices.
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
    """Rotations that begin with the orthonormalised columns of x ``[*batch, n, k]``, completed at random by QR."""
    n, k = x.shape[-2:]
    size = x.detach().abs().amax(-2, keepdim=True)
    x = torch.where(torch.isfinite(size) & (size > 0), x / size, torch.nan)
    x = x / x.detach().norm(dim=-2, keepdim=True)
    others = normal((*x.shape[:-1], n - k), x, generator)
    q, sines = orthonormalized(torch.cat([x, others], -1))
    independent = (sines[..., :k] > math.sqrt(torch.finfo(q.dtype).eps)).all(-1)
    q = torch.where(independent[..., None, None], q, torch.nan)
    sign = torch.where(is_proper(q.nan_to_num()), 1.0, -1.0).to(q.dtype)
    return torch.cat([q[..., :-1], q[..., -1:] * sign[..., None, None]], -1)


def _check_square(name: str, x: Tensor, k: int | None = None) -> Tensor:
    """Check matrices ``[*batch, n, n]``, and that k is less than n."""
    x = check_tensor(name, x)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or x.shape[-1] < 2:
        raise ShapeError(f"{name}: expected matrices [*batch, n, n] with n of at least 2, got {list(x.shape)}")
    if k is not None and not check_count("k", k) < x.shape[-1]:
        raise ConfigurationError(f"k: expected less than n = {x.shape[-1]}, got {k}")
    return x


def _check_tall(name: str, x: Tensor) -> Tensor:
    x = check_tensor(name, x)
    if x.ndim < 2 or not 0 < x.shape[-1] < x.shape[-2]:
        raise ShapeError(f"{name}: expected frames [*batch, n, k] with k less than n, got {list(x.shape)}")
    return x
