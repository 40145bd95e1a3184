r"""Functions of Hermitian 3 x 3 matrices, by the eigenvalues of `trivgeo.groups.linalg.size_three`, which are real.

With B the part of trace zero, :math:`B^3 = 3 p B + 2 q I`, functions that are real on the real axis are polynomials in
B with real coefficients: where all eigenvalues meet by their series, elsewhere by one eigenvalue and its projection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trivgeo.groups.linalg.circular import angle_factor, circular
from trivgeo.groups.linalg.components import add_to_diagonal
from trivgeo.groups.linalg.size_three import (
    SERIES_RADIUS,
    eigenvalues_meet,
    in_ring,
    in_shifted_ring,
    separate_root,
    spectral_coefficients,
    spectral_projection,
)

_COSINE_SERIES = tuple((0.0 if j % 2 else (-1.0) ** (j // 2)) / math.factorial(j) for j in range(15))
_SINE_SERIES = tuple((1.0 if j % 2 else 0.0) * (-1.0) ** (j // 2) / math.factorial(j) for j in range(15))
_TWICE_ATAN_SERIES = tuple((2.0 if j % 2 else 0.0) * (-1.0) ** (j // 2) / max(j, 1) for j in range(10))
_ATAN_RADIUS = 0.02  # distance of eigenvalues from their mean, below which the arc tangent is a power series
_MIN_SQUARED_SPREAD = 1e-26  # p, a sixth of the sum of squared eigenvalues of B, below which these count as equal
_TURN = 2.0 * math.pi

Complex = tuple[Tensor, Tensor]
"""Real and imaginary parts."""


def stacked_columns(g: Tensor) -> Tensor:
    """The real matrix [[A], [B]] of A + i B, ``[*batch, 2 n, n]``, see `embedded`."""
    return torch.cat(g.unbind(-1), -2)


def from_columns(columns: Tensor) -> Tensor:
    """The matrices ``[*batch, n, n, 2]`` of `stacked_columns` ``[*batch, 2 n, n]``."""
    return torch.stack(columns.chunk(2, -2), -1)


def complex_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of a product of complex numbers ``[*batch, 2]``."""
    return a[..., 0] * b[..., 0] - a[..., 1] * b[..., 1], a[..., 0] * b[..., 1] + a[..., 1] * b[..., 0]


def real_inner(a: Tensor, b: Tensor) -> Tensor:
    """The real part of a conj(b)."""
    return a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1]


