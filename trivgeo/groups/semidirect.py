r"""Semidirect products :math:`G = N \rtimes H` of a nilpotent ideal and a group that acts on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trivgeo._numerics import Constant, broadcast_shapes, log_abs_det, phi1, stumpff
from trivgeo._random import normal
from trivgeo._text import Described
from trivgeo.checks import checked
from trivgeo.errors import AlgebraError, ConfigurationError, ShapeError
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.basis import Scale
from trivgeo.groups.group import LieGroup, check_natural
from trivgeo.groups.linalg import confirmed, product
from trivgeo.groups.linalg.components import (
    block_lower,
    concatenate,
    entry_rows,
    flatten_array,
    from_entries,
    last_entries,
)
from trivgeo.groups.nilpotent import NilpotentGroup

__all__ = ["Automorphism", "LinearAutomorphism", "PlaneAutomorphism", "SemidirectProduct"]

_NUM_CHECKED_ELEMENTS = 3  # random elements at which a representation is checked
_MAX_REPRESENTATION_DEFECT = 1e-8  # relative error of a representation at these elements


@checked(
    but=(
        "exp",
        "log",
    )
)
class Automorphism(Described, ABC):
    r"""An action of a complement H on a nilpotent ideal N by automorphisms, linear in exponential coordinates.

    With :math:`\rho(h)` the matrix on the coordinates and D its derivative, the exponential of the product is
    :math:`\exp(Y + Z) = \exp_N(n) \exp_H(Y)` with :math:`n = \varphi_1(D(Y) + \tfrac12 \mathrm{ad}_Z) Z` when N has
    at most two steps (Iserles et al. 2000; the equation :math:`n' = D(Y) n + d\exp^{-1}_n Z` is linear there).
    """

    @abstractmethod
    def apply(self, h: Tensor, n: Tensor) -> Tensor:
        r"""Return :math:`\rho(h) n`, ``[*batch, N.dim]``.

        Args:
            h: elements of H, ``[*batch, *H.element_shape]``.
            n: coordinates of N, ``[*batch, N.dim]``.
        """

    @abstractmethod
    def exp(self, y: Tensor, z: Tensor) -> Tensor:
        """Return the coordinates n with ``exp(Y + Z) = exp(n) exp(Y)``, ``[*batch, N.dim]``.

        Args:
            y: vectors ``[*batch, H.dim]`` of H.
            z: vectors ``[*batch, N.dim]`` of N.
        """

    @abstractmethod
    def log(self, y: Tensor, n: Tensor) -> Tensor:
        """Return the vectors z with ``exp(y, z) = n``, ``[*batch, N.dim]``; NaN where no digit would be correct.

        Args:
            y: vectors ``[*batch, H.dim]`` of H.
            n: coordinates of N, ``[*batch, N.dim]``.
        """


@checked(
    but=(
        "exp",
        "log",
    )
)
class LinearAutomorphism(Automorphism):
    r"""Any representation, given as a function; exponentials by ``matrix_exp``.

    Args:
        complement: the group H.
        ideal: the group N, of at most two steps.
        representation: ``(h, n) -> rho(h) n``, batched, linear in n, differentiable in h.

    Raises:
        ConfigurationError: the ideal has more than two steps.
        ShapeError: the representation changes the number of coordinates.
        AlgebraError: the representation is not linear, or not multiplicative.
    """

    def __init__(
        self, complement: LieGroup, ideal: NilpotentGroup, representation: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        if ideal.step > 2:
            raise ConfigurationError(f"ideal: expected at most two nilpotency steps, got {ideal.step}")
        _check_representation(complement, ideal, representation)
        self._representation = representation
        self._algebra = ideal.algebra
        self._two_step = ideal.step == 2
        self._derivations = Constant(derivations_of(complement, ideal, representation))

    def apply(self, h: Tensor, n: Tensor) -> Tensor:
        return self._representation(h, n)

    def _generator(self, y: Tensor, z: Tensor) -> Tensor:
        d = torch.einsum("...i,ikj->...kj", y, self._derivations.matching(y))
        return d + 0.5 * self._algebra.ad(z) if self._two_step else d

    def exp(self, y: Tensor, z: Tensor) -> Tensor:
        return phi1(self._generator(y, z), z)

    def log(self, y: Tensor, n: Tensor) -> Tensor:
        """Solve a linear system; an ideal of two steps adds a correction, which is exact since it is central."""
        d = torch.einsum("...i,ikj->...kj", y, self._derivations.matching(y))
        eye = torch.eye(d.shape[-1], dtype=d.dtype, device=d.device)
        matrix = torch.stack([phi1(d, column) for column in eye], -1)
        inverse, _ = torch.linalg.inv_ex(matrix)
        z = (inverse @ n.unsqueeze(-1)).squeeze(-1)
        if self._two_step:
            z = z + (inverse @ (n - self.exp(y, z)).unsqueeze(-1)).squeeze(-1)
        return confirmed(z, self.exp(y, z), n)


@checked(
    but=(
        "exp",
        "log",
    )
)
class PlaneAutomorphism(Automorphism):
    r"""SL(2, R) on the pair (q, p) by :math:`(\alpha q - \beta p, -\gamma q + \delta p)`, trivial on a centre.

    This is how the time part of a point-symmetry group moves space translations q and Galilean boosts p: the
    displacement q + p t is carried along :math:`t \mapsto (\alpha t + \beta) / (\gamma t + \delta)`. Closed forms
    by :math:`D(Y)^2 = -\det(Y) I` and the functions of `trivgeo._numerics.stumpff`.

    Args:
        central: :math:`\kappa` with [q, p] = kappa z, or ``None`` for the ideal R^2 without a centre.
    """

    def __init__(self, central: float | None = None) -> None:
        self._central = central

    def apply(self, h: Tensor, n: Tensor) -> Tensor:
        (a, b), (c, d) = entry_rows(h)
        q, p, *centre = last_entries(n)
        new = [a * q - b * p, d * p - c * q]
        return from_entries([*new, *(z.expand(new[0].shape) for z in centre)])

    def _moved(self, y: Sequence[Tensor], q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """D(Y) (q, p)."""
        return y[0] * q - y[1] * p, -y[2] * q - y[0] * p

    def exp(self, y: Tensor, z: Tensor) -> Tensor:
        """Apply c1 + c2 D to (q, p); the centre gains kappa/2 c3 omega((q, p), D (q, p))."""
        entries = last_entries(y)
        _, c1, c2, c3 = stumpff(entries[0] * entries[0] + entries[1] * entries[2])
        q, p, *centre = last_entries(z)
        dq, dp = self._moved(entries, q, p)
        new = [c1 * q + c2 * dq, c1 * p + c2 * dp]
        if self._central is not None:
            new.append(centre[0] + (0.5 * self._central) * c3 * (q * dp - p * dq))
        return from_entries(new)

    def log(self, y: Tensor, n: Tensor) -> Tensor:
        """Apply (c1 - c2 D) / (2 c2) to (q, p), since c1^2 - c2^2 D^2 = 2 c2."""
        entries = last_entries(y)
        _, c1, c2, c3 = stumpff(entries[0] * entries[0] + entries[1] * entries[2])
        nq, np, *centre = last_entries(n)
        dq, dp = self._moved(entries, nq, np)
        q, p = (c1 * nq - c2 * dq) / (2.0 * c2), (c1 * np - c2 * dp) / (2.0 * c2)
        dq, dp = self._moved(entries, q, p)
        pair = from_entries([q, p])
        pair = confirmed(pair, from_entries([c1 * q + c2 * dq, c1 * p + c2 * dp]), n[..., :2])
        q, p = last_entries(pair)
        if self._central is None:
            return from_entries([q, p])
        return from_entries([q, p, centre[0] - (0.5 * self._central) * c3 * (q * dp - p * dq)])


@checked
class SemidirectProduct(LieGroup):
    r"""The group of pairs with :math:`g = \exp_N(n)\, h` and :math:`h\, n\, h^{-1} = \rho(h) n`.

    An element is one flat vector: the entries of h, then the exponential coordinates n. The product is
    :math:`(h_1 h_2,\; n_1 \cdot \rho(h_1) n_2)` and the basis is the basis of H followed by the basis of N.

    Args:
        complement: the group H.
        ideal: the group N; both in their natural bases, since the scale belongs to the product.
        automorphism: how H acts on N, or a function ``(h, n) -> rho(h) n``, for which a `LinearAutomorphism` is
            made.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.
        names: names of basis elements.

    Raises:
        ConfigurationError: a factor carries a scale of its own, or the ideal has too many steps.
        AlgebraError: ``automorphism`` is no representation, or does not act by automorphisms (its derivative breaks the
            Jacobi identity).
    """

    def __init__(
        self,
        complement: LieGroup,
        ideal: NilpotentGroup,
        automorphism: Automorphism | Callable[[Tensor, Tensor], Tensor],
        scale: Scale = None,
        names: Sequence[str] | None = None,
    ) -> None:
        check_natural(complement, ideal)
        if not isinstance(automorphism, Automorphism):
            automorphism = LinearAutomorphism(complement, ideal, automorphism)
        derivations = derivations_of(complement, ideal, automorphism.apply)
        algebra = LieAlgebra.semidirect_sum(complement.algebra, ideal.algebra, derivations)
        if names is not None:
            algebra = LieAlgebra(algebra.structure_constants, names)
        self.complement = complement
        self.ideal = ideal
        self.automorphism = automorphism
        self._derivations = Constant(derivations)
        self._cut = torch.Size(complement.element_shape).numel()
        super().__init__(algebra, (self._cut + ideal.dim,), scale)

    def __repr__(self) -> str:
        return f"SemidirectProduct({self.complement!r}, {self.ideal!r})"

    @property
    def num_components(self) -> int:
        return self.complement.num_components

    def _components(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return self._join(self.complement._components(dtype, device), self.ideal._identity(dtype, device))

    def split(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Split elements g, ``[*batch, *element_shape]``, into the factors (h, n) of ``g = exp(n) h``.

        Returns:
            Elements h of the complement, ``[*batch, *H.element_shape]``, and coordinates n of the ideal,
            ``[*batch, N.dim]``.
        """
        g = self.check_elements(g)
        return self._split(g)

    def _split(self, g: Tensor) -> tuple[Tensor, Tensor]:
        return g[..., : self._cut].unflatten(-1, self.complement.element_shape), g[..., self._cut :]

    def join(self, h: Tensor, n: Tensor) -> Tensor:
        """Return the elements ``exp(n) h``, ``[*batch, *element_shape]``; batches broadcast.

        Args:
            h: elements of H, ``[*batch, *H.element_shape]``.
            n: coordinates of N, ``[*batch, N.dim]``.

        Raises:
            ShapeError: h or n has another shape.
        """
        self.complement.check_elements(h, "h")
        self.ideal.check_elements(n, "n")
        return self._join(h, n)

    def _join(self, h: Tensor, n: Tensor) -> Tensor:
        flat = flatten_array(h, len(self.complement.element_shape))
        batch = broadcast_shapes(flat.shape[:-1], n.shape[:-1])
        return concatenate([flat.expand(*batch, -1), n.expand(*batch, -1)])

    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return self._join(self.complement._identity(dtype, device), self.ideal._identity(dtype, device))

    def _periods(self) -> Tensor:
        return self._join(self.complement._periods(), self.ideal._periods())

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        (hg, ng), (hh, nh) = self._split(g), self._split(h)
        return self._join(self.complement._compose(hg, hh), self.ideal._compose(ng, self.automorphism.apply(hg, nh)))

    def _inverse(self, g: Tensor) -> Tensor:
        h, n = self._split(g)
        h = self.complement._inverse(h)
        return self._join(h, self.automorphism.apply(h, self.ideal._inverse(n)))

    def _exp(self, v: Tensor) -> Tensor:
        y, z = v[..., : self.complement.dim], v[..., self.complement.dim :]
        return self._join(self.complement._exp(y), self.automorphism.exp(y, z))

    def _tangent(self, v: Tensor) -> Tensor:
        return self._join(self.complement._tangent(v[..., : self.complement.dim]), v[..., self.complement.dim :])

    def _log(self, g: Tensor) -> Tensor:
        h, n = self._split(g)
        y = self.complement._log(h)
        return concatenate([y, self.automorphism.log(y, n)])

    def _project(self, g: Tensor) -> Tensor:
        h, n = self._split(g)
        return self._join(self.complement._project(h), n)

    def _log_modular(self, g: Tensor) -> Tensor:
        h, _ = self._split(g)
        return self.complement._log_character(h) - log_abs_det(self._rho(h))

    def _rho(self, h: Tensor) -> Tensor:
        eye = torch.eye(self.ideal.dim, dtype=h.dtype, device=h.device)
        return torch.stack([self.automorphism.apply(h, column) for column in eye], -1)

    def _adjoint(self, g: Tensor) -> Tensor:
        """The matrix with Ad_h and rho on the diagonal; below, exp(ad_n) of the complement's image."""
        h, n = self._split(g)
        ad_h = self.complement._adjoint(h)
        rho = self._rho(h)
        ad_n = self.ideal._natural_algebra.ad(n)
        # [n, Y_j] = -D(e_j) n, to which sum_k ad_n^k / (k + 1)! is applied
        term = -torch.einsum("jab,...b->...aj", self._derivations.matching(g), n)
        lower = term
        for k in range(1, self.ideal.step):
            term = product(ad_n, term) / (k + 1)
            lower = lower + term
        return block_lower(ad_h, product(lower, ad_h), product(self.ideal._adjoint(n), rho))


