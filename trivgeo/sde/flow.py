"""The ordinary equation that carries the same densities as the noise."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from trivgeo.groups import LieGroup
from trivgeo.sde.process import Stepper, TrivializedSDE, solve, uniform_grid
from trivgeo.sde.schedule import Schedule
from trivgeo.sde.score import Run, Score, as_score
from trivgeo.sde.steppers import GeometricHeun

__all__ = ["probability_flow", "probability_flow_sample"]


def probability_flow(
    group: LieGroup,
    schedule: Schedule,
    score: Callable[[Tensor, float], Tensor],
    *,
    modular_drift: bool = True,
) -> TrivializedSDE:
    r"""The equation :math:`dg = d(L_g)_e[-\tfrac12 \gamma^2 (\nabla_{\mathfrak g} \log p_t - a)]\,dt`.

    Along it the law is p_t, the density for left Haar measure of the noised elements, at every time (Song et al.
    2021 on vector spaces). The Fokker-Planck equation of the noise reads :math:`\partial_t p = \tfrac12 \gamma^2
    \sum_i (a_i - X_i)^2 p = \sum_i (a_i - X_i)[v_i p]` with :math:`v = \tfrac12 \gamma^2 (a - \nabla \log p)`, which is
    the continuity equation of v, since :math:`a_i - X_i` is the adjoint of X_i for left Haar measure;
    :math:`a_i = \mathrm{tr}\,\mathrm{ad}(e_i)`.

    Args:
        group: the group.
        schedule: the diffusion coefficient of the noise.
        score: (g, t) to ``[*batch, dim]``.
        modular_drift: keep the term a, which vanishes on unimodular groups.
    """
    score = as_score(score)
    keep = modular_drift and not group.algebra.is_unimodular

    def drift(g: Tensor, t: float) -> Tensor:
        s = -0.5 * score(g, t)
        return s + 0.5 * group.algebra.trace_ad_like(g) if keep else s

    return TrivializedSDE(group, schedule, score_drift=drift, noisy=False)


def probability_flow_sample(
    group: LieGroup,
    schedule: Schedule,
    score: Score | Callable[[Tensor, float], Tensor],
    initial: Tensor,
    *,
    steps: int = 50,
    modular_drift: bool = True,
    stepper: Stepper[TrivializedSDE, Tensor] | None = None,
    generator: torch.Generator | None = None,
    final_time: float = 0.0,
) -> Tensor:
    """Carry elements from t = 1 to a sample of the clean law by `probability_flow`.

    Args:
        group: the group.
        schedule: the diffusion coefficient.
        score: a `Score`, or a function (g, t) to ``[*batch, dim]``.
        initial: elements at t = 1, ``[*batch, *element_shape]``.
        steps: number of equal steps.
        modular_drift: keep the term a.
        stepper: the scheme; default `GeometricHeun`, of order 2.
        generator: the source of noise of a Monte Carlo score.
        final_time: where to stop; above zero for scores that do not exist at zero.

    Raises:
        ConfigurationError: ``steps`` is less than one.
        DomainError: ``final_time`` lies outside [0, 1).
    """
    group.check_elements(initial, "initial")
    times = uniform_grid(steps, 1.0, final_time)
    nodes = sorted({*times, *(0.5 * (a + b) for a, b in itertools.pairwise(times))}, reverse=True)
    run = Run(tuple(nodes), tuple(group.batch_shape(initial)), initial.dtype, initial.device, generator)
    process = probability_flow(group, schedule, as_score(score).prepare(run), modular_drift=modular_drift)
    stepper = GeometricHeun() if stepper is None else stepper
    return solve(process, initial, times, stepper=stepper, generator=generator).final
