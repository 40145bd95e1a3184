"""The Lorentz group of space and time, by complex quaternions."""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.checks import check_tensor, checked
from trivgeo.errors import ShapeError
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.basis import Scale
from trivgeo.groups.matrix import MatrixGroup, where_member

_SERIES_RADIUS = 0.5  # largest size of a complex square up to which functions of it are series
_NUM_TERMS = 14  # terms of a series
_ARCSINE_RADIUS, _NUM_ARCSINE_TERMS = 0.1, 16  # the same of the arcsine
_MAX_GAMMA_IN_ROUNDINGS = 0.02  # time dilation up to which a logarithm has correct digits, in units of eps^(-2/3)

# coefficients of cos x, sin x / x, (1 - cos x) / x^2, (x - sin x) / x^3 in powers of x^2, and of arcsin x / x
_COSINE, _SINE, _VERSINE, _RESIDUE = (
    [(-1.0) ** k / math.factorial(2 * k + first) for k in range(_NUM_TERMS)] for first in range(4)
)
_ARCSINE = [math.comb(2 * k, k) / (4.0**k * (2 * k + 1)) for k in range(_NUM_ARCSINE_TERMS)]


@checked
@final
class Lorentz(MatrixGroup):
    r"""SO+(1, 3), the proper orthochronous Lorentz group: matrices of (t, x, y, z) that keep t^2 - x^2 - y^2 - z^2.

    Elements are ``[*batch, 4, 4]``. Natural basis: the rotations J1, J2, J3 about x, y, z, then the boosts K1, K2, K3
    along x, y, z, so that :math:`[J_i, J_j] = \epsilon_{ijk} J_k, [J_i, K_j] = \epsilon_{ijk} K_k,
    [K_i, K_j] = -\epsilon_{ijk} J_k`. Unimodular, not compact. The units are those in which the speed of light is one.

    The group is that of rotations by complex vectors, :math:`w = \omega + i \beta` for angles :math:`\omega` and
    rapidities :math:`\beta`: all operations are closed forms by complex quaternions
    :math:`(\cos\tfrac{\theta}{2}, \tfrac{w}{\theta} \sin\tfrac{\theta}{2}), \theta^2 = w \cdot w`, of SL(2, C). Every
    element has a logarithm, with a rotation by at most pi.

    Args:
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Example:
        >>> group = Lorentz()
        >>> boost = group.exp(torch.tensor([0.0, 0.0, 0.0, 0.5, 0.0, 0.0]))
        >>> group.action()(boost, torch.tensor([[1.0, 0.0, 0.0, 0.0]]))  # a clock at rest: (cosh .5, sinh .5, 0, 0)
        tensor([[1.1276, 0.5211, 0.0000, 0.0000]])
    """

    def __init__(self, scale: Scale = None) -> None:
        basis = torch.zeros(6, 4, 4, dtype=torch.float64)
        for i in range(3):
            j, k = (i + 1) % 3 + 1, (i + 2) % 3 + 1
            basis[i, k, j], basis[i, j, k] = 1.0, -1.0
            basis[i + 3, 0, i + 1] = basis[i + 3, i + 1, 0] = 1.0
        names = ["J1", "J2", "J3", "K1", "K2", "K3"]
        self._metric = Constant(torch.tensor([1.0, -1.0, -1.0, -1.0]))
        super().__init__(basis, names, scale, LieAlgebra.from_matrices(basis, names))

    def __repr__(self) -> str:
        return "Lorentz()"

    def velocity(self, g: Tensor) -> Float[Tensor, "*batch 3"]:
        """Return the velocities, in units of light's, of a body at rest that elements ``g`` move, ``[*batch, 3]``."""
        g = self.check_elements(g)
        return g[..., 1:, 0] / g[..., :1, 0]

    def boost(self, velocity: Float[Tensor, "*batch 3"]) -> Tensor:
        """Return the boosts, without rotation, that give a body at rest a ``velocity``, ``[*batch, 3]``.

        NaN for velocities of length one or more.

        Raises:
            ShapeError: velocities have not three components.
        """
        velocity = check_tensor("velocity", velocity)
        if velocity.shape[-1:] != (3,):
            raise ShapeError(f"velocity: expected [*batch, 3], got {list(velocity.shape)}")
        square = velocity.square().sum(-1, keepdim=True)
        small = square < 1e-8
        speed = torch.where(small, 0.5, square).sqrt()
        rapidity = velocity * torch.where(small, 1.0 + square / 3.0, speed.atanh() / speed)
        return self.exp(self.basis.from_natural(torch.cat([torch.zeros_like(rapidity), rapidity], -1)))

    def _project(self, g: Tensor) -> Tensor:
        """The element of the normalised quaternion; NaN where the matrix is far from one."""
        near = _matrix(_quaternion(g))
        error = (near - g).detach().abs().amax((-2, -1), keepdim=True)
        return torch.where(error <= 0.5 * g.detach().abs().amax((-2, -1), keepdim=True), near, torch.nan)

    def _inverse(self, g: Tensor) -> Tensor:
        metric = self._metric.matching(g)
        return metric[:, None] * g.mT * metric

    def _exp(self, v: Tensor) -> Tensor:
        w = torch.complex(v[..., :3], v[..., 3:])
        square = 0.25 * (w * w).sum(-1, keepdim=True)
        cosine, sine, *_ = _circular(square)
        return _matrix(torch.cat([cosine, 0.5 * sine * w], -1))

    def _log(self, g: Tensor) -> Tensor:
        q = _quaternion(g)
        cosine, vector = q[..., :1], q[..., 1:]
        square = (vector * vector).sum(-1, keepdim=True)  # of the sine of half the angle
        small = square.abs() < _ARCSINE_RADIUS
        near = _power_series(torch.where(small, square, 0.0), _ARCSINE)
        sine = torch.where(small, 1.0, square).sqrt()
        far = -1j * (torch.where(small, 0.0, cosine) + 1j * sine).log() / sine
        w = 2.0 * torch.where(small, near, far) * vector
        v = where_member(self, g, torch.cat([w.real, w.imag], -1))
        # rounding of the large entries of g is that of the invariant square
        known = g[..., :1, 0].detach() < _MAX_GAMMA_IN_ROUNDINGS * torch.finfo(g.dtype).eps ** (-2 / 3)
        return torch.where(known, v, torch.nan)

    def _adjoint(self, g: Tensor) -> Tensor:
        q = _quaternion(g)
        cross = _cross(q[..., 1:])
        return _real(torch.eye(3).to(cross) + 2.0 * q[..., :1, None] * cross + 2.0 * cross @ cross)

    def _left_jacobian(self, v: Tensor) -> Tensor:
        w = torch.complex(v[..., :3], v[..., 3:])
        _, _, versine, residue = _circular((w * w).sum(-1, keepdim=True))
        cross = _cross(w)
        return _real(torch.eye(3).to(cross) + versine.unsqueeze(-1) * cross + residue.unsqueeze(-1) * cross @ cross)


