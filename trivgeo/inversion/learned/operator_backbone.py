"""The backbone of a learned score for inputs of solution operators."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.energies.domain_distance import hull_points
from trivgeo.inversion.learned.backbone import FeatureNetwork, LevelFeatures, NoiseNetwork, backbone_for

_NUM_DIRECTIONS = 8  # directions of the support function of the query points
_CORNERS = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))


class OperatorReader:
    """Reduces a problem to evenly chosen points of its initial condition and the convex hull of its query points."""

    def __init__(self, num_sensors: int) -> None:
        self.num_sensors = check_count("num_sensors", num_sensors)

    def __call__(self, x: OperatorInput) -> OperatorInput:
        """Return the smaller problem; symmetries that act projectively on (x, t) take hulls to hulls."""
        points = x.initial.shape[-2]
        chosen = torch.linspace(0, points - 1, self.num_sensors, device=x.initial.device).round().long()
        return OperatorInput(x.initial[..., chosen, :], hull_points(x.query))


@checked
class OperatorBackbone(FeatureNetwork):
    """The noise of the transformation of a problem with one x and one u: a perceptron on what `OperatorReader` kept.

    It reads how far the hull of the query points, the ends and the time of the initial line and the extremes of u
    are from those of the training domain, as they are and in units of the noise level, and u at the sensors. u is
    compressed by asinh, the query points are read through the support function of their hull.

    Args:
        dim: dimension of the group.
        domain: the bounds of the training domain: x_min, x_max, t_min, t_max, u_min, u_max.
        num_sensors: number of points of the initial condition.
        width: width of the hidden layers.
        depth: number of hidden layers.

    Raises:
        ConfigurationError: a count below one, or not six rising bounds.
    """

    finest = 0.001
    directions: Tensor
    box: Tensor

    def __init__(
        self, dim: int, domain: Sequence[float], num_sensors: int = 16, width: int = 128, depth: int = 3
    ) -> None:
        super().__init__()
        if len(domain) != 6 or not all(low < high for low, high in zip(domain[::2], domain[1::2], strict=True)):
            raise ConfigurationError(f"domain: expected x_min, x_max, t_min, t_max, u_min, u_max, got {list(domain)}")
        self.dim = check_count("dim", dim)
        self.domain = [float(bound) for bound in domain]
        self.num_sensors = check_count("num_sensors", num_sensors)
        self.width = check_count("width", width)
        self.depth = check_count("depth", depth)
        angle = 2 * math.pi / _NUM_DIRECTIONS * torch.arange(_NUM_DIRECTIONS)
        self.register_buffer("directions", torch.stack([angle.cos(), angle.sin()]), persistent=False)
        self.register_buffer("box", torch.tensor(_CORNERS), persistent=False)
        self.features = LevelFeatures()
        deviations = _NUM_DIRECTIONS + 5
        size = 2 * deviations + num_sensors + self.features.size
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(size, width), nn.SiLU()]
            size = width
        self.layers = nn.Sequential(*layers, nn.Linear(size, dim))

    def initialise(self, seed: int) -> None:
        """Draw all weights in place by the layers' own distributions, from a generator with this ``seed``."""
        layers = copy.deepcopy(self.layers).cpu()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            for layer in layers:
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        self.layers.load_state_dict(layers.state_dict())

    def reduced(self, x: OperatorInput) -> OperatorInput:
        """Return the sensors of inputs x by `OperatorReader`."""
        return OperatorReader(self.num_sensors)(x)

    @property
    def last_layer(self) -> nn.Module:
        return self.layers[-1]

    def embed(self, y: OperatorInput, level: Float[Tensor, " b"]) -> Float[Tensor, "b f"]:
        dtype = self.box.dtype
        initial, query, level = y.initial.to(dtype), y.query.to(dtype), level.to(dtype)
        x_min, x_max, t_min, t_max, u_min, u_max = self.domain
        origin = query.new_tensor([x_min, t_min])
        sides = query.new_tensor([x_max - x_min, t_max - t_min])
        hull = ((query - origin) / sides @ self.directions).amax(1) - (self.box @ self.directions).amax(0)
        place = (initial[..., :2] - origin) / sides
        line = torch.stack([place[..., 0].amin(1), place[..., 0].amax(1) - 1.0, place[..., 1].mean(1)], -1)
        u = torch.asinh(2.0 / u_max * initial[..., 2])
        low, high = (math.asinh(2.0 * bound / u_max) for bound in (u_min, u_max))
        range_ = torch.stack([u.amin(1) - low, u.amax(1) - high], -1)
        deviation = torch.asinh(4.0 * torch.cat([hull, line, range_], -1))
        scaled = torch.asinh(deviation / level.unsqueeze(-1))
        return self.layers[:-1](torch.cat([deviation, scaled, u, self.features(level)], -1))


@backbone_for.register
def _(action: OperatorAction, x: OperatorInput) -> NoiseNetwork:
    action.check_data(x)
    if (x.query.shape[-1], x.initial.shape[-1]) != (2, 3):
        raise ConfigurationError(
            f"backbone: expected one for problems with {x.query.shape[-1] - 1} x and "
            f"{x.initial.shape[-1] - x.query.shape[-1]} u; trivgeo has one for one x and one u"
        )
    points = torch.cat([x.query.reshape(-1, 2), x.initial[..., :2].reshape(-1, 2)])
    u = x.initial[..., 2]
    ends = [f(v) for v in (*points.unbind(-1), u) for f in (torch.amin, torch.amax)]
    return OperatorBackbone(action.group.dim, [float(end) for end in ends])
