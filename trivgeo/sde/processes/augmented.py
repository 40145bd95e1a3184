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
    if natural:
        return DirectProduct(group, Translation(dim))
    ones = torch.ones(dim, dtype=torch.float64)
    diagonal = group.scale.ndim == 1
    scale = torch.cat([group.scale, ones]) if diagonal else torch.block_diag(group.scale, torch.diag(ones))
    return DirectProduct(group.with_scale(None), Translation(dim), scale=scale)
