"""A group times a vector space: the state space of an equation with additional real unknowns."""

from __future__ import annotations

import torch

from trivgeo.groups import DirectProduct, LieGroup, Translation

__all__ = ["with_vectors"]


def with_vectors(group: LieGroup, dim: int) -> DirectProduct:
    """Return the direct product of ``group`` and R^dim, an element followed by a vector.

    The basis is that of the group, then the standard basis of R^dim.
    """
    natural = group.basis.is_natural
    rows = torch.block_diag(group.basis.rows, torch.eye(dim, dtype=torch.float64))
    factor = group if natural else group.with_scale(None)
    return DirectProduct(factor, Translation(dim), scale=None if natural else rows)
