"""What may be asked of a batch before an algorithm is chosen."""

from __future__ import annotations

from torch import Tensor

from trivgeo._numerics import is_abstract, is_traced

__all__ = ["SMALL_BATCH", "is_small_batch"]

SMALL_BATCH = 200  # matrices, up to which one library kernel beats closed forms, whose cost is their number of kernels


def is_small_batch(matrix: Tensor, largest: int = SMALL_BATCH) -> bool:
    """Whether a batch on the CPU is so small that few library kernels are faster than many elementwise ones.

    False in compiled code and under ``vmap``, where the size of the batch is not known.

    Args:
        matrix: ``[*batch, k, l]``.
        largest: the number of matrices that still counts as small.
    """
    if is_traced() or matrix.device.type != "cpu":
        return False
    return matrix.numel() <= largest * matrix.shape[-1] * matrix.shape[-2] and not is_abstract(matrix)
