"""Registration of clouds of points, in the same order or in none."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

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
from trivgeo.inversion.stage import Stage
from trivgeo.inversion.stages.chains import Select
from trivgeo.inversion.stages.levenberg_marquardt import LevenbergMarquardt
from trivgeo.inversion.transformations import Transformations, sample_elements
from trivgeo.registration.record import Registration, fit_of, robust_std

__all__ = ["register_clouds"]

_NUM_SUBSETS = 128
"""Closed forms of a few points each, for clouds in the same order with outliers."""
_SEARCH_POINTS = 300
"""Points of each cloud in the search for wells."""
_FINAL_POINTS = 2000
"""Points of each cloud at the end."""
_WIDTHS = (0.7, 0.35, 0.18, 0.1)
"""Of the robust losses, in units of the root of the mean square distance from the centre."""
_KEPT = (64, 24, 8, 4)
"""Hypotheses that go on with each width, of one place each."""
_MOST_POSES, _SIMILAR = 24, 1.3
"""Hypotheses that go on at most where a symmetric object has several poses, and their energies over the lowest one."""
_SAME_PLACE = 0.3
"""Root of the mean square distance between points moved by two hypotheses of one place, in widths."""
_STEPS = (6, 6, 10, 15)
_WIDTH = 4.0
"""Of the last loss, in standard deviations of the residuals."""
_SAME_ORDER = 0.1
"""Median residual in the given order, in units of the size, below which clouds are taken to be in the same order."""
_MAX_RESIDUAL, _MAX_SPACINGS = 0.1, 0.5
"""Residual of clouds in no order, in units of the size, and of the distance between neighbours: above both, the clouds
are as far apart as unrelated ones are."""
_MAX_MATCHED_RESIDUAL = 0.9
"""Residual of clouds in the same order, in units of the size; of unrelated ones it is between 1 and the root of 2."""
_MAX_PAIRS = 2**22
"""Distances between points at once."""


@dataclass(frozen=True)
class _Conditioning:
    """Centres and sizes of two clouds; matrices on (x, 1) between the data and conditioned data."""

    moving: Tensor
    fixed: Tensor
    size: float

    def conditioned(self, group: LieGroup, g: Tensor) -> Tensor:
        """The element on conditioned data of one on the data."""
        action = group.action()
        return action.from_homogeneous(_unit(torch.linalg.inv(self.fixed) @ action.homogeneous(g) @ self.moving))

    def restored(self, group: LieGroup, g: Tensor) -> Tensor:
        """The element on the data of one on conditioned data."""
        action = group.action()
        return action.from_homogeneous(_unit(self.fixed @ action.homogeneous(g) @ torch.linalg.inv(self.moving)))

    def adjoint(self, group: LieGroup, prototype: Tensor) -> Float[Tensor, "n n"]:
        """The matrix of v' to v with ``g exp(v)`` on the data where it is ``g' exp(v')`` on conditioned ones."""
        action = group.action()
        zero = torch.zeros(group.dim, dtype=prototype.dtype, device=prototype.device)
        basis = torch.func.jacrev(lambda v: action.homogeneous(group.exp(v)))(zero)
        moved = torch.einsum("ij,jkn,kl->iln", self.moving, basis, torch.linalg.inv(self.moving))
        # entries of the matrices may be as far apart as the units of the data
        return torch.linalg.pinv(basis.flatten(0, 1)) @ moved.flatten(0, 1)


def register_clouds(
    moving: Float[Tensor, "m n"],
    fixed: Float[Tensor, "k n"],
    group: LieGroup,
    matched: bool | None,
    transformations: Transformations | None,
    num_starts: int,
    generator: torch.Generator,
) -> Registration:
    """Return the registration of two clouds whose shapes were checked.

    Args:
        moving: cloud ``[m, n]`` that is moved.
        fixed: cloud ``[k, n]`` to which it is moved.
        group: the group of the transformation.
        matched: whether the points are in the same order; ``None`` to find out.
        transformations: function (count, generator) to elements from which searches start, see `register`.
        num_starts: number of searches.
        generator: random numbers.
    """
    dtype = moving.dtype
    moving, fixed = moving.detach().double(), fixed.detach().double()
    units = _conditioning(group, moving, fixed)
    x, y = ((p - _centre(m)) / m[0, 0] for p, m in ((moving, units.moving), (fixed, units.fixed)))
    in_order = x.shape == y.shape and matched is not False
    closed = _closed_forms(group, x, y, generator) if in_order else None
    if in_order and matched is None:
        in_order = closed is not None and _residual(group, closed, x, y) < _SAME_ORDER
    residuals: PairedPoints | SymmetricNearestPoints
    descents: list[tuple[Tensor, PairedPoints | SymmetricNearestPoints, Tensor]]
    if in_order:
        start = group.identity(1, dtype=x.dtype, device=x.device) if closed is None else closed
        descents = [(*_descend_in_order(group, x, y, part), x) for part in _by_component(group, start)]
    else:
        first = (
            []
            if transformations is None
            else [units.conditioned(group, sample_elements(group, transformations, num_starts - 1, generator).to(x))]
        )
        starts = torch.cat([*first, _starts(group, x, y, units, 1 if transformations else num_starts, generator)])
        descents = [_descend_nearest(group, x, y, part, generator) for part in _by_component(group, starts)]
    action = PointCloud(group)
    stds = [robust_std(r(action(group.inverse(h[:1]), p[None]))[0]) for h, r, p in descents]
    std, best = min((std, place) for place, std in enumerate(stds))
    _, residuals, x = descents[best]
    h = torch.cat([descents[best][0], *(h for place, (h, _, _) in enumerate(descents) if place != best)])
    loss = GemanMcClure(max(_WIDTH * math.sqrt(x.shape[-1]) * std, 1e-7))
    polish = Inverter(
        action, LeastSquares(residuals, loss), [LevenbergMarquardt(8 if in_order else 20)], progress=False
    )
    h = polish(x[None], initial=h[None]).elements[0]
    smooth = partial(_of_shared_points, residuals) if isinstance(residuals, SymmetricNearestPoints) else None
    fit = fit_of(action, lambda s: LeastSquares(residuals, loss, std=s), x[None], h, smooth=smooth)
    if fit.found:
        fit = replace(fit, reasons=(*fit.reasons, *_unlike(fit.residual, x, y, in_order)))
    adjoint = units.adjoint(group, x)
    element, modes = fit.element, fit.modes
    if fit.found:
        element = units.restored(group, element)
        modes = replace(modes, elements=units.restored(group, modes.elements))
        if not bool(torch.isfinite(element).all()):  # rounding took a nearly singular one out of the group
            fit = replace(fit, found=False, reasons=(*fit.reasons, "what was found is no element of the group"))
    return replace(
        fit,
        element=element.to(dtype),
        covariance=(adjoint @ fit.covariance @ adjoint.mT).to(dtype),
        modes=modes,
        residual=fit.residual * units.size,
    )


def _of_shared_points(
    residuals: SymmetricNearestPoints, psi: Float[Tensor, "q n"], clouds: Float[Tensor, "1 m n"]
) -> Float[Tensor, "q n"]:
    """Sums over residuals between the same points, see `SymmetricNearestPoints`: of noisy points these are correlated.

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


def _centre(matrix: Tensor) -> Tensor:
    return matrix[:-1, -1]


def _unit(matrix: Tensor) -> Tensor:
    last = matrix[..., -1:, -1:]
    return matrix / torch.where(last == 0, 1.0, last)


def _conditioning(group: LieGroup, moving: Tensor, fixed: Tensor) -> _Conditioning:
    """Centres where the group has translations, a size where it has a linear part, two sizes where it has scalings."""
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


def _closed_forms(group: LieGroup, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor | None:
    """Elements from all points, and from a few of them each; those that are numbers."""
    if isinstance(group, O | E):  # the best one of each component
        component, flip = group.component, group.reflection(dtype=x.dtype, device=x.device)
        plain = _closed_forms(component, x, y, generator)
        mirrored = _closed_forms(component, group.action()(flip, x), y, generator)
        if plain is None or mirrored is None:
            return None
        return torch.cat([plain, group.compose(mirrored, flip)])
    every = fit_points(group, x, y)
    if every is None:
        return None
    few = min(len(x), num_points_needed(group, x.shape[-1]) + 1)
    order = uniform((_NUM_SUBSETS, len(x)), x, generator).argsort(-1)[:, :few]
    parts = fit_points(group, x[order], y[order])
    assert parts is not None
    found = torch.cat([every.unsqueeze(0), parts])
    finite = torch.isfinite(found).flatten(1).all(-1)
    return found[finite] if bool(finite.any()) else None


def _distances(group: LieGroup, g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return (group.action()(g, x) - y).norm(dim=-1).nan_to_num(torch.inf)


def _residual(group: LieGroup, g: Tensor, x: Tensor, y: Tensor) -> float:
    """The lowest median distance."""
    return float(_distances(group, g, x, y).median(-1).values.min())


def _by_component(group: LieGroup, g: Tensor) -> list[Tensor]:
    """Elements ``[k, ...]`` by the component of the group, which a descent does not leave."""
    if not isinstance(group, O | E):
        return [g]
    proper = group.is_proper(g)
    return [part for part in (g[proper], g[~proper]) if len(part)]


def _descend_in_order(group: LieGroup, x: Tensor, y: Tensor, start: Tensor) -> tuple[Tensor, PairedPoints]:
    """Descents from the elements of lowest median distance."""
    medians = _distances(group, start, x, y).median(-1).values
    start = start[medians.argsort()[: _KEPT[-1]]]
    residuals = PairedPoints(y)
    width = max(_WIDTH * math.sqrt(x.shape[-1]) * 1.5 * float(medians.min()), 1e-6)
    energy = LeastSquares(residuals, GemanMcClure(width))
    search = Inverter(PointCloud(group), energy, [LevenbergMarquardt(8), Select(1)], progress=False)
    return search(x[None], initial=group.inverse(start)[None]).elements[0], residuals


def _starts(
    group: LieGroup, x: Tensor, y: Tensor, units: _Conditioning, number: int, generator: torch.Generator
) -> Tensor:
    """The identity on the data, that on conditioned data, and rotations about their centres if the group has them.

    With each a reflection, where the group has these.
    """
    n = x.shape[-1]
    identity = group.identity(1, dtype=x.dtype, device=x.device)
    if isinstance(group, O | E):
        identity = torch.cat([identity, group.reflection(1, dtype=x.dtype, device=x.device)])
    starts = [identity, units.conditioned(group, identity)]
    if isinstance(group, MatrixGroup | InhomogeneousGroup) and number > 1 and n > 1:
        turns = torch.eye(n + 1, dtype=x.dtype).repeat(number, 1, 1)
        turns[:, :-1, :-1] = (O(n) if isinstance(group, O | E) else SO(n)).random_haar(
            number, generator=generator, dtype=x.dtype
        )
        starts.append(group.action().from_homogeneous(turns.to(x.device)))
    found = torch.cat(starts)
    return found[torch.isfinite(found).flatten(1).all(-1)]


def _descend_nearest(
    group: LieGroup, x: Tensor, y: Tensor, starts: Tensor, generator: torch.Generator
) -> tuple[Tensor, SymmetricNearestPoints, Tensor]:
    """Descents under losses that become narrower, of fewer and fewer hypotheses on more and more points."""
    few = [_some(p, _SEARCH_POINTS, generator) for p in (x, y)]
    many = [_some(p, _FINAL_POINTS, generator) for p in (x, y)]
    h, action = group.inverse(starts), PointCloud(group)
    for place, (width, steps, number) in enumerate(zip(_WIDTHS, _STEPS, _KEPT, strict=True)):
        cloud, reference = many if place == len(_WIDTHS) - 1 else few
        energy = LeastSquares(SymmetricNearestPoints(reference), GemanMcClure(width))
        together = max(1, _MAX_PAIRS // (len(cloud) * len(reference)))
        stages: list[Stage] = [LevenbergMarquardt(steps)]
        if place:
            h = _places(action, few[0], energy, h, width, number, together)
        else:
            stages = [Select(min(number, len(h))), *stages]
        search = Inverter(action, energy, stages, max_evaluations=together, progress=False)
        h = search(cloud[None], initial=h[None]).elements[0]
    return h, SymmetricNearestPoints(many[1]), many[0]


def _places(
    action: PointCloud, cloud: Tensor, energy: LeastSquares, h: Tensor, width: float, number: int, together: int
) -> Tensor:
    """The hypotheses of lowest energy, one of each place to which they move the points back.

    So many, or more of an object that is symmetric: several places have almost the lowest energy. What takes one of
    these to another is about a symmetry of the object, and takes the others to further places.
    """
    group = action.group
    search = Inverter(action, energy, [], max_evaluations=together, progress=False)

    def distinct(h: Tensor) -> tuple[Tensor, int]:
        energies = search(cloud[None], initial=h[None]).energies[0].nan_to_num(torch.inf)
        order = energies.argsort()
        h, energies = h[order], energies[order]
        moved = action(group.inverse(h), cloud).flatten(1).nan_to_num(torch.inf)
        near = torch.cdist(moved, moved) < _SAME_PLACE * width * math.sqrt(len(cloud))
        first = ~near.tril(-1).any(-1)  # none that is lower is near
        h, energies = h[first], energies[first]
        return h, int((energies <= _SIMILAR * energies[0]).sum())

    h, similar = distinct(h)
    if similar > 1:
        poses = h[: min(similar, _MOST_POSES)]
        symmetries = group.compose(group.inverse(h[:1]), poses)
        h, similar = distinct(torch.cat([h, group.compose(poses.unsqueeze(1), symmetries).flatten(0, 1)]))
    return h[: max(number, min(similar, _MOST_POSES))]


def _unlike(residual: float, x: Tensor, y: Tensor, in_order: bool) -> tuple[str, ...]:
    """Why clouds that were laid on each other are not of one shape; empty where they may be."""
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
    """The median distance of a point from its nearest neighbour."""
    some = cloud[:_FINAL_POINTS]
    if len(some) < 2:
        return 0.0
    return float(torch.cdist(some, some).fill_diagonal_(torch.inf).amin(-1).median())


def _some(points: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """At most so many of the points."""
    if len(points) <= number:
        return points
    return points[permutation((len(points),), points, generator)[:number]]
