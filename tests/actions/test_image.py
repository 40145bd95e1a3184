"""Warps of images against exact rotations and shifts, closed-form images, dense Jacobians; and their domain."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from tests.helpers import assert_relative, numeric_jacobian, rand, randn, random_elements
from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SE, SO, Action, Affine, HeatSymmetry, LieGroup, Projective
from trivgeo.inversion import InverseProblem, Inverter
from trivgeo.inversion.energies import DataEnergy, FramedEnergy, PriorEnergy

GROUPS = [SO(2), SE(2), Affine(2), Projective(2)]


def lattice(size: int) -> Tensor:
    """Centres of the pixels, by hand."""
    centre = torch.tensor([-1 + (2 * i + 1) / size for i in range(size)], dtype=torch.float64)
    y, x = torch.meshgrid(centre, centre, indexing="ij")
    return torch.stack([x, y], -1)


def blob(points: Tensor) -> Tensor:
    """A smooth image that is as good as zero near the edge of the frame, so that warps by small elements keep it."""
    x, y = points.unbind(-1)
    return torch.exp(-14 * ((x - 0.1) ** 2 + (y + 0.05) ** 2)) * (1 + 0.5 * torch.sin(4 * x) + 0.3 * torch.cos(5 * y))


class TestExactWarps:
    @pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
    def test_quarter_turn_is_clockwise_on_the_screen(self, mode: str) -> None:
        image = rand(3, 2, 9, 9)
        quarter = torch.tensor([[math.pi / 2]], dtype=torch.float64)
        assert_relative(ImageWarp(SO(2), mode)(SO(2).exp(quarter), image), image.rot90(-1, (-2, -1)), 1e-12)

    def test_shift_by_whole_pixels_brings_zeros_in(self) -> None:
        image, group = rand(1, 6, 10), Affine(2)
        g = group.join(torch.eye(2, dtype=torch.float64), torch.tensor([2 * 3 / 10, -2 * 2 / 10], dtype=torch.float64))
        expected = torch.zeros_like(image)
        expected[:, :-2, 3:] = image[:, 2:, :-3]  # three to the right, two up
        assert_relative(ImageWarp(group)(g, image), expected, 1e-12)

    @pytest.mark.parametrize("group", GROUPS, ids=str)
    def test_identity(self, group: LieGroup) -> None:
        image = rand(4, 3, 5, 7)
        assert_relative(ImageWarp(group)(group.identity(4, dtype=torch.float64), image), image, 1e-12)


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize(("mode", "order"), [("bilinear", 2.0), ("bicubic", 1.0)])
class TestResampling:
    def test_error_against_a_known_function_falls_with_the_stated_order(
        self, group: LieGroup, mode: str, order: float
    ) -> None:
        g = random_elements(group, 6, std=0.3 if group.dim == 1 else 0.1, seed=1)
        errors = []
        for size in (80, 160, 320):
            points = lattice(size)
            warped = ImageWarp(group, mode)(g, blob(points)[None])[:, 0]
            source = group.action()(group.inverse(g), points.reshape(-1, 2)).reshape(6, size, size, 2)
            errors.append(float((warped - blob(source)).square().mean().sqrt()))
        slopes = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
        assert min(slopes) > order - 0.25

    def test_is_a_left_action_up_to_that_error(self, group: LieGroup, mode: str, order: float) -> None:
        std = 0.3 if group.dim == 1 else 0.08
        g, h = random_elements(group, 6, std=std, seed=2), random_elements(group, 6, std=std, seed=3)
        warp = ImageWarp(group, mode)
        errors = []
        for size in (80, 160, 320):
            image = blob(lattice(size))[None]
            errors.append(float((warp(group.compose(g, h), image) - warp(g, warp(h, image))).square().mean().sqrt()))
        assert errors[0] < 0.02
        assert math.log2(errors[0] / errors[2]) / 2 > order - 0.3


class TestBatches:
    @pytest.mark.parametrize("group", [Affine(2), Projective(2)], ids=str)
    @pytest.mark.parametrize(
        ("elements", "images", "out"),
        [
            ((), (), ()),
            ((3,), (), (3,)),
            ((), (3,), (3,)),
            ((3, 4), (3, 1), (3, 4)),
            ((3, 4), (4,), (3, 4)),
            ((1, 4), (3, 1), (3, 4)),
            ((2, 3, 4), (2, 1, 1), (2, 3, 4)),
            ((2, 1, 4), (1, 3, 1), (2, 3, 4)),
            ((0,), (), (0,)),
        ],
    )
    def test_broadcast_as_one_by_one(
        self, group: LieGroup, elements: tuple[int, ...], images: tuple[int, ...], out: tuple[int, ...]
    ) -> None:
        g, x = random_elements(group, *elements, std=0.1), rand(*images, 2, 5, 6)
        warp = ImageWarp(group)
        y = warp(g, x)
        assert y.shape == (*out, 2, 5, 6)
        flat_g = g.expand(*out, *group.element_shape).reshape(-1, *group.element_shape)
        flat_x = x.expand(*out, 2, 5, 6).reshape(-1, 2, 5, 6)
        expected = [warp(a, b) for a, b in zip(flat_g, flat_x, strict=True)]
        assert_relative(y.reshape(-1, 2, 5, 6), torch.stack(expected) if expected else flat_x, 1e-12)

    def test_float32(self) -> None:
        g, x = random_elements(Affine(2), 3, std=0.2), rand(3, 1, 12, 12)
        single = ImageWarp(Affine(2))(g.float(), x.float())
        assert single.dtype == torch.float32
        assert_relative(single.double(), ImageWarp(Affine(2))(g, x), 1e-4)


# see `ImageWarp`
DERIVATIVE_OF_GRADIENTS = pytest.mark.xfail(
    Version(torch.__version__) < Version("2.12"),
    raises=RuntimeError,
    strict=True,
    reason="torch before 2.12 has no derivative of grid_sampler_2d_backward, nor of it under vmap",
)


class TestDerivatives:
    @DERIVATIVE_OF_GRADIENTS
    @pytest.mark.parametrize("group", GROUPS, ids=str)
    def test_gradients_are_those_of_the_function_that_was_sampled(self, group: LieGroup) -> None:
        """At the identity bilinear interpolation has kinks, and the difference on one side of them: first order."""
        size = 160
        points = lattice(size)
        weight = torch.cos(3 * points[..., 0] + 1) / size**2
        warp = ImageWarp(group)
        v = 0.1 * randn(4, group.dim, seed=5)
        v[0] = 0

        def exact(v: Tensor) -> Tensor:
            source = group.action()(group.inverse(group.exp(v)), points.reshape(-1, 2)).reshape(size, size, 2)
            return (weight * blob(source)).sum()

        def sampled(v: Tensor) -> Tensor:
            return (weight * warp(group.exp(v), blob(points)[None])).sum()

        expected = vmap(torch.func.grad(exact))(v)
        gradient = vmap(torch.func.grad(sampled))(v)
        assert_relative(gradient[1:], expected[1:], 2e-3, event=1, floor=0.0)
        assert_relative(gradient[0], expected[0], 3e-2, event=1, floor=0.0)

    @DERIVATIVE_OF_GRADIENTS
    @pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
    def test_second_derivatives(self, mode: str) -> None:
        group = Affine(2)
        image = blob(lattice(20))[None]
        warp = ImageWarp(group, mode)

        def f(v: Tensor) -> Tensor:
            return warp(group.exp(v), image).square().sum()

        v = (0.03 * randn(group.dim, seed=6)).requires_grad_()
        first = torch.autograd.grad(f(v), v, create_graph=True)[0]
        hessian = torch.stack([torch.autograd.grad(row, v, retain_graph=True)[0] for row in first])
        expected = numeric_jacobian(lambda v: torch.func.grad(f)(v), v.detach(), step=1e-7)
        assert_relative(hessian, expected, 1e-3, event=2, floor=0.0)
        zero = torch.zeros(group.dim, dtype=torch.float64, requires_grad=True)
        first = torch.autograd.grad(f(zero), zero, create_graph=True)[0]
        assert bool(torch.isfinite(torch.autograd.grad(first.sum(), zero)[0]).all())

    def test_vmap(self) -> None:
        group = Projective(2)
        g, x = random_elements(group, 3, 4, std=0.1), rand(3, 1, 1, 6, 6)
        warp = ImageWarp(group)
        assert_relative(vmap(warp)(g, x), warp(g, x), 1e-12)

    def test_compile(self) -> None:
        group = Projective(2)
        g, x = random_elements(group, 3, 4, std=0.1), rand(3, 1, 1, 6, 6)
        warp = ImageWarp(group)
        assert_relative(torch.compile(warp, fullgraph=True, backend="aot_eager")(g, x), warp(g, x), 1e-12)

    def test_exports(self) -> None:
        """A program for any number of images gives what the action gives; matrices are inverted entry by entry."""
        group = Projective(2)
        warp = ImageWarp(group, fill=0.5)
        g, x = random_elements(group, 5, std=0.1), rand(5, 1, 6, 6)
        assert_relative(exported(warp, g[:3], x[:3]).module()(g, x), warp(g, x), 1e-14)

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")  # of the exporter, about itself
    def test_onnx(self, tmp_path: Path) -> None:
        for name in ("onnx", "onnxscript"):
            pytest.importorskip(name, reason="ONNX is not installed")
        runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
        warp = ImageWarp(Projective(2))
        g, x = random_elements(Projective(2), 5, std=0.1).float(), rand(5, 1, 6, 6).float()
        torch.onnx.export(exported(warp, g[:3], x[:3])).save(str(tmp_path / "warp.onnx"))
        session = runtime.InferenceSession(str(tmp_path / "warp.onnx"))
        (found,) = session.run(None, {"g": g.numpy(), "x": x.numpy()})
        assert_relative(torch.from_numpy(found), warp(g, x), 1e-5)


class Warp(nn.Module):
    def __init__(self, action: ImageWarp) -> None:
        super().__init__()
        self.action = action

    def forward(self, g: Tensor, x: Tensor) -> Tensor:
        return self.action(g, x)


def exported(action: ImageWarp, g: Tensor, x: Tensor) -> torch.export.ExportedProgram:
    batch = {0: torch.export.Dim("batch")}
    return torch.export.export(Warp(action), (g, x), dynamic_shapes=(batch, batch), strict=False)


class TestDomain:
    """A homography whose horizon crosses the frame."""

    def elements(self) -> Tensor:
        group = Projective(2)
        matrix = torch.eye(3, dtype=torch.float64).repeat(3, 1, 1)
        matrix[0, 2, 0] = 0.3  # the denominator of the inverse is 1 - 0.3 x: safe
        matrix[1, 2, 0] = 1.5  # 1 - 1.5 x: zero at x = 2/3
        matrix[2, 2, 1] = -1.01  # 1 + 1.01 y: just below the edge of the frame, but outside its pixels
        return group.from_matrix(matrix)

    def test_images_are_nan_and_masked(self) -> None:
        warp, g, x = ImageWarp(Projective(2)), self.elements(), rand(3, 1, 4, 4)
        y = warp(g, x)
        assert y.isnan().flatten(1).all(1).tolist() == [False, True, True]
        assert not y[0].isnan().any()
        assert warp.is_valid(g, x).tolist() == [True, False, False]
        assert warp.source_points(g, 4, 4).isnan().flatten(1).all(1).tolist() == [False, True, True]
        assert warp.log_abs_det_jacobian(g, x).isnan().tolist() == [False, True, True]

    def test_gradients_of_the_others_stay_finite(self) -> None:
        warp, x = ImageWarp(Projective(2)), rand(3, 1, 6, 6)
        g = self.elements()
        gradient = torch.func.grad(lambda g: warp(g, x).nan_to_num().square().sum())(g)
        assert bool(torch.isfinite(gradient).all())
        alone = torch.func.grad(lambda g: warp(g, x[:1]).square().sum())(g[:1])
        assert_relative(gradient[:1], alone, 1e-12)
        energies = InverseProblem(warp, lambda y: y.sum((-1, -2, -3))).given(x).energies(warp.group.inverse(g))
        assert torch.isfinite(energies).tolist() == [True, False, False]


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
class TestNoNumbers:
    """Elements that hold NaN or infinity, or read so far out that pixels cannot be counted."""

    @pytest.mark.parametrize("group", [*GROUPS, HeatSymmetry(0.1)], ids=str)
    def test_images_are_nan(self, group: LieGroup, padding: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Gradients of the others are as if they were alone; torch's kernel, which read outside memory, sees none."""
        sample, grids = functional.grid_sample, []

        def watched(rows: Tensor, grid: Tensor, **options: Any) -> Tensor:
            grids.append(bool((grid.abs() < 1e300).all()))
            assert grids[-1]
            return sample(rows, grid, **options)

        monkeypatch.setattr(functional, "grid_sample", watched)
        warp, x = ImageWarp(group, padding=padding), rand(1, 2, 5, 7).requires_grad_()  # type: ignore[arg-type]
        g = random_elements(group, 5, std=0.1)
        lost = torch.tensor([math.nan, math.inf, -math.inf, 1e308], dtype=torch.float64)
        g[1:] = lost[: len(g) - 1].reshape(-1, *[1] * len(group.element_shape))
        if group.dim == 1:
            g[4] = math.nan  # an angle of any size is one
        y = warp(g, x)
        assert y.isnan().flatten(1).all(1).tolist() == [False, True, True, True, True]
        assert warp.is_valid(g, x).tolist() == [True, False, False, False, False]
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        (expected,) = torch.autograd.grad(warp(g[:1], x).square().sum(), x)
        assert_relative(gradient, expected, 1e-12)
        of_elements = torch.func.grad(lambda g: warp(g, x).square().sum())(g)
        alone = torch.func.grad(lambda g: warp(g, x).square().sum())(g[:1])
        assert_relative(of_elements[:1], alone, 1e-12)

    def test_what_was_not_found_stays_so(self, padding: str) -> None:
        action = ImageWarp(SE(2), padding=padding)  # type: ignore[arg-type]
        x = rand(2, 1, 6, 8) + 1
        x[1] += 5

        def blank(y: Tensor) -> Tensor:
            return y.square().mean((1, 2, 3))

        first = Inverter(action, lambda y: torch.where(blank(y) > 9, torch.nan, blank(y)), [])(x)
        assert first.has_usable.tolist() == [True, False]
        assert first.restore(x).isnan().flatten(1).all(1).tolist() == [False, True]
        for energy in (blank, None):
            then = Inverter(action, energy, [])(x, initial=first.best().unsqueeze(1))
            assert then.has_usable.tolist() == [True, False]
            assert then.energies[1].tolist() == [math.inf]


