r"""Fibres over coordinates with closed forms, moved by the stabilizer of one point.

Let the coordinates x move in closed form by themselves, with fields :math:`T_i = \partial_{x_i} + s_i \partial_u` of
constant coefficients among those of the group; mostly s = 0, so that they leave the other coordinates u alone. Then
:math:`\tau(x) = \exp((x - o) \cdot T)` carries (o, u) to (x, u + (x - o) s), and
:math:`k = \tau(g.x)^{-1} g\, \tau(x)` leaves o where it is. What g does to u at x, k does to u at o, up to these
shifts: the flow of :math:`w = \log k` at the fixed point o, whose field :math:`A_w(o) u + b_w(o)` has constant
coefficients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.groups._matrices import kernel, matvec
from trivgeo.groups.generated.vector_fields import VectorFields

__all__ = ["TransportedCoordinates", "find_transported"]

_FIT_ERROR = 1e-10  # of constant and affine fields, relative to the size of their terms
_MAX_FIBRE_DIM = 6
_MAX_EXPONENT_SHARE = 0.9  # of the largest exponent that the floating-point numbers have


@dataclass(frozen=True)
class TransportedCoordinates:
    """Coordinates u over x.

    Attributes:
        base: the positions of x.
        fibre: the positions of u.
        origin: o, in the order of ``base``.
        shifts: vectors whose fields are the T, ``[len(base), n]``.
        slopes: the s, ``[len(base), r]``.
        linear: the matrices A of the fields at o, ``[n, r, r]``.
        shift: b of the fields at o, ``[n, r]``.
    """

    base: tuple[int, ...]
    fibre: tuple[int, ...]
    origin: Constant
    shifts: Constant
    slopes: Constant
    linear: Constant
    shift: Constant

    def move(self, w: Tensor, u: Tensor) -> Tensor:
        """Return the images of coordinates u at the point o under ``exp(w)``, ``[*batch, r]``; NaN where they
        overflow.

        Args:
            w: algebra vectors ``[*batch, n]``.
            u: coordinates ``[*batch, r]``.
        """
        matrix = torch.einsum("...i,iab->...ab", w, self.linear.like(w))
        bound = _MAX_EXPONENT_SHARE * math.log(torch.finfo(w.dtype).max)
        fits = (matrix.detach().abs().sum((-2, -1)) < bound).unsqueeze(-1)
        matrix, w = torch.where(fits.unsqueeze(-1), matrix, 0.0), torch.where(fits, w, 0.0)
        both = kernel(len(self.fibre)).affine_exp(matrix, w @ self.shift.like(w))
        return torch.where(fits, matvec(both[..., :-1], u) + both[..., -1], math.nan)


def find_transported(fields: VectorFields, points: Tensor, base: tuple[int, ...]) -> TransportedCoordinates | None:
    """The coordinates other than ``base``, if all move affinely, and the group shifts those of the base.

    Args:
        fields: the fields.
        points: sample points, ``[p, m]``.
        base: positions of coordinates that move in closed form independently of the others.

    Returns:
        ``None`` if there are none, or they do not move so.
    """
    m = fields.dim
    fibre = tuple(c for c in range(m) if c not in base)
    if not base or not fibre or len(fibre) > _MAX_FIBRE_DIM:
        return None
    values = fields(points)
    # unknowns: combinations of the fields that shift x, and the constants that they have in u
    table = torch.cat([values, -torch.eye(m, dtype=torch.float64)[list(fibre)].expand(len(points), -1, m)], 1)
    table = table.transpose(0, 1).flatten(1)
    units = torch.eye(m, dtype=torch.float64)[list(base)].repeat(1, len(points))
    found = torch.linalg.lstsq(table.T, units.T, driver="gelsd").solution.T
    if bool(((found @ table - units).abs() > _FIT_ERROR * (1.0 + found.abs() @ table.abs())).any()):
        return None
    found = torch.where(found.abs() < _FIT_ERROR * found.abs().amax(-1, keepdim=True), 0.0, found)
    shifts, slopes = found.split([len(fields), len(fibre)], -1)
    at_zero = points.clone()
    at_zero[:, list(fibre)] = 0.0
    shift, linear = fields(at_zero)[..., list(fibre)], fields.slopes(at_zero)[..., list(fibre), :][..., list(fibre)]
    affine = matvec(linear, points[:, None, list(fibre)]) + shift
    goal = values[..., list(fibre)]
    known = torch.isfinite(affine).all() and torch.isfinite(linear).all()
    if not bool(known) or bool(((affine - goal).abs() > _FIT_ERROR * (1.0 + goal.abs().amax((0, 2))[:, None])).any()):
        return None
    origin = points[0][list(base)]
    here = linear[0], shift[0]
    return TransportedCoordinates(base, fibre, *map(Constant, (origin, shifts, slopes, *here)))
