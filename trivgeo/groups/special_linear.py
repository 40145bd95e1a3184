"""The special linear groups."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import abs_det, half_power, plane_log_ratio, stumpff
from trivgeo.checks import check_count, checked
from trivgeo.groups.basis import Scale
from trivgeo.groups.linalg.components import Rows, dot, entry_rows, from_entries, from_rows, last_entries
from trivgeo.groups.linalg.size_two import exp_entries
from trivgeo.groups.matrix import MatrixGroup, matrix_units, restore_determinant

_MAX_DETERMINANT_ERROR = 1e-2  # error over the largest determinant of a matrix of this norm; far above round-off


@checked
@final
class SL(MatrixGroup):
    r"""SL(n, R), n x n matrices of determinant one.

    Natural basis: :math:`H_i = e_{ii} - e_{i+1,i+1}`, then the matrix units :math:`e_{ij}`, i != j, row by row; for
    n = 2 these are H, E, F. For n = 2 all operations are closed forms, and an element has a logarithm if its trace
    exceeds -2. For n > 2 see `MatrixGroup`.

    Args:
        n: the size of the matrices.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: n < 2.
    """

    def __init__(self, n: int = 2, scale: Scale = None) -> None:
        check_count("n", n, 2)
        units, unit_names = matrix_units(n)
        grid = units.reshape(n, n, n, n)
        basis = [grid[i, i] - grid[i + 1, i + 1] for i in range(n - 1)]
        basis += [grid[i, j] for i in range(n) for j in range(n) if i != j]
        names = [f"H{i + 1}" for i in range(n - 1)]
        names += [unit_names[n * i + j] for i in range(n) for j in range(n) if i != j]
        self._closed = _PlaneForms() if n == 2 else None
        super().__init__(torch.stack(basis), ("H", "E", "F") if n == 2 else names, scale)

    def _project(self, g: Tensor) -> Tensor:
        return restore_determinant(g)

    def _inverse(self, g: Tensor) -> Tensor:
        return self._kernel.inverse(g, unimodular=True)

    def _tangent(self, v: Tensor) -> Tensor:
        return self._closed.tangent(v) if self._closed is not None else super()._tangent(v)

    def _exp(self, v: Tensor) -> Tensor:
        return self._closed.exp(v) if self._closed is not None else super()._exp(v)

    def _log(self, g: Tensor) -> Tensor:
        """The logarithm, NaN also where the determinant is not one: 2 I has no logarithm here."""
        free = g.detach()
        off = (abs_det(free) - 1.0).abs()
        if self._closed is None:
            good = off < _MAX_DETERMINANT_ERROR * half_power(free.square().sum((-2, -1)) / self.size, self.size)
            return torch.where(good.unsqueeze(-1), super()._log(g), math.nan)
        rows = entry_rows(g)
        numbers = [x.detach() for row in rows for x in row]
        good = off < _MAX_DETERMINANT_ERROR * 0.5 * dot(numbers, numbers)
        return from_entries([torch.where(good, x, math.nan) for x in self._closed.log(rows)])

    def _adjoint(self, g: Tensor) -> Tensor:
        return self._closed.adjoint(g) if self._closed is not None else super()._adjoint(g)


class _PlaneForms:
    def tangent(self, v: Tensor) -> Tensor:
        x, y, z = last_entries(v)
        return from_rows([[x, y], [z, -x]])

    def exp(self, v: Tensor) -> Tensor:
        x, y, z = last_entries(v)
        q = x * x + y * z
        c0, c1, _, _ = stumpff(q)
        return from_rows(exp_entries(x, y, z, q, c0, c1))

    def log(self, rows: Rows) -> list[Tensor]:
        (a, b), (c, d) = rows
        f, _ = plane_log_ratio(a, b, c, d)
        return [f * (0.5 * (a - d)), f * b, f * c]

    def adjoint(self, g: Tensor) -> Tensor:
        (a, b), (c, d) = entry_rows(g)
        # columns: g H g^-1, g E g^-1, g F g^-1 in the basis (H, E, F)
        return from_rows([[a * d + b * c, -a * c, b * d], [-2.0 * a * b, a * a, -b * b], [2.0 * c * d, -c * c, d * d]])
