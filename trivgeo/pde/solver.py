"""A pseudo-spectral solver for periodic evolution equations: Fourier modes, and an exponential integrator."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from tqdm import tqdm

from trivgeo._text import Described
from trivgeo.actions import Field
from trivgeo.checks import check_positive
from trivgeo.errors import DomainError, ShapeError

__all__ = ["Modes", "SpectralEquation", "solve"]

_CONTOUR = 32  # points of the circle by which the coefficients are averaged
_BAR_AFTER = 2.0  # seconds after which a progress bar appears
_LEAST_POINTS = 8


class Modes(NamedTuple):
    """The Fourier modes of a periodic grid.

    Attributes:
        wave: the wave vectors in d dimensions, ``[*batch, d, *m]``, where *m are the modes of `torch.fft.rfftn`.
        kept: one for the modes, fewer than a third of the points each way, that a product of two functions leaves free
            of aliasing, zero for others, ``[*m]``.
        counts: the numbers of points along the axes.
    """

    wave: Tensor
    kept: Tensor
    counts: tuple[int, ...]

    @classmethod
    def of(cls, steps: Float[Tensor, "*batch d d"], counts: Sequence[int]) -> Modes:
        """The modes of a grid with these `trivgeo.actions.Grid` steps; the lattice may be oblique."""
        counts = tuple(counts)
        numbers = [torch.fft.fftfreq(n, 1 / n) for n in counts[:-1]]
        numbers.append(torch.arange(counts[-1] // 2 + 1))
        numbers = [number.to(steps) for number in numbers]
        number = torch.stack(torch.meshgrid(*numbers, indexing="ij"))
        kept = torch.stack([3 * m.abs() < n for m, n in zip(number, counts, strict=True)]).all(0)
        periods = torch.tensor(counts).to(steps).unsqueeze(-1) * steps
        wave = 2.0 * math.pi * torch.tensordot(torch.linalg.inv_ex(periods).inverse, number, 1)
        return cls(wave, kept.to(steps.dtype), counts)

    def to_modes(self, u: Float[Tensor, "..."]) -> Complex[Tensor, "..."]:
        """Fourier coefficients of values."""
        return torch.fft.rfftn(u.contiguous(), dim=self._axes)  # torch 2.8 on MKL refuses expanded batches

    def to_values(self, modes: Complex[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Values from coefficients."""
        return torch.fft.irfftn(modes, s=self.counts, dim=self._axes)

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(-len(self.counts), 0))

    def along(self, axis: int) -> Float[Tensor, "..."]:
        """One component of the wave vectors: a derivative along x_axis is a multiplication by i times that."""
        dims = len(self.counts)
        return self.wave.narrow(-dims - 1, axis, 1)

    @property
    def squared(self) -> Float[Tensor, "..."]:
        """The squared lengths of the wave vectors: minus the Laplace operator."""
        return self.wave.square().sum(-len(self.counts) - 1, keepdim=True)


class SpectralEquation(Described, ABC):
    r"""An equation :math:`u_t = L u + N(u)` for periodic functions, L a Fourier multiplier.

    ```python
    class Dissipative(SpectralEquation):  # u_t = -u u_x + 0.1 u_xx - u
        def linear(self, modes):
            return -0.1 * modes.squared - 1.0

        def nonlinear(self, modes, u):
            return -0.5j * modes.along(0) * modes.to_modes(modes.to_values(u) ** 2)
    ```
    """

    @abstractmethod
    def linear(self, modes: Modes) -> Tensor:
        """L, real or complex, ``[*batch, 1 or c, *m]``."""

    def nonlinear(self, modes: Modes, u: Complex[Tensor, "..."]) -> Tensor | None:
        """The coefficients of N(u), given those of u; ``None`` for a linear equation, which is solved exactly."""
        return None


