"""Noise levels of a training batch, and the number of exponentials that noise of a level is simulated with."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import uniform
from trivgeo.errors import ConfigurationError
from trivgeo.generative.base_distributions import is_isotropic, scaled_factors
from trivgeo.groups import DirectProduct, LieGroup

__all__ = ["graded", "noise_parts", "stratified"]

_FEWEST, _MOST = 3, 32  # factors of one noise sample, where it is simulated
_REACH = 2.5  # of a factor in an anisotropic basis, the variance of its largest turn: 2 pi is four deviations
_SCORED = 128  # factors of which the target is made
_REFUSED, _REFUSED_KINETIC = 2048, 256  # more factors than that
_GRADES = 8  # of levels, each with its number of these


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
