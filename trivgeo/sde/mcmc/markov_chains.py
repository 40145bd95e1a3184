"""Runs of Markov chains: warm-up, samples of parallel chains, their diagnostics and verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._text import Described
from trivgeo.checks import check_count, check_tensor, checked
from trivgeo.errors import ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.mcmc.diagnostics import (
    bulk_effective_sample_size,
    mean_effective_sample_size,
    r_hat,
    r_hat_bound,
    tail_effective_sample_size,
)
from trivgeo.sde.mcmc.hamiltonian import ChainState, MarkovKernel, mean_square, shrunk
from trivgeo.verdict import Verdict

_WINDOW_ENDS = 0.05, 0.1, 0.2, 0.4, 0.8  # shares of the warm-up after which the mass matrix is that of the last window
# settings of dual averaging (Hoffman and Gelman 2014, section 3.2)
_SHRINKAGE, _FORGOTTEN_STEPS, _DECAY_POWER, _AIM = 0.05, 10.0, 0.75, 10.0
# R-hat up to which chains agree (Vehtari et al. 2021), and up to which autocorrelation may explain that they differ
_SMALL_R_HAT, _MAX_R_HAT = 1.01, 1.05
_MIN_EFFECTIVE_SIZE = 400.0  # effective sample size below which its own estimate is not reliable (same)
_MAX_STEP = 4.0  # step size, in units of the width of the target; above two the leapfrog scheme is not stable
_MAX_DIVERGENT_SHARE = 5e-3  # share of paths that diverge
_MIN_ACCEPTANCE = 0.1  # mean probability of acceptance


class _StepSearch(NamedTuple):
    """The state of dual averaging."""

    aim: Tensor
    error: Tensor
    log_average: Tensor
    number: int

    @staticmethod
    def at(step_size: Tensor) -> _StepSearch:
        log_step = step_size.log()
        return _StepSearch(log_step + math.log(_AIM), torch.zeros_like(log_step), log_step, 0)

    def after(self, acceptance: Tensor, wanted: float) -> tuple[_StepSearch, Tensor]:
        """The next state, and the next step size."""
        n = self.number + 1
        weight = 1.0 / (n + _FORGOTTEN_STEPS)
        error = (1.0 - weight) * self.error + weight * (wanted - acceptance)
        log_step = (self.aim - math.sqrt(n) / _SHRINKAGE * error).clamp(max=math.log(_MAX_STEP))
        share = n**-_DECAY_POWER
        return _StepSearch(self.aim, error, torch.lerp(self.log_average, log_step, share), n), log_step.exp()


@checked
def warm_up(
    kernel: MarkovKernel, state: ChainState, num_steps: int, generator: torch.Generator | None = None
) -> ChainState:
    """Run chains until they are near the target, and tune the step size and the mass matrix on the way.

    The mass matrix becomes the mean outer product of scores in windows of doubling length, pooled over the chains: on
    every group, also where elements have no mean, it is about the curvature of the wells. Dual averaging brings the
    mean probability of acceptance to ``kernel.target_acceptance``. The number of leapfrog steps follows from the step
    size, and where a path would be too long the step is shorter.

    Args:
        kernel: the rule of the chains.
        state: a state of `MarkovKernel.init`.
        num_steps: the number of steps; of a few tens nothing is learnt.
        generator: random numbers; ``None`` is torch's.
    """
    check_count("num_steps", num_steps, 0)
    ends = {max(1, round(share * num_steps)) for share in _WINDOW_ENDS}
    search, step_size = _StepSearch.at(state.step_size), state.step_size
    total, count = torch.zeros_like(state.factor), 0
    for k in range(1, num_steps + 1):
        state = kernel.step(replace(state, step_size=step_size), generator)
        search, step_size = search.after(_pooled(state.acceptance, step_size), kernel.target_acceptance)
        total, count = total + mean_square(kernel.scores(state), step_size), count + 1
        if k in ends:
            step_size = search.log_average.exp()
            state = kernel.tuned(state, step_size, shrunk(total / count, count * _chains_of(state)))
            search, total, count = _StepSearch.at(step_size), torch.zeros_like(total), 0
    return kernel.tuned(state, search.log_average.exp()) if num_steps else state


def _pooled(values: Tensor, step_size: Tensor) -> Tensor:
    """Means over the chains that share a step size, in its shape."""
    if step_size.ndim == 0:
        return values.mean()
    return values.flatten(1).mean(-1).reshape(step_size.shape)


def _chains_of(state: ChainState) -> float:
    return state.energies.numel() / max(1, state.step_size.numel())


def coordinates(group: LieGroup, g: Tensor) -> Float[Tensor, "*batch k"]:
    """Return the entries of elements ``g``; cosine and sine of the angle in place of a periodic entry."""
    batch = group.batch_shape(g)
    flat = g.reshape(*batch, -1)
    periods = group._periods().to(flat).flatten()
    angles = 2.0 * math.pi * flat / torch.where(periods > 0, periods, 1.0)
    turning = periods > 0
    return torch.cat([torch.where(turning, angles.cos(), flat), angles[..., turning].sin()], -1)


class MonteCarloMean(NamedTuple):
    """Means over samples of Markov chains, ``[k]``.

    Attributes:
        mean: the means.
        standard_error: their standard errors, with the autocorrelation of the chains.
        effective_sample_size: numbers of independent samples that would be as good.
    """

    mean: Tensor
    standard_error: Tensor
    effective_sample_size: Tensor


@dataclass(frozen=True, repr=False)
class MarkovSample(Described):
    """Samples of parallel chains, and whether they can be trusted.

    Attributes:
        elements: ``[chains, num_samples, *element_shape]``.
        energies: ``[chains, num_samples]``.
        statistics: functions of elements, and last their energies, ``[chains, num_samples, k]``.
        r_hat: rank-normalised split R-hat of each of the statistics, ``[k]``; NaN for constants.
        bulk_effective_sample_size: ``[k]``, as `tail_effective_sample_size`, all chains together.
        tail_effective_sample_size: ``[k]``.
        acceptance: mean probability of acceptance after the warm-up.
        num_diverged: number of paths whose total energy was wrong by more than 1000.
        num_invalid: number of proposals outside of the domain of the group or of the energy.
        num_jumps: number of accepted jumps between components of the group.
        swap_acceptance: mean probability of swaps between neighbouring temperatures; ``None`` without tempering.
        state: the last state, to go on from.
        verdict: whether means over the sample are those of the target, within their standard errors.
    """

    elements: Tensor
    energies: Float[Tensor, "chains draws"]
    statistics: Float[Tensor, "chains draws k"]
    r_hat: Float[Tensor, " k"]
    bulk_effective_sample_size: Float[Tensor, " k"]
    tail_effective_sample_size: Float[Tensor, " k"]
    acceptance: float
    num_diverged: int
    num_invalid: int
    num_jumps: int
    swap_acceptance: Tensor | None
    state: ChainState
    verdict: Verdict

    @property
    def trusted(self) -> bool:
        """True if no check found anything against the sample."""
        return self.verdict.trusted

    def mean(self, f: Callable[[Tensor], Tensor]) -> MonteCarloMean:
        """Return means of a function over the sample.

        Args:
            f: a function of elements to numbers ``[*batch]``, or to several, ``[*batch, k]``.

        Raises:
            ShapeError: f returns anything else.
        """
        values = check_tensor("f", f(self.elements))
        batch = self.energies.shape
        if values.shape[:2] != batch or values.ndim > 3:
            raise ShapeError(f"f: expected numbers {list(batch)} or [*{list(batch)}, k], got {list(values.shape)}")
        draws = values.reshape(*batch, -1).to(self.energies.dtype)
        size = mean_effective_sample_size(draws)
        error = draws.flatten(0, 1).std(0) / size.sqrt()
        shape = values.shape[2:]
        return MonteCarloMean(draws.mean((0, 1)).reshape(shape), error.reshape(shape), size.reshape(shape))


@checked
def sample(
    kernel: MarkovKernel,
    num_samples: int,
    *,
    start: Tensor | ChainState | None = None,
    chains: int = 8,
    warmup: int = 200,
    thin: int = 1,
    statistics: Callable[[Tensor], Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> MarkovSample:
    """Run Markov chains in parallel, and return their samples with diagnostics and a verdict.

    Args:
        kernel: the rule of the chains.
        num_samples: samples of each chain after the warm-up.
        start: elements ``[chains, *element_shape]`` to begin from, more spread out than the target, so that R-hat can
            tell; or a state, such as `MarkovSample.state`, to go on from; default: Haar measure on compact groups,
            `LieGroup.random` on others, in float64.
        chains: number of chains where no ``start`` is given.
        warmup: steps of `warm_up`, which are not kept; with 0 the step size stays that of `MarkovKernel.init`.
        thin: steps between samples.
        statistics: functions of elements whose convergence is judged, ``[*batch, k]``, such as invariants of your
            target; default: the entries of elements.
        generator: random numbers; ``None`` is torch's.

    Raises:
        ShapeError: the start is not a batch of chains, or the statistics have another shape.
        NonFiniteError: the energy is not finite at the start.

    Example:
        >>> kernel = HamiltonianMonteCarlo(SO(3), lambda g: -3 * g[..., 2, 2])
        >>> found = sample(kernel, 300, generator=torch.Generator().manual_seed(0))
        >>> found.elements.shape, found.trusted
        (torch.Size([8, 300, 3, 3]), True)
    """
    group = kernel.group
    for name, value, least in (("num_samples", num_samples, 4), ("chains", chains, 1), ("thin", thin, 1)):
        check_count(name, value, least)
    check_count("warmup", warmup, 0)
    if start is None:
        draw = group.random_haar if group.is_compact else group.random
        start = draw(chains, generator=generator, dtype=torch.float64)
    if not isinstance(start, ChainState):
        batch = group.batch_shape(group.check_elements(start, "start"))
        if len(batch) != 1 or not batch[0]:
            raise ShapeError(f"start: expected elements of chains [chains, ...], at least one, got batch {list(batch)}")
        start = kernel.init(start)
    state = warm_up(kernel, start, warmup, generator)
    elements, energies, swaps = [], [], []
    totals = torch.zeros(4, dtype=torch.float64, device=state.energies.device)
    for _ in range(num_samples):
        for _ in range(thin):
            state = kernel.step(state, generator)
            drawn = kernel.drawn(state)
            marks = (drawn.acceptance, drawn.diverged, drawn.invalid, drawn.jumped)
            totals += torch.stack([x.sum(dtype=torch.float64) for x in marks])
        elements.append(drawn.elements)
        energies.append(drawn.energies)
        if state.swap_acceptance is not None:
            swaps.append(state.swap_acceptance)
    g, energy = torch.stack(elements, 1), torch.stack(energies, 1)
    values = coordinates(group, g) if statistics is None else check_tensor("statistics", statistics(g))
    if values.shape[:2] != energy.shape or values.ndim > 3:
        raise ShapeError(f"statistics: expected numbers [*{list(energy.shape)}, k], got {list(values.shape)}")
    values = torch.cat([values.reshape(*energy.shape, -1), energy.unsqueeze(-1)], -1)
    accepted, diverged, invalid, jumps = totals.tolist()
    sizes = bulk_effective_sample_size(values), tail_effective_sample_size(values)
    agreement = r_hat(values)
    paths = energy.numel() * thin
    verdict = _verdict(kernel, values, agreement, sizes, accepted / paths, diverged / paths, int(jumps))
    return MarkovSample(
        g,
        energy,
        values,
        agreement,
        *sizes,
        accepted / paths,
        int(diverged),
        int(invalid),
        int(jumps),
        torch.stack(swaps).mean(0) if swaps else None,
        state,
        verdict,
    )


def _verdict(
    kernel: MarkovKernel,
    values: Tensor,
    agreement: Tensor,
    sizes: tuple[Tensor, Tensor],
    acceptance: float,
    divergent: float,
    jumps: int,
) -> Verdict:
    reasons = []
    spread = values.amax((0, 1)) - values.amin((0, 1))
    varies = spread > torch.finfo(values.dtype).eps * values.abs().amax((0, 1)).clamp(min=1.0) * 100.0
    bound = r_hat_bound(values).clamp(_SMALL_R_HAT, _MAX_R_HAT)
    apart = varies & ~(agreement <= bound)
    if bool(apart.any()):
        worst = int(torch.where(apart, agreement - bound, -torch.inf).argmax())
        reasons.append(f"chains do not agree: R-hat is {agreement[worst].item():.3f}, above {bound[worst].item():.3f}")
    for name, size in zip(("bulk", "tail"), sizes, strict=True):
        least = size[varies].min().item() if bool(varies.any()) else 0.0
        if not least >= _MIN_EFFECTIVE_SIZE:
            reasons.append(f"the {name} effective sample size is {least:.0f}, below {_MIN_EFFECTIVE_SIZE:.0f}")
    if not bool(varies.any()):
        reasons.append("all samples are equal")
    if not bool(torch.isfinite(values).all()):
        reasons.append("statistics of the sample are not finite")
    if not acceptance > _MIN_ACCEPTANCE:
        reasons.append(f"{acceptance:.2f} of the proposals are accepted: steps are too long")
    if divergent > _MAX_DIVERGENT_SHARE:
        reasons.append(f"{divergent:.2g} of the paths diverge: parts of the target may be out of reach")
    assumptions = ["the target has a finite integral, and no mode that none of the chains met"]
    if kernel.group.num_components > 1 and jumps == 0:
        assumptions.append("the target is that of the components of the group in which chains started")
    return Verdict(tuple(reasons), tuple(assumptions))
