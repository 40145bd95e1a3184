"""2 x 2 matrices: everything in closed form, by the trace-free part B, for which B^2 is a multiple of I."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import Constant, dense_exp, grown_stumpff, plane_log_ratio
from trivgeo.groups._matrices.affine import affine_exp
from trivgeo.groups._matrices.basic import rows_of, stack_rows
from trivgeo.groups._matrices.kernel import Kernel
from trivgeo.groups._matrices.one import phi1_regimes
from trivgeo.groups._matrices.series import is_few

__all__ = ["Two"]

_SIGNS = Constant(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))


@final
class Two(Kernel):
    """The size k = 2."""

    def determinant(self, matrix: Tensor) -> Tensor:
        """By products."""
        (a, b), (c, d) = rows_of(matrix)
        return a * d - b * c

    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        """By the adjugate."""
        if is_few(matrix):  # fewer operators, each slower
            adjugate = matrix.flip(-2, -1).mT * _SIGNS.like(matrix)
            if unimodular:
                return adjugate
            return adjugate / (matrix.select(-2, 0) * adjugate.select(-1, 0)).sum(-1, keepdim=True).unsqueeze(-1)
        (a, b), (c, d) = rows_of(matrix)
        adjugate = stack_rows([[d, -b], [-c, a]])
        return adjugate if unimodular else adjugate / (a * d - b * c)[..., None, None]

    def exp(self, matrix: Tensor) -> Tensor:
        """By the functions of `grown_stumpff`."""
        if is_few(matrix):
            return dense_exp(matrix)
        half_trace, x, b, c = _split2(matrix)
        c0, c1 = grown_stumpff(half_trace, x * x + b * c)
        return stack_rows([[c0 + c1 * x, c1 * b], [c1 * c, c0 - c1 * x]])

    def exp_phi1(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """The latter by way of the former."""
        e = self.exp(matrix)
        return e, _phi1_2x2(matrix, e)

    def phi1(self, matrix: Tensor, exponential: Tensor | None = None) -> Tensor:
        """In three regimes."""
        return _phi1_2x2(matrix, self.exp(matrix) if exponential is None else exponential)

    def affine_exp(self, matrix: Tensor, vector: Tensor) -> Tensor:
        """From `exp_phi1`."""
        return affine_exp(self, matrix, vector)

    def log(self, matrix: Tensor) -> Tensor:
        """By the determinant and a matrix of determinant one."""
        return _log_2x2(matrix)


def _split2(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Half the trace, and the entries x, b, c of the trace-free part [[x, b], [c, -x]]."""
    (a, b), (c, d) = rows_of(matrix)
    return 0.5 * (a + d), 0.5 * (a - d), b, c


def _phi1_2x2(matrix: Tensor, exponential: Tensor) -> Tensor:
    r"""phi_1 of 2 x 2 matrices as :math:`a I + b B`, B the trace-free part, :math:`B^2 = q I`.

    In the regimes of `phi1_regimes`, each free of cancellation.
    """
    m, x, y, z = _split2(matrix)
    q = x * x + y * z
    rest, a, b = phi1_regimes(m, q)
    (e00, e01), (e10, e11) = rows_of(torch.where(rest[..., None, None], exponential, 0.0))
    per_det = 1.0 / torch.where(rest, m * m - q, 1.0)
    plus, minus, e00, e11 = (m + x) * per_det, (m - x) * per_det, e00 - 1.0, e11 - 1.0
    solved = [
        [minus * e00 - y * per_det * e10, minus * e01 - y * per_det * e11],
        [plus * e10 - z * per_det * e00, plus * e11 - z * per_det * e01],
    ]
    spanned = [[a + b * x, b * y], [b * z, a - b * x]]
    return torch.where(rest[..., None, None], stack_rows(solved), stack_rows(spanned))


def _log_2x2(matrix: Tensor) -> Tensor:
    (a, b), (c, d) = rows_of(matrix)
    det = a * d - b * c
    # rounding of the entries must leave a third of the digits of the determinant
    good = det > torch.finfo(det.dtype).eps ** (2 / 3) * ((a * d).abs() + (b * c).abs())
    scale = torch.where(good, det, 1.0).sqrt()
    a, b, c, d = a / scale, b / scale, c / scale, d / scale
    f, _ = plane_log_ratio(a, b, c, d)
    x = 0.5 * (a - d)
    half = torch.where(good, scale.log(), math.nan)
    return stack_rows([[half + f * x, f * b], [f * c, half - f * x]])
