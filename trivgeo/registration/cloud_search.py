"""The search for poses of clouds in no order: from correspondences and from starts, to poses that explain both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.spatial import KDTree
from torch import Tensor

from trivgeo._random import permutation
from trivgeo.actions import PointCloud
from trivgeo.inversion.energies.least_squares import GemanMcClure
from trivgeo.registration.correspondences import consensus_poses
from trivgeo.registration.partners import Likelihood, Partners

_NUM_FIRST_POINTS, _NUM_WIDE_POINTS = 100, 250  # points of each cloud that rank starts, and in the search for wells
_NUM_SEARCH_POINTS = 1000  # points of each cloud that are described and that tell poses apart
_WIDTHS = (0.7, 0.4, 0.25, 0.17)  # widths of the robust losses, in root mean square distances from the centre
_NUM_KEPT = (64, 24, 12, 12)  # hypotheses that go on with each width, of one place each
_NUM_STEPS = (5, 5, 6, 6)  # steps with each width
_NUM_CONSENSUS, _NUM_SUPPORTED = 150, 40  # hypotheses of correspondences, and those that descend
_LAST_WIDTHS = (0.6, 0.4)  # widths of the last losses, in units of the reach of partners
_NUM_LAST_STEPS = 6
_NUM_POSES = 12  # poses that are refined on all points of the search
_MAX_SIMILAR = 24  # poses that go on where a symmetric object has several
_MIN_GAIN_RATIO = 0.8  # gain of such a pose over the highest one
_MIN_SMALL_GAIN_RATIO = 0.15  # gain of a pose that is refined, over the highest one, by few points
_CLEAR_OVERLAP, _CLEAR_GAIN = 0.3, 0.3  # least overlap and mean gain of a pose of correspondences that ends the search
_SAME_PLACE_IN_WIDTHS = 0.3  # root mean square distance between points moved by two hypotheses of one place, in widths
# numbers of neighbours that give a normal, for each dimension of the surface, and the ratio of the two least spreads of
# as many neighbours of points of a volume, of the plane and of space
_VOLUME_RATIOS = {2: {6: 0.56, 12: 0.72, 24: 0.80}, 3: {3: 0.52, 6: 0.71, 12: 0.80, 24: 0.85}}
_NUM_SAMPLED_POINTS = 500  # that say which of the numbers is best
_SURFACE_RATIO, _RATIO_SPREAD = 0.85, 0.7  # ratio in units of these of a surface; its spread, times the root of m
_TANGENT = 0.3  # what counts of residuals along a surface in the search
_MAX_ISOLATION = 2.5  # distance to a sixth neighbour, in units of the usual, of a point that is searched with
_ISOLATION_NEIGHBOURS = 6
_MAX_NORMAL_NEIGHBOURS = 300


@dataclass(frozen=True)
class Cloud:
    """Points with the normals of their surface, and how flat their neighbourhoods are."""

    points: Float[Tensor, "m n"]
    normals: Float[Tensor, "m n"]
    planarity: float

    @property
    def is_surface(self) -> bool:
        """True if neighbourhoods are flatter than those of points of a volume."""
        m, n = self.points.shape
        return n > 1 and self.planarity < _SURFACE_RATIO - _RATIO_SPREAD / math.sqrt(min(m, _NUM_SAMPLED_POINTS))

    @staticmethod
    def of(points: Float[Tensor, "m n"], number: int, generator: torch.Generator) -> Cloud:
        """Return at most ``number`` of the points, normals by all of them: by as many neighbours as are flattest.

        Noise bends the neighbourhoods of few points, and the surface those of many.
        """
        rows = permutation((len(points),), points, generator)[:number]
        dim = max(1, points.shape[-1] - 1)
        tree, usual = KDTree(points.numpy()), _VOLUME_RATIOS[min(dim, 2) + 1]
        found: list[tuple[float, int]] = []
        for count, volume in usual.items():
            # about as many neighbours of the thinned cloud
            few = min(len(points), _MAX_NORMAL_NEIGHBOURS, round(count * dim * len(points) / len(rows)))
            values = _spreads(points, tree, rows[:_NUM_SAMPLED_POINTS], few)[0]
            ratio = values[:, 0] / values[:, min(1, dim)].clamp(min=1e-12)
            found.append((float(ratio.median()) / volume, few))
        planarity, few = min(found)
        return Cloud(points[rows], _spreads(points, tree, rows, few)[1], planarity)


def _spreads(points: Tensor, tree: KDTree, rows: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return standard deviations of neighbours along the axes of their spread, and the axis of the least one."""
    index = torch.from_numpy(np.asarray(tree.query(points[rows].numpy(), k=[*range(1, number + 1)])[1]))
    around = points[index]
    around = around - around.mean(1, keepdim=True)
    values, vectors = torch.linalg.eigh(around.mT @ around)
    return values.clamp(min=0.0).sqrt(), vectors[..., 0]


def connected(points: Float[Tensor, "m n"]) -> Float[Tensor, "p n"]:
    """Return the points without isolated ones, which are likely outliers."""
    number = _ISOLATION_NEIGHBOURS
    if len(points) <= 2 * number:
        return points
    distance = torch.from_numpy(np.asarray(KDTree(points.numpy()).query(points.numpy(), k=[number + 1])[0])[:, 0])
    return points[distance <= _MAX_ISOLATION * distance.median()]


