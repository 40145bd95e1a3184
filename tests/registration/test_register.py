"""Registration of images and clouds: rendered pictures, SciPy's rotations, map coordinates, coverage of covariances.

Users asked for map coordinates (Open3D #3496), an unknown scale (libpointmatcher #188, pycpd #15), several solutions
and a confidence (TEASER++ #47, KISS-Matcher #24).
"""

from __future__ import annotations

import math

import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from tests.helpers import assert_relative, rand, randn, random_elements, seeded
from trivgeo.actions import ImageWarp, PointCloud
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import SE, SO, Affine, E, GLPlus, LieGroup, Projective, Similarity, Translation
from trivgeo.inversion import Inverter
from trivgeo.inversion.energies import GemanMcClure, LeastSquares, PairedImages, SymmetricNearestPoints, with_coverage
from trivgeo.inversion.point_alignment import fit_points
from trivgeo.inversion.posterior import InverseProblem
from trivgeo.inversion.stages import LevenbergMarquardt
from trivgeo.inversion.transformations import composed, homographies, rotations, scales, shifts
from trivgeo.registration import register
from trivgeo.registration.clouds import _unlike
from trivgeo.registration.record import doubts

SIZE = (60, 80)
FEW_POINTS: dict[LieGroup, int] = {
    SO(3): 1,
    SE(3): 2,
    Similarity(3): 2,
    Projective(2): 3,
    Affine(3): 3,
    GLPlus(3): 2,
}
"""Of each group, the number of points that leaves one direction free."""
UNMATCHED = [group for group in FEW_POINTS if isinstance(group, SE | Projective)]


def picture(points: Tensor) -> Tensor:
    """A smooth picture of two channels at points in pixels ``[h, w, 2]``: blobs of several sizes."""
    generator = seeded(7)
    total = torch.zeros(2, *points.shape[:2], dtype=torch.float64)
    for _ in range(60):
        centre = torch.rand(2, generator=generator, dtype=torch.float64) * 140 - 30
        width = 4.0 + 10.0 * float(torch.rand(1, generator=generator))
        colour = torch.randn(2, 1, 1, generator=generator, dtype=torch.float64)
        total = total + colour * (-0.5 * ((points - centre) / width).square().sum(-1)).exp()
    return total


def pixels(size: tuple[int, int] = SIZE) -> Tensor:
    y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in size), indexing="ij")
    return torch.stack([x, y], -1)


def seen_at(matrix: Tensor) -> Tensor:
    """The picture moved by a homography in pixels, rendered: no pixel is interpolated."""
    lifted = torch.cat([pixels(), torch.ones(*SIZE, 1, dtype=torch.float64)], -1) @ torch.linalg.inv(matrix).mT
    return picture(lifted[..., :2] / lifted[..., 2:])


def corner_error(found: Tensor, matrix: Tensor) -> float:
    """The largest distance between corners of the image, in pixels."""
    height, width = SIZE
    corners = torch.tensor([[0, 0, 1], [width - 1, 0, 1], [0, height - 1, 1], [width - 1, height - 1, 1]]).double()
    a, b = (corners @ m.mT for m in (found, matrix))
    return float((a[:, :2] / a[:, 2:] - b[:, :2] / b[:, 2:]).norm(dim=-1).max())


