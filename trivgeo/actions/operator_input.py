"""The action of a point symmetry on the input of a solution operator."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._text import described
from trivgeo.actions.field import lagrange_weights
from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import Action, PointAction
from trivgeo.groups.action import JetAction

_TIME_TOLERANCE = 1e-6  # relative difference below which times of an initial condition are equal


class OperatorInput(NamedTuple):
    """Input of a solution operator: an initial condition, and the points at which the solution is evaluated.

    Let d be the dimension of space and c the number of unknowns. Then x is (x_1, ..., x_d) and u is (u_1, ..., u_c).

    Attributes:
        initial: jets (x, t, u) of the initial condition, ``[*batch, p, d + 1 + c]``, all at one time t.
        query: points (x, t), ``[*batch, q, d + 1]``.
    """

    initial: Tensor
    query: Tensor

    def __repr__(self) -> str:
        return described(self)


@checked
class OperatorAction(Action):
    """A point symmetry applied to the initial condition and the query points together.

    A transformation is defined for a datum if it is defined at every point and does not tear the domain apart: the
    denominator of the point action must have one sign on all points. Otherwise the whole result is NaN.

    Args:
        point_action: an action on jets (x, t, u), and on points (x, t) by themselves.

    Raises:
        ConfigurationError: the point action does not act on both.
    """

    def __init__(self, point_action: PointAction) -> None:
        if not isinstance(point_action, JetAction) or len(set(point_action.point_dims)) < 2:
            raise ConfigurationError(
                f"point_action: expected a JetAction, on (x, t) and (x, t, u), got {point_action!r}"
            )
        self.point_action = point_action
        self.group = point_action.group

    def __call__(self, g: Tensor, x: OperatorInput) -> OperatorInput:
        """The transformed input, NaN where the transformation is not defined."""
        action = self.point_action
        kept = self._kept(g, x)[..., None, None]
        initial, query = action(g, x.initial), action(g, x.query)
        return OperatorInput(torch.where(kept, initial, math.nan), torch.where(kept, query, math.nan))

    def _kept(self, g: Tensor, x: OperatorInput) -> Bool[Tensor, "*batch"]:
        """Whether the denominator has one sign on all points."""
        low, high = None, None
        for part in x:
            d = self.point_action.denominator(g, part)
            low = d.amin(-1) if low is None else torch.minimum(low, d.amin(-1))
            high = d.amax(-1) if high is None else torch.maximum(high, d.amax(-1))
        assert low is not None
        assert high is not None
        return (low > 0) | (high < 0)

    def is_valid(self, g: Tensor, x: OperatorInput) -> Bool[Tensor, "*batch"]:
        """Return True where g maps the initial condition and the query points to finite points."""
        y = self(g, x)
        return torch.isfinite(y.initial).all(-1).all(-1) & torch.isfinite(y.query).all(-1).all(-1)

    def log_abs_det_jacobian(self, g: Tensor, x: OperatorInput) -> Float[Tensor, "*batch"]:
        r"""Return :math:`\log |\det \partial (g.x) / \partial x|`, summed over initial points and query points."""
        return sum(
            (self.point_action.log_abs_det_jacobian(g, part) for part in x[1:]),
            start=self.point_action.log_abs_det_jacobian(g, x[0]),
        )

    def batch_shape(self, x: Any) -> torch.Size:
        return x.initial.shape[:-2]

    def check_data(self, x: Any, name: str = "x") -> None:
        """Raise a typed error unless ``x`` is an `OperatorInput` with an initial condition at one time.

        Initial conditions have all coordinates of the point action, query points fewer. Messages call x ``name``.
        """
        if not isinstance(x, OperatorInput):
            raise ConfigurationError(f"{name}: expected an OperatorInput, got {type(x).__name__}")
        *fewer, whole = sorted(set(self.point_action.point_dims))
        for part, coordinates in ((x.initial, [whole]), (x.query, fewer)):
            if not isinstance(part, Tensor) or part.ndim < 2 or part.shape[-1] not in coordinates or 0 in part.shape:
                got = list(part.shape) if isinstance(part, Tensor) else type(part).__name__
                wanted = " or ".join(map(str, coordinates))
                raise ShapeError(f"{name}: expected points [*batch, p, {wanted}], got {got}")
        if x.initial.shape[:-2] != x.query.shape[:-2]:
            raise ShapeError(
                f"{name}: expected one batch shape, got {list(x.initial.shape[:-2])} and {list(x.query.shape[:-2])}"
            )
        t = x.initial[..., x.query.shape[-1] - 1]
        spread = t.amax(-1) - t.amin(-1)
        if bool((spread > _TIME_TOLERANCE * t.abs().amax(-1).clamp(min=1.0)).any()):
            raise DomainError(
                f"{name}: expected an initial condition at one time, got times that differ by {float(spread.max()):.3g}"
            )


@checked
def interpolate(
    x: Float[Tensor, "*batch p"], y: Float[Tensor, "*batch p"], at: Float[Tensor, " m"]
) -> Float[Tensor, "*batch m"]:
    """Cubic Lagrange interpolation from the four nearest nodes, linear beyond the ends.

    The error is O(h^4) for nodes a distance h apart. Beyond the ends the line through the last two nodes goes on, at a
    distance d with the error f'' d (d + h) / 2.

    Args:
        x: nodes, distinct, in any order.
        y: values at the nodes.
        at: positions at which ``y`` is interpolated.

    Raises:
        ShapeError: there are fewer than four nodes.
    """
    count = x.shape[-1]
    if count < 4:
        raise ShapeError(f"x: expected at least 4 nodes, got {count}")
    x, order = x.sort(-1)
    y = y.gather(-1, order)
    target = at.expand(*x.shape[:-1], -1).contiguous()
    inside = target.clamp(x[..., :1], x[..., -1:])
    first = (torch.searchsorted(x.contiguous(), inside) - 2).clamp(0, count - 4)
    index = first.unsqueeze(-1) + torch.arange(4, device=x.device)
    flat = index.flatten(-2)
    nodes, values = (z.gather(-1, flat).reshape(index.shape) for z in (x, y))
    value = (lagrange_weights(inside, nodes) * values).sum(-1)
    low_slope = (y[..., 1] - y[..., 0]) / (x[..., 1] - x[..., 0])
    high_slope = (y[..., -1] - y[..., -2]) / (x[..., -1] - x[..., -2])
    beyond = target - inside
    slope = torch.where(beyond < 0, low_slope.unsqueeze(-1), high_slope.unsqueeze(-1))
    return value + beyond * slope
