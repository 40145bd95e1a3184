r"""Digits for the end of a flow that was followed roughly, from the fields that vanish there.

The vectors w whose fields vanish at x move with it: the fields of :math:`\mathrm{Ad}_g w` vanish at g.x. With F(x) the
fields at x, one row each, this is :math:`F(g.x) = \mathrm{Ad}_g^{-T} F(x)\, J^T` for some matrix J (the Jacobian of the
action). Where no other points nearby obey it, Newton's method finds g.x from a point close to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trivgeo._numerics import dense_exp
from trivgeo.groups._matrices import kernel
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.generated.vector_fields import VectorFields, values_and_jacobians

__all__ = ["Isotropy"]

_STEPS = 4
_DEGENERATE = 1e-5  # singular values, relative to the largest, of what has to be of full rank
_SHARE = 0.9  # of the sample points


class Isotropy:
    """Corrections of images of points, for those numbers ``counts`` of leading coordinates that it can correct.

    Args:
        fields: the fields.
        algebra: that of the fields, with the sign of the group.
        points: sample points, ``[p, m]``.
        counts: numbers of leading coordinates that move by themselves.
    """

    def __init__(self, fields: VectorFields, algebra: LieAlgebra, points: Tensor, counts: Sequence[int]) -> None:
        self._fields, self._algebra = fields, algebra
        self.counts = frozenset(count for count in counts if self._determines(points, count))

    def _determines(self, points: Tensor, count: int) -> bool:
        """Whether leading coordinates follow from the fields that vanish there."""
        if count >= len(self._fields):
            return False
        values, jacobians = (each[:, :, :count] for each in values_and_jacobians(self._fields, points))
        singular = torch.linalg.svdvals(values)
        transitive = singular[:, -1] > _DEGENERATE * singular[:, 0]
        if float(transitive.double().mean()) < _SHARE:
            return False
        values, jacobians = values[transitive], jacobians[transitive]  # the others have no frame
        slopes = jacobians[..., :count].flatten(1, 2)
        missed = _beside(slopes.unflatten(1, (-1, count)).flatten(2), _frame(values))
        missed = missed.unflatten(-1, (count, count)).flatten(1, 2)
        rank = torch.linalg.svdvals(missed)
        unique = rank[:, -1] > _DEGENERATE * torch.linalg.svdvals(slopes)[:, 0]
        return float(unique.double().sum()) >= _SHARE * len(points)

    def correct(self, v: Tensor, x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The image of x under the flow of v, from a point y near it.

        Args:
            v: the algebra vectors, ``[*batch, 1, dim]``.
            x: the points, ``[*batch, p, m]``.
            y: near their images.
            count: how many leading coordinates are wanted; the others stay as they are.

        Returns:
            The image, how far it was from y, and an error estimate from the last two steps, ``[*batch, p]``.
        """
        single = y.dtype
        v, x, y = v.double(), x.double(), y.double()  # rounding would be enlarged by the condition of the slopes
        rest = y[..., count:]
        back = dense_exp(-self._algebra.ad(v)).transpose(-1, -2)
        target = _frame(back @ self._fields(x)[..., :count])

        start = z = y[..., :count]
        lengths = []
        for _ in range(_STEPS):
            whole = torch.cat([z, rest], -1)
            missed = _beside(self._fields(whole)[..., :count], target).flatten(-2)
            slopes = self._fields.slopes(whole)[..., :count, :count].flatten(-2)
            slopes = _beside(slopes, target).unflatten(-1, (count, count)).flatten(-3, -2)
            step = -_least_squares(slopes, missed)
            z = z + step
            lengths.append(step.detach().abs().amax(-1))
        ratio = lengths[-1] / torch.where(lengths[-2] > 0, lengths[-2], 1.0)
        error = lengths[-1] * ratio.clamp(max=1.0)  # steps that shrink
        moved = (z - start).detach().abs().amax(-1)
        return torch.cat([z, rest], -1).to(single), moved.to(single), error.to(single)

    def misses(self, x: Tensor, y: Tensor) -> Tensor:
        """How far fields are from vanishing at y that vanish at x, relative to all fields there, ``[*batch, p]``."""
        values = self._fields(y)
        return _beside(values, _frame(self._fields(x))).flatten(-2).norm(dim=-1) / values.flatten(-2).norm(dim=-1)


def _frame(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Columns ``[*batch, n, m]`` of unit length, and the inverse of their Gram matrix."""
    length = columns.detach().norm(dim=-2, keepdim=True)
    unit = columns / torch.where(length > 0, length, 1.0)
    return unit, kernel(unit.shape[-1]).inverse(unit.mT @ unit)


def _beside(vectors: Tensor, frame: tuple[Tensor, Tensor]) -> Tensor:
    """What of columns ``[*batch, n, k]`` is orthogonal to a frame."""
    unit, inverse = frame
    for _ in range(2):  # the second time for the digits
        vectors = vectors - unit @ (inverse @ (unit.mT @ vectors))
    return vectors


def _least_squares(matrix: Tensor, right: Tensor) -> Tensor:
    """The shortest x with ``matrix x = right``, ``[*batch, k, m]`` and ``[*batch, k]``."""
    length = matrix.detach().norm(dim=-2, keepdim=True)
    length = torch.where(length > 0, length, 1.0)
    unit = matrix / length
    solution = kernel(unit.shape[-1]).inverse(unit.mT @ unit) @ (unit.mT @ right.unsqueeze(-1))
    return (solution / length.mT).squeeze(-1)
