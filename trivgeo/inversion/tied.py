"""Transformation-inverting energy diffusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action, LieGroup
from trivgeo.inversion.base import InversionResult
from trivgeo.inversion.counting import CountedPosterior, CountingInverter, rows_like, where_rows
from trivgeo.inversion.descent import Descent, check_descent
from trivgeo.inversion.energy import DataEnergy
from trivgeo.sde import EnergyScore, GeometricSchedule, NoiseKernel, Schedule, ScoreEstimate, reverse_solution
from trivgeo.sde.process import uniform_grid

__all__ = ["TIED"]

_TIME_TOLERANCE = 1e-9


class TIED(CountingInverter):
    r"""Samples the transformation posterior by reversing a trivialized diffusion (Kim et al. 2026, algorithm 1).

    For each datum K independent chains start from the noise kernel k_1 and follow the Monte Carlo score of
    :math:`p(g \mid \tilde x) \propto e^{-E(g) / T}`, E the `PosteriorEnergy`. The whole sample is returned;
    `InversionResult.best` keeps the lowest energy, which is equivariant too.

    Where only the best is wanted, ``keep_seen`` and ``pruning`` get more from every evaluation, and a ``descent`` goes
    from the width of the posterior to its minimum: a search, no longer a sample of the posterior.

    Args:
        action: the action on data.
        energy: a `DataEnergy`, or a function from a batch of data to ``[batch]``.
        schedule: the noise.
        steps: number M of reverse steps.
        num_mc: number N of noise samples of one score.
        num_hypotheses: number K of chains.
        temperature: T, positive.
        max_score_norm: longer scores are shortened to this length; ``None`` for no bound.
        log_det: keep the log-determinant of the action in the posterior energy (published: off).
        modular_drift: the correction on non-unimodular groups, see `trivgeo.sde.reverse_diffusion` (published: off).
        shared_noise: one set of noise samples for the whole batch of data (published: on).
        keep_seen: return of each chain the element of lowest energy among all that were evaluated for its scores, in
            place of its end.
        pruning: pairs (t, k): when the noise has fallen to time t, go on with those k chains of each datum that have
            met the lowest energies.
        descent: ends every chain, at no temperature; ``None`` for none.
        max_evaluations: the largest number of energies evaluated at once, to bound memory: the data are inverted in
            parts; ``None`` for all at once.
        on_step: called with the index and the time after every step, for progress bars.

    Raises:
        ConfigurationError: a count below one, a temperature or bound that is not positive, an action or energy
            that is not one, ``pruning`` is not decreasing, or ``max_evaluations`` is too little for one datum.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        schedule: Schedule | None = None,
        steps: int = 50,
        num_mc: int = 2,
        num_hypotheses: int = 64,
        temperature: float = 1.0,
        max_score_norm: float | None = 100.0,
        *,
        log_det: bool = False,
        modular_drift: bool = True,
        shared_noise: bool = False,
        keep_seen: bool = False,
        pruning: Sequence[tuple[float, int]] = (),
        descent: Descent | None = None,
        max_evaluations: int | None = None,
        on_step: Callable[[int, float], None] | None = None,
    ) -> None:
        self.num_mc = check_count("num_mc", num_mc)
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        super().__init__(
            action, energy, at_once=num_mc * num_hypotheses, log_det=log_det, max_evaluations=max_evaluations
        )
        self.kernel = NoiseKernel(action.group, GeometricSchedule(0.1, 1.0) if schedule is None else schedule, steps)
        check_positive("temperature", temperature)
        if max_score_norm is not None:
            check_positive("max_score_norm", max_score_norm)
        self.temperature = temperature
        self.max_score_norm = max_score_norm
        self.modular_drift = modular_drift
        self.shared_noise = shared_noise
        self.keep_seen = keep_seen
        self.descent = check_descent(descent)
        self.on_step = on_step
        self._stages = _stages(uniform_grid(steps, 1.0, 0.0), num_hypotheses, pruning)

    def search(self, posterior: CountedPosterior, generator: torch.Generator | None) -> InversionResult:
        """Run all chains of all data at once."""
        kernel, group, like = self.kernel, self.action.group, posterior.like
        g, _ = kernel.sample(
            posterior.batch, self.num_hypotheses, t=1.0, generator=generator, dtype=like.dtype, device=like.device
        )
        seen = _Seen(group, g) if self.keep_seen or len(self._stages) > 1 else None
        score = EnergyScore(
            lambda g: posterior.differentiable(g) / self.temperature,
            kernel,
            self.num_mc,
            shared_noise=self.shared_noise,
            on_estimate=None if seen is None else seen.update,
        )
        failures = torch.zeros(g.shape[:2], dtype=torch.long, device=g.device)
        done = 0
        for number, times in self._stages:
            if number < g.shape[1]:
                assert seen is not None
                g, failures = seen.survivors(number, g, failures)
            solution = reverse_solution(
                group,
                kernel.schedule,
                score,
                steps=kernel.steps,
                times=times,
                generator=generator,
                modular_drift=self.modular_drift,
                initial=g,
                max_score_norm=self.max_score_norm,
                on_step=self._on_step_from(done),
            )
            done += len(times) - 1
            g, failures = solution.final, failures + solution.failures
        energies = posterior.energies(g)
        if self.keep_seen:
            assert seen is not None
            found = seen.energies * self.temperature
            lower = found < energies
            g, energies = where_rows(lower, seen.elements, g), torch.where(lower, found, energies)
        result = posterior.result(g, energies, failures)
        return result if self.descent is None else self.descent(posterior, result)

    def _on_step_from(self, done: int) -> Callable[[int, float], None] | None:
        on_step = self.on_step
        return None if on_step is None else lambda index, t: on_step(done + index, t)


