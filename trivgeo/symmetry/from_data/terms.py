"""Terms that an evolution equation may have, and their averages over windows of sampled solutions."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.errors import ConfigurationError
from trivgeo.symmetry.from_data.averages import Average

_SPACE_NAMES = ("x", "y", "z")
_UNKNOWN_NAMES = ("u", "v", "w", "p", "q")
_MAX_TERMS = 130  # terms of a library, the simplest
_BUMP_POWER = 8  # test functions are (1 - s^2)^8: their derivatives vanish at the ends
_HALF_WIDTHS = 5  # length of an axis in half-widths of test functions
_MIN_HALF_WIDTH = 4  # half-width of test functions, in points of the grid
_MAX_EXACT_DEGREE = 11  # degree of polynomials that are integrated by parts exactly
_STRIDES = 3  # steps between test functions in a half-width
_MAX_SEAM_RATIO = 3.0  # jump of a difference across the ends of a periodic axis, relative to those within
_MAX_VALUES = 500_000  # values whose terms are evaluated, if the least number of solutions has as few
_MIN_SOLUTIONS, _MAX_STRIDE = 4, 4  # of them, and of points used along an axis of several
_MIN_PART, _MIN_PART_TIMES = 2, 25  # solutions and times of a part
_WIDEST_STENCIL = 8  # order of the differences that read smooth data along an axis with ends

Jet = tuple[int, tuple[int, ...]]  # an unknown, and the order of its derivative along each axis
Monomial = tuple[Jet, ...]


class Term(NamedTuple):
    r"""The derivative :math:`\partial^J` of a product of unknowns and their derivatives.

    Attributes:
        outer: the order J along each axis.
        factors: the factors, sorted.
    """

    outer: tuple[int, ...]
    factors: Monomial

    @property
    def text(self) -> str:
        """The term as `trivgeo.symmetry.find_symmetries` reads it."""
        parts = []
        for (unknown, index), power in Counter(self.factors).items():
            name = _derivative(_UNKNOWN_NAMES[unknown], index)
            parts.append(f"{name}^{power}" if power > 1 else name)
        return _derivative("*".join(parts) or "1", self.outer)

    @property
    def complexity(self) -> tuple[int, int, int]:
        """Simple terms first: the degree and the order, then the number of inner derivatives."""
        order = sum(self.outer) + sum(sum(index) for _, index in self.factors)
        return len(self.factors) + order, order, sum(any(index) for _, index in self.factors)

    def expanded(self) -> dict[Monomial, int]:
        """The term as a sum of products of derivatives."""
        total = {self.factors: 1}
        for axis, order in enumerate(self.outer):
            for _ in range(order):
                following: Counter[Monomial] = Counter()
                for monomial, count in total.items():
                    for place, (unknown, index) in enumerate(monomial):
                        raised = tuple(k + (a == axis) for a, k in enumerate(index))
                        new = tuple(sorted((*monomial[:place], (unknown, raised), *monomial[place + 1 :])))
                        following[new] += count
                total = dict(following)
        return total


def _derivative(name: str, index: Sequence[int]) -> str:
    steps = "".join(f", {x}, {k}" for x, k in zip(_SPACE_NAMES, index, strict=False) if k)
    return f"diff({name}{steps})" if steps else name


def library_of(unknowns: int, dims: int, order: int, degree: int) -> list[Term]:
    """Derivatives of powers and products, and products of derivatives, up to an order and a degree; simple ones first.

    A product of derivatives that is a multiple of a derivative of one power is not listed twice.
    """
    still = (0,) * dims
    indices = [i for i in itertools.product(range(order + 1), repeat=dims) if sum(i) <= order]
    jets = [(u, i) for u in range(unknowns) for i in indices]
    terms = [
        Term(index, ((u, still),) * power)
        for u in range(unknowns)
        for power in range(1, degree + 1)
        for index in indices
    ]
    known = {next(iter(e)) for t in terms if len(e := t.expanded()) == 1}
    terms += [Term(still, monomial) for monomial in _monomials(jets, order, degree) if monomial not in known]
    return sorted(terms, key=lambda term: term.complexity)[:_MAX_TERMS]


def _monomials(jets: Sequence[Jet], order: int, degree: int) -> Iterable[Monomial]:
    """All products of jets within an order and a degree, each sorted, with the empty one."""
    jets = sorted(jets)

    def extend(start: int, chosen: Monomial, order_left: int, degree_left: int) -> Iterable[Monomial]:
        yield chosen
        if degree_left:
            for place in range(start, len(jets)):
                used = sum(jets[place][1])
                if used <= order_left:
                    yield from extend(place, (*chosen, jets[place]), order_left - used, degree_left - 1)

    return extend(0, (), order, degree)


class Reading(NamedTuple):
    """How derivatives in space are read from the grid.

    Attributes:
        order: order of accuracy of central differences; 0 for the derivative of the interpolating waves.
        is_conservative: first derivatives of powers are differences of powers, and not powers times differences.
    """

    order: int
    is_conservative: bool


def stencil(derivative: int, order: int) -> dict[int, float]:
    """The central difference of least width: weights by offset, for steps of one."""
    half = (derivative + 1) // 2 + order // 2 - 1
    offsets = np.arange(-half, half + 1.0)
    powers = np.vander(offsets, increasing=True).T
    right = np.zeros(2 * half + 1)
    right[derivative] = math.factorial(derivative)
    weights = np.linalg.solve(powers, right)
    return {int(k): float(w) for k, w in zip(offsets, weights, strict=True) if abs(w) > 1e-12}


class Axis:
    """One axis of the grid, and the test functions on it."""

    def __init__(self, name: str, coordinates: Tensor, is_periodic: bool, margin: int) -> None:
        values = coordinates.double().cpu()
        count, steps = len(values), values.diff()
        self.name, self.values, self.is_periodic, self.step = name, values, is_periodic, float(steps.mean())
        self.margin = 0 if is_periodic else margin
        self.used = 1  # every so many points are averaged
        self._weights: dict[tuple[int, int], Tensor] = {}
        usable = count - 2 * self.margin
        self.half = max(_MIN_HALF_WIDTH, (usable - 1) // _HALF_WIDTHS)
        stride = max(1, self.half // _STRIDES)
        if is_periodic:
            self.centres = torch.arange(0, count, stride)
        else:
            self.centres = torch.arange(self.margin + self.half, count - self.margin - self.half, stride)

    def weights(self, order: int = 0) -> Float[Tensor, "w n"]:
        """Weights of integrals against derivatives of the test functions, with the sign from integration by parts."""
        key = (order, self.used)
        if key not in self._weights:
            self._weights[key] = self._weights_of(order)
        return self._weights[key]

    def _weights_of(self, order: int) -> Tensor:
        bump = np.polynomial.Polynomial([1.0, 0.0, -1.0]) ** _BUMP_POWER
        nodes, width = np.linspace(-1.0, 1.0, 2 * self.half + 1), self.half * self.step
        heights = bump(nodes) / bump(nodes).sum()
        sums = heights
        if order:
            # integration by parts holds on the grid for polynomials of low degree
            size = min(_MAX_EXACT_DEGREE, self.half + 1) + 1
            powers = np.polynomial.legendre.legvander(nodes, size - 1).T
            slopes = [np.polynomial.legendre.Legendre.basis(k).deriv(order)(nodes) @ heights for k in range(size)]
            sums = (-1) ** order * bump.deriv(order)(nodes) / bump(nodes).sum()
            sums = sums + heights * (powers.T @ np.linalg.solve((powers * heights) @ powers.T, slopes - powers @ sums))
        local = torch.as_tensor(sums / width**order)
        rows = torch.zeros(len(self.centres), len(self.values), dtype=torch.float64)
        places = (self.centres[:, None] + torch.arange(-self.half, self.half + 1)) % len(self.values)
        rows = rows.scatter_add(1, places, local.expand(len(rows), -1))[:, :: self.used]
        return rows if order else rows / rows.sum(1, keepdim=True)

    def basis(self, size: int) -> Float[Tensor, "k n"]:
        """Slow functions of the coordinate, the constant first, each of mean square one."""
        count = len(self.values)
        if self.is_periodic:
            angle = 2 * math.pi * torch.arange(count, dtype=torch.float64) / count
            waves = [f(k * angle) * 2**0.5 for k in range(1, size // 2 + 1) for f in (torch.cos, torch.sin)]
            return torch.stack([torch.ones_like(angle), *waves])[:size]
        s = np.linspace(-1.0, 1.0, count)
        legendre = np.polynomial.legendre.legvander(s, size - 1).T * np.sqrt(2 * np.arange(size) + 1)[:, None]
        return torch.as_tensor(legendre)


class Windows:
    """Solutions, and averages of terms over windows of them.

    Args:
        values: solutions, time before space.
        axes: the coordinates of time and of each axis of space, equidistant.
    """

    def __init__(self, values: Float[Tensor, "b c s ..."], axes: Sequence[Tensor]) -> None:
        for coordinates in axes:
            steps, count = coordinates.double().diff(), len(coordinates)
            if count < 2 * _MIN_HALF_WIDTH + 1 or not torch.allclose(steps, steps.mean().expand_as(steps), rtol=1e-4):
                raise ConfigurationError(
                    f"grid: expected at least {2 * _MIN_HALF_WIDTH + 1} equidistant coordinates an axis, got {count}"
                )
        self.values = values.double().cpu()
        self.unknowns, self.dims = values.shape[1], len(axes) - 1
        self.time = Axis("t", axes[0], False, 0)
        periodic = [self._is_periodic(3 + i) for i in range(self.dims)]
        margins = [min(5, (len(a) - 2 * _MIN_HALF_WIDTH - 1) // 2) for a in axes[1:]]
        names = _SPACE_NAMES[: self.dims]
        self.space = [Axis(*given) for given in zip(names, axes[1:], periodic, margins, strict=True)]
        self._thin()

    def part(self, size: int) -> Windows:
        """Windows of about so many values: the first solutions, two at least, and of large ones the first times."""
        count = max(_MIN_PART, size // self.values[0].numel())
        times = max(_MIN_PART_TIMES, size // self.values[:count, :, 0].numel())
        if count >= len(self.values) and times >= self.values.shape[2]:
            return self
        coordinates = [axis.values for axis in self.axes]
        return Windows(self.values[:count, :, :times], [coordinates[0][:times], *coordinates[1:]])

    @property
    def axes(self) -> list[Axis]:
        """Time, and the axes of space."""
        return [self.time, *self.space]

    def without(self, average: Average) -> Windows | None:
        """Windows of the values that were averaged; ``None`` if an axis is too short."""
        axes = self.axes
        coordinates = [axis.values for axis in axes]
        for place in average.places:
            if not axes[place].is_periodic:
                coordinates[place] = coordinates[place][average.margin : -average.margin]
        if min(map(len, coordinates)) <= 2 * _MIN_HALF_WIDTH:
            return None
        return Windows(average.undone(self.values, [axis.is_periodic for axis in axes]), coordinates)

    def _is_periodic(self, axis: int) -> bool:
        """Return True if differences across the ends of an axis are like those within."""
        u = self.values.movedim(axis, -1)
        difference = u
        for _ in range(4):
            difference = difference.roll(-1, -1) - difference
        sizes = difference.square().flatten(0, -2).mean(0).sqrt()
        seam, within = sizes[-4:].max(), sizes[:-4]
        return bool(seam <= _MAX_SEAM_RATIO * within.square().mean().sqrt()) and len(sizes) > 2 * 4

    def _thin(self) -> None:
        """Use fewer solutions, points and times where there are more than are needed."""
        count = self.values[0].numel()
        strides = range(1, _MAX_STRIDE + 1) if self.dims > 1 else [1]
        used = next((k for k in strides if _MIN_SOLUTIONS * count <= _MAX_VALUES * k**self.dims), strides[-1])
        for axis in self.space:
            axis.used = min(used, max(1, axis.half // 3))
        count //= math.prod(axis.used for axis in self.space)
        wanted = -(-count * min(len(self.values), max(_MAX_VALUES // count, _MIN_SOLUTIONS)) // _MAX_VALUES)
        for stride in range(min(wanted, self.time.half // _MIN_HALF_WIDTH), 1, -1):
            if self._thin_times(stride):
                count //= stride
                break
        self.values = self.values[:: -(-len(self.values) // max(_MAX_VALUES // count, _MIN_SOLUTIONS))]

    def _thin_times(self, stride: int) -> bool:
        """Take every so many times, each averaged over its neighbours, if that keeps all but noise."""
        times = self.values.shape[2]
        half, degree = stride + stride // 2, 4
        nodes = torch.arange(-half, half + 1, dtype=torch.float64) / half
        fit = torch.linalg.pinv(torch.stack([nodes**k for k in range(degree + 1)], 1))[0]
        centres = torch.arange(half, times - half, stride)
        weights = torch.zeros(len(centres), times, dtype=torch.float64)
        weights.scatter_(1, centres[:, None] + torch.arange(-half, half + 1), fit.expand(len(centres), -1))
        averaged = torch.einsum("ts,bcs...->bct...", weights, self.values)
        kept = self.values[:, :, centres]
        noise = float(self.values.diff(4, 2).square().mean().sqrt()) / math.comb(8, 4) ** 0.5
        if float((averaged - kept).square().mean().sqrt()) > 2 * noise + 1e-6 * float(kept.square().mean().sqrt()):
            return False
        self.values, self.time = averaged, Axis("t", self.time.values[centres], False, 0)
        return True

    @cached_property
    def readings(self) -> list[Reading]:
        """Readings of derivatives, the sharpest first."""
        sharpest = 0 if all(a.is_periodic for a in self.space) else _WIDEST_STENCIL
        choices = [Reading(order, kind) for order in (sharpest, 2) for kind in (True, False)]
        if self.dims == 1:
            choices.insert(2, Reading(4, True))
        else:
            choices.pop(1)
        narrow = min(a.margin for a in self.space if not a.is_periodic) if sharpest else 5
        return choices if narrow >= 5 else [r for r in choices if r.order <= 2]

    def derivative(self, values: Tensor, index: Sequence[int], reading: Reading) -> Tensor:
        """A derivative of values ``[b, s, *n]`` in space."""
        for i, (axis, order) in enumerate(zip(self.space, index, strict=True)):
            if not order:
                continue
            place = 2 + i
            if reading.order:
                taps = stencil(order, reading.order).items()
                values = torch.stack([w * values.roll(-k, place) for k, w in taps]).sum(0) / axis.step**order
            else:
                n = values.shape[place]
                wave = 2 * math.pi * torch.fft.rfftfreq(n, axis.step, dtype=torch.float64)
                factor = (1j * wave) ** order
                if order % 2 and n % 2 == 0:
                    factor[-1] = 0
                factor = factor.reshape(-1, *[1] * (values.ndim - place - 1))
                values = torch.fft.irfft(torch.fft.rfft(values, dim=place) * factor, n, dim=place)
        return values

    def evaluated(self, term: Term, reading: Reading, jets: dict[Jet, Tensor]) -> Tensor:
        """A term at the points that are used, ``[b, s, *m]``; ``jets`` keeps derivatives for other terms."""

        def jet(key: Jet) -> Tensor:
            if key not in jets:
                jets[key] = self.used(self.derivative(self.values[:, key[0]], key[1], reading))
            return jets[key]

        def product(factors: Monomial) -> Tensor:
            result = torch.ones_like(self.used(self.values[:, 0]))
            for key, power in Counter(factors).items():
                result = result * jet(key) ** power
            return result

        if sum(term.outer) == 1 and len(term.factors) > 1 and not reading.is_conservative:
            return torch.stack([count * product(monomial) for monomial, count in term.expanded().items()]).sum(0)
        if len(term.factors) == 1:
            unknown, index = term.factors[0]
            return jet((unknown, tuple(i + j for i, j in zip(index, term.outer, strict=True))))
        if not any(term.outer):
            return product(term.factors)
        # products under a derivative are of unknowns alone, see `library_of`
        powers = Counter(unknown for unknown, _ in term.factors).items()
        whole = torch.stack([self.values[:, unknown] ** power for unknown, power in powers]).prod(0)
        return self.used(self.derivative(whole, term.outer, reading))

    def used(self, values: Tensor) -> Tensor:
        """The points ``[b, s, *m]`` of ``[b, s, *n]`` that averages are taken of."""
        return values[(slice(None), slice(None), *(slice(None, None, axis.used) for axis in self.space))]

    def averages(self, values: Tensor, time_order: int = 0, varied: int | None = None, size: int = 1) -> Tensor:
        """Averages over windows of values ``[b, s, *m]``, times slow functions of one axis: ``[b, t, w, k]``.

        Args:
            time_order: order of a derivative in time.
            varied: the axis, 0 for time; default: no functions but the constant.
            size: number of functions.
        """
        result = values
        for place, axis in enumerate(self.axes):
            weights = axis.weights(time_order if place == 0 else 0)
            if place == varied:
                weights = (weights.unsqueeze(0) * axis.basis(size)[:, None, :: axis.used]).flatten(0, 1)  # [k * w, n]
            result = torch.tensordot(result, weights, dims=([1 + place], [1])).movedim(-1, 1 + place)
        if varied is not None:
            result = result.unflatten(1 + varied, (size, -1)).movedim(1 + varied, -1)
        else:
            result = result.unsqueeze(-1)
        return result.reshape(*result.shape[:2], -1, result.shape[-1])

    def target(self, unknown: int, times: int) -> Tensor:
        """Averages of a derivative in time, ``[b, t, w]``."""
        return self.averages(self.used(self.values[:, unknown]), times)[..., 0]

    def features(self, terms: Sequence[Term], reading: Reading, varied: int | None = None, size: int = 1) -> Tensor:
        """Averages of terms over windows, ``[b, t, w, terms, k]``."""
        jets: dict[Jet, Tensor] = {}
        return torch.stack([self.averages(self.evaluated(term, reading, jets), 0, varied, size) for term in terms], -2)
