"""Reductive groups: a matrix for the semisimple part, additive coordinates for the centre."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups._matrices import kernel
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.base import LieGroup

__all__ = ["ReductiveGroup", "check_homomorphism"]


class ReductiveGroup(LieGroup):
    r"""The product of a semisimple matrix group S and a vector group :math:`\mathbb R^k`.

    An element is ``[*batch, m * m + k]``: the m x m matrix of S, then the additive coordinates of the centre, in
    which scalings do not overflow and rotations keep their winding.

    Args:
        semisimple: the algebra of S, ``None`` if S is trivial.
        matrices: a faithful representation of it, ``[r, m, m]``.
        torus: the dimension k.

    Raises:
        AlgebraError: the matrices are not a representation.
        ConfigurationError: they are not faithful.
    """

    def __init__(self, semisimple: LieAlgebra | None, matrices: Tensor, torus: int) -> None:
        r, size = len(matrices), matrices.shape[-1]
        flat = matrices.reshape(r, size * size)
        c = torch.zeros(r + torus, r + torus, r + torus, dtype=torch.float64)
        if semisimple is not None:
            c[:r, :r, :r] = semisimple.structure_constants
            check_homomorphism(matrices, semisimple, "semisimple part")
        if r and int(torch.linalg.matrix_rank(flat)) < r:
            raise ConfigurationError(f"expected a faithful representation, got rank below {r}")
        super().__init__(LieAlgebra(c, tolerance=1e-7), (size * size + torus,))
        self.semisimple_dim = r
        self.torus_dim = torus
        self.size = size
        self._kernel = kernel(size)
        self._matrices = Constant(flat)
        self._dual = Constant(torch.linalg.pinv(flat) if r else flat.T)

    def __repr__(self) -> str:
        """Both dimensions."""
        return f"ReductiveGroup(semisimple={self.semisimple_dim}, centre={self.torus_dim})"

    def parts(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """The matrix ``[*batch, m, m]`` and the coordinates ``[*batch, k]``."""
        cut = self.size * self.size
        return g[..., :cut].unflatten(-1, (self.size, self.size)), g[..., cut:]

    def _join(self, matrix: Tensor, sigma: Tensor) -> Tensor:
        flat = matrix.flatten(-2)
        batch = torch.broadcast_shapes(flat.shape[:-1], sigma.shape[:-1])
        return torch.cat([flat.expand(*batch, -1), sigma.expand(*batch, -1)], -1)

    def matrix_of(self, y: Tensor) -> Tensor:
        """The matrix of a vector of the semisimple algebra: ``[*batch, r] -> [*batch, m, m]``."""
        return (y @ self._matrices.like(y)).unflatten(-1, (self.size, self.size))

    def vector_of(self, matrix: Tensor) -> Tensor:
        """The inverse of `matrix_of`, a projection for other matrices."""
        return matrix.flatten(-2) @ self._dual.like(matrix)

    def identity(
        self, *batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """The unit matrix and zero coordinates."""
        matrix = torch.eye(self.size, dtype=dtype, device=device).expand(*batch, -1, -1)
        return self._join(matrix, torch.zeros(*batch, self.torus_dim, dtype=dtype, device=device))

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        (a, s), (b, t) = self.parts(g), self.parts(h)
        return self._join(a @ b, s + t)

    def invert_matrix(self, a: Tensor) -> Tensor:
        """The inverse of an element's matrix, whose determinant is one."""
        return self._kernel.inverse(a, unimodular=True) if self.size else a

    def _inverse(self, g: Tensor) -> Tensor:
        a, s = self.parts(g)
        return self._join(self.invert_matrix(a), -s)

    def exp_matrix(self, y: Tensor) -> Tensor:
        """The matrix exp(y) of ``[*batch, r]``."""
        a = self.matrix_of(y)
        return self._kernel.exp(a) if self.size else a

    def _exp(self, v: Tensor) -> Tensor:
        return self._join(self.exp_matrix(v[..., : self.semisimple_dim]), v[..., self.semisimple_dim :])

    def _tangent(self, v: Tensor) -> Tensor:
        return self._join(self.matrix_of(v[..., : self.semisimple_dim]), v[..., self.semisimple_dim :])

    def log_matrix(self, a: Tensor) -> Tensor:
        """The logarithm of an element's matrix, as a vector ``[*batch, r]``; NaN where there is none in the algebra."""
        if self.size == 0:
            return a.new_zeros(*a.shape[:-2], 0)
        y = self.vector_of(self._kernel.log(a))
        if self.size == 2:
            return y
        # a principal logarithm may leave the algebra: then it is not one of this group
        defect = (self._kernel.exp(self.matrix_of(y)) - a).abs().amax((-2, -1))
        bound = torch.finfo(a.dtype).eps ** (1 / 3) * a.abs().amax((-2, -1))
        return torch.where((defect < bound).unsqueeze(-1), y, math.nan)

    def _log(self, g: Tensor) -> Tensor:
        a, s = self.parts(g)
        return torch.cat([self.log_matrix(a), s], -1)

    def polar(self, a: Tensor) -> tuple[Tensor, Tensor | None]:
        """Algebra vectors (p, k) with ``a = exp(k) exp(p)``; k is ``None`` where one logarithm has to do.

        For 2 x 2 matrices a rotation and a symmetric positive matrix, which exist for every element.
        """
        if self.size != 2:
            return self.log_matrix(a), None
        angle = torch.atan2(a[..., 1, 0] - a[..., 0, 1], a[..., 0, 0] + a[..., 1, 1])
        zero = torch.zeros_like(angle)
        generator = torch.stack([zero, -angle, angle, zero], -1).unflatten(-1, (2, 2))
        c, s = torch.cos(angle), torch.sin(angle)
        back = torch.stack([c, s, -s, c], -1).unflatten(-1, (2, 2))
        return self.log_matrix(back @ a), self.vector_of(generator)

    def adjoint_matrix(self, a: Tensor) -> Tensor:
        """Ad of an element's matrix on the semisimple algebra, ``[*batch, r, r]``."""
        inverse = self.invert_matrix(a).unsqueeze(-3)
        basis = self._matrices.like(a).unflatten(-1, (self.size, self.size))
        return self.vector_of(a.unsqueeze(-3) @ basis @ inverse).transpose(-1, -2)

    def _adjoint(self, g: Tensor) -> Tensor:
        a, _ = self.parts(g)
        total = torch.eye(self.dim, dtype=g.dtype, device=g.device).expand(*g.shape[:-1], -1, -1)
        if self.size == 0:
            return total.clone()
        lower = total[..., self.semisimple_dim :, :]
        upper = torch.cat(
            [self.adjoint_matrix(a), lower.new_zeros(*g.shape[:-1], self.semisimple_dim, self.torus_dim)], -1
        )
        return torch.cat([upper, lower], -2)

    def _log_modular(self, g: Tensor) -> Tensor:
        return g.new_zeros(self.batch_shape(g))


def check_homomorphism(matrices: Tensor, algebra: LieAlgebra, what: str) -> None:
    """Raise `AlgebraError` unless ``matrices [dim, k, k]`` represent the algebra."""
    commutators = matrices.unsqueeze(1) @ matrices - matrices @ matrices.unsqueeze(1)
    defect = commutators - torch.einsum("ijk,kab->ijab", algebra.structure_constants, matrices)
    size = max(1e-300, float(commutators.abs().max()), float(matrices.abs().max()))
    worst = defect.abs().amax((-2, -1))
    if worst.numel() and float(worst.max()) > 1e-8 * size:
        i, j = divmod(int(worst.argmax()), algebra.dim)
        opposite = commutators + torch.einsum("ijk,kab->ijab", algebra.structure_constants, matrices)
        hint = (
            "; with the opposite sign they do: the group's constants are minus those of the fields, negate the matrices"
            if float(opposite.abs().max()) <= 1e-8 * size
            else ""
        )
        raise AlgebraError(
            f"{what}: the matrices of [{algebra.names[i]}, {algebra.names[j]}] miss the bracket by "
            f"{float(worst.max()):.3g}{hint}"
        )
