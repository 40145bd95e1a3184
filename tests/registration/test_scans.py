"""Registration of clouds that each show a part of an object: surfaces in closed form, moved by SciPy's rotations."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from tests.helpers import assert_relative, rand, randn
from trivgeo.actions import PointCloud
from trivgeo.groups import SE, LieGroup, Similarity
from trivgeo.inversion.point_alignment import fit_points
from trivgeo.registration import register
from trivgeo.registration.cloud_search import Cloud, connected
from trivgeo.registration.correspondences import consensus_poses
from trivgeo.registration.partners import Partners

GENERATOR = torch.Generator().manual_seed(0)


def hills(number: int, seed: int) -> Tensor:
    """A square of bumps, two by two."""
    x = 2 * rand(number, 2, seed=seed) - 1
    centres, widths = 2 * rand(20, 2, seed=71) - 1, 0.15 + 0.25 * rand(20, seed=72)
    heights = 0.25 * randn(20, seed=73)
    z = (heights * (-0.5 * (torch.cdist(x, centres) / widths).square()).exp()).sum(-1, keepdim=True)
    return torch.cat([x, z], -1)


def outline(number: int, seed: int) -> Tensor:
    """A closed line without symmetry, of which a part is seen."""
    angle = 2 * math.pi * rand(number, seed=seed)
    size = 1 + 0.35 * angle.cos() + 0.2 * (2 * angle).sin() + 0.12 * (3 * angle + 0.5).cos()
    return size[:, None] * torch.stack([1.3 * angle.cos(), angle.sin()], -1)


def views(surface: Tensor, other: Tensor, shown: float, outliers: int, seed: int) -> tuple[Tensor, Tensor]:
    """The shares of two samples on both sides of the first coordinate, with noise, and points anywhere."""
    low, high = surface[:, 0].quantile(shown), surface[:, 0].quantile(1 - shown)
    clouds = []
    for place, part in enumerate((surface[surface[:, 0] < low], other[other[:, 0] > high])):
        part = part + 0.005 * randn(*part.shape, seed=seed + place)
        part[:outliers] = 1.1 * (2 * rand(outliers, part.shape[1], seed=seed + 10 + place) - 1)
        clouds.append(part)
    return clouds[0], clouds[1]


def pose(group: LieGroup, seed: int) -> Tensor:
    turn = torch.from_numpy(Rotation.random(rng=seed).as_matrix())
    shift = torch.tensor([2.0, -1.0, 0.5]).double()
    return group.join(turn, shift) if isinstance(group, SE) else group.from_parts(turn, shift.new_tensor(1.1), shift)


class TestPartialViews:
    @pytest.mark.parametrize(
        ("shown", "outliers"),
        [(0.7, 0), pytest.param(0.77, 0, marks=pytest.mark.slow), (0.77, 150)],
    )
    def test_any_pose(self, shown: float, outliers: int) -> None:
        """It was off by 150 degrees. Of the points that are shown, (2 s - 1) / s have a partner."""
        moving, fixed = views(hills(1000, 1), hills(1000, 2), shown, outliers, 3)
        g = pose(SE(3), 4)
        r = register(moving, SE(3).action()(g, fixed), SE(3), matched=False, num_starts=32)
        assert r.trusted, r.reasons
        turn = r.element[:, :3].mT @ g[:, :3]
        assert math.degrees(float(((turn.trace() - 1) / 2).clamp(-1, 1).acos())) < 1.0
        v = SE(3).log(SE(3).compose(SE(3).inverse(r.element), g))
        assert float(v @ torch.linalg.solve(r.covariance, v)) < 22.46  # 99.9 % of the chi-squared distribution
        assert r.overlap is not None
        for share, cloud in zip(r.overlap, (moving, fixed), strict=True):
            assert abs(float(share) - (2 * shown - 1) / shown * (1 - outliers / len(cloud))) < 0.1

    def test_of_a_line(self) -> None:
        moving, fixed = views(outline(300, 1), outline(300, 2), 0.8, 0, 3)
        g = SE(2).exp(torch.tensor([2.5, 1.0, -2.0]).double())
        r = register(moving, SE(2).action()(g, fixed), SE(2), matched=False, num_starts=16)
        assert float((r.element - g).abs().max()) < 0.05

    def test_things_that_have_nothing_in_common(self) -> None:
        """Another part of the hills, which the first cloud does not show."""
        moving, fixed = views(hills(800, 1), hills(800, 2), 0.45, 0, 3)
        r = register(moving, SE(3).action()(pose(SE(3), 4), fixed), SE(3), matched=False, num_starts=32)
        assert not r.trusted

    def test_all_of_both_is_shared(self) -> None:
        cloud = hills(300, 1)
        r = register(cloud, SE(3).action()(pose(SE(3), 1), cloud).flip(0), SE(3), matched=False, num_starts=16)
        assert r.overlap is not None
        assert_relative(r.overlap, torch.ones(2, dtype=torch.float64), 0.01)


@pytest.mark.parametrize("group", [SE(3), Similarity(3)], ids=str)
def test_poses_from_correspondences(group: LieGroup) -> None:
    """One of the first is near the true one, of two samples that have no point in common."""
    a, b = (Cloud.of(hills(800, seed), 800, GENERATOR) for seed in (1, 2))
    g = pose(group, 5)
    turned = b.normals @ pose(SE(3), 5)[:, :3].mT
    found = consensus_poses(group, a.points, group.action()(g, b.points), a.normals, turned)
    assert float((found[:20] - g).abs().amax((-2, -1)).min()) < 0.1


def test_isolated_points_are_left_out() -> None:
    kept = connected(torch.cat([hills(500, 1), 3 + 5 * rand(20, 3, seed=2)]))
    assert len(kept) > 480
    assert float(kept.max()) < 2


class TestPartners:
    def clouds(self, group: LieGroup, tangent: float = 1.0) -> Partners:
        a, b = (Cloud.of(hills(200, seed), 200, GENERATOR) for seed in (1, 2))
        assert a.is_surface
        return Partners(PointCloud(group), a.points, b.points, (a.normals, b.normals), surface=True, tangent=tangent)

    def test_pairs_are_nearest_points(self) -> None:
        """By all distances, also under a group that changes sizes."""
        group = Similarity(3)
        clouds, g = self.clouds(group), 0.9 * pose(group, 3)[None]
        pairs = clouds.pairs(g, math.inf)
        moved = group.action()(g[0], clouds.x)
        distance = torch.cdist(moved, clouds.y)
        assert torch.equal(pairs.second[0, : len(moved)], distance.argmin(1))
        assert torch.equal(pairs.first[0, len(moved) :], distance.argmin(0))
        assert_relative(pairs.residual[0].norm(dim=-1), torch.cat([distance.amin(1), distance.amin(0)]), 1e-9)

    def test_a_step_of_the_same_points_is_that_in_closed_form(self) -> None:
        """Near the identity, without a loss that bends: Kabsch's rotation."""
        x = 10 * randn(40, 3, seed=1)
        g = SE(3).exp(0.02 * randn(6, seed=2))
        y = SE(3).action()(g, x) + 0.01 * randn(40, 3, seed=3)
        normals = torch.nn.functional.normalize(x, dim=-1)
        clouds = Partners(PointCloud(SE(3)), x, y, (normals, normals), surface=False, tangent=1.0)
        found = clouds.descended(SE(3).identity(1, dtype=torch.float64), 1e6, 10, reach=math.inf)
        expected = fit_points(SE(3), x, y)
        assert expected is not None
        assert_relative(found[0], expected, 1e-6)

    def test_likelihood_knows_what_is_shared(self) -> None:
        """Half of the points of one cloud lie on the other, and all of those."""
        x, half = hills(3000, 1), hills(3000, 2)
        half = half[half[:, 0] < 0]
        a, b = (Cloud.of(p, 3000, GENERATOR) for p in (x, half))
        clouds = Partners(PointCloud(SE(3)), a.points, b.points, (a.normals, b.normals), surface=True, tangent=0.3)
        found = clouds.likelihood(SE(3).identity(1, dtype=torch.float64))
        assert abs(float(found.overlap[0, 0]) - 0.5) < 0.1
        assert float(found.overlap[0, 1]) > 0.9
        away = clouds.likelihood(SE(3).join(torch.eye(3).double(), torch.tensor([0.0, 0.0, 1.0]).double())[None])
        assert float(away.total[0]) < 0.2 * float(found.total[0])

    def test_edges(self) -> None:
        """Of a square of points."""
        clouds = self.clouds(SE(3))
        border = (clouds.x[:, :2].abs().amax(-1) > 0.95).double()
        inner = (clouds.x[:, :2].abs().amax(-1) < 0.7).double()
        at_edge = clouds.edges[0].double()
        assert float((at_edge * border).sum() / border.sum()) > 0.7
        assert float((at_edge * inner).sum() / inner.sum()) < 0.1
