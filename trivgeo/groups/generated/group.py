"""The group that generators span."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from trivgeo._deprecation import RenamedAttribute
from trivgeo._numerics import Constant
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.base import LieGroup, Scale
from trivgeo.groups.generated.reductive_group import ReductiveGroup
from trivgeo.groups.nilpotent import NilpotentGroup
from trivgeo.groups.semidirect import SemidirectProduct
from trivgeo.groups.structure import LeviDecomposition

if TYPE_CHECKING:
    from trivgeo.groups.generated.action import GeneratedAction, Motion

__all__ = ["CoreEmbedding", "GeneratedGroup"]


@dataclass(frozen=True)
class CoreEmbedding:
    """Vectors of the core and of the generators in terms of the fields Y that move points, for n generators.

    Attributes:
        rows: the basis of the core, ``[core dimension, n]``; zero for a torus of derivations (see `LeviDecomposition`).
        embedding: the Y in the core, ``[n, core dimension]``.
        torus: vectors that the torus coordinates stand for, ``[k, n]``.
        mixing: the generators, ``[n, n]``.
    """

    rows: Tensor
    embedding: Tensor
    torus: Tensor
    mixing: Tensor


@final
class GeneratedGroup(LieGroup):
    r"""A group :math:`\exp(\mathfrak n) \rtimes (S \times \mathbb R^k)` in the basis of its generators.

    An element is ``[*batch, m * m + k + d]``: the matrix of the semisimple part (empty if there is none; for a
    universal cover its angle follows), the additive coordinates of the torus, the exponential coordinates of the
    nilpotent ideal, with :math:`g = \exp(n)\, h`. It is made by `from_generators`.

    The logarithm is NaN where the principal logarithm of the matrix does not exist (an eigenvalue is zero or negative)
    or is not in the algebra (a representation by Ad may wind further than the group), and where the derivation of the
    torus and semisimple part has an eigenvalue :math:`2 \pi i k \ne 0` on the ideal. For actions that are local because
    places have several names (see `from_generators`), `exp` has values for principal logarithms only.

    Groups from SymPy expressions, or from functions of modules, can be pickled.

    Args:
        algebra: the algebra in the basis of the generators, with the sign of the group.
        core: the group itself: a semidirect product, or one of its factors, or such a product that holds it.
        frame: how vectors of the core and of the generators are related.
        split: the decomposition that was used, in the basis of the generators.
        motion: how the group moves points.
        scale: see `LieGroup`.
    """

    split_used = RenamedAttribute("levi_decomposition", until="0.4")

    def __init__(
        self,
        algebra: LieAlgebra,
        core: ReductiveGroup | NilpotentGroup | SemidirectProduct,
        frame: CoreEmbedding,
        split: LeviDecomposition,
        motion: Motion,
        scale: Scale = None,
    ) -> None:
        super().__init__(algebra, core.element_shape, scale)
        self.core = core
        self.levi_decomposition = split
        unmix = torch.linalg.inv(frame.mixing)
        self._generators = Constant(frame.rows)
        self._lifts = Constant(frame.torus)
        self._embedding = Constant(frame.embedding)
        self._from_core = Constant(frame.rows @ unmix)
        self._to_core = Constant(frame.mixing @ frame.embedding)
        self._motion = motion
        complement = core.complement if isinstance(core, SemidirectProduct) else core
        self._reductive = complement if isinstance(complement, ReductiveGroup) else None
        # what the torus has in the ideal, if it is one of derivations
        shift = (frame.torus @ frame.embedding)[:, self._complement_dim :]
        self._shift = Constant(shift) if bool((shift.abs() > 1e-12).any()) else None
        # tr ad of the torus, which alone is not zero
        self._characters = Constant(algebra.trace_ad @ (frame.torus @ unmix).T)
        self._prepared = motion.action(self)  # once: it fits polynomials

    def __repr__(self) -> str:
        """Generators and factors."""
        return f"GeneratedGroup({', '.join(self.algebra.names)}; {self.core!r})"

    @property
    def _complement_dim(self) -> int:
        """The dimension of the core's reductive part."""
        return 0 if self._reductive is None else self._reductive.dim

    @property
    def reductive(self) -> ReductiveGroup | None:
        """The reductive part, if there is one."""
        return self._reductive

    # Coordinates ---------------------------------------------------------------------------------------------

    @property
    def generators(self) -> Tensor:
        """The basis of the core in terms of the fields that move points, ``[core dimension, n]``."""
        return self._generators.value

    @property
    def lifts(self) -> Tensor:
        """What the torus coordinates stand for, in the same terms, ``[k, n]``."""
        return self._lifts.value

    def parts(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The matrix ``[*batch, m, m]``, torus coordinates ``[*batch, k]``, ideal coordinates ``[*batch, d]``."""
        if self._reductive is None:
            return g.new_zeros(*g.shape[:-1], 0, 0), g[..., :0], g
        cut = self._reductive.element_shape[0]
        matrix, sigma = self._reductive.parts(g[..., :cut])
        return matrix, sigma, g[..., cut:]

    def factors(self, g: Tensor) -> list[Tensor]:
        """Vectors whose exponentials multiply to the element.

        Returns:
            The vectors ``[*batch, dim]``, unscaled, in terms of the fields that move points, in the order in which they
            act on a point (last factor first). Where no such factors were found they are NaN.
        """
        _, sigma, n = self.ideal_parts(g)
        rows, result = self._generators.like(g), []
        if sigma.shape[-1]:
            result.append(sigma @ self._lifts.like(g))
        if n.shape[-1]:
            result.append(n @ rows[self._complement_dim :])
        reductive = self._reductive
        if reductive is None or not reductive.semisimple_dim:
            return result
        rows = rows[: reductive.semisimple_dim]
        p, rotation = reductive.polar(g[..., : reductive.element_shape[0]])
        # the torus commutes with the semisimple part, so that one vector holds it and the positive factor
        torus, ideal = (result[:1], result[1:]) if reductive.torus_dim else ([], result)
        return [sum(torus, p @ rows), *([] if rotation is None else [rotation @ rows]), *ideal]

    def exp_of(self, v: Tensor) -> Tensor:
        """The exponential of `vector`."""
        return self.core._exp(v @ self._embedding.like(v))

    def vector(self, g: Tensor) -> Tensor:
        """The logarithm ``[*batch, dim]``, unscaled, in terms of the fields that move points."""
        return self.core._log(g) @ self._generators.like(g)

    def ideal_parts(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""As `parts`, with the n of :math:`g = \exp(n) \exp(x)\, a` for x in the algebra."""
        matrix, sigma, n = self.parts(g)
        return matrix, sigma, self._within_ideal(sigma, n) if n.shape[-1] else n

    def _within_ideal(self, sigma: Tensor, n: Tensor) -> Tensor:
        """The m with ``exp(n) exp(D) = exp(m) exp(x)`` for derivations D, of which x is the vector in the algebra."""
        if self._shift is None:
            return n
        assert isinstance(self.core, SemidirectProduct)
        y = torch.cat([sigma.new_zeros(*sigma.shape[:-1], self._complement_dim - sigma.shape[-1]), sigma], -1)
        ideal, automorphism = self.core.ideal, self.core.automorphism
        return ideal._compose(n, -automorphism.exp(y, sigma @ self._shift.like(n)))

    # The contract --------------------------------------------------------------------------------------------

    def identity(
        self, *batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """The unit matrix and zero coordinates."""
        return self.core.identity(*batch, dtype=dtype, device=device)

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        return self.core._compose(g, h)

    def _inverse(self, g: Tensor) -> Tensor:
        return self.core._inverse(g)

    def _exp(self, v: Tensor) -> Tensor:
        return self.core._exp(v @ self._to_core.like(v))

    def _tangent(self, v: Tensor) -> Tensor:
        return self.core._tangent(v @ self._to_core.like(v))

    def _log(self, g: Tensor) -> Tensor:
        return self.core._log(g) @ self._from_core.like(g)

    def _adjoint(self, g: Tensor) -> Tensor:
        # columns of coordinates, where the constants have rows
        return self._from_core.like(g).T @ self.core._adjoint(g) @ self._to_core.like(g).T

    def _log_modular(self, g: Tensor) -> Tensor:
        """Minus the characters of the torus: exact, without the determinant of Ad."""
        _, sigma, _ = self.parts(g)
        return -(sigma * self._characters.like(g)).sum(-1)

    def action(self) -> GeneratedAction:
        """The local action whose one-parameter groups are the flows of the generators."""
        action = copy.copy(self._prepared)
        action.group = self  # in its scale
        return action
