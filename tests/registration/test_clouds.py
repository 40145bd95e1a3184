"""Verdicts and covariances of registered clouds: samples of shapes whose symmetries and free directions are known."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.spatial.transform import Rotation
from scipy.stats import chi2, f
from torch import Tensor

from tests.helpers import assert_relative, rand, randn, random_elements, seeded
from trivgeo.errors import ShapeError
from trivgeo.groups import SE, SO, Affine, GLPlus, LieGroup, Projective, Similarity, Translation
from trivgeo.inversion.energies import SymmetricNearestPoints
from trivgeo.registration import Registration, register
from trivgeo.registration.overlay import _student_factor


def circle(number: int, seed: int) -> Tensor:
    angle = 2 * math.pi * rand(number, seed=seed)
    return torch.stack([angle.cos(), angle.sin()], -1)


def limacon(number: int, seed: int) -> Tensor:
    """An oval without symmetry."""
    angle = 2 * math.pi * rand(number, seed=seed)
    size = 1 + 0.35 * angle.cos() + 0.2 * (2 * angle).sin() + 0.12 * (3 * angle + 0.5).cos()
    return size[:, None] * torch.stack([1.3 * angle.cos(), angle.sin()], -1)


def square(number: int, seed: int) -> Tensor:
    """Points of the outline."""
    along, side = 2 * rand(number, seed=seed) - 1, torch.arange(number) % 4
    straight = torch.stack([along, torch.ones_like(along)], -1)
    turns = torch.tensor([[[1, 0], [0, 1]], [[0, 1], [-1, 0]], [[-1, 0], [0, -1]], [[0, -1], [1, 0]]]).double()
    return torch.einsum("mij,mj->mi", turns[side], straight)


def corridor(first: float, last: float, number: int, seed: int) -> Tensor:
    wall = torch.arange(number) % 2 * 2.0 - 1.0
    return torch.stack([first + (last - first) * rand(number, seed=seed), wall.double()], -1)


def cylinder(number: int, seed: int) -> Tensor:
    return torch.cat([0.5 * circle(number, seed), 2 * rand(number, 1, seed=seed + 100) - 1], -1)


def sampled(group: LieGroup, shape: object, number: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Two samples of a shape, the second one moved, and the element."""
    (n,) = group.action().point_dims
    g = random_elements(group, std=0.5, seed=seed)
    one, other = shape(number, 10 * seed + 1), shape(number, 10 * seed + 2)  # type: ignore[operator]
    fixed = group.action()(g, other) + noise * randn(number, n, seed=10 * seed + 3)
    return one + noise * randn(number, n, seed=10 * seed + 4), fixed, g


def square_distance(r: Registration, g: Tensor) -> float:
    v = r.group.log(r.group.compose(r.group.inverse(r.element), g))
    return float(v @ torch.linalg.solve(r.covariance, v))


class TestFreeDirections:
    @pytest.mark.parametrize(
        ("group", "shape"),
        [
            (SO(2), circle),
            pytest.param(SE(2), circle, marks=pytest.mark.slow(reason="SO(2) stays")),
            pytest.param(SE(3), cylinder, marks=pytest.mark.slow(reason="SO(2) stays")),
        ],
        ids=lambda value: getattr(value, "__name__", str(value)),
    )
    def test_symmetric_under_rotations(self, group: LieGroup, shape: object) -> None:
        """Any angle fits, and of a cylinder any place along it, of which only its ends tell: such directions have the
        standard deviation of unknown ones, the others small ones.
        """
        moving, fixed, _ = sampled(group, shape, 150, 0.01)
        r = register(moving, fixed, group, num_starts=32)
        assert not r.trusted
        assert "determine" in " ".join(r.reasons)
        stds = torch.linalg.eigvalsh(r.covariance).sqrt()
        free = 1 if group.dim < 6 else 2
        assert bool((stds[-free:] > 100).all())
        assert bool((stds[:-free] < 0.1).all())

    def test_a_corridor_of_which_each_cloud_shows_a_part(self) -> None:
        """Along the walls only the ends say anything, and these are not of the same place."""
        moving, fixed = corridor(0.0, 10.0, 200, 1), corridor(5.0, 15.0, 200, 2)
        noise = 0.01 * randn(2, 200, 2, seed=3)
        r = register(moving + noise[0], fixed + noise[1], SE(2), num_starts=32)
        assert not r.trusted
        assert "where the clouds end" in " ".join(r.reasons)
        along, across = r.covariance.diagonal()[1:].sqrt()
        assert float(along) > 100
        assert float(across) < 0.05 * float(along)  # noise tilts the free direction

    def test_normal_points_under_affine_maps(self) -> None:
        r = register(randn(150, 2, seed=1), randn(150, 2, seed=2), Affine(2), num_starts=16)
        assert not r.trusted


