"""Matrices of one and of two rows: all functions in closed form.

The trace-free part B of a 2 x 2 matrix squares to a multiple of I, so that functions are a I + b B.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import Constant, augmented_exp, dense_exp, grown_stumpff, plane_log_ratio, polynomial
from trivgeo.groups.linalg.any_size import PHI1_SERIES
from trivgeo.groups.linalg.base import MatrixFunctions
from trivgeo.groups.linalg.components import Rows, entry_rows, from_rows, is_small_batch, last_entries

PHI1_RADIUS = 0.5  # largest argument of the series of phi_1
PHI1_SHORT = PHI1_SERIES[:14]
_MAX_HYPERBOLIC_SQUARE = 1.0  # square of the rate of growth up to which cosh and sinh hardly cancel
_ADJUGATE_SIGNS = Constant(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))


@final
class OneByOne(MatrixFunctions):
    """Functions of 1 x 1 matrices."""

    def determinant(self, matrix: Tensor) -> Tensor:
        return matrix[..., 0, 0]

    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        return 1.0 / matrix

    def exp(self, matrix: Tensor) -> Tensor:
        return matrix.exp()

    def exp_phi1(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        return matrix.exp(), phi1_scalar(matrix)

    def phi1(self, matrix: Tensor, exponential: Tensor | None = None) -> Tensor:
        return phi1_scalar(matrix)

    def log(self, matrix: Tensor) -> Tensor:
        positive = matrix > 0
        return torch.where(positive, torch.where(positive, matrix, 1.0).log(), math.nan)


def phi1_scalar(x: Tensor) -> Tensor:
    """``expm1(x) / x``."""
    small = x.abs() < PHI1_RADIUS
    far = torch.where(small, 1.0, x)
    return torch.where(small, polynomial(torch.where(small, x, 0.0), PHI1_SHORT), torch.expm1(far) / far)


def phi1_regimes(m: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where phi_1 is (e^A - I) / A for eigenvalues m +- sqrt(q), and a and b of phi_1 = a + b sqrt(q) elsewhere.

    Small eigenvalues use a series in the ring spanned by I and B, B^2 = q I, real ones apart divided differences; the
    others are away from zero.
    """
    size = torch.maximum(m.abs(), q.abs().sqrt())
    small = size < 0.5 * PHI1_RADIUS
    apart = ~small & (q > 0.04)  # a bound below the reach of small ones, so that m^2 - q >= 0.02 for the rest

    m_near, q_near = torch.where(small, m, 0.0), torch.where(small, q, 0.0)
    a_near, b_near = torch.full_like(m, PHI1_SHORT[-1]), torch.zeros_like(m)
    for coefficient in reversed(PHI1_SHORT[:-1]):
        a_next = torch.addcmul(m_near * a_near + coefficient, q_near, b_near)
        a_near, b_near = a_next, torch.addcmul(a_near, m_near, b_near)

    r = torch.where(apart, q, 1.0).sqrt()
    m_apart = torch.where(apart, m, 0.0)
    high, low = phi1_scalar(torch.stack([m_apart + r, m_apart - r], -1)).unbind(-1)
    a_apart, b_apart = 0.5 * (high + low), 0.5 * (high - low) / r
    return ~small & ~apart, torch.where(small, a_near, a_apart), torch.where(small, b_near, b_apart)


def phi1_pair(m: Tensor, q: Tensor, even: Tensor, odd: Tensor) -> tuple[Tensor, Tensor]:
    """a and b with ``phi_1 = a + b sqrt(q)`` at eigenvalues m +- sqrt(q), the exponentials even +- odd sqrt(q)."""
    rest, a, b = phi1_regimes(m, q)
    m, q = torch.where(rest, m, 1.0), torch.where(rest, q, 0.0)
    even, odd = torch.where(rest, even, 0.0) - 1.0, torch.where(rest, odd, 0.0)
    unit = 1.0 / (m * m - q)
    return torch.where(rest, unit * (m * even - q * odd), a), torch.where(rest, unit * (m * odd - even), b)


