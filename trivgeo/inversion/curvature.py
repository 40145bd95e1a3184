"""Curvatures of energies as steps and densities need them: Cholesky factors, and eigenvalues by their size."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._numerics import eigh
from trivgeo.inversion.rows import where_rows


def safe_cholesky(
    matrix: Float[Tensor, "*batch n n"], fallback: Float[Tensor, "*#batch n n"] | None = None
) -> tuple[Float[Tensor, "*batch n n"], Bool[Tensor, "*batch"]]:
    """Return lower Cholesky factors of symmetric matrices, and a mask of the matrices that have one.

    Args:
        fallback: factors of matrices that are not finite or not positive definite; ``None`` for unit matrices.
    """
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    factor, info = torch.linalg.cholesky_ex(where_rows(_finite(matrix), matrix, eye))
    good = _finite(matrix) & (info == 0) & _finite(factor)
    return where_rows(good, factor, eye if fallback is None else fallback), good


def absolute_eigh(
    matrix: Float[Tensor, "*batch n n"], min_relative: float, fallback: Float[Tensor, "*#batch n n"] | None = None
) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch n n"]]:
    """Return absolute eigenvalues and eigenvectors of symmetric matrices: those of a positive definite matrix nearby.

    Newton's step with it goes downhill from saddles, too. Matrices of half precision are decomposed in float32.

    Args:
        min_relative: least eigenvalue in units of the largest of its matrix; smaller ones are raised to it.
        fallback: taken in place of matrices that are not finite; ``None`` for unit matrices.
    """
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    known = where_rows(_finite(matrix), matrix, eye if fallback is None else fallback)
    decomposed = eigh(known.to(torch.promote_types(matrix.dtype, torch.float32)))
    values, vectors = (part.to(matrix.dtype) for part in decomposed)
    size = values.abs()
    least = min_relative * size.amax(-1, keepdim=True)
    return torch.maximum(size, least.clamp(min=torch.finfo(matrix.dtype).tiny)), vectors


def _finite(matrix: Tensor) -> Bool[Tensor, "*batch"]:
    return torch.isfinite(matrix).all((-2, -1))
