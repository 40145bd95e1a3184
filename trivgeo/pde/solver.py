"""A pseudo-spectral solver for periodic evolution equations: an exponential Runge-Kutta integrator."""

from __future__ import annotations

import cmath
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from trivgeo.actions import Field
from trivgeo.checks import check_positive, checked
from trivgeo.errors import DomainError, ShapeError
from trivgeo.pde.predictions import prediction_error
from trivgeo.pde.spectral import FourierModes, SpectralEquation

_NUM_CONTOUR_POINTS = 32  # points of the circle over which the coefficients are means
_PROGRESS_BAR_DELAY = 2.0  # seconds after which a progress bar appears
_MIN_POINTS = 8  # points along an axis
_NUM_PROBED_WAVES = 8  # modes along an axis, of which multiples are probed for growth
_PROBED_FACTORS = (32, 1024)  # wave numbers that are probed, in units of the lowest ones of the grid
_MIN_GROWTH_RATIO = 4.0  # ratio of growth rates at these that shows growth without bound
_RESOLVED_SHARE = 0.75  # wave number, in units of the largest that is kept, beyond which modes are to be small
_MAX_UNRESOLVED_SIZE = 0.05  # root of the share of the power in these modes
_FEWEST_STEPS, _MOST_STEPS = 16, 2048  # of solutions whose steps are halved until they do not change
_REFINEMENTS = (2, 4, 8)  # of their grids
_MOST_POINTS = 2**18  # of such a grid; larger ones are not refined


@checked
def solve(
    equation: SpectralEquation, initial: Field, times: Sequence[float] | Float[Tensor, "*batch s"], max_step: float
) -> Field:
    r"""Solve :math:`u_t = L u + N(u)` from a periodic field at one time.

    The method is pseudo-spectral in space: products keep two thirds of the Fourier modes, so that there is no aliasing.
    In time it is the exponential Runge-Kutta method of order 4 of Cox and Matthews (ETDRK4), whose coefficients are
    means over a circle (Kassam and Trefethen 2005): a stiff L needs no small steps, and is exact where N vanishes.

    Modes of the initial field beyond `FourierModes.kept` are left out after the initial time unless the equation is
    linear: the wave numbers of the field have to be less than a third of the number of points. A warning says
    if these modes, or at any step the highest quarter of the modes that are kept, have more than a twentieth of the
    size of the solution: it is wrong by about as much, as a shock is whose width is less than a few points.

    Args:
        equation: the equation, with its multiplier and its product terms.
        initial: the field; every datum may have a grid and a time of its own.
        times: increasing times of the solution, from the time of the initial field on; at that time it is returned
            unchanged.
        max_step: the longest step in time.

    Returns:
        The solution as a block on the grid of the initial field, in its dtype.

    Raises:
        ConfigurationError: ``max_step`` is not positive.
        ShapeError: the initial field has several times, or fewer than 8 points on an axis, or coefficients that the
            equation returns do not broadcast to those of the field.
        DomainError: the times do not increase; or the equation is ill-posed: waves grow the faster the shorter they
            are, such as backward in a diffusion; or the solution blew up.
    """
    check_positive("max_step", max_step)
    counts, given = initial.counts, initial.grid.times.shape[-1]
    if given != 1 or min(counts) < _MIN_POINTS:
        raise ShapeError(
            f"initial: expected one time and at least {_MIN_POINTS} points an axis, got {given} times and "
            f"{list(counts)} points"
        )
    grid = initial.grid.at(times)
    gaps = grid.times.diff(dim=-1, prepend=initial.grid.times)
    if not bool((gaps[..., :1] >= 0).all() and (gaps[..., 1:] > 0).all()):
        raise DomainError(f"times: expected increasing times from {initial.grid.times.min():.6g} on, got {grid.times}")
    # data that share their grid and times share all coefficients
    steps, gaps = _shared(initial.grid.steps[..., 0, :, :], 2), _shared(gaps, 1)
    modes = FourierModes.of(steps, counts)
    start = initial.values.select(-1 - len(counts), 0)
    state = modes.to_modes(start)
    first = equation.nonlinear(modes, state)
    if first is not None:
        _check_coefficients("nonlinear", first, state)
        state = state * modes.kept
    linear = equation.linear(modes)
    _check_coefficients("linear", linear, state)
    _check_growth(equation, modes, steps, state)
    resolution = _Resolution(modes)
    if first is not None:
        resolution.see(modes.to_modes(start))
    values = []
    substeps = [max(1, math.ceil(float(gap.max()) / max_step)) for gap in gaps.unbind(-1)]
    with tqdm(total=sum(substeps), desc="solve", disable=None, delay=_PROGRESS_BAR_DELAY, leave=False) as bar:

        def see(state: Tensor) -> None:
            resolution.see(state)
            bar.update()

        states = _states(equation, modes, linear, state, gaps, substeps, see)
        for gap, state in zip(gaps.unbind(-1), states, strict=True):
            moved = gap[..., *[None] * (len(counts) + 1)] > 0
            values.append(torch.where(moved, modes.to_values(state), start))
    solution = torch.stack(values, -1 - len(counts))
    if not bool(torch.isfinite(solution).all()):
        raise DomainError(
            f"solution: expected finite values, but it blew up with {list(counts)} points and steps of {max_step:.3g}; "
            "take a smaller max_step, or more points"
        )
    resolution.warn(max_step)
    return Field(solution, grid)