class TestLogDeterminant:
    """Against the change of the squared norm of a function, and closed forms."""

    def test_isometry_and_multiplication(self) -> None:
        """The norm of g.I is that of I times sqrt |det Dg|, the map whose determinant is meant."""
        group, size = Projective(2), 200
        g = random_elements(group, 4, std=0.08, seed=3)
        points = lattice(size)
        matrix = g[:, None, None]
        area = 4 / size**2
        denominator = (matrix[..., 2, :2] * points).sum(-1) + matrix[..., 2, 2]
        jacobian = denominator.abs() ** -3  # of a homography of determinant one
        image = blob(points)
        norm = (image.square() * jacobian).sum((-1, -2)) * area
        warped = ImageWarp(group, "bicubic")(g, image[None])
        assert_relative(warped.square().sum((-1, -2, -3)) * area, norm, 1e-3, floor=0.0)
        log_det = ImageWarp(group).log_abs_det_jacobian(g, image[None])
        assert_relative(log_det, 0.5 * jacobian.log().sum((-1, -2)), 1e-10)

    def test_affine(self) -> None:
        group = Affine(2)
        g, x = random_elements(group, 3, std=0.3), rand(3, 2, 5, 7)
        expected = 0.5 * 2 * 5 * 7 * torch.linalg.det(g[..., :2]).log()
        assert_relative(ImageWarp(group).log_abs_det_jacobian(g, x), expected, 1e-10)


