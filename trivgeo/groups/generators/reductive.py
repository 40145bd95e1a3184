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
from trivgeo.groups.generators.cover import angle_of_exp, angle_of_product, log_of, principal_angle, turn

__all__ = ["ReductiveGroup", "check_homomorphism"]


class ReductiveGroup(LieGroup):
    r"""The product of a semisimple matrix group S and a vector group :math:`\mathbb R^k`.

    An element is ``[*batch, m * m + k]``: the m x m matrix of S, then the additive coordinates of the centre, in
    which scalings do not overflow and rotations keep their winding. If S is a universal cover, of SL(2, R), its angle
    stands between them, ``[*batch, m * m + 1 + k]``.

    Args:
        semisimple: the algebra of S, ``None`` if S is trivial.
        matrices: a faithful representation of it, ``[r, m, m]``; for a cover one whose last block is one of SL(2, R).
        torus: the dimension k.
        covers: whether S is the universal cover of the matrix group.

    Raises:
        AlgebraError: the matrices are not a representation.
        ConfigurationError: they are not faithful.
    """

    def __init__(self, semisimple: LieAlgebra | None, matrices: Tensor, torus: int, covers: bool = False) -> None:
        r, size = len(matrices), matrices.shape[-1]
        flat = matrices.reshape(r, size * size)
        c = torch.zeros(r + torus, r + torus, r + torus, dtype=torch.float64)
        if semisimple is not None:
            c[:r, :r, :r] = semisimple.structure_constants
            check_homomorphism(matrices, semisimple, "semisimple part")
        if r and int(torch.linalg.matrix_rank(flat)) < r:
            raise ConfigurationError(f"expected a faithful representation, got rank below {r}")
        super().__init__(LieAlgebra(c, tolerance=1e-7), (size * size + covers + torus,))
        self.covers = covers
        self.semisimple_dim = r
        self.torus_dim = torus
        self.size = size
        self._kernel = kernel(size)
        self._matrices = Constant(flat)
        self._plane_dual = Constant(torch.linalg.pinv(matrices[:, -2:, -2:].flatten(1))) if covers else None
        self._dual = Constant(torch.linalg.pinv(flat) if r else flat.T)

    def __repr__(self) -> str:
        """Both dimensions."""
        cover = ", universal cover" if self.covers else ""
        return f"ReductiveGroup(semisimple={self.semisimple_dim}, centre={self.torus_dim}{cover})"

    def parts(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """The matrix ``[*batch, m, m]`` and the coordinates ``[*batch, k]``."""
        cut = self.size * self.size
        return g[..., :cut].unflatten(-1, (self.size, self.size)), g[..., cut + self.covers :]

    def angle(self, g: Tensor) -> Tensor:
        """The angle of an element of a cover, ``[*batch]``."""
        return g[..., self.size * self.size]

    def _join(self, matrix: Tensor, sigma: Tensor, angle: Tensor | None = None) -> Tensor:
        """The element; its angle is given for covers."""
        parts = [matrix.flatten(-2), sigma] if angle is None else [matrix.flatten(-2), angle.unsqueeze(-1), sigma]
        batch = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
        return torch.cat([part.expand(*batch, -1) for part in parts], -1)

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
        return self._join(matrix, torch.zeros(*batch, self.covers + self.torus_dim, dtype=dtype, device=device))

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        (a, s), (b, t) = self.parts(g), self.parts(h)
        product = a @ b
        if not self.covers:
            return self._join(product, s + t)
        return self._join(product, s + t, angle_of_product(product[..., -2:, -2:], self.angle(g) + self.angle(h)))

    def invert_matrix(self, a: Tensor) -> Tensor:
        """The inverse of an element's matrix, whose determinant is one."""
        return self._kernel.inverse(a, unimodular=True) if self.size else a

    def _inverse(self, g: Tensor) -> Tensor:
        a, s = self.parts(g)
        return self._join(self.invert_matrix(a), -s, -self.angle(g) if self.covers else None)

    def exp_matrix(self, y: Tensor) -> Tensor:
        """The matrix exp(y) of ``[*batch, r]``."""
        a = self.matrix_of(y)
        return self._kernel.exp(a) if self.size else a

    def _exp(self, v: Tensor) -> Tensor:
        y, sigma = v[..., : self.semisimple_dim], v[..., self.semisimple_dim :]
        angle = angle_of_exp(self.matrix_of(y)[..., -2:, -2:]) if self.covers else None
        return self._join(self.exp_matrix(y), sigma, angle)

    def _tangent(self, v: Tensor) -> Tensor:
        matrix = self.matrix_of(v[..., : self.semisimple_dim])
        angle = 0.5 * (matrix[..., -1, -2] - matrix[..., -2, -1]) if self.covers else None
        return self._join(matrix, v[..., self.semisimple_dim :], angle)

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
        if self._plane_dual is None:
            return torch.cat([self.log_matrix(a), s], -1)
        y = log_of(a[..., -2:, -2:], self.angle(g)).flatten(-2) @ self._plane_dual.like(g)
        return torch.cat([y, s], -1)

    def polar(self, g: Tensor) -> tuple[Tensor, Tensor | None]:
        """Vectors (p, k) of the semisimple algebra whose ``exp(k) exp(p)`` is the part of an element in S.

        k is ``None`` where one logarithm has to do. For SL(2, R) and its cover a rotation and a symmetric positive
        matrix, which exist for every element.
        """
        a, _ = self.parts(g)
        dual = self._plane_dual
        if dual is None:
            if self.size != 2:
                return self.log_matrix(a), None
            dual = self._dual
        plane = a[..., -2:, -2:]
        angle = self.angle(g) if self.covers else principal_angle(plane)
        zero = torch.zeros_like(angle)
        rotation = torch.stack([zero, -angle, angle, zero], -1)
        stretch = turn(plane, -angle)
        p = log_of(stretch, zero).flatten(-2) @ dual.like(a) if self.covers else self.log_matrix(stretch)
        return p, rotation @ dual.like(a)

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
