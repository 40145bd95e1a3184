"""A gate that leaves data alone whose energy hardly falls."""

from __future__ import annotations

import math
from typing import Any

import torch

from trivgeo._random import keyed
from trivgeo.checks import check_fraction, check_positive, check_type, checked
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.posterior import Posterior, check_batch
from trivgeo.inversion.rows import where_rows
from trivgeo.inversion.stage import Population, Stage


@checked
class EnergyGate(Stage):
    """Leaves a datum alone unless the best hypothesis lowers its energy by more than a margin.

    All hypotheses of a datum that stays become the identity; without an energy all data stay. A search always finds
    something lower, in clean data as well, and undoing it costs a classifier accuracy. The margin is therefore one that
    few clean data reach:

    ```python
    inverter = TIED(action, energy, transformations, clean)
    gated = inverter.then(EnergyGate.for_data(inverter, others))
    ```

    Args:
        margin: least fall of the energy.

    Raises:
        ConfigurationError: the margin is negative or not finite.
    """

    def __init__(self, margin: float) -> None:
        self.margin = 0.0 if margin == 0 else check_positive("margin", margin)

    @classmethod
    def for_data(
        cls, inverter: Inverter, clean: Any, share: float = 0.95, *, generator: torch.Generator | None = None
    ) -> EnergyGate:
        """Return the gate of the smallest margin that leaves a share of clean data alone.

        Args:
            inverter: the search before the gate.
            clean: clean data, best others than those on which the energy was trained.
            share: share of the data that are left alone.
            generator: random numbers of the search; default those of one seed at every call.

        Raises:
            ConfigurationError: the inverter has no energy, or the share is not in (0, 1).
            ShapeError: the data do not fit the action of the inverter, or there are none.
        """
        check_type("inverter", inverter, Inverter)
        check_fraction("share", share)
        if inverter.energy is None:
            raise ConfigurationError("inverter: expected one with an energy, got None")
        clean, batch = check_batch(inverter.action, clean)
        source = keyed(0) if generator is None else generator
        found = inverter(clean, generator=source)
        still = Inverter(inverter.action, inverter.energy, [], max_evaluations=inverter.max_evaluations, progress=False)
        gains = (still(clean).energies[:, 0] - found.best_energy()).double()
        gains = torch.where(torch.isfinite(gains), gains, 0.0).clamp(min=0.0)
        return cls(float(gains.sort().values[math.ceil(share * batch) - 1]))

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        known = population.evaluated(posterior)
        g = known.elements
        unit = posterior.group.identity(dtype=g.dtype, device=g.device)
        still = posterior.energies(unit.expand(posterior.batch, 1, *unit.shape))
        stays = ~(known.energies.amin(1) < still[:, 0] - self.margin)
        elements = where_rows(stays, unit.expand_as(g), g)
        energies = torch.where(stays.unsqueeze(1), still, known.energies)
        return Population(elements, known.num_masked_steps, energies)
