"""The group that generators span."""

from __future__ import annotations

import copy
from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.checks import checked
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.basis import Scale
from trivgeo.groups.from_generators.action_map import ActionMap, GeneratedAction
from trivgeo.groups.from_generators.elements import CoreGroup, FactoredElements
from trivgeo.groups.from_generators.reductive_group import ReductiveGroup
from trivgeo.groups.group import LieGroup
from trivgeo.groups.structure import LeviDecomposition


@checked
@final
class GeneratedGroup(LieGroup):
    r"""A group :math:`\exp(\mathfrak n) \rtimes (S \times \mathbb R^k)` in the basis of its generators.

    An element is ``[*batch, m * m + k + d]``: the matrix of the semisimple part (empty if there is none; for a
    universal cover its angle follows), the additive coordinates of the torus, the exponential coordinates of the
    nilpotent ideal, with :math:`g = \exp(n)\, h`. It is made by `from_generators`.

    Ideal and torus are simply connected: rotations of the torus keep their winding, and so do those of factors SL(2, R)
    if full turns of them move points (time in the symmetries of an oscillator). Algebras that do not split over their
    nilradical are embedded in one that does; see `trivgeo.groups.structure.LeviDecomposition`.

    The logarithm is NaN where the principal logarithm of the matrix does not exist (an eigenvalue is zero or negative)
    or is not in the algebra (a representation by Ad may wind further than the group), and where the derivation of the
    torus and semisimple part has an eigenvalue :math:`2 \pi i k \ne 0` on the ideal. For actions that are local because
    places have several names (see `GeneratedAction`), `exp` has values for principal logarithms only.

    Groups from SymPy expressions, or from functions of modules, can be pickled.

    Args:
        algebra: the algebra in the basis of the generators, with the sign of the group.
        elements: the elements, as a semidirect product, one of its factors, or such a product that holds the group.
        levi_decomposition: the decomposition of the algebra, in the basis of the generators.
        action_map: map of points by elements.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.
    """

    def __init__(
        self,
        algebra: LieAlgebra,
        elements: FactoredElements,
        levi_decomposition: LeviDecomposition,
        action_map: ActionMap,
        scale: Scale = None,
    ) -> None:
        super().__init__(algebra, elements.core.element_shape, scale)
        self.elements = elements
        self.levi_decomposition = levi_decomposition
        self._action_map = action_map
        self._action = GeneratedAction(self, action_map)
        # tr ad is zero on the semisimple part and on the ideal
        self._torus_trace_ad = Constant(algebra.trace_ad @ elements.torus_in_generators.T)

    def __repr__(self) -> str:
        return f"GeneratedGroup({', '.join(self.algebra.names)}; {self.core!r})"

    @property
    def core(self) -> CoreGroup:
        """The semidirect product, or its only factor, whose elements are those of this group."""
        return self.elements.core

    @property
    def reductive(self) -> ReductiveGroup | None:
        """The reductive factor, ``None`` for a nilpotent group."""
        return self.elements.reductive

    def parts(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split g into matrix ``[*batch, m, m]``, torus ``[*batch, k]`` and ideal coordinates ``[*batch, d]``."""
        return self.elements.parts(g)

    def action(self) -> GeneratedAction:
        """The local action whose one-parameter groups are the flows of the generators."""
        action = copy.copy(self._action)  # torch.compile does not trace constructors of exported classes
        action.group = self  # the copy moves points by elements of this group, in its scale
        return action

    # The contract --------------------------------------------------------------------------------------------

    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return self.core._identity(dtype, device)

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        return self.core._compose(g, h)

    def _inverse(self, g: Tensor) -> Tensor:
        return self.core._inverse(g)

    def _exp(self, v: Tensor) -> Tensor:
        return self.core._exp(v @ self.elements.generators_to_core.matching(v))

    def _tangent(self, v: Tensor) -> Tensor:
        return self.core._tangent(v @ self.elements.generators_to_core.matching(v))

    def _log(self, g: Tensor) -> Tensor:
        return self.core._log(g) @ self.elements.core_to_generators.matching(g)

    def _adjoint(self, g: Tensor) -> Tensor:
        # rows of the constants are vectors, Ad acts on columns
        left, right = self.elements.core_to_generators.matching(g).T, self.elements.generators_to_core.matching(g).T
        return left @ self.core._adjoint(g) @ right

    def _log_modular(self, g: Tensor) -> Tensor:
        """Minus tr ad of the torus part: exact, without the determinant of Ad."""
        _, sigma, _ = self.parts(g)
        return -(sigma * self._torus_trace_ad.matching(g)).sum(-1)
