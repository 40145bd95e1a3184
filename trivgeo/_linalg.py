"""Eigenvalues of batches of any size, on every device."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._numerics import is_abstract

__all__ = ["eigh"]

_MAX_MATRICES = 2**14
"""Matrices of one call on a device: cuSOLVER refuses batches of somewhat more than 2^15."""


def eigh(matrix: Tensor) -> tuple[Float[Tensor, "*batch n"], Tensor]:
    """Return eigenvalues ``[*batch, n]`` and eigenvectors ``[*batch, n, n]`` of Hermitian matrices.

    It is `torch.linalg.eigh`, called on parts of a large batch that is on a device.

    Args:
        matrix: ``[*batch, n, n]``, real or complex.
    """
    batch = matrix.shape[:-2]
    if matrix.device.type == "cpu" or is_abstract(matrix) or batch.numel() <= _MAX_MATRICES:
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors
    parts = [torch.linalg.eigh(part) for part in matrix.flatten(0, -3).split(_MAX_MATRICES)]
    values, vectors = (torch.cat(results) for results in zip(*parts, strict=True))
    return values.unflatten(0, batch), vectors.unflatten(0, batch)
