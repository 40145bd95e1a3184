"""The backbone of a learned score for landmarks: points in an order that means something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.inversion.learned.level_features import LevelFeatures
from trivgeo.inversion.learned.noise_network import NoiseNetwork

__all__ = ["LandmarksBackbone"]


class LandmarksBackbone(NoiseNetwork):
    r"""The noise of the transformation of landmarks ``[b, p, n]``: of each datum the same p points in the same order.

    A perceptron of three hidden layers on all coordinates. What differs from the mean landmarks enters as it is and in
    units of the noise level, :math:`\mathrm{asinh}(\cdot / \sigma)`, so that small noise is seen as well as large.

    Args:
        dim: dimension of the group.
        shape: p and n.
        width: of all layers.
        mean: landmarks ``[p][n]`` of clean data on average, subtracted; default zeros.
        std: of the coordinates, ``[n]``, divided by; default 1.

    Raises:
        ConfigurationError: a number below one, or means and deviations of another shape.
    """

    mean: Tensor
    std: Tensor

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
        average = torch.zeros(points, coordinates) if mean is None else torch.tensor(mean)
        size = torch.ones(coordinates) if std is None else torch.tensor(std)
        for name, values, expected in (("mean", average, (points, coordinates)), ("std", size, (coordinates,))):
            if tuple(values.shape) != expected:
                raise ConfigurationError(f"{name}: expected numbers {list(expected)}, got {list(values.shape)}")
            self.register_buffer(name, values, persistent=False)
        self.features = LevelFeatures()
        inputs = 3 * points * coordinates + self.features.size
        layers: list[nn.Module] = []
        for size_in in (inputs, width, width):
            layers += [nn.Linear(size_in, width), nn.SiLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, dim))

    @property
    def architecture(self) -> dict[str, Any]:
        """Constructor arguments by name, which a file holds beside the weights."""
        return {
            "dim": self.dim,
            "shape": list(self.shape),
            "width": self.width,
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
        }

    def forward(self, y: Float[Tensor, "b p n"], level: Float[Tensor, " b"]) -> Float[Tensor, "b d"]:
        """Return the predicted noise in units of its size, ``[b, dim]``.

        Args:
            y: noised landmarks ``[b, p, n]``.
            level: noise levels ``[b]``.

        Raises:
            ShapeError: there are other numbers of points or coordinates than in the training.
        """
        return self.layers[-1](self.embed(y, level)).to(y.dtype)

    def embed(self, y: Float[Tensor, "b p n"], level: Float[Tensor, " b"]) -> Float[Tensor, "b f"]:
        """Return the inputs of the last layer, ``[b, f]``, by which unusual landmarks are recognised.

        Args:
            y: landmarks ``[b, p, n]``.
            level: noise levels ``[b]``.

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
