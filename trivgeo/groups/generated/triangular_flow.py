r"""Flows that need no integrator: projective and conformal coordinates in closed form, affine ones by quadrature.

The flow of a field for unit time is solved from the bottom up. Coordinates that move projectively or conformally by
themselves have a closed form: they move linearly as (x, 1), or as points (x, x.Qx, 1) of the light cone. Coordinates u
that the field moves by :math:`u' = A(s) u + b(s)`, with commuting matrices A and both functions known along the flow of
the coordinates below, are

.. math:: u(1) = e^{I(1)} \Bigl(u(0) + \int_0^1 e^{-I(s)} b(s)\, ds\Bigr), \quad I(s) = \int_0^s A,

with both integrals by one Gauss-Legendre rule. This is how every symmetry of a linear equation moves u; where the
fields are polynomials, whole elements mostly do so in closed form, see `PolynomialRepresentation`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.groups._matrices import kernel, matvec
from trivgeo.groups.generated.homogeneous import ProjectiveBase
from trivgeo.groups.generated.vector_fields import VectorFields

__all__ = ["AffineBlock", "FlowResult", "TriangularFlow", "block_coefficients"]

_MAX_EXPONENT_SHARE = 0.9  # of the largest exponent that the floating-point numbers have


@dataclass(frozen=True)
class AffineBlock:
    """Coordinates u that fields move by u' = A(x) u + b(x) over coordinates x, all A commuting.

    Attributes:
        coordinates: the positions of u.
        linear: whether A is not zero.
        shifted: whether b is not zero.
    """

    coordinates: tuple[int, ...]
    linear: bool
    shifted: bool


@dataclass(frozen=True)
class FlowResult:
    """Points moved along a flow.

    Attributes:
        end: the points at the end, ``[*batch, m]``; coordinates that were not solved are left as they were.
        alive: where the flow exists, ``[*batch]``.
        error: the estimated error of a coordinate relative to one plus its size, ``[*batch]``.
    """

    end: Tensor
    alive: Tensor
    error: Tensor


class TriangularFlow:
    """The flow of a triangular system: bases first, then affine blocks, each over the coordinates before.

    Args:
        fields: the fields.
        bases: coordinates with closed forms.
        blocks: coordinates by quadrature.
        nodes: the number of Gauss-Legendre nodes.
    """

    def __init__(
        self, fields: VectorFields, bases: Sequence[ProjectiveBase], blocks: Sequence[AffineBlock], nodes: int
    ) -> None:
        self._bases, self._blocks = tuple(bases), tuple(blocks)
        self._fields = fields
        self._matrices = tuple(Constant(base.matrices) for base in bases)
        self._rule = QuadratureRule(nodes)
        kinds = {c: "closed form" for base in bases for c in base.coordinates}
        kinds |= {c: "quadrature" for block in blocks for c in block.coordinates}
        self.solved_coordinates = frozenset(kinds)
        """Positions of the coordinates that need no integrator."""
        self.methods = [kinds.get(c, "integrated") for c in range(fields.dim)]
        """How each coordinate is found, see `GeneratedAction.flows`; ``"integrated"`` for those that are left."""

    def flow(self, v: Tensor, x: Tensor, count: int) -> FlowResult:
        """The flow of a field for unit time, for the leading ``count`` coordinates.

        Args:
            v: the algebra vectors, ``[*batch, dim]``, unscaled.
            x: the points, ``[*batch, p, m]``.
            count: how many coordinates are wanted.
        """
        rule = self._rule
        alive = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
        error = x.new_zeros(x.shape[:-1])
        # every coordinate along the flow, [*batch, nodes + 1, p]: at the nodes, then at the end
        path = list(x.unsqueeze(-3).expand(*x.shape[:-2], rule.count + 1, -1, -1).unbind(-1))
        times = rule.times.like(x)
        for base, constant in zip(self._bases, self._matrices, strict=True):
            if base.coordinates[0] >= count:
                continue
            generator = torch.einsum("...i,iab->...ab", v, constant.like(v)).unsqueeze(-3)
            powers = kernel(generator.shape[-1]).exp(times[:, None, None] * generator)
            start = base.lift(x[..., list(base.coordinates)]).mT
            start = torch.cat([start, torch.ones_like(start[..., :1, :])], -2)
            moved = (powers.flatten(-3, -2) @ start).unflatten(-2, powers.shape[-3:-1])
            d = moved[..., -1, :]
            inside = (d > 0).all(-2)
            alive = alive & inside
            d = torch.where(inside.unsqueeze(-2), d, 1.0)
            for position, c in enumerate(base.coordinates):
                path[c] = moved[..., position, :] / d
        for block in self._blocks:
            if block.coordinates[0] < count:
                values, good, missed = self._follow(block, v, path)
                alive, error = alive & good, error + missed
                for c, whole in zip(block.coordinates, values, strict=True):
                    path[c] = whole
        return FlowResult(torch.stack([values[..., -1, :] for values in path], -1), alive, error)

    def _follow(self, block: AffineBlock, v: Tensor, path: Sequence[Tensor]) -> tuple[list[Tensor], Tensor, Tensor]:
        """The coordinates of a block along the path, ``[*batch, nodes + 1, p]``, where they exist, and their error."""
        rule, f = self._rule, len(block.coordinates)
        below = [values[..., :-1, :] for values in path]
        start = torch.stack([path[c][..., :1, :] for c in block.coordinates], -1)
        a, b = block_coefficients(self._fields, block, [w[..., None, None] for w in v.unbind(-1)], below)
        good = torch.stack([torch.isfinite(entry).all(-2) for entry in (*a, *b)]).all(0)
        error = torch.zeros_like(start[..., 0, :, 0])

        def integrate(entries: Sequence[Tensor]) -> Tensor:
            nonlocal error
            results = []
            for entry in entries:
                integral, missed = rule.integrate(torch.where(good.unsqueeze(-2), entry, 0.0))
                results.append(integral)
                error = error + missed
            return torch.stack(results, -1)

        if not block.linear:
            return list((start + integrate(b)).unbind(-1)), good, error
        integral = integrate(a).unflatten(-1, (f, f))
        # an exponential that overflows is no value, and would spoil the gradients of others
        bound = _MAX_EXPONENT_SHARE * math.log(torch.finfo(integral.dtype).max)
        good = good & (integral.detach().abs().sum(-1) < bound).all(-1).all(-2)
        integral = torch.where(good[..., None, :, None, None], integral, 0.0)
        grow = kernel(f).exp(integral)
        if block.shifted:
            back = matvec(kernel(f).exp(-integral[..., :-1, :, :, :]), torch.stack(b, -1))
            start = start + integrate(back.unbind(-1))
        return list(matvec(grow, start).unbind(-1)), good, error


def block_coefficients(
    fields: VectorFields, block: AffineBlock, v: Sequence[Tensor], x: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The entries of A row by row, and those of b, from the field at u = 0 and at unit vectors u.

    Args:
        fields: the fields.
        block: the coordinates u; A or b that it says to be zero are left out.
        v: the coordinates of an algebra vector, which broadcast against those of x.
        x: the coordinates of a point.
    """
    index = block.coordinates

    def field_at(unit: int | None) -> list[Tensor]:
        point = list(x)
        for c in index:
            point[c] = torch.ones_like(point[c]) if c == unit else torch.zeros_like(point[c])
        return fields.components(v, point, index)

    b = field_at(None) if block.shifted else []
    if not block.linear:
        return [], b
    columns = [field_at(c) for c in index]
    if b:
        columns = [[value - shift for value, shift in zip(column, b, strict=True)] for column in columns]
    return [column[row] for row in range(len(index)) for column in columns], b


