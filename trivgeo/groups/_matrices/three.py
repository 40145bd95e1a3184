r"""3 x 3 matrices: determinants and inverses by cross products, functions by one real eigenvalue and its projection.

Of the eigenvalues of a matrix B of trace zero, the roots of :math:`z^3 = 3 p z + 2 q`, one is real and no closer to the
other two than these are spread, whatever they are: x, of the sign of q. Its projection P and the rest
:math:`N = B (I - P) + \tfrac{x}{2} (I - P)`, for which :math:`N^2 = s (I - P)`, give any function of the matrix,

.. math:: f(m I + B) = f(m + x)\, P + f_+\, (I - P) + f_-\, N,

with f on the other two eigenvalues as of 2 x 2 matrices, smooth where these two meet. Where all three meet, a power
series of B in the ring of polynomials modulo the characteristic one (Cayley-Hamilton) takes over, which converges by
eigenvalues, not by the norm, and needs no vectors. Nothing is iterated but Newton's method for x, a fixed number of times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from trivgeo._numerics import Constant, dense_exp, log_ratio, stumpff
from trivgeo.groups._matrices.basic import identity_like
from trivgeo.groups._matrices.polynomial import PolynomialKernel
from trivgeo.groups._matrices.series import is_few

__all__ = ["Three"]

_EXP_RADIUS, _EXP_SERIES = 1.0, tuple(1.0 / math.factorial(j) for j in range(19))
_LOG_RADIUS = 0.1  # of eigenvalues about their mean, in units of it
_LOG_SERIES = (0.0, *((-1.0) ** (j + 1) / j for j in range(1, 18)))
_SPREAD = Constant(torch.diag(torch.tensor([-1.0, -1.0, 2.0], dtype=torch.float64)))  # far from both series
_SPREAD_P, _SPREAD_Q = 1.0, 1.0  # of that matrix
_FREE_STEPS, _STEPS = 5, 2  # of Newton's method: before and after derivatives are recorded
_LOG_ERROR = 1e-6  # of the logarithm, estimated, above which it is NaN


@final
class Three(PolynomialKernel):
    """The size k = 3."""

    def determinant(self, matrix: Tensor) -> Tensor:
        """The triple product of the rows."""
        r0, r1, r2 = matrix.unbind(-2)
        return (r0 * torch.linalg.cross(r1, r2)).sum(-1)

    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        """By the adjugate."""
        r0, r1, r2 = matrix.unbind(-2)
        first = torch.linalg.cross(r1, r2)
        adjugate = torch.stack([first, torch.linalg.cross(r2, r0), torch.linalg.cross(r0, r1)], -1)
        return adjugate if unimodular else adjugate / (r0 * first).sum(-1)[..., None, None]

    def exp(self, matrix: Tensor) -> Tensor:
        """By eigenvalues."""
        if is_few(matrix):
            return dense_exp(matrix)
        mean, b, p, q = self._centred(matrix)
        near = _square_radius(p, q) < _EXP_RADIUS**2
        series = _in_ring(_EXP_SERIES, *_where(near, b, p, q, 0.0))
        x, projection, rest, square = self._split(*_elsewhere(near, b, p, q))
        c0, c1, _, _ = stumpff(square)
        grow = (-0.5 * x).exp()
        even, odd = grow * c0, grow * c1
        far = _combination(even, x.exp() - even, projection, odd, rest)
        return mean.exp()[..., None, None] * torch.where(near[..., None, None], series, far)

    def log(self, matrix: Tensor) -> Tensor:
        """By eigenvalues. NaN also where round-off would spoil it, which is estimated by that of the projection."""
        single, matrix = matrix.dtype, matrix.double()
        mean, b, p, q = self._centred(matrix)
        near = (mean > 0) & (_square_radius(p, q) < (_LOG_RADIUS * mean.detach()).square())
        unit = torch.where(near, mean, 1.0)
        z = _where(near, b / unit[..., None, None], p / unit.square(), q / unit**3, 0.0)
        series = _in_ring(_LOG_SERIES, *z) + unit.log()[..., None, None] * identity_like(b)

        # rows without logarithm are replaced too, so that their gradients are not NaN times zero
        regular = torch.isfinite(matrix).all(-1).all(-1) & ~near
        (b, p, q), mean = _elsewhere(~regular, b, p, q), torch.where(regular, mean, 2.0)
        x, projection, rest, square = self._split(b, p, q)
        value, half_sum = mean + x, mean - 0.5 * x
        product = half_sum.square() - square
        good = regular & (value > 0) & (product > 0)
        value, product = torch.where(good, value, 1.0), torch.where(good, product, 1.0)
        root, even = product.sqrt(), 0.5 * product.log()
        odd = log_ratio(half_sum / root, square / product) / root
        far = _combination(even, value.log() - even, projection, odd, rest)
        good = good & (_round_off(mean, b, x, projection) * (1.0 / value + odd.abs()).detach() < _LOG_ERROR)
        far = torch.where(good[..., None, None], far, math.nan)
        return torch.where(near[..., None, None], series, far).to(single)

    def _centred(self, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The mean of the eigenvalues, the matrix B without it, and p and q of its characteristic polynomial."""
        mean = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
        b = matrix - mean[..., None, None] * identity_like(matrix)
        return mean, b, (b * b.mT).sum((-2, -1)) / 6.0, 0.5 * self.determinant(b)

    def _split(self, b: Tensor, p: Tensor, q: Tensor) -> _Split:
        """Of matrices of trace zero whose eigenvalues do not all meet."""
        x = _separate_root(p, q)
        shift = x[..., None, None] * identity_like(b)
        adjugate = self.inverse(b - shift, unimodular=True)
        projection = adjugate / adjugate.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        rest = b + 0.5 * shift - (1.5 * x)[..., None, None] * projection
        return _Split(x, projection, rest, 0.5 * (rest * rest.mT).sum((-2, -1)))


