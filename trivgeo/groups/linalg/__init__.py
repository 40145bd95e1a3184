r"""Functions of batches of small matrices, by size, with closed forms for small sizes.

Everything works under every transform of ``torch.func`` and in ``torch.compile``: nothing here uses ``solve``,
``det`` or ``slogdet``, which are wrong under ``vmap(jacfwd)`` (see `trivgeo._torch`), and nothing raises because
of one bad matrix in a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trivgeo._numerics import stumpff
from trivgeo.groups.linalg.any_size import AnySize, FourByFour
from trivgeo.groups.linalg.base import MatrixFunctions, largest_exponent
from trivgeo.groups.linalg.circular import circular, circular_pair, circular_slopes, sinc
from trivgeo.groups.linalg.components import (
    add_to_diagonal,
    confirmed,
    identity_like,
    matvec,
    product,
    transform_points,
)
from trivgeo.groups.linalg.size_three import ThreeByThree
from trivgeo.groups.linalg.size_two import OneByOne, TwoByTwo

if TYPE_CHECKING:
    from trivgeo.groups.algebra import LieAlgebra

__all__ = [
    "MatrixFunctions",
    "add_to_diagonal",
    "circular",
    "circular_pair",
    "circular_slopes",
    "confirmed",
    "identity_like",
    "largest_exponent",
    "matrix_functions",
    "matvec",
    "phi1_ad",
    "polar",
    "product",
    "sinc",
    "transform_points",
]

_ANY_SIZE = AnySize()
_BY_SIZE: dict[int, MatrixFunctions] = {1: OneByOne(), 2: TwoByTwo(), 3: ThreeByThree(), 4: FourByFour()}


def matrix_functions(size: int) -> MatrixFunctions:
    """The functions of matrices of a size."""
    return _BY_SIZE.get(size, _ANY_SIZE)


def phi1_ad(algebra: LieAlgebra, v: Tensor) -> Tensor:
    r"""The matrix :math:`\varphi_1(\mathrm{ad}_v)`, ``[*batch, n, n]``.

    For unimodular algebras of dimension 3, :math:`\mathrm{ad}_v^3 = q\, \mathrm{ad}_v` with
    :math:`q = \tfrac12 \mathrm{tr}\, \mathrm{ad}_v^2` (Cayley-Hamilton: v is in the kernel, the trace is zero), so the
    series sums to :math:`I + c_2(q)\, \mathrm{ad}_v + c_3(q)\, \mathrm{ad}_v^2`.
    """
    n = algebra.dim
    if algebra.is_abelian:
        return torch.eye(n, dtype=v.dtype, device=v.device).expand(*v.shape[:-1], n, n)
    ad = algebra.ad(v)
    if n == 3 and algebra.is_unimodular:
        square = ad @ ad
        _, _, c2, c3 = stumpff(0.5 * square.diagonal(dim1=-2, dim2=-1).sum(-1))
        return identity_like(ad) + c2[..., None, None] * ad + c3[..., None, None] * square
    return matrix_functions(n).phi1(ad)


def polar(matrix: Tensor, steps: int = 12) -> Tensor:
    """The orthogonal polar factor, by Newton's iteration ``X <- (X + X^-T) / 2``; differentiable at rotations."""
    x, solver = matrix, matrix_functions(matrix.shape[-1])
    for _ in range(steps):
        x = 0.5 * (x + solver.inverse(x).mT)
    return x