class TestFramedEnergy:
    def test_adds_the_mean_squared_excess_of_the_sampling_grid(self) -> None:
        group = Affine(2)
        g, x = random_elements(group, 5, std=0.4, seed=8), rand(5, 1, 6, 6)
        inner, warp = (lambda y: y.square().sum((-1, -2, -3))), ImageWarp(group)
        framed = InverseProblem(warp, FramedEnergy(inner, weight=0.7)).given(x).energies(g)
        points = torch.cat([lattice(6).reshape(-1, 2), torch.ones(36, 1, dtype=torch.float64)], -1)
        source = torch.einsum("bij,pj->bpi", g, points)  # x = g^-1 x~ reads x~ at g p
        excess = (source.abs() - 1).clamp(min=0).square().sum(-1).mean(-1)
        assert_relative(framed - InverseProblem(warp, inner).given(x).energies(g), 0.7 * excess, 1e-10)
        assert float(excess.max()) > 1e-3

    def test_keeps_what_the_inner_energy_says_of_transformations(self) -> None:
        warp = ImageWarp(Affine(2))
        g, x = random_elements(Affine(2), 5, std=0.4, seed=8), rand(5, 1, 6, 6)

        def prior(energy: Callable[[Any], Tensor]) -> PriorEnergy:
            return PriorEnergy(energy, torch.eye(6), 100.0)

        def flat(y: Tensor) -> Tensor:
            return 0.0 * y.sum((-1, -2, -3))

        inside, outside = FramedEnergy(prior(flat)), prior(FramedEnergy(flat))
        assert_relative(
            InverseProblem(warp, inside).given(x).energies(g), InverseProblem(warp, outside).given(x).energies(g), 1e-12
        )

    def test_reads_the_part_that_the_inner_energy_reads(self) -> None:
        warp, seen = ImageWarp(Affine(2), guarded=False), []  # the guard asks for an empty image, too

        class OneChannel(DataEnergy):
            def __call__(self, x: Tensor) -> Tensor:
                seen.append(x.shape[1])
                return x[:, :1].square().sum((-1, -2, -3))

            def prepare(self, action: Action, x: Tensor) -> Tensor:
                return x[..., :2, :, :]

            def select(self, action: Action, g: Tensor, x: Tensor) -> Tensor:
                return x[..., :1, :, :]

        g, x = random_elements(Affine(2), 5, std=0.4, seed=8), rand(5, 3, 6, 6)
        energies = [
            InverseProblem(warp, FramedEnergy(inner)).given(x).energies(g)
            for inner in (OneChannel(), lambda y: OneChannel()(y))
        ]
        assert_relative(energies[0], energies[1], 1e-12)
        assert seen == [1, 3]

    def test_refuses_other_actions(self) -> None:
        points = rand(2, 4, 2)
        posterior = InverseProblem(Affine(2).action(), FramedEnergy(lambda p: p.sum((-1, -2)))).given(points)
        with pytest.raises(ConfigurationError, match="expected an ImageWarp"):
            posterior.energies(Affine(2).identity(2, dtype=torch.float64))


