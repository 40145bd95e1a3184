"""Noise whose law is known: heat kernels on vector groups, tori, SO(3), SU(2) and their products."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import singledispatch

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import normal, uniform
from trivgeo._text import Described
from trivgeo.groups import SO, SU, DirectProduct, LieGroup, Torus, Translation, U

__all__ = ["HeatKernel", "heat_kernel", "slowest_rate"]

_SWITCH = 3.0  # variance, in units of a turn of one radian, where images and harmonics both need few terms
_IMAGES = 2
_HARMONICS = 6
_GRID = 200


class HeatKernel(Described, ABC):
    r"""The law k_t of `NoiseKernel` in closed form; it depends on the schedule only by :math:`V = \int_0^t \gamma^2`.

    Made by `heat_kernel`. Variances ``[*batch]`` have one row for each element; elements are on their device and in
    their dtype. Densities are for left Haar measure, of total mass one on compact factors, and on vector groups that of
    the coordinates in the basis.
    """

    @abstractmethod
    def sample(self, variance: Float[Tensor, "*batch"], generator: torch.Generator | None = None) -> Tensor:
        """One element for each variance, ``[*batch, *element_shape]``."""

    @abstractmethod
    def log_density(self, w: Tensor, variance: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """log k_t at elements ``[*batch, *element_shape]``."""

    @abstractmethod
    def score(self, w: Tensor, variance: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch n"]:
        """The trivialized gradient of that."""


@singledispatch
def heat_kernel(group: LieGroup) -> HeatKernel | None:
    """The heat kernel of a group, or ``None`` where it is not known in closed form.

    Known for `Translation`, `Torus` with a scale for each angle, `SO` (3) and `SU` (2) with one scale, and products of
    these. Of another group: register a function of it, as with any `functools.singledispatch`.

    Args:
        group: see `TrivializedSDE`.
    """
    return None


class _Normal(HeatKernel):
    """On a vector group."""

    def __init__(self, group: LieGroup) -> None:
        self._group = group

    def sample(self, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
        z = normal((*variance.shape, self._group.dim), variance, generator)
        return self._group.exp(variance.sqrt().unsqueeze(-1) * z)

    def log_density(self, w: Tensor, variance: Tensor) -> Tensor:
        v = self._group.log(w)
        return -0.5 * (v.square().sum(-1) / variance + self._group.dim * (2.0 * math.pi * variance).log())

    def score(self, w: Tensor, variance: Tensor) -> Tensor:
        return -self._group.log(w) / variance.unsqueeze(-1)


class _Wrapped(_Normal):
    r"""On a torus: images :math:`\sum_k e^{-(\theta + 2 \pi k)^2 / 2 V}`, or harmonics, angle by angle."""

    def log_density(self, w: Tensor, variance: Tensor) -> Tensor:
        return self._parts(w, variance)[0].sum(-1)

    def score(self, w: Tensor, variance: Tensor) -> Tensor:
        return self._group.basis.scale.to(w) * self._parts(w, variance)[1]

    def _parts(self, w: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density for Haar measure of mass one, and its derivative, of each angle."""
        angle = self._group.project(w)
        scaled = variance.unsqueeze(-1) * self._group.basis.scale.to(w).square()
        few = scaled < _SWITCH
        near = torch.where(few, scaled, 1.0).unsqueeze(-1)
        turns = 2.0 * math.pi * torch.arange(-_IMAGES, _IMAGES + 1, dtype=w.dtype, device=w.device)
        image = angle.unsqueeze(-1) + turns
        exponent = -0.5 * image.square() / near
        images = exponent.logsumexp(-1) + 0.5 * (2.0 * math.pi / near.squeeze(-1)).log()
        pull = -(exponent.softmax(-1) * image / near).sum(-1)
        far = torch.where(few, _SWITCH, scaled).unsqueeze(-1)
        order = torch.arange(1, _HARMONICS, dtype=w.dtype, device=w.device)
        size = 2.0 * (-0.5 * order.square() * far).exp()
        wave = order * angle.unsqueeze(-1)
        total = 1.0 + (size * wave.cos()).sum(-1)
        slope = -(size * order * wave.sin()).sum(-1) / total
        return torch.where(few, images, total.log()), torch.where(few, pull, slope)


