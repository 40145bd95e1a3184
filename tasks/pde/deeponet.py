"""DeepONet: a neural operator from an initial condition at fixed sensors to the solution at any point of space-time."""

import math
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from trivgeo.errors import ConfigurationError, ShapeError

from .domain import Domain
from .predictor import OperatorPredictor, SolutionOperator


class Jet(NamedTuple):
    """Value of a function of (x, t) and the derivatives that a second-order evolution equation needs.

    The four tensors share one shape. `xx` is the second derivative in x; `x` and `t` are first derivatives.
    """

    value: Tensor
    x: Tensor
    t: Tensor
    xx: Tensor


class TanhMLP(nn.Module):
    """Fully connected network: `depth` linear layers of `width` outputs each, with tanh between them.

    Args:
        in_features: number of inputs.
        width: number of outputs of every layer.
        depth: number of linear layers, at least 1.
        last_gain: factor of the last layer's initial weights.
        generator: source of the Glorot-normal initial weights; the global one when None. Biases start at zero.
    """

    def __init__(
        self,
        in_features: int,
        width: int,
        depth: int,
        *,
        last_gain: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sizes = [in_features, *([width] * depth)]
        layers = [nn.Linear(i, o) for i, o in pairwise(sizes)]
        for layer in layers:
            gain = last_gain if layer is layers[-1] else 1.0
            nn.init.xavier_normal_(layer.weight, gain=gain, generator=generator)
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(layers)

    def forward(self, inputs: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch width"]:
        """Evaluate the network."""
        first, *rest = self.layers
        hidden = first(inputs)
        for layer in rest:
            hidden = layer(torch.tanh(hidden))
        return hidden

    def forward_jet(self, inputs: Jet) -> Jet:
        """Evaluate the network and carry first and second derivatives along (Taylor mode).

        A linear layer maps each entry of the jet by itself; h = tanh(v) maps it by
        h_x = h' v_x, h_t = h' v_t, h_xx = h' v_xx + h'' v_x^2 with h' = 1 - h^2, h'' = -2 h h'.

        Args:
            inputs: jet of the inputs, entries `[*batch, n]`.

        Returns:
            Jet of the outputs, entries `[*batch, width]`. It costs about four plain evaluations.
        """
        first, *rest = self.layers
        jet = _linear_jet(first, inputs)
        for layer in rest:
            jet = _linear_jet(layer, tanh_jet(jet))
        return jet


class GatedMLP(nn.Module):
    r"""Fully connected tanh network whose hidden layers mix two encodings of the input.

    With U = tanh(A x), V = tanh(B x) and Z = tanh(W h) in each of the `depth - 1` hidden layers,
    h <- Z * U + (1 - Z) * V; the last layer is linear. Sifan Wang et al., "Improved architectures and training
    algorithms for deep operator networks", 2022.

    Args:
        in_features: number of inputs.
        width: see `TanhMLP`.
        depth: number of layers on the main path, at least 1.
        last_gain: see `TanhMLP`.
        generator: see `TanhMLP`.
    """

    def __init__(
        self,
        in_features: int,
        width: int,
        depth: int,
        *,
        last_gain: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.main = TanhMLP(in_features, width, depth, last_gain=last_gain, generator=generator)
        self.encoders = TanhMLP(in_features, 2 * width, 1, generator=generator)

    def forward(self, inputs: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch width"]:
        """Evaluate the network."""
        first, second = torch.tanh(self.encoders(inputs)).chunk(2, -1)
        difference, hidden = first - second, inputs
        *layers, last = self.main.layers
        for layer in layers:
            hidden = torch.addcmul(second, torch.tanh(layer(hidden)), difference)
        return last(hidden)

    def forward_jet(self, inputs: Jet) -> Jet:
        """Evaluate the network and carry derivatives along, as `TanhMLP.forward_jet`."""
        encoded = tanh_jet(self.encoders.forward_jet(inputs))
        first, second = (Jet(*parts) for parts in zip(*(e.chunk(2, -1) for e in encoded), strict=True))
        difference = Jet(*(a - b for a, b in zip(first, second, strict=True)))
        hidden = inputs
        *layers, last = self.main.layers
        for layer in layers:
            hidden = _multiply_add_jet(tanh_jet(_linear_jet(layer, hidden)), difference, second)
        return _linear_jet(last, hidden)


class PeriodicFeatures(nn.Module):
    """(x, t) scaled to [-1, 1] to (t, cos(pi k x), sin(pi k x)), k = 1, ..., harmonics: functions of period 2 in x.

    Args:
        harmonics: number of wave numbers, at least 1.
    """

    wave: Tensor

    def __init__(self, harmonics: int) -> None:
        super().__init__()
        self.out_features = 1 + 2 * harmonics
        self.register_buffer("wave", torch.arange(1.0, harmonics + 1), persistent=False)

    def forward(self, points: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch n"]:
        """The features."""
        phase = points[..., :1] * (math.pi * self.wave)
        return torch.cat([points[..., 1:], torch.cos(phase), torch.sin(phase)], -1)

    def forward_jet(self, points: Jet) -> Jet:
        """The features of points that are linear in x and t, with their derivatives."""
        wave = math.pi * self.wave
        phase, speed = points.value[..., :1] * wave, points.x[..., :1] * wave
        cos, sin = torch.cos(phase), torch.sin(phase)
        time, zero = points.value[..., 1:], torch.zeros_like(points.value[..., 1:])
        still = torch.zeros_like(phase)
        return Jet(
            torch.cat([time, cos, sin], -1),
            torch.cat([zero, -speed * sin, speed * cos], -1),
            torch.cat([points.t[..., 1:], still, still], -1),
            torch.cat([zero, -(speed**2) * cos, -(speed**2) * sin], -1),
        )


class PlainFeatures(nn.Module):
    """(x, t) as they are."""

    out_features = 2

    def forward(self, points: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """The points."""
        return points

    def forward_jet(self, points: Jet) -> Jet:
        """The points."""
        return points


class DeepONet(SolutionOperator):
    r"""Operator network u(u_0)(x, t) = u_scale (sum_k b_k(u_0 / u_scale) tau_k(x, t) + b_0).

    The branch b sees the initial condition at `num_sensors` fixed locations, the trunk tau the query point; inputs are
    scaled affinely inside (x and t to [-1, 1] over their training ranges), so queries are in the units of the equation
    and may lie outside the ranges. Lu Lu et al., "Learning nonlinear operators via DeepONet", 2021.

    Args:
        num_sensors: number of sensors of the initial condition.
        width: width of every layer of branch and trunk, and number of terms of the sum.
        depth: linear layers in the branch and in the trunk.
        x_range: interval of x that is scaled to [-1, 1].
        t_range: interval of t that is scaled to [-1, 1].
        u_scale: amplitude by which the initial condition is divided and the output multiplied.
        gated: `GatedMLP`s for branch and trunk instead of `TanhMLP`s.
        harmonics: the trunk sees this many harmonics of x, of period `x_range`, instead of x; 0 for x itself.
        generator: source of the initial weights; the global one when None.

    Raises:
        ConfigurationError: a size is not positive, a range is empty, or `u_scale` is not positive.
    """

    point_center: Tensor
    point_scale: Tensor

    def __init__(
        self,
        num_sensors: int = 200,
        width: int = 100,
        depth: int = 7,
        *,
        x_range: tuple[float, float] = (0.0, 2.0 * math.pi),
        t_range: tuple[float, float] = (0.0, 16.0),
        u_scale: float = 1.0,
        gated: bool = False,
        harmonics: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("num_sensors", num_sensors), ("width", width), ("depth", depth)):
            if size < 1:
                raise ConfigurationError(f"{name}: expected at least 1, got {size}")
        for name, (low, high) in (("x_range", x_range), ("t_range", t_range)):
            if not low < high:
                raise ConfigurationError(f"{name}: expected an interval low < high, got ({low}, {high})")
        if not u_scale > 0:
            raise ConfigurationError(f"u_scale: expected a positive number, got {u_scale}")
        if harmonics < 0:
            raise ConfigurationError(f"harmonics: expected at least 0, got {harmonics}")
        self.num_sensors = num_sensors
        self.width = width
        self.depth = depth
        self.x_range = (float(x_range[0]), float(x_range[1]))
        self.t_range = (float(t_range[0]), float(t_range[1]))
        self.u_scale = float(u_scale)
        self.gated = gated
        self.harmonics = harmonics
        network = GatedMLP if gated else TanhMLP
        self.features = PeriodicFeatures(harmonics) if harmonics else PlainFeatures()
        self.branch = network(num_sensors, width, depth, generator=generator)
        # the gain brings the sum of `width` terms to order one at the start
        self.trunk = network(self.features.out_features, width, depth, last_gain=width**-0.5, generator=generator)
        self.bias = nn.Parameter(torch.zeros(()))
        # derived from the architecture, so not part of the state that is saved
        ranges = torch.tensor([self.x_range, self.t_range])
        self.register_buffer("point_center", ranges.mean(dim=1), persistent=False)
        self.register_buffer("point_scale", 2.0 / (ranges[:, 1] - ranges[:, 0]), persistent=False)

    @property
    def architecture(self) -> dict[str, Any]:
        """Constructor arguments that rebuild a network of this shape (plain types)."""
        return {
            "num_sensors": self.num_sensors,
            "width": self.width,
            "depth": self.depth,
            "x_range": list(self.x_range),
            "t_range": list(self.t_range),
            "u_scale": self.u_scale,
            "gated": self.gated,
            "harmonics": self.harmonics,
        }

    def predictor(self, domain: Domain) -> OperatorPredictor:
        """The network at its sensors."""
        return OperatorPredictor(self, domain.sensors(self.num_sensors, dtype=torch.float64))

    def forward(
        self, sensors: Float[Tensor, "*#batch m"], points: Float[Tensor, "*#batch q 2"]
    ) -> Float[Tensor, "... q"]:
        """Predict the solution at the query points.

        Args:
            sensors: initial condition at the sensors, `[*batch, num_sensors]`.
            points: query points (x, t), `[*batch, q, 2]`; batch dimensions broadcast against those of `sensors`, and
                points `[q, 2]` shared by the batch go through the trunk once.

        Returns:
            u at the points, `[*batch, q]`.

        Raises:
            ShapeError: the last dimensions are not as above or the batches do not broadcast.
        """
        self._check(sensors, points)
        trunk = self.trunk(self.features((points - self.point_center) * self.point_scale))
        return self._combine(self._branch(sensors), trunk) + self.u_scale * self.bias

    def forward_jet(self, sensors: Float[Tensor, "*#batch m"], points: Float[Tensor, "*#batch q 2"]) -> Jet:
        """Predict the solution and its derivatives u_x, u_t, u_xx at the query points, by Taylor mode.

        Args:
            sensors: as in `forward`.
            points: as in `forward`.

        Returns:
            Jet with entries `[*batch, q]`, differentiable in the parameters by reverse mode.

        Raises:
            ShapeError: as in `forward`.
        """
        self._check(sensors, points)
        scaled = (points - self.point_center) * self.point_scale
        scale_x, scale_t = torch.diag(self.point_scale)
        inputs = Jet(scaled, scale_x.expand_as(scaled), scale_t.expand_as(scaled), torch.zeros_like(scaled))
        branch = self._branch(sensors)
        value, *derivatives = (
            self._combine(branch, tau) for tau in self.trunk.forward_jet(self.features.forward_jet(inputs))
        )
        return Jet(value + self.u_scale * self.bias, *derivatives)

    def _branch(self, sensors: Tensor) -> Tensor:
        return self.u_scale * self.branch(sensors / self.u_scale)

    @staticmethod
    def _combine(branch: Tensor, trunk: Tensor) -> Tensor:
        if trunk.ndim == 2:
            return branch @ trunk.mT
        return (trunk @ branch.unsqueeze(-1)).squeeze(-1)

    def _check(self, sensors: Tensor, points: Tensor) -> None:
        if sensors.ndim < 1 or sensors.shape[-1] != self.num_sensors:
            raise ShapeError(f"expected sensors [*batch, {self.num_sensors}], got {list(sensors.shape)}")
        if points.ndim < 2 or points.shape[-1] != 2:
            raise ShapeError(f"expected points [*batch, q, 2], got {list(points.shape)}")
        try:
            torch.broadcast_shapes(sensors.shape[:-1], points.shape[:-2])
        except RuntimeError as error:
            raise ShapeError(
                f"expected sensors and points that broadcast, got {list(sensors.shape)} and {list(points.shape)}"
            ) from error


def _linear_jet(layer: nn.Module, jet: Jet) -> Jet:
    weight = cast(Tensor, layer.weight)
    return Jet(layer(jet.value), F.linear(jet.x, weight), F.linear(jet.t, weight), F.linear(jet.xx, weight))


def tanh_jet(jet: Jet) -> Jet:
    """Jet of tanh."""
    h = torch.tanh(jet.value)
    slope = 1.0 - h * h
    h_x = slope * jet.x
    return Jet(h, h_x, slope * jet.t, slope * jet.xx - 2.0 * h * (h_x * jet.x))


def _multiply_add_jet(a: Jet, b: Jet, c: Jet) -> Jet:
    """Jet of a b + c."""
    return Jet(
        torch.addcmul(c.value, a.value, b.value),
        c.x + a.x * b.value + a.value * b.x,
        c.t + a.t * b.value + a.value * b.t,
        c.xx + a.xx * b.value + 2.0 * (a.x * b.x) + a.value * b.xx,
    )
