"""The rotation groups."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import half_power, is_traced
from trivgeo._random import normal
from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.basis import Scale
from trivgeo.groups.harmonic import HarmonicAnalysis, HeatKernel, RotationHeatKernel, has_equal_axes
from trivgeo.groups.linalg import circular_pair, identity_like, matrix_functions, polar
from trivgeo.groups.linalg.circular import angle_factor
from trivgeo.groups.linalg.components import Rows, dot, entry_rows, from_entries, from_rows, last_entries
from trivgeo.groups.linalg.spectral_exp import exp_with_score, is_differentiated
from trivgeo.groups.matrix import MatrixGroup

_AXIAL_ENTRIES = ((2, 1), (0, 2), (1, 0))  # entries (i, j) with R_ij - R_ji = 4 w q_axis

_Signs = tuple[tuple[int, int, int, int], ...]
_ENTRY_SIGNS: _Signs = ((1, 1, 1, 1), (-1, 1, 1, -1), (-1, -1, 1, 1), (-1, 1, -1, 1))  # see `_between`
_PRODUCT_SIGNS: _Signs = ((1, -1, -1, -1), (1, 1, -1, 1), (1, 1, 1, -1), (1, -1, 1, 1))

_MAX_SIZE = 45  # size of rotations whose structure constants take 8 GB
_HALF_TURN_ULPS = 64.0  # distance of an angle from a half turn, below which rounding chooses between two logarithms
_MAX_NORM_DEFECT, _MAX_SHEAR_DEFECT = 1e-2, 1e-4  # defects in `are_isometries`, far above round-off


@checked
@final
class SO(HarmonicAnalysis, MatrixGroup):
    r"""SO(n), rotation matrices ``[*batch, n, n]``.

    Natural basis: the rotations :math:`e_{ji} - e_{ij}` from axis i towards axis j, for (i, j) = (1, 2), (1, 3), ...,
    (n-1, n); for n = 3 in the usual order, about x, y and z, so that an algebra vector is the rotation vector.

    For n = 2, 3 and 4 all operations are closed forms. For n = 2 and 3 every element has a logarithm, which is accurate
    for all angles up to :math:`\pi`. A half turn has two logarithms, and one of them is returned. For n = 4 the
    logarithm is the principal one, and NaN if an eigenvalue is -1 up to rounding. For n > 4 the principal logarithm may
    also be NaN within 1e-6 of an eigenvalue -1.

    Args:
        n: the dimension of the space.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: n < 2, or n > 45, where structure constants would need more than 8 GB.
    """

    def __init__(self, n: int, scale: Scale = None) -> None:
        if check_count("n", n, 2) > _MAX_SIZE:
            raise ConfigurationError(f"n: expected at most {_MAX_SIZE}, whose structure constants need 8 GB, got {n}")
        pairs = [(1, 2), (2, 0), (0, 1)] if n == 3 else [(i, j) for i in range(n) for j in range(i + 1, n)]
        basis = torch.zeros(len(pairs), n, n, dtype=torch.float64)
        for row, (i, j) in enumerate(pairs):
            basis[row, j, i], basis[row, i, j] = 1.0, -1.0
        self._first, self._second = [i for i, _ in pairs], [j for _, j in pairs]
        names = ("X", "Y", "Z") if n == 3 else [f"R{i + 1}{j + 1}" for i, j in pairs]
        self._closed = _CLOSED_FORMS.get(n)
        super().__init__(basis, names, scale, _rotation_algebra(n, pairs, names))

    def _project(self, g: Tensor) -> Tensor:
        """The nearest rotation, NaN where the determinant is not positive."""
        q, found = nearest_isometry(g)
        return torch.where((found & is_proper(q))[..., None, None], q, math.nan)

    def _coordinates(self, matrix: Tensor) -> Tensor:
        return 0.5 * (matrix[..., self._second, self._first] - matrix[..., self._first, self._second])

    def _tangent(self, v: Tensor) -> Tensor:
        return super()._tangent(v) if self._closed is None else self._closed.tangent(v)

    def _inverse(self, g: Tensor) -> Tensor:
        return g.mT

    def _exp(self, v: Tensor) -> Tensor:
        return super()._exp(v) if self._closed is None else self._closed.exp(v)

    def _log(self, g: Tensor) -> Tensor:
        """The logarithm, NaN also for matrices that are no rotations, such as 2 I, reflections and shears."""
        if self._closed is None:
            return where_rotation(g, super()._log(g), rank=1)
        return from_entries(self._log_entries(entry_rows(g), self._kernel.determinant(g.detach())))

    def _log_entries(self, rows: Rows, volume: Tensor) -> list[Tensor]:
        """The entries of the logarithm of a matrix of up to four rows, from its entries and its determinant."""
        assert self._closed is not None
        numbers = [x.detach() for row in rows for x in row]
        good = are_isometries(dot(numbers, numbers), volume, self.size)
        return [torch.where(good, x, math.nan) for x in self._closed.log(rows)]

    def _adjoint(self, g: Tensor) -> Tensor:
        return second_minors(g, self._first, self._second) if self._closed is None else self._closed.adjoint(g)

    def _coadjoint(self, g: Tensor, y: Tensor) -> Tensor:
        """Ad of the inverse, as the inner product is invariant."""
        return self._coordinates(g.mT @ self._tangent(y) @ g)

    def _exp_with_score(self, v: Tensor, gradient: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        if is_differentiated(v, gradient):
            return super()._exp_with_score(v, gradient, weight)
        a, y = (self._tangent(x).to(torch.complex128) for x in (v, gradient))
        element, score = exp_with_score(a, y, weight, is_real=True)
        return element.real.to(v.dtype), self._coordinates(score.real).to(v.dtype)

    @property
    def is_compact(self) -> bool:
        return True

    def _random_haar(self, batch: Sequence[int], reference: Tensor, generator: torch.Generator | None) -> Tensor:
        q = random_isometry(self.size, batch, reference, generator)
        sign = torch.where(is_proper(q), 1.0, -1.0).to(q.dtype)
        return torch.cat([q[..., :1] * sign[..., None, None], q[..., 1:]], -1)

    def _heat_kernel(self) -> HeatKernel | None:
        return RotationHeatKernel(self, 1.0, 1) if self.size == 3 and has_equal_axes(self) else None

    def _log_natural_volume(self) -> float:
        """SO(k) acts on the unit sphere of R^k by unit vectors of the basis, with stabiliser SO(k - 1)."""
        return math.fsum(log_sphere_area(k) for k in range(2, self.size + 1))

    def _natural_representation(self) -> Tensor:
        basis = self.with_scale(1.0).hat(torch.eye(self.dim, dtype=torch.float64))
        return basis.to(torch.complex128)


def nearest_isometry(g: Tensor) -> tuple[Tensor, Tensor]:
    """The orthogonal matrices nearest to g, ``[*batch, n, n]``, and a mask of those found, ``[*batch]``."""
    q = polar(g)
    off = (q.mT @ q - identity_like(q)).detach().abs().amax((-2, -1))
    return q, off < 1e-3


def aligning_rotation(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The rotations R ``[*batch, n, n]`` of the largest tr(R^T matrix), also of matrices of any rank and determinant.

    Returns:
        The rotations, and the singular values, the last one negative where the determinant is (Umeyama 1991).
    """
    u, values, vh = torch.linalg.svd(matrix)
    last = torch.where(is_proper(matmul(u, vh)), 1.0, -1.0).to(values).unsqueeze(-1)
    signs = torch.cat([torch.ones_like(values[..., :-1]), last], -1)
    return matmul(u * signs.unsqueeze(-2), vh), values * signs


