"""Transformation-inverting energy diffusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from trivgeo._checks import check_count, check_positive
from trivgeo.groups import Action
from trivgeo.inversion.base import InversionResult, Inverter
from trivgeo.inversion.energy import DataEnergy, PosteriorEnergy, as_energy, check_action
from trivgeo.sde import EnergyScore, GeometricSchedule, NoiseKernel, Schedule, reverse_solution

__all__ = ["TIED"]


class TIED(Inverter):
    r"""Samples the transformation posterior by reversing a trivialized diffusion (Kim et al. 2026, algorithm 1).

    For each datum K independent chains start from the noise kernel k_1 and follow the Monte Carlo score of
    :math:`p(g \mid \tilde x) \propto e^{-E(g) / T}`, E the `PosteriorEnergy`. The whole sample is returned;
    `InversionResult.best` keeps the lowest energy, which is equivariant too.

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
        on_step: called with the index and the time after every step, for progress bars.

    Raises:
        ConfigurationError: a count below one, a temperature or bound that is not positive, or an action or energy
            that is not one.
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
        on_step: Callable[[int, float], None] | None = None,
    ) -> None:
        self.action = check_action(action)
        self.energy = as_energy(energy)
        self.kernel = NoiseKernel(action.group, GeometricSchedule(0.1, 1.0) if schedule is None else schedule, steps)
        check_positive("temperature", temperature)
        if max_score_norm is not None:
            check_positive("max_score_norm", max_score_norm)
        self.num_mc = check_count("num_mc", num_mc)
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        self.temperature = temperature
        self.max_score_norm = max_score_norm
        self.log_det = log_det
        self.modular_drift = modular_drift
        self.shared_noise = shared_noise
        self.on_step = on_step

    def __call__(self, x_tilde: Any, *, generator: torch.Generator | None = None) -> InversionResult:
        """A posterior sample of K elements for each datum.

        Raises:
            ShapeError: the data do not fit the action, or have no batch dimension.
            NonFiniteError: the data hold NaN or infinity.
        """
        posterior = PosteriorEnergy(self.action, self.energy, x_tilde, log_det=self.log_det)
        kernel, group = self.kernel, self.action.group
        first = pytree.tree_leaves(x_tilde)[0]
        initial, _ = kernel.sample(
            posterior.batch, self.num_hypotheses, t=1.0, generator=generator, dtype=first.dtype, device=first.device
        )
        score = EnergyScore(
            lambda g: posterior(g) / self.temperature, kernel, self.num_mc, shared_noise=self.shared_noise
        )
        solution = reverse_solution(
            group,
            kernel.schedule,
            score,
            steps=kernel.steps,
            generator=generator,
            modular_drift=self.modular_drift,
            initial=initial,
            max_score_norm=self.max_score_norm,
            on_step=self.on_step,
        )
        with torch.no_grad():
            energies = posterior(solution.final)
        return InversionResult(
            group,
            solution.final,
            energies,
            solution.failures,
            energy_evaluations=self.num_hypotheses,
            gradient_evaluations=self.num_hypotheses * kernel.steps * self.num_mc,
        )
