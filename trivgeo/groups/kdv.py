r"""The point symmetries of the Korteweg-de Vries equation: a solvable group that is not unimodular."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import polynomial
from trivgeo.groups._matrices.components import from_entries, last_entries
from trivgeo.groups.action import JetAction
from trivgeo.groups.base import Scale
from trivgeo.groups.nilpotent import Heisenberg, Translation
from trivgeo.groups.semidirect import Automorphism, SemidirectProduct

__all__ = ["KdVSymmetry"]

_WEIGHTS = (3.0, -2.0, 1.0)  # of T, C, X under the scaling
_CENTRAL = -1.0  # [T, C] = -X
_RADIUS = 0.5
_TERMS = 24
_PHI1 = tuple(1.0 / math.factorial(k + 1) for k in range(_TERMS))
# (phi_1(s) - phi_1(-2 s)) / (3 s) - (phi_1(3 s) - phi_1(s)) / (2 s)
_DIFFERENCE = tuple(
    ((1.0 - (-2.0) ** k) / 3.0 - (3.0**k - 1.0) / 2.0) / math.factorial(k + 1) for k in range(1, _TERMS + 1)
)


@final
class KdVSymmetry(SemidirectProduct):
    r"""The point symmetries of :math:`u_t + u u_x + u_{xxx} = 0`: scalings with a Heisenberg ideal, dimension 4.

    An element is :math:`(s, \tau, c, \xi)`, ``[*batch, 4]``: first the scaling, stored as its logarithm so that it
    never overflows in products, then time translation, Galilean boost and space translation together,

    .. math:: x_1 = e^s x, \quad t_1 = e^{3s} t, \quad u_1 = e^{-2s} u, \quad
        \hat x = x_1 + \xi + c\,(t_1 + \tau / 2), \quad \hat t = t_1 + \tau, \quad \hat u = u_1 + c

    (Olver 1993, example 2.44). Natural basis: S, T, C, X (scaling, time translation, boost, space translation) with
    :math:`[S, T] = 3 T`, :math:`[S, C] = -2 C`, :math:`[S, X] = X`, :math:`[T, C] = -X`. Not unimodular:
    :math:`\log \lambda = -2 s`. The logarithm exists everywhere.

    Args:
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.
    """

    def __init__(self, scale: Scale = None) -> None:
        super().__init__(
            Translation(1), Heisenberg(1, _CENTRAL), _ScalingAutomorphism(), scale, names=("S", "T", "C", "X")
        )

    def __repr__(self) -> str:
        """Name."""
        return "KdVSymmetry()"

    def _log_modular(self, g: Tensor) -> Tensor:
        return -sum(_WEIGHTS) * g[..., 0]

    def action(self) -> JetAction:
        """The action on jets (x, t, u) or points (x, t), defined everywhere."""
        return _KdVAction(self, (2, 3))


class _ScalingAutomorphism(Automorphism):
    r"""Diagonal weights on (T, C, X), exponential by divided differences of :math:`\varphi_1`.

    :math:`D(s) + \tfrac12 \mathrm{ad}_Z` is triangular with the distinct eigenvalues 3s, -2s and s.
    """

    def apply(self, h: Tensor, n: Tensor) -> Tensor:
        """Each coordinate times e^(weight s)."""
        return from_entries([(w * h[..., 0]).exp() * x for w, x in zip(_WEIGHTS, last_entries(n), strict=True)])

    def exp(self, y: Tensor, z: Tensor) -> Tensor:
        """phi_1 of each weight; X gains kappa / 2 times a difference of divided differences."""
        factors, mixed = self._factors(y[..., 0])
        t, c, x = last_entries(z)
        product = (0.5 * _CENTRAL) * t * c
        return from_entries([factors[0] * t, factors[1] * c, factors[2] * x + mixed * product])

    def log(self, y: Tensor, n: Tensor) -> Tensor:
        """The inverse; phi_1 has no real zero."""
        factors, mixed = self._factors(y[..., 0])
        t, c, x = last_entries(n)
        t, c = t / factors[0], c / factors[1]
        product = (0.5 * _CENTRAL) * t * c
        return from_entries([t, c, (x - mixed * product) / factors[2]])

    def _factors(self, s: Tensor) -> tuple[list[Tensor], Tensor]:
        small = s.abs() < _RADIUS
        near, far = torch.where(small, s, 0.0), torch.where(small, 1.0, s)
        values, fars = [], []
        for w in _WEIGHTS:
            fars.append(torch.expm1(w * far) / (w * far))
            values.append(torch.where(small, polynomial(w * near, _PHI1), fars[-1]))
        # phi_1[s, -2s] - phi_1[s, 3s]
        apart = (fars[2] - fars[1]) / (3.0 * far) - (fars[0] - fars[2]) / (2.0 * far)
        return values, torch.where(small, polynomial(near, _DIFFERENCE), apart)


class _KdVAction(JetAction):
    @property
    def base_is_projective(self) -> bool:
        """Affine, in fact."""
        return True

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        s, tau, c, xi = g.unbind(-1)
        t = (3.0 * s).exp() * x[..., 1]
        new = [s.exp() * x[..., 0] + xi + c * (t + 0.5 * tau), t + tau]
        if x.shape[-1] == 3:
            new.append((-2.0 * s).exp() * x[..., 2] + c)
        return torch.stack(new, -1)
