"""What a trial of a search on clean data tells of its other results."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.inversion.agreement import UNUSABLE
from trivgeo.inversion.result import InversionResult
from trivgeo.verdict import Verdict

_MIN_KNOWN = 8  # restored clean data below which their energies say nothing of others
_DEPTH_SHARE = 0.5  # height above the energies of clean data, in units of the median rise of moved ones

ALIKE = "data are like the clean ones of the search, and moved by such transformations"
"""Assumption of a search that was tried on clean data."""
TOO_HIGH = "the energy of the restored datum is nearer to those of moved data than to those of clean ones"
"""Reason against a result of such a search."""


@dataclass(frozen=True)
class KnownSearch:
    """What is known of the results of a search before it runs.

    Attributes:
        verdict: verdict on the search, from a trial on clean data.
        highest: energy of a restored datum above which it is unlike clean ones; infinite where that is not known.
    """

    verdict: Verdict
    highest: float = math.inf

    @staticmethod
    def of_trial(verdict: Verdict, energies: Float[Tensor, " n"], depth: float) -> KnownSearch:
        """Return what a trial tells of other data.

        Args:
            verdict: verdict of the trial.
            energies: energies of the restored data whose transformations were found.
            depth: median rise of the energy of clean data when they are moved.
        """
        known = energies[torch.isfinite(energies)]
        if len(known) < _MIN_KNOWN:
            return KnownSearch(verdict)
        usual, highest = float(known.median()), float(known.max())
        rise = _DEPTH_SHARE * depth if depth > 0.0 else 0.0  # NaN where nothing is known
        return KnownSearch(verdict, max(2.0 * highest - usual, usual + rise))

    def __call__(self, result: InversionResult) -> tuple[Verdict, ...]:
        """Return the verdict on each datum of a result."""
        said = self.verdict & Verdict((), (ALIKE,))
        usable, high = result.has_usable, result.best_energy() > self.highest
        rows = torch.stack([usable, high], -1).tolist()
        return tuple(
            said & Verdict((UNUSABLE,) if not is_usable else (TOO_HIGH,) if is_high else ())
            for is_usable, is_high in rows
        )