def times_conjugate(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of a conj(b)."""
    return real_inner(a, b), a[..., 1] * b[..., 0] - a[..., 0] * b[..., 1]


def over_i(a: Tensor) -> Tensor:
    """The quotient a / i."""
    return torch.stack([a[..., 1], -a[..., 0]], -1)


def real_trace(g: Tensor) -> Tensor:
    """Real part of the trace of matrices ``[*batch, n, n, 2]``."""
    return g[..., 0].diagonal(dim1=-2, dim2=-1).sum(-1)


def times_phase(g: Tensor, angle: Tensor) -> Tensor:
    """The product exp(i angle) g of matrices ``[*batch, n, n, 2]``."""
    cos, sin = angle.cos()[..., None, None], angle.sin()[..., None, None]
    a, b = g.unbind(-1)
    return torch.stack([cos * a - sin * b, cos * b + sin * a], -1)


class _Centred:
    """A Hermitian matrix m I + B: its mean m, entries of B and B^2 on and above the diagonal, p and q of the module.

    Entries above the diagonal are ordered (0, 1), (0, 2), (1, 2), those on it so that (2, 2) is opposite to (0, 1).
    """

    def __init__(self, diagonal: Tensor, above: Complex) -> None:
        self.mean = diagonal.mean(-1)
        self.diagonal = d = diagonal - self.mean.unsqueeze(-1)
        self.above = re, im = above
        a, b, c = d.unbind(-1)
        opposite = torch.stack([c, b, a], -1)
        sizes = re * re + im * im
        u, v, w = zip(re.unbind(-1), im.unbind(-1), strict=True)
        uw = _times(u, w)
        uu, vv, ww = sizes.unbind(-1)
        self.p = (d * d + 2.0 * sizes).sum(-1) / 6.0
        self.q = 0.5 * (a * b * c - (opposite * sizes).sum(-1)) + uw[0] * v[0] + uw[1] * v[1]
        self.square_diagonal = d * d + torch.stack([uu + vv, uu + ww, vv + ww], -1)
        products = _times(v, _conjugate(w)), uw, _times(_conjugate(u), v)
        x, y = (torch.stack([z[k] for z in products], -1) for k in (0, 1))
        self.square_above = x - opposite * re, y - opposite * im  # a + b = -c

    def on_diagonal(self, f: Sequence[Tensor]) -> Tensor:
        """Diagonal entries of ``f0 I + f1 B + f2 B^2`` for real numbers f, ``[*batch, 3]``."""
        f0, f1, f2 = (x.unsqueeze(-1) for x in f)
        return f0 + f1 * self.diagonal + f2 * self.square_diagonal

    def off_diagonal(self, f: Sequence[Tensor]) -> Complex:
        """The entries of `on_diagonal`'s matrix above the diagonal."""
        _, f1, f2 = (x.unsqueeze(-1) for x in f)
        re, im = (f1 * x + f2 * y for x, y in zip(self.above, self.square_above, strict=True))
        return re, im


def hermitian_exp(real: Tensor, imaginary: Tensor) -> Complex:
    """Real and imaginary part of exp(i H) for Hermitian H, from its symmetric real and skew imaginary part."""
    c = _Centred(real.diagonal(dim1=-2, dim2=-1), (_above(real), _above(imaginary)))
    turned = _turned(c.mean, *_cosine_and_sine(c.p, c.q))
    cosine, sine = ([f[k] for f in turned] for k in (0, 1))
    (rr, ri), (ir, ii) = c.off_diagonal(cosine), c.off_diagonal(sine)
    return (
        _matrix(c.on_diagonal(cosine), rr - ii, rr + ii),
        _matrix(c.on_diagonal(sine), ri + ir, ir - ri),
    )


def _above(matrix: Tensor) -> Tensor:
    return torch.stack([matrix[..., j, k] for j, k in ((0, 1), (0, 2), (1, 2))], -1)


def _matrix(diagonal: Tensor, above: Tensor, below: Tensor) -> Tensor:
    (a, b, c), (u, v, w), (x, y, z) = (part.unbind(-1) for part in (diagonal, above, below))
    return torch.stack([a, u, v, x, b, w, y, z, c], -1).unflatten(-1, (3, 3))


def unitary_log(g: Tensor, det: Complex, last: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    r"""A logarithm of unitary 3 x 3 matrices, and the width of the gap of the spectrum in which it is cut.

    The matrix g is turned by a phase so that no eigenvalue is near -1. Then its Cayley transform
    :math:`A = i (I - g) (I + g)^{-1}` is Hermitian, with eigenvalues the tangents of half the angles, and the logarithm
    is :math:`i f(A)` with :math:`f(a) = 2 \arctan a` plus the phase and turns.

    Args:
        g: ``[*batch, 3, 3, 2]``; a matrix that is not quite unitary counts as the nearest one, to first order.
        det: the `determinant` of g.
        last: function of the sorted angles ``[*batch, 3]`` in [-pi, pi] to the index of the largest one; angles beyond
            it go back by a turn, and for an index above 2 as many of the smallest go forward.

    Returns:
        The logarithm ``[*batch, 3, 3, 2]``, and the gap ``[*batch]``, zero where rounding has left no correct digit.
    """
    phase = _far_from_minus_one(g.detach(), det)
    alpha = torch.atan2(phase[1], phase[0])
    c = _cayley(g, phase)
    # where all eigenvalues meet, and the cut is not between them: their angles are within 4 sqrt(p) of their mean
    centre = 2.0 * c.mean.detach().atan() + alpha
    back = _turns_back(centre)
    centre = centre + _TURN * back
    whole = centre.abs() + 4.0 * c.p.detach().clamp(min=0.0).sqrt() < math.pi
    whole = whole & (last(torch.stack([centre] * 3, -1)) == 2)
    near = whole & eigenvalues_meet(c.p, c.q, torch.ones_like(c.p), _ATAN_RADIUS)
    ring = in_shifted_ring(_TWICE_ATAN_SERIES, *(torch.where(near, f, 0.0) for f in (c.mean, c.p, c.q)))

    apart = ~near & (c.p.detach() > _MIN_SQUARED_SPREAD)
    p, q, mean = torch.where(apart, c.p, 1.0), torch.where(apart, c.q, 1.0), torch.where(apart, c.mean, 0.0)
    x = separate_root(p, q)
    projection = spectral_projection(x, p)
    square = 3.0 * p - 0.75 * x * x
    # from the entries, since it may be far smaller than p; derivatives are those of the formula in p and q
    square = square + (_half_square(c, x, projection) - square).detach()
    half_sum = mean - 0.5 * x
    product = half_sum.square() - square
    even, odd = torch.atan2(2.0 * half_sum, 1.0 - product), 2.0 * angle_factor(4.0 * square, 1.0 + product)
    value = 2.0 * (mean + x).atan()

    free, middle, half = value.detach(), even.detach(), odd.detach() * square.detach().sqrt()
    angles = alpha.unsqueeze(-1) + torch.stack([free, middle + half, middle - half], -1)
    further = _turns_back(angles)
    further = further + _turns_beyond(angles + _TURN * further, last)
    angles = angles + _TURN * further
    gap = _TURN - (angles.amax(-1) - angles.amin(-1))
    first, second, third = (alpha.unsqueeze(-1) + _TURN * further).unbind(-1)
    cut = apart & (second != third) & (half > 0)
    odd = odd + torch.where(cut, 0.5 * (second - third), 0.0) * torch.where(cut, square, 1.0).rsqrt()
    even = even + 0.5 * (second + third)
    spectral = spectral_coefficients(projection, x, even, value + first - even, odd)
    series = ring[0] + (alpha + _TURN * back), ring[1], ring[2]
    f = [torch.where(near, s, t) for s, t in zip(series, spectral, strict=True)]

    re, im = c.off_diagonal(f)
    diagonal = c.on_diagonal(f)
    log = torch.stack([_matrix(torch.zeros_like(diagonal), -im, im), _matrix(diagonal, re, re)], -1)
    return log, torch.where(near, 1.0, torch.where(apart, gap, 0.0))


def determinant(g: Tensor) -> Complex:
    """The determinant of complex 3 x 3 matrices ``[*batch, 3, 3, 2]``."""
    rows = [(row[..., 0], row[..., 1]) for row in g.unbind(-3)]
    return _inner(rows[0], _cross(rows[1], rows[2]))


def _inner(a: Complex, b: Complex) -> Complex:
    """The sum of products of entries, for vectors ``[*batch, 3]``."""
    re, im = _times(a, b)
    return re.sum(-1), im.sum(-1)


def _cross(a: Complex, b: Complex) -> Complex:
    cross = torch.linalg.cross
    return cross(a[0], b[0]) - cross(a[1], b[1]), cross(a[0], b[1]) + cross(a[1], b[0])


def _far_from_minus_one(g: Tensor, det: Complex) -> Complex:
    """The phase of four candidates for which ``|det(I + g / phase)|`` is largest, at least sqrt(2).

    The first candidate is the phase of the trace, which is right for multiples of I.
    """
    real, imaginary = g.diagonal(dim1=-3, dim2=-2).sum(-1).unbind(-1)
    size = torch.hypot(real, imaginary)
    far = size > 0.1
    unit = 1.0 / torch.where(far, size, 1.0)
    c, s = torch.where(far, real * unit, 1.0), torch.where(far, imaginary * unit, 0.0)
    # 1 + t z + t* det z^2 + det z^3 at z = 1 / phase, and its terms times powers of i
    z = c, -s
    one = _times((real, imaginary), z)
    three = _times(det, _times(z, _times(z, z)))
    two = _times(_conjugate(one), three)
    even, odd = (1.0 + two[0], two[1]), (one[0] + three[0], one[1] + three[1])
    turned, across = (1.0 - two[0], -two[1]), (three[1] - one[1], one[0] - three[0])
    moduli, inner = zip(*(_sum_or_difference(*pair) for pair in ((even, odd), (turned, across))), strict=True)
    quarter = moduli[1] > moduli[0]
    c, s = torch.where(quarter, s, c), torch.where(quarter, -c, s)
    sign = torch.where(torch.where(quarter, inner[1], inner[0]) < 0, -1.0, 1.0)
    return sign * c, sign * s


def _sum_or_difference(a: Complex, b: Complex) -> tuple[Tensor, Tensor]:
    """The larger of ``|a + b|^2`` and ``|a - b|^2``, and a number whose sign tells plus from minus."""
    inner = a[0] * b[0] + a[1] * b[1]
    return a[0] * a[0] + a[1] * a[1] + b[0] * b[0] + b[1] * b[1] + 2.0 * inner.abs(), inner


def _cayley(g: Tensor, phase: Complex) -> _Centred:
    """The Hermitian part of ``i (I - v) (I + v)^-1`` for v = g / phase: ``i (w - w^*)`` with w = (I + v)^-1."""
    c, s = (x[..., None, None] for x in phase)
    real, imaginary = g.unbind(-1)
    real, imaginary = add_to_diagonal(c * real + s * imaginary, torch.ones_like(phase[0])), c * imaginary - s * real
    rows = list(zip(real.unbind(-2), imaginary.unbind(-2), strict=True))
    # rows of w are these columns up to a factor
    columns = [_cross(rows[1], rows[2]), _cross(rows[2], rows[0]), _cross(rows[0], rows[1])]
    re, im = _inner(rows[0], columns[0])
    size = 1.0 / (re * re + im * im)
    over = (size * re)[..., None, None], (-size * im)[..., None, None]
    x, y = _times(over, (torch.stack([z for z, _ in columns], -1), torch.stack([z for _, z in columns], -1)))
    re, im = -(y + y.mT), x - x.mT
    return _Centred(re.diagonal(dim1=-2, dim2=-1), (_above(re), _above(im)))


def _half_square(c: _Centred, x: Tensor, projection: Sequence[Tensor]) -> Tensor:
    """Half the trace of the square of ``N = B + x / 2 I - 3 x / 2 P``."""
    p0, p1, p2 = projection
    weight = 1.5 * x
    f = 0.5 * x - weight * p0, 1.0 - weight * p1, -weight * p2
    re, im = c.off_diagonal(f)
    return (0.5 * c.on_diagonal(f).square() + re * re + im * im).sum(-1)


def _turns_back(angle: Tensor) -> Tensor:
    """Number of turns that bring an angle to between -pi and pi."""
    return -(angle / _TURN).round()


def _turns_beyond(angles: Tensor, last: Callable[[Tensor], Tensor]) -> Tensor:
    """Number of turns by which each angle moves so that the angle of `unitary_log`'s ``last`` is the largest."""
    a, b, c = angles.unbind(-1)
    ab, ac, bc = (torch.where(x > y, 1.0, 0.0) for x, y in ((a, b), (a, c), (b, c)))
    rank = torch.stack([ab + ac, 1.0 - ab + bc, 2.0 - ac - bc], -1)
    most = last(angles).unsqueeze(-1)
    return torch.where(rank < most - 2, 1.0, 0.0) - torch.where(rank > most, 1.0, 0.0)


def _cosine_and_sine(p: Tensor, q: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The coefficients of I, B and B^2 in cos B and sin B."""
    near = eigenvalues_meet(p, q, torch.ones_like(p), SERIES_RADIUS)
    p_near, q_near = torch.where(near, p, 0.0), torch.where(near, q, 0.0)
    p, q = torch.where(near, 1.0, p), torch.where(near, 1.0, q)
    x = separate_root(p, q)
    projection = spectral_projection(x, p)
    square = (3.0 * p - 0.75 * x * x).clamp(min=0.0)  # eigenvalues are real: it is negative by rounding alone
    c1, c2, _ = circular(square)
    cos_pair, cos_half, sin_half = 1.0 - square * c2, (0.5 * x).cos(), (0.5 * x).sin()
    result = []
    for series, even, odd, value in (
        (_COSINE_SERIES, cos_half * cos_pair, sin_half * c1, x.cos()),
        (_SINE_SERIES, -sin_half * cos_pair, cos_half * c1, x.sin()),
    ):
        spectral = spectral_coefficients(projection, x, even, value - even, odd)
        ring = in_ring(series, p_near, q_near)
        result.append(tuple(torch.where(near, s, t) for s, t in zip(ring, spectral, strict=True)))
    return result[0], result[1]


def _turned(mean: Tensor, cosine: tuple[Tensor, ...], sine: tuple[Tensor, ...]) -> list[Complex]:
    phase = mean.cos(), mean.sin()
    return [_times(phase, f) for f in zip(cosine, sine, strict=True)]


def _times(a: Complex, b: Complex) -> Complex:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _conjugate(a: Complex) -> Complex:
    return a[0], -a[1]
