"""Registration of clouds of points, in the same order or in none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from scipy.spatial import KDTree
from scipy.special import chdtri
from torch import Tensor

from trivgeo._random import uniform
from trivgeo.actions import PointCloud
from trivgeo.groups import SO, Affine, E, GLPlus, LieGroup, MatrixGroup, O, Projective, Similarity, Translation
from trivgeo.groups.inhomogeneous import InhomogeneousGroup
from trivgeo.groups.similarity import ScaledRotations
from trivgeo.inversion.energies.least_squares import GemanMcClure, LeastSquares
from trivgeo.inversion.energies.point_residuals import PairedPoints
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.point_alignment import fit_points, num_points_needed
from trivgeo.inversion.result import PosteriorModes
from trivgeo.inversion.stage import Stage
from trivgeo.inversion.stages.chains import Select
from trivgeo.inversion.stages.levenberg_marquardt import LevenbergMarquardt
from trivgeo.inversion.transformations import sample_elements
from trivgeo.registration.cloud_search import Cloud, Poses, connected, searched_poses
from trivgeo.registration.overlay import Overlay
from trivgeo.registration.partners import Partners, spacing
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
_NUM_KEPT = 4  # hypotheses that go on, of clouds in the same order
_NUM_PLACES_POINTS = 300  # points whose places tell poses apart
_NUM_JUDGED_POINTS, _NUM_FINAL_POINTS = (
    2000,
    30_000,
)  # points of each cloud that tell poses apart, and of the last steps
_MAX_POSES = 120  # poses that are given; the symmetries of an icosahedron, reflections included
_ISOTROPIC_STDS = 3.0  # log ratio of spreads across and along a surface that is none, in standard errors
_MIN_TANGENT = 0.05  # least share of residuals along a surface that counts
_MAX_ROUNDS = 8  # rounds of products of symmetries
_NUM_GENERATORS = 6  # symmetries whose products lead to further poses
_ALIKE_IN_STDS = 4.0  # difference of the sums of losses, in standard errors, up to which poses fit alike
_MIN_WEIGHT = 0.01  # weight of a pose that is given, in units of that of the best
_SAME_PLACE = 0.03  # root mean square distance between points moved by elements of one pose, in units of the size
_LAST_WIDTH_IN_STDS = 4.0  # width of the last loss, in standard deviations of the residuals
_ORDERED_STEPS, _SEARCHED_STEPS = 8, 20  # last steps of clouds in the same order, and in none
_MAX_ORDERED_RESIDUAL = 0.1  # median residual, in units of the size, up to which the given order is taken for the same
# residual in the given order, in units of the least one in so many others, below which it is taken for the same, too
_ORDERED_SHARE, _NUM_ORDERS = 0.4, 32
# residual of clouds in no order, in units of the size, and of the distance between neighbours: above both, the clouds
# are as far apart as unrelated ones are
_MAX_RESIDUAL, _MAX_SPACINGS = 0.1, 1.5
_MAX_MATCHED_RESIDUAL = 0.9  # residual of clouds in the same order, in units of the size; of unrelated ones 1 to 1.41
# of clouds in the same order the first
_ASSUMPTIONS = ("errors of points are independent", "the best pose is near one at which the search began")
_MIN_GAIN_RATIO = 0.5  # gain of a pose that fits as well, over that of the best one
_MIN_OVERLAP = 0.15  # share of the points of a cloud that must have a partner
_MIN_RIVAL_GAIN = 0.25  # gain of a pose that explains a part of the clouds, over that of the best one
_MAX_RIVAL_STD = 1.5  # standard deviation of its residuals, over that of the best one
_MAX_MORE_CONTRADICTIONS = 0.15  # points beside the other cloud for each partner, by which such a pose may have more


@dataclass(frozen=True)
class _Conditioning:
    """Centres and sizes of two clouds; matrices on (x, 1) between the data and conditioned data."""

    moving: Tensor
    fixed: Tensor
    size: float

    def cpu(self) -> _Conditioning:
        """Return the same on the CPU."""
        return _Conditioning(self.moving.cpu(), self.fixed.cpu(), self.size)

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
class CloudRegistration(RegistrationMethod["_Descent | Poses"]):
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
            near = residual < _MAX_ORDERED_RESIDUAL
            self.in_order = bool(near or residual < _ORDERED_SHARE * self._shuffled_median())
        if not self.in_order:  # search trees are on the CPU
            self.units = self.units.cpu()
            self.x, self.y = self.x.cpu(), self.y.cpu()

    def searched(self) -> tuple[_Descent | Poses]:
        """Descend from all starts, in each component of the group; the best one comes first."""
        if not self.in_order:
            return (searched_poses(self.action, self.x, self.y, self._starts(), self.generator),)
        unit = self.group.identity(1, dtype=self.x.dtype, device=self.x.device)
        starts = unit if self.closed_forms is None else self.closed_forms
        descents = [self._descended_in_order(part) for part in _by_component(self.group, starts)]
        descents.sort(key=self._residual_std)
        return (descents[0]._replace(elements=torch.cat([descent.elements for descent in descents])),)

    def judged(self, found: _Descent | Poses) -> Registration:
        return self._judged_poses(found) if isinstance(found, Poses) else self._judged_in_order(found)

    def _judged_in_order(self, found: _Descent) -> Registration:
        group = self.group
        loss = GemanMcClure(max(_LAST_WIDTH_IN_STDS * math.sqrt(self.x.shape[-1]) * self._residual_std(found), 1e-7))
        energy = LeastSquares(PairedPoints(self.y), loss)
        refine = Inverter(self.action, energy, [LevenbergMarquardt(_ORDERED_STEPS)], progress=False)
        g = group.inverse(refine(self.x[None], initial=found.elements[None]).elements[0])

        def losses(g: Tensor) -> Tensor:
            return loss((self._moved(g) - self.y).square().sum(-1)).clamp(min=rounding_std(torch.float64) ** 2)

        g = g[losses(g).sum(-1).nan_to_num(torch.inf).argsort()]
        if not bool(torch.isfinite(losses(g[:1])).all()):
            return nothing(self.action, g)
        overlay = Overlay(self.action, self._moved(g[:1])[0], self.y, loss)
        return self._registration(g, overlay, _Judge(losses, None, len(self.x)), (), None)

    def _judged_poses(self, found: Poses) -> Registration:
        group, n = self.group, self.x.shape[-1]
        g = found.elements
        if not bool(torch.isfinite(g).all()) or len(g) == 0:
            return nothing(self.action, g if len(g) else group.identity(1, dtype=self.x.dtype))
        reasons = _doubtful_overlap(found)
        gain = found.likelihood.total
        g = g[gain >= torch.minimum(_MIN_RIVAL_GAIN * gain[0], gain[0])]  # the best stays, whatever its sign
        usual, tangent, surface = float(found.likelihood.std[0]), found.partners.tangent, found.partners.surface
        parts = [connected(p) if surface else p for p in (self.x, self.y)]
        kept = self.x.new_tensor([len(part) / len(p) for part, p in zip(parts, (self.x, self.y), strict=True)])
        x, y = (Cloud.of(p, _NUM_FINAL_POINTS, self.generator) for p in parts)
        most = Partners(self.action, x.points, y.points, (x.normals, y.normals), surface=surface, tangent=tangent)
        some = most.thinned(_NUM_JUDGED_POINTS, tangent)
        for _ in range(2):
            pairs = some.pairs(g[:1])
            inside = (pairs.near & ~some.beyond_edge(pairs))[0]
            r = pairs.residual[0]
            tangent = _tangent(r[inside], some.normals[1][pairs.second[0]][inside])
            some.tangent = most.tangent = tangent
            usual = robust_std(some.weighed(r, pairs.second[0])[inside]) if bool(inside.any()) else usual
            loss = GemanMcClure(max(_LAST_WIDTH_IN_STDS * math.sqrt(n) * usual, 1e-7))
            g = some.descended(g, loss.width, _SEARCHED_STEPS // 2, inside=True)
            g = g[some.likelihood(g).total.argsort(descending=True)]
        best = most.descended(g[:1], loss.width, _SEARCHED_STEPS, inside=True)
        g = torch.cat([best, g[1:]])
        overlay = Overlay(self.action, most.moved(best)[0], most.y, loss, (most, best[0]))

        def losses(g: Tensor) -> Tensor:
            return -some.likelihood(g).gains

        def refine(g: Tensor) -> Tensor:
            return some.descended(g, loss.width, _SEARCHED_STEPS, inside=True)

        overlap = kept * most.likelihood(best).overlap[0]
        return self._registration(g, overlay, _Judge(losses, refine, len(some.rows[0])), reasons, overlap)

    def _registration(
        self, g: Tensor, overlay: Overlay, judge: _Judge, reasons: tuple[str, ...], overlap: Tensor | None
    ) -> Registration:
        """Return the registration of elements on conditioned data, the best one first."""
        group, units, dtype = self.group, self.units, self.moving.dtype
        h = group.inverse(g)
        most = max(float(cloud.abs().max()) for cloud in (self.moving, self.fixed))
        errors = overlay.errors(rounding_std(self.moving.dtype) * max(1.0, most / units.size))
        adjoint = units.adjoint(group, g) @ group.Ad(h[0])
        free = errors.free @ adjoint.mT
        agreement = errors.agreement if overlap is None else 1.0
        reasons = (*doubts(errors.covariance, errors.decrement, agreement, free), *errors.reasons, *reasons)
        if errors.is_determined:
            radius = max(_SAME_PLACE, overlay.displacement(errors))
            modes, complete = self._poses(g, judge, radius, closed=not errors.reasons)
            reasons += rivals(modes)
            if not complete:
                reasons += (f"more than {_MAX_POSES} poses fit about as well, of which {_MAX_POSES} are given",)
        else:
            modes = modes_at(g[:1], g.new_ones(1))
        reasons += _unlike(errors.rms, self.x, self.y, self.in_order)
        covariance = adjoint @ errors.covariance @ adjoint.mT
        element = units.restored(group, g[0])
        is_element = bool(torch.isfinite(element).all())
        if not is_element:  # rounding took a nearly singular element out of the group
            reasons += ("what was found is no element of the group",)
        elif not bool(torch.isfinite(torch.cat([element.flatten(), covariance.flatten()]).to(dtype)).all()):
            reasons += (f"the element or its covariance is beyond the largest number of {dtype}",)
        rms, verdict = errors.rms * units.size, Verdict(reasons, _ASSUMPTIONS[: 1 if self.in_order else 2])
        shares = element.new_full((2,), errors.agreement) if overlap is None else overlap
        modes = replace(modes, elements=units.restored(group, modes.elements))
        element, covariance, shares = (part.to(self.moving) for part in (element, covariance, shares))
        modes = replace(modes, **{name: part.to(self.moving.device) for name, part in vars(modes).items()})
        return Registration(self.action, element, covariance, modes, rms, is_element, verdict, shares)

    def _moved(self, g: Tensor) -> Float[Tensor, "k m n"]:
        """Return the moving cloud as elements move it."""
        return self.action(g, self.x.expand(len(g), -1, -1))

    def _poses(self, g: Tensor, judge: _Judge, radius: float, *, closed: bool) -> tuple[PosteriorModes, bool]:
        """Return the elements that fit about as well as the first of g, and whether these are all.

        Products of the symmetries among them lead to further ones. What the sums of losses differ by is compared with
        what differences of single losses let expect: poses that do not differ by it weigh alike.
        """
        group, some = self.group, self.x[:_NUM_PLACES_POINTS].to(g.device)
        scale = radius * math.sqrt(len(some))
        if isinstance(group, O | E):  # points beside a flat cloud tell its reflection from the identity
            some = torch.cat([some, math.sqrt(len(some)) * torch.eye(some.shape[-1]).to(some)])

        def places(g: Tensor) -> Tensor:
            return self.action(g, some.expand(len(g), -1, -1)).flatten(1).nan_to_num(torch.inf)

        number = 1
        for _ in range(_MAX_ROUNDS):
            losses = judge.losses(g)
            order = torch.cat([g.new_zeros(1).long(), 1 + losses[1:].sum(-1).nan_to_num(torch.inf).argsort()])
            g, losses = g[order], losses[order]
            weights, at = judge.weights(losses), places(g)
            first = ~(torch.cdist(at, at) < scale).tril(-1).any(-1) & (weights > _MIN_WEIGHT)
            g, weights, at = g[first], weights[first], at[first]
            if not number < len(g) <= _MAX_POSES or judge.refine is None or not closed:
                break
            number = len(g)
            turns = group.compose(group.inverse(g[:1]), g[1 : 1 + _NUM_GENERATORS])
            products = group.compose(g.unsqueeze(1), turns).flatten(0, 1)
            ends = places(products)
            new = (torch.cdist(ends, at) >= scale).all(-1) & ~(torch.cdist(ends, ends) < scale).tril(-1).any(-1)
            likely = judge.losses(torch.cat([g[:1], products[new]]))
            new = products[new][judge.weights(likely, 2.0 * _ALIKE_IN_STDS)[1:] > _MIN_WEIGHT]
            if len(new):
                g = torch.cat([g, judge.refine(new)])
        complete = len(g) <= _MAX_POSES
        g, weights = g[:_MAX_POSES], weights[:_MAX_POSES]
        order = weights.argsort(descending=True, stable=True)
        return modes_at(g[order], weights[order]), complete

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

    def _shuffled_median(self) -> float:
        """Return the least of the median distances after fits to the fixed points in other orders."""
        order = uniform((_NUM_ORDERS, len(self.y)), self.y, self.generator).argsort(-1)
        group = self.group.component if isinstance(self.group, O | E) else self.group
        y = self.y[order]
        g = fit_points(group, self.x.expand_as(y), y)
        if g is None:
            return 0.0
        distances = (group.action()(g, self.x) - y).norm(dim=-1).nan_to_num(torch.inf)
        return float(distances.kthvalue(self._middle, -1).values.min())

    @property
    def _middle(self) -> int:
        """Number of points in the same order that are to lie near each other (Rousseeuw 1984)."""
        m, n = self.x.shape
        return min(m, (m + num_points_needed(self.group, n) + 1) // 2)

    def _residual_std(self, found: _Descent) -> float:
        """Return the standard deviation of the residuals of the first element."""
        residuals = (self._moved(self.group.inverse(found.elements[:1])) - self.y)[0]
        m, n = residuals.shape
        # so few points were brought near each other by the fit; the factor is that of Rousseeuw and Leroy (1987)
        few = 1.0 + 5.0 / max(m - num_points_needed(self.group, n), 1)
        normal = math.sqrt(chdtri(n, 1.0 - self._middle / (m + 1)))
        return few * float(residuals.norm(dim=-1).nan_to_num(torch.inf).kthvalue(self._middle).values) / normal

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
        starts = starts[medians.argsort()[:_NUM_KEPT]]
        m, n = self.x.shape
        few = 1.0 + 5.0 / max(m - num_points_needed(self.group, n), 1)
        width = max(_LAST_WIDTH_IN_STDS * math.sqrt(n) * few * float(medians.min()), 1e-6)
        residuals = PairedPoints(self.y)
        stages: list[Stage] = [LevenbergMarquardt(_ORDERED_STEPS), Select(1)]
        search = Inverter(self.action, LeastSquares(residuals, GemanMcClure(width)), stages, progress=False)
        h = search(self.x[None], initial=self.group.inverse(starts)[None]).elements[0]
        return _Descent(h)


class _Descent(NamedTuple):
    """Ends of descents of clouds in the same order: elements of the inverter, the best one first."""

    elements: Float[Tensor, "k *e"]


@dataclass(frozen=True)
class _Judge:
    """What tells poses apart: losses of residuals ``[k, q]``, descents to further poses, and the number of points."""

    losses: Callable[[Tensor], Tensor]
    refine: Callable[[Tensor], Tensor] | None
    number: int

    def weights(self, losses: Float[Tensor, "k q"], alike: float = _ALIKE_IN_STDS) -> Float[Tensor, " k"]:
        """Return weights of elements by their losses, in units of that of the first."""
        excess = losses - losses[:1]
        std = self._std(excess)
        if self.refine is not None:  # few points without a partner may decide: losses of the first say how they vary
            std = torch.minimum(std, self._std(losses[:1]).clamp(min=1.0))
        score = (excess.sum(-1) / std).nan_to_num(0.0, posinf=torch.inf)
        weights = (-0.5 * (score.square() - alike**2).clamp(min=0.0)).exp()
        if self.refine is None:
            return weights
        gain = -losses.sum(-1)
        return torch.where(gain >= _MIN_GAIN_RATIO * gain[0], weights, 0.0)

    def _std(self, values: Float[Tensor, "k q"]) -> Float[Tensor, " k"]:
        """Return the standard deviation of sums of independent values; those back and forth are of the same points."""
        parts = values[:, : self.number], values[:, self.number :]
        stds = [part.std(-1, correction=0) * math.sqrt(part.shape[-1]) for part in parts if part.shape[-1]]
        return torch.stack(stds).sum(0)


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


def _tangent(r: Float[Tensor, "q n"], normals: Float[Tensor, "q n"]) -> float:
    """Return by how much the parts of residuals along the surface are to count less than those across it.

    The inverse ratio of their standard deviations: along the surface two samples of it lie apart by the distance of
    neighbours. Points of a volume, and the same points seen twice, give one.
    """
    n = r.shape[-1]
    if n == 1 or len(r) == 0:
        return 1.0
    across = (r * normals).sum(-1, keepdim=True) * normals
    normal, along = (
        float(part.norm(dim=-1).median()) / math.sqrt(chdtri(number, 0.5))
        for part, number in ((across, 1), (r - across, n - 1))
    )
    share = normal / along if along > 0.0 else 1.0
    # the standard error of the logarithm of a ratio of two medians of normal sizes is about 1.4 over sqrt(m)
    noise = _ISOTROPIC_STDS * 1.4 / math.sqrt(len(r) / 2)
    return 1.0 if share > math.exp(-noise) else max(share, _MIN_TANGENT)


def _doubtful_overlap(found: Poses) -> tuple[str, ...]:
    """Return why the pose that explains both clouds best may be none, or not the only one."""
    overlap = float(found.likelihood.overlap[0].max())
    said = []
    if not overlap >= _MIN_OVERLAP:
        said.append(f"{overlap:.0%} of the points have a partner: less than {_MIN_OVERLAP:.0%}")
    gain, std, contradictions = found.likelihood.total, found.likelihood.std, found.contradictions
    others = (gain > _MIN_RIVAL_GAIN * gain[0]) & (contradictions < contradictions[0] + _MAX_MORE_CONTRADICTIONS)
    others = others & (std < _MAX_RIVAL_STD * std[0])  # what lies worse on each other explains no part
    if int(others.sum()) > 1:
        said.append(f"{int(others.sum())} poses explain a part of the clouds: which one is seen is not known")
    return tuple(said)


def _unlike(residual: float, x: Tensor, y: Tensor, in_order: bool) -> tuple[str, ...]:
    """Return why clouds that were laid on each other are not of one shape; empty where they may be."""
    if in_order:
        said = f"points are {residual:.2g} of the size of the clouds from those that match: too much for one shape"
        return () if residual <= _MAX_MATCHED_RESIDUAL else (said,)
    apart = max(_spacing(cloud) for cloud in (x, y))
    if residual <= max(_MAX_RESIDUAL, _MAX_SPACINGS * apart):
        return ()
    return (
        f"points are {residual:.2g} of the size of the clouds from the others, which are {apart:.2g} apart: too much "
        "for clouds of one shape",
    )


def _spacing(cloud: Tensor) -> float:
    """Return the median distance of a point from its nearest neighbour."""
    some = cloud[:_NUM_JUDGED_POINTS].cpu()
    return spacing(some, KDTree(some.numpy()))
