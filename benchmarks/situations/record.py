"""A situation in which a verdict is given, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.stats import chi2, f
from torch import Tensor

from trivgeo.errors import TrivgeoError

Kind = Literal["ordinary", "hard", "needle"]
REGION = 0.999
"""Mass of the region outside of which the truth must not lie."""


FREE_STD = 200.0
"""Standard deviation, in units of the data, that says that a direction is free."""


class Outcome(NamedTuple):
    """What became of an answer.

    Attributes:
        trusted: whether it was trusted.
        wrong: whether its statement is wrong: the truth lies outside of the region of 99.9 %, or what it denies is so.
        in50: whether the truth lies in the region of 50 %, or a share of exact draws; NaN where there is none.
        in90: likewise of 90 %.
    """

    trusted: bool
    wrong: bool
    in50: float = np.nan
    in90: float = np.nan

    @staticmethod
    def at(trusted: bool, mass: float) -> Outcome:
        """The outcome where the truth lies on the surface of the region of a mass."""
        return Outcome(trusted, not mass <= REGION, float(mass <= 0.5), float(mass <= 0.9))


class Situation(NamedTuple):
    """A situation.

    Attributes:
        door: part of the library that is asked.
        kind: ordinary, hard, or a needle, to which nothing leads.
        name: what is given.
        judge: seeds to outcomes.
        bet: why a verdict may be wrong here; empty for what the authors of the library had been told.
        seeds: the largest number of seeds.
    """

    door: str
    kind: Kind
    name: str
    judge: Callable[[Sequence[int]], list[Outcome]]
    bet: str = ""
    seeds: int = 1000


def each(judge: Callable[[int], Outcome]) -> Callable[[Sequence[int]], list[Outcome]]:
    """A judge of one seed as one of many; what is refused is not trusted."""

    def judged(seed: int) -> Outcome:
        try:
            return judge(seed)
        except TrivgeoError:
            return Outcome(False, False)

    return lambda seeds: [judged(seed) for seed in seeds]


def mass_inside(off: Tensor, record: Any, rounding: float, unit: float = 1.0) -> float:
    """Mass of the region on whose surface an error lies, by the covariance that a registration states.

    Directions of infinite, undefined or huge variance are left out: nothing is said of them.

    Args:
        off: error, ``[n]``, in the basis of the covariance.
        record: what states ``covariance``, and ``degrees_of_freedom`` where errors are Student's.
        rounding: standard deviation that is added in every direction.
        unit: size of the data, in units of which a standard deviation may be huge.
    """
    covariance = record.covariance.double()
    known = torch.isfinite(covariance.diagonal())
    if not bool(known.any()):
        return 0.0
    if not bool(torch.isfinite(off).all()):
        return 1.0
    covariance, off = covariance[known][:, known], off.double()[known]
    if not bool(torch.isfinite(covariance).all()):
        return 1.0
    variance, axes = torch.linalg.eigh(covariance)
    free = variance > (FREE_STD * unit) ** 2
    if bool(free.any()):
        covariance, off = torch.diag(variance[~free]), axes.mT[~free] @ off
    n = len(off)
    if not n:
        return 0.0
    covariance = covariance + rounding**2 * torch.eye(n, dtype=torch.float64)
    # units of directions may be as far apart as those of angles and of maps
    std = covariance.diagonal().clamp(min=1e-300).sqrt()
    correlation = covariance / (std * std[:, None]) + 1e-12 * torch.eye(n, dtype=torch.float64)
    square = float((off / std) @ torch.linalg.solve(correlation, off / std))
    freedom = getattr(record, "degrees_of_freedom", None)
    if freedom is None or not np.isfinite(float(freedom)):
        return float(chi2.cdf(square, n))
    return float(f.cdf(square / n, n, float(freedom)))


def registration_outcome(record: Any, true: Tensor | None, rounding: float, unit: float = 1.0) -> Outcome:
    """Compare a registration with the truth; ``None`` where there is none, so that no answer is right.

    Several true elements ``[k, *element_shape]``, which a symmetric object has, must all be among the modes. Of several
    modes the regions of a single one are not asked.
    """
    trusted, group = bool(record.trusted), record.group
    if true is None or not bool(torch.isfinite(record.element).all()):
        return Outcome(trusted, True)
    true = true.to(record.element).reshape(-1, *group.element_shape)
    modes = record.modes.elements[0]
    modes = modes[torch.isfinite(modes).flatten(1).all(-1)]
    places = torch.cat([record.element[None], modes])
    off = group.log(group.compose(group.inverse(places), true.unsqueeze(1)))  # [true, places, n]
    masses = [[mass_inside(v, record, rounding, unit) for v in row] for row in off]
    if len(modes) > 1 or len(true) > 1:
        return Outcome(trusted, max(map(min, masses)) > REGION)
    return Outcome.at(trusted, masses[0][0])
