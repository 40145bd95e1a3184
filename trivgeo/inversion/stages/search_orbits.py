"""Search along orbits of one-parameter subgroups, level by level."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from trivgeo._numerics import Constant
from trivgeo._text import Described
from trivgeo.checks import check_count, check_positive, check_type, checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Affine, LieGroup
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.rows import rows_like
from trivgeo.inversion.stage import Population, Stage


@checked
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
        """Return one number for each sample that is not in the margins; infinite where it must not be taken."""


@checked
class LowestEnergy(OrbitCriterion):
    """The energy itself: no level raises the energy of a hypothesis."""

    margin = 0
    keeps_incumbent = True

    def __call__(self, energies: Float[Tensor, "b k n"]) -> Float[Tensor, "b k m"]:
        return energies


@checked
class OrbitCurvature(OrbitCriterion):
    """Minus the second difference along the orbit of the energies after a Gaussian filter (Schmidt and Stober 2024).

    It prefers sharp minima to the low energies that classifiers give to data far from those they know; the first and
    the last value are repeated beyond the ends. Of no use for energies without such basins, such as quadratic ones.

    Args:
        sigma: standard deviation of the filter, in samples.
        radius: radius of the filter, in samples.

    Raises:
        ConfigurationError: a number out of its range.
    """

    margin = 1
    keeps_incumbent = False

    def __init__(self, sigma: float = 2.0, radius: int = 3) -> None:
        self.sigma = check_positive("sigma", sigma)
        self.radius = check_count("radius", radius)

    def __call__(self, energies: Float[Tensor, "b k n"]) -> Float[Tensor, "b k m"]:
        finite = torch.isfinite(energies)
        highest = torch.where(finite, energies, -torch.inf).amax(-1, keepdim=True)
        values = torch.where(finite, energies, torch.where(torch.isfinite(highest), highest, 0.0)).flatten(0, 1)
        place = torch.arange(-self.radius, self.radius + 1, dtype=values.dtype, device=values.device)
        weights = torch.softmax(-0.5 * (place / self.sigma) ** 2, 0)
        padded = functional.pad(values.unsqueeze(1), (self.radius, self.radius), mode="replicate")
        smooth = functional.conv1d(padded, weights.reshape(1, 1, -1)).squeeze(1)
        bend = (smooth[:, :-2] - 2.0 * smooth[:, 1:-1] + smooth[:, 2:]).unflatten(0, energies.shape[:2])
        return torch.where(finite[..., 1:-1], -bend, torch.inf)


_NUM_LEVELS = 8  # levels of a search, unless a caller gives them


@checked
@dataclass(frozen=True)
class SearchLevel:
    """Level of a search: the elements exp(s d) of a one-parameter subgroup, s evenly spaced in [-extent, extent].

    Attributes:
        direction: d, in the natural basis of the group, whatever its scale.
        extent: the largest s.

    Raises:
        ConfigurationError: the extent is not positive, or the direction is zero or not finite.
    """

    direction: tuple[float, ...]
    extent: float

    def __post_init__(self) -> None:
        check_positive("extent", self.extent)
        if not all(math.isfinite(c) for c in self.direction) or not any(self.direction):
            raise ConfigurationError(f"direction: expected finite numbers, not all zero, got {self.direction}")


@checked
def basis_levels(
    group: LieGroup, num_levels: int = _NUM_LEVELS, extent: float = 1.0, shrink: float = 0.25
) -> list[SearchLevel]:
    """Return levels along the basis directions of a group in turn, the extent ``shrink`` times as large every round.

    Args:
        group: the group; extents are in units of its basis.
        num_levels: number of levels.
        extent: extent of the first round.
        shrink: factor of the extent from round to round.

    Raises:
        ConfigurationError: fewer than one level, or an extent that is not positive.
    """
    check_positive("extent", extent)
    check_positive("shrink", shrink)
    rows = group.basis.rows.tolist()
    return [
        SearchLevel(tuple(rows[level % group.dim]), extent * shrink ** (level // group.dim))
        for level in range(check_count("num_levels", num_levels))
    ]


@checked
def affine_levels(
    translation: float = 0.5,
    rotation: float = math.pi / 6,
    scaling: float = 0.25,
    shear: float = 0.2,
    refinement: float = 0.25,
) -> list[SearchLevel]:
    """Return eight levels for `trivgeo.groups.Affine` of the plane: each factor once, then rotation and size again.

    Args:
        translation: extent along each axis.
        rotation: extent, in radians.
        scaling: extent of the logarithm of the scale along each axis.
        shear: extent of the shear along the first axis.
        refinement: factor of the extents of the last two levels.

    Raises:
        ConfigurationError: an extent that is not positive.
    """
    check_positive("refinement", refinement)
    turn, size = (0.0, -1.0, 1.0, 0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    return [
        SearchLevel((0.0, 0.0, 0.0, 0.0, 1.0, 0.0), translation),
        SearchLevel((0.0, 0.0, 0.0, 0.0, 0.0, 1.0), translation),
        SearchLevel(turn, rotation),
        SearchLevel((1.0, 0.0, 0.0, 0.0, 0.0, 0.0), scaling),
        SearchLevel((0.0, 0.0, 0.0, 1.0, 0.0, 0.0), scaling),
        SearchLevel((0.0, 1.0, 0.0, 0.0, 0.0, 0.0), shear),
        SearchLevel(turn, refinement * rotation),
        SearchLevel(size, refinement * scaling),
    ]


@checked
class SearchOrbits(Stage):
    r"""Removes one factor of the transformation after another.

    Every level evaluates each of K hypotheses g at :math:`g \exp(s d)` for evenly spaced s, which moves the restored
    data on along a one-parameter subgroup, and keeps the best. The first level starts from the first hypothesis of
    each datum and keeps the K best samples. With ``classes`` no two hypotheses of a datum may take a sample of the same
    class, as long as there is a sample of another one. Nothing is random.

    Args:
        levels: the levels; a number stands for `basis_levels`, ``None`` for the eight of `affine_levels` on affine maps
            of the plane and for eight of `basis_levels` on other groups.
        num_samples: number of samples of each level.
        num_hypotheses: number K of hypotheses.
        classes: a batch of data to integer classes ``[batch]``, asked once for every energy; ``None`` for no diversity.
        criterion: criterion that a level minimises: `LowestEnergy` (the default) or `OrbitCurvature` (published for
            classifiers).

    Raises:
        ConfigurationError: a setting out of its range, more hypotheses than samples, or (when run) a direction that is
            none of the group.
    """

    def __init__(
        self,
        levels: int | Sequence[SearchLevel] | None = None,
        num_samples: int = 16,
        num_hypotheses: int = 3,
        classes: Callable[[Any], Any] | None = None,
        criterion: OrbitCriterion | None = None,
    ) -> None:
        self.criterion = LowestEnergy() if criterion is None else criterion
        check_type("criterion", self.criterion, OrbitCriterion)  # type: ignore[type-abstract]
        self.num_samples = check_count("num_samples", num_samples)
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        if num_samples < 2 or num_hypotheses > num_samples:
            raise ConfigurationError(
                f"num_samples: expected at least 2, and num_hypotheses = {num_hypotheses}, got {num_samples}"
            )
        if classes is not None and not callable(classes):
            raise ConfigurationError(f"classes: expected a function of a batch of data, got {classes!r}")
        if isinstance(levels, int):
            check_count("levels", levels)
        self.levels = levels if levels is None or isinstance(levels, int) else tuple(levels)
        self.classes = classes
        self.steps = levels if isinstance(levels, int) else _NUM_LEVELS if levels is None else len(levels)

    def levels_of(self, group: LieGroup) -> list[SearchLevel]:
        """Return the levels of the search on ``group``.

        Raises:
            ConfigurationError: there is no level, or a direction is none of the group.
        """
        if self.levels is None and group.is_same_group(Affine(2)):
            return affine_levels()
        levels = self.levels
        if levels is None or isinstance(levels, int):
            return basis_levels(group, _NUM_LEVELS if levels is None else levels)
        if not levels:
            raise ConfigurationError("levels: expected at least one, got none")
        for level in levels:
            if not isinstance(level, SearchLevel) or len(level.direction) != group.dim:
                raise ConfigurationError(f"levels: expected a SearchLevel of {group.dim} numbers, got {level!r}")
        return list(levels)

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        group, reference = posterior.group, posterior.reference
        at = self._evaluate(posterior, population.elements[:, :1].unsqueeze(2))
        for level in self.levels_of(group):
            orbit = Constant(self.orbit(group, level)).matching(reference)
            candidates = self._evaluate(posterior, group.retract(at.elements, orbit))
            scores = self.criterion(candidates.energies)
            candidates = candidates.inner(self.criterion.margin)
            if self.criterion.keeps_incumbent:
                candidates, scores = candidates.join(at), torch.cat([scores, at.energies], 2)
            at = candidates.pick(choose(scores, candidates.classes, self.num_hypotheses))
            posterior.step()
        energies = at.energies.squeeze(2)
        return Population(at.elements.squeeze(2), torch.zeros_like(energies, dtype=torch.long), energies)

    def orbit(self, group: LieGroup, level: SearchLevel) -> Tensor:
        """Return the algebra vectors of one ``level``, margins included, ``[n, dim]``, in the basis of ``group``."""
        direction = group.basis.from_natural(torch.tensor(level.direction, dtype=torch.float64))
        middle, margin = (self.num_samples - 1) / 2, self.criterion.margin
        place = torch.arange(-margin, self.num_samples + margin, dtype=torch.float64) - middle
        return (level.extent / middle) * place.unsqueeze(-1) * direction

    def _evaluate(self, posterior: Posterior, elements: Tensor) -> _Candidates:
        """Return energies and classes of elements ``[b, k, n, *element_shape]``."""
        classes = None if self.classes is None else posterior.of_transformed(self.classes, elements)
        return _Candidates(elements, posterior.energies(elements), classes)


@dataclass(frozen=True)
class _Candidates:
    """Elements ``[b, k, n, *element_shape]`` with their energies and classes ``[b, k, n]``."""

    elements: Tensor
    energies: Tensor
    classes: Tensor | None

    def map(self, f: Callable[[Tensor], Tensor]) -> _Candidates:
        return _Candidates(f(self.elements), f(self.energies), None if self.classes is None else f(self.classes))

    def inner(self, margin: int) -> _Candidates:
        """Return the candidates without the margins of the orbits."""
        return self.map(lambda x: x[:, :, margin : x.shape[2] - margin])

    def join(self, other: _Candidates) -> _Candidates:
        """Return the candidates of both, row by row."""
        classes = None
        if self.classes is not None and other.classes is not None:
            classes = torch.cat([self.classes, other.classes], 2)
        return _Candidates(
            torch.cat([self.elements, other.elements], 2), torch.cat([self.energies, other.energies], 2), classes
        )

    def pick(self, index: Tensor) -> _Candidates:
        """Return one candidate of each row, ``[b, K]``, or several of a single row, as K rows of one."""

        def chosen(x: Tensor) -> Tensor:
            if x.shape[1] == 1:
                return torch.take_along_dim(x, rows_like(index.unsqueeze(1), x), 2).transpose(1, 2)
            return torch.take_along_dim(x, rows_like(index.unsqueeze(2), x), 2)

        return self.map(chosen)


def choose(scores: Float[Tensor, "b k n"], classes: Tensor | None, number: int) -> Tensor:
    """Return the sample that each of ``number`` hypotheses takes, ``[b, number]``, from its own row or the only one.

    Hypotheses choose one after another. Each takes the lowest score among the samples that are not taken and whose
    class is not, or, if there is none, among the samples that are not taken.
    """
    free = torch.ones_like(scores, dtype=torch.bool)
    other = free
    picks = []
    for hypothesis in range(number):
        row = min(hypothesis, scores.shape[1] - 1)
        own, diverse = scores[:, row], free[:, row] & other[:, row]
        best = torch.where(diverse, own, torch.inf)
        fallback = torch.where(free[:, row], own, torch.inf)
        pick = torch.where(torch.isfinite(best).any(-1), best.argmin(-1), fallback.argmin(-1))
        picks.append(pick)
        taken = functional.one_hot(pick, scores.shape[2]).bool()
        free = free.clone()
        free[:, row] &= ~taken
        if classes is not None:
            chosen = classes[:, row].gather(1, pick.unsqueeze(1)).unsqueeze(2)
            other = other & (classes != chosen)
    return torch.stack(picks, 1)