class TestLaws:
    def test_rotations(self) -> None:
        r, _ = SE(2).split(rotations(SE(2), 30.0)(2000, seeded(0)))
        angle = torch.atan2(r[:, 1, 0], r[:, 0, 0]).rad2deg()
        assert float(angle.abs().max()) <= 30.0
        assert abs(float(angle.std()) - 30 / math.sqrt(3)) < 0.7
        with pytest.raises(ConfigurationError, match="degrees: expected at most 180, got 400"):
            rotations(SO(2), 400.0)

    def test_scales(self) -> None:
        _, s, _ = Similarity(2).parts(scales(Similarity(2), 0.5, 4.0)(2000, seeded(0)))
        assert 0.5 <= float(s.min()) < 0.51
        assert 3.9 < float(s.max()) <= 4.0
        assert abs(float((s < math.sqrt(2)).double().mean()) - 0.5) < 0.05

    def test_shifts_are_shares_of_the_longer_side(self) -> None:
        warp = ImageWarp(Translation(2))
        matrix = warp.to_pixels(shifts(Translation(2), 0.1)(2000, seeded(0)), SIZE)
        assert 7.9 < float(matrix[:, :2, 2].abs().max()) <= 8.0

    def test_homographies_are_defined_on_the_frame(self) -> None:
        """Also those of a large share, of which a seventh would send a line of the frame to infinity."""
        g = homographies(Projective(2), 0.4, (12, 16))(2000, seeded(0)).float()
        warp, x = ImageWarp(Projective(2)), torch.ones(2000, 1, 12, 16)
        assert torch.isfinite(warp(g, x)).all()
        assert torch.isfinite(warp(warp.group.inverse(g), x)).all()

    @pytest.mark.parametrize("size", [(60, 80), (80, 60)])
    def test_homographies_move_corners_by_shares_of_the_sides(self, size: tuple[int, int]) -> None:
        """Corners are the outer edges of pixels, at -1/2 and w - 1/2."""
        warp = ImageWarp(Projective(2))
        matrix = warp.to_pixels(homographies(Projective(2), 0.25, size)(500, seeded(0)), size)
        for x in (-0.5, size[1] - 0.5):
            for y in (-0.5, size[0] - 0.5):
                moved = matrix @ torch.tensor([x, y, 1.0], dtype=torch.float64)
                away = moved[:, :2] / moved[:, 2:] - torch.tensor([x, y], dtype=torch.float64)
                share = away.abs() / torch.tensor([size[1], size[0]], dtype=torch.float64)
                assert 0.24 < float(share.max()) <= 0.25 + 1e-9
                assert abs(float((share < 0.125).double().mean()) - 0.5) < 0.06

    def test_products_and_refusals(self) -> None:
        group = Similarity(2)
        transformations = composed(group, rotations(group, 10.0), scales(group, 2.0, 2.0), shifts(group, 0.1))
        _, s, t = group.parts(transformations(50, seeded(0)))
        assert_relative(s, torch.full((50,), 2.0, dtype=torch.float64), 1e-12)
        assert float(t.abs().max()) <= 2 * math.sqrt(2) * 0.2
        for build in (
            lambda: scales(SE(2), 0.5, 2.0),
            lambda: shifts(SO(2), 0.1),
            lambda: homographies(Affine(2)),
            lambda: homographies(Projective(2), 0.5),
            lambda: scales(group, 2.0, 1.0),
            lambda: rotations(SO(3)),
            lambda: composed(group),
        ):
            with pytest.raises(ConfigurationError):
                build()
        # draws of other groups of the same shape: those of a larger one may be elements
        affine, rigid = Affine(2), SE(2)
        turned = composed(rigid, rotations(affine), shifts(rigid, 0.1))(20, seeded(0))
        assert_relative(rigid.project(turned), turned, 1e-12)
        with pytest.raises(DomainError, match=r"expected elements of SE\(2\), got 64 draws of 64"):
            composed(rigid, rotations(rigid), scales(affine, 0.6, 0.8))
        with pytest.raises(DomainError, match=r"expected elements of SE\(2\), got 5 draws of 5"):
            composed(rigid, lambda count, generator: scales(affine, 0.6, 0.8)(count, generator))(5, seeded(0))


