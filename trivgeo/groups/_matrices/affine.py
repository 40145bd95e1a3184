"""Exponentials of affine maps."""

from __future__ import annotations

from torch import Tensor

from trivgeo._numerics import augmented_exp
from trivgeo.groups._matrices.basic import product
from trivgeo.groups._matrices.batches import is_small_batch
from trivgeo.groups._matrices.components import concatenate
from trivgeo.groups._matrices.kernel import Kernel

__all__ = ["affine_exp"]


def affine_exp(kernel: Kernel, matrix: Tensor, vector: Tensor) -> Tensor:
    """`Kernel.affine_exp` from closed forms, but for few matrices."""
    if is_small_batch(matrix):
        return augmented_exp(matrix, vector)
    e, phi = kernel.exp_phi1(matrix)
    return concatenate([e, product(phi, vector.unsqueeze(-1))], rank=2)
