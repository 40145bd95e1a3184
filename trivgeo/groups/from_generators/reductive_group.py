"""Reductive groups: a matrix for the semisimple part, additive coordinates for the centre."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trivgeo._numerics import Constant, broadcast_shapes, plane_log_ratio
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.group import LieGroup
from trivgeo.groups.linalg import matrix_functions


def turn(matrix: Tensor, angle: Tensor) -> Tensor:
    """Return rotations by angles ``[*batch]``, in radians, times matrices ``[*batch, 2, 2]``."""
    c, s = torch.cos(angle), torch.sin(angle)
    return torch.stack([c, -s, s, c], -1).unflatten(-1, (2, 2)) @ matrix


def principal_angle(matrix: Tensor) -> Tensor:
    """Return the angle of the rotation in a ``matrix``, ``[*batch, 2, 2]``, between -pi and pi, ``[*batch]``."""
    return torch.atan2(matrix[..., 1, 0] - matrix[..., 0, 1], matrix[..., 0, 0] + matrix[..., 1, 1])


def angle_of_product(product: Tensor, total: Tensor) -> Tensor:
    """The angle of an element ``a b`` of the cover, from its matrix and the total of the angles of a and b.

    Turned back by both angles, ``a b`` is a product of two symmetric positive matrices, which has a positive trace and
    so an angle of less than a quarter turn.
    """
    return total + principal_angle(turn(product, -total))


def angle_of_exp(y: Tensor) -> Tensor:
    """The angle of ``exp(y)`` for trace-free matrices y, ``[*batch, 2, 2]``, continuous along ``exp(s y)``."""
    x, b, c = y[..., 0, 0], y[..., 0, 1], y[..., 1, 0]
    q, half = x * x + b * c, 0.5 * (c - b)
    elliptic = q < 0
    w = torch.where(elliptic, -q, 1.0).sqrt()
    turns = (w.detach() / math.pi).round()
    rest = w - math.pi * turns
    sign = torch.where(half < 0, -1.0, 1.0).to(y.dtype)
    elliptic_angle = sign * math.pi * turns + torch.atan2(half / w * torch.sin(rest), torch.cos(rest))
    r = torch.where(elliptic, 0.0, q)
    small = r < 1e-6
    root = torch.where(small, 1.0, r).sqrt()
    slope = torch.where(small, 1.0 - r / 3.0 + 2.0 * r * r / 15.0, torch.tanh(root) / root)
    return torch.where(elliptic, elliptic_angle, torch.atan(half * slope))


def log_of(matrix: Tensor, angle: Tensor) -> Tensor:
    """The trace-free logarithm of an element of the cover, ``[*batch, 2, 2]``; NaN where none exists.

    The ``angle`` of its rotation counts all turns.
    """
    halves = (angle.detach() / math.pi).round()
    sign = torch.where(halves % 2 == 0, 1.0, -1.0).to(matrix.dtype)
    near = sign[..., None, None] * matrix
    a, b, c, d = near[..., 0, 0], near[..., 0, 1], near[..., 1, 0], near[..., 1, 1]
    x = 0.5 * (a - d)
    f, square = plane_log_ratio(a, b, c, d)
    principal = f[..., None, None] * torch.stack([x, b, c, -x], -1).unflatten(-1, (2, 2))
    # further half turns about the same axis, which only rotations have
    elliptic = square < 0
    w = torch.where(elliptic, -square, 1.0).sqrt()  # |sin of the angle that is left|
    unit = torch.where(c - b < 0, -1.0, 1.0).to(matrix.dtype) / w
    axis = unit[..., None, None] * torch.stack([x, b, c, -x], -1).unflatten(-1, (2, 2))
    zero, one = torch.zeros_like(a), torch.ones_like(a)
    quarter = torch.stack([zero, -one, one, zero], -1).unflatten(-1, (2, 2))
    identity = (square == 0) & (b == 0) & (c == 0)
    axis = torch.where(elliptic[..., None, None], axis, torch.where(identity[..., None, None], quarter, math.nan))
    more = math.pi * halves[..., None, None] * axis
    return torch.where((halves == 0)[..., None, None], principal, principal + more)


class ReductiveGroup(LieGroup):
    r"""The product of a semisimple matrix group S and a vector group :math:`\mathbb R^k`.

    An element is ``[*batch, m * m + k]``: the m x m matrix of S, then the additive coordinates of the centre, in
    which scalings do not overflow and rotations keep their winding. Angles of factors of S that are universal covers of
    SL(2, R) stand between them, ``[*batch, m * m + c + k]``.

    Args:
        semisimple: the algebra of S, ``None`` if S is trivial.
        matrices: a faithful representation of it, ``[r, m, m]``; the last blocks are those of factors SL(2, R) of S
            that are covers.
        torus: the dimension k.
        covers: the number c of these factors.
        principal: whether `exp` is NaN for vectors that are no principal logarithms: those with an eigenvalue whose
            imaginary part exceeds pi, which a matrix cannot tell from others.

    Raises:
        AlgebraError: the matrices are not a representation.
        ConfigurationError: they are not faithful.
    """

    def __init__(
        self, semisimple: LieAlgebra | None, matrices: Tensor, torus: int, covers: int = 0, principal: bool = False
    ) -> None:
        r, size = len(matrices), matrices.shape[-1]
        flat = matrices.reshape(r, size * size)
        c = torch.zeros(r + torus, r + torus, r + torus, dtype=torch.float64)
        if semisimple is not None:
            c[:r, :r, :r] = semisimple.structure_constants
            check_homomorphism(matrices, semisimple, "semisimple part")
        if r and int(torch.linalg.matrix_rank(flat)) < r:
            raise ConfigurationError(f"expected a faithful representation, got rank below {r}")
        super().__init__(LieAlgebra(c, tolerance=1e-7), (size * size + covers + torus,))
        self.covers, self._principal = covers, principal and r > 0
        self.semisimple_dim = r
        self.torus_dim = torus
        self.size = size
        self._kernel = matrix_functions(size)
        self._matrices = Constant(flat)
        planes = [_plane(matrices, covers - i) for i in range(covers)]
        self._plane_duals = tuple(Constant(torch.linalg.pinv(plane.flatten(1))) for plane in planes)
        self._dual = Constant(torch.linalg.pinv(flat) if r else flat.T)

    def __repr__(self) -> str:
        cover = f", covers={self.covers}" if self.covers else ""
        return f"ReductiveGroup(semisimple={self.semisimple_dim}, centre={self.torus_dim}{cover})"

    def parts(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Split elements g into the matrix ``[*batch, m, m]`` and the torus coordinates ``[*batch, k]``."""
        cut = self.size * self.size
        return g[..., :cut].unflatten(-1, (self.size, self.size)), g[..., cut + self.covers :]

    def angles(self, g: Tensor) -> Tensor:
        """Return the angles of the covers in elements g, ``[*batch, c]``."""
        cut = self.size * self.size
        return g[..., cut : cut + self.covers]

    def _planes(self, matrix: Tensor) -> Tensor:
        """The blocks of the covers, ``[*batch, c, 2, 2]``."""
        return torch.stack([_plane(matrix, self.covers - i) for i in range(self.covers)], -3)

    def _join(self, matrix: Tensor, sigma: Tensor, angles: Tensor | None = None) -> Tensor:
        """The element; angles are given for covers."""
        parts = [matrix.flatten(-2), sigma] if angles is None else [matrix.flatten(-2), angles, sigma]
        batch = broadcast_shapes(*(part.shape[:-1] for part in parts))
        return torch.cat([part.expand(*batch, -1) for part in parts], -1)

    def matrix_of(self, y: Tensor) -> Tensor:
        """Return the matrix ``[*batch, m, m]`` of vectors y of the semisimple algebra, ``[*batch, r]``."""
        return (y @ self._matrices.matching(y)).unflatten(-1, (self.size, self.size))

    def vector_of(self, matrix: Tensor) -> Tensor:
        """Return the vector of ``matrix``, the inverse of `matrix_of`; a projection for other matrices."""
        return matrix.flatten(-2) @ self._dual.matching(matrix)

    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        coordinates = torch.zeros(self.covers + self.torus_dim, dtype=dtype, device=device)
        return self._join(torch.eye(self.size, dtype=dtype, device=device), coordinates)

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        (a, s), (b, t) = self.parts(g), self.parts(h)
        product = a @ b
        if not self.covers:
            return self._join(product, s + t)
        return self._join(product, s + t, angle_of_product(self._planes(product), self.angles(g) + self.angles(h)))

    def invert_matrix(self, a: Tensor) -> Tensor:
        """Return the inverse of an element's matrix a, whose determinant is one."""
        return self._kernel.inverse(a, unimodular=True) if self.size else a

    def _inverse(self, g: Tensor) -> Tensor:
        a, s = self.parts(g)
        return self._join(self.invert_matrix(a), -s, -self.angles(g) if self.covers else None)

    def exp_matrix(self, y: Tensor) -> Tensor:
        """Return the matrix exponential ``[*batch, m, m]`` of vectors y of the semisimple algebra, ``[*batch, r]``."""
        a = self.matrix_of(y)
        return self._kernel.exp(a) if self.size else a

    def _exp(self, v: Tensor) -> Tensor:
        y, sigma = v[..., : self.semisimple_dim], v[..., self.semisimple_dim :]
        angles = angle_of_exp(self._planes(self.matrix_of(y))) if self.covers else None
        element = self._join(self.exp_matrix(y), sigma, angles)
        if not self._principal:
            return element
        # eigenvalues refuse numbers that are not finite
        turns = torch.linalg.eigvals(self.matrix_of(y.detach()).nan_to_num(0.0, 0.0, 0.0)).imag
        return torch.where(turns.amax(-1, keepdim=True) < math.pi, element, math.nan)

    def _tangent(self, v: Tensor) -> Tensor:
        matrix = self.matrix_of(v[..., : self.semisimple_dim])
        if not self.covers:
            return self._join(matrix, v[..., self.semisimple_dim :])
        planes = self._planes(matrix)
        return self._join(matrix, v[..., self.semisimple_dim :], 0.5 * (planes[..., 1, 0] - planes[..., 0, 1]))

    def log_matrix(self, a: Tensor) -> Tensor:
        """Return the vector ``[*batch, r]`` whose exponential is an element's matrix a, ``[*batch, m, m]``.

        NaN where the algebra has no logarithm of the matrix.
        """
        if self.size == 0:
            return a.new_zeros(*a.shape[:-2], 0)
        y = self.vector_of(self._kernel.log(a))
        if self.size == 2:
            return y
        # a principal logarithm that is not in the algebra is not one of this group
        defect = (self._kernel.exp(self.matrix_of(y)) - a).abs().amax((-2, -1))
        bound = torch.finfo(a.dtype).eps ** (1 / 3) * a.abs().amax((-2, -1))
        return torch.where((defect < bound).unsqueeze(-1), y, math.nan)

    def _log(self, g: Tensor) -> Tensor:
        a, s = self.parts(g)
        if not self.covers:
            return torch.cat([self.log_matrix(a), s], -1)
        y = self._vector_of_planes(log_of(self._planes(a), self.angles(g)))
        return torch.cat([y + self._log_of_others(g), s], -1)

    def _vector_of_planes(self, planes: Tensor) -> Tensor:
        """The vector of trace-free matrices ``[*batch, c, 2, 2]`` of the covers."""
        parts = (
            plane.flatten(-2) @ dual.matching(plane)
            for plane, dual in zip(planes.unbind(-3), self._plane_duals, strict=True)
        )
        return sum(parts, start=planes.new_zeros(()))

    def _log_of_others(self, g: Tensor) -> Tensor:
        """The logarithm of the factors that are not covers."""
        if self.semisimple_dim == 3 * self.covers:
            return g.new_zeros(())
        a, _ = self.parts(g)
        p, rotation = self._polar_of_covers(g)
        a = self.exp_matrix(-p) @ self.exp_matrix(-rotation) @ a
        return self.log_matrix(a)

    def _polar_of_covers(self, g: Tensor) -> tuple[Tensor, Tensor]:
        planes, angles = self._planes(self.parts(g)[0]), self.angles(g)
        zero = torch.zeros_like(angles)
        rotation = torch.stack([zero, -angles, angles, zero], -1).unflatten(-1, (2, 2))
        stretch = log_of(turn(planes, -angles), zero)
        return self._vector_of_planes(stretch), self._vector_of_planes(rotation)

    def polar(self, g: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return vectors (p, k) of the semisimple algebra whose ``exp(k) exp(p)`` is the part of g in S.

        k is ``None`` where one logarithm has to do. For SL(2, R) and its covers the factors are a rotation and a
        symmetric positive matrix, which exist for every element.
        """
        a, _ = self.parts(g)
        if self.covers:
            p, rotation = self._polar_of_covers(g)
            return p + self._log_of_others(g), rotation
        if self.size != 2:
            return self.log_matrix(a), None
        angle = principal_angle(a)
        zero = torch.zeros_like(angle)
        rotation = torch.stack([zero, -angle, angle, zero], -1)
        return self.log_matrix(turn(a, -angle)), rotation @ self._dual.matching(a)

    def adjoint_matrix(self, a: Tensor) -> Tensor:
        """Return Ad of an element's matrix a on the semisimple algebra, ``[*batch, r, r]``."""
        inverse = self.invert_matrix(a).unsqueeze(-3)
        basis = self._matrices.matching(a).unflatten(-1, (self.size, self.size))
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


def _plane(matrix: Tensor, last: int) -> Tensor:
    """The block of size two that is number ``last`` from the end."""
    start = matrix.shape[-1] - 2 * last
    return matrix[..., start : start + 2, start : start + 2]


def check_homomorphism(matrices: Tensor, algebra: LieAlgebra, what: str) -> None:
    """Check that ``matrices``, ``[dim, k, k]``, represent the algebra; the message calls them ``what``.

    Raises:
        AlgebraError: the commutator of two matrices is not the matrix of the bracket.
    """
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
            f"{what}: expected matrices with the brackets of the algebra, but the commutator for [{algebra.names[i]}, "
            f"{algebra.names[j]}] is off by {float(worst.max()):.3g}{hint}"
        )
