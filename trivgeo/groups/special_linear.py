"""The special linear group of the plane."""

from __future__ import annotations

import torch
from torch import Tensor

from trivgeo._numerics import log_ratio, stumpff
from trivgeo.errors import ConfigurationError
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.base import LieGroup, Scale

__all__ = ["SL"]

_BASIS = torch.tensor(
    [[[1.0, 0.0], [0.0, -1.0]], [[0.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]], dtype=torch.float64
)


class SL(LieGroup):
    r"""SL(2, R), elements 2 x 2 matrices of determinant one, all operations in closed form.

    Natural basis: H = diag(1, -1), E = e12, F = e21. The logarithm exists where the trace exceeds -2.

    Args:
        n: the size of the matrices; 2.
        scale: see `LieGroup`.

    Raises:
        ConfigurationError: n is not 2.
    """

    def __init__(self, n: int = 2, scale: Scale = None) -> None:
        if n != 2:
            raise ConfigurationError(f"n: expected 2, got {n}")
        super().__init__(LieAlgebra.from_matrices(_BASIS, ("H", "E", "F")), (2, 2), scale)

    def __repr__(self) -> str:
        """Name."""
        return "SL(2)"

    def identity(
        self, *batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """The unit matrix."""
        return torch.eye(2, dtype=dtype, device=device).expand(*batch, 2, 2).clone()

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        a, b, c, d = _entries(g)
        e, f, i, j = _entries(h)
        return _matrix(a * e + b * i, a * f + b * j, c * e + d * i, c * f + d * j)

    def _inverse(self, g: Tensor) -> Tensor:
        a, b, c, d = _entries(g)
        return _matrix(d, -b, -c, a)

    def _exp(self, v: Tensor) -> Tensor:
        x, y, z = v.unbind(-1)
        c0, c1, _, _ = stumpff(x * x + y * z)
        return _matrix(c0 + c1 * x, c1 * y, c1 * z, c0 - c1 * x)

    def _tangent(self, v: Tensor) -> Tensor:
        x, y, z = v.unbind(-1)
        return _matrix(x, y, z, -x)

    def _log(self, g: Tensor) -> Tensor:
        a, b, c, d = _entries(g)
        x = 0.5 * (a - d)
        f = log_ratio(0.5 * (a + d), x * x + b * c)
        return torch.stack([f * x, f * b, f * c], -1)

    def _adjoint(self, g: Tensor) -> Tensor:
        a, b, c, d = _entries(g)
        # columns: g H g^-1, g E g^-1, g F g^-1 in the basis (H, E, F)
        columns = [
            torch.stack([a * d + b * c, -2.0 * a * b, 2.0 * c * d], -1),
            torch.stack([-a * c, a * a, -c * c], -1),
            torch.stack([b * d, -b * b, d * d], -1),
        ]
        return torch.stack(columns, -1)


def _entries(g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return g[..., 0, 0], g[..., 0, 1], g[..., 1, 0], g[..., 1, 1]


def _matrix(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return torch.stack([a, b, c, d], -1).unflatten(-1, (2, 2))
