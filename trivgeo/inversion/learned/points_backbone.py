"""Backbones of learned scores for points: landmarks in a fixed order, and sets in any."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from trivgeo._autocast import matmul
from trivgeo.actions import PointCloud
from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import PointAction
from trivgeo.inversion.learned.backbone import FeatureNetwork, LevelFeatures, NoiseNetwork, _spread, backbone_for

_MIN_CLOUDS = 16  # clouds that are enough to tell an order
_MAX_LANDMARK_VARIANCE = 0.5  # variance about the mean landmarks, as a share of the variance of all points


@checked
class LandmarksBackbone(FeatureNetwork):
    r"""The noise of the transformation of landmarks ``[b, p, n]``: of each datum the same p points in the same order.

    A perceptron of three hidden layers on all coordinates. Differences from the mean landmarks enter as they are and in
    units of the noise level, :math:`\mathrm{asinh}(\cdot / \sigma)`, so that small noise is seen as well as large.

    Args:
        dim: dimension of the group.
        shape: p and n.
        width: width of all layers.
        mean: mean landmarks ``[p][n]`` of clean data, subtracted; default zeros.
        std: standard deviations of the coordinates, ``[n]``, divided by; default 1.

    Raises:
        ConfigurationError: a number below one, or means and deviations of another shape.
    """

    def __init__(
        self,
        dim: int,
        shape: Sequence[int],
        width: int = 256,
        mean: Sequence[Sequence[float]] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if len(shape) != 2:
            raise ConfigurationError(f"shape: expected the numbers of points and of coordinates, got {list(shape)}")
        self.dim = check_count("dim", dim)
        self.shape = points, coordinates = tuple(check_count("shape", number) for number in shape)
        self.width = check_count("width", width)
        self.register_units(((points, coordinates), (coordinates,)), mean, std)
        self.features = LevelFeatures()
        inputs = 3 * points * coordinates + self.features.size
        layers: list[nn.Module] = []
        for size_in in (inputs, width, width):
            layers += [nn.Linear(size_in, width), nn.SiLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, dim))

    @property
    def last_layer(self) -> nn.Module:
        return self.layers[-1]

    def embed(self, y: Float[Tensor, "b p n"], level: Float[Tensor, " b"]) -> Float[Tensor, "b f"]:
        """Return the inputs of the last layer, ``[b, f]``, by which unusual landmarks are recognised.

        Raises:
            ShapeError: there are other numbers of points or coordinates than in the training.
        """
        if tuple(y.shape[1:]) != self.shape:
            raise ShapeError(f"x: expected landmarks [b, {self.shape[0]}, {self.shape[1]}], got {list(y.shape)}")
        level = level.to(self.mean.dtype)
        off = ((y.to(self.mean.dtype) - self.mean) / self.std).flatten(1)
        place = (y.to(self.mean.dtype) / self.std).flatten(1).asinh()
        inputs = [place, off.asinh(), (off / level.unsqueeze(1)).asinh(), self.features(level)]
        return self.layers[:-1](torch.cat(inputs, 1))


@checked
class PointsBackbone(FeatureNetwork):
    r"""The noise of the transformation of a set of points ``[b, p, n]``, whatever their order and number.

    Two rounds of a perceptron on every point, each followed by mean and maximum over the points; the second round and
    the head see what the first has pooled. Mean and covariance of the points enter as they are and in units of the
    noise level, :math:`\mathrm{asinh}(\cdot / \sigma)`, so that small noise is seen as well as large.

    Args:
        dim: dimension of the group.
        coordinates: n.
        width: width of all layers.
        mean: mean of each coordinate of clean points, subtracted; default 0.
        std: standard deviation of each coordinate, divided by; default 1.

    Raises:
        ConfigurationError: a number below one, or not one mean and deviation for each coordinate.
    """

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
        self.register_units(((n,), (n,)), mean, std)
        self.features = LevelFeatures()
        moments = n + n * n
        around = 2 * moments + self.features.size
        self.first = _perceptron(n + self.features.size, width, width)
        self.second = _perceptron(width + 2 * width + around, width, width)
        self.head = _perceptron(2 * width + 2 * width + around, width, dim)

    @property
    def last_layer(self) -> nn.Module:
        return self.head[-1]

    def embed(self, y: Float[Tensor, "b p n"], level: Float[Tensor, " b"]) -> Float[Tensor, "b f"]:
        """Return the inputs of the last layer, ``[b, f]``, by which unusual points are recognised.

        Raises:
            ShapeError: the points have another number of coordinates than in the training.
        """
        if y.ndim != 3 or y.shape[-1] != self.coordinates:
            raise ShapeError(f"x: expected points [b, p, {self.coordinates}], got {list(y.shape)}")
        x, level = (y.to(self.mean.dtype) - self.mean) / self.std, level.to(self.mean.dtype)
        points = x.shape[1]
        mean = x.mean(1)
        centred = x - mean.unsqueeze(1)
        covariance = matmul(centred.mT, centred) / points - torch.eye(self.coordinates, dtype=x.dtype, device=x.device)
        moments = torch.cat([mean, covariance.flatten(1)], 1)
        told = self.features(level)
        around = torch.cat([moments.asinh(), (moments / level.unsqueeze(1)).asinh(), told], 1)
        # far points would dominate the others
        h = self.first(torch.cat([x.asinh(), told.unsqueeze(1).expand(-1, points, -1)], -1))
        once = _pooled(h)
        told = torch.cat([once, around], 1).unsqueeze(1).expand(-1, points, -1)
        twice = _pooled(self.second(torch.cat([functional.silu(h), told], -1)))
        return self.head[:-1](torch.cat([once, twice, around], 1))


def _perceptron(size: int, width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, out))


def _pooled(h: Tensor) -> Tensor:
    """Return mean and maximum over the points."""
    return torch.cat([h.mean(1), h.amax(1)], 1)


@backbone_for.register(PointAction)
@backbone_for.register(PointCloud)
def _(action: PointAction | PointCloud, x: Tensor) -> NoiseNetwork:
    """Return a `LandmarksBackbone` where a point's index says more of its place than its cloud does."""
    action.check_data(x)
    flat = x.movedim(-1, 0).flatten(1)
    mean, std = flat.mean(1), _spread(flat)
    if x.ndim == 3 and len(x) >= _MIN_CLOUDS:
        average = x.mean(0)
        within = (x - average).square().mean()
        if float(within) < _MAX_LANDMARK_VARIANCE * float((x - mean).square().mean()):
            return LandmarksBackbone(action.group.dim, x.shape[1:], mean=average.tolist(), std=std.tolist())
    return PointsBackbone(action.group.dim, x.shape[-1], mean=mean.tolist(), std=std.tolist())