def random_isometry(n: int, batch: Sequence[int], reference: Tensor, generator: torch.Generator | None) -> Tensor:
    """Orthogonal matrices distributed by Haar measure, from normal matrices (Stewart 1980)."""
    return orthonormalized(normal((*batch, n, n), reference, generator))[0]


def orthonormalized(x: Tensor) -> tuple[Tensor, Tensor]:
    """The columns of x ``[*batch, n, k]``, real or complex, made orthonormal in their order (Gram and Schmidt).

    QR gives columns up to phases; the right phases make the diagonal of R positive.

    Returns:
        The columns, and the distance of each column of x from the span of those before.
    """
    q, r = torch.linalg.qr(x)
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    return q * torch.where(diagonal == 0, 1.0, diagonal.sgn()).unsqueeze(-2), diagonal.abs()


def log_sphere_area(n: int) -> float:
    """Logarithm of the area of the unit sphere in R^n."""
    return math.log(2.0) + 0.5 * n * math.log(math.pi) - math.lgamma(0.5 * n)


class _ClosedForms(ABC):
    """Rotations of one dimension n in closed form."""

    @abstractmethod
    def tangent(self, v: Tensor) -> Tensor:
        """The matrix of an algebra vector."""

    @abstractmethod
    def exp(self, v: Tensor) -> Tensor:
        """The rotation by an algebra vector."""

    @abstractmethod
    def log(self, rows: Rows) -> Sequence[Tensor]:
        """The entries of the algebra vector of a rotation, from the entries of the rotation."""

    @abstractmethod
    def adjoint(self, g: Tensor) -> Tensor:
        """Ad of a rotation."""