class TestRefusals:
    def test_groups_that_act_neither_on_the_plane_nor_on_space(self) -> None:
        for group in (SO(4), Affine(5)):
            with pytest.raises(ConfigurationError, match="expected one that acts on points"):
                ImageWarp(group)

    def test_mode(self) -> None:
        with pytest.raises(ConfigurationError, match="expected one of bilinear, bicubic, got 'nearest'"):
            ImageWarp(SO(2), "nearest")  # type: ignore[arg-type]

    @pytest.mark.parametrize("shape", [(5, 5), (1, 0, 5)])
    def test_shapes(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError, match=r"expected images \[\*batch, c, h, w\]"):
            ImageWarp(SO(2))(SO(2).identity(dtype=torch.float64), torch.zeros(shape, dtype=torch.float64))

    def test_integers(self) -> None:
        with pytest.raises(ConfigurationError, match=r"floating-point tensor of images, got torch\.uint8"):
            ImageWarp(SO(2)).check_data(torch.zeros(1, 5, 5, dtype=torch.uint8))
        with pytest.raises(ShapeError, match="channels first"):
            ImageWarp(SO(2))(SO(2).identity(), torch.zeros(2, 20, 30, 3))
        narrow = torch.zeros(2, 16, 30, 3)
        assert torch.equal(ImageWarp(SO(2))(SO(2).identity(), narrow), narrow)

    def test_batches(self) -> None:
        with pytest.raises(ShapeError, match=r"broadcast, got \[2\] and \[3\]"):
            ImageWarp(SO(2))(SO(2).identity(2, dtype=torch.float64), rand(3, 1, 4, 4))

    def test_the_heat_group_acts_on_the_plane_of_x_and_t(self) -> None:
        assert ImageWarp(HeatSymmetry(0.1)).group.dim == 6


