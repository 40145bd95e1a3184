"""Networks that see how data were moved: the backbones of learned scores, and which one suits an action."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import singledispatch
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from trivgeo._torch import pytree
from trivgeo.actions import ImageWarp, OperatorAction, OperatorInput, PointCloud
from trivgeo.checks import check_choice, check_count
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import Action, PointAction
from trivgeo.inversion.domain import hull_points
from trivgeo.inversion.learned import LevelFeatures
from trivgeo.networks import Network

__all__ = ["ImageBackbone", "NoiseNetwork", "OperatorBackbone", "PointsBackbone", "backbone_for"]

Precision = Literal["float32", "bfloat16"]

_DIRECTIONS = 8
_CORNERS = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))
_SMALLEST_MAP = 7


class NoiseNetwork(Network):
    """The noise of the transformation of a datum, the backbone of a `LearnedScore`.

    Attributes:
        dim: of the group.
        finest: the noise level below which it does not see better, in units of the spread of the transformations.
    """

    dim: int
    finest: float = 0.01

    def reduced(self, x: Any) -> Any:
        """What the network reads of data with one batch dimension, see `LearnedScore`'s ``prepare``."""
        return x

    @abstractmethod
    def forward(self, y: Any, level: Float[Tensor, " b"]) -> Float[Tensor, "b d"]:
        """The noise in units of its size, see `LearnedScore`; in the dtype of the data, whatever the network's."""


