"""Left-trivialized stochastic differential equations, and the scheme that steps them by default."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from trivgeo._random import normal
from trivgeo._text import described
from trivgeo.checks import check_type, checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.schedule import Schedule
from trivgeo.sde.processes.base import Process, Stepper, StepState, merge_evaluated
from trivgeo.sde.scores.base import Score, SolveContext, as_score, check_drift, checked_score

Drift = Score | Callable[[Tensor, float], Tensor]


class DriftIncrement(NamedTuple):
    """The increment of a step by the drifts of an equation.

    Attributes:
        vector: algebra vector of the increment, ``[*batch, dim]``; zero without drift.
        evaluated: by-products of the drifts, see `StepState`.
    """

    vector: Tensor
    evaluated: Any = None

    def __repr__(self) -> str:
        return described(self)


@checked
@dataclass(frozen=True, repr=False)
class TrivializedSDE(Process):
    r"""The left-trivialized equation :math:`dg = d(L_g)_e[(\phi(g, t) + \gamma(t)^2 \psi(g, t))\,dt + \gamma(t)\,dw]`.

    Stratonovich sense: for constant coefficients the solution is a product of exponentials :math:`\exp(\gamma\,
    \delta w)`, with generator :math:`\phi \cdot X + \tfrac12 \gamma^2 \sum_i X_i^2` in the left-invariant fields.
    Its state is the elements ``[*batch, *element_shape]``.

    Attributes:
        group: the group of the elements.
        schedule: the diffusion coefficient gamma.
        drift: phi, a function of elements ``[*batch, *element_shape]`` and a time to algebra vectors ``[*batch, dim]``,
            or a `Score`, whose samples then come out of every step.
        score_drift: psi, a function like ``drift``, in units of the variance: over a step it is multiplied by the exact
            integral of gamma^2 instead of by dt.
        noisy: keep the noise; without it the equation is an ordinary one, in which gamma only weighs psi.

    Raises:
        ConfigurationError: a drift is neither a function nor a `Score`.
    """

    group: LieGroup
    schedule: Schedule
    drift: Drift | None = None
    score_drift: Drift | None = None
    noisy: bool = True

    def __post_init__(self) -> None:
        for name, drift in (("drift", self.drift), ("score_drift", self.score_drift)):
            if drift is not None:
                checked_score(drift, name)

    @property
    def horizon(self) -> float:
        return self.schedule.horizon

    @property
    def has_drift(self) -> bool:
        """True if there is a drift, phi or psi."""
        return self.drift is not None or self.score_drift is not None

    def check_state(self, state: Tensor, name: str) -> None:
        self.group.check_elements(state, name)

    def batch_shape(self, state: Tensor) -> torch.Size:
        return self.group.batch_shape(state)

    def default_stepper(self) -> Stepper[TrivializedSDE, Tensor]:
        """Return the scheme that `solve` uses by default, an `ExponentialEuler`."""
        return ExponentialEuler()

    def prepare(self, run: SolveContext) -> TrivializedSDE:
        drift, score_drift = (None if f is None else as_score(f).prepare(run) for f in (self.drift, self.score_drift))
        return dataclasses.replace(self, drift=drift, score_drift=score_drift)

    def along(self, start: Tensor, end: Tensor) -> TrivializedSDE:
        for name, drift in (("drift", self.drift), ("score_drift", self.score_drift)):
            if drift is not None and not as_score(drift).takes_row_times:
                raise ConfigurationError(
                    f"times: expected one grid for all chains, for {name} {as_score(drift)!r} takes one time"
                )
        return _RowTimedSDE(self.group, self.schedule, self.drift, self.score_drift, self.noisy, start, end)

    def increment(self, g: Tensor, start: float, end: float, at: float | None = None) -> DriftIncrement:
        """Return the increment by both drifts over a step, frozen at g and the time ``at`` (default: its start).

        Steps may run backwards, ``end < start``.
        """
        return self._weighted(g, start if at is None else at, end - start, self.schedule.variance(start, end))

    def velocity(self, g: Tensor, t: float, duration: float = 1.0) -> DriftIncrement:
        r"""Return the drift :math:`\phi + \gamma^2 \psi` at elements g and time t, times a duration."""
        return self._weighted(g, t, duration, duration * self.schedule(t) ** 2)

    def noise_std(self, start: float, end: float) -> float:
        """Return the standard deviation of the noise of a step from ``start`` to ``end``; zero without noise."""
        return abs(self.schedule.variance(start, end)) ** 0.5 if self.noisy else 0.0

    def _weighted(self, g: Tensor, t: Any, weight: Any, score_weight: Any) -> DriftIncrement:
        vectors, evaluated = [], []
        parts = (("drift", self.drift, weight), ("score_drift", self.score_drift, score_weight))
        for name, drift, factor in parts:
            if drift is not None:
                value, samples = as_score(drift).estimate(g, t)
                vectors.append(check_drift(value, self.group, g, name) * factor)
                evaluated.append(samples)
        if not vectors:
            return DriftIncrement(g.new_zeros(*self.batch_shape(g), self.group.dim))
        return DriftIncrement(vectors[0] if len(vectors) == 1 else vectors[0] + vectors[1], merge_evaluated(*evaluated))


@dataclass(frozen=True, repr=False)
class _RowTimedSDE(TrivializedSDE):
    """An equation on [0, 1], along which each chain goes from a time of its own, ``[*batch]``, to another."""

    first: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(()))
    last: Tensor = dataclasses.field(default_factory=lambda: torch.ones(()))

    def increment(self, g: Tensor, start: float, end: float, at: float | None = None) -> DriftIncrement:
        duration = (end - start) * (self.last - self.first)
        variance = self._variance(start, end)
        return self._weighted(g, self._time(start if at is None else at), duration[..., None], variance[..., None])

    def velocity(self, g: Tensor, t: float, duration: float = 1.0) -> DriftIncrement:
        rate, times = duration * (self.last - self.first), self._time(t)
        return self._weighted(g, times, rate[..., None], (rate * self.schedule(times) ** 2)[..., None])

    def noise_std(self, start: float, end: float) -> Any:
        return self._variance(start, end).abs().sqrt()[..., None] if self.noisy else 0.0

    def _time(self, share: float) -> Tensor:
        return torch.lerp(self.first, self.last, share)

    def _variance(self, start: float, end: float) -> Tensor:
        variance: Callable[[Any, Tensor], Tensor] = self.schedule.variance
        return variance(self._time(start), self._time(end))


@checked
class ExponentialEuler(Stepper[TrivializedSDE, Tensor]):
    r"""Exponential Euler, :math:`g \leftarrow g \exp(\phi\,\Delta t + \psi\,\sigma^2 + \sigma z)`.

    z is standard normal, and :math:`\sigma^2 = \int \gamma^2` over the step. Weak order 1, with one drift and one
    exponential a step; exact on abelian groups without drift.
    """

    order: ClassVar[int | None] = 1
    strong_order: ClassVar[float | None] = 0.5

    @property
    def takes_row_times(self) -> bool:
        return True

    def step(
        self, sde: TrivializedSDE, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        g = state.y
        if not sde.noisy:
            u, evaluated = sde.increment(g, start, end)
            return StepState(sde.group.retract(g, u), evaluated=evaluated)
        noise = normal((*sde.batch_shape(g), sde.group.dim), g, generator) * sde.noise_std(start, end)
        if not sde.has_drift:
            return StepState(sde.group.retract(g, noise))
        u, evaluated = sde.increment(g, start, end)
        return StepState(sde.group.retract(g, u + noise), evaluated=evaluated)


def check_noiseless(sde: TrivializedSDE, stepper: str) -> None:
    """Check that ``sde`` has no noise; the message calls the scheme ``stepper``.

    Raises:
        ConfigurationError: the equation is stochastic, or of another type.
    """
    if check_type("sde", sde, TrivializedSDE).noisy:
        raise ConfigurationError(f"sde: expected an equation without noise for {stepper}")


def check_reverse(sde: TrivializedSDE, start: float, end: float, stepper: object) -> Score:
    """Return the score of a reverse diffusion, an equation with noise and no other drift.

    Raises:
        ConfigurationError: the equation is another, or the time rises; the message names the class of the stepper.
    """
    if sde.score_drift is None or sde.drift is not None or not sde.noisy or end > start:
        raise ConfigurationError(f"sde: expected a reverse diffusion for {type(stepper).__name__}")
    return as_score(sde.score_drift)
