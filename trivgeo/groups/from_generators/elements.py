"""Elements of a generated group: the factors that are stored, and algebra vectors of these factors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.groups.from_generators.reductive_group import ReductiveGroup
from trivgeo.groups.nilpotent import NilpotentGroup
from trivgeo.groups.semidirect import SemidirectProduct

_ZERO_TOLERANCE = 1e-12  # entries below count as zero in the part of a torus derivation in the ideal

CoreGroup = ReductiveGroup | NilpotentGroup | SemidirectProduct


@dataclass(frozen=True)
class CoreEmbedding:
    """Bases of the core and of the generators in terms of the adapted fields Y, for n generators.

    Attributes:
        basis: the basis of the core, ``[core dimension, n]``; zero for a torus of derivations (see
            `LeviDecomposition`).
        inclusion: the Y in the basis of the core, ``[n, core dimension]``.
        torus: algebra vectors of the torus coordinates, ``[k, n]``.
        mixing: the generators, ``X = mixing Y``, ``[n, n]``.
    """

    basis: Tensor
    inclusion: Tensor
    torus: Tensor
    mixing: Tensor


class FactoredElements:
    r"""Elements :math:`g = \exp(n) \exp(\sigma)\, a` of a group that is, or lies in, a semidirect product.

    An element is ``[*batch, m * m + c + k + d]``: the matrix a of the semisimple part, the angles of its c universal
    covers, torus coordinates :math:`\sigma`, exponential coordinates n of the nilpotent ideal. Vectors are ``[*batch,
    n]`` in the basis of the adapted fields Y, without the scale of the group.

    Args:
        core: the semidirect product, or its only factor.
        embedding: the bases of the core and of the generators.
    """

    def __init__(self, core: CoreGroup, embedding: CoreEmbedding) -> None:
        unmix = torch.linalg.inv(embedding.mixing)
        complement = core.complement if isinstance(core, SemidirectProduct) else core
        self.core = core
        self.reductive = complement if isinstance(complement, ReductiveGroup) else None
        self._basis = Constant(embedding.basis)
        self._torus = Constant(embedding.torus)
        self._inclusion = Constant(embedding.inclusion)
        self.core_to_generators = Constant(embedding.basis @ unmix)
        self.generators_to_core = Constant(embedding.mixing @ embedding.inclusion)
        self.torus_in_generators = embedding.torus @ unmix
        self._reductive_dim = 0 if self.reductive is None else self.reductive.dim
        # a torus of derivations has vectors with a part in the ideal
        ideal_part = (embedding.torus @ embedding.inclusion)[:, self._reductive_dim :]
        self._torus_in_ideal = Constant(ideal_part) if bool((ideal_part.abs() > _ZERO_TOLERANCE).any()) else None

    @property
    def basis(self) -> Tensor:
        """The basis of the core in terms of the adapted fields, ``[core dimension, n]``."""
        return self._basis.value

    @property
    def torus(self) -> Tensor:
        """Algebra vectors of the torus coordinates, ``[k, n]``."""
        return self._torus.value

    def parts(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The matrix ``[*batch, m, m]``, torus ``[*batch, k]`` and ideal coordinates ``[*batch, d]`` of elements g."""
        if self.reductive is None:
            return g.new_zeros(*g.shape[:-1], 0, 0), g[..., :0], g
        cut = self.reductive.element_shape[0]
        matrix, sigma = self.reductive.parts(g[..., :cut])
        return matrix, sigma, g[..., cut:]

    def parts_in_group(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""Parts of g as `parts`, with the n of :math:`g = \exp(n) \exp(x)\, a` for torus vectors x in the algebra.

        The stored n differs for a torus of derivations only: :math:`\exp(n) \exp(D) = \exp(n') \exp(x)`.
        """
        matrix, sigma, n = self.parts(g)
        if not n.shape[-1] or self._torus_in_ideal is None:
            return matrix, sigma, n
        assert isinstance(self.core, SemidirectProduct)
        y = torch.cat([sigma.new_zeros(*sigma.shape[:-1], self._reductive_dim - sigma.shape[-1]), sigma], -1)
        ideal, automorphism = self.core.ideal, self.core.automorphism
        return matrix, sigma, ideal._compose(n, -automorphism.exp(y, sigma @ self._torus_in_ideal.matching(n)))

    def factors(self, g: Tensor) -> list[Tensor]:
        """Vectors whose exponentials multiply to g, in the order in which they act on a point (last first).

        NaN for elements that have no such factors.
        """
        _, sigma, n = self.parts_in_group(g)
        rows, result = self._basis.matching(g), []
        if sigma.shape[-1]:
            result.append(sigma @ self._torus.matching(g))
        if n.shape[-1]:
            result.append(n @ rows[self._reductive_dim :])
        reductive = self.reductive
        if reductive is None or not reductive.semisimple_dim:
            return result
        rows = rows[: reductive.semisimple_dim]
        p, rotation = reductive.polar(g[..., : reductive.element_shape[0]])
        # the torus commutes with the semisimple part: one vector holds it and the positive factor
        torus, ideal = (result[:1], result[1:]) if reductive.torus_dim else ([], result)
        return [sum(torus, p @ rows), *([] if rotation is None else [rotation @ rows]), *ideal]

    def exp(self, v: Tensor) -> Tensor:
        """Return the exponentials ``[*batch, E]`` of algebra vectors v, ``[*batch, n]``."""
        return self.core._exp(v @ self._inclusion.matching(v))

    def log(self, g: Tensor) -> Tensor:
        """Return the logarithms ``[*batch, n]`` of elements g, ``[*batch, E]``; NaN where none exists."""
        return self.core._log(g) @ self._basis.matching(g)
