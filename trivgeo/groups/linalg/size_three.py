r"""3 x 3 matrices: determinants and inverses by cross products, functions by one real eigenvalue and its projection.

Of the eigenvalues of a matrix B of trace zero, the roots of :math:`z^3 = 3 p z + 2 q`, one is real and about as far
from the other two as any two of them are: x, of the sign of q. Its projection
:math:`P = (B^2 + x B + (x^2 - 3 p) I) / (3 (x^2 - p))` and the rest
:math:`N = B + \tfrac{x}{2} I - \tfrac{3 x}{2} P`, for which :math:`N^2 = s (I - P)`, give any function of the matrix,

.. math:: f(m I + B) = f(m + x)\, P + f_+\, (I - P) + f_-\, N,

with f on the other two eigenvalues as of 2 x 2 matrices, smooth where these meet. Where all three meet, the power
series of B in the ring of polynomials modulo the characteristic one (Cayley-Hamilton) takes over, which converges by
eigenvalues, whatever the norm. Either way f is a polynomial in B with three scalar coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from trivgeo._numerics import dense_exp, grown_stumpff, is_abstract, is_traced, log_ratio, polynomial
from trivgeo.groups.linalg.any_size import PolynomialMatrixFunctions, iterative_log, shifted_exp
from trivgeo.groups.linalg.circular import COTANGENT_SERIES
from trivgeo.groups.linalg.components import (
    Rows,
    cross,
    dot,
    entry_rows,
    from_rows,
    is_small_batch,
    last_entries,
    multiply_rows,
    polynomial_rows,
)
from trivgeo.groups.linalg.size_two import phi1_pair, phi1_scalar
from trivgeo.groups.linalg.spectral_exp import is_differentiated

SERIES_RADIUS = 0.5  # distance of eigenvalues from their mean, below which exponentials are power series
_NUM_FREE_STEPS, _NUM_RECORDED_STEPS = 5, 2  # Newton steps before and after derivatives are recorded
_EXP_SERIES = tuple(1.0 / math.factorial(j) for j in range(14))
_MIN_EXPONENT_DIFFERENCE = 3.0  # difference of diagonal entries, above which exponentials have small entries
_MAX_SMALL_ENTRY = 0.01  # entry of an exponential over the largest one, below which eigenvalues lose two digits
_PHI1_MEAN = 0.75  # mean of eigenvalues that meet, below which phi_1 is a series in A, and (e^A - I) / A above
_PHI1_SERIES = tuple(1.0 / math.factorial(j + 1) for j in range(20))  # for eigenvalues up to 1.25
_LOG_RADIUS = 0.1  # relative spread of the eigenvalues below which the logarithm is a Taylor series
_LOG_SERIES = (0.0, *((-1.0) ** (j + 1) / j for j in range(1, 18)))
_QUOTIENT_RADIUS = 0.45  # |m - 1| / m for the mean m of eigenvalues that meet, below which log(A) / (A - I) is a series
_NUM_QUOTIENT_POWERS, _NUM_QUOTIENT_TERMS = 16, 32  # terms of this series in powers of B, and in total
# y / (e^y - 1) = sum_k B_2k / (2k)! y^2k - y / 2, for |y| up to one half
_BERNOULLI = (1.0, *((-1.0) ** k * c for k, c in enumerate(COTANGENT_SERIES[:7])))
_BERNOULLI_RADIUS = 0.5
_MIN_SQUARED_GAP = 0.015  # square of half the distance of two logarithms, above which divided differences are exact
_MAX_SPECTRAL_ERROR = 1e-12  # estimated error of the logarithm by eigenvalues, above which square roots are better
_MAX_LOG_ERROR = 1e-6  # estimated error of the logarithm, above which it is NaN where square roots are no choice

Coefficients = tuple[Tensor, Tensor, Tensor]
"""Numbers ``[*batch]`` that multiply I, B and B^2."""


def spectral_projection(x: Tensor, p: Tensor) -> Coefficients:
    """Return the projection P on the eigenvector of the separate eigenvalue x, as a polynomial in B."""
    square = x * x
    weight = (1 / 3) / (square - p)
    return weight * (square - 3.0 * p), weight * x, weight


def spectral_coefficients(projection: Coefficients, x: Tensor, even: Tensor, gap: Tensor, odd: Tensor) -> Coefficients:
    """Return ``even I + gap P + odd N`` as a polynomial in B.

    Args:
        projection: P, see `spectral_projection`.
        x: the separate eigenvalue.
        even: the mean of the function on the other two eigenvalues.
        gap: the function on x less that mean.
        odd: the factor of ``N = B + x I / 2 - 3 x P / 2``.
    """
    p0, p1, p2 = projection
    weight = gap - 1.5 * x * odd
    return torch.addcmul(even, weight, p0) + 0.5 * x * odd, torch.addcmul(odd, weight, p1), weight * p2


def separate_root(p: Tensor, q: Tensor) -> Tensor:
    """The root of ``x^3 = 3 p x + 2 q`` of the sign of q.

    Newton's method from above, where the polynomial is convex, goes down to it. The derivative there,
    ``3 (x^2 - p)``, is the product of the distances to the other two.
    """
    free_p, free_q = p.detach(), q.detach().abs()
    cube = ((2.0 * free_q).log() / 3.0).exp()  # takes half the time of pow, and is exact enough to start with
    tiny = torch.finfo(p.dtype).tiny
    line = torch.minimum(cube, 2.0 * free_q / (-3.0 * free_p).clamp(min=tiny))
    x = torch.where(free_p < 0, line, (3.0 * free_p).clamp(min=0.0).sqrt() + cube)
    for _ in range(_NUM_FREE_STEPS):
        x = _newton(x, free_p, free_q)
    x = torch.where(q < 0, -x, x)
    for _ in range(_NUM_RECORDED_STEPS):
        x = _newton(x, p, q)
    return x


def _newton(x: Tensor, p: Tensor, q: Tensor) -> Tensor:
    square = x * x
    return torch.addcmul(q, x, square) / (square - p) * (2 / 3)


def eigenvalues_meet(p: Tensor, q: Tensor, unit: Tensor, radius: float) -> Tensor:
    """Whether the distances of all eigenvalues from their mean are below ``radius`` times ``unit``."""
    bound = 0.5 * (radius * unit.detach()).square()  # |z|^2 <= 3 |p| + |2 q|^(2/3) where z^3 = 3 p z + 2 q
    return (3.0 * p.detach().abs() < bound) & (4.0 * q.detach().square() < bound**3)


def in_ring(coefficients: Sequence[float], p: Tensor, q: Tensor) -> Coefficients:
    """``sum_j c_j B^j`` by Horner's rule, with ``B^3 = 3 p B + 2 q I``."""
    third, constant = 3.0 * p, 2.0 * q
    f0, f1, f2 = (torch.full_like(p, c) for c in coefficients[-3:])
    for c in reversed(coefficients[:-3]):
        f0, f1, f2 = constant * f2 + c, torch.addcmul(f0, third, f2), f1
    return f0, f1, f2


