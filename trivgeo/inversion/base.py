"""The contract of transformation inversion and what it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trivgeo.groups import Action, LieGroup

__all__ = ["InversionResult", "Inverter"]


@dataclass(frozen=True)
class InversionResult:
    """Hypotheses for the transformations of a batch of data.

    Attributes:
        group: the group of the elements.
        elements: ``[b, K, *element_shape]``: a sample of the posterior, or the end points of a search.
        energies: their posterior energies, ``[b, K]``; infinite where the inverse transformation is not defined.
        failures: masked steps of each chain, ``[b, K]``.
        energy_evaluations: energies evaluated without a gradient, for each datum.
        gradient_evaluations: energies evaluated with their gradient, for each datum.
        network_evaluations: evaluations of a learned score, or of what else is asked of restored data, for each datum.
    """

    group: LieGroup
    elements: Tensor
    energies: Float[Tensor, "b k"]
    failures: Int[Tensor, "b k"]
    energy_evaluations: int
    gradient_evaluations: int
    network_evaluations: int = 0

    @classmethod
    def cat(cls, parts: Sequence[InversionResult]) -> InversionResult:
        """One result from those of parts of the data."""
        first = parts[0]
        return cls(
            first.group,
            torch.cat([p.elements for p in parts]),
            torch.cat([p.energies for p in parts]),
            torch.cat([p.failures for p in parts]),
            first.energy_evaluations,
            first.gradient_evaluations,
            first.network_evaluations,
        )

    @property
    def found(self) -> Bool[Tensor, " b"]:
        """Whether any hypothesis of each datum has a finite energy."""
        return torch.isfinite(self.energies).any(-1)

    def best_index(self) -> Int[Tensor, " b"]:
        """The hypothesis of lowest energy."""
        return self._ranked().argmin(-1)

    def best(self) -> Tensor:
        """The elements of lowest energy, ``[b, *element_shape]``; see `found`."""
        index = self.best_index()
        rows = torch.arange(index.shape[0], device=index.device)
        return self.elements[rows, index]

    def best_energy(self) -> Float[Tensor, " b"]:
        """The lowest energies."""
        return self._ranked().amin(-1)

    def _ranked(self) -> Float[Tensor, "b k"]:
        """The energies, with what is not finite last."""
        return torch.where(torch.isfinite(self.energies), self.energies, torch.inf)


class Inverter(ABC):
    """A method that finds the unknown g in data ``x_tilde = g.x``."""

    action: Action

    @abstractmethod
    def __call__(self, x_tilde: Any, *, generator: torch.Generator | None = None) -> InversionResult:
        """Hypotheses for g; the restored data are ``action(group.inverse(r.best()), x_tilde)``.

        Args:
            x_tilde: data of the action, with one batch dimension.
            generator: the source of randomness, on the device of the data.
        """