class _Seen:
    """The lowest energy that each chain has met, and where."""

    def __init__(self, group: LieGroup, g: Tensor) -> None:
        self._rank = len(group.element_shape)
        self.elements = g
        self.energies = g.new_full(tuple(group.batch_shape(g)), torch.inf)

    def update(self, estimate: ScoreEstimate) -> None:
        """Take in the energies of one estimate."""
        energy, index = torch.where(estimate.finite, estimate.energy, torch.inf).min(-1, keepdim=True)
        elements = torch.take_along_dim(estimate.elements, rows_like(index, estimate.elements), -self._rank - 1)
        energy, elements = energy.squeeze(-1), elements.squeeze(-self._rank - 1)
        lower = energy < self.energies
        self.energies = torch.where(lower, energy, self.energies)
        self.elements = where_rows(lower, elements, self.elements)

    def survivors(self, number: int, g: Tensor, failures: Tensor) -> tuple[Tensor, Tensor]:
        """Drop all but the ``number`` chains of each datum that have met the lowest energies."""
        index = self.energies.topk(number, dim=1, largest=False).indices
        wide = rows_like(index, g)
        self.energies = self.energies.gather(1, index)
        self.elements = torch.take_along_dim(self.elements, wide, 1)
        return torch.take_along_dim(g, wide, 1), failures.gather(1, index)


def _stages(times: list[float], number: int, pruning: Sequence[tuple[float, int]]) -> list[tuple[int, list[float]]]:
    """The number of chains and the part of the grid of each stage."""
    starts, numbers = [0], [number]
    for pair in pruning:
        try:
            t, k = pair
        except (TypeError, ValueError):
            raise ConfigurationError(f"pruning: expected pairs (time, hypotheses), got {pair!r}") from None
        start = next((i for i, node in enumerate(times) if node <= t + _TIME_TOLERANCE), 0)
        if not starts[-1] < start < len(times) - 1 or not 1 <= check_count("pruning", k) < numbers[-1]:
            raise ConfigurationError(
                f"pruning: expected falling times inside (0, 1) on different steps, and falling numbers below "
                f"num_hypotheses = {number}, got {[tuple(p) for p in pruning]}"
            )
        starts.append(start)
        numbers.append(k)
    ends = [*starts[1:], len(times) - 1]
    return [(k, times[a : b + 1]) for k, a, b in zip(numbers, starts, ends, strict=True)]
