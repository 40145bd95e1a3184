"""How data and noise are joined on a group: what a network learns, and the flow that it then makes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import normal, uniform
from trivgeo._text import described
from trivgeo.errors import ConfigurationError
from trivgeo.groups import DirectProduct, LieGroup
from trivgeo.sde.adaptive import solve_adaptive
from trivgeo.sde.denoising import noise_with_target
from trivgeo.sde.flow import probability_flow
from trivgeo.sde.heat import heat_kernel
from trivgeo.sde.kinetic import (
    KineticAncestralStep,
    KineticDiffusion,
    KineticNoise,
    KineticPoint,
    join_state,
    split_state,
)
from trivgeo.sde.likelihood import Divergence, ExactDivergence, flow_likelihood
from trivgeo.sde.process import TrivializedSDE, solve
from trivgeo.sde.reverse import reverse_process
from trivgeo.sde.schedule import ConstantSchedule, Schedule
from trivgeo.sde.steppers import GeometricHeun
from trivgeo.sde.terminal import TerminalLaw, is_isotropic, scaled_factors

__all__ = ["DiffusionTransport", "FlowTransport", "Lesson", "MomentumTransport", "Transport"]

Network = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Elements, levels ``[*batch]`` in [0, 1] and momenta (or none) to ``[*batch, dim]``."""

_FEWEST, _MOST = 3, 32  # factors of one noise sample, where it is simulated
_REACH = 2.5  # of a factor in an anisotropic basis, the variance of its largest turn: 2 pi is four deviations
_SCORED = 128  # factors of which the target is made
_REFUSED, _REFUSED_KINETIC = 2048, 256  # more factors than that
_GRADES = 8  # of levels, each with its number of these
_GRID = 256  # of a table of levels


class Lesson(NamedTuple):
    """A batch for a network: it is to make the target of the rest, in the mean of the square.

    Attributes:
        elements: ``[b, *element_shape]``.
        level: in [0, 1], from data to noise, ``[b]``.
        momentum: ``[b, dim]``, or none.
        target: of size one, about, ``[b, dim]``; rows that are not finite do not count.
        weight: of the rows in the mean of the square, ``[b]``.
    """

    elements: Tensor
    level: Float[Tensor, " b"]
    momentum: Float[Tensor, "b n"] | None
    target: Float[Tensor, "b n"]
    weight: Float[Tensor, " b"]

    def __repr__(self) -> str:
        return described(self)


class Transport(ABC):
    """A way from data to a `TerminalLaw` on a group.

    Attributes:
        group: see `TrivializedSDE`.
        sees_momentum: whether the network is given momenta.
        version: of what the network is to tell; networks that learned another are of no use.
    """

    group: LieGroup
    sees_momentum: bool = False
    version: int = 1
    first: float

    @abstractmethod
    def flow(self, network: Network) -> TrivializedSDE:
        """The equation without noise that carries the data, at the time ``first``, to the terminal law."""

    @abstractmethod
    def lesson(self, clean: Tensor, generator: torch.Generator | None) -> Lesson:
        """A batch made from data ``[b, *element_shape]``."""

    @abstractmethod
    def noised(self, clean: Tensor, generator: torch.Generator | None) -> Tensor:
        """Data at the end of the way, to which the terminal law is fitted."""

    @abstractmethod
    def sample(
        self, network: Network, start: Tensor, generator: torch.Generator | None, tolerance: float, steps: int | None
    ) -> Tensor:
        """Carry elements of the terminal law to the data: by the flow, or in ``steps`` random steps."""

    def log_density(
        self,
        network: Network,
        g: Tensor,
        law: TerminalLaw,
        generator: torch.Generator | None,
        tolerance: float,
        divergence: Divergence | None,
    ) -> Float[Tensor, " b"]:
        """For the measure of the terminal law, by the flow."""
        return flow_likelihood(
            self.flow(network),
            g,
            law.log_density,
            start=self.first,
            tolerance=tolerance,
            divergence=divergence,
            generator=generator,
        ).log_density


