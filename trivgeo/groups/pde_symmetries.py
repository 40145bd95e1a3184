r"""The point symmetries of three equations, as semidirect products with their actions on jets (x, t, u).

Heat and Burgers share SL(2, R), which moves time projectively; Korteweg-de Vries has scalings in its place. Symmetries
of other equations are groups from their generators, see `trivgeo.groups.from_generators`.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import polynomial
from trivgeo.checks import check_positive, checked
from trivgeo.groups.action import JetAction
from trivgeo.groups.basis import Scale
from trivgeo.groups.linalg.components import from_entries, last_entries
from trivgeo.groups.nilpotent import Heisenberg, Translation
from trivgeo.groups.semidirect import Automorphism, PlaneAutomorphism, SemidirectProduct
from trivgeo.groups.special_linear import SL

_KDV_WEIGHTS = (3.0, -2.0, 1.0)  # weights of T, C, X under the scaling
_KDV_CENTRAL = -1.0  # [T, C] = _KDV_CENTRAL X
_SERIES_RADIUS, _NUM_TERMS = 0.5, 24  # largest argument, and terms, of the power series of phi_1
_PHI1_SERIES = tuple(1.0 / math.factorial(k + 1) for k in range(_NUM_TERMS))
# (phi_1(s) - phi_1(-2 s)) / (3 s) - (phi_1(3 s) - phi_1(s)) / (2 s)
_DIFFERENCE_SERIES = tuple(
    ((1.0 - (-2.0) ** k) / 3.0 - (3.0**k - 1.0) / 2.0) / math.factorial(k + 1) for k in range(1, _NUM_TERMS + 1)
)


@checked
@final
class HeatSymmetry(SemidirectProduct):
    r"""The point symmetries of the heat equation :math:`u_t = \nu u_{xx}`: SL(2, R) with H(1) as ideal, dimension 6.

    An element is :math:`(\alpha, \beta, \gamma, \delta, q, p, z)`, ``[*batch, 7]``: first the matrix acts,

    .. math:: x_1 = x / D, \quad t_1 = (\alpha t + \beta) / D, \quad
        u_1 = \sqrt{|D|}\, u \exp\frac{\gamma x^2}{4 \nu D}, \quad D = \gamma t + \delta,

    then the translation q, the Galilean boost p and the factor z of u together,

    .. math:: \hat x = x_1 + q + p t_1, \quad \hat t = t_1, \quad
        \hat u = u_1 \exp\Bigl(z - \frac{p (2 x_1 + q + p t_1)}{4 \nu}\Bigr)

    (Olver 1993, example 2.41, for every nu). Natural basis: H (scaling), E (time translation), F (projective),
    Q (space translation), P (boost), Z (factor of u), with :math:`[Q, P] = Z / (2 \nu)`. The group is unimodular.
    A boost changes log u by up to :math:`p x / (2 \nu)`: for small nu scale Q and P down.

    Args:
        nu: the diffusivity, positive.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: nu is not positive and finite.
    """

    def __init__(self, nu: float, scale: Scale = None) -> None:
        self.nu = float(check_positive("nu", nu))
        central = 1.0 / (2.0 * self.nu)
        super().__init__(
            SL(2), Heisenberg(1, central), PlaneAutomorphism(central), scale, names=("H", "E", "F", "Q", "P", "Z")
        )

    def __repr__(self) -> str:
        return f"HeatSymmetry(nu={self.nu:g})"

    def action(self) -> JetAction:
        """The action on jets (x, t, u) or points (x, t), defined where D is not zero."""
        return _HeatAction(self, self.nu)


@checked
@final
class BurgersSymmetry(SemidirectProduct):
    r"""The point symmetries of Burgers' equation :math:`u_t + u u_x = \nu u_{xx}`: SL(2, R) with R^2 as ideal.

    One group of dimension 5 for every nu. An element is :math:`(\alpha, \beta, \gamma, \delta, q, p)`,
    ``[*batch, 6]``: first the matrix acts, with u as a velocity,

    .. math:: x_1 = x / D, \quad t_1 = (\alpha t + \beta) / D, \quad u_1 = D u - \gamma x, \quad D = \gamma t + \delta,

    then :math:`\hat x = x_1 + q + p t_1`, :math:`\hat t = t_1`, :math:`\hat u = u_1 + p`. Natural basis: H, E, F as
    in `HeatSymmetry`, Q (space translation), P (Galilean boost). The group is unimodular.

    Args:
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.
    """

    def __init__(self, scale: Scale = None) -> None:
        super().__init__(SL(2), Translation(2), PlaneAutomorphism(), scale, names=("H", "E", "F", "Q", "P"))

    def __repr__(self) -> str:
        return "BurgersSymmetry()"

    def action(self) -> JetAction:
        """The action on jets (x, t, u) or points (x, t), defined where D is not zero."""
        return _BurgersAction(self)


class _ProjectiveTimeAction(JetAction):
    """The denominator and the motion of (x, t) of symmetry groups with SL(2, R) on time."""

    def __init__(self, group: SemidirectProduct) -> None:
        super().__init__(group, (2, 3))

    @property
    def base_is_projective(self) -> bool:
        return True

    def _denominator(self, g: Tensor, x: Tensor) -> Tensor:
        return g[..., 2] * x[..., 1] + g[..., 3]

    def _base(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """D with zero replaced by one, and x and t after the matrix has acted."""
        d = self._denominator(g, x)
        d = torch.where(d == 0, 1.0, d)
        return d, x[..., 0] / d, (g[..., 0] * x[..., 1] + g[..., 1]) / d


class _HeatAction(_ProjectiveTimeAction):
    def __init__(self, group: SemidirectProduct, nu: float) -> None:
        super().__init__(group)
        self._quarter = 1.0 / (4.0 * nu)

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        d, x1, t1 = self._base(g, x)
        q, p, z = g[..., 4], g[..., 5], g[..., 6]
        shift = q + p * t1
        if x.shape[-1] == 2:
            return torch.stack([x1 + shift, t1], -1)
        exponent = z + self._quarter * (g[..., 2] * x[..., 0] * x1 - p * (2.0 * x1 + shift))
        return torch.stack([x1 + shift, t1, x[..., 2] * d.abs().sqrt() * exponent.exp()], -1)

    def fibre_order(self, g: Tensor, jets: Tensor) -> Tensor:
        """u times exp of a quadratic function of x, the exponent at one time; common factors are left out."""
        self._lift(g, jets)
        d = g[..., 2] * jets[..., 0, 1] + g[..., 3]
        quarter = self._quarter / torch.where(d == 0, 1.0, d)
        x = jets[..., 0]
        exponent = ((quarter * g[..., 2]).unsqueeze(-1) * x - (2.0 * quarter * g[..., 5]).unsqueeze(-1)) * x
        return jets[..., 2] * exponent.exp_()


class _BurgersAction(_ProjectiveTimeAction):
    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        d, x1, t1 = self._base(g, x)
        q, p = g[..., 4], g[..., 5]
        new = [x1 + q + p * t1, t1]
        if x.shape[-1] == 3:
            new.append(d * x[..., 2] - g[..., 2] * x[..., 0] + p)
        return torch.stack(new, -1)


@checked
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
            Translation(1), Heisenberg(1, _KDV_CENTRAL), _ScalingAutomorphism(), scale, names=("S", "T", "C", "X")
        )

    def __repr__(self) -> str:
        return "KdVSymmetry()"

    def _log_modular(self, g: Tensor) -> Tensor:
        return -sum(_KDV_WEIGHTS) * g[..., 0]

    def action(self) -> JetAction:
        """The action on jets (x, t, u) or points (x, t), defined everywhere."""
        return _KdVAction(self, (2, 3))


class _ScalingAutomorphism(Automorphism):
    r"""Diagonal weights on (T, C, X), exponential by divided differences of :math:`\varphi_1`.

    :math:`D(s) + \tfrac12 \mathrm{ad}_Z` is triangular with the distinct eigenvalues 3s, -2s and s.
    """

    def apply(self, h: Tensor, n: Tensor) -> Tensor:
        """Multiply each coordinate by e^(weight s)."""
        return from_entries([(w * h[..., 0]).exp() * x for w, x in zip(_KDV_WEIGHTS, last_entries(n), strict=True)])

    def exp(self, y: Tensor, z: Tensor) -> Tensor:
        """Multiply by phi_1 of each weight; X gains kappa / 2 times a difference of divided differences."""
        factors, mixed = self._factors(y[..., 0])
        t, c, x = last_entries(z)
        product = (0.5 * _KDV_CENTRAL) * t * c
        return from_entries([factors[0] * t, factors[1] * c, factors[2] * x + mixed * product])

    def log(self, y: Tensor, n: Tensor) -> Tensor:
        """Invert `exp`; phi_1 has no real zero."""
        factors, mixed = self._factors(y[..., 0])
        t, c, x = last_entries(n)
        t, c = t / factors[0], c / factors[1]
        product = (0.5 * _KDV_CENTRAL) * t * c
        return from_entries([t, c, (x - mixed * product) / factors[2]])

    def _factors(self, s: Tensor) -> tuple[list[Tensor], Tensor]:
        small = s.abs() < _SERIES_RADIUS
        near, far = torch.where(small, s, 0.0), torch.where(small, 1.0, s)
        values, fars = [], []
        for w in _KDV_WEIGHTS:
            fars.append(torch.expm1(w * far) / (w * far))
            values.append(torch.where(small, polynomial(w * near, _PHI1_SERIES), fars[-1]))
        # phi_1[s, -2s] - phi_1[s, 3s]
        apart = (fars[2] - fars[1]) / (3.0 * far) - (fars[0] - fars[2]) / (2.0 * far)
        return values, torch.where(small, polynomial(near, _DIFFERENCE_SERIES), apart)


class _KdVAction(JetAction):
    @property
    def base_is_projective(self) -> bool:
        return True

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        s, tau, c, xi = g.unbind(-1)
        t = (3.0 * s).exp() * x[..., 1]
        new = [s.exp() * x[..., 0] + xi + c * (t + 0.5 * tau), t + tau]
        if x.shape[-1] == 3:
            new.append((-2.0 * s).exp() * x[..., 2] + c)
        return torch.stack(new, -1)
