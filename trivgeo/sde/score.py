"""Scores: estimates of the left-trivialized gradient of log p_t."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.noise import NoiseKernel, NoiseReplay

__all__ = ["EnergyScore", "FunctionScore", "Run", "Score", "ScoreEstimate"]

Energy = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Run:
    """What a score may know of the solve it will serve, so that it prepares once what every step needs.

    Attributes:
        times: the times at which it will be asked, in order.
        batch: the batch shape of the chains.
        dtype: of the elements.
        device: of the elements.
        generator: the source of noise of the solve.
    """

    times: tuple[float, ...]
    batch: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    generator: torch.Generator | None


class Score(ABC):
    """An estimate of the trivialized score of p_t, the density with respect to left Haar measure."""

    @abstractmethod
    def __call__(self, g: Tensor, t: float) -> Float[Tensor, "*batch n"]:
        """The score at elements ``[*batch, *element_shape]`` and one time."""

    def prepare(self, run: Run) -> Callable[[Tensor, float], Tensor]:
        """A score for one solve; by default the score itself."""
        return self


class FunctionScore(Score):
    """A score given as a function ``(g, t) -> [*batch, dim]``: a closed form or a network."""

    def __init__(self, function: Callable[[Tensor, float], Tensor]) -> None:
        self._function = function

    def __call__(self, g: Tensor, t: float) -> Tensor:
        """The given function."""
        return self._function(g, t)


@dataclass(frozen=True)
class ScoreEstimate:
    """What one estimate of an `EnergyScore` was made of.

    Attributes:
        weights: of the N samples of each chain, summing to one, ``[*batch, N]``.
        energy: of the samples, ``[*batch, N]``.
        finite: samples whose energy and gradient are finite, ``[*batch, N]``; the others are masked.
        elements: where the energy was evaluated, ``[*batch, N, *element_shape]``.
        log_density: logarithm of the estimate of p_t, up to the same constant for all chains and times, ``[*batch]``.
    """

    weights: Float[Tensor, "*batch n"]
    energy: Float[Tensor, "*batch n"]
    finite: Bool[Tensor, "*batch n"]
    elements: Tensor
    log_density: Float[Tensor, "*batch"]


class EnergyScore(Score):
    r"""The Monte Carlo score of the noised Boltzmann density :math:`p_0 \propto e^{-E}` (Kim et al. 2026, prop. 4.3).

    .. math:: \nabla_{\mathfrak g} \log p_t(g) \approx -\sum_i \omega_i \nabla_{\mathfrak g} E(g w_i^{-1}), \quad
        \omega = \mathrm{softmax}_i(-E(g w_i^{-1}) - \log \lambda(w_i)), \quad w_i \sim k_t,

    the gradient of a log-sum-exp, evaluated without overflow. A sample whose energy or gradient is not finite gets
    weight zero; a chain with no finite sample gets score zero. At t = 0 the score is :math:`-\nabla E`, without noise.

    Where the noise of a run comes from is a matter of cost: by default every chain has N paths of its own, kept at all
    times. ``pool`` draws fewer paths and deals them at random to the chains, anew at each time: with thousands of
    chains nearly all exponentials and memory are saved. ``replay`` keeps one time only and walks the paths back.

    Args:
        energy: elements ``[*batch, *element_shape]`` to energies ``[*batch]``, differentiable.
        kernel: the noise kernel.
        num_mc: the number N of noise samples of one estimate.
        generator: the source of noise of direct calls; in `reverse_diffusion` the solve's own is used.
        shared_noise: one set of noise samples for the first batch dimension: cheaper, but correlates the chains.
        antithetic: noise in pairs z, -z, within each estimate.
        pool: the number of paths of a run, at least N; ``None`` for N of each chain's own.
        replay: the memory of a run does not grow with its steps, at one more exponential a step and path.
        on_estimate: called with every `ScoreEstimate`, for diagnostics or to keep what was evaluated.

    Raises:
        ConfigurationError: ``num_mc`` is less than one, ``pool`` is less than ``num_mc`` or comes with
            ``shared_noise``.
    """

    def __init__(
        self,
        energy: Energy,
        kernel: NoiseKernel,
        num_mc: int,
        *,
        generator: torch.Generator | None = None,
        shared_noise: bool = False,
        antithetic: bool = False,
        pool: int | None = None,
        replay: bool = False,
        on_estimate: Callable[[ScoreEstimate], None] | None = None,
    ) -> None:
        self.energy = energy
        self.kernel = kernel
        self.num_mc = check_count("num_mc", num_mc)
        if pool is not None and (check_count("pool", pool) < num_mc or shared_noise):
            raise ConfigurationError(
                f"pool: expected at least num_mc = {num_mc} paths and no shared_noise, got {pool}, {shared_noise}"
            )
        self.generator = generator
        self.shared_noise = shared_noise
        self.antithetic = antithetic
        self.pool = pool
        self.replay = replay
        self.on_estimate = on_estimate

    def __call__(self, g: Tensor, t: float) -> Float[Tensor, "*batch n"]:
        """The estimate with fresh noise, simulated from 0 to t."""
        group = self.kernel.group
        group.check_elements(g)
        batch = tuple(group.batch_shape(g))
        w, log_modular = self.kernel.sample(
            *self._noise_batch(batch),
            t=t,
            generator=self.generator,
            dtype=g.dtype,
            device=g.device,
            antithetic=self.antithetic,
        )
        return self.estimate(g, group.inverse(w), log_modular)

    def prepare(self, run: Run) -> Callable[[Tensor, float], Tensor]:
        """Draw one set of paths for the whole run; at each time they are dealt to the chains in a new order.

        The new order keeps the errors of successive steps of one chain from adding up along one path.
        """
        group = self.kernel.group
        noise_at = self._noise_source(run)

        def score(g: Tensor, t: float) -> Tensor:
            if t == 0.0:
                identity = group.identity(*group.batch_shape(g), 1, dtype=g.dtype, device=g.device)
                return self.estimate(g, identity, g.new_zeros(*group.batch_shape(g), 1))
            w, log_modular = noise_at(t)
            batch = self._noise_batch(tuple(group.batch_shape(g)))
            order = self._deal(batch, w.device, run.generator)
            inverse_w = group.inverse(w).flatten(0, log_modular.ndim - 1)[order]
            return self.estimate(g, inverse_w, log_modular.flatten()[order])

        return score

    def estimate(self, g: Tensor, inverse_w: Tensor, log_modular: Tensor) -> Float[Tensor, "*batch n"]:
        """The estimate from given noise.

        The gradient is taken with respect to the coordinates of each argument of the energy, averaged with the
        weights, and only then trivialized: by the chain rule the same, with one pull-back a chain.

        Args:
            g: ``[*batch, *element_shape]``.
            inverse_w: the inverses of the noise samples, broadcastable to ``[*batch, N, *element_shape]``.
            log_modular: log lambda of the noise samples, broadcastable to ``[*batch, N]``.
        """
        group = self.kernel.group
        batch, rank = group.batch_shape(g), len(group.element_shape)
        number = inverse_w.shape[inverse_w.ndim - rank - 1]
        lifted = g.unsqueeze(len(batch)).expand(*batch, number, *group.element_shape)

        def total(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            elements = group.compose(x, inverse_w)
            energy = self._checked_energy(group, elements)
            return energy.sum(), (energy, elements)

        gradient, (energy, elements) = torch.func.grad(total, has_aux=True)(lifted)
        finite = torch.isfinite(energy) & torch.isfinite(gradient).flatten(-rank).all(-1)
        logits = torch.where(finite, -energy - log_modular, -torch.inf)
        # Without one finite sample softmax would be NaN; the gradients are zero there.
        weights = torch.softmax(torch.where(finite.any(-1, keepdim=True), logits, 0.0), -1)
        if self.on_estimate is not None:
            log_density = logits.detach().logsumexp(-1) - math.log(number)
            self.on_estimate(ScoreEstimate(weights.detach(), energy.detach(), finite, elements.detach(), log_density))
        gradient = torch.where(finite.reshape(*finite.shape, *[1] * rank), gradient, 0.0)
        mean = torch.einsum("...i,...ij->...j", weights, gradient.flatten(-rank)).unflatten(-1, group.element_shape)
        zero = g.new_zeros(*batch, group.dim)
        pull_back = torch.func.vjp(lambda v: group.perturb(g, v), zero)[1]
        return -pull_back(mean)[0]

    def _noise_source(self, run: Run) -> Callable[[float], tuple[Tensor, Tensor]]:
        """``w_t`` and ``log lambda(w_t)`` as functions of the times of a run."""
        batch = self._noise_batch(run.batch) if self.pool is None else (self.pool,)
        times = [t for t in run.times if t > 0.0]
        draw = self.kernel.replay if self.replay else self.kernel.sample_paths
        source = draw(
            *batch,
            times=times,
            generator=run.generator,
            dtype=run.dtype,
            device=run.device,
            antithetic=self.antithetic,
        )
        if isinstance(source, NoiseReplay):
            return source.at
        paths = source
        index = {t: i for i, t in enumerate(paths.times)}
        return lambda t: (paths.elements[index[t]], paths.log_modular[index[t]])

    def _deal(
        self, batch: tuple[int, ...], device: torch.device, generator: torch.Generator | None
    ) -> Int[Tensor, "*batch"]:
        """Which path serves which sample of which chain; antithetic pairs stay together."""
        if self.pool is not None:
            half = (self.pool + 1) // 2
            if not self.antithetic:
                return torch.randint(self.pool, batch, generator=generator, device=device)
            first = torch.randint(
                self.pool // 2, (*batch[:-1], (batch[-1] + 1) // 2), generator=generator, device=device
            )
            return torch.cat([first, first[..., : batch[-1] // 2] + half], -1)
        number = math.prod(batch)
        if not self.antithetic:
            return torch.randperm(number, generator=generator, device=device).reshape(batch)
        rows = torch.randperm(number // batch[-1], generator=generator, device=device)
        return (rows.unsqueeze(-1) * batch[-1] + torch.arange(batch[-1], device=device)).reshape(batch)

    def _noise_batch(self, batch: tuple[int, ...]) -> tuple[int, ...]:
        return ((1, *batch[1:]) if self.shared_noise and batch else batch) + (self.num_mc,)

    def _checked_energy(self, group: LieGroup, elements: Tensor) -> Tensor:
        energy = self.energy(elements)
        if energy.shape != group.batch_shape(elements):
            raise ShapeError(
                f"energy: expected one number per element {list(group.batch_shape(elements))}, got {list(energy.shape)}"
            )
        return energy


def as_score(score: Score | Callable[[Tensor, float], Tensor]) -> Score:
    """A `Score` from a score or a plain function."""
    if isinstance(score, Score):
        return score
    if not callable(score):
        raise ConfigurationError(f"score: expected a Score or a function (g, t) -> [*batch, dim], got {score!r}")
    return FunctionScore(score)
