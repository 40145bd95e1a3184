"""Sampling by the time reversal of the forward noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import LieGroup
from trivgeo.sde.noise import NoiseKernel
from trivgeo.sde.process import Solution, Stepper, TrivializedSDE, solve, uniform_grid
from trivgeo.sde.resampling import Resampling
from trivgeo.sde.schedule import Schedule
from trivgeo.sde.score import EnergyScore, Run, Score, as_score

__all__ = ["reverse_diffusion", "reverse_solution"]


def reverse_diffusion(
    group: LieGroup,
    schedule: Schedule,
    score: Score | Callable[[Tensor, float], Tensor],
    *,
    num_samples: int | tuple[int, ...] | None = None,
    steps: int = 100,
    generator: torch.Generator | None = None,
    modular_drift: bool = True,
    initial: Tensor | None = None,
    max_score_norm: float | None = None,
    stepper: Stepper[TrivializedSDE, Tensor] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    on_step: Callable[[int, float], None] | None = None,
    observe: Callable[[int, float, Tensor], None] | None = None,
    checkpoint_every: int | None = None,
    resampling: Resampling | None = None,
) -> Tensor:
    r"""Draw from p_0 by running the noise backwards from t = 1.

    With p_t the density for left Haar measure and :math:`a_i = \mathrm{tr}\,\mathrm{ad}(e_i)` the reversal is

    .. math:: dg = d(L_g)_e[-\gamma^2 (\nabla_{\mathfrak g} \log p_t - a)\,dt + \gamma\,d\bar w].

    The term a vanishes on unimodular groups. Without it (Kim et al. 2026, prop. 4.1 as printed) the sampler is
    biased on all others: the adjoint of a left-invariant field X_i for left Haar measure is -X_i + a_i.

    Args:
        group: the group.
        schedule: the diffusion coefficient.
        score: a `Score`, or a function (g, t) to ``[*batch, dim]``.
        num_samples: the number, or the batch shape, of samples; not with ``initial``.
        steps: number of equal steps.
        generator: the source of noise, on ``device``.
        modular_drift: keep the term a; ``False`` gives the published algorithm.
        initial: elements at t = 1, ``[*batch, *element_shape]``; default: drawn from k_1.
        max_score_norm: longer scores are shortened to this length.
        stepper: the scheme; default exponential Euler.
        dtype: of the samples; default torch's, or that of ``initial``.
        device: of the samples; default torch's, or that of ``initial``.
        on_step: called with the index and the time after every step.
        observe: called with the index, the time and the elements at the start and after every step.
        checkpoint_every: see `solve`.
        resampling: weigh and resample the chains of the last batch dimension; only with an `EnergyScore` and the
            default stepper. The default start is then ``group.random`` with the standard deviation of the noise,
            whose density is known, in place of k_1.

    Returns:
        ``[*batch, *element_shape]``.

    Raises:
        ConfigurationError: counts below one, both or neither of ``num_samples`` and ``initial``, or ``resampling``
            with a score or options that it does not fit.
    """
    return reverse_solution(
        group,
        schedule,
        score,
        num_samples=num_samples,
        steps=steps,
        generator=generator,
        modular_drift=modular_drift,
        initial=initial,
        max_score_norm=max_score_norm,
        stepper=stepper,
        dtype=dtype,
        device=device,
        on_step=on_step,
        observe=observe,
        checkpoint_every=checkpoint_every,
        resampling=resampling,
    ).final


def reverse_solution(
    group: LieGroup,
    schedule: Schedule,
    score: Score | Callable[[Tensor, float], Tensor],
    *,
    num_samples: int | tuple[int, ...] | None = None,
    steps: int = 100,
    generator: torch.Generator | None = None,
    modular_drift: bool = True,
    initial: Tensor | None = None,
    max_score_norm: float | None = None,
    stepper: Stepper[TrivializedSDE, Tensor] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    on_step: Callable[[int, float], None] | None = None,
    observe: Callable[[int, float, Tensor], None] | None = None,
    checkpoint_every: int | None = None,
    resampling: Resampling | None = None,
    times: Sequence[float] | None = None,
) -> Solution[Tensor]:
    """`reverse_diffusion` with the count of masked steps of each chain, or only a part of it.

    Args:
        times: a decreasing grid in [0, 1] in place of ``steps`` equal steps from 1 to 0; ``initial`` is at its start.
    """
    check_count("steps", steps)
    if times is not None and (initial is None or list(times) != sorted(times, reverse=True)):
        raise ConfigurationError("times: expected a decreasing grid that comes with initial")
    if (num_samples is None) == (initial is None):
        raise ConfigurationError(
            "expected one of num_samples and initial, got both"
            if initial is not None
            else "expected one of num_samples and initial, got neither"
        )
    if max_score_norm is not None:
        check_positive("max_score_norm", max_score_norm)
    score = as_score(score)
    if isinstance(score, EnergyScore):
        _check_kernel(score.kernel, group, schedule)
    if initial is None:
        assert num_samples is not None
        shape = num_samples if isinstance(num_samples, tuple) else (num_samples,)
        for size in shape:
            check_count("num_samples", size)
        if resampling is None:
            kernel = NoiseKernel(group, schedule, steps)
            initial, _ = kernel.sample(*shape, t=1.0, generator=generator, dtype=dtype, device=device)
        else:
            std = math.sqrt(schedule.variance(0.0, 1.0))
            initial = group.random(*shape, std=std, generator=generator, dtype=dtype, device=device)
    group.check_elements(initial, "initial")
    times = uniform_grid(steps, 1.0, 0.0) if times is None else times
    if resampling is not None:
        if stepper is not None or checkpoint_every is not None:
            raise ConfigurationError("resampling: expected neither stepper nor checkpoint_every")
        score, stepper = resampling.attach(score, group, schedule, times, tuple(group.batch_shape(initial)))
    asked = tuple(times[:-1] if resampling is None else times)
    run = Run(asked, tuple(group.batch_shape(initial)), initial.dtype, initial.device, generator)
    prepared = score.prepare(run)
    trace_ad = group.algebra.trace_ad_like(initial) if modular_drift and not group.algebra.is_unimodular else None

    def score_drift(g: Tensor, t: float) -> Tensor:
        s = prepared(g, t)
        if max_score_norm is not None:
            norm = s.norm(dim=-1, keepdim=True)
            s = s * (max_score_norm / norm.clamp(min=max_score_norm))
        return -s if trace_ad is None else trace_ad - s

    return solve(
        TrivializedSDE(group, schedule, score_drift=score_drift),
        initial,
        times,
        stepper=stepper,
        generator=generator,
        on_step=on_step,
        observe=observe,
        checkpoint_every=checkpoint_every,
    )


def _check_kernel(kernel: NoiseKernel, group: LieGroup, schedule: Schedule) -> None:
    """Raise `ConfigurationError` unless the noise of a score is that of the solve."""
    other = kernel.group
    if not (other.same_law(group) and torch.equal(_basis(other), _basis(group))):
        raise ConfigurationError(f"score: expected a kernel on {group!r} with its basis, got one on {other!r}")
    for t in (0.25, 0.5, 1.0):
        if not math.isclose(kernel.schedule.variance(0.0, t), schedule.variance(0.0, t), rel_tol=1e-9):
            raise ConfigurationError(f"score: expected a kernel with {schedule!r}, got one with {kernel.schedule!r}")


def _basis(group: LieGroup) -> Tensor:
    scale = group.scale
    return torch.diag(scale) if scale.ndim == 1 else scale