class _PlaneRotations(_ClosedForms):
    def tangent(self, v: Tensor) -> Tensor:
        (a,) = last_entries(v)
        return _scaled_rotation(torch.zeros_like(a), a)

    def exp(self, v: Tensor) -> Tensor:
        (a,) = last_entries(v)
        return _scaled_rotation(a.cos(), a.sin())

    def log(self, rows: Rows) -> Sequence[Tensor]:
        (a, b), (c, d) = rows
        return [torch.atan2(c - b, a + d)]

    def adjoint(self, g: Tensor) -> Tensor:
        return g.new_ones(*g.shape[:-2], 1, 1)


class _SpaceRotations(_ClosedForms):
    """Rotations of space, by the rotation vector; Ad is the rotation itself."""

    def tangent(self, v: Tensor) -> Tensor:
        return from_rows(cross_rows(last_entries(v)))

    def exp(self, v: Tensor) -> Tensor:
        turn = last_entries(v)
        c1, c2 = circular_pair(dot(turn, turn))
        return from_rows(rotation_rows(turn, c1, c2))

    def log(self, rows: Rows) -> Sequence[Tensor]:
        r""":math:`2 \,\mathrm{atan2}(|u|, w)\, u / |u|` for the quaternion (w, u)."""
        w, *u = quaternion_entries(rows)
        factor = 2.0 * angle_factor(dot(u, u), w)
        return [factor * x for x in u]

    def adjoint(self, g: Tensor) -> Tensor:
        return g


class _FourRotations(_ClosedForms):
    r"""Rotations of four dimensions, by two unit quaternions: :math:`x \mapsto p x q` for the quaternion x.

    The vectors of their logarithms are the halves of so(4) = so(3) + so(3), and the products :math:`p_i q_j` are
    linear in the rotation (Van Elfrinkhof 1897; Mebius 2005).
    """

    def tangent(self, v: Tensor) -> Tensor:
        a, b, c, d, e, f = last_entries(v)
        o = torch.zeros_like(a)
        return from_entries([o, -a, -b, -c, a, o, -d, -e, b, d, o, -f, c, e, f, o], (4, 4))

    def exp(self, v: Tensor) -> Tensor:
        a, b, c, d, e, f = (0.5 * x for x in last_entries(v))
        p, q = (quaternion_exp(*u) for u in ((a + f, b - e, c + d), (a - f, b + e, c - d)))
        return from_rows(_between([[x * y for y in q] for x in p], _PRODUCT_SIGNS, _ENTRY_SIGNS))

    def log(self, rows: Rows) -> Sequence[Tensor]:
        """The principal logarithm: the two angles add up to the larger angle of the rotation, at most pi."""
        p, q = self._factors(rows)
        alpha, beta = (
            torch.atan2(dot(r[1:], r[1:]).sqrt(), r[0]) for r in ([x.detach() for x in p], [x.detach() for x in q])
        )
        turn = torch.where(alpha + beta > math.pi, -1.0, 1.0).to(alpha.dtype)  # (p, q), (-p, -q) are one rotation
        (a, b, c), (d, e, f) = (_quaternion_log(*(turn * x for x in r)) for r in (p, q))
        half_turn = (alpha + beta - math.pi).abs() < _HALF_TURN_ULPS * torch.finfo(alpha.dtype).eps
        v = a + d, b + e, c + f, c - f, e - b, a - d
        return [torch.where(half_turn, math.nan, x) for x in v]

    def adjoint(self, g: Tensor) -> Tensor:
        return second_minors(g, [0, 0, 0, 1, 1, 2], [1, 2, 3, 2, 3, 3])

    def _factors(self, g: Rows) -> tuple[list[Tensor], list[Tensor]]:
        """Multiples of p and q, with the same sign: q is the longest row of the products."""
        rows = _between(g, _ENTRY_SIGNS, _PRODUCT_SIGNS)
        a, b, c, d = (dot(row, row) for row in ([x.detach() for x in row] for row in rows))
        choices = _Choice(a >= b, a.dtype), _Choice(c >= d, a.dtype)
        final = _Choice(torch.maximum(a, b) >= torch.maximum(c, d), a.dtype)
        row = [final(choices[0](w, x), choices[1](y, z)) for w, x, y, z in zip(*rows, strict=True)]
        return [dot(products, row) for products in rows], row


