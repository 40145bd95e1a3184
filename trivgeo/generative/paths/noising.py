"""Paths of growing noise: the widest noise, and the base distribution at which it ends."""

from __future__ import annotations

import functools
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import uniform
from trivgeo.checks import check_positive, checked
from trivgeo.errors import ConfigurationError
from trivgeo.generative.distribution_fitting import fit_base_distribution, group_mean
from trivgeo.generative.distributions import GroupDistribution
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.groups import DirectProduct, LieGroup
from trivgeo.groups.harmonic import slowest_rate
from trivgeo.groups.product import scaled_factors

MAX_USUAL_FACTORS = 32
"""Largest number of exponentials of one noise sample, unless the scale of the group needs more."""
MIN_STD_RATIO = 0.0025
"""Standard deviation of the noise at the data, over that of the widest noise."""
_MAX_FACTORS, _MAX_KINETIC_FACTORS = 2048, 256  # largest numbers of exponentials of one noise sample
_MAX_ANGLE_VARIANCE = 2.5  # variance of the fastest angle of one exponential: a full turn is four deviations
_NUM_LEVEL_GROUPS = 8  # groups of levels of a batch, each with its own number of exponentials


def num_noise_factors(group: LieGroup, variance: float, minimum: int = 6, time: float | None = None) -> int:
    r"""The number m of exponentials of which a noise sample is a product.

    It is large enough for each exponential to have length two or less, mostly, where exp is one to one. It is at most
    `MAX_USUAL_FACTORS`, except on compact groups with an anisotropic scale, and on compact factors beside noncompact
    ones. There the long axes turn many times while the short ones reach the slowest mode, or while noise reaches as far
    as the data. J_r is singular, and a score infinite, where an eigenvalue of ad(v) is :math:`2 \pi i`; for normal v
    with variance :math:`\sigma^2 / m` the mean square of the eigenvalues is about :math:`\sigma^2 \kappa / m`, with
    :math:`\kappa` the largest eigenvalue of :math:`-\sum_i \mathrm{ad}(e_i)^2`.

    Args:
        variance: variance of the whole sample, :math:`\sigma^2`.
        minimum: smallest number that is returned.
        time: time t of kinetic noise, whose m factors have variance :math:`t^2 / m^2` at most.

    Raises:
        ConfigurationError: the scale needs more exponentials than can be simulated.
    """
    usual = min(MAX_USUAL_FACTORS, max(minimum, math.ceil(0.25 * group.dim * variance)))
    rate = _largest_turning_rate(group) / _MAX_ANGLE_VARIANCE
    needed = math.ceil(rate * variance)
    if time is not None:
        needed = min(needed, math.ceil(math.sqrt(rate) * time))
    limit = _MAX_FACTORS if time is None else _MAX_KINETIC_FACTORS
    if needed > limit:
        raise ConfigurationError(
            f"scale: expected axes of {group!r} of more nearly equal lengths, got such that noise is a product of "
            f'{needed} exponentials, more than {limit}; lengthen the shortest, or take kind="flow" without noise'
        )
    return max(usual, needed)


@functools.lru_cache(maxsize=16)  # keyed by the identity of the group: called for every level of every training batch
def _largest_turning_rate(group: LieGroup) -> float:
    r"""The :math:`\kappa` of `num_noise_factors` on compact factors; zero if the slowest mode sets the variance."""
    if group.is_compact and _is_isotropic(group):
        return 0.0
    factors = scaled_factors(group) if isinstance(group, DirectProduct) and not group.is_compact else [group]
    rates = (
        -12.0 * float(torch.linalg.eigvals(factor.algebra.noise_corrections[0].value).real.min())
        for factor in factors
        if factor.is_compact and not factor.algebra.is_abelian
    )
    return max(rates, default=0.0)


def _is_isotropic(group: LieGroup) -> bool:
    """Whether the basis of a group is a rotation of the natural basis times one factor."""
    axes = torch.linalg.svdvals(group.basis.rows)
    return bool(axes[0] - axes[-1] <= 1e-9 * axes[0])