@dataclass(frozen=True)
class DiffusionTransport(Transport):
    r"""Noise of growing variance, and its score: the network is to tell the noise in units of its size, from g_t.

    The score is minus that over :math:`\sigma`; the loss :math:`\sigma^2 |s - T|^2`, at times that are uniform, is with
    a geometric schedule that of the likelihood (Song et al. 2021b). Noise whose `heat_kernel` is not known is simulated
    to weak order 2, see `noise_with_target`.

    Attributes:
        group: see `TrivializedSDE`, also for ``schedule``.
        schedule: the noise.
        first: the time that stands for the data.
    """

    group: LieGroup
    schedule: Schedule
    first: float = 0.02

    def lesson(self, clean: Tensor, generator: torch.Generator | None) -> Lesson:
        """At stratified times."""
        t = self.first + (1.0 - self.first) * stratified(len(clean), clean, generator)
        variance = self.schedule.variance(0.0, t)
        simulated = heat_kernel(self.group) is None

        def parts(level: float) -> int:
            return self._parts(self.first + (1.0 - self.first) * level) if simulated else 1

        noise = [self._noise(variance[rows], steps, generator) for rows, steps in graded(len(clean), parts)]
        elements, targets = (torch.cat(x) for x in zip(*noise, strict=True))
        answers = -variance.sqrt().unsqueeze(-1) * targets
        return Lesson(self.group.compose(clean, elements), t, None, answers, torch.ones_like(t))

    def noised(self, clean: Tensor, generator: torch.Generator | None) -> Tensor:
        """At t = 1."""
        variance = torch.full((len(clean),), self.schedule.variance(0.0, 1.0)).to(clean)
        steps = 1 if heat_kernel(self.group) is not None else self._parts(1.0)
        rows = variance.split(_together(len(clean), min(steps, _SCORED)))
        return self.group.compose(clean, torch.cat([self._noise(part, steps, generator)[0] for part in rows]))

    def _noise(self, variance: Tensor, steps: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Elements and targets; of more steps than these are worth, the first ones, in fewer, are taken for the data's.

        So the target is unbiased, and as noisy as if the noise were as much smaller.
        """
        share = min(1.0, _SCORED / steps)
        make = functools.partial(noise_with_target, self.group, order=2, generator=generator)
        last = make(share * variance, steps=min(steps, _SCORED))
        if share == 1.0:
            return last.elements, last.target
        return self.group.compose(make((1.0 - share) * variance, steps=_MOST).elements, last.elements), last.target

    def _parts(self, t: float) -> int:
        return noise_parts(self.group, self.schedule.variance(0.0, t), _FEWEST)

    def score(self, network: Network) -> Callable[[Tensor, float], Tensor]:
        """The score of p_t as a function of element and time, for any process of this library."""

        def score(g: Tensor, t: float) -> Tensor:
            level = g.new_full(self.group.batch_shape(g), t)
            return network(g, level, None) * (-1.0 / math.sqrt(self.schedule.variance(0.0, t)))

        return score

    def flow(self, network: Network) -> TrivializedSDE:
        """The probability flow."""
        return probability_flow(self.group, self.schedule, self.score(network))

    def sample(
        self, network: Network, start: Tensor, generator: torch.Generator | None, tolerance: float, steps: int | None
    ) -> Tensor:
        """Steps are those of `GeometricHeun` for the `reverse_process`, two evaluations each."""
        if steps is None:
            return followed(self.flow(network), start, 1.0, self.first, tolerance)
        grid = [1.0 + (self.first - 1.0) * k / steps for k in range(steps)] + [self.first]
        process = reverse_process(self.group, self.schedule, self.score(network))
        return solve(process, start, grid, stepper=GeometricHeun(), generator=generator).followed


@dataclass(frozen=True)
class FlowTransport(Transport):
    r"""Flow matching along geodesics (Chen and Lipman 2024): the network is to tell the velocity.

    From a datum x_1 to a draw x_0 of the terminal law goes :math:`x_1 \exp(t u), u = \log(x_1^{-1} x_0)`, whose
    left-trivialized velocity is u at every t; the flow of :math:`E[u \mid x_t]` carries one law to the other, on every
    group, for that is a fact about one-parameter subgroups. Time runs from the data, as for the other kinds. Pairs
    without a logarithm do not count.

    Attributes:
        group: see `TrivializedSDE`.
        law: the terminal law.
        speed: the size of u.
    """

    group: LieGroup
    law: TerminalLaw
    speed: float

    @property
    def first(self) -> float:  # type: ignore[override]
        """The flow begins at the data themselves."""
        return 0.0

    def lesson(self, clean: Tensor, generator: torch.Generator | None) -> Lesson:
        """At stratified times."""
        t = stratified(len(clean), clean, generator)
        u = self.group.log(self.group.compose(self.group.inverse(clean), self.law.sample(len(clean), generator)))
        found = torch.isfinite(u).all(-1, keepdim=True)
        g = self.group.retract(clean, t.unsqueeze(-1) * torch.where(found, u, 0.0))
        return Lesson(g, t, None, u / self.speed, torch.ones_like(t))

    def noised(self, clean: Tensor, generator: torch.Generator | None) -> Tensor:
        """A draw of the terminal law."""
        return self.law.sample(len(clean), generator)

    def flow(self, network: Network) -> TrivializedSDE:
        """With the network's velocity."""

        def drift(g: Tensor, t: float) -> Tensor:
            return self.speed * network(g, g.new_full(self.group.batch_shape(g), t), None)

        return TrivializedSDE(self.group, ConstantSchedule(0.0), drift, noisy=False)

    def sample(
        self, network: Network, start: Tensor, generator: torch.Generator | None, tolerance: float, steps: int | None
    ) -> Tensor:
        """By the flow; there are no random steps."""
        if steps is not None:
            raise ConfigurationError('steps: expected none for kind="flow", which has no random steps')
        return followed(self.flow(network), start, 1.0, self.first, tolerance)


@dataclass(frozen=True)
class MomentumTransport(Transport):
    r"""Kinetic diffusion (Zhu et al. 2025), seen from where the momentum came from.

    With :math:`C = \mathrm{Cov}(x, \xi)` and :math:`\sigma^2 = \mathrm{Var}(x \mid \xi)` of a displacement x and its
    momentum, :math:`\hat g = g \exp(-C \xi)` is on abelian groups the clean element with noise :math:`\sigma`
    independent of the momentum, so that

    .. math:: \nabla_\xi \log p_t(g, \xi) = -\xi - C\, \nabla \log \hat p_\sigma(\hat g).

    The network sees :math:`\hat g` and is to tell :math:`(\nabla_\xi \log p_t + \xi)\, \sigma / C`, the noise of
    :math:`\hat g`; where the group is not abelian also the momentum, on which it then depends a little. For there

    .. math:: g \exp(-C (\xi + \eta)) \approx \hat g \exp(-C J_r(-C \xi)\, \eta), \quad J_r(-C \xi) =
        \mathrm{Ad}_{\exp(C \xi / 2)} \big(1 + \tfrac1{24} \mathrm{ad}_{C \xi}^2 + \dots\big)

    carries a gradient at :math:`\hat g` to one in :math:`\xi`: the network answers in the frame of :math:`\hat g`, and
    :math:`\mathrm{Ad}_{\exp(C \xi / 2)}^T` turns that into the frame of g, by an angle that a network would hardly
    learn.

    Of an answer in a lesson brackets make the variance about :math:`v = 1 + \kappa \sigma^2 / 4, \kappa = \sum_{ij}
    |[e_i, e_j]|^2 / n`, in place of 1. Lessons count by 1 / v, and there are more of the levels at which v is large.

    Attributes:
        noise: the noise.
        first: the time that stands for the data.
        last: the time at which :math:`\hat g` is taken to follow the terminal law, with an independent momentum.
        draws: momenta of one density, which is the mean over them.
    """

    noise: KineticNoise
    first: float
    last: float
    draws: int = 1

    @property
    def group(self) -> LieGroup:  # type: ignore[override]
        """That of the noise."""
        return self.noise.group

    @property
    def sees_momentum(self) -> bool:  # type: ignore[override]
        """Where the group is not abelian."""
        return not self.group.algebra.is_abelian

    @property
    def version(self) -> int:  # type: ignore[override]
        """2 where the group is not abelian: 1 was in the frame of g, which there is another."""
        return 1 if self.group.algebra.is_abelian else 2

    def lesson(self, clean: Tensor, generator: torch.Generator | None) -> Lesson:
        """At stratified logarithms of the time, more of those whose answers are noisy."""
        level = self._levels(stratified(len(clean), clean, generator))
        t = self._time(level)

        def parts(share: float) -> int:
            return self._parts(float(self._time(self._levels(torch.tensor(share)))))

        samples = [
            dataclasses.replace(self.noise, steps=steps).sample(t[rows], generator)
            for rows, steps in graded(len(clean), parts)
        ]
        w, momentum, target = (torch.cat(x) for x in zip(*samples, strict=True))
        covariance, width = self._coefficients(t)
        half = self.group.exp(-0.5 * covariance * momentum)
        g = self._moved(self.group.compose(clean, w), half)
        answer = self.group.coadjoint(half, (target + momentum) * width / covariance)
        return Lesson(g, level, momentum if self.sees_momentum else None, answer, 1.0 / self._answer_variance(level))

    def noised(self, clean: Tensor, generator: torch.Generator | None) -> Tensor:
        """Where the network sees them at the last time: there they do not depend on the momentum."""
        times = torch.full((len(clean),), self.last).to(clean)
        samples = [self.noise.sample(t, generator) for t in times.split(_together(len(clean), self.noise.steps))]
        w, momentum, _ = (torch.cat(x) for x in zip(*samples, strict=True))
        return self._shifted(self.group.compose(clean, w), momentum, -self._covariance(self.last))

    def process(self, network: Network) -> KineticDiffusion:
        """The diffusion with its score, for `solve` along falling times."""

        def score(g: Tensor, momentum: Tensor, t: float) -> Tensor:
            times = g.new_full(self.group.batch_shape(g), t)
            covariance, width = self._coefficients(times)
            level = (times / self.first).log() / math.log(self.last / self.first)
            half = self.group.exp(-0.5 * covariance * momentum)
            answer = network(self._moved(g, half), level, momentum if self.sees_momentum else None)
            return covariance / width * self.group.coadjoint(self.group.inverse(half), answer) - momentum

        return KineticDiffusion(self.group, self.noise.friction, score)

    def flow(self, network: Network) -> TrivializedSDE:
        """On G x R^n: elements with their momenta."""
        return self.process(network).flow()

    def sample(
        self, network: Network, start: Tensor, generator: torch.Generator | None, tolerance: float, steps: int | None
    ) -> Tensor:
        """Steps are those of `KineticAncestralStep`, in equal ratios of the time, one evaluation each."""
        momentum = normal((len(start), self.group.dim), start, generator)
        point = KineticPoint(self._shifted(start, momentum, self._covariance(self.last)), momentum)
        if steps is None:
            state = followed(self.flow(network), join_state(self.group, point), self.last, self.first, tolerance)
            final = split_state(self.group, state)
        else:
            ratio = self.first / self.last
            grid = [self.last * ratio ** (k / steps) for k in range(steps)] + [self.first]
            process = self.process(network)
            final = solve(process, point, grid, stepper=KineticAncestralStep(), generator=generator).followed
        return self._shifted(final.elements, final.momentum, -self._covariance(self.first))

    def log_density(
        self,
        network: Network,
        g: Tensor,
        law: TerminalLaw,
        generator: torch.Generator | None,
        tolerance: float,
        divergence: Divergence | None,
    ) -> Float[Tensor, " b"]:
        r"""log of the mean of :math:`p(g, \xi) / N(\xi)` over momenta :math:`\xi \sim N`, each by the flow on G x R^n.

        That of a perfect score is the same for every momentum.
        """
        group, n = self.group, self.group.dim
        flow = self.flow(network)
        # the element moves with the momentum, which does not depend on it
        inner = (ExactDivergence() if divergence is None else divergence).within(range(n, 2 * n))

        first, last = self._covariance(self.first), self._covariance(self.last)

        def moved(momentum: Tensor) -> Tensor:
            """What left Haar measure grows by, under the translation from the right by exp(xi), in logarithms."""
            return -momentum @ group.algebra.trace_ad_like(momentum)

        def end(state: Tensor) -> Tensor:
            elements, momentum = split_state(group, state)
            seen = law.log_density(self._shifted(elements, momentum, -last)) - last * moved(momentum)
            return seen - 0.5 * momentum.square().sum(-1)

        logs = []
        for _ in range(self.draws):
            momentum = normal((len(g), n), g, generator)
            state = join_state(group, KineticPoint(self._shifted(g, momentum, first), momentum))
            found = flow_likelihood(
                flow,
                state,
                end,
                start=self.first,
                end=self.last,
                divergence=inner,
                tolerance=tolerance,
                generator=generator,
            )
            logs.append(found.log_density + 0.5 * momentum.square().sum(-1) + first * moved(momentum))
        return torch.stack(logs).logsumexp(0) - math.log(self.draws)

    def _time(self, level: Tensor) -> Tensor:
        """From the first to the last in equal ratios."""
        return self.first * torch.exp(level * math.log(self.last / self.first))

    @functools.cached_property
    def _curvature(self) -> float:
        """kappa, see `MomentumTransport`."""
        return float(self.group.algebra.structure_constants.square().sum()) / self.group.dim

    def _answer_variance(self, level: Tensor) -> Tensor:
        """v, see `MomentumTransport`."""
        return 1.0 + 0.25 * self._curvature * self._coefficients(self._time(level))[1].squeeze(-1).square()

    @functools.cached_property
    def _shares(self) -> Tensor:
        """Of the lessons, below each level of a grid; their density goes with v^(3/4)."""
        grid = torch.linspace(0.0, 1.0, _GRID + 1, dtype=torch.float64)
        below = torch.cumulative_trapezoid(self._answer_variance(grid) ** 0.75, grid)
        return torch.cat([torch.zeros_like(below[:1]), below / below[-1]])

    def _levels(self, share: Tensor) -> Tensor:
        """Levels below which there is that share of the lessons."""
        if self._curvature == 0.0:
            return share
        shares = self._shares.to(share)
        right = torch.searchsorted(shares, share).clamp(1, _GRID)
        low, high = shares[right - 1], shares[right]
        return (right - 1 + (share - low) / (high - low)) / _GRID

    def _moved(self, g: Tensor, half: Tensor) -> Tensor:
        """To where the network sees it, by exp(-C xi / 2), twice."""
        return self.group.compose(self.group.compose(g, half), half)

    def _parts(self, t: float) -> int:
        """Of the noise at a time; one call where they do not matter."""
        if self.group.algebra.is_abelian:
            return self.noise.steps
        return min(self.noise.steps, noise_parts(self.group, float(self.noise.moments(torch.tensor(t))[0]), time=t))

    def _shifted(self, g: Tensor, momentum: Tensor, covariance: float) -> Tensor:
        return self.group.retract(g, covariance * momentum)

    def _covariance(self, t: float) -> float:
        """C."""
        return float(self.noise.moments(torch.tensor(t))[1])

    def _coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """C and sigma, ``[*batch, 1]``."""
        variance, covariance, given = self.noise.moments(t)
        return covariance.to(t.dtype).unsqueeze(-1), (variance * given).sqrt().to(t.dtype).unsqueeze(-1)


def noise_parts(group: LieGroup, variance: float, fewest: int = 6, time: float | None = None) -> int:
    r"""Exponentials of a noise sample: so many that each is of length two or less, mostly, where exp is one to one.

    No more than a few, but on what is compact of a group with an anisotropic scale, or beside what is not compact.
    There the long axes turn many times while the short ones reach the slowest mode, or noise as far as data. J_r is
    singular, and a score infinite, where an eigenvalue of ad(v) is :math:`2 \pi i`; of normal v with variance
    :math:`\sigma^2 / m` their mean square is about :math:`\sigma^2 \kappa / m`, with :math:`\kappa` the largest
    eigenvalue of :math:`-\sum_i \mathrm{ad}(e_i)^2`.

    Args:
        group: see `TrivializedSDE`.
        variance: of the whole sample.
        fewest: of the exponentials.
        time: of kinetic noise, whose m parts are of variance :math:`t^2 / m^2` at most.

    Raises:
        ConfigurationError: the scale asks for more than can be simulated.
    """
    usual = min(_MOST, max(fewest, math.ceil(0.25 * group.dim * variance)))
    turn = _turn(group) / _REACH
    asked = math.ceil(turn * variance)
    if time is not None:
        asked = min(asked, math.ceil(math.sqrt(turn) * time))
    most = _REFUSED if time is None else _REFUSED_KINETIC
    if asked > most:
        raise ConfigurationError(
            f"scale: expected axes of {group!r} of more nearly equal lengths, got such that noise is a product of "
            f'{asked} exponentials, more than {most}; lengthen the shortest, or take kind="flow" without noise'
        )
    return max(usual, asked)


@functools.lru_cache(maxsize=16)  # groups are told apart as objects; asked for every level of every lesson
def _turn(group: LieGroup) -> float:
    """kappa, see `noise_parts`, of what is compact, unless its own slowest mode has set the variance."""
    if group.is_compact and is_isotropic(group):
        return 0.0
    factors = scaled_factors(group) if isinstance(group, DirectProduct) and not group.is_compact else [group]
    turns = (
        -12.0 * float(torch.linalg.eigvals(factor.algebra.noise_corrections[0].value).real.min())
        for factor in factors
        if factor.is_compact and not factor.algebra.is_abelian
    )
    return max(turns, default=0.0)


def _together(number: int, steps: int) -> int:
    """Rows of noise that are made at once, for want of memory where they have more factors than usual."""
    return max(1, min(number, number * _MOST // steps))


def graded(number: int, parts: Callable[[float], int]) -> Iterator[tuple[slice, int]]:
    """Rows of `stratified` levels that are made alike: how many parts the highest level of each grade asks for."""
    grades = ((k, parts((k + 1) / _GRADES)) for k in range(_GRADES))
    for steps, group in itertools.groupby(grades, lambda grade: grade[1]):
        members = [k for k, _ in group]
        rows = slice(number * members[0] // _GRADES, number * (members[-1] + 1) // _GRADES)
        if rows.start < rows.stop:
            yield rows, steps


def stratified(number: int, like: Tensor, generator: torch.Generator | None) -> Float[Tensor, " b"]:
    """Increasing numbers in [0, 1], one in each of equal parts at the same place, each uniform over its part."""
    return (torch.arange(number, dtype=like.dtype, device=like.device) + uniform((), like, generator)) / number


def followed(flow: TrivializedSDE, start: Tensor, first: float, last: float, tolerance: float) -> Tensor:
    """Where a flow carries elements."""
    return solve_adaptive(flow, start, first, last, tolerance=tolerance).final
