"""Scores: estimates of the left-trivialized gradient of log p_t."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.gradient import trivialized_grad_and_value
from trivgeo.sde.noise import NoiseKernel
from trivgeo.sde.process import check_count

__all__ = ["EnergyScore", "FunctionScore", "Run", "Score"]

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


class EnergyScore(Score):
    r"""The Monte Carlo score of the noised Boltzmann density :math:`p_0 \propto e^{-E}` (Kim et al. 2026, prop. 4.3).

    .. math:: \nabla_{\mathfrak g} \log p_t(g) \approx -\sum_i \omega_i \nabla_{\mathfrak g} E(g w_i^{-1}), \quad
        \omega = \mathrm{softmax}_i(-E(g w_i^{-1}) - \log \lambda(w_i)), \quad w_i \sim k_t,

    the gradient of a log-sum-exp, evaluated without overflow. Every chain has its own noise. A sample whose energy
    or gradient is not finite gets weight zero; a chain with no finite sample gets score zero.

    Args:
        energy: elements ``[*batch, *element_shape]`` to energies ``[*batch]``, differentiable.
        kernel: the noise kernel.
        num_mc: the number N of noise samples of one estimate.
        generator: the source of noise of direct calls; in `reverse_diffusion` the solve's own is used.
        shared_noise: one set of noise samples for the first batch dimension: cheaper, but correlates the chains.

    Raises:
        ConfigurationError: ``num_mc`` is less than one.
    """

    def __init__(
        self,
        energy: Energy,
        kernel: NoiseKernel,
        num_mc: int,
        *,
        generator: torch.Generator | None = None,
        shared_noise: bool = False,
    ) -> None:
        self.energy = energy
        self.kernel = kernel
        self.num_mc = check_count("num_mc", num_mc)
        self.generator = generator
        self.shared_noise = shared_noise

    def __call__(self, g: Tensor, t: float) -> Float[Tensor, "*batch n"]:
        """The estimate with fresh noise, simulated from 0 to t."""
        batch = tuple(self.kernel.group.batch_shape(g))
        w, log_modular = self.kernel.sample(
            *self._noise_batch(batch), t=t, generator=self.generator, dtype=g.dtype, device=g.device
        )
        return self.estimate(g, self.kernel.group.inverse(w), log_modular)

    def prepare(self, run: Run) -> Callable[[Tensor, float], Tensor]:
        """Draw one set of paths for the whole run; at each time they are dealt to the chains in a new order.

        The new order keeps the errors of successive steps of one chain from adding up along one path.
        """
        batch = self._noise_batch(run.batch)
        paths = self.kernel.sample_paths(
            *batch, times=run.times, generator=run.generator, dtype=run.dtype, device=run.device
        )
        group = self.kernel.group
        inverses = group.inverse(paths.elements)
        index = {t: i for i, t in enumerate(paths.times)}
        flat_shape = (-1, *group.element_shape)

        def score(g: Tensor, t: float) -> Tensor:
            inverse_w, log_modular = inverses[index[t]], paths.log_modular[index[t]]
            order = torch.randperm(log_modular.numel(), generator=run.generator, device=g.device)
            inverse_w = inverse_w.reshape(flat_shape)[order].reshape(inverse_w.shape)
            log_modular = log_modular.flatten()[order].reshape(log_modular.shape)
            return self.estimate(g, inverse_w, log_modular)

        return score

    def estimate(self, g: Tensor, inverse_w: Tensor, log_modular: Tensor) -> Float[Tensor, "*batch n"]:
        """The estimate from given noise.

        Args:
            g: ``[*batch, *element_shape]``.
            inverse_w: the inverses of the noise samples, broadcastable to ``[*batch, N, *element_shape]``.
            log_modular: log lambda of the noise samples, broadcastable to ``[*batch, N]``.
        """
        group = self.kernel.group
        batch = group.batch_shape(g)
        lifted = g.unsqueeze(len(batch)).expand(*batch, self.num_mc, *group.element_shape)
        gradient, energy = trivialized_grad_and_value(
            group, lambda elements: self._checked_energy(group, group.compose(elements, inverse_w)), lifted
        )
        finite = torch.isfinite(energy) & torch.isfinite(gradient).all(-1)
        logits = torch.where(finite, -energy - log_modular, -torch.inf)
        # Without one finite sample softmax would be NaN; the gradients are zero there.
        weights = torch.softmax(torch.where(finite.any(-1, keepdim=True), logits, 0.0), -1)
        gradient = torch.where(finite.unsqueeze(-1), gradient, 0.0)
        return -torch.einsum("...i,...ij->...j", weights, gradient)

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