def rows_at_once(num_rows: int, num_factors: int) -> int:
    """Number of rows that one call simulates: fewer than ``num_rows`` where many exponentials need much memory."""
    return max(1, min(num_rows, num_rows * MAX_USUAL_FACTORS // num_factors))


def level_groups(num_rows: int, num_factors: Callable[[float], int]) -> Iterator[tuple[slice, int]]:
    """Divide rows with `stratified` levels into groups that are simulated with the same number of exponentials.

    Args:
        num_factors: number of exponentials that noise of a level in [0, 1] takes.

    Yields:
        A slice of rows, and the number of exponentials of the highest level among them.
    """
    groups = ((k, num_factors((k + 1) / _NUM_LEVEL_GROUPS)) for k in range(_NUM_LEVEL_GROUPS))
    for number, members in itertools.groupby(groups, lambda entry: entry[1]):
        indices = [k for k, _ in members]
        rows = slice(num_rows * indices[0] // _NUM_LEVEL_GROUPS, num_rows * (indices[-1] + 1) // _NUM_LEVEL_GROUPS)
        if rows.start < rows.stop:
            yield rows, number


def stratified(num_rows: int, reference: Tensor, generator: torch.Generator | None) -> Float[Tensor, " b"]:
    """Draw ``num_rows`` increasing numbers in [0, 1], one in each of equal intervals, all with the same uniform shift.

    The ``reference`` gives dtype and device.
    """
    return (
        torch.arange(num_rows, dtype=reference.dtype, device=reference.device) + uniform((), reference, generator)
    ) / num_rows


def terminal_std(group: LieGroup, data: Tensor, log_decay: float) -> float:
    r"""Standard deviation of noise after which a base distribution can fit what remains of the data.

    On a compact group the slowest mode :math:`\chi` obeys :math:`\tfrac12 \sum_i X_i^2 \chi = -c \chi`, and the
    variance V makes :math:`e^{-c V}` the given decay. In the natural basis, or a multiple of it, c is read off the
    entries of an element at the identity (the determinant of U(n) is as slow). In another basis it is found by
    `slowest_rate`, or bounded: no mode is slower than if all axes were as short as the shortest, for
    :math:`\sum_i X_i^2` is a quadratic form in the natural fields. On a noncompact group the result is twice the
    largest standard deviation of the data's logarithms, on a product the maximum over the factors, which share their
    noise.

    Args:
        log_decay: minus the logarithm of the remainder of the slowest mode.
    """
    isotropic = group.is_compact and _is_isotropic(group)
    if isinstance(group, DirectProduct) and not isotropic and (factors := scaled_factors(group)):
        parts = zip(factors, group.split(data), strict=True)
        return max(terminal_std(factor, part, log_decay) for factor, part in parts)
    if not group.is_compact:
        _, v = group_mean(group, data)
        return 2.0 * float(v.std(0).max())
    if not isotropic:
        shortest = float(torch.linalg.svdvals(group.basis.rows)[-1])
        bound, rate = terminal_std(group.with_scale(shortest), data, log_decay), slowest_rate(group)
        return bound if rate is None else math.sqrt(log_decay / max(rate, log_decay / bound**2))
    return math.sqrt(log_decay / _slowest_rate_of_entries(group))


def factor_stds(group: LieGroup, data: Tensor, log_decay: float) -> list[float]:
    """The `terminal_std` of each factor of a product; neighbours that are one group share their maximum.

    The list is empty for groups that are no products, and where a scale mixes the factors.
    """
    factors = scaled_factors(group) if isinstance(group, DirectProduct) else []
    if not isinstance(group, DirectProduct) or not factors:
        return []
    parts = zip(factors, group.split(data), strict=True)
    stds = iter([terminal_std(factor, part, log_decay) for factor, part in parts])
    found: list[float] = []
    for _, run in itertools.groupby(group.factors, id):
        of_run = [next(stds) for _ in run]
        found += [max(of_run)] * len(of_run)
    return found


def _slowest_rate_of_entries(group: LieGroup) -> float:
    """Smallest decay rate of the entries of an element (of the cosine, for an angle), for equal axes."""
    e = group.identity(dtype=torch.float64)
    periods = group._periods().double().reshape(group.element_shape)
    frequency = torch.where(periods > 0, 2.0 * math.pi / torch.where(periods > 0, periods, 1.0), 1.0)

    def entries(v: Tensor) -> Tensor:
        g = group.retract(e, v)
        return torch.where(periods > 0, (frequency * g).cos(), g)

    h = 1e-3 * torch.eye(group.dim, dtype=torch.float64)
    value = entries(torch.zeros(group.dim, dtype=torch.float64))
    laplacian = (entries(h) + entries(-h) - 2.0 * value).sum(0) / 1e-6
    nonzero = value.abs() > 0.5
    return float((-0.5 * laplacian / value)[nonzero].min())


PathT = TypeVar("PathT", bound="NoisingPath")

_MIN_STD_DIFFERENCE = 1e-6  # relative difference of the noise of two factors, below which they share it
_NUM_BASE_COMPONENTS = 8  # normal components of a base distribution on a noncompact group


@checked
class NoisingPath(ProbabilityPath):
    """A path that adds noise to data, to each factor of a product as much as it needs.

    Its settings are the standard deviation of the widest noise, and the ratios of the factors to it where they differ.
    Noise is isotropic in a basis whose axes have these lengths, the basis of the ``group`` of the path.
    """

    default_steps: ClassVar[int | None] = 100

    @classmethod
    @abstractmethod
    def of_terminal_std(cls: type[PathT], group: LieGroup, std: float) -> PathT:
        """Return the path on ``group`` whose noise has standard deviation ``std`` at the last time."""

    @abstractmethod
    def sample_terminal(self, data: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw noised ``data [m, *element_shape]`` at the last time, with random numbers of ``generator``."""

    @classmethod
    def log_decay(cls, group: LieGroup) -> float:
        """Return minus the logarithm of the remainder of the slowest mode of a compact ``group``: 8 by default."""
        return 8.0

    @classmethod
    def fit_base(cls, group: LieGroup, samples: Tensor) -> GroupDistribution:
        """Fit the base distribution: Haar measure on compact factors, elsewhere mixtures of normal distributions."""
        return fit_base_distribution(group, samples, num_components=_NUM_BASE_COMPONENTS)

    @classmethod
    def fit(
        cls, group: LieGroup, data: Tensor, generator: torch.Generator | None
    ) -> tuple[dict[str, Any], GroupDistribution]:
        """Choose the width of the noise by `terminal_std`, and fit the base distribution to noised data.

        The settings that `build` reads are ``{"widest": ...}``, with ``"ratios"`` where factors differ.
        """
        stds = factor_stds(group, data, cls.log_decay(group))
        settings: dict[str, Any] = {"widest": max(stds) if stds else terminal_std(group, data, cls.log_decay(group))}
        if stds and max(stds) - min(stds) > _MIN_STD_DIFFERENCE * max(stds):
            settings["ratios"] = [std / max(stds) for std in stds]
        noised = cls._of_settings(group, settings).sample_terminal(data, generator)
        is_finite = torch.isfinite(noised.flatten(1)).all(-1)
        return settings, cls.fit_base(group, noised[is_finite])

    @classmethod
    def build(cls: type[PathT], group: LieGroup, settings: Mapping[str, Any], base: GroupDistribution) -> PathT:
        return cls._of_settings(group, settings)

    @classmethod
    def _of_settings(cls: type[PathT], group: LieGroup, settings: Mapping[str, Any]) -> PathT:
        """Return the path on the group with the lengths of its axes multiplied by the ratio of their factor."""
        ratios = settings.get("ratios")  # missing in files of version 0.2
        if ratios is not None and isinstance(group, DirectProduct):
            factors = zip(group.factors, ratios, strict=True)
            lengths = torch.cat(
                [torch.full((f.dim,), check_positive("ratios", ratio), dtype=torch.float64) for f, ratio in factors]
            )
            group = group.with_scale(group.scale * lengths)
        return cls.of_terminal_std(group, check_positive("widest", settings["widest"]))