class _Split(NamedTuple):
    """x, P, N and s of this module."""

    value: Tensor
    projection: Tensor
    rest: Tensor
    square: Tensor


def _separate_root(p: Tensor, q: Tensor) -> Tensor:
    """The root of ``x^3 = 3 p x + 2 q`` of the sign of q.

    Newton's method from above, where the polynomial is convex, goes down to it. The derivative there,
    ``3 (x^2 - p)``, is the product of the distances to the other two.
    """
    free_p, free_q = p.detach(), q.detach().abs()
    cube = (2.0 * free_q).pow(1 / 3)
    tiny = torch.finfo(p.dtype).tiny
    line = torch.minimum(cube, 2.0 * free_q / (-3.0 * free_p).clamp(min=tiny))
    x = torch.where(free_p < 0, line, (3.0 * free_p).clamp(min=0.0).sqrt() + cube)
    for _ in range(_FREE_STEPS):
        x = _newton(x, free_p, free_q)
    x = torch.where(q < 0, -x, x)
    for _ in range(_STEPS):
        x = _newton(x, p, q)
    return x


def _newton(x: Tensor, p: Tensor, q: Tensor) -> Tensor:
    square = x * x
    return torch.addcmul(q, x, square) / (square - p) * (2 / 3)


def _square_radius(p: Tensor, q: Tensor) -> Tensor:
    """A bound of the squared moduli of the roots of ``x^3 = 3 p x + 2 q``."""
    return 3.0 * p.detach().abs() + (2.0 * q.detach().abs()).pow(2 / 3)


def _where(mask: Tensor, b: Tensor, p: Tensor, q: Tensor, other: float) -> tuple[Tensor, Tensor, Tensor]:
    return torch.where(mask[..., None, None], b, other), torch.where(mask, p, other), torch.where(mask, q, other)


def _elsewhere(mask: Tensor, b: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The branch that is not taken gets a harmless matrix."""
    return (
        torch.where(mask[..., None, None], _SPREAD.like(b), b),
        torch.where(mask, _SPREAD_P, p),
        torch.where(mask, _SPREAD_Q, q),
    )


def _in_ring(coefficients: Sequence[float], b: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """``sum_j c_j B^j`` by Horner's rule on the coefficients of I, B and B^2, with ``B^3 = 3 p B + 2 q I``."""
    third, constant = 3.0 * p, 2.0 * q
    f0, f1, f2 = torch.full_like(p, coefficients[-1]), torch.zeros_like(p), torch.zeros_like(p)
    for c in reversed(coefficients[:-1]):
        f0, f1, f2 = constant * f2 + c, torch.addcmul(f0, third, f2), f1
    return _combination(f0, f1, b, f2, b @ b)


def _combination(a: Tensor, b: Tensor, x: Tensor, c: Tensor, y: Tensor) -> Tensor:
    """``a I + b X + c Y``."""
    result = a[..., None, None] * identity_like(x) + b[..., None, None] * x
    return torch.addcmul(result, c[..., None, None], y)


def _round_off(mean: Tensor, b: Tensor, x: Tensor, projection: Tensor) -> Tensor:
    """By how much A P differs from the eigenvalue times P, and at least by rounding."""
    mean, b, x, projection = mean.detach(), b.detach(), x.detach(), projection.detach()
    missed = (b @ projection - x[..., None, None] * projection).square().sum((-2, -1))
    size = (b.square().sum((-2, -1)) + 3.0 * mean.square()) * projection.square().sum((-2, -1))
    return missed.sqrt() + torch.finfo(b.dtype).eps * size.sqrt()