@dataclass(frozen=True)
class Poses:
    """Poses of different places, the likeliest first, and how they explain the clouds.

    Attributes:
        elements: from the moving to the fixed cloud, ``[k, *e]``.
        partners: the clouds that they were found with.
        likelihood: of the poses.
    """

    elements: Tensor
    partners: Partners
    likelihood: Likelihood

    @cached_property
    def contradictions(self) -> Float[Tensor, " k"]:
        """Number of points beside the other cloud for each partner, see `Partners.contradictions`."""
        return self.partners.contradictions(self.elements)


def searched_poses(
    action: PointCloud,
    x: Float[Tensor, "m n"],
    y: Float[Tensor, "k n"],
    starts: Float[Tensor, "p *e"],
    generator: torch.Generator,
) -> Poses:
    """Return poses that explain two clouds, on conditioned data."""
    a, b = (Cloud.of(connected(points), _NUM_SEARCH_POINTS, generator) for points in (x, y))
    surface = a.is_surface and b.is_surface
    tangent = _TANGENT if surface else 1.0
    most = Partners(action, a.points, b.points, (a.normals, b.normals), surface=surface, tangent=tangent)
    small = most.thinned(_NUM_WIDE_POINTS, tangent)
    width, reach, radius = _WIDTHS[-1], 2 * _WIDTHS[-1], _SAME_PLACE_IN_WIDTHS * _WIDTHS[-1]
    g = starts[:0]
    if most.keeps_shapes and x.shape[-1] > 1:
        g = consensus_poses(action.group, a.points, b.points, a.normals, b.normals)
        g = distinct(most, g, torch.arange(len(g), 0, -1).double(), radius, _NUM_CONSENSUS)
    if len(g):
        g = distinct(most, g, _support(small, g), 0.5 * width, _NUM_SUPPORTED)
        g = small.descended(g, width, _NUM_STEPS[-1], reach=reach)
    if not len(g) or not surface or not _is_clear(small.likelihood(g)):
        g = torch.cat([g, small.descended(_widely_searched(most, starts), width, _NUM_STEPS[-1], reach=reach)])
    gain = small.likelihood(g).total.nan_to_num(-torch.inf)
    least = torch.minimum(_MIN_SMALL_GAIN_RATIO * gain.max(), gain.max())  # the best stays, whatever its sign
    g, gain = (part[gain >= least] for part in (g, gain))
    number = max(_NUM_POSES, min(_MAX_SIMILAR, int((gain > _MIN_GAIN_RATIO * gain.max()).sum())))
    g = distinct(most, g, gain, radius, number)
    for last in _LAST_WIDTHS:
        g = most.descended(g, last * most.reach, _NUM_LAST_STEPS)
    g = distinct(most, g, most.likelihood(g).total, radius, number)
    return Poses(g, most, most.likelihood(g))


def _is_clear(found: Likelihood) -> bool:
    """Return whether one pose explains so much that others need not be looked for."""
    best = int(found.total.argmax())
    return float(found.overlap[best].min()) > _CLEAR_OVERLAP and float(found.gains[best].mean()) > _CLEAR_GAIN


def distinct(
    partners: Partners, g: Float[Tensor, "k *e"], score: Float[Tensor, " k"], radius: float, number: int
) -> Float[Tensor, "p *e"]:
    """Return at most ``number`` elements of highest score that move points to places further apart than the radius."""
    g = g[score.nan_to_num(-math.inf).argsort(descending=True)]
    some = partners.x[:_NUM_FIRST_POINTS]
    at = partners.action(g, some.expand(len(g), -1, -1)).flatten(1).nan_to_num(torch.inf)
    near = torch.cdist(at, at) < radius * math.sqrt(len(some))
    return g[_firsts(near)][:number]


def _firsts(near: Bool[Tensor, "k k"]) -> Bool[Tensor, " k"]:
    """Return a mask of those that are near no earlier one of the mask."""
    kept = torch.ones(len(near), dtype=torch.bool)
    for row in range(1, len(near)):
        kept[row] = not bool((near[row, :row] & kept[:row]).any())
    return kept


def _support(partners: Partners, g: Tensor) -> Float[Tensor, " k"]:
    """Return how many points have a near partner of like normal."""
    pairs = partners.pairs(g, _WIDTHS[-1])
    closeness = 1.0 - (pairs.residual.norm(dim=-1) / _WIDTHS[-1]).square()
    return (pairs.near * closeness * partners.cosines(g, pairs).square()).sum(-1)


def _widely_searched(partners: Partners, g: Tensor) -> Tensor:
    """Return descents under losses that become narrower, of fewer and fewer starts: of clouds that show the same."""
    first, wide = (partners.thinned(number, 1.0) for number in (_NUM_FIRST_POINTS, _NUM_WIDE_POINTS))
    for place, (width, steps, number) in enumerate(zip(_WIDTHS, _NUM_STEPS, _NUM_KEPT, strict=True)):
        loss = GemanMcClure(width)
        judging = wide if place else first
        energy = loss(judging.pairs(g, math.inf).residual.square().sum(-1)).mean(-1)
        g = distinct(wide, g, -energy, _SAME_PLACE_IN_WIDTHS * width if place else 0.0, number)
        g = wide.descended(g, width, steps, reach=3 * width)
    return g