class TestSymmetries:
    def test_two_samples_of_a_square_have_four_poses(self) -> None:
        """The energies of the poses differ by the sampling alone: it was one of weight 1, mostly another."""
        moving, fixed, g = sampled(SE(2), square, 120, 0.01)
        r = register(moving, fixed, SE(2), num_starts=32)
        assert not r.trusted
        assert_relative(r.modes.weights, torch.full((1, 4), 0.25, dtype=torch.float64), 1e-9)
        turns = SO(2).exp(0.5 * math.pi * torch.arange(4, dtype=torch.float64)[:, None])
        poses = SE(2).compose(g, SE(2).join(turns, torch.zeros(4, 2, dtype=torch.float64)))
        assert float(torch.cdist(r.modes.elements[0].flatten(1), poses.flatten(1)).min(0).values.max()) < 0.05

    @pytest.mark.parametrize(
        ("symmetry", "number", "missing"),
        [("I", 2, 0), pytest.param("O", 5, 4, marks=pytest.mark.slow(reason="the icosahedron stays"))],
    )
    def test_as_many_poses_as_there_are(self, symmetry: str, number: int, missing: int) -> None:
        """All 60 of an icosahedron; all 24 of an octahedron of which a few points are missing."""
        turns = torch.from_numpy(Rotation.create_group(symmetry).as_matrix())
        moving = torch.einsum("fij,nj->fni", turns, randn(number, 3)).reshape(-1, 3)
        g = random_elements(SO(3), std=1.0)
        kept = torch.randperm(len(moving), generator=seeded(0))[missing:]
        fixed = SO(3).action()(g, moving)[kept] + 0.005 * randn(len(kept), 3, seed=1)
        r = register(moving, fixed, SO(3), num_starts=128)
        assert int(r.modes.num_modes) == len(turns)
        assert not r.trusted
        poses = SO(3).compose(g, turns)
        assert float(torch.cdist(r.modes.elements[0].flatten(1), poses.flatten(1)).min(0).values.max()) < 0.05

    @pytest.mark.slow(reason="sixty poses stay")
    def test_more_poses_than_are_given(self) -> None:
        """The 150 of a ring of points that is laid on itself exactly."""
        angle = 2 * math.pi * torch.arange(150, dtype=torch.float64)[:, None] / 150
        ring = torch.cat([angle.cos(), angle.sin()], -1)
        r = register(ring, ring.flip(0), SO(2), matched=False, num_starts=16)
        assert not r.trusted
        assert "more than 120 poses" in " ".join(r.reasons)


class TestDegreesOfFreedom:
    @pytest.mark.parametrize(
        ("group", "number"),
        [(Projective(2), 4), (Affine(2), 3), (Similarity(2), 2), (GLPlus(2), 2), (Translation(2), 1), (SE(2), 2)],
        ids=str,
    )
    def test_none_are_left(self, group: LieGroup, number: int) -> None:
        """As many numbers as unknowns fit exactly, whatever the noise is."""
        g, x = random_elements(group, std=0.3, seed=1), randn(number, 2, seed=2)
        y = group.action()(g, x) + 0.05 * randn(number, 2, seed=3)
        r = register(x, y, group, matched=group != SE(2), num_starts=4)
        assert not r.trusted
        assert "too few are left" in " ".join(r.reasons)

    @pytest.mark.parametrize("number", [10, pytest.param(100, marks=pytest.mark.slow(reason="ten stay"))])
    def test_few_are_left(self, number: int) -> None:
        """Five points under SE(2), seven degrees of freedom: squared distances follow Fisher's distribution."""
        levels = []
        for seed in range(number):
            x, g = randn(5, 2, seed=seed), random_elements(SE(2), std=0.5, seed=seed)
            r = register(x, SE(2).action()(g, x) + 0.02 * randn(5, 2, seed=1000 + seed), SE(2), num_starts=2)
            assert r.trusted, r.reasons
            levels.append(f.cdf(square_distance(r, g) * _student_factor(3, 7.0) / 3, 3, 7))
        assert sum(level < 0.9 for level in levels) >= 0.9 * number - 3 * math.sqrt(0.09 * number)
        assert abs(sum(levels) / number - 0.5) < 3 / math.sqrt(12 * number)

    def test_regions_at_95_percent(self) -> None:
        for dim, freedom in ((3, 5.0), (6, 20.0), (1, 3.0)):
            region = chi2.ppf(0.95, dim) * _student_factor(dim, freedom)
            assert abs(f.cdf(region / dim, dim, freedom) - 0.95) < 1e-9


