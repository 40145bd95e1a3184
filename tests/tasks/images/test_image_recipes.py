"""Transformed test digits: the distributions of the recipes, and images that are what their elements say."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from torch import Tensor

from tasks.images.mnist import BundledSample
from tasks.images.testsets import DrawnProblems, DrawnTest, ImageProblems
from tasks.images.transformations import (
    AffineRecipe,
    BroadNoise,
    HomographyRecipe,
    NoTransformation,
    RandomTransformations,
    SimilarityRecipe,
    affine_noise,
    homography_noise,
)
from tasks.seeds import generator_of
from tests.helpers import assert_relative
from tests.tasks.sample_runs import framed_digits
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups import Affine, Projective

RECIPES = [AffineRecipe(), HomographyRecipe(steps=20), SimilarityRecipe()]


def generators(count: int, seed: int = 0) -> list[torch.Generator]:
    return [generator_of(seed, i) for i in range(count)]


def problems(transformations: RandomTransformations, seed: int = 0) -> DrawnProblems:
    return DrawnProblems(BundledSample(), transformations, seed)


def pixel_corners(ink: Tensor) -> Tensor:
    """Corners of the pixels with ink, `[p, 2]`, in the frame [-1, 1]^2."""
    rows, columns = ink.nonzero(as_tuple=True)
    side = ink.shape[-1]
    corners = [torch.stack([columns + i, rows + j], -1) for i in (0, 1) for j in (0, 1)]
    return 2.0 * torch.cat(corners).double() / side - 1.0


class TestGenerators:
    def test_functions_of_their_key(self) -> None:
        draws = [torch.rand(4, generator=generator_of(*key)) for key in ((0, 1), (0, 1), (1, 0), (0, 2), (1,))]
        assert torch.equal(draws[0], draws[1])
        assert len({tuple(d.tolist()) for d in draws}) == 4


class TestAffineRecipe:
    @pytest.fixture
    def drawn(self) -> tuple[Tensor, Tensor]:
        clean = framed_digits(BundledSample().test().images)
        return AffineRecipe().draw(clean, generators(len(clean))), clean

    def test_the_parameters_are_uniform(self, drawn: tuple[Tensor, Tensor]) -> None:
        linear = drawn[0][..., :2]
        # A = R(theta) [[1, k], [0, 1]] diag(sx, sy) is a QR decomposition
        q, r = torch.linalg.qr(linear)
        signs = r.diagonal(dim1=-2, dim2=-1).sign()
        q, r = q * signs[:, None, :], r * signs[:, :, None]
        parameters = {
            "angle": (torch.atan2(q[:, 1, 0], q[:, 0, 0]).rad2deg(), -20, 20),
            "shear": (r[:, 0, 1] / r[:, 1, 1], -0.2, 0.2),
            "scale x": (r[:, 0, 0], 0.8, 1.2),
            "scale y": (r[:, 1, 1], 0.8, 1.2),
        }
        for name, (values, low, high) in parameters.items():
            assert stats.kstest(values.numpy(), stats.uniform(low, high - low).cdf).pvalue > 0.01, name
        table = np.stack([v.numpy() for v, _, _ in parameters.values()])
        assert np.abs(np.corrcoef(table) - np.eye(4)).max() < 4 / math.sqrt(512)

    def test_ink_stays_inside_and_its_place_is_uniform(self, drawn: tuple[Tensor, Tensor]) -> None:
        elements, clean = drawn
        shares = []
        for g, image in zip(elements[:256], clean[:256], strict=True):
            moved = Affine(2).action()(g, pixel_corners(image[0] > 0))
            assert moved.abs().max() <= 1 + 1e-12
            still = moved - g[:, 2]
            low, high = -1 - still.amin(0), 1 - still.amax(0)  # the translations that keep it inside
            shares.append((g[:, 2] - low) / (high - low))
        x, y = torch.stack(shares).T.numpy()
        assert stats.kstest(x, "uniform").pvalue > 0.01
        assert stats.kstest(y, "uniform").pvalue > 0.01
        assert abs(np.corrcoef(x, y)[0, 1]) < 4 / math.sqrt(256)

    def test_no_ink_is_lost(self) -> None:
        batch = problems(AffineRecipe())[list(range(100))]
        area = torch.linalg.det(batch.element[..., :2])
        ratio = batch.image.sum((1, 2, 3)) / (area * batch.clean.sum((1, 2, 3)))
        assert (ratio - 1).abs().max() < 0.05

    def test_ink_that_does_not_fit_is_centred(self) -> None:
        image = torch.zeros(2, 1, 40, 40)
        image[0, 0, 3:38, 5:10] = 1  # 35 pixels high
        elements = AffineRecipe(degrees=0.0, shear=0.0, scale_min=2.0, scale_max=2.0).draw(image, generators(2))
        moved = Affine(2).action()(elements[0], pixel_corners(image[0, 0] > 0))
        assert float(moved[:, 1].amin() + moved[:, 1].amax()) == pytest.approx(0)
        assert moved[:, 0].abs().max() <= 1
        assert elements[1, :, 2].tolist() == [0, 0]  # a blank image counts as full

    @pytest.mark.parametrize(
        "options", [{"degrees": -1.0}, {"shear": math.nan}, {"scale_min": 0.0}, {"scale_min": 2.0, "scale_max": 1.0}]
    )
    def test_wrong_configuration(self, options: dict[str, float]) -> None:
        with pytest.raises(ConfigurationError):
            AffineRecipe(**options)


class TestSimilarityRecipe:
    def test_the_parts_are_uniform(self) -> None:
        """Angle, logarithm of the scale and shift of x -> A x + b, read from A and b."""
        a, b = SimilarityRecipe().draw(torch.zeros(1), generators(1000)).split([2, 1], -1)
        scale = torch.linalg.det(a).sqrt()
        assert_relative(a.mT @ a, scale.square()[:, None, None] * torch.eye(2), 1e-12)
        angle = torch.atan2(a[:, 1, 0], a[:, 0, 0])
        for value, low, high in (
            (angle, -math.pi / 2, math.pi / 2),
            (scale.log(), math.log(0.6), math.log(1.6)),
            *((shift, -0.4, 0.4) for shift in b.squeeze(-1).T),
        ):
            assert stats.kstest(value.numpy(), "uniform", (low, high - low)).pvalue > 1e-3

    @pytest.mark.parametrize("options", [{"degrees": -1.0}, {"shift": math.inf}, {"scale_min": 2.0}])
    def test_wrong_bounds(self, options: dict[str, float]) -> None:
        with pytest.raises(ConfigurationError, match="expected"):
            SimilarityRecipe(**options)


class TestHomographyRecipe:
    WIDE = HomographyRecipe(box=[5 * s for s in (0.15, 0.35, 0.17, 0.35, 0.15, 0.17, 0.15, 0.15)])

    def test_density_is_that_of_haar_measure(self) -> None:
        v = self.WIDE.box * torch.randn(50, 8, generator=generator_of(1), dtype=torch.float64)
        jacobian = Projective(2).left_jacobian(v)
        torch.testing.assert_close(self.WIDE.log_density(v), torch.linalg.slogdet(jacobian).logabsdet)
        # to second order, tr ad(v)^2 / 24, and the Killing form of sl(3) is 6 tr V^2
        small = 1e-3 * v
        matrix = Projective(2).hat(small)
        torch.testing.assert_close(
            self.WIDE.log_density(small),
            (matrix @ matrix).diagonal(dim1=-2, dim2=-1).sum(-1) / 4,
            rtol=1e-4,
            atol=1e-13,
        )
        rotation = torch.zeros(8, dtype=torch.float64)
        rotation[1], rotation[3] = 2.0, -2.0  # eigenvalues 0 and +-2i
        expected = 4 * math.log(math.sin(1) / 1) + 2 * math.log(abs(math.sin(2) / 2))
        assert float(self.WIDE.log_density(rotation)) == pytest.approx(expected)
        assert float(self.WIDE.log_density(0 * rotation)) == 0

    @pytest.mark.slow
    def test_walks_end_in_their_stationary_distribution(self) -> None:
        """On a box so wide that the density matters, against weighted uniform samples."""
        recipe = self.WIDE
        v = recipe.walk(generators(20_000)) / recipe.box
        uniform = 2 * torch.rand(400_000, 8, generator=generator_of(2), dtype=torch.float64) - 1
        weight = recipe.log_density(recipe.box * uniform).softmax(0)
        assert (weight @ uniform.square() - 1 / 3).abs().max() > 0.02  # so a walk without the ratio would fail
        error = v.square().std(0) / math.sqrt(len(v))
        assert ((v.square().mean(0) - weight @ uniform.square()) / error).abs().max() < 4
        assert (v.mean(0) * math.sqrt(len(v)) / v.std(0)).abs().max() < 4
        products = (v[:, 1] * v[:, 3], weight @ (uniform[:, 1] * uniform[:, 3]))  # e12 e21: rotations against strains
        assert abs(products[1]) > 0.02
        assert abs(products[0].mean() - products[1]) < 4 * products[0].std() / math.sqrt(len(v))

    def test_walks_reach_the_whole_box_and_stay_in_it(self) -> None:
        recipe = HomographyRecipe()
        v = recipe.walk(generators(400)) / recipe.box
        assert v.abs().max() <= 1
        assert v.abs().amax(0).min() > 0.95
        assert (v.square().mean(0) - 1 / 3).abs().max() < 0.06  # nearly uniform: there the density is 1 to a tenth

    def test_on_the_box_all_is_defined_and_one_to_one(self) -> None:
        recipe = HomographyRecipe()
        corners = recipe.box * (2.0 * torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 8) - 1)
        g = recipe.group.exp(corners)
        torch.testing.assert_close(recipe.group.log(g), corners)
        frame = torch.tensor([[-1.0, -1], [-1, 1], [1, -1], [1, 1]], dtype=torch.float64)
        for element in (g, recipe.group.inverse(g)):
            assert recipe.group.action().denominator(element, frame).min() > 0.2

    @pytest.mark.parametrize("options", [{"box": [0.1] * 7}, {"box": [0.1] * 7 + [0.0]}, {"steps": 0}])
    def test_wrong_configuration(self, options: dict) -> None:
        with pytest.raises(ConfigurationError):
            HomographyRecipe(**options)


class TestBroadNoise:
    @pytest.mark.parametrize("recipe", [affine_noise(), homography_noise()], ids=["affine", "homography"])
    def test_variance(self, recipe: BroadNoise) -> None:
        v = recipe.group.log(recipe.draw(torch.zeros(2_000, 1, 40, 40), [generator_of(0)] * 2_000)) / recipe.spread
        assert (v.square().mean(0) * 3 - 1).abs().max() < 0.15  # E r^2 = 1 / 3
        assert (
            stats.kurtosis(v.numpy()).min() > 1
        )  # a mixture of small and large, not a normal distribution: 9/5 * 3 - 3

    @pytest.mark.parametrize("spread", [[0.1] * 5, [0.1] * 5 + [-1.0]])
    def test_wrong_configuration(self, spread: Sequence[float]) -> None:
        with pytest.raises(ConfigurationError):
            BroadNoise(Affine(2), spread)


class TestProblems:
    @pytest.mark.parametrize("recipe", RECIPES, ids=["affine", "homography", "similarity"])
    def test_the_element_makes_the_image(self, recipe: RandomTransformations) -> None:
        batch = problems(recipe)[[3, 1, 4]]
        inverse = recipe.group.inverse(batch.element.double())
        centres = torch.arange(40, dtype=torch.float64).mul(2).sub(39).div(40)
        grid = torch.stack(torch.meshgrid(centres, centres, indexing="xy"), -1).flatten(0, 1)
        source = recipe.group.action()(inverse, grid)
        pixels = ((source + 1) * 20 - 0.5).unflatten(1, (40, 40))  # (x right, y down) in pixels
        for image, clean, at in zip(batch.image, batch.clean, pixels, strict=True):
            expected = ndimage.map_coordinates(
                clean[0].double().numpy(), [at[..., 1].numpy(), at[..., 0].numpy()], order=1, mode="constant"
            )
            np.testing.assert_allclose(image[0].numpy(), expected, atol=2e-5)
        assert (batch.image - batch.clean).abs().amax((1, 2, 3)).min() > 0.3

    @pytest.mark.parametrize("recipe", RECIPES, ids=["affine", "homography", "similarity"])
    def test_functions_of_seed_and_place_alone(self, recipe: RandomTransformations) -> None:
        def same(a: ImageProblems, b: ImageProblems) -> bool:
            return all(torch.equal(x, y) for x, y in zip(a[:5], b[:5], strict=True))

        whole = problems(recipe)[[5, 6, 7, 8]]
        assert whole.place.tolist() == [5, 6, 7, 8]
        assert same(ImageProblems(*(x[2:3] for x in whole[:5])), problems(recipe)[[7]])
        assert not torch.equal(whole.element[0], whole.element[1])
        assert not torch.equal(whole.element, problems(recipe, seed=1)[[5, 6, 7, 8]].element)
        assert torch.equal(whole.label, BundledSample().test().labels[5:9])
        assert torch.equal(whole.clean, framed_digits(BundledSample().test().images[5:9]))

    def test_no_transformation(self) -> None:
        for group in (None, Projective(2)):
            batch = problems(NoTransformation(group))[[0, 1]]
            torch.testing.assert_close(batch.image, batch.clean)

    def test_undefined_transformations_are_refused(self) -> None:
        with pytest.raises(DomainError, match="defined on the whole frame"):
            problems(homography_noise(perspective=5.0))[list(range(20))]

    def test_limit_and_order(self) -> None:
        def places(limit: int | None, seed: int, batch_size: int = 100) -> list[int]:
            data = DrawnTest(NoTransformation(), BundledSample(), limit, batch_size, seed)
            data.prepare_data()
            data.setup("test")
            return [i for batch in data.test_dataloader() for i in batch.place.tolist()]

        everything = places(None, 0)
        assert sorted(everything) == list(range(512))
        assert places(30, 0, batch_size=7) == everything[:30]
        assert places(30, 1) != everything[:30]
        assert places(1_000, 0) == everything
        with pytest.raises(ConfigurationError, match="limit"):
            DrawnTest(NoTransformation(), limit=0)
