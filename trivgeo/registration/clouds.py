"""Registration of clouds of points, in the same order or in none."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from scipy.special import chdtri
from torch import Tensor

from trivgeo._random import permutation, uniform
from trivgeo.actions import PointCloud
from trivgeo.groups import SO, Affine, E, GLPlus, LieGroup, MatrixGroup, O, Projective, Similarity, Translation
from trivgeo.groups.inhomogeneous import InhomogeneousGroup
from trivgeo.groups.similarity import ScaledRotations
from trivgeo.inversion.energies.least_squares import GemanMcClure, LeastSquares
from trivgeo.inversion.energies.point_residuals import PairedPoints, SymmetricNearestPoints
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.point_alignment import fit_points, num_points_needed
from trivgeo.inversion.posterior import InverseProblem, Posterior
from trivgeo.inversion.result import PosteriorModes
from trivgeo.inversion.stage import Stage
from trivgeo.inversion.stages.chains import Select
from trivgeo.inversion.stages.levenberg_marquardt import LevenbergMarquardt
from trivgeo.inversion.transformations import sample_elements
from trivgeo.registration.overlay import Overlay
from trivgeo.registration.record import (
    Registration,
    RegistrationMethod,
    doubts,
    modes_at,
    nothing,
    rivals,
    robust_std,
    rounding_std,
)
from trivgeo.verdict import Verdict

_NUM_SUBSETS = 128  # closed forms of a few points each, for clouds in the same order with outliers
_NUM_SEARCH_POINTS = 300  # points of each cloud in the search for wells
_NUM_FINAL_POINTS = 2000  # points of each cloud at the end
_SEARCH_WIDTHS = (0.7, 0.35, 0.18, 0.1)  # widths of the robust losses, in root mean square distances from the centre
_NUM_KEPT = (64, 24, 8, 4)  # hypotheses that go on with each width, of one place each
_MAX_SIMILAR = 24  # hypotheses that go on where a symmetric object has several poses
_MAX_POSES = 120  # poses that are given; the symmetries of an icosahedron, reflections included
_ISOTROPIC_STDS = 3.0  # log ratio of spreads across and along a surface that is none, in standard errors
_MIN_TANGENT = 0.05  # least share of residuals along a surface that counts
_MAX_ROUNDS = 8  # rounds of products of symmetries
_NUM_GENERATORS = 6  # symmetries whose products lead to further poses
_ALIKE_IN_STDS = 4.0  # difference of the sums of losses, in standard errors, up to which poses fit alike
_MIN_WEIGHT = 0.01  # weight of a pose that is given, in units of that of the best
_SAME_PLACE = 0.03  # root mean square distance between points moved by elements of one pose, in units of the size
_MAX_ENERGY_RATIO = 1.3  # energy of such a hypothesis over the lowest one
_SAME_PLACE_IN_WIDTHS = 0.3  # root mean square distance between points moved by two hypotheses of one place, in widths
_NUM_STEPS = (6, 6, 10, 15)  # steps with each width
_LAST_WIDTH_IN_STDS = 4.0  # width of the last loss, in standard deviations of the residuals
_ORDERED_STEPS, _SEARCHED_STEPS = 8, 20  # last steps of clouds in the same order, and in none
_MAX_ORDERED_RESIDUAL = 0.1  # median residual, in units of the size, up to which the given order is taken for the same
# residual of clouds in no order, in units of the size, and of the distance between neighbours: above both, the clouds
# are as far apart as unrelated ones are
_MAX_RESIDUAL, _MAX_SPACINGS = 0.1, 1.5
_MAX_MATCHED_RESIDUAL = 0.9  # residual of clouds in the same order, in units of the size; of unrelated ones 1 to 1.41
# of clouds in the same order the first
_ASSUMPTIONS = ("errors of points are independent", "the best pose is near one at which the search began")
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
        group, units, dtype = self.group, self.units, self.moving.dtype
        for steps in (_ORDERED_STEPS,) if self.in_order else (_SEARCHED_STEPS // 2, _SEARCHED_STEPS // 2):
            if isinstance(found.residuals, SymmetricNearestPoints):
                found = found._replace(residuals=SymmetricNearestPoints(found.reference, self._tangent(found)))
            width = max(_LAST_WIDTH_IN_STDS * math.sqrt(found.cloud.shape[-1]) * self._residual_std(found), 1e-7)
            loss = GemanMcClure(width)
            energy = LeastSquares(found.residuals, loss)
            refine = Inverter(self.action, energy, [LevenbergMarquardt(steps)], progress=False)
            h, losses = self._sorted(found, self._descend(refine, found.cloud, found.elements), loss)
            found = found._replace(elements=h)
        if not bool(torch.isfinite(losses[0]).all()):
            return nothing(self.action, found.elements)
        overlay = Overlay(self.action, self._moved(found.cloud, h[:1])[0], found.residuals, loss)
        errors = overlay.errors(rounding_std(torch.float64))
        adjoint = units.adjoint(group, found.cloud) @ group.Ad(h[0])
        free = errors.free @ adjoint.mT
        reasons = (*doubts(errors.covariance, errors.decrement, errors.agreement, free), *errors.reasons)
        if errors.is_determined:
            modes, complete = self._poses(
                found, h, loss, refine, max(_SAME_PLACE, overlay.displacement(errors)), closed=not errors.reasons
            )
            reasons += rivals(modes)
            if not complete:
                reasons += (f"more than {_MAX_POSES} poses fit about as well, of which {_MAX_POSES} are given",)
        else:
            modes = modes_at(group.inverse(h[:1]), h.new_ones(1))
        if not self.in_order or errors.is_determined:
            reasons += _unlike(errors.rms, found.cloud, self.y, self.in_order)
        covariance = adjoint @ errors.covariance @ adjoint.mT
        element = units.restored(group, group.inverse(h[0]))
        is_element = bool(torch.isfinite(element).all())
        if not is_element:  # rounding took a nearly singular element out of the group
            reasons += ("what was found is no element of the group",)
        elif not bool(torch.isfinite(torch.cat([element.flatten(), covariance.flatten()]).to(dtype)).all()):
            reasons += (f"the element or its covariance is beyond the largest number of {dtype}",)
        modes = replace(modes, elements=units.restored(group, modes.elements))
        rms, verdict = errors.rms * units.size, Verdict(reasons, _ASSUMPTIONS[: 1 if self.in_order else 2])
        return Registration(self.action, element.to(dtype), covariance.to(dtype), modes, rms, is_element, verdict)

    def _descend(self, search: Inverter, cloud: Tensor, h: Tensor) -> Tensor:
        """Return the ends of descents of elements ``[k, ...]``."""
        found: Tensor = search(cloud[None], initial=h[None]).elements[0]
        return found

    def _moved(self, cloud: Tensor, h: Tensor) -> Float[Tensor, "k m n"]:
        """Return the cloud as the inverses of elements move it."""
        return self.action(self.group.inverse(h), cloud.expand(len(h), -1, -1))

    def _losses(self, found: _Descent, h: Tensor, loss: GemanMcClure) -> Float[Tensor, "k q"]:
        """Return the losses of the residuals of elements; what is rounding makes no difference."""
        losses = loss(found.residuals(self._moved(found.cloud, h)).square().sum(-1))
        return losses.clamp(min=rounding_std(torch.float64) ** 2)

    def _sorted(self, found: _Descent, h: Tensor, loss: GemanMcClure) -> tuple[Tensor, Float[Tensor, "k q"]]:
        """Return elements and the losses of their residuals, the lowest sum first."""
        losses = self._losses(found, h, loss)
        order = losses.sum(-1).nan_to_num(torch.inf).argsort()
        return h[order], losses[order]

    def _poses(
        self, found: _Descent, h: Tensor, loss: GemanMcClure, refine: Inverter, radius: float, *, closed: bool
    ) -> tuple[PosteriorModes, bool]:
        """Return the elements that fit about as well as the first of h, and whether these are all.

        Products of the symmetries among them lead to further ones. What the sums of losses differ by is compared with
        what differences of single losses let expect: poses that do not differ by it weigh alike.
        """
        group, some = self.group, found.cloud[:_NUM_SEARCH_POINTS]
        scale = radius * math.sqrt(len(some))
        if isinstance(group, O | E):  # points beside a flat cloud tell its reflection from the identity
            some = torch.cat([some, math.sqrt(len(some)) * torch.eye(some.shape[-1]).to(some)])

        def places(h: Tensor) -> Tensor:
            return self._moved(some, h).flatten(1).nan_to_num(torch.inf)

        number = 1
        for _ in range(_MAX_ROUNDS):
            h, losses = self._sorted(found, h, loss)
            weights, at = self._weights(losses), places(h)
            first = ~(torch.cdist(at, at) < scale).tril(-1).any(-1) & (weights > _MIN_WEIGHT)
            h, weights, at = h[first], weights[first], at[first]
            if not number < len(h) <= _MAX_POSES or self.in_order or not closed:
                break
            number = len(h)
            turns = group.compose(group.inverse(h[:1]), h[1 : 1 + _NUM_GENERATORS])
            products = group.compose(h.unsqueeze(1), turns).flatten(0, 1)
            ends = places(products)
            new = (torch.cdist(ends, at) >= scale).all(-1) & ~(torch.cdist(ends, ends) < scale).tril(-1).any(-1)
            likely = self._losses(found, torch.cat([h[:1], products[new]]), loss)
            new = products[new][self._weights(likely, 2.0 * _ALIKE_IN_STDS)[1:] > _MIN_WEIGHT]
            if len(new):
                h = torch.cat([h, self._descend(refine, found.cloud, new)])
        complete = len(h) <= _MAX_POSES
        h, weights = h[:_MAX_POSES], weights[:_MAX_POSES]
        order = weights.argsort(descending=True, stable=True)
        return modes_at(group.inverse(h[order]), weights[order]), complete

    def _weights(self, losses: Float[Tensor, "k q"], alike: float = _ALIKE_IN_STDS) -> Float[Tensor, " k"]:
        """Return weights of elements by their losses, in units of that of the first."""
        m = losses.shape[1] if self.in_order else len(self.x)
        excess = losses - losses[:1]
        # residuals back and forth are of the same points
        std = sum(
            part.std(-1, correction=0) * math.sqrt(part.shape[-1])
            for part in (excess[:, :m], excess[:, m:])
            if part.shape[-1]
        )
        score = (excess.sum(-1) / std).nan_to_num(0.0, posinf=torch.inf)
        return (-0.5 * (score.square() - alike**2).clamp(min=0.0)).exp()

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
        """Return distances of moved points from the fixed ones in the same order that half of the points have, beyond
        those that determine an element."""
        distances = (self.group.action()(g, self.x) - self.y).norm(dim=-1)
        return distances.nan_to_num(torch.inf).kthvalue(self._middle, -1).values

    @property
    def _middle(self) -> int:
        """Number of points in the same order that are to lie near each other (Rousseeuw 1984)."""
        m, n = self.x.shape
        return min(m, (m + num_points_needed(self.group, n) + 1) // 2)

    def _residual_std(self, found: _Descent) -> float:
        """Return the standard deviation of the residuals of the first element."""
        residuals = found.residuals(self._moved(found.cloud, found.elements[:1]))[0]
        if not self.in_order:
            return robust_std(residuals)
        m, n = residuals.shape
        # so few points were brought near each other by the fit; the factor is that of Rousseeuw and Leroy (1987)
        few = 1.0 + 5.0 / max(m - num_points_needed(self.group, n), 1)
        normal = math.sqrt(chdtri(n, 1.0 - self._middle / (m + 1)))
        return few * float(residuals.norm(dim=-1).nan_to_num(torch.inf).kthvalue(self._middle).values) / normal

    def _tangent(self, found: _Descent) -> float:
        """Return by how much the parts of residuals along the surface are to count less than those across it.

        The inverse ratio of their standard deviations: along the surface two samples of it lie apart by the distance of
        neighbours. Points of a volume, and the same points seen twice, give one.
        """
        moved = self._moved(found.cloud, found.elements[:1])
        across, whole = (SymmetricNearestPoints(found.reference, tangent)(moved)[0] for tangent in (0.0, 1.0))
        n = across.shape[-1]
        if n == 1:
            return 1.0
        normal, along = (
            float(part.norm(dim=-1).median()) / math.sqrt(chdtri(number, 0.5))
            for part, number in ((across, 1), (whole - across, n - 1))
        )
        share = normal / along if along > 0.0 else 1.0
        # the standard error of the logarithm of a ratio of two medians of normal sizes is about 1.4 over sqrt(m)
        noise = _ISOTROPIC_STDS * 1.4 / math.sqrt(min(len(found.cloud), len(found.reference)))
        return 1.0 if share > math.exp(-noise) else max(share, _MIN_TANGENT)

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
        m, n = self.x.shape
        few = 1.0 + 5.0 / max(m - num_points_needed(self.group, n), 1)
        width = max(_LAST_WIDTH_IN_STDS * math.sqrt(n) * few * float(medians.min()), 1e-6)
        residuals = PairedPoints(self.y)
        stages: list[Stage] = [LevenbergMarquardt(_ORDERED_STEPS), Select(1)]
        search = Inverter(self.action, LeastSquares(residuals, GemanMcClure(width)), stages, progress=False)
        h = search(self.x[None], initial=self.group.inverse(starts)[None]).elements[0]
        return _Descent(h, residuals, self.x, self.y)

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
        return _Descent(h, SymmetricNearestPoints(many[1]), *many)


class _Descent(NamedTuple):
    """Ends of descents.

    Attributes:
        elements: elements of the inverter, the best one first, ``[k, *element_shape]``.
        residuals: residuals to the fixed cloud.
        cloud: the moving cloud, or points of it, ``[m, n]``.
        reference: the fixed cloud, or points of it, ``[k, n]``.
    """

    elements: Tensor
    residuals: PairedPoints | SymmetricNearestPoints
    cloud: Tensor
    reference: Tensor


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
        poses = h[: min(similar, _MAX_SIMILAR)]
        symmetries = group.compose(group.inverse(h[:1]), poses)
        h, similar = distinct(torch.cat([h, group.compose(poses.unsqueeze(1), symmetries).flatten(0, 1)]))
    return h[: max(number, min(similar, _MAX_SIMILAR))]


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
