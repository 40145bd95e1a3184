"""Check of an energy before any inversion: are transformations found by it, is a network right afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trivgeo._deprecation import Converted, renamed_arguments
from trivgeo._random import seed as seed_of
from trivgeo._torch import pytree
from trivgeo.checks import check_count, with_tensors
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy
from trivgeo.inversion.energy_measurement import EnergyMeasurement, measure_energy
from trivgeo.inversion.law import Law
from trivgeo.inversion.search_trial import NetworkTask, SearchTrial, try_search

__all__ = ["EnergyCheck", "check_energy"]

_LARGEST_SEED = 2**32
_TRIAL_SECONDS = 10.0
"""For the inversion of up to 32 data."""


@dataclass(frozen=True, repr=False, kw_only=True)
class EnergyCheck(EnergyMeasurement):
    """Measurements of `check_energy`, the settings that it suggests, and two verdicts; prints as a table.

    Attributes:
        trial: what `TIED.for_data` has made of some moved clean data.
    """

    trial: SearchTrial

    @property
    def finds_transformations(self) -> bool:
        """True if `TIED.for_data` has found the transformations of the trial."""
        return self.trial.finds

    @property
    def network_right(self) -> bool | None:
        """True if the network is right on the restored data; ``None`` if no network was given.

        The network may be right although transformations are not found: many classifiers bear a small rest of them.
        """
        return None if self.trial.network is None else self.trial.network.right

    @property
    def trusted(self) -> bool:
        """True if transformations are found, see `finds_transformations`."""
        return self.finds_transformations

    def __repr__(self) -> str:
        """The verdicts."""
        network = "not asked" if self.trial.network is None else str(self.trial.network)
        return f"EnergyCheck(finds transformations: {self.trial}; network right afterwards: {network})"

    def __str__(self) -> str:
        """Return a table."""
        well, suggested = self.well, self.suggested
        frame = "none" if suggested.frame_weight is None else f"{suggested.frame_weight:.3g}"
        network = "give network=" if self.trial.network is None else str(self.trial.network)
        rows = [
            ("random transformations below the clean datum", f"{self.share_below:.1%}"),
            ("gradients that are zero", f"{self.share_flat:.1%}"),
            ("energies or gradients that are not finite", f"{self.share_undefined:.1%}"),
            ("depth of the well", f"{well.depth:.3g}"),
            ("its width, in units of the law's spread", f"{well.width:.3g}"),
            ("its roundness", f"{well.roundness:.2f}"),
            ("spread of the energies of clean data", f"{self.spread:.3g}"),
            ("suggested temperature", f"{suggested.temperature:.3g}"),
            ("suggested schedule", repr(suggested.schedule)),
            ("suggested frame weight", frame),
            ("time of one energy with gradient", f"{1e3 * self.seconds:.3g} ms"),
            ("can find transformations", str(self.trial)),
            ("network right afterwards", network),
        ]
        return "\n".join(f"{name:<46}{value:>36}" for name, value in rows)

    def plot(self, axes: Any = None) -> Any:
        """The rise of the energy against the distance (needs matplotlib); returns the axes."""
        from trivgeo.inversion.plots import draw_well

        return draw_well(self.well.radii, self.well.rises, self.well.depth, self.share_below, axes)


@renamed_arguments(
    until="0.4",
    samples="num_samples",
    seed=Converted("generator", lambda seed: torch.Generator().manual_seed(seed)),
)
def check_energy(
    action: Action,
    energy: DataEnergy | Callable[[Any], Tensor],
    clean: Any,
    law: Law,
    *,
    network: Callable[[Any], Tensor] | None = None,
    labels: Any = None,
    loss: Callable[[Tensor, Any], Tensor] | None = None,
    num_samples: int = 32,
    generator: torch.Generator | None = None,
) -> EnergyCheck:
    """Measure how the energy of clean data rises when the data are moved, and try a search; takes seconds.

    The check moves some clean data by the law and inverts them by `TIED.for_data`, in about ten seconds. It answers two
    questions. Does the search find the transformations? Is the network right on the restored data? The second answer
    may be yes while the first is no.

    ```python
    check = check_energy(action, energy, clean, law, network=classifier, labels=labels)
    check.finds_transformations, check.network_right
    ```

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        clean: clean data with one batch dimension; at most 64 of them are looked at, and 32 inverted.
        law: function (count, generator) to elements ``[count, *element_shape]``, see `LearnedInverter.fit`.
        network: data to outputs, in evaluation mode here if it is a module.
        labels: of the clean data, their classes or what ``loss`` takes; default the classes that the network says.
        loss: outputs and labels to losses ``[b]``; default one for a wrong class of the outputs ``[b, c]``, else zero.
        num_samples: random transformations of each datum, for the measurement.
        generator: of all that is random; default one that is the same at every call.

    Raises:
        ConfigurationError: the energy has no gradient (it is detached, computed without gradients, or made of
            integers); labels or a loss without a network, or outputs that need a loss; or see `Inverter`.
        DomainError: no clean datum has a finite energy; or the law is unfit, see `LearnedInverter.fit`.
        ShapeError: the data or the elements do not fit the action, or labels or losses not the data.
        NonFiniteError: the data hold NaN or infinity.
    """
    check_count("num_samples", num_samples)
    clean = with_tensors("clean", clean)
    task = NetworkTask.of(network, labels, loss, len(pytree.tree_leaves(clean)[0]))
    seed = 0
    if generator is not None:
        seed = seed_of(torch.empty(0, device=generator.device), generator) % _LARGEST_SEED
    measured = measure_energy(action, energy, clean, law, num_samples=num_samples, seed=seed)
    trial = try_search(action, energy, clean, law, measured, task, seconds=_TRIAL_SECONDS, seed=seed)
    return EnergyCheck(**vars(measured), trial=trial)
