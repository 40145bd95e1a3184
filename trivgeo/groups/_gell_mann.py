"""The basis of the unitary algebras."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["gell_mann", "index_pairs"]


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
