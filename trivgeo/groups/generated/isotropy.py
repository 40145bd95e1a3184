r"""Newton's method for the end of a flow that is known roughly, from the fields that vanish at it.

The vectors w whose fields vanish at x move with it: the fields of :math:`\mathrm{Ad}_g w` vanish at g.x. With F(x) the
fields at x, one row each, this is :math:`F(g.x) = \mathrm{Ad}_g^{-T} F(x)\, J^T` for some matrix J (the Jacobian of the
action). Where no other points nearby obey it, Newton's method finds g.x from a point near it.
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

_NUM_NEWTON_STEPS = 4
_RANK = 1e-5  # smallest singular value, relative to the largest, of a matrix of full rank
_MIN_SHARE_OF_POINTS = 0.9  # sample points that have to be determined


class Isotropy:
    """Corrections of images of points, from the fields that vanish there.

    Attributes:
        counts: numbers of leading coordinates that can be corrected.

    Args:
        fields: the fields.
        algebra: the algebra of the fields, with the sign of the group.
        points: sample points, ``[p, m]``.
        counts: numbers of leading coordinates that move independently of the others.
    """

    def __init__(self, fields: VectorFields, algebra: LieAlgebra, points: Tensor, counts: Sequence[int]) -> None:
        self._fields, self._algebra = fields, algebra
        self.counts = frozenset(count for count in counts if self._determines(points, count))

    def _determines(self, points: Tensor, count: int) -> bool:
        """Whether the fields that vanish at a point determine its ``count`` leading coordinates."""
        if count >= len(self._fields):
            return False
        values, jacobians = (each[:, :, :count] for each in values_and_jacobians(self._fields, points))
        singular = torch.linalg.svdvals(values)
        transitive = singular[:, -1] > _RANK * singular[:, 0]
        if float(transitive.double().mean()) < _MIN_SHARE_OF_POINTS:
            return False
        values, jacobians = values[transitive], jacobians[transitive]  # other points have no frame
        slopes = jacobians[..., :count].flatten(1, 2)
        missed = _orthogonal_part(slopes.unflatten(1, (-1, count)).flatten(2), _frame(values))
        missed = missed.unflatten(-1, (count, count)).flatten(1, 2)
        rank = torch.linalg.svdvals(missed)
        unique = rank[:, -1] > _RANK * torch.linalg.svdvals(slopes)[:, 0]
        return float(unique.double().sum()) >= _MIN_SHARE_OF_POINTS * len(points)

    def correct(self, v: Tensor, x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The image of x under the flow of v, from a point y near it.

        Args:
            v: the algebra vectors, ``[*batch, 1, dim]``.
            x: the points, ``[*batch, p, m]``.
            y: points near their images.
            count: the number of leading coordinates that are corrected; the others stay as they are.

        Returns:
            The images, their distances from y, and error estimates from the last two steps, ``[*batch, p]``.
        """
        dtype = y.dtype
        v, x, y = v.double(), x.double(), y.double()  # rounding would be enlarged by the condition of the slopes
        rest = y[..., count:]
        back = dense_exp(-self._algebra.ad(v)).transpose(-1, -2)
        target = _frame(back @ self._fields(x)[..., :count])

        start = z = y[..., :count]
        lengths = []
        for _ in range(_NUM_NEWTON_STEPS):
            whole = torch.cat([z, rest], -1)
            missed = _orthogonal_part(self._fields(whole)[..., :count], target).flatten(-2)
            slopes = self._fields.slopes(whole)[..., :count, :count].flatten(-2)
            slopes = _orthogonal_part(slopes, target).unflatten(-1, (count, count)).flatten(-3, -2)
            step = -_least_squares(slopes, missed)
            z = z + step
            lengths.append(step.detach().abs().amax(-1))
        ratio = lengths[-1] / torch.where(lengths[-2] > 0, lengths[-2], 1.0)
        error = lengths[-1] * ratio.clamp(max=1.0)  # steps that shrink
        moved = (z - start).detach().abs().amax(-1)
        return torch.cat([z, rest], -1).to(dtype), moved.to(dtype), error.to(dtype)

    def misses(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the size at points y of the fields that vanish at points x, relative to the size of all fields there.

        Args:
            x: points ``[*batch, p, m]``.
            y: their images, of the same shape.

        Returns:
            Sizes ``[*batch, p]``.
        """
        values = self._fields(y)
        return _orthogonal_part(values, _frame(self._fields(x))).flatten(-2).norm(dim=-1) / values.flatten(-2).norm(
            dim=-1
        )


def _frame(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Columns ``[*batch, n, m]`` scaled to unit length, and the inverse of their Gram matrix."""
    length = columns.detach().norm(dim=-2, keepdim=True)
    unit = columns / torch.where(length > 0, length, 1.0)
    return unit, kernel(unit.shape[-1]).inverse(unit.mT @ unit)


def _orthogonal_part(vectors: Tensor, frame: tuple[Tensor, Tensor]) -> Tensor:
    """The parts of columns ``[*batch, n, k]`` that are orthogonal to a frame."""
    unit, inverse = frame
    for _ in range(2):  # the second pass removes the rounding errors of the first
        vectors = vectors - unit @ (inverse @ (unit.mT @ vectors))
    return vectors


def _least_squares(matrix: Tensor, right: Tensor) -> Tensor:
    """The shortest x with ``matrix x = right``, ``[*batch, k, m]`` and ``[*batch, k]``."""
    length = matrix.detach().norm(dim=-2, keepdim=True)
    length = torch.where(length > 0, length, 1.0)
    unit = matrix / length
    solution = kernel(unit.shape[-1]).inverse(unit.mT @ unit) @ (unit.mT @ right.unsqueeze(-1))
    return (solution / length.mT).squeeze(-1)
