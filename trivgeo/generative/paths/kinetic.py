"""Kinetic diffusion, in a frame in which the momentum hardly matters."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import normal
from trivgeo.generative.base_distributions import BaseDistribution
from trivgeo.generative.paths.base import Network, ProbabilityPath, TrainingBatch, followed
from trivgeo.generative.paths.levels import _together, graded, noise_parts, stratified
from trivgeo.groups import LieGroup
from trivgeo.sde.likelihood import Divergence, ExactDivergence, flow_likelihood
from trivgeo.sde.noise.kinetic import KineticNoise
from trivgeo.sde.processes.kinetic import KineticDiffusion, KineticState, join_state, split_state
from trivgeo.sde.processes.trivialized import TrivializedSDE
from trivgeo.sde.solvers.kinetic import KineticAncestralStep
from trivgeo.sde.solvers.time_loop import solve

__all__ = ["KineticPath"]

_GRID = 256  # of a table of levels


@dataclass(frozen=True)
class KineticPath(ProbabilityPath):
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

    def lesson(self, clean: Tensor, generator: torch.Generator | None) -> TrainingBatch:
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
        return TrainingBatch(
            g, level, momentum if self.sees_momentum else None, answer, 1.0 / self._answer_variance(level)
        )

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
        point = KineticState(self._shifted(start, momentum, self._covariance(self.last)), momentum)
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
        law: BaseDistribution,
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
            state = join_state(group, KineticState(self._shifted(g, momentum, first), momentum))
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
        """kappa, see `KineticPath`."""
        return float(self.group.algebra.structure_constants.square().sum()) / self.group.dim

    def _answer_variance(self, level: Tensor) -> Tensor:
        """v, see `KineticPath`."""
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
