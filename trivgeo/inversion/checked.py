"""Results that were checked: which data are to be trusted, and why others are not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trivgeo._text import Described
from trivgeo.inversion.population import EvaluatedPopulation, Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.result import InversionResult

__all__ = ["CheckedPopulation", "CheckedResult", "Checks"]


@dataclass(frozen=True, repr=False, kw_only=True)
class Checks(Described):
    """What checks have said of each datum.

    Attributes:
        reasons: why its result is not to be trusted; empty texts where it is.
    """

    reasons: tuple[str, ...]


@dataclass(frozen=True, repr=False, kw_only=True)
class CheckedResult(InversionResult):
    """An `InversionResult` that says of each datum whether it is to be trusted.

    Attributes:
        checks: what was said.
    """

    checks: Checks

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the result of a datum is not to be trusted; empty texts where it is."""
        return self.checks.reasons

    @property
    def trusted(self) -> Bool[Tensor, " b"]:
        """Mask of the data whose result passes its own checks; `reasons` says which failed."""
        return torch.tensor([not reason for reason in self.reasons], device=self.energies.device)

    def __repr__(self) -> str:
        """Sizes, counts and trust."""
        return super().__repr__().replace("CheckedResult(", f"CheckedResult({int(self.trusted.sum())} trusted; ")


@dataclass(frozen=True, repr=False, kw_only=True)
class CheckedPopulation(EvaluatedPopulation):
    """A population whose data were checked; see `CheckedResult`.

    Elements that another stage moves or chooses were not: they are a `Population` without reasons.
    """

    checks: Checks

    def evaluated(self, posterior: ConditionalPosterior) -> EvaluatedPopulation:
        """Return the population itself."""
        return self

    def take(self, index: Int[Tensor, "b m"]) -> Population:
        """See `Population.take`; unchecked."""
        return self.unchecked().take(index)

    def copies(self, number: int) -> Population:
        """See `Population.copies`; unchecked."""
        return self.unchecked().copies(number)

    def unchecked(self) -> EvaluatedPopulation:
        """Return the elements with their energies alone."""
        return EvaluatedPopulation(self.elements, self.num_masked_steps, self.energies, self.time)

    def result(self, posterior: ConditionalPosterior) -> InversionResult:
        """Return what an inverter returns."""
        return CheckedResult(**vars(super().result(posterior)), checks=self.checks)
