"""3 x 3 matrices: determinants and inverses by cross products, exponentials as polynomials."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from trivgeo.groups._matrices.polynomial import PolynomialKernel

__all__ = ["Three"]


@final
class Three(PolynomialKernel):
    """The size k = 3."""

    def determinant(self, matrix: Tensor) -> Tensor:
        """The triple product of the rows."""
        r0, r1, r2 = matrix.unbind(-2)
        return (r0 * torch.linalg.cross(r1, r2)).sum(-1)

    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        """By the adjugate."""
        r0, r1, r2 = matrix.unbind(-2)
        first = torch.linalg.cross(r1, r2)
        adjugate = torch.stack([first, torch.linalg.cross(r2, r0), torch.linalg.cross(r0, r1)], -1)
        return adjugate if unimodular else adjugate / (r0 * first).sum(-1)[..., None, None]