def _check_representation(
    complement: LieGroup, ideal: NilpotentGroup, representation: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Check linearity and multiplicativity at random elements near the identity."""
    generator = torch.Generator().manual_seed(0)
    g, h = (
        complement.random(_NUM_CHECKED_ELEMENTS, std=0.1, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    n, m = normal((2, _NUM_CHECKED_ELEMENTS, ideal.dim), g, generator)
    image = representation(g, n)
    if image.shape != n.shape:
        raise ShapeError(f"representation: expected {[ideal.dim]} coordinates, got {list(image.shape[1:])}")
    for what, left, right in (
        ("rho(g) (n + m) = rho(g) n + rho(g) m", representation(g, n + m), image + representation(g, m)),
        (
            "rho(g h) = rho(g) rho(h)",
            representation(complement.compose(g, h), n),
            representation(g, representation(h, n)),
        ),
    ):
        defect = float((left - right).abs().max() / left.abs().max().clamp(min=1e-300))
        if not defect < _MAX_REPRESENTATION_DEFECT:
            raise AlgebraError(f"representation: expected {what}, got a relative defect of {defect:.2g}")


def derivations_of(
    complement: LieGroup, ideal: NilpotentGroup, representation: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """The derivative of the representation at the identity, ``[H.dim, N.dim, N.dim]``, by forward mode."""
    zero = torch.zeros(complement.dim, dtype=torch.float64)
    eye = torch.eye(ideal.dim, dtype=torch.float64)

    def matrix(y: Tensor) -> Tensor:
        h = complement.exp(y)
        return torch.stack([representation(h, column) for column in eye], -1)

    return torch.stack([torch.func.jvp(matrix, (zero,), (row,))[1] for row in torch.eye(complement.dim).double()])
