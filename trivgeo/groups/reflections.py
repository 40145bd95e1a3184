"""The orthogonal and Euclidean groups: rotations and rigid motions together with reflections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor

from trivgeo.checks import checked
from trivgeo.groups.basis import Scale
from trivgeo.groups.group import LieGroup
from trivgeo.groups.harmonic import HarmonicAnalysis
from trivgeo.groups.inhomogeneous import SE, InhomogeneousGroup
from trivgeo.groups.matrix import MatrixGroup
from trivgeo.groups.orthogonal import SO, is_proper, nearest_isometry, random_isometry, second_minors


@checked
class ReflectionGroup(LieGroup):
    """A group of isometries with two components: those that keep the orientation, and their products with a reflection.

    Attributes:
        component: the component of the identity, in its natural basis.
        size: dimension n of the space.
    """

    component: SO | SE
    size: int

    def reflection(
        self, *batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Return the reflection of the first coordinate, repeated to ``[*batch, *element_shape]``.

        Args:
            batch: the batch shape.
            dtype: element dtype; default torch's.
            device: element device; default torch's.
        """
        identity = self.identity(*batch, dtype=dtype, device=device)
        signs = torch.ones(self.element_shape, dtype=identity.dtype, device=identity.device)
        signs[0, 0] = -1.0
        return identity * signs

    def is_proper(self, g: Tensor) -> Bool[Tensor, "*batch"]:
        """Return True for elements g, ``[*batch, *element_shape]``, that keep the orientation; false for NaN."""
        linear = self.check_elements(g)[..., : self.size]
        return is_proper(linear) & torch.isfinite(linear).all((-2, -1))

    def _components(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return torch.stack([self._identity(dtype, device), self.reflection(dtype=dtype, device=device)])

    def _exp(self, v: Tensor) -> Tensor:
        return self.component._exp(v)

    def _log(self, g: Tensor) -> Tensor:
        """The logarithm in the component, NaN for elements that do not keep the orientation."""
        return self.component._log(g)


@checked
@final
class O(ReflectionGroup, HarmonicAnalysis, MatrixGroup):  # noqa: E742
    r"""O(n), orthogonal matrices ``[*batch, n, n]`` of determinant 1 or -1.

    The group has two components: the rotations, which are `SO` (n), and the matrices of determinant -1. Basis,
    exponential and logarithm are the same as for `SO`. Exponentials are rotations, so noise and descents stay in the
    component of the element that they start from. To search both components, start from g and from
    ``compose(g, reflection())``. The logarithm of an element of determinant -1 is NaN. `random` draws rotations;
    `random_haar` draws from both components equally often.

    Args:
        n: the dimension of the space.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Attributes:
        component: the component of the identity, `SO` (n) in its natural basis.

    Raises:
        ConfigurationError: n < 2.

    Example:
        >>> group = O(3)
        >>> g = group.compose(group.random(4), group.reflection())
        >>> group.is_proper(g), group.has_log(g)
        (tensor([False, False, False, False]), tensor([False, False, False, False]))
    """

    component: SO

    def __init__(self, n: int, scale: Scale = None) -> None:
        self.component = SO(n)
        basis = self.component.hat(torch.eye(self.component.dim, dtype=torch.float64))
        super().__init__(basis, self.component.algebra.names, scale, self.component.algebra)

    @property
    def num_components(self) -> int:
        return 2

    @property
    def is_compact(self) -> bool:
        return True

    def _project(self, g: Tensor) -> Tensor:
        """The nearest orthogonal matrix, of either determinant; NaN for singular ones."""
        q, found = nearest_isometry(g)
        return torch.where(found[..., None, None], q, math.nan)

    def _coordinates(self, matrix: Tensor) -> Tensor:
        return self.component._coordinates(matrix)

    def _tangent(self, v: Tensor) -> Tensor:
        return self.component._tangent(v)

    def _inverse(self, g: Tensor) -> Tensor:
        return g.mT

    def _adjoint(self, g: Tensor) -> Tensor:
        """The minors of order 2: the determinant for n = 2, the determinant times g for n = 3."""
        return second_minors(g, self.component._first, self.component._second)

    def _coadjoint(self, g: Tensor, y: Tensor) -> Tensor:
        return self.component._coadjoint(g, y)

    def _exp_with_score(self, v: Tensor, gradient: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self.component._exp_with_score(v, gradient, weight)

    def _random_haar(self, batch: Sequence[int], reference: Tensor, generator: torch.Generator | None) -> Tensor:
        return random_isometry(self.size, batch, reference, generator)

    def _log_natural_volume(self) -> float:
        return self.component._log_natural_volume() + math.log(2.0)


@checked
@final
class E(ReflectionGroup, InhomogeneousGroup):
    r"""E(n), isometries x -> A x + b with orthogonal A, elements ``[A | b]``, ``[*batch, n, n + 1]``.

    The group has two components: the rigid motions `SE` (n), and the products of rigid motions with a reflection.
    Basis, exponential and logarithm are the same as for `SE`. See `O` for searches in both components.

    Args:
        n: the dimension of the space.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Attributes:
        component: the component of the identity, `SE` (n) in its natural basis.

    Raises:
        ConfigurationError: n < 2.

    Example:
        >>> group = E(2)
        >>> group.action()(group.reflection(), torch.tensor([[1.0, 2.0]]))
        tensor([[-1.,  2.]])
    """

    linear: O
    component: SE

    def __init__(self, n: int, scale: Scale = None) -> None:
        self.component = SE(n)
        super().__init__(O(n), scale)

    def _left_jacobian(self, v: Tensor) -> Tensor:
        return self.component._left_jacobian(v)
