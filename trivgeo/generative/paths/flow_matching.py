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
from trivgeo.generative.distribution_fitting import fit_base_distribution
from trivgeo.generative.distributions import GroupDistribution
from trivgeo.generative.paths.base import Coupling, Network, ProbabilityPath, TrainingBatch
from trivgeo.generative.paths.noising import stratified
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.schedule import ConstantSchedule
from trivgeo.sde.processes.trivialized import TrivializedSDE

PathT = TypeVar("PathT", bound="FlowMatchingPath")

_MAX_PAIR_ENTRIES = 2**24  # entries of the elements of all pairs at once
_MAX_NEIGHBOUR_QUERIES = 1024  # data whose nearest neighbours are sought
_NEIGHBOUR_SHARE = 0.05  # share of the data that are nearer to each other than the path resolves
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
    data, of which a velocity has the weight :math:`da / a` (Song et al. 2021b). A constant speed, :math:`a = t`, has
    the resolution infinity.

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
        cls, group: LieGroup, data: Tensor, generator: torch.Generator | None
    ) -> tuple[dict[str, Any], GroupDistribution]:
        """Fit the base distribution to the data; measure the speed of the geodesics, and how near data are."""
        base = cls.fit_base(group, data)
        settings = cls.fit_bridge(group, data, base, generator)
        near = nearest_distances(group, data).quantile(_NEIGHBOUR_SHARE) / math.sqrt(group.dim)
        resolution = min(1.0, max(_MIN_RESOLUTION, float(near) / settings["speed"]))
        return {**settings, "resolution": resolution}, base

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
        """
        level = stratified(len(data), data, generator)
        drawn = self.base.sample(len(data), generator)
        if callable(self.coupling):
            drawn = self.coupling(data, drawn)
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


def nearest_distances(group: LieGroup, data: Tensor) -> Tensor:
    """Distances of some of the data to the nearest others, copies left out, ``[k]``; infinity for one datum alone.

    Neighbours are nearest by their entries, of angles by cosines and sines, and distances are lengths of logarithms.

    Args:
        data: elements ``[m, *element_shape]``.
    """
    data = torch.unique(data, dim=0)
    if len(data) < 2:
        return data.new_full((1,), math.inf)
    periods = group._periods().flatten().to(data)
    flat = data.flatten(1)
    angles = flat[:, periods > 0] * (2.0 * math.pi / periods[periods > 0])
    entries = torch.cat([flat[:, ~(periods > 0)], angles.cos(), angles.sin()], -1)
    some = torch.linspace(0, len(data) - 1, min(len(data), _MAX_NEIGHBOUR_QUERIES), device=data.device).long()
    nearest = []
    for rows in some.split(max(1, _MAX_PAIR_ENTRIES // len(data))):
        gaps = torch.cdist(entries[rows], entries)
        nearest.append(gaps.scatter(1, rows.unsqueeze(-1), math.inf).argmin(1))
    found = group.log(group.compose(group.inverse(data[some]), data[torch.cat(nearest)])).norm(dim=-1)
    return torch.where(torch.isfinite(found), found, math.inf)


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
