"""Exponentials of affine maps."""

from __future__ import annotations

import torch
from torch import Tensor

from trivgeo._numerics import augmented_exp
from trivgeo.groups._matrices.basic import matvec
from trivgeo.groups._matrices.kernel import Kernel
from trivgeo.groups._matrices.series import is_few

__all__ = ["affine_exp"]


def affine_exp(kernel: Kernel, matrix: Tensor, vector: Tensor) -> Tensor:
    """`Kernel.affine_exp` from closed forms, but for few matrices."""
    if is_few(matrix):
        return augmented_exp(matrix, vector)
    e, phi = kernel.exp_phi1(matrix)
    return torch.cat([e, matvec(phi, vector).unsqueeze(-1)], -1)