def in_shifted_ring(coefficients: Sequence[float], m: Tensor, p: Tensor, q: Tensor) -> Coefficients:
    """``sum_j c_j (m I + B)^j`` by Horner's rule, see `in_ring`."""
    third, constant = 3.0 * p, 2.0 * q
    f0, f1, f2 = torch.full_like(p, coefficients[-1]), torch.zeros_like(p), torch.zeros_like(p)
    for c in reversed(coefficients[:-1]):
        f0, f1, f2 = (
            torch.addcmul(m * f0 + c, constant, f2),
            torch.addcmul(torch.addcmul(f0, m, f1), third, f2),
            torch.addcmul(f1, m, f2),
        )
    return f0, f1, f2


@final
class ThreeByThree(PolynomialMatrixFunctions):
    """Functions of 3 x 3 matrices."""

    def determinant(self, matrix: Tensor) -> Tensor:
        return _triple_product(entry_rows(matrix))

    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        if is_small_batch(matrix):  # fewer kernels, each slower
            x, y, z = matrix.unbind(-2)
            first = torch.linalg.cross(y, z)
            adjugate = torch.stack([first, torch.linalg.cross(z, x), torch.linalg.cross(x, y)], -1)
            return adjugate if unimodular else adjugate / (x * first).sum(-1)[..., None, None]
        r0, r1, r2 = entry_rows(matrix)
        columns = cross(r1, r2), cross(r2, r0), cross(r0, r1)
        rows = zip(*columns, strict=True)
        if unimodular:
            return from_rows(list(rows))
        det = dot(r0, columns[0])
        return from_rows([[entry / det for entry in row] for row in rows])

    def exp(self, matrix: Tensor) -> Tensor:
        """The exponential by eigenvalues, or where these are far apart by a series, which keeps small entries.

        Compiled code and a GPU, where looking at values waits, use eigenvalues for all: there the error of an entry is
        relative to the largest one.
        """
        if is_small_batch(matrix):
            return dense_exp(matrix)
        c = _centred(entry_rows(matrix))
        value = from_rows(c.polynomial(_Exponential(c).coefficients))
        if is_traced() or matrix.device.type != "cpu" or is_abstract(matrix):
            return value
        lost = _loses_entries(matrix, value)
        return value.index_put((lost,), shifted_exp(matrix[lost])) if bool(lost.any()) else value

    def phi1(self, matrix: Tensor, exponential: Tensor | None = None) -> Tensor:
        """phi_1 by eigenvalues in compiled code; see `affine_exp`."""
        if not is_traced():
            return super().phi1(matrix)
        c = _centred(entry_rows(matrix))
        return from_rows(c.polynomial(_Exponential(c).phi1()))

    def affine_exp(self, matrix: Tensor, vector: Tensor) -> Tensor:
        """The upper rows, in compiled code by eigenvalues: more operators, and a fifth of the numbers."""
        if not is_traced():
            return super().affine_exp(matrix, vector)
        return self.spectral_affine_exp(matrix, vector)

    def spectral_affine_exp(self, matrix: Tensor, vector: Tensor) -> Tensor:
        """`affine_exp` by eigenvalues, phi_1 as a polynomial of the vector."""
        c, z = _centred(entry_rows(matrix)), last_entries(vector)
        e = _Exponential(c)
        f0, f1, f2 = e.phi1()
        once = [dot(row, z) for row in c.b]
        twice = [dot(row, once) for row in c.b]
        moved = [torch.addcmul(f0 * x + f1 * y, f2, w) for x, y, w in zip(z, once, twice, strict=True)]
        return from_rows([[*row, x] for row, x in zip(c.polynomial(e.coefficients), moved, strict=True)])

    def log(self, matrix: Tensor) -> Tensor:
        """The logarithm by eigenvalues, or where these lose digits by square roots.

        In compiled code, where values cannot be looked at, a logarithm whose round-off is too large is NaN.
        """
        single, matrix = matrix.dtype, matrix.double()
        spectral = _Logarithm(matrix)
        log = spectral.value()
        if not is_abstract(matrix) and bool((poor := ~(spectral.error < _MAX_SPECTRAL_ERROR)).any()):
            # first without derivatives, which would be NaN for matrices without logarithm
            again = iterative_log(matrix[poor].detach(), self)
            found = torch.isfinite(again).all(-1).all(-1)
            poor = poor.masked_scatter(poor, found)
            roots = iterative_log(matrix[poor], self) if is_differentiated(matrix) else again[found]
            log = log.index_put((poor,), roots)
        return log.to(single)

    def affine_log(self, matrix: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        """The logarithm, in compiled code by eigenvalues, which phi_1 shares with the logarithm."""
        if not is_traced():
            return super().affine_log(matrix, vector)
        return self.spectral_affine_log(matrix, vector)

    def spectral_affine_log(self, matrix: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        """`affine_log` by eigenvalues."""
        single, matrix, vector = matrix.dtype, matrix.double(), vector.double()
        spectral = _Logarithm(matrix)
        log, phi = spectral.value(), spectral.phi1()
        z = torch.where(spectral.found.unsqueeze(-1), self.solved(phi, vector), math.nan)
        return log.to(single), z.to(single)


def _loses_entries(matrix: Tensor, exponential: Tensor) -> Tensor:
    """Mask of matrices whose exponential has entries that are small beside others, since diagonal entries differ."""
    diagonal = matrix.detach().diagonal(dim1=-2, dim2=-1)
    size = exponential.detach().abs().flatten(-2)
    differ = diagonal.amax(-1) - diagonal.amin(-1) > _MIN_EXPONENT_DIFFERENCE
    return differ & (size.amin(-1) < _MAX_SMALL_ENTRY * size.amax(-1))


class _Logarithm:
    """The logarithm of A by eigenvalues, and its phi_1.

    Attributes:
        found: mask of matrices whose logarithm exists and is exact enough.
        error: estimated error; NaN where it is too large, or there is no logarithm.
    """

    def __init__(self, matrix: Tensor) -> None:
        rows = entry_rows(matrix)
        determinant = _triple_product(rows)
        # matrices without logarithm are replaced at once, so that their gradients are not NaN times zero
        usable = (determinant > 0) & (determinant < math.inf)
        rows = [
            [torch.where(usable, entry, 1.0 if i == j else 0.0) for j, entry in enumerate(row)]
            for i, row in enumerate(rows)
        ]
        self._c = c = _centred(rows)
        self._near = near = (c.mean > 0) & eigenvalues_meet(c.p, c.q, c.mean, _LOG_RADIUS)
        self._unit = unit = 1.0 / torch.where(near, c.mean, 1.0)
        unit2 = unit * unit
        self._ring = torch.where(near, c.p, 0.0), torch.where(near, c.q, 0.0)
        self._met = self._ring[0] * unit2, self._ring[1] * unit2 * unit
        ring = in_ring(_LOG_SERIES, *self._met)

        p, q = torch.where(near, 1.0, c.p), torch.where(near, 1.0, c.q)
        self._x = x = separate_root(p, q)
        self._projection = projection = spectral_projection(x, p)
        free, half = c.detached(), 0.5 * x.detach()
        full = free.polynomial([f.detach() for f in projection])
        rest = [
            [
                b - 3.0 * half * f + half if i == j else b - 3.0 * half * f
                for j, (b, f) in enumerate(zip(*pair, strict=True))
            ]
            for i, pair in enumerate(zip(free.b, full, strict=True))
        ]
        # from the entries, since it may be far smaller than p; derivatives are those of the formula in p and q
        square = 3.0 * p - 0.75 * x * x
        square = square + (0.5 * _trace_of_square(rest) - square.detach())
        value, half_sum = c.mean + x, c.mean - 0.5 * x
        product = half_sum.square() - square
        good = ~near & (value > 0) & (product > 0)
        value, product = torch.where(good, value, 1.0), torch.where(good, product, 1.0)
        root = product.rsqrt()
        ratio = log_ratio(half_sum * root, square * (root * root))
        size = (_sum_of_squares(free.rows()) * _sum_of_squares(full)).sqrt()
        loss = size * (1.0 / value + (ratio * root).abs() + half_sum.abs() / product).detach()
        error = torch.finfo(loss.dtype).eps * loss
        good = good & (error < _MAX_LOG_ERROR)  # false where the error is NaN
        odd = torch.where(good, ratio, 0.0) * root
        even = 0.5 * torch.where(near, c.mean.square(), product).log()  # one logarithm for both cases
        self._value, self._half_sum, self._square = value, half_sum, square
        self._single, self._even, self._odd = value.log(), even, odd
        spectral = spectral_coefficients(projection, x, even, self._single - even, odd)
        self._series = series = ring[0] + even, ring[1] * unit, ring[2] * unit2
        self._coefficients = [torch.where(near, a, b) for a, b in zip(series, spectral, strict=True)]
        self.found = usable & (near | good)
        self.error = torch.where(usable & near, 0.0, torch.where(usable & good, error, math.nan))

    def value(self) -> Tensor:
        """The logarithm."""
        log = self._c.polynomial(self._coefficients)
        return from_rows([[torch.where(self.found, entry, math.nan) for entry in row] for row in log])

    def phi1(self) -> Tensor:
        """phi_1 of the logarithm, ``(A - I) / log A``; something finite where there is no logarithm."""
        single, (even, odd) = self._phi1_single(), self._phi1_pair()
        spectral = spectral_coefficients(self._projection, self._x, even, single - even, odd)
        coefficients = [torch.where(self._near, a, b) for a, b in zip(self._phi1_met(), spectral, strict=True)]
        return from_rows(self._c.polynomial(coefficients))

    def _phi1_met(self) -> Coefficients:
        """phi_1 where all eigenvalues meet: one over a series if they are close to one, else the quotient."""
        shift, third, twice = self._c.mean - 1.0, 3.0 * self._ring[0], 2.0 * self._ring[1]
        small = self._near & ((shift * self._unit).abs() < _QUOTIENT_RADIUS)
        f0, f1, f2 = (torch.where(small, a, b) for a, b in zip(self._quotient(small), self._series, strict=True))
        # the reciprocal of the series, as a polynomial in B
        diagonal, upper = torch.addcmul(f0, third, f2), torch.addcmul(twice * f2, third, f1)
        g0, g1, g2 = diagonal.square() - f1 * upper, f2 * upper - f1 * diagonal, f1 * f1 - f2 * diagonal
        unit = 1.0 / torch.where(self._near, f0 * g0 + twice * (f2 * g1 + f1 * g2), 1.0)
        g0, g1, g2 = unit * g0, unit * g1, unit * g2
        divided = shift * g0 + twice * g2, torch.addcmul(g0, shift, g1) + third * g2, torch.addcmul(g1, shift, g2)
        h0, h1, h2 = (torch.where(small, a, b) for a, b in zip((g0, g1, g2), divided, strict=True))
        return h0, h1, h2

    def _quotient(self, there: Tensor) -> Coefficients:
        """``log(A) / (A - I)``, with E = B / m and d = 1 - 1 / m: ``1/m sum_jk d^k (-E)^j / (j + k + 1)``."""
        unit, (p, q) = self._unit, self._met
        d = torch.where(there, 1.0 - unit, 0.0)
        third, constant = 3.0 * p, -2.0 * q
        n = _NUM_QUOTIENT_TERMS + 1
        c = 1.0 / (n - n * n / (n + 1) * d)  # remainder of a series that is nearly geometric
        f0, f1, f2 = (torch.zeros_like(p) for _ in range(3))
        for j in reversed(range(_NUM_QUOTIENT_TERMS)):
            c = d * c + 1.0 / (j + 1)
            if j < _NUM_QUOTIENT_POWERS:
                f0, f1, f2 = torch.addcmul(c, constant, f2), torch.addcmul(f0, third, f2), f1
        square = unit * unit
        return unit * f0, -square * f1, unit * square * f2

    def _phi1_single(self) -> Tensor:
        """phi_1 at the logarithm of the eigenvalue that is separate from the other two."""
        small = self._single.abs() < _BERNOULLI_RADIUS
        y = torch.where(small, self._single, 0.0)
        near = polynomial(y * y, _BERNOULLI) - 0.5 * y
        return torch.where(small, 1.0, self._value - 1.0) / torch.where(small, near, self._single)

    def _phi1_pair(self) -> tuple[Tensor, Tensor]:
        """a and b of ``a I + b N`` on the other two eigenvalues, whose logarithms are even +- odd sqrt(square).

        Three regimes: both logarithms are small (series modulo the polynomial whose roots are their squares), real and
        apart (divided differences), or neither is small.
        """
        even, odd, square = self._even, self._odd, self._square
        q = odd * odd * square
        small = torch.maximum(even.square(), q.abs()) < (0.5 * _BERNOULLI_RADIUS) ** 2
        apart = ~small & (q > _MIN_SQUARED_GAP)
        rest = ~small & ~apart
        shift = self._half_sum - 1.0

        root = torch.where(apart, square, 1.0).sqrt()
        root = torch.where(even < 0, -root, root)
        larger, smaller = even + odd * root, even - odd * root
        close = apart & (smaller.abs() < _BERNOULLI_RADIUS)

        # one recurrence for two small logarithms, and for one whose square is the trace
        m, y = torch.where(small, even, 0.0), torch.where(close, smaller, 0.0)
        r = torch.where(small, q, 0.0)
        mean = m * m + r
        trace, determinant = torch.where(small, 2.0 * mean, y * y), -(m * m - r).square()
        high, low = torch.full_like(m, _BERNOULLI[-1]), torch.zeros_like(m)
        for c in reversed(_BERNOULLI[1:-1]):
            high, low = torch.addcmul(trace * high + c, determinant, low), high
        low = determinant * low + _BERNOULLI[0]
        a, b = high * mean + low - 0.5 * m, (2.0 * high * m - 0.5) * odd
        one = high * trace + low - 0.5 * y

        first = (shift + root) / torch.where(apart, larger, 1.0)
        second = torch.where(close, 1.0, shift - root) / torch.where(close, one, torch.where(apart, smaller, 1.0))
        a_apart, b_apart = 0.5 * (first + second), 0.5 * (first - second) / root

        # (a - b N) / (a^2 - b^2 square) of the series, (shift + N) / (even + odd N) of the others
        a, b = torch.where(small, a, even), torch.where(small, b, odd)
        shift, slope = torch.where(rest, shift, 1.0), rest.to(a.dtype)
        unit = 1.0 / torch.where(apart, 1.0, a * a - b * b * square)
        a_rest, b_rest = unit * (shift * a - slope * b * square), unit * (slope * a - shift * b)
        return torch.where(apart, a_apart, a_rest), torch.where(apart, b_apart, b_rest)


class _Centred(NamedTuple):
    """The entries of a matrix m I + B: m, B, B^2, and p and q of the characteristic polynomial of B."""

    mean: Tensor
    b: Rows
    square: Rows
    p: Tensor
    q: Tensor

    def detached(self) -> _Centred:
        """The same numbers without derivatives."""
        b, square = ([[x.detach() for x in row] for row in rows] for rows in (self.b, self.square))
        return _Centred(self.mean.detach(), b, square, self.p.detach(), self.q.detach())

    def rows(self) -> Rows:
        """The entries of the matrix itself."""
        return [[x + self.mean if i == j else x for j, x in enumerate(row)] for i, row in enumerate(self.b)]

    def polynomial(self, coefficients: Sequence[Tensor]) -> list[list[Tensor]]:
        """Evaluate ``f0 I + f1 B + f2 B^2``."""
        return polynomial_rows(coefficients, [self.b, self.square])


def _centred(rows: Rows) -> _Centred:
    mean = (rows[0][0] + rows[1][1] + rows[2][2]) / 3.0
    b = [[x - mean if i == j else x for j, x in enumerate(row)] for i, row in enumerate(rows)]
    square = multiply_rows(b, b)
    p = (square[0][0] + square[1][1] + square[2][2]) / 6.0
    q = sum((square[i][j] * b[j][i] for i in range(3) for j in range(3)), start=torch.zeros_like(mean)) / 6.0
    return _Centred(mean, b, square, p, q)


class _Exponential:
    """The exponential of m I + B as a polynomial in B, and phi_1, whether or not all eigenvalues meet."""

    def __init__(self, c: _Centred) -> None:
        self._c = c
        self._near = near = eigenvalues_meet(c.p, c.q, torch.ones_like(c.mean), SERIES_RADIUS)
        series = in_ring(_EXP_SERIES, torch.where(near, c.p, 0.0), torch.where(near, c.q, 0.0))
        p, q = torch.where(near, 1.0, c.p), torch.where(near, 1.0, c.q)
        self._x = x = separate_root(p, q)
        self._mean = mean = torch.where(near, 0.0, c.mean)
        self._square = 3.0 * p - 0.75 * x * x
        self._pair = even, odd = grown_stumpff(mean - 0.5 * x, self._square)
        self._projection = spectral_projection(x, p)
        spectral = spectral_coefficients(self._projection, x, even, (mean + x).exp() - even, odd)
        scale = c.mean.exp()
        self.coefficients = [torch.where(near, scale * a, b) for a, b in zip(series, spectral, strict=True)]

    def phi1(self) -> Sequence[Tensor]:
        """The coefficients of phi_1."""
        c, near = self._c, self._near
        small = near & (c.mean.abs() < _PHI1_MEAN)
        series = in_shifted_ring(_PHI1_SERIES, *(torch.where(small, f, 0.0) for f in (c.mean, c.p, c.q)))
        divided = self._divided(near & ~small)
        even, odd = phi1_pair(self._mean - 0.5 * self._x, self._square, *self._pair)
        spectral = spectral_coefficients(self._projection, self._x, even, phi1_scalar(self._mean + self._x) - even, odd)
        meet = (torch.where(small, a, b) for a, b in zip(series, divided, strict=True))
        return [torch.where(near, a, b) for a, b in zip(meet, spectral, strict=True)]

    def _divided(self, there: Tensor) -> Coefficients:
        """``(m I + B)^-1 (e^(m I + B) - I)``: the inverse is ``(B^2 - m B + (m^2 - 3 p) I) / (m^3 - 3 p m + 2 q)``."""
        c = self._c
        m, third, q = torch.where(there, c.mean, 1.0), 3.0 * torch.where(there, c.p, 0.0), torch.where(there, c.q, 0.0)
        f0, f1, f2 = (torch.where(there, f, 0.0) for f in self.coefficients)
        f0 = f0 - 1.0
        rest = m * m - third
        unit = 1.0 / torch.addcmul(2.0 * q, m, rest)
        # coefficients of B^3 and B^4 in the product are turned into those of lower powers by the relation
        cubic, quartic = f1 - m * f2, f2
        twice = 2.0 * q
        return (
            unit * (rest * f0 + twice * cubic),
            unit * (rest * f1 - m * f0 + third * cubic + twice * quartic),
            unit * (rest * f2 - m * f1 + f0 + third * quartic),
        )


def _triple_product(rows: Rows) -> Tensor:
    return dot(rows[0], cross(rows[1], rows[2]))


def _trace_of_square(rows: Rows) -> Tensor:
    return sum((rows[i][j] * rows[j][i] for i in range(3) for j in range(3)), start=torch.zeros_like(rows[0][0]))


def _sum_of_squares(rows: Rows) -> Tensor:
    return sum((x * x for row in rows for x in row), start=torch.zeros_like(rows[0][0]))
