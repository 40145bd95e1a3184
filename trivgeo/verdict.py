"""Verdicts: whether an answer is trusted, and the reasons if it is not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

__all__ = ["Verdict"]


@dataclass(frozen=True)
class Verdict:
    """The verdict on an answer: whether its stated errors and probabilities hold for this very datum.

    A verdict is true if the answer is trusted: ``if result.verdict: ...``.

    Attributes:
        reasons: findings of checks against the answer, one sentence each; none if it is trusted.
        assumptions: assumptions of the answer that the checks could not test.

    Example:
        >>> Verdict(("two hypotheses are as good as the best",)).trusted
        False
    """

    reasons: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def trusted(self) -> bool:
        """True if no check found anything against the answer."""
        return not self.reasons

    def __bool__(self) -> bool:
        return self.trusted

    def __and__(self, other: Verdict) -> Verdict:
        """Return the verdict that holds if both do: with the reasons and assumptions of both, each once."""
        reasons, assumptions = self.reasons + other.reasons, self.assumptions + other.assumptions
        return Verdict(tuple(dict.fromkeys(reasons)), tuple(dict.fromkeys(assumptions)))

    def __str__(self) -> str:
        said = "trusted" if self.trusted else f"not trusted: {'; '.join(self.reasons)}"
        return f"{said} (if {'; '.join(self.assumptions)})" if self.assumptions else said


class Judged:
    """An answer with a verdict.

    Attributes:
        verdict: the verdict on the answer.
    """

    verdict: Verdict

    @property
    def trusted(self) -> bool:
        """True if no check found anything against the answer; `reasons` says which failed."""
        return self.verdict.trusted

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the answer is not to be trusted; empty where it is."""
        return self.verdict.reasons


def trusted_mask(verdicts: Iterable[Verdict], device: torch.device | None = None) -> Bool[Tensor, " b"]:
    """Return the mask ``[b]`` of the data whose verdict is trusted.

    Args:
        verdicts: a verdict for each datum.
        device: device of the mask; default: the CPU.
    """
    return torch.tensor([verdict.trusted for verdict in verdicts], dtype=torch.bool, device=device)