class TestClosedForms:
    def test_rotations_are_those_of_scipy(self) -> None:
        x, y = randn(5, 20, 3, seed=1), randn(5, 20, 3, seed=2)
        found = fit_points(SO(3), x, y)
        assert found is not None
        for a, b, r in zip(x, y, found, strict=True):
            expected = Rotation.align_vectors(b.numpy(), a.numpy())[0].as_matrix()
            assert_relative(r, torch.from_numpy(expected), 1e-9)

    @pytest.mark.parametrize(
        "group", [Translation(2), SE(3), Similarity(2), Similarity(3), Affine(3), Projective(2)], ids=str
    )
    def test_exact_and_stationary(self, group: LieGroup) -> None:
        """Exact points give the element; of noisy ones no small motion lowers the squares that are minimised."""
        (n,) = group.action().point_dims
        x, g = randn(4, 12, n, seed=3), random_elements(group, 4, std=0.3, seed=4)
        y = group.action()(g, x)
        assert_relative(fit_points(group, x, y), g, 1e-8)
        if isinstance(group, Projective):
            return  # the squares of equations
        y = y + 0.1 * randn(4, 12, n, seed=5)
        found = fit_points(group, x, y)

        def squares(v: Tensor) -> Tensor:
            return (group.action()(group.compose(found, group.exp(v)), x) - y).square().sum()

        slope = torch.func.grad(squares)(torch.zeros(4, group.dim, dtype=torch.float64))
        assert float(slope.abs().max()) < 1e-9


