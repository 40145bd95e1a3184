"""The structure constants of the algebra that vector fields span."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trivgeo.errors import AlgebraError
from trivgeo.groups.generated.sparse_lstsq import least_squares
from trivgeo.groups.generated.vector_fields import VectorFields, sample_points, values_and_jacobians
from trivgeo.groups.structure import describe

__all__ = ["fit_brackets"]

_MAX_SHARE_OFF_SPAN = 1e-8  # of a bracket that counts as closed
_ROUNDING = 1e-12  # of a bracket, relative to its terms
_RANK = 1e-9  # singular values below this share of the largest belong to dependent fields
_DENOMINATOR = 12  # of simple fractions that constants are taken for


def fit_brackets(fields: VectorFields, sampler: Callable[[int], Tensor] | None) -> Tensor:
    """Fit the constants of the brackets ``[X_i, X_j] = DX_j X_i - DX_i X_j`` of vector fields, ``[n, n, n]``.

    Least squares at random points, tested at as many others.

    Args:
        fields: the vector fields.
        sampler: draws a number of points; None for normal ones.

    Raises:
        AlgebraError: the fields are dependent over R (the relation is named), or a bracket leaves their span (the
            bracket is named, with the share of it that does).
    """
    n, m = len(fields), fields.dim
    left, right = torch.triu_indices(n, n, 1)
    count = 3 * n // m + 4
    points = sample_points(fields, 2 * count, sampler)
    values, jacobians = values_and_jacobians(fields, points)
    products = torch.einsum("pjab,pib->paij", jacobians, values)
    brackets = (products - products.mT)[..., left, right]
    # the sizes of terms that may cancel: rounding is relative to them
    terms = torch.einsum("pjab,pib->paij", *reversed(fields.sizes(points)))
    whole = (terms + terms.mT)[..., left, right].reshape(2, count * m, len(left)).norm(dim=1)
    design = values.transpose(1, 2).reshape(2, -1, n)  # halves, equations, fields
    targets = brackets.reshape(2, count * m, len(left))
    length = design[0].norm(dim=0)
    if bool((length == 0).any()):
        zero = fields.names[int((length == 0).int().argmax())]
        raise AlgebraError(f"fields: expected independent ones, but {zero} vanishes identically")
    _, singular, rows = torch.linalg.svd(design[0] / length)
    if float(singular[-1]) < _RANK * float(singular[0]):
        relation = rows[-1] / length
        relation = relation / relation[relation.abs().argmax()]
        raise AlgebraError(f"fields: expected independent ones over R, got {describe(relation, fields.names)} = 0")
    c = torch.zeros(n, n, n, dtype=torch.float64)
    if n == 1:
        return c
    solution = least_squares(design[0], targets[0], whole[0], denominator=_DENOMINATOR)
    residual = (design[1] @ solution - targets[1]).norm(dim=0)
    share = residual / targets[1].norm(dim=0).clamp(min=1e-300)
    share = torch.where(residual > _ROUNDING * whole[1], share, 0.0)
    if float(share.max()) > _MAX_SHARE_OFF_SPAN:
        worst = int(share.argmax())
        raise AlgebraError(
            f"fields: expected brackets in their span, but [{fields.names[int(left[worst])]}, "
            f"{fields.names[int(right[worst])]}] is off the span by {100 * float(share.max()):.1f} %: the fields do "
            "not close under the bracket"
        )
    c[left, right] = solution.T
    return c - c.transpose(0, 1)
