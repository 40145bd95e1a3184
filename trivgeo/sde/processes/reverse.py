"""The time reversal of the forward noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from trivgeo.checks import check_positive, checked
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.schedule import Schedule
from trivgeo.sde.processes.trivialized import TrivializedSDE
from trivgeo.sde.scores.base import Score, ScoreEstimate, SolveContext, check_drift, checked_score


@checked
def reverse_process(
    group: LieGroup,
    schedule: Schedule,
    score: Score | Callable[[Tensor, float], Tensor],
    *,
    modular_drift: bool = True,
    max_score_norm: float | Callable[[float], float] | None = None,
) -> TrivializedSDE:
    r"""The time reversal of the noise, for `solve` along a falling grid.

    With p_t the density for left Haar measure and :math:`a_i = \mathrm{tr}\,\mathrm{ad}(e_i)` it is

    .. math:: dg = d(L_g)_e[-\gamma^2 (\nabla_{\mathfrak g} \log p_t - a)\,dt + \gamma\,d\bar w].

    The term a vanishes on unimodular groups. Without it (Kim et al. 2026, prop. 4.1 as printed) the sampler is
    biased on all others: the adjoint of a left-invariant field X_i for left Haar measure is -X_i + a_i.

    Args:
        group: the group of the elements.
        schedule: diffusion coefficient of the noise.
        score: a `Score`, or a function (g, t) to ``[*batch, dim]``.
        modular_drift: keep the term a; ``False`` gives the published algorithm.
        max_score_norm: longer scores are shortened to this length, or to this function of the time; ``None`` for no
            bound.

    Raises:
        ConfigurationError: the score is no score, or belongs to noise on another group or of another schedule, or the
            bound is not positive.
    """
    if max_score_norm is not None and not callable(max_score_norm):
        check_positive("max_score_norm", max_score_norm)
    return TrivializedSDE(
        group, schedule, score_drift=reversed_score(group, schedule, score, 1.0, modular_drift, max_score_norm)
    )


def reversed_score(
    group: LieGroup,
    schedule: Schedule,
    score: Score | Callable[[Tensor, float], Tensor],
    weight: float,
    modular_drift: bool,
    max_norm: float | Callable[[float], float] | None = None,
) -> Score:
    """The drift ``weight (a - s)`` of a score s, where a is the trace of ad.

    Args:
        schedule: schedule of the noise of the score.
        score: a `Score`, or a function of element and time to algebra vectors.
        weight: factor, one for the reverse diffusion and one half for the probability flow.
        modular_drift: False leaves a out.
        max_norm: longest score at a time; longer ones are shortened.

    Raises:
        ConfigurationError: the score belongs to other noise.
    """
    score = checked_score(score)
    score.check_noise(group, schedule)
    return _Reversed(score, group, modular_drift and not group.algebra.is_unimodular, weight, max_norm)


@dataclass(frozen=True)
class _Reversed(Score):
    """The drift ``weight (a - s)``, or ``-weight s``; s is shortened to ``max_norm``."""

    score: Score
    group: LieGroup
    modular: bool
    weight: float
    max_norm: float | Callable[[float], float] | None

    @property
    def shares_noise(self) -> bool:
        return self.score.shares_noise

    @property
    def takes_row_times(self) -> bool:
        """Whether the score takes a time for each element; with a bound that depends on the time it does not."""
        return self.score.takes_row_times and not callable(self.max_norm)

    def estimate(self, g: Tensor, t: float) -> ScoreEstimate:
        s, samples = self.score.estimate(g, t)
        s = check_drift(s, self.group, g)
        bound = self.max_norm(t) if callable(self.max_norm) else self.max_norm
        if bound is not None:
            s = s * (bound / s.norm(dim=-1, keepdim=True).clamp(min=bound))
        drift = self.group.algebra.trace_ad_like(g) - s if self.modular else -s
        return ScoreEstimate(self.weight * drift, samples)

    def prepare(self, run: SolveContext) -> Score:
        return dataclasses.replace(self, score=self.score.prepare(run))


@checked
def probability_flow(
    group: LieGroup,
    schedule: Schedule,
    score: Score | Callable[[Tensor, float], Tensor],
    *,
    modular_drift: bool = True,
) -> TrivializedSDE:
    r"""Return the equation :math:`dg = d(L_g)_e[-\tfrac12 \gamma^2 (\nabla_{\mathfrak g} \log p_t - a)]\,dt`.

    Elements that follow the equation have, at every time, the density p_t of the noised elements for left Haar measure
    (Song et al. 2021 on vector spaces). Proof: the Fokker-Planck equation of the noise reads :math:`\partial_t p =
    \tfrac12 \gamma^2 \sum_i (a_i - X_i)^2 p = \sum_i (a_i - X_i)[v_i p]` with :math:`v = \tfrac12 \gamma^2 (a - \nabla
    \log p)` and :math:`a_i = \mathrm{tr}\,\mathrm{ad}(e_i)`. This is the continuity equation of v, since
    :math:`a_i - X_i` is the adjoint of X_i for left Haar measure.

    Args:
        group: the group of the elements.
        schedule: diffusion coefficient of the noise.
        score: a `Score`, or a function (g, t) to vectors ``[*batch, dim]``, see `reverse_process`.
        modular_drift: keep the drift of groups that are not unimodular, see `reverse_process`.

    Returns:
        The equation. There is no ``max_score_norm``: a shortened score would give another density.
    """
    drift = reversed_score(group, schedule, score, 0.5, modular_drift)
    return TrivializedSDE(group, schedule, score_drift=drift, noisy=False)
