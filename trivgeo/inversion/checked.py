"""Results that were checked: which data are to be trusted, and why others are not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trivgeo._text import Described
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.result import InversionResult
from trivgeo.inversion.stage import EvaluatedPopulation, Population

__all__ = ["CheckedPopulation", "CheckedResult", "Checks"]


@dataclass(frozen=True, repr=False, kw_only=True)
class Checks(Described):
    """Verdicts of checks, one for each datum.

    Attributes:
        reasons: why the elements of a datum are not to be trusted; empty texts where they are.
    """

    reasons: tuple[str, ...]


@dataclass(frozen=True, repr=False, kw_only=True)
class CheckedResult(InversionResult):
    """Result of an inversion, see `InversionResult`, with a verdict for each datum: whether its elements are to be
    trusted.

    Attributes:
        checks: verdicts, one for each datum, with reasons. All other attributes (``action``, ``elements``,
            ``energies``, ``num_masked_steps``, ``energy_evaluations``, ``gradient_evaluations``,
            ``network_evaluations``, ``kept``) are those of `InversionResult`.
    """

    checks: Checks

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the result of a datum is not to be trusted; empty texts where it is."""
        return self.checks.reasons

    @property
    def trusted(self) -> Bool[Tensor, " b"]:
        """Mask of the data whose result passes its own checks; `reasons` says which failed."""
        return torch.tensor([not reason for reason in self.reasons], dtype=torch.bool, device=self.energies.device)

    def __repr__(self) -> str:
        """Sizes, counts and trust."""
        return super().__repr__().replace("CheckedResult(", f"CheckedResult({int(self.trusted.sum())} trusted; ")


@dataclass(frozen=True, repr=False, kw_only=True)
class CheckedPopulation(EvaluatedPopulation):
    """Population whose data were checked; an inverter that ends with one returns a `CheckedResult`.

    Elements that a later stage moves or chooses were not checked: they are a `Population` without reasons.

    Attributes:
        checks: verdicts, one for each datum, with reasons. All other attributes (``elements``, ``num_masked_steps``,
            ``energies``, ``time``) are those of `Population`.
    """

    checks: Checks

    def evaluated(self, posterior: ConditionalPosterior) -> EvaluatedPopulation:
        return self

    def take(self, index: Int[Tensor, "b m"]) -> Population:
        return self.unchecked().take(index)

    def copies(self, number: int) -> Population:
        return self.unchecked().copies(number)

    def unchecked(self) -> EvaluatedPopulation:
        """Return the elements with their energies alone."""
        return EvaluatedPopulation(self.elements, self.num_masked_steps, self.energies, self.time)

    def result(self, posterior: ConditionalPosterior) -> InversionResult:
        return CheckedResult(**vars(super().result(posterior)), checks=self.checks)