_CLOSED_FORMS: dict[int, _ClosedForms] = {2: _PlaneRotations(), 3: _SpaceRotations(), 4: _FourRotations()}


def second_minors(g: Tensor, first: list[int], second: list[int]) -> Tensor:
    """The minors of order 2 of the rows and columns i, j in two lists, which are Ad of a rotation."""
    top, bottom = g[..., first, :], g[..., second, :]
    return top[..., first] * bottom[..., second] - top[..., second] * bottom[..., first]


def _between(rows: Rows, before: _Signs, after: _Signs) -> list[list[Tensor]]:
    r"""Map entries of a rotation to products p_i q_j of its quaternions, or back, 4 rows of 4, up to the factor 4.

    The entries :math:`R_{i, i \oplus k}` are the Hadamard transform of the products :math:`p_i q_{i \oplus k}` with the
    same k, up to signs (``before[k][i]`` and ``after[k][i]``).
    """
    columns = []
    for k in range(4):
        a, b, c, d = (_signed(before[k][i], rows[i][i ^ k]) for i in range(4))
        s, t, u, v = a + b, c + d, a - b, c - d
        columns.append((s + t, s - t, u + v, u - v))
    return [[_signed(after[i ^ j][i], columns[i ^ j][i]) for j in range(4)] for i in range(4)]


def _signed(sign: int, x: Tensor) -> Tensor:
    return x if sign > 0 else -x