def converged_solution(
    equation: SpectralEquation, initial: Field, times: Sequence[float], tolerance: float
) -> tuple[Float[Tensor, "b c s ..."], Float[Tensor, " b"]]:
    """Return solutions from periodic fields, and estimates of their errors, which say where there is none.

    The method is that of `solve`, in double precision, with twice as many points along each axis. Steps are halved
    until that changes a solution by less than the tolerance, or a largest number of steps is reached. Then solutions
    whose shortest waves are not as small have four and eight times as many points, up to a largest number, beyond
    which grids are those of the fields. Solutions that are not resolved, or blow up, raise no error and no warning.

    Args:
        equation: see `solve`.
        initial: fields at one time, from which solutions start; one batch dimension.
        times: increasing times above zero, counted from that of the field.
        tolerance: change, see `trivgeo.pde.predictions.prediction_error`.

    Returns:
        Solutions at the points of the initial fields; and the change by the last halving plus the size of the shortest
        waves that are kept in units of that of all waves, infinite where a solution is not finite.
    """
    dims, given = len(initial.counts), initial.values.detach().double().squeeze(2)
    steps = initial.grid.steps[..., 0, :, :].detach().double().expand(len(given), -1, -1)
    gaps = torch.tensor([0.0, *times], dtype=given.dtype, device=given.device).diff()

    def solved(rows: Tensor, factor: int, number: int) -> tuple[Tensor, Tensor]:
        """Solutions on a finer grid by a number of steps, and the sizes of their shortest waves."""
        modes = FourierModes.of(_shared(steps[rows] / factor, 2), [factor * n for n in initial.counts])
        resolution = _Resolution(modes)
        substeps = [math.ceil(number * float(gap) / times[-1]) for gap in gaps]
        state = modes.to_modes(_finer(given[rows], factor, dims))
        states = _states(equation, modes, equation.linear(modes), state, gaps, substeps, resolution.see)
        values = torch.stack([modes.to_values(state) for state in states], 2)
        given_points: tuple[Any, ...] = (..., *[slice(None, None, factor)] * dims)
        return values[given_points], resolution.sizes(state).amax(-1)

    with torch.no_grad():
        rows = torch.arange(len(given), device=given.device)
        solution = given.unsqueeze(2).repeat_interleave(len(times), 2)
        error = torch.full_like(steps[:, 0, 0], torch.inf)
        within = [f for f in _REFINEMENTS if math.prod(f * n for n in initial.counts) <= _MOST_POINTS]
        for factor in within or [1]:
            if not len(rows):
                break
            number, unresolved_rows = _FEWEST_STEPS, [rows[:0]]
            before, _ = solved(rows, factor, number)
            while len(rows) and number < _MOST_STEPS:
                number *= 2
                after, unresolved = solved(rows, factor, number)
                change = prediction_error(before, after, given[rows])
                estimate = torch.where(change.isnan(), torch.inf, change + unresolved)
                better = estimate <= error[rows]
                solution[rows[better]], error[rows[better]] = after[better], estimate[better]
                moving = ~(change < tolerance)
                unresolved_rows.append(rows[~moving & (unresolved >= tolerance)])
                rows, before = rows[moving], after[moving]
            rows = torch.cat(unresolved_rows)
    return solution, error