class TestImages:
    @pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
    def test_homographies_that_move_corners_by_a_fifth(self, seed: int) -> None:
        warp = ImageWarp(Projective(2))
        matrix = warp.to_pixels(homographies(Projective(2), 0.2, SIZE)(1, seeded(seed))[0], SIZE)
        moving, fixed = picture(pixels()), seen_at(matrix)
        r = register(moving, fixed, Projective(2))
        assert r.found
        assert corner_error(warp.to_pixels(r.element, SIZE), matrix) < 0.1
        covered = warp.coverage(r.element, SIZE)
        assert float((warp(r.element, moving) - fixed)[:, covered].square().mean().sqrt()) < 0.05 * float(fixed.std())

    def test_what_hides_a_part_does_not_matter(self) -> None:
        warp = ImageWarp(Similarity(2))
        transformations = composed(
            warp.group, rotations(warp.group, 15.0), scales(warp.group, 0.9, 1.1), shifts(warp.group, 0.05)
        )
        matrix = warp.to_pixels(transformations(1, seeded(3))[0], SIZE)
        fixed = seen_at(matrix)
        fixed[:, 10:30, 20:45] = 4.0
        r = register(picture(pixels()), fixed, warp.group, transformations=transformations, num_starts=32)
        assert corner_error(warp.to_pixels(r.element, SIZE), matrix) < 0.15

    @pytest.mark.parametrize(
        ("gain", "offset"),
        [
            ((1.2, 0.7), (0.1, -0.3)),
            ((0.1, 0.1), (2.0, 2.0)),
            pytest.param((255.0, 255.0), (0.0, 9.0), marks=pytest.mark.slow(reason="a smaller gain stays")),
        ],
    )
    def test_other_exposures(self, gain: tuple[float, float], offset: tuple[float, float]) -> None:
        """A gain and an offset of each channel: corners were off by up to half a pixel, and trusted."""
        warp = ImageWarp(Similarity(2))
        transformations = composed(
            warp.group, rotations(warp.group, 10.0), scales(warp.group, 0.9, 1.1), shifts(warp.group, 0.05)
        )
        matrix = warp.to_pixels(transformations(1, seeded(3))[0], SIZE)
        plain = seen_at(matrix)
        plain[:, 10:25, 20:35] = 4.0  # something else
        exposed = torch.tensor(gain).double()[:, None, None] * plain + torch.tensor(offset).double()[:, None, None]
        r = register(picture(pixels()), exposed, warp.group, num_starts=32)
        assert r.trusted, r.reasons
        assert corner_error(warp.to_pixels(r.element, SIZE), matrix) < 0.1

    def test_half_a_turn(self) -> None:
        """Correlations of edges say where to begin, as do transformations; where nothing fits the reasons say so."""
        half_turn = -torch.eye(2, dtype=torch.float64)
        image = picture(pixels())
        turned = ImageWarp(SO(2))(half_turn, image)
        for options in ({}, {"transformations": rotations(SO(2))}):
            r = register(image, turned, SO(2), num_starts=16, **options)
            assert r.trusted, r.reasons
            assert_relative(r.element, half_turn, 1e-5)
        r = register(image, randn(*image.shape, seed=3), SO(2), num_starts=8)
        assert not r.trusted
        assert "give transformations" in r.reasons[-1]

    def test_images_of_other_things_are_not_trusted(self) -> None:
        """Their residuals are as those of noise, and their element had the covariance of noise."""
        coarse = [randn(1, 3, 8, 10, seed=seed).float() for seed in (14, 15)]
        one, other = (torch.nn.functional.interpolate(image, (40, 50), mode="bicubic")[0] for image in coarse)
        noisy = one + 0.3 * randn(3, 40, 50, seed=16).float()
        assert register(one, noisy, SE(2), num_starts=4).trusted
        r = register(one, other, SE(2), num_starts=8)
        assert "of the contrast is shared" in " ".join(r.reasons)

    @pytest.mark.parametrize("seed", range(3))
    def test_eight_numbers_for_other_things(self, seed: int) -> None:
        """Steps of a homography may lead out of the frame, where nothing is left to compare."""
        drawn = randn(2, 1, 12, 12, seed=30 + seed).float()
        one, other = torch.nn.functional.interpolate(drawn, (48, 48), mode="bicubic")
        assert not register(one, other, Projective(2)).trusted

    def test_a_part_that_is_hidden_exactly_is_trusted(self) -> None:
        """Residuals of rounding alone: the minimum is not looked for in the digits that the data do not have."""
        image = picture(pixels()).float()
        fixed = image.clone()
        fixed[:, 10:30, 10:40] = 4.0
        r = register(image, fixed, SE(2), num_starts=4)
        assert r.trusted, r.reasons
        assert_relative(r.element.double(), SE(2).identity(dtype=torch.float64), 1e-6, floor=1.0)

    def test_single_precision_has_one_mode(self) -> None:
        """Homographies found in single precision have a determinant that is one to seven digits, and no logarithm."""
        image, group = picture(pixels((40, 60))).float(), Projective(2)
        g = homographies(group, 0.2)(1, seeded(4)).float()
        r = register(image, ImageWarp(group)(g, image[None])[0], group, num_starts=4)
        assert r.trusted, r.reasons
        assert int(r.modes.num_modes) == 1

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_registered_in_single(self, dtype: torch.dtype) -> None:
        image = picture(pixels((20, 24))).to(dtype)
        r = register(image, image, SE(2), num_starts=2)
        assert r.element.dtype == torch.float32
        assert_relative(r.element, SE(2).identity(), 1e-4, floor=1.0)

    @pytest.mark.parametrize(
        "size",
        [(12, 16), (1, 1), pytest.param((1, 50), marks=pytest.mark.slow(reason="one pixel stays"))],
        ids=str,
    )
    def test_nothing_to_see_is_not_trusted(self, size: tuple[int, int]) -> None:
        one, image = torch.ones(1, *size), rand(1, *size).float()
        r = register(one, one, SE(2), num_starts=4)
        assert "determine" in " ".join(r.reasons)
        assert " 0% of the contrast" in " ".join(("", *r.reasons))
        for moving, fixed in ((one, image), (image, one)):
            assert not register(moving, fixed, SE(2), num_starts=4).trusted

    def test_residuals_beyond_the_image_count_for_nothing(self) -> None:
        """A shift by a quarter of the frame: the mean over what is covered, by hand; NaN where hardly anything is."""
        image, reference = rand(1, 2, 8, 8, seed=1), rand(2, 8, 8, seed=2)
        warp = ImageWarp(Translation(2), guarded=False)
        shift = torch.tensor([0.5, 0.0], dtype=torch.float64)
        energy = LeastSquares(PairedImages(reference))
        covered = (image[0, :, :, :6] - reference[:, :, 2:]).square().sum()
        assert_relative(energy(warp(shift, with_coverage(image)))[0], 0.5 * covered * 8 / 6, 1e-10)
        assert bool(energy(warp(4 * shift, with_coverage(image))).isnan().all())
        with pytest.raises(ShapeError, match="with_coverage"):
            energy(image)

    @pytest.mark.parametrize("group", [SO(2), SE(2), E(2), Affine(2), Projective(2)], ids=str)
    def test_curvature_in_closed_form(self, group: LieGroup) -> None:
        """The product of Jacobians in forward mode: of images that leave the frame in part, under a robust loss."""
        warp, g = ImageWarp(group, guarded=False), random_elements(group, 2, 3, std=0.2, seed=3)
        x, reference = with_coverage(rand(2, 3, 10, 13, seed=1)), rand(3, 10, 13, seed=2)
        energy = LeastSquares(PairedImages(reference), GemanMcClure(0.5), std=0.3)
        found = InverseProblem(warp, energy).given(x).curvature(g)

        def restored(v: Tensor) -> Tensor:
            return warp(group.inverse(group.perturb(g, v)), x.unsqueeze(1)).flatten(0, 1)

        zero = torch.zeros(2, 3, group.dim, dtype=torch.float64)
        assert_relative(found.flatten(0, 1), energy.curvature(restored, zero), 1e-11)
        assert energy.closed_form_curvature(ImageWarp(group, "bicubic"), g, x) is None

    def test_no_curvature_where_a_homography_breaks_the_frame(self) -> None:
        """Nor where hardly anything is left of the image."""
        warp, x = ImageWarp(Projective(2), guarded=False), with_coverage(rand(1, 1, 6, 6, seed=1))
        broken, gone = torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
        broken[2, 0], gone[0, 2] = 1.5, 1.95
        g = warp.point_action.from_homogeneous(torch.stack([broken, gone]))
        energy = LeastSquares(PairedImages(rand(1, 6, 6, seed=2)))
        assert bool(InverseProblem(warp, energy).given(x).curvature(g[None]).isnan().all())

    def test_levenberg_and_marquardt_on_images(self) -> None:
        """It was a NotImplementedError: torch samples without forward mode."""
        warp = ImageWarp(SE(2), guarded=False)
        still, v = picture(pixels()), torch.tensor([0.05, 0.03, -0.02], dtype=torch.float64)
        energy = LeastSquares(lambda x: (x - still)[:, :, 8:-8, 8:-8].flatten(1))
        r = Inverter(warp, energy, [LevenbergMarquardt(8)])(warp(SE(2).exp(v), still)[None])
        assert_relative(SE(2).log(r.best())[0], v, 2e-3)


