r"""Generative models of points of homogeneous spaces: spheres, frames, subspaces, positive definite matrices.

A space M = G / H is the quotient of a group that moves it, by the subgroup that leaves one point alone. A vector field
on M lifts to G: at g its left-trivialized vector is the pull-back of an ambient vector Y by the projection :math:`\pi:
G \to M`,

.. math:: v_i(g) = \frac{d}{ds} \langle Y(\pi(g), t), \pi(g \exp(s e_i)) \rangle.

Y depends on the point alone, so :math:`v(g h) = \mathrm{Ad}_{h^{-1}} v(g)` for h in H, and the flow on G moves whole
fibres. The density of the model on G is therefore constant along fibres, and is the density on M: no average over lifts
is left to be estimated.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._numerics import Constant
from trivgeo.checks import check_choice, check_count, check_seed, check_tensor, check_values, checked
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.generative.fitted import SavedModel
from trivgeo.generative.group_network import ResidualNetwork
from trivgeo.generative.history import TrainingHistory
from trivgeo.generative.model import GroupDiffusion
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.groups import SO, LieGroup, MatrixGroup
from trivgeo.groups.homogeneous import (
    grassmann_from_rotation,
    grassmann_to_rotation,
    spd_from_linear,
    sphere_from_rotation,
    sphere_to_rotation,
    stiefel_from_rotation,
    stiefel_to_rotation,
)
from trivgeo.groups.matrix import matrix_units
from trivgeo.groups.orthogonal import aligning_rotation, log_sphere_area

__all__ = ["Grassmann", "HomogeneousSpace", "PositiveDefinite", "SpaceDiffusion", "Sphere", "Stiefel"]

_MAX_FREQUENCY = 1024.0  # of input features of a network, in waves a length of two pi
_NUM_SPREAD_LEVELS = 65  # levels of a path at which a network knows distances from the data
_MAX_POINT_ERROR = 0.01  # largest distance of an entry from the nearest point, over the largest entry


class HomogeneousSpace(ABC):
    """A space of points that a group moves.

    Attributes:
        group: the group.
        dim: dimension of the space.
        point_shape: shape of a point.
    """

    group: LieGroup
    dim: int
    point_shape: tuple[int, ...]
    _sizes: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self._sizes))})"

    @abstractmethod
    def lift(self, points: Tensor) -> Tensor:
        """Return one element ``[*batch, *element_shape]`` that takes the base point to each of ``points``, or NaN."""

    @abstractmethod
    def project(self, g: Tensor) -> Tensor:
        """Return the points ``[*batch, *point_shape]`` to which elements g take the base point."""

    def pull_back(self, g: Tensor, y: Tensor) -> Float[Tensor, "*batch n"]:
        """Return the left-trivialized vectors at g that belong to ambient vectors y ``[*batch, *point_shape]``.

        Raises:
            NotImplementedError: the space has no fibres, and needs none.
        """
        raise NotImplementedError

    def align(self, g: Tensor, h: Tensor) -> Tensor:
        """Return elements that project to the same points as h, and are near g within their fibres; by default h."""
        return h

    @property
    def has_fibres(self) -> bool:
        """False if each point is taken to by one element of the group."""
        return True

    @abstractmethod
    def log_measure(self, points: Tensor, measure: str) -> Tensor:
        """Return the log-density ``[*batch]`` of a measure for the one that Haar measure of the group projects to.

        Args:
            points: points ``[*batch, *point_shape]``.
            measure: "haar" or "volume".
        """

    def check_points(self, points: Any, name: str = "points") -> Tensor:
        """Return points if they are points of the space up to a hundredth of their largest entry.

        Args:
            points: points ``[*batch, *point_shape]``.
            name: what messages call them.

        Raises:
            ShapeError: they have another shape.
            NonFiniteError: they hold NaN or infinity.
            DomainError: they are no points of the space.
            ConfigurationError: they are no tensor of float32 or float64, or their values cannot be read, as under
                `torch.func.vmap`.
        """
        points = check_tensor(name, points)
        if torch.finfo(points.dtype).bits < 32:
            raise ConfigurationError(f"{name}: expected float32 or float64, got {points.dtype}")
        rank = len(self.point_shape)
        if points.ndim < rank or tuple(points.shape[points.ndim - rank :]) != self.point_shape:
            shape = ", ".join(map(str, self.point_shape))
            raise ShapeError(f"{name}: expected points [*batch, {shape}] of {self!r}, got {list(points.shape)}")
        if not bool(torch.isfinite(check_values(name, points)).all()):
            raise NonFiniteError(f"{name}: expected finite numbers, got NaN or infinity")
        with torch.no_grad():
            flat = points.flatten(-rank)
            gap = (self.project(self.lift(points)).flatten(-rank) - flat).abs().amax(-1)
            is_point = gap <= _MAX_POINT_ERROR * flat.abs().amax(-1)
        if not bool(is_point.all()):
            count = int((~is_point).sum())
            raise DomainError(f"{name}: expected points of {self!r}, got {count} rows that are none")
        return points


class _RotationSpace(HomogeneousSpace):
    """SO(n) over the rotations that leave the span of the first k columns alone, and perhaps each of them."""

    def __init__(self, n: int, k: int) -> None:
        self._n, self._k = n, k
        self.group: SO = SO(n)
        self._units = Constant(self.group.hat(torch.eye(self.group.dim, dtype=torch.float64)))

    def _coordinates(self, matrix: Tensor) -> Tensor:
        """The products of matrices ``[*batch, n, n]`` with the basis of the algebra, ``[*batch, dim]``."""
        return matrix.flatten(-2) @ self._units.matching(matrix).flatten(1).mT

    def _log_volume(self) -> float:
        """The volume of the space, where each rotation by one radian in a plane has length one."""
        return sum(log_sphere_area(j) for j in range(self._n - self._k + 1, self._n + 1))

    def log_measure(self, points: Tensor, measure: str) -> Tensor:
        is_volume = check_choice("measure", measure, ("haar", "volume")) == "volume"
        return points.new_full(points.shape[: points.ndim - len(self.point_shape)], is_volume * self._log_volume())

    def align(self, g: Tensor, h: Tensor) -> Tensor:
        k = self._k
        relative = g.mT @ h
        return torch.cat([h[..., :k], h[..., k:] @ aligning_rotation(relative[..., k:, k:])[0].mT], -1)


@checked
class Sphere(_RotationSpace):
    r"""The unit sphere S^n in R^(n+1), SO(n + 1) over SO(n). Its "volume" is the area.

    Args:
        n: dimension of the sphere, at most 44.
    """

    def __init__(self, n: int) -> None:
        super().__init__(check_count("n", n) + 1, 1)
        self.n, self.dim, self._sizes = n, n, (n,)
        self.point_shape = (n + 1,)

    def lift(self, points: Tensor) -> Tensor:
        return sphere_to_rotation(points, torch.Generator(points.device).manual_seed(0))

    def project(self, g: Tensor) -> Tensor:
        return sphere_from_rotation(g)

    def pull_back(self, g: Tensor, y: Tensor) -> Tensor:
        pulled = (g.mT @ y.unsqueeze(-1)).squeeze(-1)
        return self._coordinates(nn.functional.pad(pulled.unsqueeze(-1), (0, self._n - 1)))


@checked
class Stiefel(_RotationSpace):
    r"""Orthonormal frames of k vectors in R^n, ``[*batch, n, k]``, SO(n) over SO(n - k); k is less than n.

    Args:
        n: dimension of the vectors.
        k: number of vectors.
    """

    def __init__(self, n: int, k: int) -> None:
        _check_part(n, k)
        super().__init__(n, k)
        self.n, self.k, self._sizes = n, k, (n, k)
        self.dim = n * k - k * (k + 1) // 2
        self.point_shape = (n, k)

    def lift(self, points: Tensor) -> Tensor:
        return stiefel_to_rotation(points, torch.Generator(points.device).manual_seed(0))

    def project(self, g: Tensor) -> Tensor:
        return stiefel_from_rotation(g, self.k)

    def pull_back(self, g: Tensor, y: Tensor) -> Tensor:
        return self._coordinates(nn.functional.pad(g.mT @ y, (0, self.n - self.k)))


@checked
class Grassmann(_RotationSpace):
    r"""Subspaces of dimension k of R^n, as orthogonal projectors ``[*batch, n, n]``; k is less than n.

    Args:
        n: dimension of the space.
        k: dimension of the subspaces.
    """

    def __init__(self, n: int, k: int) -> None:
        _check_part(n, k)
        super().__init__(n, k)
        self.n, self.k, self._sizes = n, k, (n, k)
        self.dim = k * (n - k)
        self.point_shape = (n, n)

    def lift(self, points: Tensor) -> Tensor:
        return grassmann_to_rotation(points, self.k, torch.Generator(points.device).manual_seed(0))

    def project(self, g: Tensor) -> Tensor:
        return grassmann_from_rotation(g, self.k)

    def pull_back(self, g: Tensor, y: Tensor) -> Tensor:
        symmetric = y + y.mT
        return self._coordinates(nn.functional.pad(g.mT @ (symmetric @ g[..., : self.k]), (0, self.n - self.k)))

    def align(self, g: Tensor, h: Tensor) -> Tensor:
        k = self.k
        first = h[..., :k] @ aligning_rotation((g.mT @ h)[..., :k, :k])[0].mT
        return super().align(g, torch.cat([first, h[..., k:]], -1))

    def _log_volume(self) -> float:
        frames = sum(log_sphere_area(j) for j in range(2, self.k + 1))  # of the rotations within a subspace
        return super()._log_volume() - frames - math.log(2.0)


@checked
class PositiveDefinite(HomogeneousSpace):
    r"""Symmetric positive definite matrices P, ``[*batch, n, n]``.

    Lower triangular matrices L of positive diagonal are a group that takes the unit matrix to each P in one way,
    :math:`P = L L^T`: the factor of Cholesky. The measure "haar" is the one that every linear map leaves alone,
    :math:`\det(P)^{-(n+1)/2} \prod_{i \le j} dP_{ij}`; "volume" is :math:`\prod_{i \le j} dP_{ij}`.

    Args:
        n: size of the matrices.
    """

    def __init__(self, n: int) -> None:
        self.n, self._sizes = check_count("n", n), (n,)
        self.group = LowerTriangular(n)
        self.dim = self.group.dim
        self.point_shape = (n, n)

    @property
    def has_fibres(self) -> bool:
        return False

    def lift(self, points: Tensor) -> Tensor:
        factor, info = torch.linalg.cholesky_ex(0.5 * (points + points.mT))
        return torch.where((info == 0)[..., None, None], factor, torch.nan)

    def project(self, g: Tensor) -> Tensor:
        return spd_from_linear(g) if self.n > 1 else g * g

    def log_measure(self, points: Tensor, measure: str) -> Tensor:
        is_volume = check_choice("measure", measure, ("haar", "volume")) == "volume"
        log_det = 2.0 * self.lift(points).diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return self.n * math.log(2.0) + (0.5 * (self.n + 1) * log_det if is_volume else 0.0 * log_det)


class LowerTriangular(MatrixGroup):
    """The group of lower triangular n x n matrices with a positive diagonal, in the basis of their entries.

    Args:
        n: size of the matrices.
    """

    def __init__(self, n: int) -> None:
        units, names = matrix_units(n)
        places = [i * n + j for i in range(n) for j in range(i + 1)]
        super().__init__(units[places], [names[i] for i in places])

    def _project(self, g: Tensor) -> Tensor:
        """The lower triangle, NaN where its diagonal is not positive."""
        is_positive = (g.diagonal(dim1=-2, dim2=-1) > 0).all(-1)[..., None, None]
        return torch.where(is_positive, g.tril(), torch.nan)


class SpaceNetwork(ResidualNetwork):
    r"""A network on a group that is a function of points of a space, see the module.

    Entries of points enter directly, and as sines and cosines of all frequencies :math:`2^k` up to `_MAX_FREQUENCY`,
    times :math:`e^{-(2^k r)^2 / 2}`: at levels of the path where elements are at distances about r from their data, no
    structure smaller than r is left, and such waves would be noise.

    Args:
        space: the space.
        width: see `GroupNetwork`, also for ``depth``.
        condition_dim: number of features of a condition; ``None`` for none.
    """

    def __init__(self, space: HomogeneousSpace, width: int, depth: int, condition_dim: int | None = None) -> None:
        size = math.prod(space.point_shape)
        frequencies = 2.0 ** torch.arange(math.log2(_MAX_FREQUENCY) + 1.0)
        super().__init__((1 + 2 * len(frequencies)) * size, width, depth)
        self.space = space
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("spread", torch.linspace(0.0, 1.0, _NUM_SPREAD_LEVELS))
        self.frequencies: Tensor
        self.spread: Tensor
        self.last = nn.Linear(width, size)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
        if condition_dim is not None:
            self.add_condition(condition_dim)

    def like(self, condition_dim: int | None) -> SpaceNetwork:
        return SpaceNetwork(self.space, self.width, self.depth, condition_dim)

    def prepare(self, elements: Tensor, path: ProbabilityPath) -> None:
        """Tabulate the distances of ``elements`` from their data along the ``path``."""
        self.spread.copy_(path.spread(torch.linspace(0.0, 1.0, _NUM_SPREAD_LEVELS).to(self.spread)))

    def evaluate(self, g: Tensor, level: Float[Tensor, "*batch"], features: Tensor | None) -> Tensor:
        return self(g, level, features)

    def forward(self, g: Tensor, t: Tensor, features: Tensor | None) -> Tensor:
        """Return algebra vectors ``[*batch, dim]`` of elements g ``[*batch, *element_shape]``."""
        rank = len(self.space.point_shape)
        points = self.space.project(g).flatten(-rank)
        phase = self.frequencies.unsqueeze(-1) * points.unsqueeze(-2)
        place = (t * (_NUM_SPREAD_LEVELS - 1)).clamp(0.0, _NUM_SPREAD_LEVELS - 1)
        low = place.floor().clamp(max=_NUM_SPREAD_LEVELS - 2)
        below, above = self.spread[low.long()], self.spread[low.long() + 1]
        distance = below + (place - low) * (above - below)
        gate = (-0.5 * (self.frequencies * distance.unsqueeze(-1)).square()).exp().unsqueeze(-1)
        waves = torch.stack([gate * phase.sin(), gate * phase.cos()], -2).flatten(-3)
        y = self.last(self._hidden(torch.cat([points, waves], -1), t, features))
        return self.space.pull_back(g, y.unflatten(-1, self.space.point_shape))


@checked
class SpaceDiffusion(nn.Module):
    r"""A generative model of points of a space: fits points, draws new ones, and evaluates their densities.

    ```python
    model = SpaceDiffusion(Sphere(2)).fit(points)  # [m, 3]
    drawn, log_likelihoods = model.sample(1000), model.log_prob(test)
    ```

    It is a `GroupDiffusion` on the group that moves the space, whose network knows the point alone. Densities are those
    of the points, exact up to the tolerance of the flow; see the spaces for measures. By default a flow pairs data with
    elements of the uniform distribution that are near them within their fibres, so that on spheres and Grassmann
    manifolds paths are geodesics (Chen and Lipman 2024).

    Args:
        space: the space: `Sphere`, `Stiefel`, `Grassmann`, `PositiveDefinite`, or another `HomogeneousSpace`.
        kind: "flow" or "diffusion"; on a space without fibres any kind, see `GroupDiffusion`.
        seed: see `GroupDiffusion`, also for ``condition``, ``condition_dropout``, ``width`` and ``depth``.

    Attributes:
        model: the model on the group.

    Raises:
        ConfigurationError: a setting is out of range.
    """

    def __init__(
        self,
        space: HomogeneousSpace,
        kind: str = "flow",
        seed: int = 0,
        *,
        condition: int | nn.Module | None = None,
        condition_dropout: float = 0.1,
        width: int = 256,
        depth: int = 3,
    ) -> None:
        super().__init__()
        self.space = space
        network: nn.Module | None = None
        if space.has_fibres:
            check_choice("kind", kind, ("flow", "diffusion"))
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(check_seed(seed))
                network = SpaceNetwork(space, width, depth, None if isinstance(condition, nn.Module) else condition)
        settings: dict[str, Any] = {"condition_dropout": condition_dropout, "width": width, "depth": depth}
        self.model = GroupDiffusion(space.group, kind, seed, condition=condition, network=network, **settings)

    @property
    def history(self) -> TrainingHistory | None:
        """Losses of the training, see `TrainingHistory`; ``None`` before it."""
        return self.model.history

    def fit(
        self, points: Float[Tensor, "m ..."], condition: Any = None, *, held_out: Any = 0.0, **settings: Any
    ) -> SpaceDiffusion:
        """Train on points ``[m, *point_shape]``.

        Args:
            points: the points.
            condition: see `GroupDiffusion.fit`, also for ``settings`` such as ``steps``.
            held_out: a share of the points, further points, or a pair of points and conditions, see
                `GroupDiffusion.fit`.

        Returns:
            The model itself.

        Raises:
            ShapeError: the points have another shape, or are less than two.
            DomainError: they are no points of the space.
            ConfigurationError: a setting is out of range, or conditions are missing or not expected.
        """
        points = self.space.check_points(points)
        if isinstance(held_out, Tensor):
            held_out = self.space.lift(self.space.check_points(held_out, "held_out"))
        elif isinstance(held_out, tuple):
            held_out = (self.space.lift(self.space.check_points(held_out[0], "held_out")), *held_out[1:])
        lifts = self.space.lift(points)
        if isinstance(network := self.model.network, SpaceNetwork):
            self._add_condition(network, condition)
            # one element of each fibre, so that those of points near each other are near
            lifts = self.space.align(self.space.group.identity(dtype=lifts.dtype, device=lifts.device), lifts)
            if self.model.kind == "flow":
                self.model._data_dim = self.space.dim
                settings.setdefault("coupling", self.space.align)
        self.model.fit(lifts, condition, held_out=held_out, **settings)
        return self

    def distil(self, condition: Any = None, **settings: Any) -> SpaceDiffusion:
        """Train for samples in few steps, see `GroupDiffusion.distil` for ``condition`` and ``settings``."""
        self.model.distil(condition, **settings)
        return self

    def sample(self, num_samples: int | tuple[int, ...], **settings: Any) -> Tensor:
        """Draw points, ``[num_samples, *point_shape]``.

        Args:
            num_samples: number of points, or the shape of their batch.
            settings: arguments of `GroupDiffusion.sample`, such as ``condition`` and ``generator``.
        """
        return self.space.project(self.model.sample(num_samples, **settings))

    def log_prob(self, points: Tensor, *, measure: str = "haar", **settings: Any) -> Float[Tensor, "*batch"]:
        """Return log-densities of points ``[*batch, *point_shape]``, in nats.

        Args:
            points: the points.
            measure: "haar", the measure that the group leaves alone, of mass one on compact spaces; or "volume", such
                as the area of a sphere.
            settings: further arguments of `GroupDiffusion.log_prob`, such as ``condition`` and ``tolerance``.

        Raises:
            ShapeError: the points have another shape.
            DomainError: they are no points of the space.
            ConfigurationError: the model is not fitted, or the measure has another name.
        """
        points = self.space.check_points(points)
        logs = self.model.log_prob(self.space.lift(points), **settings)
        return logs - self.space.log_measure(points, measure).to(logs)

    def save(self, path: str | Path) -> None:
        """Write the model to the file ``path``, see `GroupDiffusion.save`."""
        self.model.save(path)

    @classmethod
    def load(cls, path: str | Path, space: HomogeneousSpace, *, condition: nn.Module | None = None) -> SpaceDiffusion:
        """Read a model that `save` wrote.

        Args:
            path: the file.
            space: the space of the model.
            condition: see `GroupDiffusion.load`.

        Raises:
            CheckpointError: the file holds no such model.
        """
        saved = SavedModel(path, space.group)
        network = SpaceNetwork(space, *saved.shape, saved.condition_dim) if space.has_fibres else None
        model = cls(space, width=saved.shape[0], depth=saved.shape[1])
        model.model = GroupDiffusion.load(path, space.group, condition=condition, network=network)
        return model.eval()

    def _add_condition(self, network: SpaceNetwork, condition: Any) -> None:
        """Give the network layers for the features of a module of the user."""
        encoder = self.model.encoder
        if encoder is None or condition is None or network.condition is not None or encoder.is_optional:
            return
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(self.model.seed)
            features = encoder(condition[:2])
            if not isinstance(features, Tensor) or features.ndim != 2:
                raise ConfigurationError("condition: expected a module that returns features [b, d]")
            network.add_condition(features.shape[-1])


def _check_part(n: int, k: int) -> None:
    if check_count("k", k) >= check_count("n", n, 2):
        raise ConfigurationError(f"k: expected less than n = {n}, got {k}")