def _finer(values: Tensor, factor: int, dims: int) -> Tensor:
    """Values of periodic fields on a grid with a multiple of the points along each of the last axes."""
    for axis in range(-dims, 0):
        number = values.shape[axis]
        modes = torch.fft.rfft(values, dim=axis)
        if number % 2 == 0 and factor > 1:  # the shortest wave is one of a pair on the finer grid
            modes.narrow(axis, number // 2, 1).mul_(0.5)
        values = factor * torch.fft.irfft(modes, n=factor * number, dim=axis)
    return values


def _check_growth(equation: SpectralEquation, modes: FourierModes, steps: Tensor, state: Tensor) -> None:
    """Raise `DomainError` if short waves grow the faster the shorter they are: the solution depends on rounding."""
    coarse = tuple(min(n, _NUM_PROBED_WAVES) for n in modes.counts)
    scale = torch.tensor(modes.counts, dtype=torch.float64, device=steps.device) / torch.tensor(coarse).to(steps.device)
    probe = FourierModes.of(scale.unsqueeze(-1) * steps.double(), coarse)
    with torch.no_grad():
        near, far = (
            equation.growth_rates(probe._replace(wave=factor * probe.wave), modes, state).amax()
            for factor in _PROBED_FACTORS
        )
    if bool((far > 0) & (far > _MIN_GROWTH_RATIO * near)):
        raise DomainError(
            f"equation: expected a well-posed one, whose short waves do not grow without bound, got growth rates up to "
            f"{float(near):.3g} of waves of the grid shortened {_PROBED_FACTORS[0]} times and {float(far):.3g} of "
            f"those shortened {_PROBED_FACTORS[1]} times: {equation}"
        )


def _states(
    equation: SpectralEquation,
    modes: FourierModes,
    linear: Tensor,
    state: Tensor,
    gaps: Float[Tensor, "*batch s"],
    substeps: Sequence[int],
    see: Callable[[Tensor], None],
) -> Iterator[Tensor]:
    """Yield the coefficients of a solution after each gap of time, and show ``see`` those after each step."""
    is_linear = equation.nonlinear(modes, state) is None
    for gap, number in zip(gaps.unbind(-1), substeps, strict=True):
        step = gap[..., *[None] * (len(modes.counts) + 1)] / number
        if is_linear:
            state = torch.exp(step * number * linear) * state
        elif bool((gap > 0).any()):
            scheme = _ETDRK4(equation, modes, step, linear)
            for _ in range(number):
                state = scheme(state)
                see(state)
        yield state


class _Resolution:
    """The largest share of a solution in the shortest waves of a grid, over all times, without a wait for them."""

    def __init__(self, modes: FourierModes) -> None:
        counts = torch.tensor(modes.counts, device=modes.kept.device)
        axes = [torch.fft.fftfreq(n, 1 / n) for n in modes.counts[:-1]]
        axes.append(torch.arange(modes.counts[-1] // 2 + 1.0))
        shares = [3.0 * x.abs().to(modes.kept) / n for x, n in zip(axes, counts, strict=True)]
        share = torch.stack(torch.meshgrid(*shares, indexing="ij")).amax(0)
        # a mode of the last axis stands for two, with its complex conjugate
        weight = 1.0 + (axes[-1].to(share) > 0)
        self._waves = ((share > 0) * weight).to(share).flatten()
        self._tail = ((share > _RESOLVED_SHARE) * weight).to(share).flatten()
        self._largest: Tensor | None = None
        self._dims = len(modes.counts)

    def see(self, state: Tensor) -> None:
        """Take in the coefficients of a solution at one time."""
        state = state.detach()
        power = (state.real.square() + state.imag.square()).flatten(-self._dims)
        waves = power @ self._waves.to(power)
        # a component that is rounding beside the others, or beside its mean, is not judged
        rounding = torch.finfo(power.dtype).eps * (waves + power[..., 0]).sum(-1, keepdim=True)
        share = (power @ self._tail.to(power)) / torch.maximum(waves, rounding).clamp(min=torch.finfo(power.dtype).tiny)
        self._largest = share if self._largest is None else torch.maximum(self._largest, share)

    def sizes(self, state: Tensor) -> Tensor:
        """The sizes of the shortest waves of components, in units of those of all waves; zero if no step was seen."""
        return state.new_zeros(state.shape[: -self._dims]).real if self._largest is None else self._largest.sqrt()

    def warn(self, max_step: float) -> None:
        """Warn if a solution was not resolved."""
        if self._largest is None or not self._largest.numel():
            return
        size = self._largest.sqrt()
        if bool((wrong := size > _MAX_UNRESOLVED_SIZE).any()):
            warnings.warn(
                f"solution: expected one that the grid resolves, with at most {_MAX_UNRESOLVED_SIZE:.0%} of its size "
                f"in the shortest waves, got {float(size.max()):.1%}; {int(wrong.sum())} of {wrong.numel()} components "
                f"of data are wrong by about as much: take more points, or steps shorter than {max_step:.3g}",
                RuntimeWarning,
                stacklevel=5,
            )


def _check_coefficients(name: str, values: Tensor, state: Tensor) -> None:
    """Raise `ShapeError` unless values returned by a method of an equation broadcast to the coefficients of a field."""
    expected = state.shape
    if values.ndim > len(expected) or any(
        n not in (1, m) for n, m in zip(reversed(values.shape), reversed(expected), strict=False)
    ):
        raise ShapeError(
            f"{name}: expected coefficients that broadcast to those of the field, {list(expected)}, got "
            f"{list(values.shape)}"
        )


class _ETDRK4:
    """The coefficients of the method for one length of steps, and a step as a call."""

    def __init__(self, equation: SpectralEquation, modes: FourierModes, step: Tensor, linear: Tensor) -> None:
        self._equation, self._modes = equation, modes
        kind = torch.complex64 if step.dtype == torch.float32 else torch.complex128
        z = (step * linear).to(torch.complex128)
        q = torch.zeros_like(z)
        sums = [q, q.clone(), q.clone(), q.clone()]
        for k in range(_NUM_CONTOUR_POINTS):
            at = z + cmath.rect(1.0, 2 * math.pi * (k + 0.5) / _NUM_CONTOUR_POINTS)
            e, half, cube = at.exp(), (0.5 * at).exp(), at**3
            sums[0] += (half - 1) / at
            sums[1] += (-4 - at + e * (4 - 3 * at + at**2)) / cube
            sums[2] += (2 + at + e * (at - 2)) / cube
            sums[3] += (-4 - 3 * at - at**2 + e * (4 - at)) / cube
        self._q, self._f1, self._f2, self._f3 = ((step * total / _NUM_CONTOUR_POINTS).to(kind) for total in sums)
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
    """One row with batch dimensions of size one, if all rows are equal, else all of them."""
    rows = x.reshape(-1, *x.shape[x.ndim - event :])
    if len(rows) and bool((rows == rows[:1]).all()):
        return rows[0].reshape(*[1] * (x.ndim - event), *rows.shape[1:])
    return x
