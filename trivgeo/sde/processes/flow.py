"""The ordinary equation that carries the same densities as the noise."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from trivgeo.groups import LieGroup
from trivgeo.sde.noise.schedule import Schedule
from trivgeo.sde.processes.reverse import reversed_score
from trivgeo.sde.processes.trivialized import TrivializedSDE
from trivgeo.sde.scores.base import Score

__all__ = ["probability_flow"]


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
