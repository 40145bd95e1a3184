"""Linear groups together with the translations: rigid and affine motions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._numerics import Constant, broadcast_shapes, is_traced, log_abs_det, polynomial
from trivgeo.checks import check_choice, check_count, check_tensor, checked
from trivgeo.errors import ShapeError
from trivgeo.groups.action import PointAction
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.basis import Scale
from trivgeo.groups.group import LieGroup, check_broadcast, check_natural
from trivgeo.groups.linalg import (
    circular,
    circular_slopes,
    matrix_functions,
    matvec,
    phi1_ad,
    product,
    sinc,
    transform_points,
)
from trivgeo.groups.linalg.circular import COTANGENT_SERIES
from trivgeo.groups.linalg.components import (
    Rows,
    block_lower,
    block_lower_rows,
    concatenate,
    cross,
    dot,
    entry_rows,
    from_entries,
    from_rows,
    is_small_batch,
    last_entries,
    multiply_rows,
    polynomial_rows,
)
from trivgeo.groups.matrix import GLPlus, MatrixGroup, where_member
from trivgeo.groups.orthogonal import SO, axial_entries, cross_rows, rotation_rows

__all__ = ["SE", "Affine", "ExtendedSE", "InhomogeneousGroup"]

_COTANGENT_RADIUS = 1.0  # largest squared angle of the series of the inverse of phi_1
_MAX_LAST_ROW_ERROR = 1e-5  # error of an entry of the last row (0, ..., 0, 1) of a homogeneous matrix


@checked
class InhomogeneousGroup(LieGroup):
    r"""A linear group L of R^n together with the translations: maps x -> A x + b, elements ``[A | b]``, ``[n, n + 1]``.

    The product is :math:`(A_1 A_2,\; A_1 b_2 + b_1)`; the exponential of (Y, z) is
    :math:`(e^Y,\; \varphi_1(Y) z)`. Basis: the basis of L, then the translations.

    Args:
        linear: the group L, in its natural basis.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: the linear group carries a scale of its own.

    Example:
        >>> group = InhomogeneousGroup(SL(2))  # maps of the plane that keep areas
    """

    def __init__(self, linear: MatrixGroup, scale: Scale = None) -> None:
        check_natural(linear)
        n = linear.size
        names = [f"T{i + 1}" for i in range(n)]
        translations = LieAlgebra(torch.zeros(n, n, n, dtype=torch.float64), names)
        derivations = linear.hat(torch.eye(linear.dim, dtype=torch.float64))
        algebra = LieAlgebra.semidirect_sum(linear.algebra, translations, derivations)
        self.linear = linear
        self._kernel = matrix_functions(n)
        self._last = Constant(torch.eye(n + 1)[-1])
        self.size = n
        super().__init__(algebra, (n, n + 1), scale)

    def __repr__(self) -> str:
        what = self.linear if type(self) is InhomogeneousGroup else self.size
        return f"{type(self).__name__}({what!r})"

    @property
    def num_components(self) -> int:
        return self.linear.num_components

    def _components(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        a = self.linear._components(dtype, device)
        return torch.cat([a, torch.zeros_like(a[..., :1])], -1)

    def split(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Split elements g into the linear part A ``[*batch, n, n]`` and the translation b ``[*batch, n]``."""
        g = self.check_elements(g)
        return self._split(g)

    def _split(self, g: Tensor) -> tuple[Tensor, Tensor]:
        return g[..., : self.size], g[..., self.size]

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        """The element ``x -> a x + b``, with a not checked to be in the linear group; batches broadcast.

        Args:
            a: matrices ``[*batch, n, n]``.
            b: translations ``[*batch, n]``.

        Raises:
            ShapeError: a or b has another shape, or batches do not broadcast.
        """
        try:
            batch = broadcast_shapes(a.shape[:-2], b.shape[:-1])
            a, b = a.expand(*batch, self.size, self.size), b.expand(*batch, self.size)
        except RuntimeError as error:
            raise ShapeError(
                f"a, b: expected [*batch, {self.size}, {self.size}] and [*batch, {self.size}], got {list(a.shape)} and "
                f"{list(b.shape)}"
            ) from error
        return concatenate([a, b.unsqueeze(-1)], rank=2)

    def homogeneous(self, g: Tensor) -> Tensor:
        """Return the matrix ``[[A, b], [0, 1]]`` of elements g, ``[*batch, n + 1, n + 1]``."""
        g = self.check_elements(g)
        last = torch.eye(self.size + 1, dtype=g.dtype, device=g.device)[-1:]
        return torch.cat([g, last.expand(*self.batch_shape(g), -1, -1)], -2)

    def from_homogeneous(self, matrix: Float[Tensor, "*batch k k"]) -> Tensor:
        """The element of a matrix ``[[A, b], [0, 1]]``, the inverse of `homogeneous`.

        NaN where A is not in the linear group, such as a reflection for SE(n), or the last row is not (0, ..., 0, 1).
        Small errors of A stay as they are, see `project`.

        Raises:
            ShapeError: the matrices are not of size n + 1.
        """
        matrix, k = check_tensor("matrix", matrix), self.size + 1
        if matrix.ndim < 2 or matrix.shape[-2:] != (k, k):
            raise ShapeError(f"matrix: expected [*batch, {k}, {k}], got {list(matrix.shape)}")
        last = torch.eye(k, dtype=matrix.dtype, device=matrix.device)[-1]
        good = ((matrix[..., -1, :] - last).detach().abs() <= _MAX_LAST_ROW_ERROR).all(-1)
        g = torch.where(good[..., None, None], matrix[..., :-1, :], torch.nan)
        return where_member(self.linear, g[..., :-1], g)

    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return torch.eye(self.size, self.size + 1, dtype=dtype, device=device)

    def _project(self, g: Tensor) -> Tensor:
        a, b = self._split(g)
        return self.join(self.linear._project(a), b)

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        if is_traced():
            left = entry_rows(g)
            rows = multiply_rows([row[:-1] for row in left], entry_rows(h))
            return from_rows([[*row[:-1], row[-1] + b] for row, (*_, b) in zip(rows, left, strict=True)])
        # (A, 0) h + (0, b): fewer kernels than joining the two parts
        return product(g[..., : self.size], h, g * self._last.matching(g))

    def _inverse(self, g: Tensor) -> Tensor:
        a = self.linear._inverse(g[..., : self.size])
        return concatenate([a, -product(a, g[..., self.size :])], rank=2)

    def _halves(self, v: Tensor) -> tuple[Tensor, Tensor]:
        return v[..., : self.linear.dim], v[..., self.linear.dim :]

    def _tangent(self, v: Tensor) -> Tensor:
        y, z = self._halves(v)
        return concatenate([self.linear._tangent(y), z.unsqueeze(-1)], rank=2)

    def _exp(self, v: Tensor) -> Tensor:
        y, z = self._halves(v)
        return self._kernel.affine_exp(self.linear._tangent(y), z)

    def _log(self, g: Tensor) -> Tensor:
        a, b = self._split(g)
        y = self.linear._log(a)
        return concatenate([y, self._translation_log(y, a, b)])

    def _translation_log(self, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """z with phi_1(Y) z = b, for A = e^Y; NaN where rounding leaves no correct digit."""
        return self._kernel.translation_log(self.linear._tangent(y), a, b)

    def _adjoint(self, g: Tensor) -> Tensor:
        """The matrix with Ad_A and A on the diagonal, and minus the images of b under the linear algebra below."""
        a, b = self._split(g)
        ad = self.linear._adjoint(a)
        return block_lower(ad, self._adjoint_corner(a, b, ad), a)

    def _adjoint_corner(self, a: Tensor, b: Tensor, ad: Tensor) -> Tensor:
        """Column j: minus the matrix of Ad_A e_j applied to b, ``[*batch, n, dim L]``."""
        return -matvec(self.linear._tangent(ad.mT), b.unsqueeze(-2)).mT

    def action(self) -> PointAction:
        return _InhomogeneousAction(self, (self.size,))


class _InhomogeneousAction(PointAction):
    group: InhomogeneousGroup
    _is_affine = True

    def homogeneous(self, g: Tensor) -> Tensor:
        return self.group.homogeneous(g)

    def from_homogeneous(self, matrix: Tensor) -> Tensor:
        return self.group.project(self.group.from_homogeneous(matrix))

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        return transform_points(g[..., :-1], x) + g[..., -1]


@checked
@final
class SE(InhomogeneousGroup):
    r"""SE(n), rigid motions x -> R x + b, elements ``[R | b]``, ``[*batch, n, n + 1]``.

    Natural basis: the basis of `SO`, then the translations. For n = 2 and 3 all operations are closed forms, and every
    element has a logarithm. For n > 3 an element has a logarithm if its rotation has no eigenvalue -1.

    Args:
        n: the dimension of the space.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: n < 2.
    """

    linear: SO

    def __init__(self, n: int, scale: Scale = None) -> None:
        self._closed = _CLOSED_FORMS.get(n)
        super().__init__(SO(n), scale)

    def _inverse(self, g: Tensor) -> Tensor:
        if self._closed is None or is_small_batch(g):
            return super()._inverse(g)
        *columns, shift = zip(*entry_rows(g), strict=True)
        return from_rows([[*column, -dot(column, shift)] for column in columns])

    def _exp(self, v: Tensor) -> Tensor:
        if self._closed is None:
            return super()._exp(v)
        entries = last_entries(v)
        return from_rows(self._closed.exp(entries[: self.linear.dim], entries[self.linear.dim :]))

    def _log(self, g: Tensor) -> Tensor:
        if self._closed is None:
            return super()._log(g)
        rows = entry_rows(g)
        a, b = [row[:-1] for row in rows], [row[-1] for row in rows]
        turn = self.linear._log_entries(a, self._kernel.determinant(g[..., : self.size].detach()))
        return from_entries([*turn, *self._closed.translation_log(turn, a, b)])

    def _adjoint(self, g: Tensor) -> Tensor:
        if self._closed is None:
            return super()._adjoint(g)
        rows = entry_rows(g)
        return from_rows(self._closed.adjoint([row[:-1] for row in rows], [row[-1] for row in rows]))

    def _left_jacobian(self, v: Tensor) -> Tensor:
        if self.size != 3:
            return phi1_ad(self._natural_algebra, v)
        entries = last_entries(v)
        return from_rows(_left_jacobian_of_space(entries[:3], entries[3:]))


class _ClosedForms(ABC):
    """Rigid motions of one dimension n in closed form, vectors and matrices given by their entries."""

    @abstractmethod
    def exp(self, y: Sequence[Tensor], z: Sequence[Tensor]) -> Rows:
        """``[R | b]`` for a rotation vector y and a translation vector z of the algebra."""

    @abstractmethod
    def translation_log(self, y: Sequence[Tensor], a: Rows, b: Sequence[Tensor]) -> list[Tensor]:
        """z with phi_1(Y) z = b, for the rotation a = e^Y."""

    @abstractmethod
    def adjoint(self, a: Rows, b: Sequence[Tensor]) -> Rows:
        """The matrix with Ad_A and A on the diagonal; column j below is minus the matrix of Ad_A e_j applied to b."""


class _PlaneMotions(_ClosedForms):
    """phi_1 of an angle a is the rotation by a / 2 times sin(a / 2) / (a / 2)."""

    def exp(self, y: Sequence[Tensor], z: Sequence[Tensor]) -> Rows:
        half = 0.5 * y[0]
        cos, sin = half.cos(), half.sin()
        factor = sinc(half, sin)
        p, q = (factor * x for x in z)
        c, s = 1.0 - 2.0 * sin * sin, 2.0 * sin * cos
        return [[c, -s, cos * p - sin * q], [s, c, sin * p + cos * q]]

    def translation_log(self, y: Sequence[Tensor], a: Rows, b: Sequence[Tensor]) -> list[Tensor]:
        half, (p, q) = 0.5 * y[0], b
        cot = half.cos() / sinc(half, half.sin())
        return [cot * p + half * q, cot * q - half * p]

    def adjoint(self, a: Rows, b: Sequence[Tensor]) -> Rows:
        return block_lower_rows([[torch.ones_like(b[0])]], [[b[1]], [-b[0]]], a)


class _SpaceMotions(_ClosedForms):
    def exp(self, y: Sequence[Tensor], z: Sequence[Tensor]) -> Rows:
        c1, c2, c3 = circular(dot(y, y))
        once = cross(y, z)
        b = [p + c2 * q + c3 * r for p, q, r in zip(z, once, cross(y, once), strict=True)]
        return [[*row, x] for row, x in zip(rotation_rows(y, c1, c2), b, strict=True)]

    def translation_log(self, y: Sequence[Tensor], a: Rows, b: Sequence[Tensor]) -> list[Tensor]:
        r"""phi_1(K)^-1 = I - K / 2 + f K^2 with f = 1 / x^2 - cot(x / 2) / (2 x), x the angle.

        :math:`x \cot(x / 2) = x \sin x / (1 - \cos x)`, whose sine and cosine the rotation gives.
        """
        square = dot(y, y)
        small = square < _COTANGENT_RADIUS
        near = polynomial(torch.where(small, square, 0.0), COTANGENT_SERIES)
        turned = dot(axial_entries(a), y)  # 2 x sin x
        versine = 3.0 - (a[0][0] + a[1][1] + a[2][2])
        far = (1.0 - 0.5 * turned / torch.where(small, 1.0, versine)) / torch.where(small, 1.0, square)
        f = torch.where(small, near, far)
        once = cross(y, b)
        return [p - 0.5 * q + f * r for p, q, r in zip(b, once, cross(y, once), strict=True)]

    def adjoint(self, a: Rows, b: Sequence[Tensor]) -> Rows:
        columns = [cross(b, column) for column in zip(*a, strict=True)]  # -(R e_j) x b
        return block_lower_rows(a, list(zip(*columns, strict=True)), a)


_CLOSED_FORMS: dict[int, _ClosedForms] = {2: _PlaneMotions(), 3: _SpaceMotions()}


def _left_jacobian_of_space(turn: Sequence[Tensor], shift: Sequence[Tensor]) -> Rows:
    r"""[[J, 0], [Q, J]]: Q is the derivative of J = I + c2 K + c3 K^2 along the translation.

    [[K, 0], [T, K]] is K over the dual numbers (Barfoot and Furgale 2014 give Q in another form).
    """
    norm = dot(turn, turn)
    c1, c2, c3 = circular(norm)
    d2, d3 = circular_slopes(norm, c1, c2, c3)
    change = -2.0 * dot(turn, shift)
    d2, d3 = change * d2, change * d3
    k, t = cross_rows(turn), cross_rows(shift)
    square = [[turn[i] * turn[j] - norm if i == j else turn[i] * turn[j] for j in range(3)] for i in range(3)]
    mixed = [[turn[i] * shift[j] + turn[j] * shift[i] for j in range(3)] for i in range(3)]
    jacobian = polynomial_rows([torch.ones_like(norm), c2, c3], [k, square])
    lower = polynomial_rows([change * c3, c2, c3, d2, d3], [t, mixed, k, square])
    return block_lower_rows(jacobian, lower, jacobian)


@checked
@final
class ExtendedSE(LieGroup):
    r"""SE_k(n): a rotation with k vectors that it turns, elements ``[R | b_1 ... b_k]``, ``[*batch, n, n + k]``.

    SE_2(3) holds the rotation, velocity and position of a body (Barrau and Bonnabel 2017); with more vectors, landmarks
    are in the element, too. The product is :math:`(R_1 R_2,\; R_1 b^2_i + b^1_i)`, and the exponential of
    :math:`(Y, z_i)` is :math:`(e^Y,\; \varphi_1(Y) z_i)`: all operations are closed forms, and every element has a
    logarithm. Each pair of R and one b_i is an element of SE(n), see `pose`.

    Natural basis: the basis of `SO`, then the translations of the first vector, of the second one, and so on.

    Args:
        k: the number of vectors.
        n: the dimension of the space, 2 or 3.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: k < 1, or n is neither 2 nor 3.

    Example:
        >>> group = ExtendedSE(2)
        >>> g = group.exp(torch.randn(5, 9))  # rotation, velocity and position
        >>> rotation, vectors = group.split(g)
        >>> vectors.shape
        torch.Size([5, 3, 2])
    """

    def __init__(self, k: int, n: int = 3, scale: Scale = None) -> None:
        self.num_vectors = check_count("k", k)
        self.size = check_choice("n", n, tuple(_CLOSED_FORMS))
        self.linear = SO(n)
        self._closed = _CLOSED_FORMS[n]
        names = [f"T{i + 1}{j + 1}" for i in range(k) for j in range(n)]
        translations = LieAlgebra(torch.zeros(k * n, k * n, k * n, dtype=torch.float64), names)
        turns = self.linear.hat(torch.eye(self.linear.dim, dtype=torch.float64))
        derivations = torch.stack([torch.block_diag(*[turn] * k) for turn in turns])
        algebra = LieAlgebra.semidirect_sum(self.linear.algebra, translations, derivations)
        self._last = Constant(torch.eye(n + k)[n:])
        super().__init__(algebra, (n, n + k), scale)

    def __repr__(self) -> str:
        return f"ExtendedSE({self.num_vectors}, {self.size})"

    def split(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Split elements g into rotations ``[*batch, n, n]`` and their vectors, the columns of ``[*batch, n, k]``."""
        g = self.check_elements(g)
        return g[..., : self.size], g[..., self.size :]

    def join(self, rotation: Float[Tensor, "*#batch n n"], vectors: Float[Tensor, "*#batch n k"]) -> Tensor:
        """Return the element of rotations, which are not checked, and k ``vectors`` in columns; batches broadcast.

        Args:
            rotation: matrices ``[*batch, n, n]``.
            vectors: columns b_1, ..., b_k, ``[*batch, n, k]``.

        Raises:
            ShapeError: an argument has another shape.
        """
        n, k = self.size, self.num_vectors
        for name, part, columns in (("rotation", rotation, n), ("vectors", vectors, k)):
            if part.shape[-2:] != (n, columns):
                raise ShapeError(f"{name}: expected [*batch, {n}, {columns}], got {list(part.shape)}")
        check_broadcast(rotation.shape[:-2], vectors.shape[:-2])
        batch = broadcast_shapes(rotation.shape[:-2], vectors.shape[:-2])
        return torch.cat([rotation.expand(*batch, n, n), vectors.expand(*batch, n, k)], -1)

    def pose(self, g: Tensor, i: int = -1) -> Tensor:
        """Return the elements of SE(n) of the rotation and the i-th vector of g, ``[*batch, n, n + 1]``.

        Args:
            g: elements.
            i: number of the vector; default: the last one, the position in SE_2(3).

        Raises:
            ConfigurationError: there is no such vector.
        """
        check_choice("i", i, range(-self.num_vectors, self.num_vectors))
        rotation, vectors = self.split(g)
        return torch.cat([rotation, vectors[..., i].unsqueeze(-1)], -1)

    def homogeneous(self, g: Tensor) -> Tensor:
        """Return the matrix ``[[R, b], [0, I]]`` of elements g, ``[*batch, n + k, n + k]``."""
        g = self.check_elements(g)
        last = self._last.matching(g)
        return torch.cat([g, last.expand(*self.batch_shape(g), -1, -1)], -2)

    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return torch.eye(self.size, self.size + self.num_vectors, dtype=dtype, device=device)

    def _project(self, g: Tensor) -> Tensor:
        return torch.cat([self.linear._project(g[..., : self.size]), g[..., self.size :]], -1)

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        r, b = g[..., : self.size], g[..., self.size :]
        turned = product(r, h)
        return torch.cat([turned[..., : self.size], turned[..., self.size :] + b], -1)

    def _inverse(self, g: Tensor) -> Tensor:
        back = g[..., : self.size].mT
        return torch.cat([back, -product(back, g[..., self.size :])], -1)

    def _parts(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Rotation vectors ``[*batch, d]`` and translation vectors, the columns of ``[*batch, n, k]``."""
        return v[..., : self.linear.dim], v[..., self.linear.dim :].unflatten(-1, (self.num_vectors, self.size)).mT

    def _tangent(self, v: Tensor) -> Tensor:
        y, z = self._parts(v)
        return torch.cat([self.linear._tangent(y), z], -1)

    def _exp(self, v: Tensor) -> Tensor:
        y, z = self._parts(v)
        rows = self._closed.exp(y.unsqueeze(-1).unbind(-2), z.unbind(-2))
        vectors = torch.stack([row[-1] for row in rows], -2)
        return torch.cat([from_rows([[x.squeeze(-1) for x in row[:-1]] for row in rows]), vectors], -1)

    def _log(self, g: Tensor) -> Tensor:
        r, b = g[..., : self.size], g[..., self.size :]
        y = self.linear._log(r)
        turn = [x.unsqueeze(-1) for x in y.unbind(-1)]
        rows = [[x.unsqueeze(-1) for x in row.unbind(-1)] for row in r.unbind(-2)]
        z = torch.stack(self._closed.translation_log(turn, rows, b.unbind(-2)), -1)  # [*batch, k, n]
        v = torch.cat([y, z.flatten(-2)], -1)
        return torch.where(torch.isfinite(v).all(-1, keepdim=True), v, torch.nan)

    def _adjoint(self, g: Tensor) -> Tensor:
        """Rotations on the diagonal, and under the first one the corners of the pairs of R and b_i."""
        r, b = g[..., : self.size], g[..., self.size :]
        rows = [[x.unsqueeze(-1) for x in row.unbind(-1)] for row in r.unbind(-2)]
        pair = self._closed.adjoint(rows, b.unbind(-2))
        d = self.linear.dim
        corner = torch.stack([torch.stack(torch.broadcast_tensors(*row[:d]), -1) for row in pair[d:]], -2)
        return self._lower(self.linear._adjoint(r), corner, r)

    def _left_jacobian(self, v: Tensor) -> Tensor:
        if self.size != 3:
            return phi1_ad(self._natural_algebra, v)
        y, z = self._parts(v)
        rows = _left_jacobian_of_space(y.unsqueeze(-1).unbind(-2), z.unbind(-2))
        corner = torch.stack([torch.stack(torch.broadcast_tensors(*row[:3]), -1) for row in rows[3:]], -2)
        jacobian = from_rows([[x.squeeze(-1) for x in row[:3]] for row in rows[:3]])
        return self._lower(jacobian, corner, jacobian)

    def _lower(self, first: Tensor, corners: Tensor, block: Tensor) -> Tensor:
        """The matrix with ``first`` and k times ``block`` on the diagonal, and corners ``[*batch, k, n, d]`` below."""
        k = self.num_vectors
        unit = torch.eye(k, dtype=block.dtype, device=block.device)
        blocks = (unit[:, None, :, None] * block[..., None, :, None, :]).flatten(-4, -3).flatten(-2)
        return block_lower(first, corners.flatten(-3, -2), blocks)


@checked
@final
class Affine(InhomogeneousGroup):
    r"""The affine group of R^n with positive determinant, x -> A x + b, elements ``[A | b]``, ``[*batch, n, n + 1]``.

    Natural basis: the matrix units :math:`e_{ij}` row by row, then the translations. Not unimodular:
    :math:`\log \lambda(A, b) = -\log \det A`. For n = 2 all operations are closed forms. The logarithm is the principal
    logarithm, which exists if A has no eigenvalue that is zero or negative.

    Args:
        n: the dimension of the space.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: n < 1.
    """

    def __init__(self, n: int, scale: Scale = None) -> None:
        check_count("n", n, 1)
        super().__init__(GLPlus(n), scale)

    def _log(self, g: Tensor) -> Tensor:
        log, z = self._kernel.affine_log(*self._split(g))
        return concatenate([self.linear._coordinates_of_log(log), z])

    def _adjoint_corner(self, a: Tensor, b: Tensor, ad: Tensor) -> Tensor:
        """-(A e_kl A^-1 b)_i = -A_ik (A^-1 b)_l."""
        back = last_entries(matvec(self.linear._inverse(a), b))
        return from_rows([[-x * y for x in row for y in back] for row in entry_rows(a)])

    def _log_modular(self, g: Tensor) -> Tensor:
        return -log_abs_det(g[..., : self.size])