class TestClouds:
    @pytest.mark.parametrize("offset", [0.0, 5e5, 4.6e6, 1e7])
    @pytest.mark.parametrize("group", [SE(3), Similarity(3), Affine(2)], ids=str)
    def test_map_coordinates(self, group: LieGroup, offset: float) -> None:
        """Beside 1e7 the last digit is 2e-9."""
        (n,) = group.action().point_dims
        moving = randn(50, n, seed=1)
        fixed = group.action()(random_elements(group, std=0.5, seed=2), moving) + offset
        moving = moving + 0.7 * offset
        r = register(moving, fixed, group)
        assert float((PointCloud(group)(r.element, moving) - fixed).abs().max()) < 1e-11 + 2e-15 * offset
        assert r.trusted, r.reasons

    def test_places_that_are_seen_again_and_again(self) -> None:
        """A hundred rows hold ten places, in any order: no pose explains them better than outliers do."""
        places = randn(10, 2, seed=40)
        moving, fixed = (places + 0.3 * randn(10, 2, seed=seed) for seed in (41, 42))
        moving, fixed = (x.repeat(10, 1) + 0.01 * randn(100, 2, seed=seed) for x, seed in ((moving, 43), (fixed, 44)))
        r = register(moving, fixed, SE(2))
        assert r.element.shape == (2, 3)

    def test_unrelated_clouds(self) -> None:
        """No motion is better than others nearby; curves that are seen at other points lie on each other."""
        r = register(randn(30, 2, seed=1), randn(30, 2, seed=2), SE(2), matched=False, num_starts=16)
        assert "determine" in " ".join(r.reasons)
        r = register(randn(30, 2, seed=1), randn(30, 2, seed=2), SE(2), matched=True, num_starts=16)
        assert any("too much for one shape" in reason for reason in r.reasons)

        def curve(angle: Tensor) -> Tensor:
            return torch.stack([(2.0 + angle.cos()) * angle.cos(), angle.sin()], -1)

        g = random_elements(SE(2), std=0.5, seed=3)
        moving, fixed = curve(2 * math.pi * rand(40, seed=4)), curve(2 * math.pi * rand(60, seed=5))
        r = register(moving, SE(2).action()(g, fixed), SE(2), num_starts=16)
        assert r.trusted, r.reasons
        assert float((r.element - g).abs().max()) < 0.1

    def test_outliers_in_the_same_order(self) -> None:
        group, moving = Similarity(3), randn(60, 3, seed=1)
        g = random_elements(group, std=0.5, seed=2)
        fixed = group.action()(g, moving) + 0.001 * randn(60, 3, seed=3)
        fixed[:20] = 3 * randn(20, 3, seed=4)
        r = register(moving, fixed, group, matched=True)
        assert_relative(r.element, g, 3e-3)

    @pytest.mark.parametrize("noise", [pytest.param(0.0, marks=pytest.mark.slow), 0.01])
    def test_unknown_scale_without_an_order(self, noise: float) -> None:
        """The scale collapsed to 3.6e5 for 2.5 with distances one way."""
        group, generator = Similarity(3), seeded(2)
        moving = rand(150, 3, seed=1) * torch.tensor([1.0, 0.7, 0.4], dtype=torch.float64)
        moving[:50] += torch.tensor([0.5, 0.0, 0.2], dtype=torch.float64)
        turn = SO(3).random_haar(generator=generator, dtype=torch.float64)
        g = group.from_parts(turn, torch.tensor(2.5).double(), torch.tensor([1.0, 2.0, 3.0]).double())
        fixed = group.action()(g, moving)[torch.randperm(150, generator=generator)] + noise * randn(150, 3, seed=4)
        r = register(moving, fixed, group, num_starts=200)
        found, scale, _ = group.parts(r.element)
        assert abs(float(scale) / 2.5 - 1) < 0.01
        assert float(SO(3).distance(found, turn)) < 0.02
        shrunk = group.from_parts(turn, torch.tensor(1e-6).double(), g[:, 3])
        both = LeastSquares(SymmetricNearestPoints(fixed))
        assert float(both(group.action()(shrunk, moving)[None])) > 100 * float(both(group.action()(g, moving)[None]))

    @pytest.mark.parametrize(
        ("group", "offset", "number"),
        [(SE(2), 0.0, 10), *(pytest.param(*case, 40, marks=pytest.mark.slow) for case in ((SE(2), 0.0), (SE(3), 1e4)))],
        ids=str,
    )
    def test_covariances_cover(self, group: LieGroup, offset: float, number: int) -> None:
        """Squared distances of the truth follow the chi-squared distribution: mean dim, variance 2 dim."""
        (n,) = group.action().point_dims
        squares = []
        for seed in range(number):
            moving, g = randn(40, n, seed=seed) + offset, random_elements(group, std=0.5, seed=seed)
            fixed = group.action()(g, moving) + 0.02 * randn(40, n, seed=1000 + seed)
            r = register(moving, fixed, group, matched=True, num_starts=2)
            v = group.log(group.compose(group.inverse(r.element), g))
            squares.append(float(v @ torch.linalg.solve(r.covariance, v)))
        ninety = {3: 6.251, 6: 10.645}[group.dim]  # of the chi-squared distribution
        error = math.sqrt(2 / (group.dim * number))
        assert abs(sum(squares) / number / group.dim - 1) < 3 * error
        assert sum(square < ninety for square in squares) >= 0.9 * number - 3 * math.sqrt(0.09 * number)

    @pytest.mark.parametrize("group", [SE(2), pytest.param(SE(3), marks=pytest.mark.slow(reason="the plane stays"))])
    def test_covariance_without_an_order(self, group: LieGroup) -> None:
        """Points far from each other: each has one partner, and the covariance is that of clouds in the same order."""
        moving, g = 3.0 * randn(30, group.element_shape[0]), random_elements(group, std=0.2)
        fixed = group.action()(g, moving) + 0.02 * randn(*moving.shape, seed=1)
        order = torch.randperm(len(fixed), generator=seeded(0))
        matched = register(moving, fixed, group, matched=True)
        free = register(moving, fixed[order], group, num_starts=8)
        assert float(group.distance(matched.element, free.element)) < 1e-3
        assert_relative(free.covariance, matched.covariance, 0.15)

    def test_a_symmetric_cloud_has_two_modes(self) -> None:
        """A rectangle of points and itself turned by 180 degrees."""
        side = torch.linspace(-1.0, 1.0, 9, dtype=torch.float64)
        grid = torch.cartesian_prod(side, 0.4 * side)
        g = SE(2).join(SO(2).exp(torch.tensor([0.4]).double()), torch.tensor([3.0, -2.0]).double())
        order = torch.randperm(81, generator=seeded(0))
        fixed = SE(2).action()(g, grid)[order] + 0.01 * randn(81, 2, seed=1)
        r = register(grid, fixed, SE(2), num_starts=64)
        assert int(r.modes.num_modes) == 2
        assert "2 modes" in " ".join(r.reasons)
        half_turn = SE(2).join(-torch.eye(2).double(), torch.zeros(2).double())
        for expected in (g, SE(2).compose(g, half_turn)):
            assert float((r.modes.elements[0] - expected).abs().amax((-2, -1)).min()) < 0.02

    @pytest.mark.parametrize(
        ("symmetry", "number"), [("D2", 20), pytest.param("O", 5, marks=pytest.mark.slow(reason="the cuboid stays"))]
    )
    def test_all_poses_of_a_symmetric_object(self, symmetry: str, number: int) -> None:
        """Points with the symmetries of a cuboid (4 poses) and a cube (24): no pose is taken for the only one."""
        turns = torch.from_numpy(Rotation.create_group(symmetry).as_matrix())
        side = torch.tensor([1.0, 0.6, 0.35] if symmetry == "D2" else [1.0, 1.0, 1.0]).double()
        moving = torch.einsum("fij,nj->fni", turns, rand(number, 3) * side).reshape(-1, 3)
        g = random_elements(SE(3), std=1.0)
        order = torch.randperm(len(moving), generator=seeded(0))
        r = register(moving, SE(3).action()(g, moving)[order] + 0.005 * randn(len(moving), 3, seed=1), SE(3))
        poses = SE(3).compose(g, SE(3).join(turns, torch.zeros(len(turns), 3).double()))
        assert int(r.modes.num_modes) == len(turns)
        assert float(torch.cdist(r.modes.elements[0].flatten(1), poses.flatten(1)).min(0).values.max()) < 0.05
        assert not r.trusted

    @pytest.mark.parametrize("noise", [0.0, 0.01])
    def test_points_on_a_line_do_not_determine_a_rotation(self, noise: float) -> None:
        """Without noise any direction was certain."""
        line = torch.linspace(-1.0, 1.0, 20, dtype=torch.float64)[:, None] * torch.tensor([1.0, 2.0, 0.5]).double()
        r = register(
            line,
            SE(3).action()(random_elements(SE(3), std=0.5), line) + noise * randn(20, 3, seed=1),
            SE(3),
            matched=True,
        )
        assert not r.trusted
        assert "determine" in " ".join(r.reasons)
        assert torch.equal(r.modes.elements[0, 0], r.element)
        assert r.modes.num_modes.tolist() == [1]

    def test_what_is_no_element_is_not_found(self) -> None:
        """Points on a line leave affine maps nearly singular: rounding took one out of the group."""
        line = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None] * torch.tensor([[1.0, 2.0, 3.0]]).double()
        for seed in range(3):
            g = Affine(3).random(generator=seeded(seed), dtype=torch.float64)
            r = register(line, Affine(3).action()(g, line), Affine(3), matched=True)
            assert r.found == bool(torch.isfinite(r.element).all())
            assert not r.trusted
            assert r.modes.labels.shape == (1, 1)  # no draws are clustered of what is not determined

    @pytest.mark.parametrize(
        ("group", "few", "matched"),
        [
            *((group, few, True) for group, few in FEW_POINTS.items()),
            *((group, FEW_POINTS[group], False) for group in UNMATCHED),
            *(
                pytest.param(group, few, False, marks=pytest.mark.slow(reason="two groups stay"))
                for group, few in FEW_POINTS.items()
                if group not in UNMATCHED
            ),
        ],
        ids=str,
    )
    def test_as_many_points_as_it_takes(self, group: LieGroup, few: int, matched: bool) -> None:
        """Exact ones: one point less leaves a direction free, by counting; three more tell the error."""
        (n,) = group.action().point_dims
        g, x = random_elements(group, std=0.3, seed=1), randn(few + 3, n, seed=2)
        y = group.action()(g, x)
        assert not register(x[:few], y[:few], group, matched=matched, num_starts=8).trusted
        if matched:  # any order of so few points may fit otherwise
            r = register(x, y, group, matched=True, num_starts=8)
            assert r.trusted, r.reasons
            assert_relative(r.element, g, 1e-8)