def solve(
    equation: SpectralEquation, initial: Field, times: Sequence[float] | Float[Tensor, "*batch s"], max_step: float
) -> Field:
    r"""Solve :math:`u_t = L u + N(u)` from a periodic field at one time.

    Fourier modes in space, of which products keep two thirds (no aliasing); in time the exponential Runge-Kutta method
    of order 4 of Cox and Matthews (ETDRK4), whose coefficients are means over a circle (Kassam and Trefethen 2005):
    L, however stiff, costs no small steps and is exact where N vanishes.

    Waves of the initial field beyond the kept modes (`Modes.kept`) are no part of the solution unless the equation is
    linear: they are left out after the initial time. The grid has to resolve the field with less than a third of its
    points as wave numbers.

    Args:
        equation: see `SpectralEquation`.
        initial: the field; every datum may have a grid and a time of its own.
        times: of the solution, increasing and not before that of the initial field, where the field is as it came.
        max_step: the longest step in time.

    Returns:
        The solution as a block on the grid of the initial field, in its dtype.

    Raises:
        ConfigurationError: ``max_step`` is not positive.
        ShapeError: the initial field has several times, or fewer than 8 points on an axis.
        DomainError: the times do not increase, or the solution blew up.
    """
    check_positive("max_step", max_step)
    counts, given = initial.counts, initial.grid.times.shape[-1]
    if given != 1 or min(counts) < _LEAST_POINTS:
        raise ShapeError(
            f"initial: expected one time and at least {_LEAST_POINTS} points an axis, got {given} times and "
            f"{list(counts)} points"
        )
    grid = initial.grid.at(times)
    gaps = grid.times.diff(dim=-1, prepend=initial.grid.times)
    if not bool((gaps[..., :1] >= 0).all() and (gaps[..., 1:] > 0).all()):
        raise DomainError(f"times: expected increasing ones from {initial.grid.times.min():.6g} on, got {grid.times}")
    # data that share their grid and times share all coefficients
    steps, gaps = _shared(initial.grid.steps[..., 0, :, :], 2), _shared(gaps, 1)
    modes = Modes.of(steps, counts)
    start = initial.values.select(-1 - len(counts), 0)
    state = modes.to_modes(start)
    first = equation.nonlinear(modes, state)
    if first is not None:
        state = state * modes.kept
    linear = equation.linear(modes)
    values = []
    substeps = [max(1, math.ceil(float(gap.max()) / max_step)) for gap in gaps.unbind(-1)]
    with tqdm(total=sum(substeps), desc="solve", disable=None, delay=_BAR_AFTER, leave=False) as bar:
        for gap, number in zip(gaps.unbind(-1), substeps, strict=True):
            step = gap[..., *[None] * (len(counts) + 1)] / number
            if first is None:
                state = torch.exp(step * number * linear) * state
            elif bool((gap > 0).any()):
                scheme = _ETDRK4(equation, modes, step, linear)
                for _ in range(number):
                    state = scheme(state)
                    bar.update()
            values.append(torch.where(step > 0, modes.to_values(state), start))
    solution = torch.stack(values, -1 - len(counts))
    if not bool(torch.isfinite(solution).all()):
        raise DomainError(f"the solution blew up with {list(counts)} points and steps of {max_step:.3g}")
    return Field(solution, grid)


class _ETDRK4:
    """One step of the method, with its coefficients."""

    def __init__(self, equation: SpectralEquation, modes: Modes, step: Tensor, linear: Tensor) -> None:
        self._equation, self._modes = equation, modes
        kind = torch.complex64 if step.dtype == torch.float32 else torch.complex128
        z = (step * linear).to(torch.complex128)
        q = torch.zeros_like(z)
        sums = [q, q.clone(), q.clone(), q.clone()]
        for k in range(_CONTOUR):
            at = z + complex(math.cos(2 * math.pi * (k + 0.5) / _CONTOUR), math.sin(2 * math.pi * (k + 0.5) / _CONTOUR))
            e, half, cube = at.exp(), (0.5 * at).exp(), at**3
            sums[0] += (half - 1) / at
            sums[1] += (-4 - at + e * (4 - 3 * at + at**2)) / cube
            sums[2] += (2 + at + e * (at - 2)) / cube
            sums[3] += (-4 - 3 * at - at**2 + e * (4 - at)) / cube
        self._q, self._f1, self._f2, self._f3 = ((step * total / _CONTOUR).to(kind) for total in sums)
        self._half, self._full = (0.5 * z).exp().to(kind), z.exp().to(kind)

    def __call__(self, u: Tensor) -> Tensor:
        n0 = self._slope(u)
        resting = self._half * u
        a = resting + self._q * n0
        na = self._slope(a)
        b = resting + self._q * na
        nb = self._slope(b)
        c = self._half * a + self._q * (2 * nb - n0)
        nc = self._slope(c)
        return self._full * u + self._f1 * n0 + 2 * self._f2 * (na + nb) + self._f3 * nc

    def _slope(self, u: Tensor) -> Tensor:
        slope = self._equation.nonlinear(self._modes, u)
        assert slope is not None
        return self._modes.kept * slope


def _shared(x: Tensor, event: int) -> Tensor:
    """One row in place of equal ones, with dimensions of size one for the batch."""
    rows = x.reshape(-1, *x.shape[x.ndim - event :])
    if len(rows) and bool((rows == rows[:1]).all()):
        return rows[0].reshape(*[1] * (x.ndim - event), *rows.shape[1:])
    return x
