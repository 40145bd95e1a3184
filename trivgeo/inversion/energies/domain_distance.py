"""The distance of a transformed problem to the domain on which an operator was trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from scipy.spatial import ConvexHull, QhullError
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import Constant
from trivgeo.actions import OperatorAction, OperatorInput, interpolate
from trivgeo.checks import check_positive, checked
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy

Interval = tuple[float, float]


@checked
class DomainDistance(DataEnergy):
    r"""Squared distances of the bounding box of a problem to that of the training domain (Shumaylov et al. 2025).

    .. math:: E = \sum_{c \in (x, t, u)} (\min c_0 - c^-_0)^2 + (\max c_0 - c^+_0)^2
        + \sum_{c \in (x, t)} (\min c_q - c^-)^2 + (\max c_q - c^+)^2

    with :math:`c_0` the jets of the initial condition and :math:`c_q` the query points; x and u stand for all their
    coordinates. The second line assumes that the query points fill the domain; without ``fill`` they need only lie in
    it, and the second line counts their distance to it.

    Where the action moves one x and t projectively, the extremes of the query points are reached on their convex hull
    while its denominator keeps its sign (`OperatorAction` makes the result NaN otherwise): four points for a box of any
    number of them. Gradients are then taken at the extreme points alone. In other dimensions all points are moved.

    Args:
        x: the range of x, or those of x_1, ..., x_d.
        t: the range of t of the query points; the initial condition is at its lower end.
        u: the range of u of initial conditions, or those of u_1, ..., u_c; ``None`` where they have none in common,
            such as random fields: the energy then leaves u out.
        fill: whether the query points fill the domain.

    Raises:
        DomainError: a range is empty or not finite.
    """

    def __init__(
        self,
        x: Interval | Sequence[Interval],
        t: Interval,
        u: Interval | Sequence[Interval] | None = None,
        *,
        fill: bool = True,
    ) -> None:
        self.x, self.t, self.u = x, t, u
        self.fill = fill
        space, time = _ranges("x", x), _ranges("t", t)
        values = torch.empty(0, 2, dtype=torch.float64) if u is None else _ranges("u", u)
        self._initial_box = Constant(torch.cat([space, time[:, [0, 0]], values]))
        self._query_box = Constant(torch.cat([space, time]))

    def __call__(self, x: OperatorInput) -> Float[Tensor, " batch"]:
        return _box_distance(self._initial(x), self._initial_box) + _box_distance(
            x.query, self._query_box, outside_only=not self.fill
        )

    def _initial(self, x: OperatorInput) -> Tensor:
        """Return the coordinates of the initial condition whose ranges are given."""
        return x.initial[..., : x.query.shape[-1]] if self.u is None else x.initial

    def prepare(self, action: Action, x: OperatorInput) -> OperatorInput:
        """Keep the convex hull of the query points, and put the ends of the initial line first.

        Raises:
            ConfigurationError: the action is not one on operator inputs.
            ShapeError: the data have other coordinates than the domain.
        """
        if not isinstance(action, OperatorAction):
            raise ConfigurationError(f"action: expected an OperatorAction, got {type(action).__name__}")
        for points, box in ((x.query, self._query_box), (self._initial(x), self._initial_box)):
            if points.shape[-1] != len(box.value):
                raise ShapeError(f"x: expected points in a domain of {len(box.value)} ranges, got {points.shape[-1]}")
        if not _moves_hulls(action, x):
            return x
        place = x.initial[..., :1]
        ends = torch.cat([place.argmin(-2), place.argmax(-2)], -1)
        initial = _gather_points(x.initial, ends)
        if self.u is not None:
            initial = torch.cat([initial, x.initial], -2)
        return OperatorInput(initial, hull_points(x.query))

    def select(self, action: Action, g: Tensor, x: OperatorInput) -> OperatorInput:
        """Keep the ends of the initial line and the points of extreme u, which alone the energy reads after ``g``."""
        assert isinstance(action, OperatorAction)
        if not _moves_hulls(action, x) or self.u is None:
            return x
        order = action.point_action.fibre_order(g, x.initial)
        extreme = torch.stack([order.argmin(-1), order.argmax(-1)], -1)
        index = torch.cat([torch.zeros_like(extreme[..., :1]), torch.ones_like(extreme[..., :1]), extreme], -1)
        return OperatorInput(_gather_points(x.initial.expand(*index.shape[:-1], -1, -1), index), x.query)


def _ranges(name: str, ranges: Interval | Sequence[Interval]) -> Float[Tensor, "n 2"]:
    """Return one range or several, ``[n, 2]``, if each is finite and not empty."""
    several = torch.tensor(ranges, dtype=torch.float64).reshape(-1, 2)
    if not bool(torch.isfinite(several).all() and (several[:, 0] < several[:, 1]).all()):
        raise DomainError(f"{name}: expected a finite range (low, high), got {ranges}")
    return several


def _moves_hulls(action: OperatorAction, x: OperatorInput) -> bool:
    """Return whether the action takes convex hulls in the (x, t) plane to hulls, and u is one number."""
    return action.point_action.base_is_projective and (x.query.shape[-1], x.initial.shape[-1]) == (2, 3)


def _gather_points(points: Tensor, index: Tensor) -> Tensor:
    """Return points ``[*batch, k, n]`` at indices ``[*batch, k]``."""
    return points.gather(-2, index.unsqueeze(-1).expand(*index.shape, points.shape[-1]))


def _box_distance(points: Tensor, box: Constant, *, outside_only: bool = False) -> Tensor:
    """Return the squared distance of the extremes of points ``[*batch, p, n]`` to a box ``[n, 2]``."""
    low, high = box.matching(points).unbind(-1)
    below, above = low - points.amin(-2), points.amax(-2) - high
    if outside_only:
        below, above = below.clamp(min=0.0), above.clamp(min=0.0)
    return (below**2 + above**2).sum(-1)


def hull_points(points: Float[Tensor, "b q 2"]) -> Float[Tensor, "b h 2"]:
    """Return the vertices of each convex hull, the first repeated where a hull has fewer; all points if degenerate."""
    hulls = []
    for cloud, kept in zip(points, _not_inside(points), strict=True):
        outer = cloud[kept]
        try:
            vertices = ConvexHull(outer.detach().cpu().numpy()).vertices
        except QhullError:  # fewer than three points, or all on one line
            return points
        hulls.append(outer[torch.as_tensor(vertices, dtype=torch.long, device=cloud.device)])
    most = max(len(h) for h in hulls)
    return torch.stack([torch.cat([h, h[:1].expand(most - len(h), -1)]) for h in hulls])


def _not_inside(points: Float[Tensor, "b q 2"]) -> Bool[Tensor, "b q"]:
    """False inside the quadrangle of the points that are extreme along the diagonals (Akl and Toussaint 1978).

    It keeps a few hundred of the ten thousands of points of a grid, which makes a hull many times as fast.
    """
    if points.shape[-2] == 0:
        return points.new_ones(points.shape[:-1], dtype=torch.bool)
    x, y = points.detach().movedim(-1, 0).contiguous().unbind(0)
    width, height = (v.amax(-1, keepdim=True) - v.amin(-1, keepdim=True) for v in (x, y))
    along, across = x * height, y * width
    rising, falling = along + across, across - along
    place = torch.stack([rising.argmax(-1), falling.argmax(-1), rising.argmin(-1), falling.argmin(-1)], -1)
    x0, y0 = x.gather(-1, place), y.gather(-1, place)  # counterclockwise
    dx, dy = x0.roll(-1, -1) - x0, y0.roll(-1, -1) - y0
    tolerance = 1e-9 * width * height
    inside = torch.ones_like(x, dtype=torch.bool)
    for edge in range(place.shape[-1]):
        a, b, u, v = (corner[..., edge : edge + 1] for corner in (x0, y0, dx, dy))
        inside &= torch.addcmul(u * y, v, x, value=-1.0) > tolerance + (u * b - v * a)
    return ~inside


@checked
class GaussianInitialEnergy(DataEnergy):
    r"""The distance to the training domain, plus how unlikely the initial condition is there; of one x and one u.

    .. math:: E = E_{box} + \frac{w}{2 m} \bigl(|z|^2 + |r|^2 / \epsilon^2\bigr),

    with u_0 at m sensors split into the whitened coordinates z of the principal components whose standard deviation is
    above :math:`\epsilon`, and the rest r: the negative log-likelihood of a Gaussian with mean and covariance of
    the training set, the variance in all other directions raised to :math:`\epsilon^2`.

    The box alone finds a transformation because the query points fill the training domain. Where they need not, give
    a box with ``fill=False``: the initial condition then determines the transformation.

    Args:
        box: distance of the points to the training domain.
        sensors: positions x, ``[m]``; initial conditions are brought there by `trivgeo.actions.interpolate`.
        samples: initial conditions of the training set at the sensors, ``[n, m]``.
        weight: w, positive.
        floor: :math:`\epsilon` relative to the root mean square of the samples, positive.

    Raises:
        ShapeError: samples and sensors do not fit, or fewer than two samples.
        ConfigurationError: a number is not positive.
    """

    def __init__(
        self,
        box: DomainDistance,
        sensors: Float[Tensor, " m"],
        samples: Float[Tensor, "n m"],
        weight: float = 1.0,
        floor: float = 0.01,
    ) -> None:
        if sensors.ndim != 1 or samples.ndim != 2 or samples.shape[-1] != len(sensors) or len(samples) < 2:
            raise ShapeError(
                f"samples: expected at least 2 initial conditions [n, {sensors.numel()}], got {list(samples.shape)}"
            )
        check_positive("floor", floor)
        self.box = box
        samples = samples.double()
        mean = samples.mean(0)
        centred = samples - mean
        epsilon = floor * float(samples.square().mean().sqrt())
        values, vectors = torch.linalg.eigh(centred.mT @ centred / (len(samples) - 1))
        deviations = values.clamp(min=epsilon**2).sqrt()
        factor = (check_positive("weight", weight) / (2 * len(sensors))) ** 0.5
        self._sensors = Constant(sensors)
        self._mean = Constant(mean)
        self._whitening = Constant(factor * vectors / deviations)

    def __call__(self, x: OperatorInput) -> Float[Tensor, " batch"]:
        u = interpolate(x.initial[..., 0], x.initial[..., 2], self._sensors.matching(x.initial))
        coordinates = matmul(u - self._mean.matching(u), self._whitening.matching(u))
        return self.box(x) + coordinates.square().sum(-1)

    def prepare(self, action: Action, x: OperatorInput) -> OperatorInput:
        """Keep the convex hull of the query points.

        Raises:
            ConfigurationError: the action is not one on operator inputs.
            ShapeError: there are several x or u.
        """
        if (x.query.shape[-1], x.initial.shape[-1]) != (2, 3):
            raise ShapeError(f"x: expected jets (x, t, u) and points (x, t), got {[list(part.shape) for part in x]}")
        if not isinstance(action, OperatorAction):
            raise ConfigurationError(f"action: expected an OperatorAction, got {type(action).__name__}")
        return OperatorInput(x.initial, self.box.prepare(action, x).query)
