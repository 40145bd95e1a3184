"""Paths of growing noise: the widest noise, and the base distribution at which it ends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from trivgeo.generative.base_distributions import BaseDistribution, fit_base_distribution
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.generative.paths.simulation import factor_stds, terminal_std
from trivgeo.groups import DirectProduct, LieGroup

__all__ = ["NoisingPath"]

PathT = TypeVar("PathT", bound="NoisingPath")

_SAME_STD = 1e-6  # relative difference of standard deviations of factors that share one
_NUM_COMPONENTS = 8  # of the mixture that noise of a noncompact group ends at


class NoisingPath(ProbabilityPath):
    """A path that adds noise to data, to each factor of a product as much as it needs.

    Its settings are the standard deviation of the widest noise, and where factors differ that of each of them relative
    to it: noise is isotropic in a basis whose axes have these lengths, that of the ``group`` of the path.
    """

    default_steps: ClassVar[int | None] = 100

    @classmethod
    @abstractmethod
    def of_terminal_std(cls: type[PathT], group: LieGroup, std: float) -> PathT:
        """Return the path on ``group`` whose noise has standard deviation ``std`` at the last time."""

    @abstractmethod
    def sample_terminal(self, data: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw noised data at the last time, ``[m, *element_shape]``.

        Args:
            data: elements ``[m, *element_shape]``.
            generator: random numbers; None is torch's.
        """

    @classmethod
    def log_decay(cls, group: LieGroup) -> float:
        """Return minus the logarithm of what noise leaves of the slowest mode of a compact ``group``: 8 by default."""
        return 8.0

    @classmethod
    def fit_base(cls, group: LieGroup, samples: Tensor) -> BaseDistribution:
        """Fit the base distribution: Haar measure on compact factors, elsewhere mixtures of eight normal
        distributions.

        Args:
            group: the group of the elements.
            samples: elements ``[m, *element_shape]``.
        """
        return fit_base_distribution(group, samples, num_components=_NUM_COMPONENTS)

    @classmethod
    def fit(
        cls, group: LieGroup, data: Tensor, generator: torch.Generator | None
    ) -> tuple[dict[str, Any], BaseDistribution]:
        """Choose the width of the noise by `terminal_std`, and fit the base distribution to noised data.

        Args:
            group: the group of the elements.
            data: training elements ``[m, *element_shape]``.
            generator: random numbers of the noise; ``None`` is torch's.

        Returns:
            Settings ``{"widest": ...}``, with ``"ratios"`` where factors differ, which `build` reads; the base
            distribution.
        """
        stds = factor_stds(group, data, cls.log_decay(group))
        settings: dict[str, Any] = {"widest": max(stds) if stds else terminal_std(group, data, cls.log_decay(group))}
        if stds and max(stds) - min(stds) > _SAME_STD * max(stds):
            settings["ratios"] = [std / max(stds) for std in stds]
        noised = cls._of_settings(group, settings).sample_terminal(data, generator)
        is_finite = torch.isfinite(noised.flatten(1)).all(-1)
        return settings, cls.fit_base(group, noised[is_finite])

    @classmethod
    def build(cls: type[PathT], group: LieGroup, settings: Mapping[str, Any], base: BaseDistribution) -> PathT:
        """Build the path from what `fit` returned.

        Args:
            group: the group of the elements.
            settings: ``widest``, the standard deviation of the widest noise, and ``ratios`` of the factors to it.
            base: the base distribution, which has no influence on the path.

        Raises:
            KeyError: the width is missing.
        """
        return cls._of_settings(group, settings)

    @classmethod
    def _of_settings(cls: type[PathT], group: LieGroup, settings: Mapping[str, Any]) -> PathT:
        """Return the path on the group with the lengths of its axes multiplied by the ratio of their factor."""
        ratios = settings.get("ratios")  # not in files of 0.2
        if ratios is not None and isinstance(group, DirectProduct):
            factors = zip(group.factors, ratios, strict=True)
            lengths = torch.cat([torch.full((f.dim,), ratio, dtype=torch.float64) for f, ratio in factors])
            group = group.with_scale(group.scale * lengths)
        return cls.of_terminal_std(group, settings["widest"])