class QuadratureRule:
    """The Gauss-Legendre rule on [0, 1], with the integrals from zero to every node.

    Its variable is slow at both ends, for a flow that exists for unit time may have its pole just outside.

    Args:
        count: the number of nodes.
    """

    def __init__(self, count: int) -> None:
        legendre = np.polynomial.legendre
        z, w = legendre.leggauss(count)
        values = legendre.legvander(z, count)  # P_0 .. P_count at the nodes
        degrees = np.arange(count)
        analysis = (degrees + 0.5)[:, None] * w * values[:, :count].T  # coefficients of the interpolant
        lower = np.concatenate([-np.ones((count, 1)), values[:, : count - 1]], 1)  # with P_-1 = -1: from z = -1 on
        cumulated = 0.5 * ((values[:, 1:] - lower) / (2.0 * degrees + 1.0)) @ analysis
        self.count = count
        y = 0.5 * (z + 1.0)
        time, slope = y * y * (3.0 - 2.0 * y), 6.0 * y * (1.0 - y)
        self.times = Constant(torch.as_tensor(np.append(time, 1.0)))
        self._integrals = Constant(torch.as_tensor(np.concatenate([cumulated, 0.5 * w[None]]) * slope))
        self._analysis = Constant(torch.as_tensor(analysis * slope))

    def integrate(self, values: Tensor) -> tuple[Tensor, Tensor]:
        r"""Integrals from zero to every node and to one, of functions known at the nodes, and an error estimate.

        The last Legendre coefficients of the interpolant fall like :math:`\rho^{-n}` for an analytic function, and the
        error of the rule like :math:`\rho^{-2 n}`: their square, over the largest coefficient, estimates it.

        Args:
            values: ``[*batch, nodes, p]``.

        Returns:
            The integrals ``[*batch, nodes + 1, p]``, and the estimate ``[*batch, p]``.
        """
        integrals = self._integrals.like(values) @ values
        with torch.no_grad():
            coefficients = (self._analysis.like(values) @ values.detach()).abs()
            largest, last = coefficients.amax(-2), coefficients[..., -2:, :].amax(-2)
            error = torch.finfo(values.dtype).eps * largest + last.square() / torch.where(largest > 0, largest, 1.0)
        return integrals, error
