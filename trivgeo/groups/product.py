"""Direct products of groups."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import broadcast_shapes
from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups.action import PointAction
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.basis import Scale
from trivgeo.groups.group import LieGroup, check_natural
from trivgeo.groups.harmonic import HarmonicAnalysis, HeatKernel, ProductHeatKernel, heat_kernel
from trivgeo.groups.linalg.components import block_diagonal, flatten_array, spread_blocks


@checked
@final
class DirectProduct(HarmonicAnalysis, LieGroup):
    r"""The direct product :math:`G_1 \times \dots \times G_m`.

    An element is one flat vector: the entries of the element of each factor, one factor after the other. The basis is
    the basis of each factor, in the same order. Equal neighbouring factors are computed together, so a power such as
    ``G ** 7`` needs no more calls than G.

    Args:
        *factors: the groups, in their natural bases, since the scale belongs to the product; or one list of them.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: there are no factors, a factor is no group, or carries a scale of its own.
    """

    def __init__(self, *factors: LieGroup | Sequence[LieGroup], scale: Scale = None) -> None:
        groups: list[LieGroup] = []
        for entry in factors:
            for group in entry if isinstance(entry, list | tuple) else [entry]:
                if not isinstance(group, LieGroup):
                    raise ConfigurationError(f"factors: expected groups, got {group!r}")
                groups.append(group)
        if not groups:
            raise ConfigurationError("factors: expected at least one group, got none")
        self.factors = tuple(groups)
        check_natural(*self.factors)
        self._runs: list[tuple[LieGroup, int]] = []
        for factor in self.factors:
            if self._runs and self._runs[-1][0] is factor:
                self._runs[-1] = (factor, self._runs[-1][1] + 1)
            else:
                self._runs.append((factor, 1))
        self._numels = [count * torch.Size(group.element_shape).numel() for group, count in self._runs]
        self._dims = [count * group.dim for group, count in self._runs]
        algebra = LieAlgebra.direct_sum(*(factor.algebra for factor in self.factors))
        super().__init__(algebra, (sum(self._numels),), scale)

    def __repr__(self) -> str:
        runs = [f"{group!r} ** {count}" if count > 1 else repr(group) for group, count in self._runs]
        return runs[0] if len(runs) == 1 and len(self.factors) > 1 else f"DirectProduct({', '.join(runs)})"

    @property
    def is_compact(self) -> bool:
        return all(group.is_compact for group, _ in self._runs)

    @property
    def num_components(self) -> int:
        return math.prod(factor.num_components for factor in self.factors)

    def split(self, g: Tensor) -> tuple[Tensor, ...]:
        """Split elements g into elements of the factors, each ``[*batch, *element_shape]`` of its group."""
        g = self.check_elements(g)
        parts = zip(self._runs, self._split(g), strict=True)
        return tuple(x for (group, _), part in parts for x in part.unbind(part.ndim - len(group.element_shape) - 1))

    def _split(self, g: Tensor) -> tuple[Tensor, ...]:
        """The runs of equal factors, each ``[*batch, count, *element_shape]``."""
        parts = zip(self._runs, g.split(self._numels, -1), strict=True)
        return tuple(part.unflatten(-1, (count, *group.element_shape)) for (group, count), part in parts)

    def _split_vector(self, v: Tensor) -> tuple[Tensor, ...]:
        parts = zip(self._runs, v.split(self._dims, -1), strict=True)
        return tuple(part.unflatten(-1, (count, group.dim)) for (group, count), part in parts)

    def join(self, *parts: Tensor) -> Tensor:
        """The element with the given factors; batches broadcast.

        Raises:
            ConfigurationError: the number of parts is not the number of factors.
            ShapeError: a part is not an element of its group.
        """
        if len(parts) != len(self.factors):
            raise ConfigurationError(f"parts: expected {len(self.factors)}, got {len(parts)}")
        for part, factor in zip(parts, self.factors, strict=True):
            factor.check_elements(part)
        flat = [flatten_array(p, len(f.element_shape)) for p, f in zip(parts, self.factors, strict=True)]
        batch = broadcast_shapes(*(p.shape[:-1] for p in flat))
        return torch.cat([p.expand(*batch, -1) for p in flat], -1)

    def _join(self, parts: Iterable[Tensor]) -> Tensor:
        pairs = zip(self._runs, parts, strict=True)
        flat = [flatten_array(part, len(group.element_shape) + 1) for (group, _), part in pairs]
        batch = broadcast_shapes(*(p.shape[:-1] for p in flat))
        return torch.cat([p.expand(*batch, -1) for p in flat], -1)

    def _each(self, f: Callable[..., Tensor], *parts: tuple[Tensor, ...]) -> list[Tensor]:
        """``f`` evaluated for each run of equal factors on its parts."""
        return [f(group, *rest) for (group, _), *rest in zip(self._runs, *parts, strict=True)]

    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        """Return the neutral elements of all factors, one after another, repeated to ``[*batch, *element_shape]``."""
        units = ((group._identity(dtype, device), count) for group, count in self._runs)
        return self._join(unit.expand(count, *unit.shape) for unit, count in units)

    def _components(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        runs = [(group._components(dtype, device), count) for group, count in self._runs]
        numbers = [range(len(elements)) for elements, count in runs for _ in range(count)]
        choices = torch.tensor(list(itertools.product(*numbers)))  # [c, factors]
        chosen = zip(runs, choices.split([count for _, count in runs], -1), strict=True)
        return self._join(elements[index.to(elements.device)] for (elements, _), index in chosen)

    def _random_haar(self, batch: Sequence[int], reference: Tensor, generator: torch.Generator | None) -> Tensor:
        if not self.is_compact:
            return super()._random_haar(batch, reference, generator)
        return self._join(group._random_haar((*batch, count), reference, generator) for group, count in self._runs)

    def _periods(self) -> Tensor:
        return torch.cat([group._periods().flatten().repeat(count) for group, count in self._runs])

    def _project(self, g: Tensor) -> Tensor:
        return self._join(self._each(lambda group, x: group._project(x), self._split(g)))

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        return self._join(self._each(lambda group, a, b: group._compose(a, b), self._split(g), self._split(h)))

    def _inverse(self, g: Tensor) -> Tensor:
        return self._join(self._each(lambda group, x: group._inverse(x), self._split(g)))

    def _exp(self, v: Tensor) -> Tensor:
        return self._join(self._each(lambda group, x: group._exp(x), self._split_vector(v)))

    def _tangent(self, v: Tensor) -> Tensor:
        return self._join(self._each(lambda group, x: group._tangent(x), self._split_vector(v)))

    def _log(self, g: Tensor) -> Tensor:
        v = torch.cat(self._each(lambda group, x: flatten_array(group._log(x)), self._split(g)), -1)
        return torch.where(torch.isfinite(v).all(-1, keepdim=True), v, torch.nan)

    def _adjoint(self, g: Tensor) -> Tensor:
        return block_diagonal(self._each(lambda group, x: spread_blocks(group._adjoint(x)), self._split(g)))

    def _coadjoint(self, g: Tensor, y: Tensor) -> Tensor:
        moved = self._each(lambda group, x, z: group._coadjoint(x, z), self._split(g), self._split_vector(y))
        return torch.cat([flatten_array(part) for part in moved], -1)

    def _exp_with_score(self, v: Tensor, gradient: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        elements, scores = [], []
        for (group, _), x, y in zip(self._runs, self._split_vector(v), self._split_vector(gradient), strict=True):
            element, score = group._exp_with_score(x, y, weight.unsqueeze(-2))
            elements.append(element)
            scores.append(flatten_array(score))
        return self._join(elements), torch.cat(scores, -1)

    def _left_jacobian(self, v: Tensor) -> Tensor:
        blocks = self._each(lambda group, x: spread_blocks(group._left_jacobian(x)), self._split_vector(v))
        return block_diagonal(blocks)

    def _log_modular(self, g: Tensor) -> Tensor:
        values = self._each(lambda group, x: group._log_character(x).sum(-1), self._split(g))
        return sum(values[1:], start=values[0])

    def _heat_kernel(self) -> HeatKernel | None:
        kernels = [heat_kernel(factor) for factor in scaled_factors(self)]
        known = [kernel for kernel in kernels if kernel is not None]
        return ProductHeatKernel(known, self.split, self.join) if len(known) == len(self.factors) else None

    def _log_natural_volume(self) -> float | None:
        volumes = [f._log_natural_volume() if isinstance(f, HarmonicAnalysis) else None for f in self.factors]
        known = [volume for volume in volumes if volume is not None]
        return math.fsum(known) if len(known) == len(self.factors) else None

    def _natural_representation(self) -> Tensor | None:
        """The direct sum of the representations of the factors."""
        blocks = [f._natural_representation() if isinstance(f, HarmonicAnalysis) else None for f in self.factors]
        known = [block for block in blocks if block is not None]
        if len(known) < len(self.factors):
            return None
        size = sum(block.shape[-1] for block in known)
        total = torch.zeros(self.dim, size, size, dtype=torch.complex128)
        row = column = 0
        for block in known:
            dim, n, _ = block.shape
            total[row : row + dim, column : column + n, column : column + n] = block
            row, column = row + dim, column + n
        return total

    def action(self) -> PointAction:
        """Return the action in which each factor moves its own coordinates of a point, one factor after the other."""
        return _ProductAction(self, [(group.action(), count) for group, count in self._runs])


def scaled_factors(group: DirectProduct) -> list[LieGroup]:
    """Return the factors of ``group`` with their parts of the scale; an empty list where the scale mixes them."""
    if group.scale.ndim > 1:
        return []
    scales = group.scale.split([factor.dim for factor in group.factors])
    return [factor.with_scale(scale) for factor, scale in zip(group.factors, scales, strict=True)]


def _direct_power(group: LieGroup, n: int) -> DirectProduct:
    """See `LieGroup.__pow__`."""
    natural = group if group.basis.is_natural else group.with_scale(None)
    scale = None
    if natural is not group:
        scale = group.scale.repeat(n) if group.scale.ndim == 1 else torch.block_diag(*[group.scale] * n)
    return DirectProduct([natural] * n, scale=scale)


LieGroup._direct_power = _direct_power


class _ProductAction(PointAction):
    """The action of each factor on its own coordinates, with the product of the denominators as denominator.

    With several local factors it vanishes where the action is not defined, but pieces of the domain on which two
    denominators have flipped share its sign.
    """

    def __init__(self, group: DirectProduct, actions: list[tuple[PointAction, int]]) -> None:
        for action, _ in actions:
            if len(action.point_dims) != 1:
                raise ConfigurationError(
                    f"{group!r} has no standard point action: expected factors that act on one kind of points, got "
                    f"{action.group!r} for {action.point_dims} coordinates"
                )
        self._product = group
        self._actions = [action for action, _ in actions]
        self._counts = [count for _, count in actions]
        self._sizes = [count * action.point_dims[0] for action, count in actions]
        super().__init__(group, (sum(self._sizes),))

    def _parts(self, g: Tensor, x: Tensor) -> Iterator[tuple[PointAction, Tensor, Tensor]]:
        """Action, elements ``[*batch, count, 1, *element_shape]``, points ``[*batch, count, p, n]`` of each run."""
        runs = zip(self._actions, self._counts, self._product._split(g), x.split(self._sizes, -1), strict=True)
        for action, count, part, points in runs:
            copies = part.ndim - len(action.group.element_shape) - 1
            yield action, part.transpose(copies - 1, copies), points.unflatten(-1, (count, -1)).transpose(-3, -2)

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        parts = self._parts(g, x)
        moved = [flatten_array(action._transform(part, points).transpose(-3, -2)) for action, part, points in parts]
        batch = broadcast_shapes(*(m.shape[:-1] for m in moved))
        return torch.cat([m.expand(*batch, -1) for m in moved], -1)

    def _denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        factors = [action._denominator(part, points) for action, part, points in self._parts(g, x)]
        local = [d.prod(-2) for d in factors if d is not None]
        if not local:
            return None
        total = local[0]
        for d in local[1:]:
            total = total * d
        return total
