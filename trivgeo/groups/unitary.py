"""The unitary groups U(n) and SU(n), whose complex matrices are stored as pairs of real ones."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import Constant, dense_exp, eigh, is_traced
from trivgeo._random import normal
from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.basis import Scale
from trivgeo.groups.group import LieGroup
from trivgeo.groups.harmonic import HarmonicAnalysis, HeatKernel, RotationHeatKernel, has_equal_axes
from trivgeo.groups.linalg import matrix_functions
from trivgeo.groups.linalg.any_size import embedded, lu_determinant, unitary_exp
from trivgeo.groups.linalg.circular import angle_factor
from trivgeo.groups.linalg.components import flatten_array, from_entries, from_rows, is_small_batch, last_entries
from trivgeo.groups.linalg.hermitian import (
    complex_product,
    determinant,
    from_columns,
    hermitian_exp,
    over_i,
    real_inner,
    real_trace,
    stacked_columns,
    times_conjugate,
    times_phase,
    unitary_log,
)
from trivgeo.groups.linalg.spectral_exp import exp_with_score, finite, is_differentiated
from trivgeo.groups.orthogonal import (
    are_isometries,
    log_sphere_area,
    nearest_isometry,
    orthonormalized,
    quaternion_exp,
    rotation_rows,
)

__all__ = [
    "SU",
    "U",
    "UnitaryGroup",
]


_MAX_PHASE_ERROR = 1e-2  # phase of the determinant of an element of SU(n), in turns, far above round-off
_MIN_GAP = 1e-6  # gap between eigenvalues, in radians, below which a logarithm cannot be cut there
_POLYNOMIAL_SIZE = 4  # rows of matrices whose compiled exponential is a polynomial
_SMALL_BATCH_OF_EXP = 800  # complex 3 x 3 matrices, up to which torch's exponential is faster than a closed form
_SMALL_BATCH_OF_LOG = 300  # complex 3 x 3 matrices, up to which a logarithm by eigenvectors is faster


def index_pairs(n: int) -> list[tuple[int, int]]:
    """Pairs j < k of indices below n, in order."""
    return [(j, k) for j in range(n) for k in range(j + 1, n)]


def gell_mann(n: int) -> tuple[Tensor, list[str]]:
    """i times the generalised Gell-Mann matrices, ``[n^2 - 1, n, n]``, and their names."""
    pairs = index_pairs(n)
    basis = torch.zeros(n * n - 1, n, n, dtype=torch.complex128)
    for row, (j, k) in enumerate(pairs):
        basis[row, [j, k], [k, j]] = torch.tensor([1j, 1j], dtype=basis.dtype)
        basis[row + len(pairs), [j, k], [k, j]] = torch.tensor([1.0, -1.0], dtype=basis.dtype)
    for k in range(1, n):
        diagonal = torch.cat([torch.ones(k), torch.tensor([-float(k)]), torch.zeros(n - k - 1)]).double()
        basis[2 * len(pairs) + k - 1] = torch.diag(1j * math.sqrt(2.0 / (k * (k + 1))) * diagonal)
    names = [f"{kind}{j + 1}{k + 1}" for kind in "XY" for j, k in pairs] + [f"Z{k}" for k in range(1, n)]
    return basis, names


@checked
class UnitaryGroup(HarmonicAnalysis, LieGroup):
    r"""A connected group of unitary n x n matrices, elements ``[*batch, n, n, 2]``: real and imaginary parts.

    Elements are real tensors, like those of every group here, so that they stand beside others in a `DirectProduct`,
    noise, networks, gradients and files need not handle complex numbers, and every transform of ``torch.func``
    applies. The layout is that of ``torch.view_as_real``; `to_complex` and `from_complex` convert.

    The basis is orthonormal for :math:`\langle X, Y \rangle = -\tfrac12 \mathrm{tr}\, X Y`, as that of `SO`, so that
    isotropic noise is invariant on both sides.

    Args:
        n: the size of the matrices.
        has_phases: whether phases times I are in the group.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.
    """

    def __init__(self, n: int, has_phases: bool, scale: Scale = None) -> None:
        basis, names = gell_mann(n)
        if has_phases:
            phase = 1j * math.sqrt(2.0 / n) * torch.eye(n, dtype=torch.complex128)
            basis, names = torch.cat([basis, phase[None]]), [*names, "I"]
        # <[e_i, e_j], e_k>: closed by construction, so that nothing needs to be solved or checked
        products = torch.einsum("iab,jbc,kca->ijk", basis, basis, basis)
        c = -0.5 * (products - products.transpose(0, 1)).real
        self.size = n
        self._units = Constant(torch.view_as_real(basis).flatten(1))
        self._pairs = index_pairs(n)
        self._diagonals = Constant(basis[2 * len(self._pairs) :].diagonal(dim1=-2, dim2=-1).imag)
        self._kernel = matrix_functions(2 * n)
        algebra = LieAlgebra._unchecked(torch.where(c.abs() < 1e-14, 0.0, c), names)
        super().__init__(algebra, (n, n, 2), scale)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size})"

    @property
    def is_compact(self) -> bool:
        return True

    def _natural_representation(self) -> Tensor:
        basis = self.with_scale(1.0).hat(torch.eye(self.dim, dtype=torch.float64))
        return torch.view_as_complex(basis.contiguous())

    def to_complex(self, g: Float[Tensor, "*batch n n 2"]) -> Complex[Tensor, "*batch n n"]:
        """Return elements g as complex matrices, ``[*batch, n, n]``."""
        g = self.check_elements(g)
        return torch.complex(*g.unbind(-1))

    def from_complex(self, matrix: Complex[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n 2"]:
        """Return complex matrices as real arrays ``[*batch, n, n, 2]``, see `project` for the nearest elements.

        Matrices of the algebra are allowed, too; therefore unitarity is not checked.

        Args:
            matrix: complex matrices ``[*batch, n, n]``.

        Raises:
            ConfigurationError: the matrices are not complex.
            ShapeError: the matrices are not n x n.
        """
        if not matrix.is_complex():
            raise ConfigurationError(f"matrix: expected complex numbers, got {matrix.dtype}")
        if matrix.ndim < 2 or matrix.shape[-2:] != (self.size, self.size):
            raise ShapeError(f"matrix: expected [*batch, {self.size}, {self.size}], got {list(matrix.shape)}")
        return torch.stack([matrix.real, matrix.imag], -1)

    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        eye = torch.eye(self.size, dtype=dtype, device=device)
        return torch.stack([eye, torch.zeros_like(eye)], -1)

    def hat(self, v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch n n 2"]:
        """Return the skew-Hermitian matrix of algebra vectors v, ``[*batch, n, n, 2]``."""
        v = self.check_vectors(v)
        return self._tangent(self.basis.to_natural(v))

    def vee(self, matrix: Float[Tensor, "*batch n n 2"]) -> Float[Tensor, "*batch d"]:
        """The algebra vector of a matrix, projected on the algebra."""
        matrix = self.check_elements(matrix, "matrix")
        return self.basis.from_natural(self._coordinates(matrix))

    def _tangent(self, v: Tensor) -> Tensor:
        return matmul(v, self._units.matching(v)).unflatten(-1, self._element_shape)

    def _coordinates(self, matrix: Tensor) -> Tensor:
        return 0.5 * matmul(flatten_array(matrix, 3), self._units.matching(matrix).mT)

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        return from_columns(embedded(stacked_columns(g)) @ stacked_columns(h))

    def _inverse(self, g: Tensor) -> Tensor:
        a, b = g.unbind(-1)
        return torch.stack([a.mT, -b.mT], -1)

    def _exp(self, v: Tensor) -> Tensor:
        # in float64, so that float32 elements are unitary to their last digit
        real, imaginary = self._tangent(v).double().unbind(-1)
        if self.size == 3 and not is_small_batch(real, _SMALL_BATCH_OF_EXP):
            real, imaginary = hermitian_exp(imaginary, -real)
        elif self.size == _POLYNOMIAL_SIZE and is_traced():  # eager, it takes as long as torch's exponential
            real, imaginary = unitary_exp(imaginary, -real)
        else:
            matrix = dense_exp(torch.complex(real, imaginary))
            real, imaginary = matrix.real, matrix.imag
        return torch.stack([real, imaginary], -1).to(v.dtype)

    def _log(self, g: Tensor) -> Tensor:
        r"""The logarithm whose eigenvalues lie between :math:`i (\varphi - 2 \pi)` and :math:`i \varphi`.

        :math:`\varphi = \pi + \delta` is an angle in a gap of the spectrum, so that it is
        :math:`i \delta + \log(e^{-i \delta} g)`, with the principal logarithm of a matrix that has no eigenvalue -1;
        where :math:`\varphi` lies in the gap makes no difference, nor does it to derivatives. The principal logarithm
        by eigenvectors is 25 times as fast as by iteration (n = 8), but eigenvectors have no derivatives where
        eigenvalues meet. For n = 3 there is a closed form.
        """
        if self.size == 3 and (is_differentiated(g) or not is_small_batch(g[..., 0], _SMALL_BATCH_OF_LOG)):
            return self._log_of_three(g)
        delta, gap, member = self._cut(g.detach())
        turned = times_phase(g.double(), -delta)
        if is_differentiated(g):
            log = from_columns(self._kernel.log(embedded(stacked_columns(turned)))[..., : self.size])
        else:
            log = _eigenvector_log(turned, gap > _MIN_GAP)
        phase = delta[..., None, None] * torch.eye(self.size, dtype=log.dtype, device=g.device)
        v = self._coordinates(log + torch.stack([torch.zeros_like(phase), phase], -1)).to(g.dtype)
        return torch.where(member.unsqueeze(-1), v, math.nan)

    def _log_of_three(self, g: Tensor) -> Tensor:
        """The closed form, exact to the digits of small elements, faster than the others except for few matrices."""
        matrix = g.double()
        det = determinant(matrix.detach())
        square, volume = matrix.detach().square().sum((-3, -2, -1)), torch.hypot(*det)
        member = are_isometries(square, volume, 3) & self._has_phase(torch.atan2(det[1], det[0]).unsqueeze(-1))
        # matrices outside the group are replaced at once, so that their gradients are not NaN times zero
        eye = self._identity(matrix.dtype, matrix.device)
        matrix = torch.where(member[..., None, None, None], matrix, eye)
        det = torch.where(member, det[0], 1.0), torch.where(member, det[1], 0.0)
        log, gap = unitary_log(matrix, det, self._last)
        v = self._coordinates(log).to(g.dtype)
        return torch.where((member & (gap > _MIN_GAP)).unsqueeze(-1), v, math.nan)

    def _cut(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Middle, less pi, and width of the gap of angles where the logarithm is cut, and a mask of unitary matrices.

        All are ``[*batch]``.
        """
        values = torch.linalg.eigvals(finite(g))
        angles = values.angle().sort(-1).values
        member = are_isometries(g.double().square().sum((-3, -2, -1)), values.abs().prod(-1), self.size)
        last = self._last(angles)
        n = self.size
        around = torch.cat([angles - 2.0 * math.pi, angles, angles + 2.0 * math.pi], -1)
        low, high = (around.gather(-1, (last + n + k).long().unsqueeze(-1)).squeeze(-1) for k in (0, 1))
        return 0.5 * (low + high) - math.pi, high - low, member & self._has_phase(angles)

    @abstractmethod
    def _last(self, angles: Tensor) -> Tensor:
        """Index, below 2 n - 1, of the sorted angle ``[*batch, n]`` to be the largest; others go round by a turn."""

    def _has_phase(self, angles: Tensor) -> Tensor:
        """Whether unitary matrices with angles ``[*batch, n]`` have a determinant that the group has."""
        return torch.ones_like(angles[..., 0], dtype=torch.bool)

    def _adjoint(self, g: Tensor) -> Tensor:
        """Ad from entries of g e g^-1: y + i x above the diagonal for coordinates x, y; the rest is on the diagonal."""
        if self.size == 1:
            return g.square().sum(-1)
        pairs, z = self._pairs, self._diagonals.matching(g)
        left, right = (torch.stack([g.select(-3, pair[k]) for pair in pairs], -3) for k in (0, 1))
        re, im = times_conjugate(left.unsqueeze(-2), right.unsqueeze(-3))  # g_jc conj(g_kd) at [(j, k), c, d]
        re_cd, im_cd = (torch.stack([x[..., c, d] for c, d in pairs], -1) for x in (re, im))
        re_dc, im_dc = (torch.stack([x[..., d, c] for c, d in pairs], -1) for x in (re, im))
        re_cc, im_cc = (x.diagonal(dim1=-2, dim2=-1) @ z.mT for x in (re, im))
        x = torch.cat([re_cd + re_dc, im_cd - im_dc, re_cc], -1)
        y = torch.cat([-im_cd - im_dc, re_cd - re_dc, -im_cc], -1)
        left, right = (torch.stack([g.select(-2, pair[k]) for pair in pairs], -2) for k in (0, 1))
        re, im = times_conjugate(left, right)  # g_ac conj(g_ad) at [a, (c, d)]
        diagonal = torch.cat([re, im, 0.5 * (g.square().sum(-1) @ z.mT)], -1)
        return torch.cat([x, y, z @ diagonal], -2)

    def _coadjoint(self, g: Tensor, y: Tensor) -> Tensor:
        """Ad of the inverse, as the inner product is invariant."""
        columns = embedded(stacked_columns(self._inverse(g))) @ stacked_columns(self._tangent(y))
        return self._coordinates(from_columns(embedded(columns) @ stacked_columns(g)))

    def _exp_with_score(self, v: Tensor, gradient: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        if is_differentiated(v, gradient):
            return super()._exp_with_score(v, gradient, weight)
        a, y = (torch.complex(*self._tangent(x).double().unbind(-1)) for x in (v, gradient))
        element, score = map(torch.view_as_real, exp_with_score(a, y, weight, is_real=False))
        return element.to(v.dtype), self._coordinates(score).to(v.dtype)

    def _project(self, g: Tensor) -> Tensor:
        """The nearest unitary matrix; NaN where none is near."""
        x, found = nearest_isometry(embedded(stacked_columns(g)))
        nearest = self._with_determinant(from_columns(x[..., : self.size]))
        return torch.where(found[..., None, None, None], nearest, math.nan)

    def _with_determinant(self, g: Tensor) -> Tensor:
        """The multiple of a unitary matrix by a phase that is in the group."""
        return g

    def _random_haar(self, batch: Sequence[int], reference: Tensor, generator: torch.Generator | None) -> Tensor:
        """The unitary factor of a complex normal matrix, with the phases of Mezzadri (2007)."""
        parts = normal((*batch, self.size, self.size, 2), reference.double(), generator)
        q, _ = orthonormalized(torch.complex(*parts.unbind(-1)))
        return self._with_determinant(torch.stack([q.real, q.imag], -1)).to(reference.dtype)


@checked
@final
class U(UnitaryGroup):
    r"""U(n), unitary matrices ``[*batch, n, n, 2]``: real and imaginary parts, see `UnitaryGroup`.

    Natural basis: that of `SU`, then :math:`i \sqrt{2 / n}\, I`; for n = 2 everything is a closed form, a phase times
    an element of SU(2). The logarithm is the principal one, with eigenvalues
    between :math:`-i \pi` and :math:`i \pi`. It is not single-valued at an eigenvalue -1, and NaN where two
    eigenvalues on the two sides of -1 are within 1e-6 of each other, as rounding puts two that are -1.

    Args:
        n: the size of the matrices.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: n < 1.

    Example:
        >>> g = U(3).random_haar(5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> matrix = U(3).to_complex(g)
        >>> bool(torch.allclose(matrix @ matrix.mH, torch.eye(3, dtype=torch.complex128)))
        True
    """

    def __init__(self, n: int, scale: Scale = None) -> None:
        check_count("n", n)
        super().__init__(n, True, scale)

    def _exp(self, v: Tensor) -> Tensor:
        return super()._exp(v) if self.size != 2 else times_phase(_quaternion_exp(v[..., :3]), v[..., 3])

    def _log(self, g: Tensor) -> Tensor:
        """The logarithm; for n = 2 from phase and quaternion, or -1 times both, with angles within a half turn."""
        if self.size != 2:
            return super()._log(g)
        matrix = g.double()
        (a, b), (c, d) = (row.unbind(-2) for row in matrix.unbind(-3))
        real, imaginary = (x - y for x, y in zip(complex_product(a, d), complex_product(b, c), strict=True))
        phase = 0.5 * torch.atan2(imaginary, real)
        rest = times_phase(matrix, -phase)
        u, w = self._coordinates(rest)[..., :3], 0.5 * real_trace(rest)
        angle = torch.atan2(u.detach().square().sum(-1).sqrt(), w.detach())
        turned = angle > math.pi - phase.detach().abs()
        sign = torch.where(turned, -1.0, 1.0).to(w.dtype)
        phase = phase - torch.where(turned, torch.full_like(phase, math.pi).copysign(phase.detach()), 0.0)
        v = torch.cat([_quaternion_log(sign.unsqueeze(-1) * u, sign * w), phase.unsqueeze(-1)], -1)
        square, volume = matrix.detach().square().sum((-3, -2, -1)), torch.hypot(real, imaginary).detach()
        good = are_isometries(square, volume, 2) & (turned | (2.0 * (math.pi - angle) > _MIN_GAP))
        return torch.where(good.unsqueeze(-1), v, math.nan).to(g.dtype)

    def _adjoint(self, g: Tensor) -> Tensor:
        """Ad; for n = 2 the rotation of the quaternion, in products of which the phase cancels, and I stays."""
        if self.size != 2:
            return super()._adjoint(g)
        (a, b), (c, d) = (row.unbind(-2) for row in (0.5 * g).unbind(-3))
        # g = w I + x X + y Y + z Z with X, Y, Z = i times the Pauli matrices
        w, x, y, z = a + d, over_i(b + c), b - c, over_i(a - d)
        ((xx, xy, xz), (_, yy, yz), (_, _, zz)) = (tuple(real_inner(s, t) for t in (x, y, z)) for s in (x, y, z))
        wx, wy, wz = (real_inner(w, t) for t in (x, y, z))
        o, one = torch.zeros_like(xx), torch.ones_like(xx)
        rows = [1.0 - 2.0 * (yy + zz), 2.0 * (xy + wz), 2.0 * (xz - wy), o]
        rows += [2.0 * (xy - wz), 1.0 - 2.0 * (xx + zz), 2.0 * (yz + wx), o]
        rows += [2.0 * (xz + wy), 2.0 * (yz - wx), 1.0 - 2.0 * (xx + yy), o, o, o, o, one]
        return from_entries(rows, (4, 4))

    def _log_natural_volume(self) -> float:
        """The volume of SU(n) times the volume of the phases, with n elements of the centre counted twice."""
        n = self.size
        return _log_special_volume(n) + math.log(2.0 * math.pi * math.sqrt(0.5 * n) / n)

    def _last(self, angles: Tensor) -> Tensor:
        return torch.full_like(angles[..., 0], self.size - 1)


@checked
@final
class SU(UnitaryGroup):
    r"""SU(n), unitary matrices of determinant one, ``[*batch, n, n, 2]``: real and imaginary parts, see `UnitaryGroup`.

    Natural basis: i times the generalised Gell-Mann matrices, the symmetric ones :math:`e_{jk} + e_{kj}`, the
    antisymmetric ones :math:`-i e_{jk} + i e_{kj}`, j < k, and the diagonal ones; for n = 2 i times the Pauli
    matrices, and everything is a closed form. The logarithm has trace zero and eigenvalues within
    :math:`2 \pi i` of each other: the shortest one. It is NaN where that is not single-valued, as at -I in SU(2).

    Args:
        n: the size of the matrices.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: n < 2.

    Example:
        >>> half_turn = SU(2).exp(torch.tensor([0.0, 0.0, torch.pi / 2]))
        >>> float(SU(2).to_complex(half_turn)[0, 0].imag)  # exp(i pi / 2) is i
        1.0
    """

    def __init__(self, n: int, scale: Scale = None) -> None:
        check_count("n", n, 2)
        super().__init__(n, False, scale)

    def _exp(self, v: Tensor) -> Tensor:
        return super()._exp(v) if self.size > 2 else _quaternion_exp(v)

    def _log(self, g: Tensor) -> Tensor:
        if self.size > 2:
            return super()._log(g)
        u, w = self._coordinates(g), 0.5 * real_trace(g)
        # u and w alone do not reveal a matrix that is no real multiple of a unitary one
        volume = u.detach().square().sum(-1) + w.detach().square()
        member = are_isometries(g.detach().square().sum((-3, -2, -1)), volume, self.size)
        return torch.where(member.unsqueeze(-1), _quaternion_log(u, w), math.nan)

    def _adjoint(self, g: Tensor) -> Tensor:
        """Ad; for n = 2 the rotation of the quaternion (w, -u) of g = w I + u_1 X + u_2 Y + u_3 Z."""
        if self.size > 2:
            return super()._adjoint(g)
        u, w = self._coordinates(g), 0.5 * real_trace(g)
        return from_rows(rotation_rows([-x for x in last_entries(u)], 2.0 * w, torch.full_like(w, 2.0)))

    def _heat_kernel(self) -> HeatKernel | None:
        return RotationHeatKernel(self, 2.0, 2) if self.size == 2 and has_equal_axes(self) else None

    def _log_natural_volume(self) -> float:
        return _log_special_volume(self.size)

    def _last(self, angles: Tensor) -> Tensor:
        """The index for angles that add up to m turns; the m largest are turned back."""
        return self.size - 1 - (angles.sum(-1) / (2.0 * math.pi)).round()

    def _has_phase(self, angles: Tensor) -> Tensor:
        turns = angles.sum(-1) / (2.0 * math.pi)
        return (turns - turns.round()).abs() < _MAX_PHASE_ERROR

    def _with_determinant(self, g: Tensor) -> Tensor:
        angle = lu_determinant(torch.complex(*g.unbind(-1))).angle() / self.size
        return times_phase(g, -angle)


def _log_special_volume(n: int) -> float:
    r"""Logarithm of the volume of SU(n): unit spheres in C^k, one direction stretched by :math:`\sqrt{k / 2 (k-1)}`."""
    stretch = 0.5 * math.fsum(math.log(2.0 * (k - 1) / k) for k in range(2, n + 1))
    return math.fsum(log_sphere_area(k) for k in range(4, 2 * n + 1, 2)) - stretch


def _eigenvector_log(g: Tensor, good: Tensor) -> Tensor:
    """The principal logarithm of unitary matrices; NaN except where ``good``.

    Eigenvectors are those of the Hermitian :math:`i (I - g) (I + g)^{-1}`, whose eigenvalues are the tangents of half
    the angles.
    """
    good = good & torch.isfinite(g).flatten(-3).all(-1)
    eye = torch.eye(g.shape[-2], dtype=torch.complex128, device=g.device)
    matrix = torch.where(good[..., None, None], finite(g), eye)
    _, vectors = eigh(1j * torch.linalg.inv_ex(eye + matrix)[0] @ (eye - matrix))
    angles = (vectors.conj() * (matrix @ vectors)).sum(-2).angle()
    log = (vectors * (1j * angles).unsqueeze(-2)) @ vectors.mH
    return torch.where(good[..., None, None, None], torch.stack([log.real, log.imag], -1), math.nan)


def _quaternion_exp(v: Tensor) -> Tensor:
    """The element w I + x X + y Y + z Z of SU(2), see `quaternion_exp`."""
    w, x, y, z = quaternion_exp(*last_entries(v))
    return from_entries([w, z, y, x, -y, x, w, -z], (2, 2, 2))


def _quaternion_log(u: Tensor, w: Tensor) -> Tensor:
    """atan2(|u|, w) u / |u| for the quaternion (w, u)."""
    return angle_factor(u.square().sum(-1), w).unsqueeze(-1) * u
