"""Samples in one call: noise for given elements, and elements from noise."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._devices import module_device
from trivgeo._numerics import is_abstract
from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups import LieGroup
from trivgeo.sde.grid import uniform_grid
from trivgeo.sde.noise.kernel import NoiseKernel
from trivgeo.sde.noise.schedule import Schedule, check_time
from trivgeo.sde.processes.base import Stepper
from trivgeo.sde.processes.reverse import probability_flow, reverse_process
from trivgeo.sde.processes.trivialized import TrivializedSDE
from trivgeo.sde.scores.base import Score
from trivgeo.sde.solvers.runge_kutta import GeometricHeun
from trivgeo.sde.solvers.time_loop import Solution, solve


@checked
def forward_noising(
    group: LieGroup,
    schedule: Schedule,
    initial: Tensor,
    *,
    t: float | Float[Tensor, "*batch"] = 1.0,
    steps: int = 100,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Noise elements from time 0 to t: :math:`g_t = g_0 w_t`, with one independent path each.

    Args:
        group: the group of the elements.
        schedule: diffusion coefficient of the noise.
        initial: g_0, ``[*batch, *element_shape]``.
        t: the final time in [0, 1], or one for each element, ``[*batch]``; rows with a time outside are NaN.
        steps: number of equal steps.
        generator: random numbers; ``None`` is torch's.

    Raises:
        DomainError: t lies outside [0, 1].
        ConfigurationError: ``steps`` is less than one.
        ShapeError: there are not as many times as elements.
    """
    check_count("steps", steps)
    if isinstance(t, Tensor) and t.ndim:
        initial = group.check_elements(initial, "initial")
        noise, _ = NoiseKernel(group, schedule, steps).sample(
            *group.batch_shape(initial), t=t, generator=generator, dtype=initial.dtype, device=initial.device
        )
        return group.compose(initial, noise)
    t = float(t)
    if check_time(t) == 0.0:
        return group.check_elements(initial, "initial").clone()
    return solve(
        TrivializedSDE(group, schedule), initial, uniform_grid(steps, 0.0, t), generator=generator
    ).final_or_nan


@checked
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
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Draw samples of p_0: `solve` the `reverse_process` from t = 1 to 0.

    The default start is the noise k_1, and stands for p_1, the noised data. Both agree on compact groups if the noise
    at t = 1 is uniform. On other groups they differ unless the noise is far wider than the data, and samples are biased
    towards the identity: by .3 to .5 deviations on the affine group of the line with a schedule from .05 to 1.5. Give
    noised data, ``initial=forward_noising(group, schedule, data)``, where the noise is not so wide.

    Args:
        group: the group of the elements.
        schedule: diffusion coefficient of the noise.
        score: a `Score`, or a function (g, t) to vectors ``[*batch, dim]``, see `reverse_process`.
        modular_drift: keep the drift of groups that are not unimodular, see `reverse_process`.
        num_samples: the number, or the batch shape, of samples; not with ``initial``.
        steps: number of equal steps.
        generator: random numbers; ``None`` is torch's. New samples are on the device of a score that is a module, else
            on that of the generator.
        initial: elements at t = 1, ``[*batch, *element_shape]``, of p_1; default: drawn from k_1, see above.
        dtype: sample dtype; default torch's, or the dtype of ``initial``.

    Returns:
        Samples ``[*batch, *element_shape]``; NaN in chains whose score or element was not finite. A ``RuntimeWarning``
        counts these chains, except under ``torch.func.vmap``.

    Raises:
        ConfigurationError: counts below one, or both or neither of ``num_samples`` and ``initial``.

    Example:
        >>> from trivgeo.groups import SO
        >>> from trivgeo.sde import GeometricSchedule
        >>> uniform = reverse_diffusion(SO(3), GeometricSchedule(0.01, 2.0), lambda g, t: g.new_zeros(*g.shape[:-2], 3),
        ...     num_samples=5, steps=10)
        >>> uniform.shape
        torch.Size([5, 3, 3])
    """
    times = uniform_grid(steps, 1.0, 0.0)
    process = reverse_process(group, schedule, score, modular_drift=modular_drift)
    if (num_samples is None) == (initial is None):
        both = "neither" if initial is None else "both"
        raise ConfigurationError(f"expected one of num_samples and initial, got {both}")
    if initial is None:
        assert num_samples is not None
        batch = num_samples if isinstance(num_samples, tuple) else (num_samples,)
        for size in batch:
            check_count("num_samples", size)
        device = module_device(score) if isinstance(score, nn.Module) else None
        if device is None and generator is not None:
            device = generator.device
        kernel = NoiseKernel(group, schedule, steps)
        initial, _ = kernel.sample(*batch, t=1.0, generator=generator, dtype=dtype, device=device)
    return _samples(solve(process, initial, times, generator=generator))


@checked
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
    """Carry elements from t = 1 to samples of p_0: `solve` the `probability_flow`.

    Args:
        group: the group of the elements.
        schedule: diffusion coefficient of the noise.
        score: a `Score`, or a function (g, t) to vectors ``[*batch, dim]``, see `reverse_process`.
        modular_drift: keep the drift of groups that are not unimodular, see `reverse_process`.
        initial: elements at t = 1, ``[*batch, *element_shape]``.
        steps: number of equal steps.
        stepper: the scheme; default `GeometricHeun`, of order 2.
        generator: random numbers; ``None`` is torch's.
        final_time: last time; above zero for scores that do not exist at zero.

    Returns:
        Elements ``[*batch, *element_shape]``; NaN in chains whose score was not finite. These are counted as in
        `reverse_diffusion`.

    Raises:
        ConfigurationError: ``steps`` is less than one.
        DomainError: ``final_time`` lies outside [0, 1).
    """
    process = probability_flow(group, schedule, score, modular_drift=modular_drift)
    stepper = GeometricHeun() if stepper is None else stepper
    return _samples(solve(process, initial, uniform_grid(steps, 1.0, final_time), stepper=stepper, generator=generator))


def _samples(solution: Solution[Tensor]) -> Tensor:
    """The final elements, NaN in chains that failed, with a warning that counts these."""
    lost = solution.num_masked_steps > 0
    if not is_abstract(lost) and bool(lost.any()):
        warnings.warn(
            f"{int(lost.sum())} of {lost.numel()} samples are NaN, since their score or element was not finite: take "
            "more steps, or bound the score by `reverse_process(..., max_score_norm=)`",
            RuntimeWarning,
            stacklevel=4,  # the caller of a public function, which `checked` wraps
        )
    return solution.final_or_nan
