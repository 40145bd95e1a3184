"""The projective group of R^n."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import Constant, is_abstract
from trivgeo.checks import check_count, checked
from trivgeo.errors import ShapeError
from trivgeo.groups.action import PointAction
from trivgeo.groups.basis import Scale
from trivgeo.groups.linalg import add_to_diagonal, transform_points
from trivgeo.groups.linalg.components import flatten_array
from trivgeo.groups.matrix import (
    MatrixGroup,
    conjugation,
    matrix_units,
    restore_determinant,
    unit_determinant,
)


@checked
@final
class Projective(MatrixGroup):
    r"""PGL(n + 1, R), homographies of R^n: matrices ``[*batch, n + 1, n + 1]`` of determinant one.

    For even n the matrix of a homography is unique. For odd n it is unique up to sign, and the group is the
    connected one, PSL(n + 1, R). Natural basis: :math:`e_{ij} - \delta_{ij} I / (n + 1)` row by row, without the last;
    for n = 2: e11 - I/3, e12, e13, e21, e22 - I/3, e23, e31, e32. The logarithm is the principal one of the matrix (for
    odd n, of whichever of the two matrices has one): then ``exp(log(g))`` is g up to sign.

    Args:
        n: the dimension of the space.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: n < 1.
    """

    def __init__(self, n: int, scale: Scale = None) -> None:
        check_count("n", n, 1)
        k = n + 1
        units, names = matrix_units(k)
        eye = torch.eye(k, dtype=torch.float64)
        traces = units.diagonal(dim1=-2, dim2=-1).sum(-1)
        basis = units - traces[:, None, None] * eye / k
        self._diagonal = Constant(eye.flatten()[:-1])
        super().__init__(basis[:-1], names[:-1], scale)

    def __repr__(self) -> str:
        return f"Projective({self.size - 1})"

    def from_matrix(self, matrix: Tensor) -> Tensor:
        """The element of any homography matrix ``[*batch, n + 1, n + 1]``, scaled to determinant one.

        NaN for determinant zero, and for a negative one if n is odd (the map reverses orientation).

        Raises:
            ShapeError: the matrices have the wrong size.
        """
        if tuple(matrix.shape[-2:]) != self.element_shape:
            raise ShapeError(f"matrix: expected [*batch, {self.size}, {self.size}], got {list(matrix.shape)}")
        return unit_determinant(matrix)

    def _project(self, g: Tensor) -> Tensor:
        return restore_determinant(g)

    def _inverse(self, g: Tensor) -> Tensor:
        return self._kernel.inverse(g, unimodular=True)

    def _coordinates(self, matrix: Tensor) -> Tensor:
        """The entries off the diagonal, and the differences of diagonal entries from the last one."""
        entries = flatten_array(matrix)
        return entries[..., :-1] - entries[..., -1:] * self._diagonal.matching(matrix)

    def _tangent(self, v: Tensor) -> Tensor:
        """The matrix with the coordinates as entries and the last entry zero, made trace-free."""
        matrix = torch.nn.functional.pad(v, (0, 1)).unflatten(-1, self._element_shape)
        return add_to_diagonal(matrix, -matrix.diagonal(dim1=-2, dim2=-1).mean(-1))

    def _adjoint(self, g: Tensor) -> Tensor:
        """The Kronecker product of g and its inverse transposed, in these coordinates."""
        return conjugation(g, self._inverse(g), traceless=True)

    def _log(self, g: Tensor) -> Tensor:
        if self.size % 2:
            return super()._log(g)
        sign = torch.where(g.diagonal(dim1=-2, dim2=-1).sum(-1) < 0, -1.0, 1.0).to(g.dtype)[..., None, None]
        v = super()._log(sign * g)
        if self.size == 2:
            return v
        found = torch.isfinite(v).all(-1)
        if is_abstract(g):
            return torch.where(found.unsqueeze(-1), v, super()._log(-sign * g))
        return v if bool(found.all()) else v.index_put((~found,), super()._log((-sign * g)[~found]))

    def action(self) -> PointAction:
        """The homography of points ``[*batch, p, n]``, defined where the denominator is not zero."""
        return _ProjectiveAction(self, (self.size - 1,))


class _ProjectiveAction(PointAction):
    r"""x -> (A x + b) / (c.x + d) for the matrix [[A, b], [c, d]]."""

    group: Projective

    def homogeneous(self, g: Tensor) -> Tensor:
        return self.group.check_elements(g)

    def from_homogeneous(self, matrix: Tensor) -> Tensor:
        return self.group.from_matrix(matrix)

    def _denominator(self, g: Tensor, x: Tensor) -> Tensor:
        return (g[..., -1, :-1] * x).sum(-1) + g[..., -1, -1]

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        d = self._denominator(g, x)
        upper = transform_points(g[..., :-1, :-1], x) + g[..., :-1, -1]
        return upper / torch.where(d == 0, 1.0, d).unsqueeze(-1)
