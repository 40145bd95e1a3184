"""The noise on a group: its kernel, and sample paths."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import log_abs_det
from trivgeo._random import normal, replayed
from trivgeo._text import Described
from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.groups.harmonic import heat_kernel
from trivgeo.sde.grid import uniform_grid
from trivgeo.sde.noise.schedule import Schedule, check_time


@checked
def noise_log_density(group: LieGroup, variance: float) -> Callable[[Tensor], Tensor]:
    r"""Log-density of :math:`\exp(\sqrt V z)` for left Haar measure, relative to the identity.

    .. math:: -|v|^2 / 2 V - \log |\det J_r(v)|, \quad v = \log g

    `LieGroup.random` with standard deviation :math:`\sqrt V` draws from this density where exp is one to one. On
    abelian groups whose `heat_kernel` is known, such as the torus, the result is :math:`\log k_t(g) / k_t(e)` and
    counts all logarithms of g. On other groups the density is close to the heat kernel's for small V, with other
    tails. **Where exp is not one to one, elements with longer logarithms are missing**: on a compact group, most of
    them once V is of order one.

    Args:
        group: the group of the elements.
        variance: V, the integral of gamma^2.

    Returns:
        A function of elements ``[*batch, *element_shape]`` to ``[*batch]``; NaN where no logarithm exists.
    """
    kernel = heat_kernel(group) if group.algebra.is_abelian else None

    def log_density(g: Tensor) -> Tensor:
        if kernel is not None:
            at, spread = group.identity(dtype=g.dtype, device=g.device), g.new_full(group.batch_shape(g), variance)
            return kernel.log_density(g, spread) - kernel.log_density(at, g.new_tensor(variance))
        v = group.log(g)
        return -0.5 * (v**2).sum(-1) / variance - log_volume(group, v)

    return log_density


def log_volume(group: LieGroup, v: Tensor) -> Tensor:
    r"""Return :math:`\log |\det J_r(v)|` on ``group``, computed in double precision, in the dtype of v.

    In single precision rounding can make the matrix singular.
    """
    if group.algebra.is_abelian:
        return v.new_zeros(v.shape[:-1])
    return log_abs_det(group.right_jacobian(v.double())).to(v)


def log_about(group: LieGroup, centre: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the logarithm v about a centre, and :math:`\log |\det J_r(v)|`.

    Args:
        centre: element c about which :math:`v = \log(c^{-1} g)` is taken.
        g: elements ``[*batch, *element_shape]``.

    Returns:
        Vectors ``[*batch, dim]``, and log-determinants ``[*batch]``; zero and infinity where no logarithm exists.
    """
    between = group.compose(group.inverse(centre), g)
    if group.num_components > 1:  # where there is no logarithm its derivative would be NaN
        known = group.has_log(between)
        unit = group.identity(dtype=between.dtype, device=between.device)
        known_between = torch.where(known.reshape(*known.shape, *[1] * unit.ndim), between, unit)
        v = torch.where(known.unsqueeze(-1), group.log(known_between), torch.nan)
    else:
        v = group.log(between)
    found = torch.isfinite(v).all(-1)
    v = torch.where(found.unsqueeze(-1), v, 0.0)
    return v, torch.where(found, log_volume(group, v), torch.inf)


def is_principal(v: Tensor, back: Tensor) -> Bool[Tensor, "*batch"]:
    """Return True where ``back``, log(exp(v)), is v to two fifths of the digits of the dtype, ``[*batch]``."""
    return (back - v).abs().amax(-1) < torch.finfo(v.dtype).eps ** 0.4 * (1.0 + v.abs().amax(-1))


_NUM_TIME_DIGITS = 12
"""Decimal places to which times are rounded before they are compared."""
_MAX_ROWS_PER_CALL = 2**14
"""Exponentials in one call, which are those of several steps where batches are small."""


@checked
@dataclass(frozen=True, repr=False)
class NoisePaths(Described):
    """Samples of the noise at several times, along the same paths.

    Attributes:
        times: T increasing times.
        elements: w_t, ``[T, *batch, *element_shape]``.
        log_modular: log lambda(w_t), ``[T, *batch]``.
    """

    times: tuple[float, ...]
    elements: Tensor
    log_modular: Tensor

    def at(self, t: float) -> tuple[Tensor, Float[Tensor, "*batch"]]:
        """Return ``w_t``, ``[*batch, *element_shape]``, and ``log lambda(w_t)``, ``[*batch]``, at one of the `times`.

        Raises:
            DomainError: t is none of the times.
        """
        index = _index([_rounded(s) for s in self.times], t)
        return self.elements[index], self.log_modular[index]


