"""Criteria that a search along orbits minimises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from trivgeo._text import Described
from trivgeo.checks import check_count, check_positive

__all__ = ["LowestEnergy", "OrbitCriterion", "OrbitCurvature"]


class OrbitCriterion(Described, ABC):
    """Criterion that a search level minimises along an orbit.

    Attributes:
        margin: samples evaluated beyond each end of the orbit, on the same spacing.
        keeps_incumbent: whether a hypothesis may stay where it is, at its energy.
    """

    margin: ClassVar[int]
    keeps_incumbent: ClassVar[bool]

    @abstractmethod
    def __call__(self, energies: Float[Tensor, "b k n"]) -> Float[Tensor, "b k m"]:
        """One number for each sample that is not in the margins; infinite where it must not be taken."""


class LowestEnergy(OrbitCriterion):
    """The energy itself: no level raises that of a hypothesis."""

    margin = 0
    keeps_incumbent = True

    def __call__(self, energies: Float[Tensor, "b k n"]) -> Float[Tensor, "b k m"]:
        """The energies."""
        return energies


class OrbitCurvature(OrbitCriterion):
    """Minus the second difference along the orbit of the energies after a Gaussian filter (Schmidt and Stober 2024).

    It prefers sharp minima to the low energies that classifiers give to data far from those they know; the first and
    the last value are repeated beyond the ends. Of no use for energies without such basins, such as quadratic ones.

    Args:
        sigma: of the filter, in samples.
        radius: of the filter, in samples.

    Raises:
        ConfigurationError: a number out of its range.
    """

    margin = 1
    keeps_incumbent = False

    def __init__(self, sigma: float = 2.0, radius: int = 3) -> None:
        self.sigma = check_positive("sigma", sigma)
        self.radius = check_count("radius", radius)

    def __call__(self, energies: Float[Tensor, "b k n"]) -> Float[Tensor, "b k m"]:
        """Low where the filtered energy has a sharp minimum."""
        finite = torch.isfinite(energies)
        highest = torch.where(finite, energies, -torch.inf).amax(-1, keepdim=True)
        values = torch.where(finite, energies, torch.where(torch.isfinite(highest), highest, 0.0)).flatten(0, 1)
        place = torch.arange(-self.radius, self.radius + 1, dtype=values.dtype, device=values.device)
        weights = torch.softmax(-0.5 * (place / self.sigma) ** 2, 0)
        padded = functional.pad(values.unsqueeze(1), (self.radius, self.radius), mode="replicate")
        smooth = functional.conv1d(padded, weights.reshape(1, 1, -1)).squeeze(1)
        bend = (smooth[:, :-2] - 2.0 * smooth[:, 1:-1] + smooth[:, 2:]).unflatten(0, energies.shape[:2])
        return torch.where(finite[..., 1:-1], -bend, torch.inf)
