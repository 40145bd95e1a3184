"""Registration of clouds of points, in the same order or in none."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import permutation, uniform
from trivgeo.actions import PointCloud
from trivgeo.groups import SO, Affine, E, GLPlus, LieGroup, MatrixGroup, O, Projective, Similarity, Translation
from trivgeo.groups.inhomogeneous import InhomogeneousGroup
from trivgeo.groups.similarity import ScaledRotations
from trivgeo.inversion.energies.least_squares import GemanMcClure, LeastSquares
from trivgeo.inversion.energies.point_residuals import PairedPoints, SymmetricNearestPoints, nearest_indices
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.point_alignment import fit_points, num_points_needed
from trivgeo.inversion.posterior import InverseProblem, Posterior
from trivgeo.inversion.stage import Stage
from trivgeo.inversion.stages.chains import Select
from trivgeo.inversion.stages.levenberg_marquardt import LevenbergMarquardt
from trivgeo.inversion.transformations import sample_elements
from trivgeo.registration.record import Registration, RegistrationMethod, assess, robust_std
from trivgeo.verdict import Verdict

_NUM_SUBSETS = 128  # closed forms of a few points each, for clouds in the same order with outliers
_NUM_SEARCH_POINTS = 300  # points of each cloud in the search for wells
_NUM_FINAL_POINTS = 2000  # points of each cloud at the end
_SEARCH_WIDTHS = (0.7, 0.35, 0.18, 0.1)  # widths of the robust losses, in root mean square distances from the centre
_NUM_KEPT = (64, 24, 8, 4)  # hypotheses that go on with each width, of one place each
_MAX_POSES = 24  # hypotheses that go on where a symmetric object has several poses
_MAX_ENERGY_RATIO = 1.3  # energy of such a hypothesis over the lowest one
_SAME_PLACE_IN_WIDTHS = 0.3  # root mean square distance between points moved by two hypotheses of one place, in widths
_NUM_STEPS = (6, 6, 10, 15)  # steps with each width
_LAST_WIDTH_IN_STDS = 4.0  # width of the last loss, in standard deviations of the residuals
_ORDERED_STEPS, _SEARCHED_STEPS = 8, 20  # last steps of clouds in the same order, and in none
_MAX_ORDERED_RESIDUAL = 0.1  # median residual, in units of the size, up to which the given order is taken for the same
# residual of clouds in no order, in units of the size, and of the distance between neighbours: above both, the clouds
# are as far apart as unrelated ones are
_MAX_RESIDUAL, _MAX_SPACINGS = 0.1, 0.5
_MAX_MATCHED_RESIDUAL = 0.9  # residual of clouds in the same order, in units of the size; of unrelated ones 1 to 1.41
_MAX_DISTANCES_IN_MEMORY = 2**22  # distances between points at once


@dataclass(frozen=True)
class _Conditioning:
    """Centres and sizes of two clouds; matrices on (x, 1) between the data and conditioned data."""

    moving: Tensor
    fixed: Tensor
    size: float

    def conditioned_clouds(self, moving: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor]:
        """Return both clouds, centred and in units of their sizes."""
        pairs = (moving, self.moving), (fixed, self.fixed)
        x, y = ((cloud - matrix[:-1, -1]) / matrix[0, 0] for cloud, matrix in pairs)
        return x, y

    def conditioned(self, group: LieGroup, g: Tensor) -> Tensor:
        """Return the element on conditioned data for one on the data."""
        action = group.action()
        return action.from_homogeneous(_unit(torch.linalg.inv(self.fixed) @ action.homogeneous(g) @ self.moving))

    def restored(self, group: LieGroup, g: Tensor) -> Tensor:
        """Return the element on the data for one on conditioned data."""
        action = group.action()
        return action.from_homogeneous(_unit(self.fixed @ action.homogeneous(g) @ torch.linalg.inv(self.moving)))

    def adjoint(self, group: LieGroup, prototype: Tensor) -> Float[Tensor, "n n"]:
        """Return the matrix of v' to v with ``g exp(v)`` on the data where it is ``g' exp(v')`` on conditioned data."""
        action = group.action()
        zero = torch.zeros(group.dim, dtype=prototype.dtype, device=prototype.device)
        basis = torch.func.jacrev(lambda v: action.homogeneous(group.exp(v)))(zero)
        moved = torch.einsum("ij,jkn,kl->iln", self.moving, basis, torch.linalg.inv(self.moving))
        # entries of the matrices may be as far apart as the units of the data
        return torch.linalg.pinv(basis.flatten(0, 1)) @ moved.flatten(0, 1)


@dataclass(eq=False)
class CloudRegistration(RegistrationMethod["_Descent"]):
    """Registration of two clouds, on conditioned data: by closed forms and descents.

    Args:
        matched: whether the points are in the same order; ``None`` to find out.
    """

    matched: bool | None = None

    def __post_init__(self) -> None:
        self.action = PointCloud(self.group)
        moving, fixed = self.moving.double(), self.fixed.double()
        self.units = _conditioning(self.group, moving, fixed)
        self.x, self.y = self.units.conditioned_clouds(moving, fixed)
        may_match = self.x.shape == self.y.shape and self.matched is not False
        self.closed_forms = self._closed_forms(self.group, self.x) if may_match else None
        self.in_order = may_match
        if may_match and self.matched is None:
            residual = math.inf if self.closed_forms is None else self._medians(self.closed_forms).min()
            self.in_order = bool(residual < _MAX_ORDERED_RESIDUAL)

    def searched(self) -> _Descent:
        """Descend from all starts, in each component of the group; the best one comes first."""
        if self.in_order:
            unit = self.group.identity(1, dtype=self.x.dtype, device=self.x.device)
            starts = unit if self.closed_forms is None else self.closed_forms
        else:
            starts = self._starts()
        descend = self._descended_in_order if self.in_order else self._descended
        descents = sorted((descend(part) for part in _by_component(self.group, starts)), key=self._residual_std)
        return descents[0]._replace(elements=torch.cat([descent.elements for descent in descents]))

    def judged(self, found: _Descent) -> Registration:
        group, units, cloud, residuals = self.group, self.units, found.cloud[None], found.residuals
        dtype = self.moving.dtype
        width = max(_LAST_WIDTH_IN_STDS * math.sqrt(cloud.shape[-1]) * self._residual_std(found), 1e-7)
        loss = GemanMcClure(width)
        steps = LevenbergMarquardt(_ORDERED_STEPS if self.in_order else _SEARCHED_STEPS)
        refine = Inverter(self.action, LeastSquares(residuals, loss), [steps], progress=False)
        h = refine(cloud, initial=found.elements[None]).elements[0]
        smooth = partial(_of_shared_points, residuals) if isinstance(residuals, SymmetricNearestPoints) else None
        fit = assess(self.action, lambda std: LeastSquares(residuals, loss, std=std), cloud, h, smooth=smooth)
        adjoint = units.adjoint(group, cloud)
        covariance = (adjoint @ fit.covariance @ adjoint.mT).to(dtype)
        if not fit.found:
            return replace(fit, element=fit.element.to(dtype), covariance=covariance)
        reasons = (*fit.reasons, *_unlike(fit.residual, found.cloud, self.y, self.in_order))
        element = units.restored(group, fit.element)
        is_element = bool(torch.isfinite(element).all())
        if not is_element:  # rounding took a nearly singular element out of the group
            reasons += ("what was found is no element of the group",)
        return replace(
            fit,
            element=element.to(dtype),
            covariance=covariance,
            modes=replace(fit.modes, elements=units.restored(group, fit.modes.elements)),
            residual=fit.residual * units.size,
            found=is_element,
            verdict=Verdict(reasons),
        )

    def _closed_forms(self, group: LieGroup, x: Tensor) -> Tensor | None:
        """Return finite elements from all points, and from subsets of a few points."""
        y = self.y
        if isinstance(group, O | E):  # the best one of each component
            component, flip = group.component, group.reflection(dtype=x.dtype, device=x.device)
            plain = self._closed_forms(component, x)
            mirrored = self._closed_forms(component, group.action()(flip, x))
            if plain is None or mirrored is None:
                return None
            return torch.cat([plain, group.compose(mirrored, flip)])
        every = fit_points(group, x, y)
        if every is None:
            return None
        few = min(len(x), num_points_needed(group, x.shape[-1]) + 1)
        order = uniform((_NUM_SUBSETS, len(x)), x, self.generator).argsort(-1)[:, :few]
        parts = fit_points(group, x[order], y[order])
        assert parts is not None
        found = torch.cat([every.unsqueeze(0), parts])
        finite = torch.isfinite(found).flatten(1).all(-1)
        return found[finite] if bool(finite.any()) else None

    def _medians(self, g: Tensor) -> Float[Tensor, " k"]:
        """Return median distances of moved points from the fixed ones in the same order."""
        distances = (self.group.action()(g, self.x) - self.y).norm(dim=-1)
        return distances.nan_to_num(torch.inf).median(-1).values

    def _residual_std(self, found: _Descent) -> float:
        """Return the standard deviation of the residuals of the first element."""
        restored = self.action(self.group.inverse(found.elements[:1]), found.cloud[None])
        return robust_std(found.residuals(restored)[0])

    def _starts(self) -> Tensor:
        """Return given transformations, the identity on the data and on conditioned data, and else rotations.

        Rotations are about the centres of the clouds, if the group has them; reflections follow each, if it has these.
        """
        group, x, number = self.group, self.x, self.num_starts
        identity = group.identity(1, dtype=x.dtype, device=x.device)
        if isinstance(group, O | E):
            identity = torch.cat([identity, group.reflection(1, dtype=x.dtype, device=x.device)])
        starts = [identity, self.units.conditioned(group, identity)]
        if self.transformations is not None:
            drawn = sample_elements(group, self.transformations, number - 1, self.generator).to(x)
            starts = [self.units.conditioned(group, drawn), *starts]
        elif isinstance(group, MatrixGroup | InhomogeneousGroup) and number > 1 and x.shape[-1] > 1:
            n = x.shape[-1]
            turns = torch.eye(n + 1, dtype=x.dtype).repeat(number, 1, 1)
            rotations = O(n) if isinstance(group, O | E) else SO(n)
            turns[:, :-1, :-1] = rotations.random_haar(number, generator=self.generator, dtype=x.dtype)
            starts.append(group.action().from_homogeneous(turns.to(x.device)))
        found = torch.cat(starts)
        return found[torch.isfinite(found).flatten(1).all(-1)]

    def _descended_in_order(self, starts: Tensor) -> _Descent:
        """Return descents from the elements of lowest median distance."""
        medians = self._medians(starts)
        starts = starts[medians.argsort()[: _NUM_KEPT[-1]]]
        width = max(_LAST_WIDTH_IN_STDS * math.sqrt(self.x.shape[-1]) * 1.5 * float(medians.min()), 1e-6)
        residuals = PairedPoints(self.y)
        stages: list[Stage] = [LevenbergMarquardt(_ORDERED_STEPS), Select(1)]
        search = Inverter(self.action, LeastSquares(residuals, GemanMcClure(width)), stages, progress=False)
        h = search(self.x[None], initial=self.group.inverse(starts)[None]).elements[0]
        return _Descent(h, residuals, self.x)

    def _descended(self, starts: Tensor) -> _Descent:
        """Return descents under losses that become narrower, of fewer and fewer hypotheses on more and more points."""
        few = [_some(p, _NUM_SEARCH_POINTS, self.generator) for p in (self.x, self.y)]
        many = [_some(p, _NUM_FINAL_POINTS, self.generator) for p in (self.x, self.y)]
        h = self.group.inverse(starts)
        for place, (width, steps, number) in enumerate(zip(_SEARCH_WIDTHS, _NUM_STEPS, _NUM_KEPT, strict=True)):
            cloud, reference = many if place == len(_SEARCH_WIDTHS) - 1 else few
            energy = LeastSquares(SymmetricNearestPoints(reference), GemanMcClure(width))
            together = max(1, _MAX_DISTANCES_IN_MEMORY // (len(cloud) * len(reference)))
            stages: list[Stage] = [LevenbergMarquardt(steps)]
            if place:
                energies = InverseProblem(self.action, energy).given(few[0][None], max_evaluations=together)
                h = _places(energies, h, width, number)
            else:
                stages = [Select(min(number, len(h))), *stages]
            search = Inverter(self.action, energy, stages, max_evaluations=together, progress=False)
            h = search(cloud[None], initial=h[None]).elements[0]
        return _Descent(h, SymmetricNearestPoints(many[1]), many[0])


class _Descent(NamedTuple):
    """Ends of descents.

    Attributes:
        elements: elements of the inverter, the best one first, ``[k, *element_shape]``.
        residuals: residuals to the fixed cloud.
        cloud: the moving cloud, or points of it, ``[m, n]``.
    """

    elements: Tensor
    residuals: PairedPoints | SymmetricNearestPoints
    cloud: Tensor


def _conditioning(group: LieGroup, moving: Tensor, fixed: Tensor) -> _Conditioning:
    """Return centres if the group has translations, a size if it has a linear part, two sizes if it has scalings."""
    n = moving.shape[-1]
    centred = isinstance(group, InhomogeneousGroup | Projective | Translation)
    scaled = centred or isinstance(group, MatrixGroup)
    parts = []
    for cloud in (moving, fixed):
        centre = cloud.mean(0) if centred else torch.zeros_like(cloud[0])
        size = (cloud - centre).square().sum(-1).mean().sqrt() if scaled else cloud.new_ones(())
        parts.append((centre, torch.where(size > 0, size, 1.0)))
    size = parts[1][1]
    matrices = []
    for centre, own in parts:
        matrix = torch.eye(n + 1, dtype=moving.dtype, device=moving.device)
        one = own if isinstance(group, Affine | GLPlus | Projective | Similarity | ScaledRotations) else size
        matrix[:-1, :-1] *= one
        matrix[:-1, -1] = centre
        matrices.append(matrix)
    return _Conditioning(matrices[0], matrices[1], float(size))


def _unit(matrix: Tensor) -> Tensor:
    last = matrix[..., -1:, -1:]
    return matrix / torch.where(last == 0, 1.0, last)


def _by_component(group: LieGroup, g: Tensor) -> list[Tensor]:
    """Return elements ``[k, ...]`` by the component of the group, which a descent does not leave."""
    if not isinstance(group, O | E):
        return [g]
    proper = group.is_proper(g)
    return [part for part in (g[proper], g[~proper]) if len(part)]


def _places(posterior: Posterior, h: Tensor, width: float, number: int) -> Tensor:
    """Return the hypotheses of lowest energy, one of each place to which they move the points back.

    There are ``number`` of them, or more of a symmetric object, where several places have almost the lowest energy. The
    elements between these are about symmetries of the object, and take the others to further places.
    """
    group, cloud = posterior.group, posterior.x[0]

    def distinct(h: Tensor) -> tuple[Tensor, int]:
        energies = posterior.energies(h[None])[0]
        order = energies.argsort()
        h, energies = h[order], energies[order]
        moved = posterior.action(group.inverse(h), cloud).flatten(1).nan_to_num(torch.inf)
        near = torch.cdist(moved, moved) < _SAME_PLACE_IN_WIDTHS * width * math.sqrt(len(cloud))
        first = ~near.tril(-1).any(-1)  # no lower hypothesis is near
        h, energies = h[first], energies[first]
        return h, int((energies <= _MAX_ENERGY_RATIO * energies[0]).sum())

    h, similar = distinct(h)
    if similar > 1:
        poses = h[: min(similar, _MAX_POSES)]
        symmetries = group.compose(group.inverse(h[:1]), poses)
        h, similar = distinct(torch.cat([h, group.compose(poses.unsqueeze(1), symmetries).flatten(0, 1)]))
    return h[: max(number, min(similar, _MAX_POSES))]


def _of_shared_points(
    residuals: SymmetricNearestPoints, psi: Float[Tensor, "q n"], clouds: Float[Tensor, "1 m n"]
) -> Float[Tensor, "q n"]:
    """Return sums over residuals between the same points, see `SymmetricNearestPoints`: these are correlated by noise.

    Most pairs are counted twice, from each end. Two-way clusters as in Cameron, Gelbach and Miller (2011): the sums
    over residuals of one point of x, and of one of y, without those of both.
    """
    x, y = clouds[0], residuals.forth.reference
    assert y is not None
    first = torch.cat([torch.arange(len(x), device=x.device), nearest_indices(y, x)])
    second = torch.cat([residuals.forth.nearest(x), torch.arange(len(y), device=y.device)])
    keys = (first, second, first * len(y) + second)
    sums = []
    for key in keys:
        _, cluster = key.unique(return_inverse=True)
        sums.append(psi.new_zeros(len(psi), psi.shape[-1]).index_add(0, cluster, psi)[cluster])
    return sums[0] + sums[1] - sums[2]


def _unlike(residual: float, x: Tensor, y: Tensor, in_order: bool) -> tuple[str, ...]:
    """Return why clouds that were laid on each other are not of one shape; empty where they may be."""
    if in_order:
        said = f"points are {residual:.2g} of the size of the clouds from those that match: too much for one shape"
        return () if residual <= _MAX_MATCHED_RESIDUAL else (said,)
    spacing = max(_spacing(cloud) for cloud in (x, y))
    if residual <= max(_MAX_RESIDUAL, _MAX_SPACINGS * spacing):
        return ()
    return (
        f"points are {residual:.2g} of the size of the clouds from the others, which are {spacing:.2g} apart: too much "
        "for clouds of one shape",
    )


def _spacing(cloud: Tensor) -> float:
    """Return the median distance of a point from its nearest neighbour."""
    some = cloud[:_NUM_FINAL_POINTS]
    if len(some) < 2:
        return 0.0
    return float(torch.cdist(some, some).fill_diagonal_(torch.inf).amin(-1).median())


def _some(points: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Return at most ``number`` of the points."""
    if len(points) <= number:
        return points
    return points[permutation((len(points),), points, generator)[:number]]
