"""Networks of poses that read a picture in the frame of the body."""

import itertools
import math

import torch
from torch import Tensor, nn

from trivgeo.checks import check_count
from trivgeo.generative.group_network import ResidualBlock

_NUM_LEVEL_WAVES = 16
_LEVEL_OFFSET = 0.01  # added to the level that divides predicted displacements, so that velocities stay finite
_NUM_GRID_POINTS = 2000  # points of the sphere at which polynomials are made orthonormal
_GOLDEN_ANGLE = math.pi * (3.0 - math.sqrt(5.0))


class PictureEncoder(nn.Module):
    """Functions on the sphere, and further features, from pictures by strided convolutions, `[b, features]`.

    Args:
        features: how many, see `BodyFrameNetwork.num_features`.
        size: pixels along a side, a multiple of eight.
        channels: number of channels of the last convolution.
        width: width of the layer after the convolutions.
    """

    def __init__(self, features: int, size: int = 32, channels: int = 128, width: int = 512) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise([1, channels // 4, channels // 2, channels]):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.GroupNorm(4, outputs), nn.SiLU()]
        flat = channels * (size // 8) ** 2
        layers += [nn.Flatten(), nn.Linear(flat, width), nn.SiLU(), nn.Linear(width, features)]
        self.layers = nn.Sequential(*layers)

    def forward(self, pictures: Tensor) -> Tensor:
        """Features of pictures `[b, 1, size, size]`."""
        return self.layers(pictures - 0.3)


class BodyFrameNetwork(nn.Module):
    r"""A network of rotations g whose features are functions f on the sphere: it sees f(g p) at fixed points p.

    The same turn of the picture and of the pose leaves all f(g p) alone, if the functions turn with the picture: what
    remains to be learned is a function of the pose relative to the picture. The functions are polynomials, whose
    degree is at least that of the first one with the symmetry of the body: 3 for a tetrahedron, 4 for a cube, 6 for an
    icosahedron. The prediction is a velocity and a displacement over the level. Velocities of a flow are displacements
    over their share of the path. As poses fill the group, levels are these shares up to a few hundredths.

    Args:
        functions: on the sphere.
        degree: largest degree of the polynomials.
        points: points of the body.
        context: further features of a picture.
        width: width of the layers.
        depth: number of residual blocks.
    """

    def __init__(
        self, functions: int = 8, degree: int = 6, points: int = 48, context: int = 64, width: int = 256, depth: int = 3
    ) -> None:
        super().__init__()
        self.functions, self.context, self.degree = check_count("functions", functions), context, degree
        self.powers = [p for p in itertools.product(range(degree + 1), repeat=3) if sum(p) in (degree - 1, degree)]
        grid = self._monomials(_sphere_points(_NUM_GRID_POINTS))
        factor = torch.linalg.cholesky(grid @ grid.T / _NUM_GRID_POINTS)
        basis = torch.linalg.inv(factor).T  # from monomials to orthonormal polynomials
        self.register_buffer("basis", basis.float(), persistent=False)
        self.register_buffer("points", _sphere_points(points).float(), persistent=False)
        self.basis: Tensor
        self.points: Tensor
        self.first = nn.Linear(functions * points, width)
        self.level = nn.Sequential(nn.Linear(2 * _NUM_LEVEL_WAVES + 2 + context, width), nn.SiLU())
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(depth))
        self.last = nn.Linear(width, 6)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    @property
    def num_features(self) -> int:
        """Features of a picture that the network takes."""
        return self.functions * len(self.powers) + self.context

    def forward(self, g: Tensor, t: Tensor, features: Tensor) -> Tensor:
        """Left-trivialized velocities `[*batch, 3]` of rotations `[*batch, 3, 3]` at levels `[*batch]`."""
        coefficients, context = features.split([self.functions * len(self.powers), self.context], -1)
        coefficients = coefficients.unflatten(-1, (self.functions, -1)) @ self.basis.T
        values = (coefficients @ self._monomials(g @ self.points)).flatten(-2)
        order = math.pi * torch.arange(1, _NUM_LEVEL_WAVES + 1, dtype=t.dtype, device=t.device)
        time = t.unsqueeze(-1)
        wave = order * time
        embedded = self.level(torch.cat([wave.sin(), wave.cos(), time, (time + _LEVEL_OFFSET).log(), context], -1))
        hidden = self.first(values)
        for block in self.blocks:
            hidden = block(hidden, embedded)
        velocity, displacement = self.last(hidden).split(3, -1)
        return velocity + displacement / (time + _LEVEL_OFFSET)

    def _monomials(self, points: Tensor) -> Tensor:
        """Monomials of the two highest degrees at points, `[*batch, m, n]` for `[*batch, 3, n]`."""
        tables = [[torch.ones_like(x), x] for x in points.unbind(-2)]
        for table in tables:
            for _ in range(self.degree - 1):
                table.append(table[-1] * table[1])
        x, y, z = tables
        return torch.stack([x[i] * y[j] * z[k] for i, j, k in self.powers], -2)


def _sphere_points(count: int) -> Tensor:
    """Points spread evenly over the sphere, `[3, count]`, on a spiral."""
    height = 1.0 - (2.0 * torch.arange(count).double() + 1.0) / count
    angle = _GOLDEN_ANGLE * torch.arange(count).double()
    radius = (1.0 - height.square()).sqrt()
    return torch.stack([radius * angle.cos(), radius * angle.sin(), height])
