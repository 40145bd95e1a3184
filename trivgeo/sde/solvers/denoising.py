"""Steps of a reverse diffusion by the denoised element: deterministic, ancestral, and consistency sampling."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from trivgeo._random import normal
from trivgeo.checks import checked
from trivgeo.sde.processes.base import Stepper, StepState
from trivgeo.sde.processes.trivialized import TrivializedSDE, check_reverse


@checked
class DenoisingStep(Stepper[TrivializedSDE, Tensor]):
    r"""A step of a reverse diffusion of any length, exact where the clean data are one point of a vector space.

    With :math:`\sigma^2 = \int_0^t \gamma^2`, the element denoised at once is :math:`g \exp(\sigma^2 (s - a))`
    (Tweedie's formula on a vector space): :math:`\sigma (s - a)` is minus the noise in units of its size. A step to a
    lower level :math:`\sigma'` keeps a part r of that noise and adds fresh noise of size q:

    .. math:: g \leftarrow g \exp\big((\sigma - r)\,\sigma\,(s - a) + q z\big).

    The step is then exact for every r and q with :math:`r^2 + q^2 = \sigma'^2`, where exponential Euler needs small
    steps. The drift is evaluated at the start of a step, never at t = 0.

    Raises:
        ConfigurationError: the process is no reverse diffusion, or does not run backwards.
    """

    @abstractmethod
    def parts(self, level: float, lower: float) -> tuple[float, float]:
        """Return the kept part r of the noise and the size q of fresh noise, for a step from ``level`` to ``lower``."""

    def step(
        self, sde: TrivializedSDE, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        drift, samples = check_reverse(sde, start, end, self).estimate(state.y, start)
        level, lower = (math.sqrt(sde.schedule.variance(0.0, t)) for t in (start, end))
        kept, fresh = self.parts(level, lower)
        v = drift * (level * (kept - level))
        if fresh:
            v = v + fresh * normal(v.shape, v, generator)
        return StepState(sde.group.retract(state.y, v), evaluated=samples)


@checked
class FlowStep(DenoisingStep):
    """Deterministic sampling: all noise of the lower level is kept, none is fresh; the probability flow in the level.

    Song, Meng and Ermon 2021 (DDIM); of order 1 as a scheme for `probability_flow`.
    """

    order: ClassVar[int | None] = 1

    def parts(self, level: float, lower: float) -> tuple[float, float]:
        return lower, 0.0


@checked
class AncestralStep(DenoisingStep):
    r"""Ancestral sampling, :math:`r = \sigma'^2 / \sigma`: the noise at the lower level given the clean element.

    Ho, Jain and Abbeel 2020, for noise of growing variance.
    """

    order: ClassVar[int | None] = 1

    def parts(self, level: float, lower: float) -> tuple[float, float]:
        ratio = lower / level
        return lower * ratio, lower * math.sqrt(1.0 - ratio**2)


@checked
class RenoisingStep(DenoisingStep):
    """Consistency sampling: the denoised element with fresh noise, for networks that were distilled.

    Song et al. 2023, algorithm 1.
    """

    def parts(self, level: float, lower: float) -> tuple[float, float]:
        return 0.0, lower


@checked
class RefiningStep(DenoisingStep):
    """Iterated denoising without noise, at falling levels: for posteriors with one mode.

    This is no sampler: every step goes to an estimate of the mean of the posterior.
    """

    def parts(self, level: float, lower: float) -> tuple[float, float]:
        return 0.0, 0.0