def test_refusals() -> None:
    cloud, image = torch.zeros(4, 3), torch.zeros(1, 5, 6)
    for error, moving, fixed, group in (
        (ShapeError, cloud, image, SE(3)),
        (ShapeError, image.repeat(3, 1, 1), image.repeat(2, 1, 1), SE(2)),
        (ConfigurationError, image[0].repeat(9, 9), image[0].repeat(9, 9), SE(2)),
        (ShapeError, torch.zeros(3), torch.zeros(3), SE(2)),
        (ShapeError, cloud, torch.zeros(4, 2), SE(3)),
        (ConfigurationError, cloud, cloud, SE(2)),
        (ConfigurationError, image, image, SE(3)),
        (ConfigurationError, cloud[:, :2].byte(), cloud[:, :2].byte(), SE(2)),
        (ConfigurationError, image.bool(), image.bool(), SE(2)),
        (ShapeError, torch.zeros(20, 30, 3), torch.zeros(20, 30, 3), SE(2)),
        (NonFiniteError, image * math.nan, image, SE(2)),
    ):
        with pytest.raises(error):
            register(moving, fixed, group)
    with pytest.raises(ConfigurationError, match="matched"):
        register(image, image, SE(2), matched=True)
    with pytest.raises(ShapeError, match="fixed_mask"):
        register(image, image, SE(2), fixed_mask=torch.ones(6, 5))
    with pytest.raises(ConfigurationError, match="photographs"):
        register(randn(9, 2), randn(9, 2), SE(2), matched=True).to_pixels()


def test_figures_that_are_none_are_not_trusted() -> None:
    """Each figure of a check in turn is NaN."""
    one = torch.eye(3)
    assert doubts(1e-4 * one, 0.0, 1.0) == ()
    assert "the descent has not ended" in doubts(1e-4 * one, math.nan, 1.0)[0]
    assert "of the residuals agree" in doubts(1e-4 * one, 0.0, math.nan)[0]
    cloud = randn(20, 2)
    for in_order in (True, False):
        assert _unlike(0.0, cloud, cloud, in_order) == ()
        assert "one shape" in _unlike(math.nan, cloud, cloud, in_order)[0]
