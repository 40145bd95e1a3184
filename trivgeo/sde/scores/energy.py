"""The Monte Carlo score of a Boltzmann density."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from trivgeo._autocast import einsum, full_precision, grad_and_aux
from trivgeo._random import common, integers, permutation
from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.kernel import NoiseKernel, NoisePaths, VirtualNoisePaths
from trivgeo.sde.noise.schedule import Schedule
from trivgeo.sde.scores.base import EnergySamples, Score, ScoreEstimate, SolveContext

Energy = Callable[[Tensor], Tensor]


@checked
class EnergyScore(Score):
    r"""The Monte Carlo score of the noised Boltzmann density :math:`p_0 \propto e^{-E}` (Kim et al. 2026, prop. 4.3).

    .. math:: \nabla_{\mathfrak g} \log p_t(g) \approx -\sum_i \omega_i \nabla_{\mathfrak g} E(g w_i^{-1}), \quad
        \omega = \mathrm{softmax}_i(-E(g w_i^{-1}) - \log \lambda(w_i)), \quad w_i \sim k_t,

    the gradient of a log-sum-exp, evaluated without overflow. A sample whose energy or gradient is not finite gets
    weight zero; a chain with no finite sample gets score zero. Every estimate comes with its `EnergySamples`.

    The source of noise sets the cost: by default every chain has N paths of its own, kept at all
    times. ``pool`` draws fewer paths and assigns them to the chains at random, anew at each time: with thousands of
    chains nearly all exponentials and memory are saved. ``replay`` keeps one time only, see `VirtualNoisePaths`.

    Args:
        energy: function of elements ``[*batch, *element_shape]`` to energies ``[*batch]``, differentiable.
        kernel: the noise kernel.
        num_mc: the number N of noise samples of one estimate.
        generator: the source of noise of direct calls; a solve uses its own.
        shared_noise: one set of noise samples for the first batch dimension: cheaper, but correlates the chains.
        antithetic: noise in pairs z, -z, within each estimate.
        pool: the number of paths of a run, at least N; ``None`` for N paths of each chain.
        replay: keep the memory of a run constant in its steps, at one more exponential a step and path.

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

    @property
    def shares_noise(self) -> bool:
        return self.shared_noise

    def estimate(self, g: Tensor, t: float) -> ScoreEstimate:
        """Return the estimate of the score, ``[*batch, dim]``, with fresh noise, simulated from 0 to t."""
        group = self.kernel.group
        group.check_elements(g)
        w, log_modular = self.kernel.sample(
            *self.noise_batch(tuple(group.batch_shape(g))),
            t=t,
            generator=self.generator,
            dtype=g.dtype,
            device=g.device,
            antithetic=self.antithetic,
        )
        return self.from_noise(g, group.inverse(w), log_modular)

    def prepare(self, run: SolveContext) -> Score:
        r"""Draw one set of paths for the whole run; at each time the chains take them in a new order.

        The new order keeps the errors of successive steps of one chain from adding up along one path. At t = 0 the
        score is :math:`-\nabla_{\mathfrak g} E`, without noise.
        """
        return _RunScore(self, run)

    def check_noise(self, group: LieGroup, schedule: Schedule) -> None:
        other = self.kernel.group
        if not (other.is_same_group(group) and torch.equal(other.basis.rows, group.basis.rows)):
            raise ConfigurationError(f"score: expected a kernel on {group!r} with its basis, got one on {other!r}")
        for t in (0.25, 0.5, 1.0):
            if not math.isclose(self.kernel.schedule.variance(0.0, t), schedule.variance(0.0, t), rel_tol=1e-9):
                raise ConfigurationError(f"score: expected a kernel with {schedule!r}, got {self.kernel.schedule!r}")

    def from_noise(self, g: Tensor, inverse_w: Tensor, log_modular: Tensor) -> ScoreEstimate:
        """Return the estimate from given noise.

        The gradient is taken with respect to the coordinates of each argument of the energy, averaged with the
        weights, and trivialized last: the chain rule gives the same result, with one pull-back a chain.

        Args:
            g: ``[*batch, *element_shape]``.
            inverse_w: the inverses of the noise samples, broadcastable to ``[*batch, N, *element_shape]``.
            log_modular: log lambda of the noise samples, broadcastable to ``[*batch, N]``.

        Raises:
            ShapeError: ``inverse_w`` has no dimension for the noise samples, or an array has another shape.
        """
        group = self.kernel.group
        group.check_elements(g)
        batch, rank = group.batch_shape(g), len(group.element_shape)
        if not group.batch_shape(group.check_elements(inverse_w, "inverse_w")):
            raise ShapeError(f"inverse_w: expected [*batch, N, ...], got {list(inverse_w.shape)}")
        number = inverse_w.shape[inverse_w.ndim - rank - 1]
        lifted = g.unsqueeze(len(batch)).expand(*batch, number, *group.element_shape)

        def total(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            elements = group.compose(x, inverse_w)
            energy = self._checked_energy(group, elements)
            return energy.sum(), (energy, elements)

        gradient, (energy, elements) = grad_and_aux(total, lifted)
        finite = torch.isfinite(energy) & torch.isfinite(gradient).flatten(-rank).all(-1)
        logits = torch.where(finite, -energy - log_modular, -torch.inf)
        # Without a finite sample softmax would be NaN; the gradients are zero there.
        weights = torch.softmax(torch.where(finite.any(-1, keepdim=True), logits, 0.0), -1)
        gradient = torch.where(finite.reshape(*finite.shape, *[1] * rank), gradient, 0.0)
        mean = einsum("...i,...ij->...j", weights, gradient.flatten(-rank)).unflatten(-1, group.element_shape)
        zero = g.new_zeros(*batch, group.dim)
        pull_back = torch.func.vjp(lambda v: group.perturb(g, v), zero)[1]
        log_density = logits.detach().logsumexp(-1) - math.log(number)
        samples = EnergySamples(elements.detach(), energy.detach(), finite, weights.detach(), log_density)
        return ScoreEstimate(-full_precision(pull_back)(mean)[0], samples)

    def noise_batch(self, batch: tuple[int, ...]) -> tuple[int, ...]:
        """Return the batch shape of the noise of one estimate, for chains ``batch``."""
        return (*((1, *batch[1:]) if self.shared_noise and batch else batch), self.num_mc)

    def _checked_energy(self, group: LieGroup, elements: Tensor) -> Tensor:
        energy = self.energy(elements)
        if energy.shape != group.batch_shape(elements):
            raise ShapeError(
                f"energy: expected one number per element {list(group.batch_shape(elements))}, got {list(energy.shape)}"
            )
        return energy


class _RunScore(Score):
    """An `EnergyScore` with the noise of one run."""

    def __init__(self, score: EnergyScore, run: SolveContext) -> None:
        self._score = score
        # noise that several data share is drawn from a stream of its own
        self._generator = common(run.generator) if score.shared_noise else run.generator
        times = [t for t in run.times if t > 0.0]
        self._paths = self._draw(run, times) if times else None

    @property
    def shares_noise(self) -> bool:
        return self._score.shares_noise

    def estimate(self, g: Tensor, t: float) -> ScoreEstimate:
        group = self._score.kernel.group
        batch = tuple(group.batch_shape(g))
        if t == 0.0:
            identity = group.identity(*batch, 1, dtype=g.dtype, device=g.device)
            return self._score.from_noise(g, identity, g.new_zeros(*batch, 1))
        if self._paths is None:
            raise DomainError(f"t: expected 0, the only time of the run, got {t}")
        w, log_modular = self._paths.at(t)
        order = self._assign(self._score.noise_batch(batch), w)
        inverse_w = group.inverse(w).flatten(0, log_modular.ndim - 1)[order]
        return self._score.from_noise(g, inverse_w, log_modular.flatten()[order])

    def _draw(self, run: SolveContext, times: list[float]) -> NoisePaths | VirtualNoisePaths:
        score = self._score
        draw = score.kernel.virtual_paths if score.replay else score.kernel.sample_paths
        batch = score.noise_batch(run.batch) if score.pool is None else (score.pool,)
        return draw(
            *batch,
            times=times,
            generator=self._generator if score.pool is None else common(run.generator),
            dtype=run.dtype,
            device=run.device,
            antithetic=score.antithetic,
        )

    def _assign(self, batch: tuple[int, ...], reference: Tensor) -> Int[Tensor, "*batch"]:
        """Indices of a path for each sample of each chain; antithetic pairs stay together."""
        *chains, number = batch
        pool, antithetic, generator = self._score.pool, self._score.antithetic, self._generator
        if pool is not None:
            if not antithetic:
                return integers(pool, batch, reference, generator)
            first = integers(pool // 2, (*chains, (number + 1) // 2), reference, generator)
            return torch.cat([first, first[..., : number // 2] + (pool + 1) // 2], -1)
        if not antithetic:
            return permutation(batch, reference, generator)
        rows = permutation(chains, reference, generator)
        return rows.unsqueeze(-1) * number + torch.arange(number, device=reference.device)
