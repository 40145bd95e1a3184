"""Diagnostics of a run: weights, masks, energies, and tests of samples against a known distribution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trivgeo._signatures import check_calls
from trivgeo._text import Described, described
from trivgeo._torch import pytree
from trivgeo.checks import check_tensor, check_type
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.processes.base import StepState
from trivgeo.sde.resampling import effective_sample_size
from trivgeo.sde.scores.base import EnergySamples
from trivgeo.sde.scores.gradient import trivialized_grad, trivialized_grad_and_value
from trivgeo.sde.solvers.time_loop import Accumulator

__all__ = ["EnergyTrace", "ScoreMonitor", "ScoreTrace", "maximum_mean_discrepancy", "stein_z_scores"]


class ScoreTrace(NamedTuple):
    """Record of a `ScoreMonitor` over s scores.

    Attributes:
        effective_sizes: mean over the chains of `effective_sample_size`.
        masked: number of masked noise samples.
        lost: number of chains without a finite sample.
    """

    effective_sizes: Float[Tensor, " s"]
    masked: Int[Tensor, " s"]
    lost: Int[Tensor, " s"]

    def __repr__(self) -> str:
        return described(self)


class ScoreMonitor(Accumulator[Any, ScoreTrace]):
    """An accumulator of effective sample sizes and masks of every score of a solve.

    It aggregates the `EnergySamples` of an `EnergyScore`.
    """

    def init(self, y: Any) -> ScoreTrace:
        """Return an empty record on the device of the state ``y``."""
        reference: Tensor = pytree.tree_leaves(y)[0]
        none = torch.zeros(0, dtype=torch.long, device=reference.device)
        return ScoreTrace(reference.new_zeros(0), none, none)

    def update(self, acc: ScoreTrace, step: StepState) -> ScoreTrace:
        """Append an entry to the record ``acc`` for every score that the step evaluated."""
        for samples in step.parts(EnergySamples):
            size = effective_sample_size(samples.weights * samples.finite).mean()
            new = (size, (~samples.finite).sum(), (~samples.finite.any(-1)).sum())
            acc = ScoreTrace(*(torch.cat([old, x.reshape(1)]) for old, x in zip(acc, new, strict=True)))
        return acc


class EnergyTrace(Described):
    """The mean energy of the chains along a solve: an argument ``observe`` of `solve`.

    Args:
        energy: as that of an `EnergyScore`; no gradient is taken.
        every: steps between two evaluations.

    Attributes:
        steps: indices of the steps at which the energy was evaluated.
        means: mean of the finite energies there.
    """

    def __init__(self, energy: Callable[[Tensor], Tensor], every: int = 1) -> None:
        self._energy = energy
        self._every = every
        self.steps: list[int] = []
        self.means: list[float] = []

    def __call__(self, index: int, t: float, state: Tensor | tuple[Tensor, ...]) -> None:
        """Evaluate the energy at one state; at the elements of a `KineticLangevinState`."""
        if index % self._every:
            return
        elements = state if isinstance(state, Tensor) else next(iter(state), None)
        with torch.no_grad():
            energy = check_tensor("energy", self._energy(check_type("state", elements, Tensor)))
        self.steps.append(index)
        self.means.append(float(energy[torch.isfinite(energy)].mean()))


def stein_z_scores(
    group: LieGroup,
    energy: Callable[[Tensor], Tensor],
    samples: Tensor,
    functions: Sequence[Callable[[Tensor], Tensor]],
) -> Float[Tensor, "f n"]:
    r"""Deviations from the Stein identity of :math:`p \propto e^{-E}` for left Haar measure, in standard errors.

    .. math:: \mathbb E_p[X_i f - (X_i E + a_i) f] = 0, \quad a_i = \mathrm{tr}\,\mathrm{ad}(e_i),

    for every function f of moderate growth: no normalising constant and no exact sample is needed. One row for each
    function, one column for each basis direction; of independent samples of p they are standard normal.

    Args:
        group: the group of the elements.
        energy: function of elements ``[m, *element_shape]`` to energies ``[m]``, differentiable.
        samples: independent elements ``[m, *element_shape]``.
        functions: elements to numbers ``[m]``, differentiable.

    Raises:
        ShapeError: the samples have no batch dimension, or more than one.
    """
    if group.batch_shape(samples).numel() < 2 or len(group.batch_shape(samples)) != 1:
        raise ShapeError(f"samples: expected [m, *element_shape] with m > 1, got {list(samples.shape)}")
    force = trivialized_grad(group, energy, samples) + group.algebra.trace_ad_like(samples)
    rows = []
    for f in functions:
        slope, value = trivialized_grad_and_value(group, f, samples)
        terms = slope - force * value.unsqueeze(-1)
        rows.append(terms.mean(0) / (terms.std(0) / math.sqrt(len(terms))))
    return torch.stack(rows)


def maximum_mean_discrepancy(x: Float[Tensor, "m d"], y: Float[Tensor, "k d"], bandwidth: float | None = None) -> float:
    r"""The unbiased estimate of the squared MMD of two samples with a Gaussian kernel (Gretton et al. 2012).

    Zero in the mean when both come from one law. Elements go in through features that are faithful to them, for
    instance the flattened matrices.

    Args:
        x: features of one sample.
        y: features of the other.
        bandwidth: of the kernel; default the median distance between the two samples.

    Raises:
        ShapeError: the features do not fit, or a sample has fewer than two rows.
        ConfigurationError: the bandwidth is not positive.
    """
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or min(len(x), len(y)) < 2:
        raise ShapeError(f"expected features [m, d] and [k, d], got {list(x.shape)} and {list(y.shape)}")
    cross = torch.cdist(x, y)
    width = float(cross.median()) if bandwidth is None else bandwidth
    if not width > 0:
        raise ConfigurationError(f"bandwidth: expected a positive number, got {width}")

    def kernel(distance: Tensor) -> Tensor:
        return torch.exp(-0.5 * (distance / width) ** 2)

    def within(z: Tensor) -> Tensor:
        return (kernel(torch.cdist(z, z)).sum() - len(z)) / (len(z) * (len(z) - 1))

    return float(within(x) + within(y) - 2.0 * kernel(cross).mean())


check_calls(__name__, __all__)
