r"""Point-symmetry groups of partial differential equations on (x, t, u).

All three symmetry groups of this family share SL(2, R) acting on time by
:math:`t \mapsto (\alpha t + \beta) / D`, :math:`D = \gamma t + \delta`, and on space by :math:`x \mapsto x / D`.
Points are jets ``[*batch, p, 3]`` = (x, t, u), or ``[*batch, p, 2]`` = (x, t).
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from trivgeo.checks import check_positive
from trivgeo.groups.action import JetAction
from trivgeo.groups.base import Scale
from trivgeo.groups.nilpotent import Heisenberg, Translation
from trivgeo.groups.semidirect import PlaneAutomorphism, SemidirectProduct
from trivgeo.groups.special_linear import SL

__all__ = ["BurgersSymmetry", "HeatSymmetry"]


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
        """Name and diffusivity."""
        return f"HeatSymmetry(nu={self.nu:g})"

    def action(self) -> JetAction:
        """The action on jets (x, t, u) or points (x, t), defined where D is not zero."""
        return _HeatAction(self, self.nu)


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
        """Name."""
        return "BurgersSymmetry()"

    def action(self) -> JetAction:
        """The action on jets (x, t, u) or points (x, t), defined where D is not zero."""
        return _BurgersAction(self)


class _ProjectiveTimeAction(JetAction):
    """What the symmetry groups with SL(2, R) on time share: the denominator and the motion of (x, t)."""

    def __init__(self, group: SemidirectProduct) -> None:
        super().__init__(group, (2, 3))

    @property
    def base_is_projective(self) -> bool:
        """Always."""
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
        """u exp of the quadratic in x that the exponent is at one time; common factors are left out."""
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
