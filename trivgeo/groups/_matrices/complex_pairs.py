"""Complex numbers as pairs of real ones, ``[*batch, 2]``: real and imaginary part."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "complex_product",
    "from_columns",
    "over_i",
    "real_inner",
    "real_trace",
    "stacked_columns",
    "times_conjugate",
    "times_phase",
]


def stacked_columns(g: Tensor) -> Tensor:
    """[[A], [B]] of A + i B, ``[*batch, 2 n, n]``, see `embedded`."""
    return torch.cat(g.unbind(-1), -2)


def from_columns(columns: Tensor) -> Tensor:
    """The inverse of `_columns`."""
    return torch.stack(columns.chunk(2, -2), -1)


def complex_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of a product of complex numbers ``[*batch, 2]``."""
    return a[..., 0] * b[..., 0] - a[..., 1] * b[..., 1], a[..., 0] * b[..., 1] + a[..., 1] * b[..., 0]


def real_inner(a: Tensor, b: Tensor) -> Tensor:
    """Re a conj(b)."""
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
    """exp(i angle) g."""
    cos, sin = angle.cos()[..., None, None], angle.sin()[..., None, None]
    a, b = g.unbind(-1)
    return torch.stack([cos * a - sin * b, cos * b + sin * a], -1)