class _Rotations(HeatKernel):
    r"""On SO(3) and SU(2), a function of the angle :math:`\omega` of the rotation.

    .. math:: k = \sum_l (2 l + 1) e^{-l (l + 1) V / 2} \frac{\sin (l + \frac12) \omega}{\sin \frac12 \omega}
        = \frac{e^{V / 8}}{\sin \frac12 \omega} \frac{c \sqrt{2 \pi / V}}V
            \sum_k (\pm 1)^k (\omega + k P) e^{-(\omega + k P)^2 / 2 V},

    l = 0, 1, ... with P = 2 pi, c = 1 and alternating signs on SO(3); l = 0, 1/2, ... with P = 4 pi, c = 2 on SU(2).
    The second form (Poisson's) is for small V. In double precision throughout.
    """

    def __init__(self, group: LieGroup, unit: float, cover: int) -> None:
        self._group, self._unit, self._cover = group, unit * float(group.basis.scale[0]), cover

    def sample(self, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """By inversion of the distribution function of the angle, on a grid, and an axis."""
        v = variance.double() * self._unit**2
        last = (7.0 * v.sqrt()).clamp(max=self._cover * math.pi)
        grid = last.unsqueeze(-1) * torch.linspace(0.0, 1.0, _GRID, dtype=v.dtype, device=v.device)
        density = self._log_radial(grid, v.unsqueeze(-1)).exp() * (0.5 * grid).sin().square()
        cumulative = torch.cat([torch.zeros_like(grid[..., :1]), (density[..., 1:] + density[..., :-1]).cumsum(-1)], -1)
        cumulative = cumulative / cumulative[..., -1:]
        u = uniform((*variance.shape, 1), v, generator)
        right = torch.searchsorted(cumulative, u).clamp(1, _GRID - 1)
        low, high = (cumulative.gather(-1, right - i) for i in (1, 0))
        share = (u - low) / (high - low).clamp(min=1e-300)
        angle = grid.gather(-1, right - 1) + share * grid[..., 1:2]
        axis = normal((*variance.shape, 3), v, generator)
        vector = angle / self._unit * axis / axis.norm(dim=-1, keepdim=True)
        return self._group.exp(vector.to(variance.dtype))

    def log_density(self, w: Tensor, variance: Tensor) -> Tensor:
        length = self._unit * self._group.log(w).double().norm(dim=-1)
        return self._log_radial(length, self._unit**2 * variance.double()).to(w.dtype)

    def score(self, w: Tensor, variance: Tensor) -> Tensor:
        v = self._group.log(w).double()
        length = self._unit * v.norm(dim=-1)
        slope = self._slope(length, self._unit**2 * variance.double())
        return (self._unit**2 * slope.unsqueeze(-1) * v).to(w.dtype)

    def _log_radial(self, angle: Tensor, v: Tensor) -> Tensor:
        """log k."""
        x, few, near, far = self._inside(angle, v)
        images = sum((weight * image for image, weight in self._images(x, near)), torch.zeros_like(x))
        harmonics = sum((size * (order * x).sin() for order, size in self._harmonics(far)), torch.zeros_like(x))
        log_near = near / 8.0 + math.log(self._cover) + 0.5 * math.log(2.0 * math.pi) - 1.5 * near.log()
        # the angle itself below the bound of x, which far down is wide for the noise
        log_near = log_near - 0.5 * torch.minimum(angle, x).square() / near
        return torch.where(few, log_near, 0.0) + (torch.where(few, images, harmonics) / (0.5 * x).sin()).log()

    def _slope(self, angle: Tensor, v: Tensor) -> Tensor:
        """Its derivative over the angle divided by the angle; both are even and smooth at zero."""
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
        few = v < _SWITCH
        x = angle.clamp(1e-4, self._cover * math.pi - 1e-4)
        return x, few, torch.where(few, v, 1.0), torch.where(few, _SWITCH, v)

    # term by term, since sums over a short last dimension are slow

    def _images(self, x: Tensor, v: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Images of an angle and their weights, relative to the nearest one, so that nothing underflows."""
        square = x.square()
        for number in range(-_IMAGES, _IMAGES + 1):
            image = x + 2.0 * math.pi * self._cover * number
            weight = (-0.5 * (image.square() - square) / v).exp()
            yield image, -weight if self._cover == 1 and number % 2 else weight

    def _harmonics(self, v: Tensor) -> Iterator[tuple[float, Tensor]]:
        for twice in range(1, 2 * _HARMONICS, 2 if self._cover == 1 else 1):
            order = 0.5 * twice
            yield order, 2.0 * order * (-0.5 * (order**2 - 0.25) * v).exp()


class _Product(HeatKernel):
    """Independent noise on the factors."""

    def __init__(self, group: DirectProduct, kernels: list[HeatKernel], dims: list[int]) -> None:
        self._group, self._kernels, self._dims = group, kernels, dims

    def sample(self, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self._group.join(*(kernel.sample(variance, generator) for kernel in self._kernels))

    def log_density(self, w: Tensor, variance: Tensor) -> Tensor:
        parts = zip(self._kernels, self._group.split(w), strict=True)
        return torch.stack([kernel.log_density(part, variance) for kernel, part in parts]).sum(0)

    def score(self, w: Tensor, variance: Tensor) -> Tensor:
        parts = zip(self._kernels, self._group.split(w), strict=True)
        return torch.cat([kernel.score(part, variance) for kernel, part in parts], -1)


@heat_kernel.register
def _(group: Translation) -> HeatKernel | None:
    return _Normal(group)


@heat_kernel.register
def _(group: Torus) -> HeatKernel | None:
    return _Wrapped(group) if group.scale.ndim == 1 else None


@heat_kernel.register
def _(group: SO) -> HeatKernel | None:
    return _Rotations(group, 1.0, 1) if group.size == 3 and _is_isotropic(group) else None


@heat_kernel.register
def _(group: SU) -> HeatKernel | None:
    return _Rotations(group, 2.0, 2) if group.size == 2 and _is_isotropic(group) else None


@heat_kernel.register
def _(group: DirectProduct) -> HeatKernel | None:
    if group.scale.ndim != 1:
        return None
    scales = group.scale.split([factor.dim for factor in group.factors])
    factors = [factor.with_scale(scale) for factor, scale in zip(group.factors, scales, strict=True)]
    kernels = [kernel for kernel in map(heat_kernel, factors) if kernel is not None]
    return _Product(group, kernels, [f.dim for f in factors]) if len(kernels) == len(factors) else None


def _is_isotropic(group: LieGroup) -> bool:
    return group.scale.ndim == 1 and bool((group.scale == group.scale[0]).all())


def slowest_rate(group: LieGroup) -> float | None:
    r"""The rate at which noise of unit variance forgets the slowest mode of a compact group, in its basis.

    Modes are matrix entries of representations, which decay at the eigenvalues of

    .. math:: -\tfrac12 \sum_i d\rho(e_i)^2.

    The smallest one that is not of an invariant vector, for :math:`\rho` the entries of an element, their determinant,
    and products of two, :math:`\rho \otimes \rho` and :math:`\rho \otimes \bar\rho`, which hold the adjoint
    representation. That is exact on SO(3) and SU(2); elsewhere there may be bases in which a higher product is slower.

    Args:
        group: `SO`, `SU`, `U`, or a product with such.

    Returns:
        The rate; none for groups of another kind, and where two angles or more, or skew ones, are of the centre: there
        the slowest product may be a high one.
    """
    centre = group.dim - int(torch.linalg.matrix_rank(group.algebra.structure_constants.flatten(1)))
    if centre > 1 or (centre and group.scale.ndim > 1):
        return None
    natural = _generators(group)
    if natural is None:
        return None
    rows = group.basis.rows.to(natural)
    none = natural.new_zeros(group.dim, 1, 1)
    trace = natural.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    rates = []
    for first, second in ((natural, none), (trace, none), (natural, natural), (natural, natural.conj())):
        # invariant vectors are told apart in the natural basis, where no other rate is small
        values, vectors = torch.linalg.eigh(_decay(first, second))
        moved = vectors[:, values > 1e-6]
        if moved.shape[1]:
            decay = _decay(*(torch.einsum("ij,jab->iab", rows, x) for x in (first, second)))
            rates.append(float(torch.linalg.eigvalsh(moved.mH @ decay @ moved)[0]))
    return min(rates)


def _decay(first: Tensor, second: Tensor) -> Tensor:
    """Minus half the sum of the squares, of the product of two representations ``[dim, n, n]`` and ``[dim, m, m]``."""
    mixed = torch.einsum("iab,icd->acbd", first, second).flatten(2).flatten(0, 1)
    a, b = (torch.eye(x.shape[-1], dtype=x.dtype) for x in (first, second))
    return -0.5 * (torch.kron((first @ first).sum(0), b) + torch.kron(a, (second @ second).sum(0)) + 2.0 * mixed)


@singledispatch
def _generators(group: LieGroup) -> Tensor | None:
    """What the natural basis is in the representation by the entries of elements, complex ``[dim, n, n]``."""
    return None


@_generators.register
def _(group: SO) -> Tensor | None:
    return group.with_scale(1.0).hat(torch.eye(group.dim, dtype=torch.float64)).to(torch.complex128)


@_generators.register(SU)
@_generators.register(U)
def _(group: SU | U) -> Tensor | None:
    return torch.view_as_complex(group.with_scale(1.0).hat(torch.eye(group.dim, dtype=torch.float64)).contiguous())


@_generators.register
def _(group: Torus) -> Tensor | None:
    return 1j * torch.diag_embed(torch.eye(group.dim, dtype=torch.complex128))


@_generators.register
def _(group: DirectProduct) -> Tensor | None:
    blocks = [_generators(factor) for factor in group.factors]
    known = [block for block in blocks if block is not None]
    if len(known) < len(blocks):
        return None
    size = sum(block.shape[-1] for block in known)
    total = torch.zeros(group.dim, size, size, dtype=torch.complex128)
    row = column = 0
    for block in known:
        dim, n, _ = block.shape
        total[row : row + dim, column : column + n, column : column + n] = block
        row, column = row + dim, column + n
    return total
