"""Direct products of groups."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from trivgeo.errors import ConfigurationError
from trivgeo.groups.action import PointAction
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.base import LieGroup, Scale

__all__ = ["DirectProduct"]


@final
class DirectProduct(LieGroup):
    r"""The direct product :math:`G_1 \times \dots \times G_m`.

    An element is one flat vector, the entries of the factors' elements one after the other; the basis is that of the
    factors one after the other.

    Args:
        factors: the groups, in their natural bases, since the scale belongs to the product.
        scale: see `LieGroup`.

    Raises:
        ConfigurationError: no factors, or a factor carries a scale of its own.
    """

    def __init__(self, *factors: LieGroup, scale: Scale = None) -> None:
        if not factors:
            raise ConfigurationError("factors: expected at least one group, got none")
        for factor in factors:
            if not factor.basis.is_natural:
                raise ConfigurationError(f"{factor!r}: expected a factor in its natural basis; scale the product")
        self.factors = factors
        self._numels = [torch.Size(factor.element_shape).numel() for factor in factors]
        self._dims = [factor.dim for factor in factors]
        dim = sum(self._dims)
        c = torch.zeros(dim, dim, dim, dtype=torch.float64)
        names: list[str] = []
        start = 0
        for index, factor in enumerate(factors):
            part = slice(start, start + factor.dim)
            c[part, part, part] = factor.algebra.structure_constants
            names += [f"{name}.{index + 1}" for name in factor.algebra.names]
            start += factor.dim
        super().__init__(LieAlgebra(c, names), (sum(self._numels),), scale)

    def __repr__(self) -> str:
        """The factors."""
        return f"DirectProduct({', '.join(map(repr, self.factors))})"

    def split(self, g: Tensor) -> tuple[Tensor, ...]:
        """The factors of an element, each ``[*batch, *element_shape]`` of its group."""
        self.check_elements(g)
        return self._split(g)

    def _split(self, g: Tensor) -> tuple[Tensor, ...]:
        parts = g.split(self._numels, -1)
        return tuple(p.unflatten(-1, f.element_shape) for p, f in zip(parts, self.factors, strict=True))

    def join(self, *parts: Tensor) -> Tensor:
        """The element with the given factors; batches broadcast.

        Raises:
            ConfigurationError: the number of parts is not that of the factors.
            ShapeError: a part is not an element of its group.
        """
        if len(parts) != len(self.factors):
            raise ConfigurationError(f"parts: expected {len(self.factors)}, got {len(parts)}")
        for part, factor in zip(parts, self.factors, strict=True):
            factor.check_elements(part)
        return self._join(*parts)

    def _join(self, *parts: Tensor) -> Tensor:
        flat = [p.flatten(-len(f.element_shape)) for p, f in zip(parts, self.factors, strict=True)]
        batch = torch.broadcast_shapes(*(p.shape[:-1] for p in flat))
        return torch.cat([p.expand(*batch, -1) for p in flat], -1)

    def identity(
        self, *batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """The neutral elements."""
        return self._join(*(factor.identity(*batch, dtype=dtype, device=device) for factor in self.factors))

    def _project(self, g: Tensor) -> Tensor:
        return self._join(*(f._project(part) for f, part in zip(self.factors, self._split(g), strict=True)))

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        pairs = zip(self.factors, self._split(g), self._split(h), strict=True)
        return self._join(*(factor._compose(a, b) for factor, a, b in pairs))

    def _inverse(self, g: Tensor) -> Tensor:
        return self._join(*(f._inverse(part) for f, part in zip(self.factors, self._split(g), strict=True)))

    def _exp(self, v: Tensor) -> Tensor:
        return self._join(*(f._exp(part) for f, part in zip(self.factors, v.split(self._dims, -1), strict=True)))

    def _tangent(self, v: Tensor) -> Tensor:
        return self._join(*(f._tangent(part) for f, part in zip(self.factors, v.split(self._dims, -1), strict=True)))

    def _log(self, g: Tensor) -> Tensor:
        v = torch.cat([f._log(part) for f, part in zip(self.factors, self._split(g), strict=True)], -1)
        return torch.where(torch.isfinite(v).all(-1, keepdim=True), v, torch.nan)

    def _adjoint(self, g: Tensor) -> Tensor:
        return _block_diagonal([f._adjoint(part) for f, part in zip(self.factors, self._split(g), strict=True)])

    def _left_jacobian(self, v: Tensor) -> Tensor:
        parts = v.split(self._dims, -1)
        return _block_diagonal([f._left_jacobian(part) for f, part in zip(self.factors, parts, strict=True)])

    def _log_modular(self, g: Tensor) -> Tensor:
        values = [f._log_character(part) for f, part in zip(self.factors, self._split(g), strict=True)]
        return sum(values[1:], start=values[0])

    def action(self) -> PointAction:
        """Each factor on its own coordinates of a point, the coordinates one after the other.

        Raises:
            ConfigurationError: a factor has no action, or acts on points of several dimensions.
        """
        return _ProductAction(self, [factor.action() for factor in self.factors])


class _ProductAction(PointAction):
    """The denominator is the product of the factors' denominators.

    With several local factors it vanishes where the action is not defined, but pieces of the domain on which two
    denominators have flipped share its sign.
    """

    def __init__(self, group: DirectProduct, actions: list[PointAction]) -> None:
        for action in actions:
            if len(action.point_dims) != 1:
                raise ConfigurationError(
                    f"{group!r} has no standard point action: {action.group!r} acts on points of {action.point_dims} "
                    "coordinates, expected one number"
                )
        self._product = group
        self._actions = actions
        self._sizes = [action.point_dims[0] for action in actions]
        super().__init__(group, (sum(self._sizes),))

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        parts = zip(self._actions, self._product._split(g), x.split(self._sizes, -1), strict=True)
        moved = [action._transform(part, points) for action, part, points in parts]
        batch = torch.broadcast_shapes(*(m.shape[:-1] for m in moved))
        return torch.cat([m.expand(*batch, -1) for m in moved], -1)

    def _denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        parts = zip(self._actions, self._product._split(g), x.split(self._sizes, -1), strict=True)
        factors = [action._denominator(part, points) for action, part, points in parts]
        local = [d for d in factors if d is not None]
        if not local:
            return None
        total = local[0]
        for d in local[1:]:
            total = total * d
        return total


def _block_diagonal(blocks: list[Tensor]) -> Tensor:
    batch = torch.broadcast_shapes(*(b.shape[:-2] for b in blocks))
    total = sum(b.shape[-1] for b in blocks)
    rows, start = [], 0
    for block in blocks:
        size = block.shape[-1]
        block = block.expand(*batch, -1, -1)
        left = block.new_zeros(*batch, size, start)
        right = block.new_zeros(*batch, size, total - start - size)
        rows.append(torch.cat([left, block, right], -1))
        start += size
    return torch.cat(rows, -2)
