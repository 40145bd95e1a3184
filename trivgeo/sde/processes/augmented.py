"""A group times a vector space: the state of an equation that carries numbers along."""

from __future__ import annotations

import torch

from trivgeo.groups import DirectProduct, LieGroup, Translation

__all__ = ["with_vectors"]


def with_vectors(group: LieGroup, number: int) -> DirectProduct:
    """G x R^number, an element followed by a vector; the basis is that of G, then the usual one."""
    natural = group.basis.is_natural
    rows = torch.block_diag(group.basis.rows, torch.eye(number, dtype=torch.float64))
    factor = group if natural else group.with_scale(None)
    return DirectProduct(factor, Translation(number), scale=None if natural else rows)