def quaternion_exp(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The unit quaternion cos r + (sin r / r) u of the vector u = (x, y, z) of length r."""
    square = x * x + y * y + z * z
    c1, c2 = circular_pair(square)
    return 1.0 - square * c2, c1 * x, c1 * y, c1 * z


def _quaternion_log(w: Tensor, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    factor = angle_factor(x * x + y * y + z * z, w)
    return factor * x, factor * y, factor * z


def are_isometries(square: Tensor, volume: Tensor, n: int) -> Tensor:
    r"""Mask of n x n matrices that are isometries, by squared norms and determinants (or moduli of complex ones).

    With singular values s the mean of s^2 is at least :math:`(\prod s^2)^{1/n}`, with equality for multiples of
    isometries alone: the second defect is quadratic in differences of the s, the first one in their size.
    """
    mean = square / n
    return ((mean - 1.0).abs() < _MAX_NORM_DEFECT) & (half_power(mean, n) - volume < _MAX_SHEAR_DEFECT)


def where_rotation(g: Tensor, value: Tensor, rank: int = 2) -> Tensor:
    """``value [*batch, ...]``, with ``rank`` more dimensions, for matrices ``[*batch, n, n]``; NaN for no rotation."""
    g = g.detach()
    n = g.shape[-1]
    good = are_isometries(g.square().sum((-2, -1)), matrix_functions(n).determinant(g), n)
    return torch.where(good.reshape(*good.shape, *[1] * rank), value, math.nan)


def is_proper(q: Tensor) -> Tensor:
    """Whether the determinants of matrices ``[*batch, n, n]`` are positive, by signs alone."""
    lu, pivots, _ = torch.linalg.lu_factor_ex(q)
    order = torch.arange(1, q.shape[-1] + 1, device=pivots.device, dtype=pivots.dtype)
    negative = (lu.diagonal(dim1=-2, dim2=-1) < 0).sum(-1) + (pivots != order).sum(-1)
    return negative % 2 == 0


def _scaled_rotation(diagonal: Tensor, lower: Tensor) -> Tensor:
    return from_rows([[diagonal, -lower], [lower, diagonal]])


def _rotation_algebra(n: int, pairs: list[tuple[int, int]], names: tuple[str, ...] | list[str]) -> LieAlgebra:
    """Structure constants of so(n) without the solve of `LieAlgebra.from_matrices`, which is slow for n = 10."""
    where = {}
    for index, (i, j) in enumerate(pairs):
        where[i, j], where[j, i] = (index, 1.0), (index, -1.0)
    c = torch.zeros(len(pairs), len(pairs), len(pairs), dtype=torch.float64)
    # with L_ij = e_ji - e_ij: [L_ij, L_km] = d_ik L_jm + d_jm L_ik - d_im L_jk - d_jk L_im
    for a, (i, j) in enumerate(pairs):
        for b, (k, m) in enumerate(pairs):
            for meet, p, q, sign in ((i == k, j, m, 1), (j == m, i, k, 1), (i == m, j, k, -1), (j == k, i, m, -1)):
                if meet and p != q:
                    index, orientation = where[p, q]
                    c[a, b, index] += sign * orientation
    return LieAlgebra(c, names)


def cross_rows(v: Sequence[Tensor]) -> Rows:
    """Return the entries of the matrix of ``x -> v x x``, from the entries of v."""
    x, y, z = v
    o = torch.zeros_like(x)
    return [[o, -z, y], [z, o, -x], [-y, x, o]]


def rotation_rows(v: Sequence[Tensor], c1: Tensor, c2: Tensor) -> Rows:
    r"""Evaluate Rodrigues' formula :math:`I + c_1 K + c_2 K^2`, K the cross matrix of v, entry by entry."""
    x, y, z = v
    a, b, c = c2 * x, c2 * y, c2 * z
    p, q, r = c1 * x, c1 * y, c1 * z
    xx, yy, zz, xy, xz, yz = a * x, b * y, c * z, a * y, a * z, b * z
    return [[1.0 - (yy + zz), xy - r, xz + q], [xy + r, 1.0 - (xx + zz), yz - p], [xz - q, yz + p, 1.0 - (xx + yy)]]


def axial_entries(rows: Rows) -> list[Tensor]:
    """Return the axial vector of a 3 x 3 matrix given by its entries: of a rotation, 2 sin x times the axis."""
    return [rows[i][j] - rows[j][i] for i, j in _AXIAL_ENTRIES]


def quaternion(r: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A quaternion (w, x, y, z) with w >= 0 of a rotation of space, see `quaternion_entries`."""
    return quaternion_entries(entry_rows(r))


def quaternion_entries(m: Rows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""A quaternion (w, x, y, z) with w >= 0, of some length between 2 and 4, of a rotation given by its entries.

    The largest of the four rows of :math:`4 q q^T`, whose entries are linear in the rotation, gives q without
    cancellation at every angle (Shepperd 1978).
    """
    wx, wy, wz = axial_entries(m)
    xy, yz, xz = m[0][1] + m[1][0], m[1][2] + m[2][1], m[0][2] + m[2][0]
    a, b, c = m[0][0], m[1][1], m[2][2]
    ww, xx = 1.0 + a + (b + c), 1.0 + a - (b + c)
    yy, zz = 1.0 - a + (b - c), 1.0 - a - (b - c)
    first, second = _Choice(ww >= xx, ww.dtype), _Choice(yy >= zz, ww.dtype)
    final = _Choice(first(ww, xx) >= second(yy, zz), ww.dtype)
    columns = ((ww, wx, wy, wz), (wx, xx, xy, xz), (wy, xy, yy, yz), (wz, xz, yz, zz))
    w, x, y, z = (final(first(p, q), second(s, t)) for p, q, s, t in columns)
    sign = torch.where(w < 0, -1.0, 1.0).to(w.dtype)
    return sign * w, sign * x, sign * y, sign * z


class _Choice:
    """`torch.where` of one mask; for eager tensors by lerp, exact at weights 0 and 1, in a tenth of the time."""

    def __init__(self, mask: Tensor, dtype: torch.dtype) -> None:
        self.mask = mask if is_traced() else mask.to(dtype)

    def __call__(self, yes: Tensor, no: Tensor) -> Tensor:
        return torch.where(self.mask, yes, no) if is_traced() else torch.lerp(no, yes, self.mask)