class TestOutsideTheFrame:
    """Shifted to the right by half the frame, the left half shows what is outside."""

    X = torch.rand(2, 3, 4, 6, generator=torch.Generator().manual_seed(3))
    SHIFT = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])

    def test_fill(self) -> None:
        y = ImageWarp(Affine(2), fill=[0.5, -1.0, 2.0])(self.SHIFT, self.X)
        torch.testing.assert_close(y[..., 3:], self.X[..., :3])
        torch.testing.assert_close(y[..., :3], torch.tensor([0.5, -1.0, 2.0])[:, None, None].expand(2, 3, 4, 3))

    def test_border(self) -> None:
        y = ImageWarp(Affine(2), padding="border")(self.SHIFT, self.X)
        torch.testing.assert_close(y[..., :3], self.X[..., :1].expand(-1, -1, -1, 3))

    def test_reflection(self) -> None:
        y = ImageWarp(Affine(2), padding="reflection")(self.SHIFT, self.X)
        torch.testing.assert_close(y[..., :3], self.X[..., :3].flip(-1))

    def test_refused(self) -> None:
        for options, message in (
            ({"padding": "wrap"}, "padding"),
            ({"fill": math.inf}, "fill"),
            ({"padding": "border", "fill": 1.0}, "fill"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                ImageWarp(Affine(2), **options)  # type: ignore[arg-type]
        with pytest.raises(ShapeError, match="2 channels"):
            ImageWarp(Affine(2), fill=[0.0, 1.0])(self.SHIFT, self.X)

    def test_said(self) -> None:
        assert repr(ImageWarp(Affine(2), fill=0.5)).endswith("'bilinear', fill=0.5)")
        assert repr(ImageWarp(Affine(2), padding="border")).endswith("padding='border')")


@pytest.mark.parametrize("make", [Affine, Projective], ids=lambda make: make.__name__)
def test_elements_and_images_of_two_dtypes(make: type[LieGroup]) -> None:
    """Images keep theirs, so that a network still takes them; elements that are drawn have float64."""
    group = make(2)
    warp, g, image = ImageWarp(group), random_elements(group, 3, std=0.1), rand(3, 1, 5, 6)
    exact = warp(g, image)
    assert_relative(warp(g, image.float()), exact.float(), 1e-6)
    assert_relative(warp(g.float(), image), exact, 1e-4)
    assert_relative(warp(g, image.half()), exact.half(), 2e-3)
    assert [one.dtype for one in warp(g[:2], [image[0].float(), image[1]])] == [torch.float32, torch.float64]
    torch.nn.Conv2d(1, 1, 3)(warp(g, image.float())).sum().backward()
    v = torch.zeros(group.dim, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(warp(group.perturb(g, v), image.float()).double().square().sum(), v)
    (expected,) = torch.autograd.grad(warp(group.perturb(g, v), image).square().sum(), v)
    assert_relative(slope, expected, 1e-5)


@pytest.mark.parametrize("make", [Affine, Projective], ids=lambda make: make.__name__)
def test_wrong_types_that_hold_numbers_are_taken(make: type[LieGroup]) -> None:
    group = make(2)
    g, image = random_elements(group, 3, std=0.1), rand(3, 1, 5, 6)
    assert torch.equal(ImageWarp(group)(g.tolist(), image), ImageWarp(group)(g.float(), image))
    one = torch.ones(1)
    filled = ImageWarp(group, fill=one.numpy()[0])(g, image)
    assert torch.equal(filled, ImageWarp(group, fill=1.0)(g, image))
