"""Heat kernels in closed form: on vector groups, tori, SO(3), SU(2) and products."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import normal, uniform
from trivgeo._text import Described
from trivgeo.groups.base import LieGroup

__all__ = [
    "HeatKernel",
    "NormalHeatKernel",
    "ProductHeatKernel",
    "RotationHeatKernel",
    "WrappedNormalHeatKernel",
    "has_equal_axes",
]

_SWITCH_VARIANCE = 3.0  # in squared radians: images and harmonics both need few terms there
_NUM_IMAGES = 2  # on each side
_NUM_HARMONICS = 6
_LAST_VARIANCE = 1e4  # in squared radians: noise is uniform long before
_END = 1e-4  # radians from an end of the range of the angle, within which quotients of small numbers are expanded
_NUM_GRID_ANGLES = 200  # of the distribution function of the angle of a rotation


class HeatKernel(Described, ABC):
    r"""The distribution k_V of Brownian motion on a group at variance V, from the identity, in closed form.

    The noise of a schedule has :math:`V = \int_0^t \gamma^2`. Returned by `heat_kernel`. Variances ``[*batch]`` have
    one row for each element; elements are on their device and in their dtype. Densities are for left Haar measure, of
    total mass one on compact factors, and on vector groups for Lebesgue measure of the coordinates in the basis.

    At variance zero all mass is at the identity: there the log-density is infinite, elsewhere minus infinite, and
    scores are infinite but for components that vanish. Infinite variances are the limit: on compact groups the uniform
    distribution. Negative variances give NaN.
    """

    @abstractmethod
    def sample(self, variance: Float[Tensor, "*batch"], generator: torch.Generator | None = None) -> Tensor:
        """Draw one element for each variance, ``[*batch, *element_shape]``.

        Args:
            variance: variances V, ``[*batch]``.
            generator: random numbers; ``None`` is torch's.
        """

    @abstractmethod
    def log_density(self, w: Tensor, variance: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Return the logarithm of the density k_V at elements, ``[*batch]``.

        Args:
            w: elements ``[*batch, *element_shape]``.
            variance: variances V, ``[*batch]``.
        """

    @abstractmethod
    def score(self, w: Tensor, variance: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch n"]:
        """Return the left-trivialized gradient of the log-density at elements, ``[*batch, dim]``.

        Args:
            w: elements ``[*batch, *element_shape]``.
            variance: variances V, ``[*batch]``.
        """


class NormalHeatKernel(HeatKernel):
    """Heat kernel of a vector group: the normal distribution with variance V in each basis direction."""

    def __init__(self, group: LieGroup) -> None:
        self._group = group

    def sample(self, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw one normal vector for each variance, ``[*batch, dim]``.

        Args:
            variance: variances V, ``[*batch]``.
            generator: random numbers; ``None`` is torch's.
        """
        z = normal((*variance.shape, self._group.dim), variance, generator)
        return self._group.exp(variance.sqrt().unsqueeze(-1) * z)

    def log_density(self, w: Tensor, variance: Tensor) -> Tensor:
        """Return the logarithm of the normal density at vectors, ``[*batch]``.

        Args:
            w: vectors ``[*batch, dim]``.
            variance: variances V, ``[*batch]``.
        """
        v, some = self._group.log(w), _positive(variance)
        found = -0.5 * (v.square().sum(-1) / some + self._group.dim * (2.0 * math.pi * some).log())
        return _with_point_mass(found, variance, (v == 0).all(-1))

    def score(self, w: Tensor, variance: Tensor) -> Tensor:
        """Return the gradient of the normal log-density at vectors, ``[*batch, dim]``.

        Args:
            w: vectors ``[*batch, dim]``.
            variance: variances V, ``[*batch]``.
        """
        return _steep(-self._group.log(w) / _positive(variance).unsqueeze(-1), variance)


class WrappedNormalHeatKernel(NormalHeatKernel):
    r"""The wrapped normal distribution on a torus, angle by angle.

    By images, :math:`\sum_k e^{-(\theta + 2 \pi k)^2 / 2 V}`, for small V, by harmonics for large V.

    Args:
        group: the torus, whose scale gives the lengths of its axes.
    """

    def sample(self, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw one vector of angles for each variance, ``[*batch, dim]``: normal numbers modulo the periods.

        Args:
            variance: variances V, ``[*batch]``.
            generator: random numbers; ``None`` is torch's.
        """
        shortest = float(self._group.basis.scale.square().min())
        return super().sample(variance.clamp(max=_LAST_VARIANCE / shortest), generator)

    def log_density(self, w: Tensor, variance: Tensor) -> Tensor:
        """Return the logarithm of the wrapped normal density at angles, ``[*batch]``.

        Args:
            w: angles ``[*batch, dim]``.
            variance: variances V, ``[*batch]``.
        """
        found = self._parts(w, _positive(variance))[0].sum(-1)
        return _with_point_mass(found, variance, (self._group.project(w) == 0).all(-1))

    def score(self, w: Tensor, variance: Tensor) -> Tensor:
        """Return the gradient of the wrapped normal log-density at angles, ``[*batch, dim]``.

        Args:
            w: angles ``[*batch, dim]``.
            variance: variances V, ``[*batch]``.
        """
        return _steep(self._group.basis.scale.to(w) * self._parts(w, _positive(variance))[1], variance)

    def _parts(self, w: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density for Haar measure of mass one, and its derivative, for each angle."""
        angle = self._group.project(w)
        scaled = variance.unsqueeze(-1) * self._group.basis.scale.to(w).square()
        few = scaled < _SWITCH_VARIANCE
        near = torch.where(few, scaled, 1.0).unsqueeze(-1)
        turns = 2.0 * math.pi * torch.arange(-_NUM_IMAGES, _NUM_IMAGES + 1, dtype=w.dtype, device=w.device)
        image = angle.unsqueeze(-1) + turns
        nearest = image.square().amin(
            -1, keepdim=True
        )  # apart from the others: both may overflow for the least variance
        exponent = -0.5 * (image.square() - nearest) / near
        images = exponent.logsumexp(-1) + (-0.5 * (nearest / near + near.log() - math.log(2.0 * math.pi))).squeeze(-1)
        pull = -((exponent.softmax(-1) * image).sum(-1, keepdim=True) / near).squeeze(-1)
        far = torch.where(few, _SWITCH_VARIANCE, scaled).clamp(max=_LAST_VARIANCE).unsqueeze(-1)
        order = torch.arange(1, _NUM_HARMONICS, dtype=w.dtype, device=w.device)
        size = 2.0 * (-0.5 * order.square() * far).exp()
        wave = order * angle.unsqueeze(-1)
        total = 1.0 + (size * wave.cos()).sum(-1)
        slope = -(size * order * wave.sin()).sum(-1) / total
        return torch.where(few, images, total.log()), torch.where(few, pull, slope)


class RotationHeatKernel(HeatKernel):
    r"""The heat kernel of SO(3) and SU(2), a function of the angle :math:`\omega` of the rotation.

    .. math:: k = \sum_l (2 l + 1) e^{-l (l + 1) V / 2} \frac{\sin (l + \frac12) \omega}{\sin \frac12 \omega}
        = \frac{e^{V / 8}}{\sin \frac12 \omega} \frac{c \sqrt{2 \pi / V}}V
            \sum_k (\pm 1)^k (\omega + k P) e^{-(\omega + k P)^2 / 2 V},

    l = 0, 1, ... with P = 2 pi, c = 1 and alternating signs on SO(3); l = 0, 1/2, ... with P = 4 pi, c = 2 on SU(2).
    The second form (Poisson's) is for small V. In double precision throughout.

    Args:
        group: SO(3) or SU(2), with equal axes.
        unit: angle of the exponential of a natural basis vector.
        cover: sheets of the group over SO(3), 1 or 2.
    """

    def __init__(self, group: LieGroup, unit: float, cover: int) -> None:
        self._group, self._unit, self._cover = group, unit * float(group.basis.scale[0]), cover

    def sample(self, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw one element for each variance, ``[*batch, *element_shape]``.

        The angle is drawn by inversion of its distribution function on a grid, the axis uniformly.

        Args:
            variance: variances V, ``[*batch]``.
            generator: random numbers; ``None`` is torch's.
        """
        v = _positive(variance.double() * self._unit**2)
        last = (7.0 * v.sqrt()).clamp(max=self._cover * math.pi)
        grid = last.unsqueeze(-1) * torch.linspace(0.0, 1.0, _NUM_GRID_ANGLES, dtype=v.dtype, device=v.device)
        density = self._log_radial(grid, v.unsqueeze(-1)).exp() * (0.5 * grid).sin().square()
        cumulative = torch.cat([torch.zeros_like(grid[..., :1]), (density[..., 1:] + density[..., :-1]).cumsum(-1)], -1)
        cumulative = cumulative / cumulative[..., -1:]
        u = uniform((*variance.shape, 1), v, generator)
        right = torch.searchsorted(cumulative, u).clamp(1, _NUM_GRID_ANGLES - 1)
        low, high = (cumulative.gather(-1, right - i) for i in (1, 0))
        share = (u - low) / (high - low).clamp(min=1e-300)
        angle = grid.gather(-1, right - 1) + share * grid[..., 1:2]
        axis = normal((*variance.shape, 3), v, generator)
        vector = angle / self._unit * axis / axis.norm(dim=-1, keepdim=True)
        vector = torch.where((variance >= 0).unsqueeze(-1), vector, math.nan)
        return self._group.exp(torch.where((variance == 0).unsqueeze(-1), 0.0, vector).to(variance.dtype))

    def log_density(self, w: Tensor, variance: Tensor) -> Tensor:
        """Return the logarithm of the density k_V at elements, ``[*batch]``, a function of their angle.

        Args:
            w: elements ``[*batch, *element_shape]``.
            variance: variances V, ``[*batch]``.
        """
        length = self._unit * self._group.log(w).double().norm(dim=-1)
        v = _positive(self._unit**2 * variance.double())
        found = self._log_radial(length, v)
        if self._cover == 2:  # an even function of the distance to the end
            last, away = 2.0 * math.pi - _END, self._end_distance(length)
            change = 0.5 * (_END - away.square() / _END) * self._slope(length.clamp(max=last), v)
            found = torch.where(away < _END, found + change * last, found)
        return _with_point_mass(found, variance, length == 0).to(w.dtype)

    def score(self, w: Tensor, variance: Tensor) -> Tensor:
        """Return the left-trivialized gradient of the log-density at elements, ``[*batch, dim]``, along the axis of
        each.

        Args:
            w: elements ``[*batch, *element_shape]``.
            variance: variances V, ``[*batch]``.
        """
        v = self._group.log(w).double()
        length = self._unit * v.norm(dim=-1)
        slope = self._slope(length, _positive(self._unit**2 * variance.double()))
        if self._cover == 2:  # odd in the distance to the end
            slope = slope * self._end_distance(length) / _END
        return _steep((self._unit**2 * slope.unsqueeze(-1) * v).to(w.dtype), variance)

    def _end_distance(self, angle: Tensor) -> Tensor:
        """Distance to the largest angle of SU(2), where formulas are quotients of small numbers, at most `_END`."""
        return (2.0 * math.pi - angle).clamp(max=_END)

    def _log_radial(self, angle: Tensor, v: Tensor) -> Tensor:
        """Log-density at an angle."""
        x, few, near, far = self._inside(angle, v)
        images = sum((weight * image for image, weight in self._images(x, near)), torch.zeros_like(x))
        harmonics = sum((size * (order * x).sin() for order, size in self._harmonics(far)), torch.zeros_like(x))
        log_near = near / 8.0 + math.log(self._cover) + 0.5 * math.log(2.0 * math.pi) - 1.5 * near.log()
        # the angle itself below the bound of x, which far down is wide for the noise
        log_near = log_near - 0.5 * torch.minimum(angle, x).square() / near
        return torch.where(few, log_near, 0.0) + (torch.where(few, images, harmonics) / (0.5 * x).sin()).log()

    def _slope(self, angle: Tensor, v: Tensor) -> Tensor:
        """Derivative of the log-density over the angle, divided by the angle: even and smooth at zero."""
        x, few, near, far = self._inside(angle, v)
        total = rise = sines = cosines = torch.zeros_like(x)
        for image, weight in self._images(x, near):
            total = total + weight * image
            rise = rise + weight * (1.0 - image.square() / near)
        for order, size in self._harmonics(far):
            sines = sines + size * (order * x).sin()
            cosines = cosines + size * order * (order * x).cos()
        return (torch.where(few, rise / total, cosines / sines) - 0.5 / (0.5 * x).tan()) / x

    def _inside(self, angle: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The angle away from the ends, whether images are taken, and the variances for these and for harmonics."""
        few = v < _SWITCH_VARIANCE
        x = angle.clamp(_END, self._cover * math.pi - (_END if self._cover == 2 else 0.0))
        return x, few, torch.where(few, v, 1.0), torch.where(few, _SWITCH_VARIANCE, v).clamp(max=_LAST_VARIANCE)

    # term by term, since sums over a short last dimension are slow

    def _images(self, x: Tensor, v: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Images of an angle and their weights, relative to the nearest one, so that nothing underflows."""
        square = x.square()
        for number in range(-_NUM_IMAGES, _NUM_IMAGES + 1):
            image = x + 2.0 * math.pi * self._cover * number
            weight = (-0.5 * (image.square() - square) / v).exp()
            yield image, -weight if self._cover == 1 and number % 2 else weight

    def _harmonics(self, v: Tensor) -> Iterator[tuple[float, Tensor]]:
        for twice in range(1, 2 * _NUM_HARMONICS, 2 if self._cover == 1 else 1):
            order = 0.5 * twice
            yield order, 2.0 * order * (-0.5 * (order**2 - 0.25) * v).exp()


class ProductHeatKernel(HeatKernel):
    """Independent noise on the factors of a product.

    Args:
        kernels: heat kernels of the factors.
        split: an element to those of the factors.
        join: elements of the factors to one of the product.
    """

    def __init__(
        self, kernels: Sequence[HeatKernel], split: Callable[[Tensor], Sequence[Tensor]], join: Callable[..., Tensor]
    ) -> None:
        self._kernels, self._split, self._join = kernels, split, join

    def sample(self, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw one element for each variance, ``[*batch, *element_shape]``: the parts of the factors are independent.

        Args:
            variance: variances V, ``[*batch]``.
            generator: random numbers; ``None`` is torch's.
        """
        return self._join(*(kernel.sample(variance, generator) for kernel in self._kernels))

    def log_density(self, w: Tensor, variance: Tensor) -> Tensor:
        """Return the logarithm of the density k_V at elements, ``[*batch]``: the sum over the factors.

        Args:
            w: elements ``[*batch, *element_shape]``.
            variance: variances V, ``[*batch]``.
        """
        parts = zip(self._kernels, self._split(w), strict=True)
        found = torch.stack([kernel.log_density(part, variance) for kernel, part in parts])
        return torch.where((found == -math.inf).any(0), -math.inf, found.sum(0))

    def score(self, w: Tensor, variance: Tensor) -> Tensor:
        """Return the left-trivialized gradient of the log-density at elements, ``[*batch, dim]``, joined from the
        factors.

        Args:
            w: elements ``[*batch, *element_shape]``.
            variance: variances V, ``[*batch]``.
        """
        parts = zip(self._kernels, self._split(w), strict=True)
        return torch.cat([kernel.score(part, variance) for kernel, part in parts], -1)


def has_equal_axes(group: LieGroup) -> bool:
    """Return True if all axes of the basis of ``group`` have the same length, and the basis is not rotated."""
    return group.scale.ndim == 1 and bool((group.scale == group.scale[0]).all())


def _positive(variance: Tensor) -> Tensor:
    """Variances, and one in place of those that are not positive."""
    return torch.where(variance > 0, variance, 1.0)


def _with_point_mass(log_density: Tensor, variance: Tensor, at_identity: Tensor) -> Tensor:
    """Log-densities where variances are positive, those of the point mass at the identity where they are zero."""
    point = torch.where(at_identity, math.inf, -math.inf).to(log_density.dtype)
    return torch.where(variance > 0, log_density, torch.where(variance == 0, point, math.nan))


def _steep(score: Tensor, variance: Tensor) -> Tensor:
    """Scores where variances are positive, infinite ones of the same signs where they are zero."""
    limit = torch.where(score == 0, 0.0, score.sign() * math.inf).to(score.dtype)
    some, none = (variance > 0).unsqueeze(-1), (variance == 0).unsqueeze(-1)
    return torch.where(some, score, torch.where(none, limit, math.nan))