class TestDifferentSamples:
    @pytest.mark.parametrize("number", [3, pytest.param(30, marks=pytest.mark.slow(reason="three stay"))])
    def test_covariances_cover(self, number: int) -> None:
        """Two samples of an oval, which have no point in common: variances were 3 to 15 times too small."""
        squares = []
        for seed in range(number):
            moving, fixed, g = sampled(SE(2), limacon, 120, 0.01, seed)
            r = register(moving, fixed, SE(2), num_starts=32)
            assert r.trusted, r.reasons
            assert len(r.verdict.assumptions) == 2
            squares.append(square_distance(r, g))
        assert sum(squares) / number / 3 < 1 + 4 * math.sqrt(2 / (3 * number))
        assert sum(squares) / number / 3 > 0.1

    def test_residuals_across_the_surface(self) -> None:
        """Differences along a line do not count; those across it do, both ways."""
        line = torch.stack([torch.linspace(-1, 1, 41).double(), torch.zeros(41).double()], -1)
        moved = line + torch.tensor([0.02, 0.01]).double()
        across = SymmetricNearestPoints(line, 0.0)(moved[None])[0]
        assert_relative(across[:41], torch.tensor([[0.0, 0.01]]).double().expand(41, 2), 1e-9, floor=1.0)
        assert_relative(across[41:], torch.tensor([[0.0, 0.01]]).double().expand(41, 2), 1e-9, floor=1.0)


def test_parts_that_disagree() -> None:
    """A bent cloud in order: no rigid motion fits, and residuals of neighbours are alike."""
    x, g = randn(60, 2, seed=1), random_elements(SE(2), std=0.5)
    bent = x + torch.stack([torch.zeros(60), 1.0 * 0.15 * x[:, 0].square()], -1)
    noise = 0.005 * randn(60, 2, seed=2)
    assert register(x, SE(2).action()(g, x) + noise, SE(2)).trusted
    r = register(x, SE(2).action()(g, bent) + noise, SE(2))
    assert "parts of the clouds disagree" in " ".join(r.reasons)


@pytest.mark.parametrize("size", [1e30, 1e-30, 1e18])
def test_single_precision_of_any_size(size: float) -> None:
    """A covariance beyond the largest number is none to be trusted."""
    x, g = randn(30, 3, seed=1), random_elements(SE(3), std=0.5)
    y = SE(3).action()(g, x) + 0.01 * randn(30, 3, seed=2)
    r = register((size * x).float(), (size * y).float(), SE(3))
    assert r.trusted == bool(torch.isfinite(r.covariance).all())
    assert r.trusted or "beyond the largest number" in " ".join(r.reasons)


def test_points_in_order_on_the_healthy_and_the_sick() -> None:
    """Exact points in single precision and large errors are trusted; noise about a line and a bent thing are not."""
    group = Similarity(3)
    for seed in range(4):
        x, g = randn(60, 3, seed=seed).float(), random_elements(group, 1, std=0.3, seed=seed)[0].float()
        assert register(x, group.action()(g, x), group).trusted
        plane = randn(12, 2, seed=seed)
        g = SE(2).exp(randn(3, seed=10 + seed))
        moved = SE(2).action()(g, plane + 0.1 * randn(12, 2, seed=20 + seed))
        assert register(plane + 0.1 * randn(12, 2, seed=30 + seed), moved, SE(2)).trusted
    line = torch.linspace(-1, 1, 20).double()[:, None] * torch.ones(3).double()
    r = register(line + 0.01 * randn(20, 3, seed=1), line + 0.01 * randn(20, 3, seed=2), SE(3), matched=True)
    assert any("do not determine" in reason for reason in r.reasons)
    assert float(r.covariance.diagonal().max()) > 100.0
    thing = torch.linspace(-1, 1, 60).double()
    straight, bent = (torch.stack([thing, bend * thing.square()], -1) for bend in (0.0, 0.3))
    r = register(straight + 0.01 * randn(60, 2, seed=3), bent + 0.01 * randn(60, 2, seed=4), SE(2), matched=True)
    assert any("bent" in reason for reason in r.reasons)


def test_clouds_of_other_numbers_of_points_are_in_no_order() -> None:
    with pytest.raises(ShapeError, match="matched: expected clouds of as many points, got 20 and 30"):
        register(randn(20, 3), randn(30, 3), SE(3), matched=True)
    with pytest.raises(ShapeError, match=r"a cloud is \[m, n\], with the coordinates of a point in a row"):
        register(randn(3, 20), randn(3, 30), SE(3))
