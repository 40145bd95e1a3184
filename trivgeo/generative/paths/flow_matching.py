"""Flow matching along geodesics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from trivgeo._text import described
from trivgeo.checks import check_choice, check_positive, checked
from trivgeo.errors import ShapeError
from trivgeo.generative.distribution_fitting import fit_base_distribution
from trivgeo.generative.distributions import GroupDistribution
from trivgeo.generative.paths.base import Coupling, Network, ProbabilityPath, TrainingBatch
from trivgeo.generative.paths.noising import stratified
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.schedule import ConstantSchedule
from trivgeo.sde.processes.trivialized import TrivializedSDE

PathT = TypeVar("PathT", bound="FlowMatchingPath")

_MAX_PAIR_ENTRIES = 2**24  # entries of the elements of all pairs at once
_MAX_PAIRED_ROWS = 3000  # data whose pairs are counted
_MIN_PAIRS, _FEW_PAIRS, _PAIR_SHARE = 400, 20, 0.02  # pairs from which a dimension is told, of many data and of few
_LOW_DIMENSION = 0.75  # dimension, over that of the space, below which data do not fill the space
_PROBE_STEP = 1e-3  # length of the steps that compare lengths of logarithms with differences of entries
_NUM_NEWTON_STEPS = 8  # steps that invert the time of a share
_MIN_RESOLUTION = 1e-3  # least distance that a path resolves, in units of its length; copies of data are at none
_BASE_STD_RATIO = 1.2  # standard deviation of the base distribution over that of the data, which it is to cover


class Bridge(NamedTuple):
    """A sample as the other end of a flow, in place of a base distribution; a ``coupling`` of `GroupDiffusion.fit`.

    Attributes:
        source: elements ``[m, *element_shape]``.
        coupling: how data and source are paired in each batch, "optimal" or "independent", see `FlowMatchingPath`.
    """

    source: Tensor
    coupling: str = "optimal"

    def __repr__(self) -> str:
        return described(self)


@checked
@dataclass(frozen=True)
class FlowMatchingPath(ProbabilityPath):
    r"""Flow matching along geodesics (Chen and Lipman 2024): the network predicts the velocity.

    The path from a datum x_1 to a draw x_0 of the base distribution is :math:`x_1 \exp(a(t) u), u = \log(x_1^{-1}
    x_0)`. Its left-trivialized velocity is :math:`a'(t) u`. The flow of :math:`a'(t) E[u \mid x_t]` carries one
    distribution to the other. Time is 0 at the data, as on all paths. Pairs without a logarithm are skipped.

    The scheduler a is the inverse of :math:`t = \tfrac12 a + \tfrac12 \operatorname{arsinh}(a / \tau) /
    \operatorname{arsinh}(1 / \tau)`. Half of the time is for equal distances from the data, where modes part. In the
    other half each halving of the distance counts alike, down to the resolution :math:`\tau`, as in the likelihood of
    data, of which a velocity has the weight :math:`da / a` (Song et al. 2021b). The resolution is the scale of the
    finest structure of the data, see `structure_scale`. A constant speed, :math:`a = t`, has the resolution infinity.

    With the coupling "optimal" the draws and the data of a batch are paired so that the sum of all :math:`|u|^2` is
    smallest (Tong et al. 2024). Paths then cross less, and flows are straighter.

    Attributes:
        group: the group of the elements.
        base: the base distribution.
        speed: root mean square of u, by which the target is divided.
        coupling: how data are paired with draws of the base distribution, "independent" or "optimal"; or a function of
            data and draws, both ``[b, *element_shape]``, that returns draws, of the base distribution as well.
        resolution: :math:`\tau`, the distance from the data that the path resolves, in units of its length.
    """

    group: LieGroup
    base: GroupDistribution
    speed: float
    coupling: str | Coupling = "independent"
    resolution: float = math.inf
    start_time: ClassVar[float] = 0.0  # type: ignore[misc]
    end_time: ClassVar[float] = 1.0  # type: ignore[misc]

    @classmethod
    def fit_base(cls, group: LieGroup, samples: Tensor) -> GroupDistribution:
        """Fit the base distribution: Haar measure on compact factors, elsewhere normal ones, wider than the samples."""
        return fit_base_distribution(group, samples, _BASE_STD_RATIO)

    @classmethod
    def fit(
        cls, group: LieGroup, data: Tensor, generator: torch.Generator | None, dim: int | None = None
    ) -> tuple[dict[str, Any], GroupDistribution]:
        """Fit the base distribution, measure the speed of the geodesics, and find the resolution of the data.

        Args:
            dim: dimension of the space of which the data are lifts; default: that of the group.
        """
        base = cls.fit_base(group, data)
        settings = cls.fit_bridge(group, data, base, generator)
        length = settings["speed"] * math.sqrt(group.dim)
        scale = structure_scale(group, data, group.dim if dim is None else dim, _MIN_RESOLUTION * length, length)
        return {**settings, "resolution": scale / length}, base

    @classmethod
    def fit_bridge(
        cls, group: LieGroup, data: Tensor, source: GroupDistribution, generator: torch.Generator | None
    ) -> dict[str, Any]:
        """Measure the speed of the geodesics between data and source."""
        velocity = cls(group, source, 1.0).training_batch(data, generator).target
        return {"speed": float(velocity[torch.isfinite(velocity).all(-1)].square().mean().sqrt())}

    @classmethod
    def build(cls: type[PathT], group: LieGroup, settings: Mapping[str, Any], base: GroupDistribution) -> PathT:
        speed = check_positive("speed", settings["speed"])
        if "resolution" not in settings:  # a bridge, or a file of an older version
            return cls(group, base, speed)
        return cls(group, base, speed, resolution=check_positive("resolution", settings["resolution"]))

    def training_batch(self, data: Tensor, generator: torch.Generator | None) -> TrainingBatch:
        """Draw geodesics from the data to draws of the base distribution, and a point on each of them.

        Times are drawn one from each of b equal intervals of [0, 1].

        Elements are on the geodesics, velocities ``[b, dim]`` in units of ``speed``; they are NaN without a logarithm.

        Raises:
            ShapeError: a coupling returns another number of draws, or no elements.
        """
        level = stratified(len(data), data, generator)
        drawn = self.base.sample(len(data), generator)
        if callable(self.coupling):
            drawn = self.group.check_elements(self.coupling(data, drawn), "coupling")
            if drawn.shape != data.shape:
                raise ShapeError(
                    f"coupling: expected a draw for each datum, {list(data.shape)}, got {list(drawn.shape)}"
                )
        elif self.coupling == "optimal":
            drawn = drawn[_optimal_assignment(self.group, data, drawn)]
        u = self.group.log(self.group.compose(self.group.inverse(data), drawn))
        found = torch.isfinite(u).all(-1, keepdim=True)
        g = self.group.retract(data, self._share(level).unsqueeze(-1) * torch.where(found, u, 0.0))
        return TrainingBatch(g, level, None, u / self.speed, torch.ones_like(level))

    def spread(self, level: Tensor) -> Tensor:
        return self.speed * math.sqrt(self.group.dim) * self._share(level)

    def _share(self, level: Tensor) -> Tensor:
        """The shares a of the geodesics at levels, by Newton steps for y in a = tau sinh(y arsinh(1 / tau))."""
        if math.isinf(self.resolution):
            return level
        rate, t = math.asinh(1.0 / self.resolution), level
        y = torch.minimum(2.0 * t, (2.0 * t / self.resolution).asinh() / rate)  # above the zero of a convex function
        for _ in range(_NUM_NEWTON_STEPS):
            slope = 0.5 + 0.5 * rate * self.resolution * (rate * y).cosh()
            y = y - (0.5 * y + 0.5 * self.resolution * (rate * y).sinh() - t) / slope
        return self.resolution * (rate * y).sinh()

    def _growth(self, t: float) -> float:
        """The derivative of the share at time t."""
        if math.isinf(self.resolution):
            return 1.0
        share = float(self._share(torch.tensor(t, dtype=torch.float64)))
        return 2.0 / (1.0 + 1.0 / (math.asinh(1.0 / self.resolution) * math.hypot(share, self.resolution)))

    def with_coupling(self: PathT, coupling: str | Coupling) -> PathT:
        """Return the path with a ``coupling`` of data and draws of the base, see `FlowMatchingPath`."""
        if callable(coupling):
            return dataclasses.replace(self, coupling=coupling)
        return dataclasses.replace(self, coupling=check_choice("coupling", coupling, ("independent", "optimal")))

    def flow(self, network: Network) -> TrivializedSDE:
        """Return the equation whose drift is ``network``, a function (g, level, momentum) to vectors ``[b, dim]``."""

        def drift(g: Tensor, t: float) -> Tensor:
            return self.speed * self._growth(t) * network(g, g.new_full(self.group.batch_shape(g), t), None)

        return TrivializedSDE(self.group, ConstantSchedule(0.0), drift, noisy=False)


def structure_scale(group: LieGroup, data: Tensor, dim: int, least: float, most: float) -> float:
    """Return the least distance at which data look as if they filled fewer dimensions than there are.

    The number of pairs nearer than r grows like r to the power of the dimension (the correlation dimension, Grassberger
    and Procaccia 1983). Below the width of a mode this is that of the space, above it less; of data on a curve it is
    one, and of copies zero at every distance.

    Args:
        group: the group.
        data: elements ``[m, *element_shape]``; rows that follow each other again from the start are left out.
        dim: the dimension of the space.
        least: the least distance of interest, by lengths of logarithms; returned for data with copies.
        most: the largest, returned if no distance is such.
    """
    data = data[: _period(data)][:_MAX_PAIRED_ROWS]
    if len(data) < 3:
        return most
    step = _PROBE_STEP * group.dim**-0.5
    near = group.retract(data, torch.full((len(data), group.dim), step).to(data))
    stretch = (_entries(group, near) - _entries(group, data)).square().sum(-1).mean().sqrt() / _PROBE_STEP
    gaps = torch.pdist(_entries(group, data)) / stretch
    edges = [least]
    while edges[-1] < 2.0 * most:
        edges.append(2.0 * edges[-1])
    bins = torch.bucketize(gaps, torch.tensor(edges).to(gaps))
    counts = torch.bincount(bins, minlength=len(edges) + 1).cumsum(0).tolist()
    enough = min(_MIN_PAIRS, max(_FEW_PAIRS, int(_PAIR_SHARE * len(gaps))))
    for edge, first, second in zip(edges[:-1], counts[:-1], counts[1:], strict=False):
        if first >= enough and math.log2(second / first) < _LOW_DIMENSION * dim:
            return min(edge, most)
    return most


def _period(data: Tensor) -> int:
    """The number of rows after which data repeat themselves; all if they do not."""
    flat = data.flatten(1)
    for k in (flat[1:] == flat[0]).all(-1).nonzero().flatten().tolist():
        if torch.equal(flat[k + 1 :], flat[: -k - 1]):
            return int(k) + 1
    return len(data)


def _entries(group: LieGroup, g: Tensor) -> Tensor:
    """Entries of elements, ``[m, k]``; of angles, cosines and sines in units of the angles."""
    periods = group._periods().flatten().to(g)
    flat, turning = g.flatten(1), periods > 0
    rates = 2.0 * math.pi / periods[turning]
    angles = flat[:, turning] * rates
    return torch.cat([flat[:, ~turning], angles.cos() / rates, angles.sin() / rates], -1)


def _optimal_assignment(group: LieGroup, data: Tensor, drawn: Tensor) -> Tensor:
    """Indices of the draws ``[b]`` for each datum, for the smallest sum of squared logarithms."""
    inverse = group.inverse(data)
    rows = max(1, _MAX_PAIR_ENTRIES // drawn.numel())
    with torch.no_grad():
        squares = [
            group.log(group.compose(part.unsqueeze(1), drawn.unsqueeze(0))).square().sum(-1)
            for part in inverse.split(rows)
        ]
        cost = torch.cat(squares).double()
        finite = torch.isfinite(cost)
        # pairs without a logarithm are worse than all others, and are skipped if they are chosen
        cost = torch.where(finite, cost, 10.0 * len(cost) * (1.0 + torch.where(finite, cost, 0.0).max()))
    return torch.as_tensor(linear_sum_assignment(cost.cpu().numpy())[1], device=data.device)
