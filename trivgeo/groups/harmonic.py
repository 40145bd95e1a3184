"""Harmonic analysis on groups: heat kernels, volumes of compact groups, and their slowest modes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import normal, uniform
from trivgeo._text import Described
from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups.group import LieGroup

__all__ = ["HarmonicAnalysis", "HeatKernel", "heat_kernel", "log_haar_volume", "slowest_rate"]

_SWITCH_VARIANCE = 3.0  # variance in squared radians at which both images and harmonics need few terms
_NUM_IMAGES = 2  # images on each side of an angle
_NUM_HARMONICS = 6
_MAX_VARIANCE = 1e4  # variance in squared radians, long before which noise is uniform
_MIN_END_DISTANCE = 1e-4  # distance in radians of an angle from the ends of its range, within which series are used
_NUM_GRID_ANGLES = 40  # angles at which the distribution function of the angle of a rotation is computed
_NUM_NEWTON_STEPS = 3  # steps that invert a cubic, from the inverse of a quadratic near it


@checked
class HeatKernel(Described, ABC):
    r"""The distribution k_V of Brownian motion on a group at variance V, from the identity, in closed form.

    The noise of a schedule has :math:`V = \int_0^t \gamma^2`. Returned by `heat_kernel`. Variances ``[*batch]`` have
    one row for each element; elements are on their device and in their dtype. Densities are for left Haar measure, of
    total mass one on compact factors, and on vector groups for Lebesgue measure of the coordinates in the basis.

    At variance zero all mass is at the identity: there the log-density is infinite, elsewhere minus infinite, and
    scores are infinite in components that do not vanish. Infinite variances are the limit: on compact groups the
    uniform distribution. Negative variances give NaN.
    """

    @abstractmethod
    def sample(self, variance: Float[Tensor, "*batch"], generator: torch.Generator | None = None) -> Tensor:
        """Draw one element for each variance, ``[*batch, *element_shape]``.

        Args:
            variance: variances V, ``[*batch]``.
            generator: random numbers; ``None`` is torch's.
        """

    @abstractmethod
    def log_density(self, w: Tensor, variance: Float[Tensor, "*#batch"]) -> Float[Tensor, "*batch"]:
        """Return the logarithm of the density k_V at elements, ``[*batch]``.

        Args:
            w: elements ``[*batch, *element_shape]``.
            variance: variances V, which expand to ``[*batch]``.
        """

    @abstractmethod
    def score(self, w: Tensor, variance: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch n"]:
        """Return the left-trivialized gradient of the log-density at elements, ``[*batch, dim]``.

        Args:
            w: elements ``[*batch, *element_shape]``.
            variance: variances V, ``[*batch]``.
        """


@checked
class NormalHeatKernel(HeatKernel):
    """Heat kernel of a vector group: the normal distribution with variance V in each basis direction."""

    def __init__(self, group: LieGroup) -> None:
        self._group = group

    def sample(self, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
        z = normal((*variance.shape, self._group.dim), variance, generator)
        return self._group.exp(variance.sqrt().unsqueeze(-1) * z)

    def log_density(self, w: Tensor, variance: Tensor) -> Tensor:
        v, some = self._group.log(w), _positive(variance)
        found = -0.5 * (v.square().sum(-1) / some + self._group.dim * (2.0 * math.pi * some).log())
        return _with_point_mass(found, variance, (v == 0).all(-1))

    def score(self, w: Tensor, variance: Tensor) -> Tensor:
        return _steep(-self._group.log(w) / _positive(variance).unsqueeze(-1), variance)


@checked
class WrappedNormalHeatKernel(NormalHeatKernel):
    r"""The wrapped normal distribution on a torus, angle by angle.

    Images, :math:`\sum_k e^{-(\theta + 2 \pi k)^2 / 2 V}`, serve for small V, harmonics for large V.

    Args:
        group: the torus, whose scale gives the lengths of its axes.
    """

    def sample(self, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
        shortest = float(self._group.basis.scale.square().min())
        return super().sample(variance.clamp(max=_MAX_VARIANCE / shortest), generator)

    def log_density(self, w: Tensor, variance: Tensor) -> Tensor:
        angle, few, near, far = self._angles(w, variance)
        images = sum((weight for _, weight in self._images(angle, near)), torch.zeros_like(angle)).log()
        images = images - 0.5 * (angle.square() / near + (near / (2.0 * math.pi)).log())
        harmonics = sum((size * (order * angle).cos() for order, size in self._harmonics(far)), torch.ones_like(angle))
        found = torch.where(few, images, harmonics.log()).sum(-1)
        return _with_point_mass(found, variance, (angle == 0).all(-1))

    def score(self, w: Tensor, variance: Tensor) -> Tensor:
        angle, few, near, far = self._angles(w, variance)
        total = moment = torch.zeros_like(angle)
        for image, weight in self._images(angle, near):
            total, moment = total + weight, moment + weight * image
        mass, slope = torch.ones_like(angle), torch.zeros_like(angle)
        for order, size in self._harmonics(far):
            mass = mass + size * (order * angle).cos()
            slope = slope - size * order * (order * angle).sin()
        found = torch.where(few, -moment / (total * near), slope / mass)
        return _steep(self._group.basis.scale.to(w) * found, variance)

    def _angles(self, w: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The angles, whether images are used for each, and the variances for images and for harmonics."""
        scaled = _positive(variance).unsqueeze(-1) * self._group.basis.scale.to(w).square()
        return self._group.project(w), *_near_and_far(scaled)

    # term by term, since sums over a short last dimension are slow

    def _images(self, angle: Tensor, v: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Images of an angle and their weights, relative to the nearest one, so that nothing underflows."""
        for turns in sorted(range(-_NUM_IMAGES, _NUM_IMAGES + 1), key=abs):  # pairs cancel at the identity
            shift = 2.0 * math.pi * turns
            yield angle + shift, (-shift * (angle + 0.5 * shift) / v).exp()

    def _harmonics(self, v: Tensor) -> Iterator[tuple[int, Tensor]]:
        for order in range(1, _NUM_HARMONICS):
            yield order, 2.0 * (-0.5 * order**2 * v).exp()


@checked
class RotationHeatKernel(HeatKernel):
    r"""The heat kernel of SO(3) and SU(2), a function of the angle :math:`\omega` of the rotation.

    .. math:: k = \sum_l (2 l + 1) e^{-l (l + 1) V / 2} \frac{\sin (l + \frac12) \omega}{\sin \frac12 \omega}
        = \frac{e^{V / 8}}{\sin \frac12 \omega} \frac{c \sqrt{2 \pi / V}}V
            \sum_k (\pm 1)^k (\omega + k P) e^{-(\omega + k P)^2 / 2 V},

    l = 0, 1, ... with P = 2 pi, c = 1 and alternating signs on SO(3); l = 0, 1/2, ... with P = 4 pi, c = 2 on SU(2).
    The second form (Poisson's) is for small V. All is computed in double precision.

    Args:
        group: SO(3) or SU(2), with equal axes.
        unit: angle of the exponential of a natural basis vector.
        cover: sheets of the group over SO(3), 1 or 2.
    """

    def __init__(self, group: LieGroup, unit: float, cover: int) -> None:
        self._group, self._unit, self._cover = group, unit * float(group.basis.scale[0]), cover

    def sample(self, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw the angle by inversion of its distribution function, the axis uniformly.

        The function is known on a grid of angles and cubic between them. A variance that is one number expanded, as by
        `torch.Tensor.expand`, needs one grid for all elements.
        """
        shape = variance.shape
        is_shared = variance.numel() > 1 and not any(variance.stride())
        v = _positive((variance.flatten()[:1] if is_shared else variance.flatten()).double() * self._unit**2)
        u = uniform((*v.shape, variance.numel() // max(1, v.numel())), v, generator)
        angle = self._quantile(v, u).reshape(*shape, 1)
        axis = normal((*shape, 3), v, generator)
        vector = angle / self._unit * axis / axis.norm(dim=-1, keepdim=True)
        vector = torch.where((variance >= 0).unsqueeze(-1), vector, math.nan)
        return self._group.exp(torch.where((variance == 0).unsqueeze(-1), 0.0, vector).to(variance.dtype))

    def _quantile(self, v: Tensor, u: Tensor) -> Tensor:
        """The angles ``[b, m]`` below which shares u ``[b, m]`` of the noise of variances ``[b]`` lie."""
        width = (7.0 * v.sqrt()).clamp(max=self._cover * math.pi).unsqueeze(-1) / (_NUM_GRID_ANGLES - 1)
        grid = width * torch.arange(_NUM_GRID_ANGLES, dtype=v.dtype, device=v.device)
        density = self._log_radial(grid, v.unsqueeze(-1)).exp() * (0.5 * grid).sin().square()
        # the density is even about both ends of the range of angles
        wide = torch.cat([density[..., 1:2], density, density[..., -2:-1]], -1)
        outer, inner = wide[..., :-3] + wide[..., 3:], wide[..., 1:-2] + wide[..., 2:-1]
        part = ((13.0 * inner - outer) / 24.0).clamp(min=0.0)  # integrals in units of the width, to fourth order
        total = part.sum(-1, keepdim=True)
        cumulative = torch.cat([torch.zeros_like(total), part.cumsum(-1) / total], -1)
        right = torch.searchsorted(cumulative, u).clamp(1, _NUM_GRID_ANGLES - 1)
        low, area = cumulative.gather(-1, right - 1), part.gather(-1, right - 1) / total
        first, last = (density.gather(-1, right - i) / total / area.clamp(min=1e-300) for i in (1, 0))
        share = ((u - low) / area.clamp(min=1e-300)).clamp(0.0, 1.0)
        # Hermite's cubic x -> (first + last - 2) x^3 + (3 - 2 first - last) x^2 + first x has integral one
        rise = (last - first) / (first + last).clamp(min=1e-300)
        flat = 1.0 - rise
        x = 2.0 * share / (flat + (flat.square() + 4.0 * rise * share).clamp(min=0.0).sqrt()).clamp(min=1e-150)
        cube, square = first + last - 2.0, 3.0 - 2.0 * first - last
        for _ in range(_NUM_NEWTON_STEPS):
            slope = (3.0 * cube * x + 2.0 * square) * x + first
            step = (((cube * x + square) * x + first) * x - share) / slope.clamp(min=1e-3)
            x = (x - step).clamp(0.0, 1.0)
        return width * (right - 1 + x)

    def log_density(self, w: Tensor, variance: Tensor) -> Tensor:
        length = self._unit * self._group.log(w).double().norm(dim=-1)
        v = _positive(self._unit**2 * variance.double())
        found = self._log_radial(length, v)
        if self._cover == 2:  # an even function of the distance to the end
            last, away = 2.0 * math.pi - _MIN_END_DISTANCE, self._end_distance(length)
            change = (
                0.5 * (_MIN_END_DISTANCE - away.square() / _MIN_END_DISTANCE) * self._slope(length.clamp(max=last), v)
            )
            found = torch.where(away < _MIN_END_DISTANCE, found + change * last, found)
        return _with_point_mass(found, variance, length == 0).to(w.dtype)

    def score(self, w: Tensor, variance: Tensor) -> Tensor:
        v = self._group.log(w).double()
        length = self._unit * v.norm(dim=-1)
        slope = self._slope(length, _positive(self._unit**2 * variance.double()))
        if self._cover == 2:  # odd in the distance to the end
            slope = slope * self._end_distance(length) / _MIN_END_DISTANCE
        return _steep((self._unit**2 * slope.unsqueeze(-1) * v).to(w.dtype), variance)

    def _end_distance(self, angle: Tensor) -> Tensor:
        """Distance to the largest angle of SU(2), where formulas are quotients of small numbers; bounded."""
        return (2.0 * math.pi - angle).clamp(max=_MIN_END_DISTANCE)

    def _log_radial(self, angle: Tensor, v: Tensor) -> Tensor:
        x, few, near, far = self._inside(angle, v)
        images = sum((weight * image for image, weight in self._images(x, near)), torch.zeros_like(x))
        harmonics = sum((size * (order * x).sin() for order, size in self._harmonics(far)), torch.zeros_like(x))
        log_near = near / 8.0 + math.log(self._cover) + 0.5 * math.log(2.0 * math.pi) - 1.5 * near.log()
        # below the bound of x, which is wide for noise of small variance, the angle itself
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
        """The angle away from the ends, whether images are used, and the variances for images and for harmonics."""
        x = angle.clamp(_MIN_END_DISTANCE, self._cover * math.pi - (_MIN_END_DISTANCE if self._cover == 2 else 0.0))
        return x, *_near_and_far(v)

    def _images(self, x: Tensor, v: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Images of an angle and their weights, relative to the nearest one, so that nothing underflows."""
        square = x.square()
        for turns in range(-_NUM_IMAGES, _NUM_IMAGES + 1):
            image = x + 2.0 * math.pi * self._cover * turns
            weight = (-0.5 * (image.square() - square) / v).exp()
            yield image, -weight if self._cover == 1 and turns % 2 else weight

    def _harmonics(self, v: Tensor) -> Iterator[tuple[float, Tensor]]:
        for twice in range(1, 2 * _NUM_HARMONICS, 2 if self._cover == 1 else 1):
            order = 0.5 * twice
            yield order, 2.0 * order * (-0.5 * (order**2 - 0.25) * v).exp()


@checked
class ProductHeatKernel(HeatKernel):
    """Independent noise on the factors of a product.

    Args:
        kernels: heat kernels of the factors.
        split: function from an element to elements of the factors.
        join: function from elements of the factors to an element.
    """

    def __init__(
        self, kernels: Sequence[HeatKernel], split: Callable[[Tensor], Sequence[Tensor]], join: Callable[..., Tensor]
    ) -> None:
        self._kernels, self._split, self._join = kernels, split, join

    def sample(self, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self._join(*(kernel.sample(variance, generator) for kernel in self._kernels))

    def log_density(self, w: Tensor, variance: Tensor) -> Tensor:
        parts = zip(self._kernels, self._split(w), strict=True)
        found = torch.stack([kernel.log_density(part, variance) for kernel, part in parts])
        return torch.where((found == -math.inf).any(0), -math.inf, found.sum(0))

    def score(self, w: Tensor, variance: Tensor) -> Tensor:
        parts = zip(self._kernels, self._split(w), strict=True)
        return torch.cat([kernel.score(part, variance) for kernel, part in parts], -1)


@checked
def has_equal_axes(group: LieGroup) -> bool:
    """Return True if all axes of the basis of ``group`` have the same length, and the basis is not rotated."""
    return group.scale.ndim == 1 and bool((group.scale == group.scale[0]).all())


def _near_and_far(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return whether images are used at variances in squared radians, and variances for images and for harmonics."""
    few = v < _SWITCH_VARIANCE
    return few, torch.where(few, v, 1.0), torch.where(few, _SWITCH_VARIANCE, v).clamp(max=_MAX_VARIANCE)


def _positive(variance: Tensor) -> Tensor:
    """Variances, with one in place of those that are not positive."""
    return torch.where(variance > 0, variance, 1.0)


def _with_point_mass(log_density: Tensor, variance: Tensor, at_identity: Tensor) -> Tensor:
    """Log-densities for positive variances, and those of the point mass at the identity for zero variance."""
    point = torch.where(at_identity, math.inf, -math.inf).to(log_density.dtype)
    return torch.where(variance > 0, log_density, torch.where(variance == 0, point, math.nan))


def _steep(score: Tensor, variance: Tensor) -> Tensor:
    """Scores for positive variances, infinite ones of the same signs for zero variance."""
    limit = torch.where(score == 0, 0.0, score.sign() * math.inf).to(score.dtype)
    some, none = (variance > 0).unsqueeze(-1), (variance == 0).unsqueeze(-1)
    return torch.where(some, score, torch.where(none, limit, math.nan))


class HarmonicAnalysis:
    """Optional second base class of a `LieGroup`, for closed forms that noise and densities on it use.

    A group overrides the methods whose answer it knows, in its own file. Without `_heat_kernel` its noise is simulated;
    without `_log_natural_volume` a compact group has no normal distributions; without `_natural_representation` the
    slowest mode in an anisotropic basis is bounded, not found.

    Example:
        >>> class Circle(HarmonicAnalysis, LieGroup):
        ...     def _log_natural_volume(self) -> float:
        ...         return math.log(2.0 * math.pi)
    """

    def _heat_kernel(self) -> HeatKernel | None:
        """Return the heat kernel of the group with its scale, or ``None`` where no closed form is known."""
        return None

    def _log_natural_volume(self) -> float | None:
        """Return the logarithm of the volume of a compact group, or ``None`` where it is not known.

        The volume is for the Haar measure that is Lebesgue measure of the algebra, in the natural basis, at the
        identity: :math:`8 \\pi^2` for SO(3).
        """
        return None

    def _natural_representation(self) -> Tensor | None:
        """Return the natural basis in a faithful unitary representation, complex ``[dim, n, n]``, or ``None``."""
        return None


@checked
def heat_kernel(group: LieGroup) -> HeatKernel | None:
    """The heat kernel of a group, or ``None`` where it is not known in closed form.

    The kernel is known for `Translation`, `Torus` with a scale for each angle, `SO` (3) and `SU` (2) with one scale,
    and products of these. A group of your own defines its kernel by `HarmonicAnalysis`.

    Args:
        group: the group, with its scale.
    """
    return group._heat_kernel() if isinstance(group, HarmonicAnalysis) else None


@checked
def log_haar_volume(group: LieGroup) -> float:
    """Logarithm of the volume of a compact group, for the Haar measure that is Lebesgue measure of its basis at e.

    Args:
        group: a compact group, with its scale.

    Raises:
        ConfigurationError: the volume is not known, see `HarmonicAnalysis`.
    """
    natural = group._log_natural_volume() if isinstance(group, HarmonicAnalysis) else None
    if natural is None:
        raise ConfigurationError(
            f"group: expected SO, SU, U, Torus, a product or another group whose volume is known, got {group!r}"
        )
    return natural - float(torch.linalg.slogdet(group.basis.rows).logabsdet)


@checked
def slowest_rate(group: LieGroup) -> float | None:
    r"""The rate at which noise of unit variance forgets the slowest mode of a compact group, in its basis.

    Modes are matrix entries of representations, which decay at the eigenvalues of

    .. math:: -\tfrac12 \sum_i d\rho(e_i)^2.

    The result is the smallest one whose eigenvector is not invariant, for :math:`\rho` the natural
    representation, its determinant, and products of two, :math:`\rho \otimes \rho` and :math:`\rho \otimes \bar\rho`,
    which hold the adjoint representation. That is exact on SO(3) and SU(2); elsewhere there may be bases in which a
    higher product is slower.

    Args:
        group: the group, with its scale.

    Returns:
        The rate; ``None`` for groups without a natural representation, see `HarmonicAnalysis`, and where the centre has
        two dimensions or more, or one in a skew basis: there the slowest product may be a high one.
    """
    centre = group.dim - int(torch.linalg.matrix_rank(group.algebra.structure_constants.flatten(1)))
    if centre > 1 or (centre and group.scale.ndim > 1):
        return None
    natural = group._natural_representation() if isinstance(group, HarmonicAnalysis) else None
    if natural is None:
        return None
    rows = group.basis.rows.to(natural)
    zero = natural.new_zeros(group.dim, 1, 1)
    trace = natural.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    rates = []
    for first, second in ((natural, zero), (trace, zero), (natural, natural), (natural, natural.conj())):
        # invariant vectors are found in the natural basis, where no other rate is small
        values, vectors = torch.linalg.eigh(_decay(first, second))
        moved = vectors[:, values > 1e-6]
        if moved.shape[1]:
            decay = _decay(*(torch.einsum("ij,jab->iab", rows, x) for x in (first, second)))
            rates.append(float(torch.linalg.eigvalsh(moved.mH @ decay @ moved)[0]))
    return min(rates)


def _decay(first: Tensor, second: Tensor) -> Tensor:
    """Minus half the sum of squares, in the product of two representations ``[dim, n, n]`` and ``[dim, m, m]``."""
    mixed = torch.einsum("iab,icd->acbd", first, second).flatten(2).flatten(0, 1)
    a, b = (torch.eye(x.shape[-1], dtype=x.dtype) for x in (first, second))
    return -0.5 * (torch.kron((first @ first).sum(0), b) + torch.kron(a, (second @ second).sum(0)) + 2.0 * mixed)
