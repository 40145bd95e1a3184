r"""Kernel density estimates on spheres and groups, alone or mixed with a learned model.

A mixture of kernels of many widths at the points of a sample, and of further models, whose weights are those under
which held-out points are likeliest (Smyth and Wolpert 1999). It has no network, and takes seconds. Learned models of a
few thousand points are to be compared with it, and often gain from being mixed with it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from scipy.special import ive
from torch import Tensor, nn

from trivgeo._random import choice, integers, keyed, normal, permutation, uniform
from trivgeo.checks import check_count, check_seed, checked
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.generative.distributions import check_samples, log_mass
from trivgeo.generative.spaces import HomogeneousSpace, Sphere
from trivgeo.groups import LieGroup
from trivgeo.groups.harmonic import heat_kernel
from trivgeo.groups.orthogonal import log_sphere_area

__all__ = ["KernelDensity"]

_NUM_HALVINGS = 13  # of the width of all kernels, from the spread of the points
_NEIGHBOURS = (1, 2, 4, 8, 16, 32, 64)  # numbers of neighbours whose distance is the width of a kernel
_NEIGHBOUR_FACTORS = (2.0**-1.5, 2.0**-0.5, 2.0**0.5)
_MAX_SPREAD_POINTS = 500  # points by which the spread is measured
_MAX_PAIRS = 2**16  # pairs of points and centres at once
_MAX_HELD_OUT = 1000  # points of the sample that choose the weights
_NUM_WEIGHT_ROUNDS = 300  # of expectation-maximization


@checked
class KernelDensity(nn.Module):
    r"""A mixture of kernels of many widths at the points of a sample.

    .. math:: p(x) = \sum_k w_k \frac1m \sum_j K_{h_{kj}}(x, x_j) + \sum_i w_i p_i(x)

    ```python
    estimate = KernelDensity(Sphere(2)).fit(points)  # [m, 3]
    drawn, logs = estimate.sample(1000), estimate.log_prob(test)
    mixed = KernelDensity(Sphere(2), models=[model]).fit(points, held_out)  # with a SpaceDiffusion
    ```

    Kernels are those of von Mises and Fisher on spheres, and heat kernels on groups: normal distributions on vector
    groups, wrapped ones on tori, "IGSO(3)" on rotations. Half of the widths h are the same for all points, from the
    spread of the points down to its 8192nd part. The others are multiples of the distance of each point from one of its
    neighbours, narrow where points are dense (Loftsgaarden and Quesenberry 1965). On compact spaces one kernel is
    uniform. The weights w are found by expectation-maximization on held-out points, of which one more is counted as
    shared by all kernels, so that no weight is zero.

    Where held-out points are copies of others, their likelihood has no bound, and is that of the narrowest kernel.

    Args:
        space: a `Sphere`, or a group whose `heat_kernel` is known.
        models: fitted models of the space that are mixed with the kernels, such as a `SpaceDiffusion`, a
            `GroupDiffusion` or a `GroupDistribution`; modules with ``log_prob(points, measure=...)`` and
            ``sample(count, generator=...)``. They should not have been trained on the held-out points.
        seed: seed of the split.

    Attributes:
        weights: the weights of the kernels, and after them of the models, ``[K]``.

    Raises:
        ConfigurationError: the space has no kernels, or a model no density.

    Example:
        >>> angles = 0.3 * torch.randn(200, 1)
        >>> KernelDensity(Torus(1)).fit(angles).log_prob(angles[:2]).shape
        torch.Size([2])
    """

    centres: Tensor
    widths: Tensor
    weights: Tensor

    def __init__(self, space: HomogeneousSpace | LieGroup, models: Sequence[nn.Module] = (), seed: int = 0) -> None:
        super().__init__()
        self.space, self.seed = space, check_seed(seed)
        self._kernels: _Kernels = _SphereKernels(space) if isinstance(space, Sphere) else _GroupKernels(space)
        for model in models:
            if not (callable(getattr(model, "log_prob", None)) and callable(getattr(model, "sample", None))):
                raise ConfigurationError(f"models: expected models with log_prob and sample, got {model!r}")
        self.models = nn.ModuleList(models)
        empty = torch.empty(0, dtype=torch.float64)
        for name in ("centres", "widths", "weights"):
            self.register_buffer(name, empty, persistent=False)

    @property
    def model_weights(self) -> Float[Tensor, " M"]:
        """The weights of the models."""
        return self.weights[len(self.widths) :]

    def fit(self, points: Float[Tensor, "m ..."], held_out: Any = 0.1) -> KernelDensity:
        """Choose the weights of kernels at ``points``.

        Args:
            points: points or elements, ``[m, *shape]``.
            held_out: held-out points, which choose the weights and have no kernels; or the share of the points, a
                thousand at most, that chooses the weights first, and has kernels then.

        Returns:
            The density itself.

        Raises:
            ShapeError: the points have another shape, or fewer than two have kernels, or none is held out.
            NonFiniteError: points, or densities of models, are NaN or infinite.
            DomainError: they are no points of the space.
            ConfigurationError: the share is not between zero and one.
        """
        dtype = torch.as_tensor(points).dtype
        kernels, centres = self._kernels, self._kernels.check(points, "points")
        if isinstance(held_out, int | float):
            if not 0.0 < held_out < 1.0:
                raise ConfigurationError(f"held_out: expected a share between 0 and 1 or points, got {held_out}")
            order = permutation((len(centres),), centres, keyed(self.seed, 5, device=centres.device))
            count = min(round(held_out * len(centres)), _MAX_HELD_OUT)
            held, centres, final = centres[order[:count]], centres[order[count:]], centres
        else:
            held, final = kernels.check(held_out, "held_out"), centres
        if len(centres) < 2 or not len(held):
            raise ShapeError(
                f"points: expected two or more with kernels and some held out, got {len(centres)} and {len(held)}"
            )
        with torch.no_grad():
            self.centres, self.widths = centres, self._all_widths(centres)
            logs = self._component_logs(held, dtype)
            if not bool((logs < torch.inf).all()):
                raise NonFiniteError("models: expected finite densities of held-out points, got NaN or infinity")
            weights = torch.full_like(logs[0], 1.0 / logs.shape[1])
            for _ in range(_NUM_WEIGHT_ROUNDS):
                shares = (logs + weights.log()).softmax(-1).sum(0)
                weights = (shares + 1.0 / len(weights)) / (len(held) + 1.0)
            self.weights = weights
            if len(final) > len(centres):
                self.centres, self.widths = final, self._all_widths(final)
        return self

    def log_prob(self, points: Tensor, measure: str = "haar") -> Float[Tensor, "*batch"]:
        """Return log-densities of points ``[*batch, *shape]``, in nats.

        Args:
            points: points of the space, or elements of the group.
            measure: "haar", the measure that the group leaves alone, of mass one on compact spaces; or "volume", such
                as the area of a sphere. See `SpaceDiffusion` and `GroupDistribution`.

        Raises:
            ShapeError: the points have another shape.
            NonFiniteError: the points hold NaN or infinity.
            DomainError: they are no points of the space.
            ConfigurationError: the density is not fitted, or the measure has another name.
        """
        self._check_fitted()
        log_measure = self._kernels.log_measure(measure)
        points = torch.as_tensor(points)
        shape = points.shape[: max(0, points.ndim - len(self._kernels.shape))]
        flat = self._kernels.check(points.reshape(-1, *points.shape[len(shape) :]), "points").to(self.centres)
        logs = (self._component_logs(flat, points.dtype) + self.weights.log()).logsumexp(-1)
        return (logs - log_measure).to(points.dtype).reshape(shape)

    @torch.no_grad()
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw points ``[num_samples, *shape]``, in double precision.

        Args:
            num_samples: number of points.
            generator: random numbers; ``None`` is torch's.

        Raises:
            ConfigurationError: the density is not fitted.
        """
        self._check_fitted()
        count, num_kernels = check_count("num_samples", num_samples, 0), len(self.widths)
        label = choice(self.weights.unsqueeze(0), count, generator)[0]
        row = integers(len(self.centres), (count,), self.centres, generator)
        width = self.widths[label.clamp(max=num_kernels - 1), row]
        drawn = self._kernels.draw(self.centres[row], width, generator)
        models: list[Any] = list(self.models)
        for k, model in enumerate(models, num_kernels):
            if number := int((label == k).sum()):
                drawn[label == k] = model.sample(number, generator=generator).to(drawn)
        return drawn

    def _check_fitted(self) -> None:
        if not len(self.weights):
            raise ConfigurationError("density: expected a fitted one; call fit(points)")

    def _all_widths(self, centres: Tensor) -> Float[Tensor, "K m"]:
        """The widths of each kernel at each centre."""
        kernels, count = self._kernels, len(centres)
        few = centres[:: -(-count // _MAX_SPREAD_POINTS)]
        distances = kernels.distance(kernels.between(few, few))
        spread = float(distances[distances.isfinite()].square().mean().sqrt()) / math.sqrt(kernels.dim)
        spread = spread if spread > 0.0 else 1.0  # copies of one point
        least = spread * 2.0**-_NUM_HALVINGS
        found = [centres.new_full((count,), spread * 2.0**-k) for k in range(_NUM_HALVINGS + 1)]
        orders = [min(k, count - 1) for k in _NEIGHBOURS]
        nearest = torch.cat(
            [
                kernels.distance(kernels.between(part, centres)).topk(orders[-1] + 1, -1, largest=False).values
                for part in centres.split(max(1, _MAX_PAIRS // count))
            ]
        )
        scale = nearest.sort(-1).values[:, orders].T / math.sqrt(kernels.dim)  # the first one is the point itself
        found += [(factor * row).clamp(min=least) for row in scale for factor in _NEIGHBOUR_FACTORS]
        if kernels.is_compact:
            found.append(torch.full_like(found[0], math.inf))
        return torch.stack(found)

    def _component_logs(self, points: Tensor, dtype: torch.dtype) -> Float[Tensor, "b K"]:
        """Log-densities of kernels and models for Haar measure; models receive points of a dtype."""
        parts = []
        for part in points.split(max(1, _MAX_PAIRS // len(self.centres))):
            between = self._kernels.between(part, self.centres)
            logs = [self._kernels.log_kernel(between, width).logsumexp(-1) for width in self.widths]
            parts.append(torch.stack(logs, -1) - math.log(len(self.centres)))
        models: list[Any] = list(self.models)
        others = [model.log_prob(points.to(dtype), measure="haar").to(points) for model in models]
        return torch.cat([torch.cat(parts), *(x.unsqueeze(-1) for x in others)], -1)


class _Kernels(ABC):
    """Normalised kernels of one kind."""

    dim: int
    shape: tuple[int, ...]
    is_compact: bool

    @abstractmethod
    def check(self, points: Any, name: str) -> Tensor:
        """Return checked points ``[m, *shape]``, in double precision."""

    @abstractmethod
    def between(self, points: Tensor, centres: Tensor) -> Tensor:
        """Return what kernels depend on, ``[b, m, ...]``."""

    @abstractmethod
    def distance(self, between: Tensor) -> Tensor:
        """Return distances ``[b, m]``."""

    @abstractmethod
    def log_kernel(self, between: Tensor, width: Tensor) -> Tensor:
        """Return log-densities ``[b, m]`` of kernels of widths ``[m]``, for Haar measure."""

    @abstractmethod
    def draw(self, centres: Tensor, width: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw one point about each centre ``[b, *shape]``."""

    @abstractmethod
    def log_measure(self, measure: str) -> float:
        """Return the logarithm of the mass of the space for a measure."""


class _SphereKernels(_Kernels):
    """Kernels of von Mises and Fisher, of concentration one over the square of the width."""

    is_compact = True

    def __init__(self, sphere: Sphere) -> None:
        self._sphere, self.dim, self.shape = sphere, sphere.dim, sphere.point_shape

    def check(self, points: Any, name: str) -> Tensor:
        points = self._sphere.check_points(points, name)
        if points.ndim != 2:
            raise ShapeError(f"{name}: expected points [m, {self.shape[0]}], got {list(points.shape)}")
        return nn.functional.normalize(points.double(), dim=-1)

    def between(self, points: Tensor, centres: Tensor) -> Tensor:
        # differences, since one minus a cosine has no digits left between near points
        return torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist").square()

    def distance(self, between: Tensor) -> Tensor:
        return between.sqrt()

    def log_kernel(self, between: Tensor, width: Tensor) -> Tensor:
        concentration = width**-2
        return self._log_top(concentration) - 0.5 * concentration * between

    def _log_top(self, concentration: Tensor) -> Tensor:
        """The log-density at the centre, for the measure of mass one."""
        order = 0.5 * (self.dim - 1)
        some = torch.where(concentration > 0.0, concentration, 1.0)
        bessel = torch.as_tensor(ive(order, some.cpu().numpy())).to(some).log()
        # the first term of the series, for small concentrations in high dimensions
        series = order * (0.5 * some).log() - math.lgamma(order + 1.0) - some
        log_bessel = torch.where(bessel.isinf(), series, bessel)
        log_area = log_sphere_area(self.dim + 1)
        found = order * some.log() - (order + 1.0) * math.log(2.0 * math.pi) - log_bessel + log_area
        return torch.where(concentration > 0.0, found, 0.0)

    def draw(self, centres: Tensor, width: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw heights by rejection (Wood 1994), and directions uniformly."""
        n, concentration = float(self.dim), width**-2
        shift = n / (2.0 * concentration + (4.0 * concentration.square() + n * n).sqrt())
        gap = 2.0 * shift / (1.0 + shift)  # one minus the height of the tangent point of the envelope
        away = torch.full_like(width, math.nan)  # one minus the height
        while bool((left := away.isnan()).any()):
            on_sphere = normal((len(away), self.dim + 1), away, generator)
            z = 0.5 + 0.5 * nn.functional.normalize(on_sphere, dim=-1)[:, 0]  # of the symmetric beta distribution
            tried = 2.0 * shift * z / (1.0 - (1.0 - shift) * z)
            log_ratio = (1.0 + (1.0 - gap) * tried / gap).log() - (2.0 - gap).log()
            log_accept = concentration * (gap - tried) + n * log_ratio
            accepted = left & (uniform(away.shape, away, generator).log() <= log_accept)
            away = torch.where(accepted, tried, away)
        direction = normal(centres.shape, centres, generator)
        direction = direction - (direction * centres).sum(-1, keepdim=True) * centres
        side = (away * (2.0 - away)).clamp(min=0.0).sqrt().unsqueeze(-1)
        return (1.0 - away).unsqueeze(-1) * centres + side * nn.functional.normalize(direction, dim=-1)

    def log_measure(self, measure: str) -> float:
        origin = torch.eye(self.dim + 1, dtype=torch.float64)[0]
        return float(self._sphere.log_measure(origin, measure))


class _GroupKernels(_Kernels):
    """Heat kernels of a group, of variance the square of the width."""

    def __init__(self, group: Any) -> None:
        kernel = heat_kernel(group) if isinstance(group, LieGroup) else None
        if kernel is None:
            raise ConfigurationError(
                f"space: expected a Sphere or a group whose heat kernel is known, see heat_kernel, got {group!r}"
            )
        self._group, self._kernel, self.dim, self.shape = group, kernel, group.dim, tuple(group.element_shape)
        self.is_compact = group.is_compact

    def check(self, points: Any, name: str) -> Tensor:
        return self._group.project(check_samples(self._group, points, name).double())

    def between(self, points: Tensor, centres: Tensor) -> Tensor:
        return self._group.compose(self._group.inverse(centres), points.unsqueeze(1))

    def distance(self, between: Tensor) -> Tensor:
        return self._group.log(between).norm(dim=-1).nan_to_num(math.inf)  # far away there may be no logarithm

    def log_kernel(self, between: Tensor, width: Tensor) -> Tensor:
        return self._kernel.log_density(between, width.square())

    def draw(self, centres: Tensor, width: Tensor, generator: torch.Generator | None) -> Tensor:
        return self._group.compose(centres, self._kernel.sample(width.square(), generator))

    def log_measure(self, measure: str) -> float:
        return log_mass(self._group, measure)
