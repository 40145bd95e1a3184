"""Proposals of one inverter weighed by an energy, as a configuration names them."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from trivgeo.groups import Action
from trivgeo.inversion import DataEnergy, Descent, HybridInverter, InversionResult, Inverter
from trivgeo.sde import Schedule


class WeighedInverter(nn.Module, Inverter):
    """A `HybridInverter` of proposals and the energy; see there.

    Args:
        action: on data.
        energy: has the last word.
        proposals: makes the inverter that proposes from an action and an energy.
        num_hypotheses: how many the energy chooses.
        choice: ``"lowest"`` or ``"resample"``.
        temperature: of the energy.
        steps: of TIED, 0 for none.
        start_time: where they start.
        schedule: their noise.
        num_mc: noise samples of one score.
        max_score_norm: longer scores are shortened to this length.
        descent: ends every chain; ``None`` for none.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy,
        proposals: Callable[[Action, DataEnergy], Inverter],
        num_hypotheses: int = 1,
        choice: Literal["lowest", "resample"] = "lowest",
        temperature: float = 1.0,
        steps: int = 0,
        start_time: float = 0.3,
        schedule: Schedule | None = None,
        num_mc: int = 2,
        max_score_norm: float | None = 100.0,
        descent: Descent | None = None,
    ) -> None:
        super().__init__()
        self.inverter = HybridInverter(
            proposals(action, energy),
            energy,
            num_hypotheses=num_hypotheses,
            choice=choice,
            temperature=temperature,
            steps=steps,
            start_time=start_time,
            schedule=schedule,
            num_mc=num_mc,
            max_score_norm=max_score_norm,
            descent=descent,
        )
        self.action = self.inverter.action

    def forward(self, x_tilde: Any, *, generator: torch.Generator | None = None) -> InversionResult:
        """Those of the `HybridInverter`."""
        return self.inverter(x_tilde, generator=generator)