class ImageBackbone(NoiseNetwork):
    """The noise of the transformation of an image: convolutions of stride 2, then linear layers, all told the level.

    There is no pooling to a mean and no normalisation: what is asked for is where things are.

    Args:
        dim: see `NoiseNetwork`.
        shape: channels, height and width of the images.
        channels: of the convolutions; the first is 5 x 5, the others 3 x 3. Default: as many of 32, 64, 64, ... as
            leave a map of at most seven by seven.
        width: of the hidden linear layers.
        precision: of the convolutions and the hidden layers; ``"bfloat16"`` takes half the time where the processor
            has instructions for it. It rounds to three digits, so that a change in the last digit of an image, as
            another batch size or an exported program make, may change its answers in the third.
        mean: of the values of each channel, subtracted; default 0.
        std: of the values of each channel, divided by; default 1.

    Raises:
        ConfigurationError: a number below one, an unknown precision, or nothing is left of the image after the
            convolutions.
    """

    finest = 0.1  # a pixel or so
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        dim: int,
        shape: Sequence[int],
        channels: Sequence[int] | None = None,
        width: int = 96,
        precision: Precision = "float32",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ConfigurationError(f"shape: expected channels, height and width, got {list(shape)}")
        self.dim = check_count("dim", dim)
        self.shape = tuple(check_count("shape", number) for number in shape)
        self.channels = _channels(self.shape) if channels is None else [check_count("channels", n) for n in channels]
        self.width = check_count("width", width)
        self.precision: Precision = check_choice("precision", precision, ("float32", "bfloat16"))
        if not self.channels:
            raise ConfigurationError("channels: expected at least one convolution, got none")
        most = min(self.shape[1:]).bit_length() - 1
        if channels is not None and len(self.channels) > most:
            raise ConfigurationError(
                f"channels: expected at most {most} convolutions on images of {self.shape[1]} x {self.shape[2]} "
                f"pixels, got {len(self.channels)}"
            )
        for name, values, default in (("mean", mean, 0.0), ("std", std, 1.0)):
            numbers = [default] * self.shape[0] if values is None else [float(value) for value in values]
            if len(numbers) != self.shape[0]:
                raise ConfigurationError(f"{name}: expected one number for each of {self.shape[0]} channels")
            self.register_buffer(name, torch.tensor(numbers).reshape(-1, 1, 1), persistent=False)
        self.features = LevelFeatures()
        level = 32
        self.level = nn.Sequential(nn.Linear(self.features.size, level), nn.SiLU())
        cells = math.prod(-(-side // 2 ** len(self.channels)) for side in self.shape[1:])
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3 if place else 5, 2, 1 if place else 2)
            for place, (a, b) in enumerate(itertools.pairwise([self.shape[0], *self.channels]))
        )
        self.modulations = nn.ModuleList(nn.Linear(level, 2 * b) for b in self.channels)
        self.first = nn.Linear(self.channels[-1] * cells + level, width)
        self.second = nn.Linear(width + level, width)
        self.last = nn.Linear(width, dim)

    @property
    def architecture(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {
            "dim": self.dim,
            "shape": list(self.shape),
            "channels": self.channels,
            "width": self.width,
            "precision": self.precision,
            "mean": self.mean.flatten().tolist(),
            "std": self.std.flatten().tolist(),
        }

    def forward(self, y: Float[Tensor, "b c h w"], level: Float[Tensor, " b"]) -> Float[Tensor, "b d"]:
        """The noise in units of its size.

        Raises:
            ShapeError: the images have another shape.
        """
        if tuple(y.shape[1:]) != self.shape:
            raise ShapeError(f"x: expected images [b, {', '.join(map(str, self.shape))}], got {list(y.shape)}")
        x, level = ((y.to(self.mean.dtype) - self.mean) / self.std), level.to(self.mean.dtype)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            e = self.level(self.features(level))
            h = x.contiguous(memory_format=torch.channels_last)
            for convolution, modulation in zip(self.convolutions, self.modulations, strict=True):
                scale, shift = modulation(e)[..., None, None].chunk(2, 1)
                h = functional.silu(convolution(h) * (1 + scale) + shift)
            h = functional.silu(self.first(torch.cat([h.flatten(1), e], 1)))
            h = functional.silu(self.second(torch.cat([h, e], 1)))
        return self.last(h.to(x.dtype)).to(y.dtype)


def _channels(shape: Sequence[int]) -> list[int]:
    """As many convolutions as leave a small map."""
    number = max(1, math.ceil(math.log2(min(shape[1:]) / _SMALLEST_MAP)))
    return [32, *[64] * (number - 1)]


class PointsBackbone(NoiseNetwork):
    r"""The noise of the transformation of a set of points ``[b, p, n]``, whatever their order and number.

    Two rounds of a perceptron on every point, each followed by mean and maximum over the points; the second round and
    the head see what the first has pooled. Mean and covariance of the points enter as they are and in units of the
    noise level, :math:`\mathrm{asinh}(\cdot / \sigma)`, so that small noise is seen as well as large.

    Args:
        dim: see `NoiseNetwork`.
        coordinates: n.
        width: of all layers.
        mean: of the coordinates of clean points, subtracted; default 0.
        std: of the coordinates, divided by; default 1.

    Raises:
        ConfigurationError: a number below one, or not one mean and deviation for each coordinate.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        dim: int,
        coordinates: int,
        width: int = 128,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.dim = check_count("dim", dim)
        self.coordinates = n = check_count("coordinates", coordinates)
        self.width = check_count("width", width)
        for name, values, default in (("mean", mean, 0.0), ("std", std, 1.0)):
            numbers = [default] * n if values is None else [float(value) for value in values]
            if len(numbers) != n:
                raise ConfigurationError(f"{name}: expected one number for each of {n} coordinates")
            self.register_buffer(name, torch.tensor(numbers), persistent=False)
        self.features = LevelFeatures()
        moments = n + n * n
        around = 2 * moments + self.features.size
        self.first = _perceptron(n + self.features.size, width, width)
        self.second = _perceptron(width + 2 * width + around, width, width)
        self.head = _perceptron(2 * width + 2 * width + around, width, dim)

    @property
    def architecture(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {
            "dim": self.dim,
            "coordinates": self.coordinates,
            "width": self.width,
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
        }

    def forward(self, y: Float[Tensor, "b p n"], level: Float[Tensor, " b"]) -> Float[Tensor, "b d"]:
        """The noise in units of its size.

        Raises:
            ShapeError: the points have another number of coordinates.
        """
        if y.ndim != 3 or y.shape[-1] != self.coordinates:
            raise ShapeError(f"x: expected points [b, p, {self.coordinates}], got {list(y.shape)}")
        x, level = (y.to(self.mean.dtype) - self.mean) / self.std, level.to(self.mean.dtype)
        points = x.shape[1]
        mean = x.mean(1)
        centred = x - mean.unsqueeze(1)
        covariance = centred.mT @ centred / points - torch.eye(self.coordinates, dtype=x.dtype, device=x.device)
        moments = torch.cat([mean, covariance.flatten(1)], 1)
        told = self.features(level)
        around = torch.cat([moments.asinh(), (moments / level.unsqueeze(1)).asinh(), told], 1)
        # far points would drown the others
        h = self.first(torch.cat([x.asinh(), told.unsqueeze(1).expand(-1, points, -1)], -1))
        once = _pooled(h)
        told = torch.cat([once, around], 1).unsqueeze(1).expand(-1, points, -1)
        twice = _pooled(self.second(torch.cat([functional.silu(h), told], -1)))
        return self.head(torch.cat([once, twice, around], 1)).to(y.dtype)


def _perceptron(size: int, width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, out))


def _pooled(h: Tensor) -> Tensor:
    """Mean and maximum over the points."""
    return torch.cat([h.mean(1), h.amax(1)], 1)


class OperatorReader:
    """Keeps of a problem a few points of its initial condition and the convex hull of its query points.

    Args:
        num_sensors: points of the initial condition, evenly chosen in their order.
    """

    def __init__(self, num_sensors: int) -> None:
        self.num_sensors = check_count("num_sensors", num_sensors)

    def __call__(self, x: OperatorInput) -> OperatorInput:
        """The smaller problem; symmetries that act projectively on (x, t) take hulls to hulls."""
        points = x.initial.shape[-2]
        chosen = torch.linspace(0, points - 1, self.num_sensors, device=x.initial.device).round().long()
        return OperatorInput(x.initial[..., chosen, :], hull_points(x.query))


class OperatorBackbone(NoiseNetwork):
    """The noise of the transformation of a problem with one x and one u: a perceptron on what `OperatorReader` kept.

    It reads how far the hull of the query points, the ends and the time of the initial line and the extremes of u
    are from those of the training domain, as they are and in units of the noise level, and u at the sensors. u is
    compressed by asinh, the query points are read through the support function of their hull.

    Args:
        dim: see `NoiseNetwork`.
        domain: the bounds of the training domain: x_min, x_max, t_min, t_max, u_min, u_max.
        num_sensors: points of the initial condition.
        width: of the hidden layers.
        depth: their number.

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
        angle = 2 * math.pi / _DIRECTIONS * torch.arange(_DIRECTIONS)
        self.register_buffer("directions", torch.stack([angle.cos(), angle.sin()]), persistent=False)
        self.register_buffer("box", torch.tensor(_CORNERS), persistent=False)
        self.features = LevelFeatures()
        deviations = _DIRECTIONS + 5
        size = 2 * deviations + num_sensors + self.features.size
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(size, width), nn.SiLU()]
            size = width
        self.layers = nn.Sequential(*layers, nn.Linear(size, dim))

    @property
    def architecture(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {
            "dim": self.dim,
            "domain": self.domain,
            "num_sensors": self.num_sensors,
            "width": self.width,
            "depth": self.depth,
        }

    def initialise(self, seed: int) -> None:
        """Draw the weights by the layers' own laws."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for layer in self.layers:
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()

    def reduced(self, x: OperatorInput) -> OperatorInput:
        """By `OperatorReader`."""
        return OperatorReader(self.num_sensors)(x)

    def forward(self, y: OperatorInput, level: Float[Tensor, " b"]) -> Float[Tensor, "b d"]:
        """The noise in units of its size.

        Args:
            y: what `OperatorReader` kept.
            level: the noise levels.
        """
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
        return self.layers(torch.cat([deviation, scaled, u, self.features(level)], -1)).to(y.initial.dtype)


@singledispatch
def backbone_for(action: Action, x: Any) -> NoiseNetwork:
    """A backbone that suits an action and clean data of it.

    Images have an `ImageBackbone`, points, jets and clouds a `PointsBackbone`, solution operators an
    `OperatorBackbone`, fields a `FieldBackbone`. For another kind of action register a function, or give a
    `LearnedInverter` a backbone.

    ```python
    @backbone_for.register
    def _(action: MyAction, x: Tensor) -> NoiseNetwork:
        return MyBackbone(action.group.dim, x.shape[-1])
    ```

    Args:
        action: on the data; fields are moved with the scale of its group, to see how far they go.
        x: see `LearnedScore.noisy`.

    Raises:
        ConfigurationError: no function is registered for this kind of action.
    """
    raise ConfigurationError(
        f"backbone: expected one for {type(action).__name__}; trivgeo knows those for images, points, fields and "
        "the inputs of solution operators of one x and one u"
    )


@backbone_for.register
def _(action: ImageWarp, x: Tensor) -> NoiseNetwork:
    action.check_data(x)
    flat = x.movedim(1, 0).flatten(1)
    return ImageBackbone(action.group.dim, x.shape[1:], mean=flat.mean(1).tolist(), std=_spread(flat).tolist())


@backbone_for.register(PointAction)
@backbone_for.register(PointCloud)
def _(action: PointAction | PointCloud, x: Tensor) -> NoiseNetwork:
    action.check_data(x)
    flat = x.movedim(-1, 0).flatten(1)
    return PointsBackbone(action.group.dim, x.shape[-1], mean=flat.mean(1).tolist(), std=_spread(flat).tolist())


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


def _spread(flat: Tensor) -> Tensor:
    """The standard deviation of each row; one where it is constant."""
    std = flat.std(1)
    return torch.where(std > 1e-6 * (1 + flat.mean(1).abs()), std, 1.0)


def leaves_length(x: Any) -> int:
    """How many data there are."""
    return len(pytree.tree_leaves(x)[0])
