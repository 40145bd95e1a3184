"""The forward noise on a group and its kernel."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.groups import LieGroup
from trivgeo.sde.process import TrivializedSDE, check_count, normal, solve, uniform_grid
from trivgeo.sde.schedule import Schedule, check_time

__all__ = ["NoiseKernel", "NoisePaths", "forward_noising"]

_TIME_DIGITS = 12


@dataclass(frozen=True)
class NoisePaths:
    """Samples of the noise at several times, along the same paths.

    Attributes:
        times: T increasing times.
        elements: w_t, ``[T, *batch, *element_shape]``.
        log_modular: log lambda(w_t), ``[T, *batch]``.
    """

    times: tuple[float, ...]
    elements: Tensor
    log_modular: Tensor


class NoiseKernel:
    r"""The law k_t of the noise :math:`w_t` in :math:`g_t = g_0 w_t`.

    .. math:: dw_t = d(L_{w_t})_e[\gamma(t)\,d\mathbf w^{\mathfrak g}_t], \quad w_0 = e

    Sampled by the exponential Euler scheme on a grid, :math:`w \leftarrow w \exp(\sigma z)` with the exact variance
    :math:`\sigma^2 = \int \gamma^2` of each step; :math:`\log \lambda(w_t) = -\sum a \cdot \sigma z` comes with it.
    One set of paths gives the noise at every time of a run, in O(steps) exponentials.

    Args:
        group: the group.
        schedule: the diffusion coefficient.
        steps: number of equal steps of the grid on [0, 1].

    Raises:
        ConfigurationError: ``steps`` is less than one.
    """

    def __init__(self, group: LieGroup, schedule: Schedule, steps: int) -> None:
        self.group = group
        self.schedule = schedule
        self.steps = check_count("steps", steps)

    def sample(
        self,
        *batch: int,
        t: float,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> tuple[Tensor, Float[Tensor, "*batch"]]:
        """Draw ``w ~ k_t`` and ``log lambda(w)``: ``[*batch, *element_shape]`` and ``[*batch]``.

        Raises:
            DomainError: t lies outside [0, 1].
        """
        paths = self.sample_paths(*batch, times=[t], generator=generator, dtype=dtype, device=device)
        return paths.elements[0], paths.log_modular[0]

    def sample_paths(
        self,
        *batch: int,
        times: Sequence[float] | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> NoisePaths:
        """Draw paths and keep them at the given increasing times (default: the whole grid, without 0).

        Raises:
            DomainError: a time lies outside [0, 1].
        """
        grid = uniform_grid(self.steps)
        kept = grid[1:] if times is None else sorted(check_time(t) for t in times)
        wanted = {round(t, _TIME_DIGITS) for t in kept}
        nodes = sorted({round(t, _TIME_DIGITS) for t in grid} | wanted)
        nodes = nodes[: bisect.bisect_right(nodes, round(max(kept), _TIME_DIGITS))]
        w = self.group.identity(*batch, dtype=dtype, device=device)
        log_modular = torch.zeros(batch, dtype=w.dtype, device=w.device)
        trace_ad = None if self.group.algebra.is_unimodular else self.group.algebra.trace_ad_like(w)
        found = {nodes[0]: (w, log_modular)}
        for start, end in itertools.pairwise(nodes):
            v = normal((*batch, self.group.dim), w, generator) * self.schedule.variance(start, end) ** 0.5
            w = self.group.retract(w, v)
            if trace_ad is not None:
                log_modular = log_modular - v @ trace_ad
            if end in wanted:
                found[end] = (w, log_modular)
        chosen = [found[round(t, _TIME_DIGITS)] for t in kept]
        return NoisePaths(tuple(kept), torch.stack([c[0] for c in chosen]), torch.stack([c[1] for c in chosen]))


def forward_noising(
    group: LieGroup,
    schedule: Schedule,
    initial: Tensor,
    *,
    t: float = 1.0,
    steps: int = 100,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Noise elements from time 0 to t: :math:`g_t = g_0 w_t`, with one independent path each.

    Args:
        group: the group.
        schedule: the diffusion coefficient.
        initial: g_0, ``[*batch, *element_shape]``.
        t: the final time in (0, 1].
        steps: number of equal steps.
        generator: the source of noise.

    Raises:
        DomainError: t lies outside [0, 1].
        ConfigurationError: ``steps`` is less than one.
    """
    check_count("steps", steps)
    if check_time(t) == 0.0:
        return initial
    return solve(TrivializedSDE(group, schedule), initial, uniform_grid(steps, 0.0, t), generator=generator).final