def _power_series(x: Tensor, coefficients: list[float]) -> Tensor:
    total = torch.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def _circular(square: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """cos x, sin x / x, (1 - cos x) / x^2 and (x - sin x) / x^3 from complex x^2."""
    small = square.abs() < _SERIES_RADIUS
    near, far = torch.where(small, square, 0.0), torch.where(small, 1.0, square)
    x = far.sqrt()
    cosine, sine = x.cos(), x.sin() / x
    values = cosine, sine, (1.0 - cosine) / far, (1.0 - sine) / far
    series = (_power_series(near, c) for c in (_COSINE, _SINE, _VERSINE, _RESIDUE))
    first, second, third, fourth = (torch.where(small, a, b) for a, b in zip(series, values, strict=True))
    return first, second, third, fourth


def _cross(w: Tensor) -> Tensor:
    """The matrix of the cross product with w, ``[*batch, 3, 3]``."""
    x, y, z = w.unbind(-1)
    o = torch.zeros_like(x)
    return torch.stack([torch.stack(row, -1) for row in ((o, -z, y), (z, o, -x), (-y, x, o))], -2)


def _real(matrix: Tensor) -> Tensor:
    """A complex matrix of w as the real one of (omega, beta)."""
    a, b = matrix.real, matrix.imag
    return torch.cat([torch.cat([a, -b], -1), torch.cat([b, a], -1)], -2)


def _matrix(q: Tensor) -> Tensor:
    """The Lorentz matrix of complex quaternions ``[*batch, 4]``: X -> M X M* for M = q0 - i q . sigma."""
    a, b = q.real, q.imag
    (a0, u), (b0, v) = ((x[..., :1], x[..., 1:]) for x in (a, b))
    gamma = a0 * a0 + b0 * b0 + (u * u + v * v).sum(-1, keepdim=True)
    turned = 2.0 * (a0 * v - b0 * u)  # 2 Im(conj(q0) q)
    flux = 2.0 * torch.linalg.cross(u, v, dim=-1)
    axis = a0 * u + b0 * v  # Re(conj(q0) q)
    # |q0|^2 - |q|^2 = 1 + 2 b0^2 - 2 |u|^2, since q0^2 + q . q = 1: without large terms that cancel
    (ux, uy, uz), (vx, vy, vz) = ((x * x).unbind(-1) for x in (u, v))
    shared = (b0 * b0).squeeze(-1)
    diagonal = [shared + vx - uy - uz, shared + vy - uz - ux, shared + vz - ux - uy]
    off = torch.diag_embed(1.0 + 2.0 * torch.stack(diagonal, -1)) + 2.0 * _cross(axis)
    outer = 2.0 * (u.unsqueeze(-1) * u.unsqueeze(-2) + v.unsqueeze(-1) * v.unsqueeze(-2))
    space = off + torch.where(torch.eye(3, dtype=torch.bool, device=a.device), 0.0, outer)
    top = torch.cat([gamma, turned - flux], -1)
    left = (turned + flux).unsqueeze(-1)
    return torch.cat([top.unsqueeze(-2), torch.cat([left, space], -1)], -2)


def _quaternion(g: Tensor) -> Tensor:
    """The complex quaternion of a Lorentz matrix, ``[*batch, 4]``, of nonnegative real part.

    All products q_i conj(q_j) are linear in the entries. The row of the largest |q_j|, at least a half, gives q up to a
    phase, which the equation q0^2 + q . q = 1 fixes up to a sign.
    """
    time, space = g[..., 0, 0], g[..., 1:, 1:]
    first = 0.25 * g.diagonal(dim1=-2, dim2=-1).sum(-1)  # |q0|^2
    rest = time - first  # |q|^2
    squares = 0.5 * (space.diagonal(dim1=-2, dim2=-1) + (rest - first).unsqueeze(-1))
    diagonal = torch.cat([first.unsqueeze(-1), squares], -1)
    odd = space - space.mT
    axis = 0.25 * torch.stack([odd[..., 2, 1], odd[..., 0, 2], odd[..., 1, 0]], -1)
    turned = 0.25 * (g[..., 1:, 0] + g[..., 0, 1:])
    flux = 0.25 * (g[..., 1:, 0] - g[..., 0, 1:])  # Re q x Im q
    border = torch.complex(axis, turned)  # conj(q0) q
    even = 0.25 * (space + space.mT)
    even = even + torch.diag_embed(squares - even.diagonal(dim1=-2, dim2=-1))
    off = torch.complex(even, _cross(flux))
    top = torch.cat([torch.complex(first, torch.zeros_like(first)).unsqueeze(-1), border.conj()], -1)
    products = torch.cat([top.unsqueeze(-2), torch.cat([border.unsqueeze(-1), off], -1)], -2)  # q_i conj(q_j)
    chosen = diagonal.detach().argmax(-1)
    column = torch.take_along_dim(products, chosen[..., None, None], -1).squeeze(-1)
    size = torch.take_along_dim(diagonal, chosen.unsqueeze(-1), -1)
    q = column / size.clamp(min=0.1).sqrt()
    q = q / (q * q).sum(-1, keepdim=True).sqrt()
    return torch.where(q[..., :1].real < 0, -q, q)
