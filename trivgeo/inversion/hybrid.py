"""Proposals of one inverter, on which an energy has the last word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.base import InversionResult, Inverter
from trivgeo.inversion.counting import CountedPosterior, rows_like, where_rows
from trivgeo.inversion.descent import Descent, check_descent
from trivgeo.inversion.energy import DataEnergy, PosteriorEnergy, as_energy, check_batch
from trivgeo.sde.noise import NoiseKernel
from trivgeo.sde.process import uniform_grid
from trivgeo.sde.reverse import reverse_solution
from trivgeo.sde.schedule import GeometricSchedule, Schedule
from trivgeo.sde.score import EnergyScore

__all__ = ["HybridInverter"]


class HybridInverter(nn.Module, Inverter):
    r"""Weighs the hypotheses of an inverter by an energy, and may move them by a few steps of TIED at low noise.

    1. The proposals' K hypotheses, each with its posterior energy E.
    2. Of them k are chosen: drawn with the weights :math:`e^{-E / T}` (``"resample"``), or those of lowest energy
       (``"lowest"``). Drawn, they are a sample of the product of the proposals' law and of :math:`e^{-E / T}` as K
       grows: a learned posterior from an `AmortizedInverter` is a prior here.
    3. Noise of the level of ``start_time`` is put on them and taken away again by ``steps`` steps with the Monte Carlo
       score of :math:`e^{-E / T}`, as `TIED` does from t = 1. With ``"lowest"``, a chain that ends higher than it began
       goes back.
    4. A ``descent`` may follow, to the minimum of the well of each.

    Args:
        proposals: the inverter that proposes.
        energy: a `DataEnergy`, or a function from a batch of data to ``[batch]``.
        num_hypotheses: the number k that is chosen.
        choice: ``"lowest"`` or ``"resample"``.
        temperature: T, positive.
        steps: number of steps of TIED, 0 for none.
        start_time: where these start, in (0, 1].
        schedule: their noise; default as in `TIED`.
        num_mc: noise samples of one score.
        max_score_norm: longer scores are shortened to this length; ``None`` for no bound.
        descent: ends every chain; ``None`` for none.
        log_det: keep the log-determinant of the action in the posterior energy.

    Raises:
        ConfigurationError: an inverter or energy that is none, an unknown choice, or a number out of range.
    """

    def __init__(
        self,
        proposals: Inverter,
        energy: DataEnergy | Callable[[Any], Tensor],
        *,
        num_hypotheses: int = 1,
        choice: Literal["lowest", "resample"] = "lowest",
        temperature: float = 1.0,
        steps: int = 0,
        start_time: float = 0.3,
        schedule: Schedule | None = None,
        num_mc: int = 2,
        max_score_norm: float | None = 100.0,
        descent: Descent | None = None,
        log_det: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(proposals, Inverter):
            raise ConfigurationError(f"proposals: expected an Inverter, got {type(proposals).__name__}")
        if choice not in ("lowest", "resample"):
            raise ConfigurationError(f"choice: expected 'lowest' or 'resample', got {choice!r}")
        if not 0 < start_time <= 1:
            raise ConfigurationError(f"start_time: expected a time in (0, 1], got {start_time}")
        if max_score_norm is not None:
            check_positive("max_score_norm", max_score_norm)
        self.proposals = proposals
        self.action = proposals.action
        self.energy = as_energy(energy)
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        self.choice = choice
        self.temperature = check_positive("temperature", temperature)
        self.steps = 0 if steps == 0 else check_count("steps", steps)
        self.start_time = start_time
        self.schedule = GeometricSchedule(0.1, 1.0) if schedule is None else schedule
        self.num_mc = check_count("num_mc", num_mc)
        self.max_score_norm = max_score_norm
        self.descent = check_descent(descent)
        self.log_det = log_det

    def forward(self, x_tilde: Any, *, generator: torch.Generator | None = None) -> InversionResult:
        """The k hypotheses that the energy chose, or moved.

        Raises:
            ConfigurationError: fewer than k proposals are to be among the lowest.
            ShapeError: the data do not fit the action, or have no batch dimension.
            NonFiniteError: the data hold NaN or infinity.
        """
        check_batch(self.action, x_tilde)
        proposed = self.proposals(x_tilde, generator=generator)
        number = proposed.energies.shape[1]
        if self.choice == "lowest" and number < self.num_hypotheses:
            raise ConfigurationError(
                f"num_hypotheses: expected at most the {number} proposals, got {self.num_hypotheses}"
            )
        posterior = CountedPosterior(PosteriorEnergy(self.action, self.energy, x_tilde, log_det=self.log_det), x_tilde)
        energies = posterior.energies(proposed.elements)
        index = self._choose(energies, generator)
        g = torch.take_along_dim(proposed.elements, rows_like(index, proposed.elements), 1)
        energies, failures = energies.gather(1, index), proposed.failures.gather(1, index)
        if self.steps:
            moved, masked = self._move(posterior, g, generator)
            after = posterior.energies(moved)
            taken = after < energies if self.choice == "lowest" else torch.ones_like(failures, dtype=torch.bool)
            g = where_rows(taken, moved, g)
            energies, failures = torch.where(taken, after, energies), failures + masked
        result = posterior.result(g, energies, failures)
        if self.descent is not None:
            result = self.descent(posterior, result)
        return replace(
            result,
            energy_evaluations=proposed.energy_evaluations + result.energy_evaluations,
            gradient_evaluations=proposed.gradient_evaluations + result.gradient_evaluations,
            network_evaluations=proposed.network_evaluations + result.network_evaluations,
        )

    def _choose(self, energies: Float[Tensor, "b n"], generator: torch.Generator | None) -> Int[Tensor, "b k"]:
        """Which proposals go on."""
        if self.choice == "lowest":
            return energies.topk(self.num_hypotheses, dim=1, largest=False).indices
        finite = torch.isfinite(energies)
        logits = torch.where(finite | ~finite.any(1, keepdim=True), -energies / self.temperature, -torch.inf)
        logits = torch.where(finite.any(1, keepdim=True), logits, 0.0)
        return torch.multinomial(logits.softmax(1), self.num_hypotheses, replacement=True, generator=generator)

    def _move(self, posterior: CountedPosterior, g: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Elements after noise and its reversal, and their masked steps."""
        group = self.action.group
        kernel = NoiseKernel(group, self.schedule, self.steps)
        noise, _ = kernel.sample(*g.shape[:2], t=self.start_time, generator=generator, dtype=g.dtype, device=g.device)
        solution = reverse_solution(
            group,
            self.schedule,
            EnergyScore(lambda h: posterior.differentiable(h) / self.temperature, kernel, self.num_mc),
            times=uniform_grid(self.steps, self.start_time, 0.0),
            initial=group.compose(g, noise),
            generator=generator,
            max_score_norm=self.max_score_norm,
        )
        return solution.final, solution.failures