@final
class TwoByTwo(MatrixFunctions):
    """Functions of 2 x 2 matrices."""

    def determinant(self, matrix: Tensor) -> Tensor:
        (a, b), (c, d) = entry_rows(matrix)
        return a * d - b * c

    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        if is_small_batch(matrix):  # fewer operators, each slower
            adjugate = matrix.flip(-2, -1).mT * _ADJUGATE_SIGNS.matching(matrix)
            if unimodular:
                return adjugate
            return adjugate / (matrix.select(-2, 0) * adjugate.select(-1, 0)).sum(-1, keepdim=True).unsqueeze(-1)
        (a, b), (c, d) = entry_rows(matrix)
        if unimodular:
            return from_rows([[d, -b], [-c, a]])
        det = a * d - b * c
        return from_rows([[d / det, -b / det], [-c / det, a / det]])

    def exp(self, matrix: Tensor) -> Tensor:
        if is_small_batch(matrix):
            return dense_exp(matrix)
        return from_rows(_exp_rows(entry_rows(matrix)))

    def exp_phi1(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        rows = entry_rows(matrix)
        e = _exp_rows(rows)
        return from_rows(e), from_rows(_phi1_rows(rows, e))

    def phi1(self, matrix: Tensor, exponential: Tensor | None = None) -> Tensor:
        rows = entry_rows(matrix)
        return from_rows(_phi1_rows(rows, _exp_rows(rows) if exponential is None else entry_rows(exponential)))

    def affine_exp(self, matrix: Tensor, vector: Tensor) -> Tensor:
        """The upper rows, entry by entry for large batches."""
        if is_small_batch(matrix):
            return augmented_exp(matrix, vector)
        rows, (p, q) = entry_rows(matrix), last_entries(vector)
        (a, b), (c, d) = e = _exp_rows(rows)
        (f, g), (h, k) = _phi1_rows(rows, e)
        return from_rows([[a, b, f * p + g * q], [c, d, h * p + k * q]])

    def log(self, matrix: Tensor) -> Tensor:
        return _log_2x2(matrix)


def _split2(rows: Rows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Half the trace, and the entries x, b, c of the trace-free part [[x, b], [c, -x]]."""
    (a, b), (c, d) = rows
    return 0.5 * (a + d), 0.5 * (a - d), b, c


def _exp_rows(rows: Rows) -> list[list[Tensor]]:
    half_trace, x, b, c = _split2(rows)
    q = x * x + b * c
    c0, c1 = grown_stumpff(half_trace, q)
    return exp_entries(x, b, c, q, c0, c1, torch.exp(half_trace))


def exp_entries(
    x: Tensor, b: Tensor, c: Tensor, q: Tensor, c0: Tensor, c1: Tensor, root: Tensor | None = None
) -> list[list[Tensor]]:
    r"""Entries of :math:`c_0 I + c_1 B`, the exponential of a matrix with trace-free part B = [[x, b], [c, -x]].

    The smaller diagonal entry is a difference of hyperbolic functions that cancels where the matrix is nearly diagonal.
    There it is taken from the determinant: both diagonal entries are accurate relative to themselves where b c >= 0.

    Args:
        x: entry of B, like b and c.
        q: :math:`x^2 + b c`.
        c0: the even function of `grown_stumpff`, with the growth; c1 is the odd one.
        root: square root of the determinant of the exponential; ``None`` for one.
    """
    upper, lower, right, left = c0 + c1 * x, c0 - c1 * x, c1 * b, c1 * c
    falls = x >= 0
    large = torch.where(falls, upper, lower)
    cancels = (q > _MAX_HYPERBOLIC_SQUARE) & (large > 0)
    large = torch.where(cancels, large, 1.0)
    small = (1.0 / large if root is None else root / large * root) + right / large * left
    return [
        [torch.where(cancels & ~falls, small, upper), right],
        [left, torch.where(cancels & falls, small, lower)],
    ]


def _phi1_rows(rows: Rows, exponential: Rows) -> list[list[Tensor]]:
    r"""phi_1 of 2 x 2 matrices as :math:`a I + b B`, B the trace-free part, :math:`B^2 = q I`.

    Each of the regimes of `phi1_regimes` is free of cancellation.
    """
    m, x, y, z = _split2(rows)
    q = x * x + y * z
    rest, a, b = phi1_regimes(m, q)
    (e00, e01), (e10, e11) = [[torch.where(rest, entry, 0.0) for entry in row] for row in exponential]
    per_det = 1.0 / torch.where(rest, m * m - q, 1.0)
    plus, minus, e00, e11 = (m + x) * per_det, (m - x) * per_det, e00 - 1.0, e11 - 1.0
    solved = [
        [minus * e00 - y * per_det * e10, minus * e01 - y * per_det * e11],
        [plus * e10 - z * per_det * e00, plus * e11 - z * per_det * e01],
    ]
    spanned = [[a + b * x, b * y], [b * z, a - b * x]]
    pairs = [zip(*rows, strict=True) for rows in zip(solved, spanned, strict=True)]
    return [[torch.where(rest, x, y) for x, y in row] for row in pairs]


def _log_2x2(matrix: Tensor) -> Tensor:
    (a, b), (c, d) = entry_rows(matrix)
    det = a * d - b * c
    # a third of the digits of the determinant must survive the rounding of the entries
    good = det > torch.finfo(det.dtype).eps ** (2 / 3) * ((a * d).abs() + (b * c).abs())
    scale = torch.where(good, det, 1.0).sqrt()
    a, b, c, d = a / scale, b / scale, c / scale, d / scale
    f, _ = plane_log_ratio(a, b, c, d)
    x = 0.5 * (a - d)
    half = torch.where(good, scale.log(), math.nan)
    return from_rows([[half + f * x, f * b], [f * c, half - f * x]])