@checked
class NoiseKernel(Described):
    r"""The distribution k_t of the noise :math:`w_t` in :math:`g_t = g_0 w_t`.

    .. math:: dw_t = d(L_{w_t})_e[\gamma(t)\,d\mathbf w^{\mathfrak g}_t], \quad w_0 = e

    The noise is simulated by the exponential Euler scheme on a grid, :math:`w \leftarrow w \exp(\sigma z)` with the
    exact variance :math:`\sigma^2 = \int \gamma^2` of each step. Samples come with :math:`\log \lambda(w_t) = -\sum a
    \cdot \sigma z`.
    One set of paths gives the noise at every time of a run, in O(steps) exponentials.

    Args:
        group: the group of the elements.
        schedule: diffusion coefficient of the noise.
        steps: number of equal steps of the grid on [0, 1].

    Raises:
        ConfigurationError: ``steps`` is less than one, or the group or the schedule is of another type.
    """

    def __init__(self, group: LieGroup, schedule: Schedule, steps: int) -> None:
        if not isinstance(group, LieGroup):
            raise ConfigurationError(f"group: expected a LieGroup, got {group!r}")
        if not isinstance(schedule, Schedule):
            raise ConfigurationError(f"schedule: expected a Schedule, got {schedule!r}")
        self.group = group
        self.schedule = schedule
        self.steps = check_count("steps", steps)

    def sample(
        self,
        *batch: int,
        t: float | Float[Tensor, "*batch"],
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        antithetic: bool = False,
    ) -> tuple[Tensor, Float[Tensor, "*batch"]]:
        """Draw ``w ~ k_t`` and ``log lambda(w)``: ``[*batch, *element_shape]`` and ``[*batch]``.

        Args:
            batch: the batch shape.
            t: the time, in [0, 1], or one for each element, ``[*batch]``; then ``steps`` equal steps lead to each. Rows
                with a time outside are NaN.
            generator: random numbers; ``None`` is torch's.
            dtype: element dtype; default torch's.
            device: element device; default torch's.
            antithetic: the second half of the last batch dimension mirrors the first: -z for z in every step.

        Raises:
            DomainError: t lies outside [0, 1].
            ShapeError: there are not as many times as elements.
        """
        if isinstance(t, Tensor) and t.ndim:
            return self._sample_rows(batch, check_time(t), generator, dtype, device, antithetic)
        t = float(t)
        paths = self.sample_paths(
            *batch, times=[t], generator=generator, dtype=dtype, device=device, antithetic=antithetic
        )
        return paths.elements[0], paths.log_modular[0]

    def sample_paths(
        self,
        *batch: int,
        times: Sequence[float] | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        antithetic: bool = False,
    ) -> NoisePaths:
        """Draw paths ``[*batch]`` of the noise and keep them at the given times, in increasing order.

        Args:
            batch: the batch shape.
            times: times in [0, 1]; default: the whole grid, without 0.
            generator: random numbers; ``None`` is torch's.
            dtype: element dtype; default torch's.
            device: element device; default torch's.
            antithetic: mirror half of the batch: -z for z in every step, see `NoiseKernel.sample`.

        Returns:
            Elements and log modular functions at those times. `virtual_paths` makes paths that keep less.

        Raises:
            DomainError: there is no time, or one lies outside [0, 1].
        """
        kept = uniform_grid(self.steps)[1:] if times is None else sorted(check_time(t) for t in times)
        nodes = self._nodes(kept)
        wanted = {_rounded(t) for t in kept}
        w = self.group.identity(*batch, dtype=dtype, device=device)
        log_modular = torch.zeros(batch, dtype=w.dtype, device=w.device)
        found = {nodes[0]: (w, log_modular)}
        steps = list(itertools.pairwise(nodes))
        together = max(1, _MAX_ROWS_PER_CALL // max(1, math.prod(batch)))
        for first in range(0, len(steps), together):
            some = steps[first : first + together]
            v = torch.stack([self._increment(batch, w, start, end, generator, antithetic) for start, end in some])
            logs = log_modular + self._log_modular(v).cumsum(0)
            for (_, end), factor, log_modular in zip(some, self.group.exp(v), logs, strict=True):
                w = self.group.compose(w, factor)
                if end in wanted:
                    found[end] = (w, log_modular)
        chosen = [found[_rounded(t)] for t in kept]
        return NoisePaths(tuple(kept), torch.stack([c[0] for c in chosen]), torch.stack([c[1] for c in chosen]))

    def _sample_rows(
        self,
        batch: tuple[int, ...],
        t: Tensor,
        generator: torch.Generator | None,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
        antithetic: bool,
    ) -> tuple[Tensor, Tensor]:
        """Draw noise with a time for each element."""
        if t.shape != batch:
            raise ShapeError(f"t: expected one time, or one for each of {list(batch)}, got {list(t.shape)}")
        w = self.group.identity(*batch, dtype=dtype, device=device)
        log_modular = torch.zeros(batch, dtype=w.dtype, device=w.device)
        t = t.to(w)
        variance = torch.zeros_like(t)
        for k in range(1, self.steps + 1):
            total = self.schedule.variance(0.0, k / self.steps * t)
            std = (total - variance).clamp(min=0.0).sqrt().unsqueeze(-1)
            w, log_modular = self._move(w, log_modular, self._normal(batch, w, generator, antithetic) * std)
            variance = total
        return w, log_modular

    def virtual_paths(
        self,
        *batch: int,
        times: Sequence[float],
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        antithetic: bool = False,
    ) -> VirtualNoisePaths:
        """Return paths ``[*batch]`` that keep one element each, whatever the number of times.

        Args:
            batch: the batch shape.
            times: all times in [0, 1] at which `VirtualNoisePaths.at` will be called.
            generator: random numbers; ``None`` is torch's.
            dtype: element dtype; default torch's.
            device: element device; default torch's.
            antithetic: mirror half of the batch: -z for z in every step, see `NoiseKernel.sample`.

        Raises:
            DomainError: there is no time, or one lies outside [0, 1].
        """
        nodes = self._nodes([check_time(t) for t in times])
        reference = self.group.identity(dtype=dtype, device=device)
        return VirtualNoisePaths(self, nodes, batch, reference, generator, antithetic)

    def _nodes(self, times: Sequence[float]) -> list[float]:
        """The grid together with the given times, up to the last of these."""
        if not times:
            raise DomainError("times: expected at least one time, got none")
        nodes = sorted({_rounded(t) for t in (*uniform_grid(self.steps), *times)})
        return nodes[: bisect.bisect_right(nodes, _rounded(max(times)))]

    def _increment(
        self,
        batch: tuple[int, ...],
        reference: Tensor,
        start: float,
        end: float,
        generator: torch.Generator | None,
        antithetic: bool,
    ) -> Tensor:
        """Draw the algebra vectors of one step, ``[*batch, dim]``."""
        return self._normal(batch, reference, generator, antithetic) * self.schedule.variance(start, end) ** 0.5

    def _normal(
        self, batch: tuple[int, ...], reference: Tensor, generator: torch.Generator | None, antithetic: bool
    ) -> Tensor:
        """Draw standard normal algebra vectors, ``[*batch, dim]``."""
        if not antithetic:
            return normal((*batch, self.group.dim), reference, generator)
        if not batch:
            raise ConfigurationError("antithetic: expected a batch dimension, got none")
        half = normal((*batch[:-1], (batch[-1] + 1) // 2, self.group.dim), reference, generator)
        return torch.cat([half, -half[..., : batch[-1] // 2, :]], -2)

    def _move(self, w: Tensor, log_modular: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``w exp(v)`` and the logarithm of its modular function."""
        return self.group.retract(w, v), log_modular + self._log_modular(v)

    def _log_modular(self, v: Tensor) -> Tensor:
        if self.group.algebra.is_unimodular:
            return v.new_zeros(v.shape[:-1])
        return -matmul(v, self.group.algebra.trace_ad_like(v))


@checked
class VirtualNoisePaths(Described):
    r"""Noise paths that keep one element each, and draw their steps again when the time goes back.

    Each step of the grid has its own seed, so that the step back, :math:`w \leftarrow w \exp(-\sigma z)`, takes the
    same z as the step forth. Memory does not grow with the number of steps, for one more exponential a step and the
    rounding of twice as many products. Paths begin at time 0.

    Args:
        kernel: the noise; `NoiseKernel.virtual_paths` is the usual constructor.
        nodes: increasing times of all steps, from 0.
        batch: the batch shape.
        reference: an element with dtype and device of the paths.
        generator: random numbers; None is torch's.
        antithetic: as in `NoiseKernel.sample`.
    """

    def __init__(
        self,
        kernel: NoiseKernel,
        nodes: Sequence[float],
        batch: tuple[int, ...],
        reference: Tensor,
        generator: torch.Generator | None,
        antithetic: bool,
    ) -> None:
        self._kernel, self._nodes, self._batch, self._antithetic = kernel, list(nodes), batch, antithetic
        self._generators = replayed(reference, generator)
        self._position = 0
        self._w = kernel.group.identity(*batch, dtype=reference.dtype, device=reference.device)
        self._log_modular = torch.zeros(batch, dtype=reference.dtype, device=reference.device)

    def at(self, t: float) -> tuple[Tensor, Float[Tensor, "*batch"]]:
        """Return ``w_t`` and ``log lambda(w_t)`` of the same paths at every call.

        Raises:
            DomainError: t is none of the times of the paths.
        """
        target = _index(self._nodes, t)
        while self._position < target:
            self._step(self._position, 1.0)
            self._position += 1
        while self._position > target:
            self._position -= 1
            self._step(self._position, -1.0)
        return self._w, self._log_modular

    def _step(self, index: int, sign: float) -> None:
        start, end = self._nodes[index], self._nodes[index + 1]
        v = self._kernel._increment(self._batch, self._w, start, end, self._generators(index), self._antithetic)
        self._w, self._log_modular = self._kernel._move(self._w, self._log_modular, sign * v)


def _rounded(t: float) -> float:
    return round(t, _NUM_TIME_DIGITS)


def _index(nodes: Sequence[float], t: float) -> int:
    index = bisect.bisect_left(nodes, _rounded(t))
    if index == len(nodes) or nodes[index] != _rounded(t):
        raise DomainError(f"t: expected one of the times of the paths, got {t}")
    return index
