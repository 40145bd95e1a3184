"""Convolutional networks on groups: integrals against dense quadrature, equivariance, files, training."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from tasks.checkpoints import load_checkpoint, save_checkpoint
from tasks.cli import main
from tasks.images.energies import load_classifier
from tasks.images.liegroupconv import (
    AffineConv,
    GroupConvolution,
    HomographyConv,
    LieGroupConv,
    Lifting,
    disc_points,
    haar_sample,
    window_points,
)
from tasks.images.mnist import BundledSample
from tests.helpers import affine_line, rand, randn, random_vectors, seeded
from tests.tasks.sample_runs import DIGITS, framed_digits
from trivgeo.actions.image import pixel_centres
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SE, Affine, LieGroup, Projective
from trivgeo.networks import initialise

CONFIGS = Path(__file__).parents[3] / "tasks" / "configs" / "mnist"
SMALL = {"channels": (3, 4, 5), "neighbours": (3, 2), "points": 7, "width": 4, "samples": 4, "evaluation_samples": 6}
GROUPS = [Affine(2, 0.2), Projective(2, 0.15), SE(2, 0.3)]
NETWORKS = [AffineConv, HomographyConv]


class RigidConv(LieGroupConv):
    """On a third group, since nothing may hold for two alone."""

    @staticmethod
    def group_of(scale: float | Sequence[float]) -> LieGroup:
        return SE(2, scale)


def made(kind: type[LieGroupConv], **options: object) -> LieGroupConv:
    """A network with weights, and with statistics of its normalisations that are not those of its constructor."""
    network = kind(DIGITS, **{**SMALL, **options})
    initialise(network, seeded(0))
    network.double().train()(rand(8, 1, 40, 40, seed=9))
    return network.eval()


def blobs(p: Tensor) -> Tensor:
    """A smooth image at points `[*batch, 2]`; beyond the frame it is far below round-off of single precision."""
    centres = torch.tensor([[0.1, -0.2], [-0.25, 0.1], [0.2, 0.25]], dtype=p.dtype)
    precision = torch.tensor([[[60.0, 10], [10, 90]], [[80, -20], [-20, 50]], [[70, 0], [0, 70]]], dtype=p.dtype)
    offset = p.unsqueeze(-2) - centres
    return torch.exp(-0.5 * torch.einsum("...ki,kij,...kj->...k", offset, precision, offset)).sum(-1)


def rendered(side: int, source: Callable[[Tensor], Tensor] = lambda p: p) -> Tensor:
    """The image with pixels `blobs(source(p))`, `[1, 1, side, side]`."""
    return blobs(source(pixel_centres((side, side), torch.zeros((), dtype=torch.float64)))).reshape(1, 1, side, side)


def moved_by(group: LieGroup, g: Tensor, side: int) -> Tensor:
    """g.I in closed form."""
    inverse = group.inverse(g)
    return rendered(side, lambda p: group.action()(inverse, p))


def lifting_of(group: LieGroup, points: int) -> Lifting:
    lifting = Lifting(group.action(), 1, 0.4, points, 3, 6)
    initialise(lifting, seeded(3))
    return lifting.double()


class TestSamples:
    @pytest.mark.parametrize("dim", [1, 3, 8])
    def test_points_follow_the_window(self, dim: int) -> None:
        v = window_points(4_000, dim, seeded(1))
        square = v.square().sum(-1).numpy()
        # r^2 has density r^(d - 2) (1 - r^2)^2 up to a factor
        assert stats.kstest(square, stats.beta(dim / 2, 3).cdf).pvalue > 0.01
        assert v.mean(0).abs().max() < 4 / 4_000**0.5

    def test_the_disc_follows_the_window(self) -> None:
        p = disc_points(2_000)
        radius, angle = torch.meshgrid(midpoints(400), 2 * torch.pi * midpoints(400), indexing="ij")
        grid = torch.stack([radius * angle.cos(), radius * angle.sin()], -1)
        weight = radius * (1 - radius**2) ** 2
        for f in (lambda q: q.square().sum(-1), lambda q: (2 * q[..., 0] - q[..., 1]).exp(), lambda q: blobs(q - 0.1)):
            expected = (f(grid) * weight).sum() / weight.sum()
            torch.testing.assert_close(f(p).mean(), expected, rtol=2e-3, atol=0)

    def test_sums_are_integrals_by_left_haar_measure(self) -> None:
        """On Aff(1), where it is not the right one: e^-a da db for x -> e^a x + b."""
        group = affine_line([0.9, 0.5])
        expected = dense_integral(group, lambda g: (2 * g[..., 0] - g[..., 1]).exp())
        errors = {}
        for count in (64, 4_096):
            sums = []
            for seed in range(20):
                sample = haar_sample(group, count, seeded(seed))
                sums.append((sample.weights * (2 * sample.elements[..., 0] - sample.elements[..., 1]).exp()).sum())
            error = torch.stack(sums) - expected
            assert abs(error.mean()) < 4 * error.std() / 20**0.5
            errors[count] = float(error.square().mean().sqrt() / expected)
        assert errors[4_096] < 0.02
        assert 4 < errors[64] / errors[4_096] < 16  # 8 for the inverse square root of the count


def midpoints(count: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * (torch.arange(count, dtype=torch.float64) + 0.5) / count


def dense_integral(group: LieGroup, f: Callable[[Tensor], Tensor]) -> Tensor:
    """The integral by left Haar measure of Aff(1) of f times the window, in the coordinates (a, b) of elements."""
    g = torch.cartesian_prod(midpoints(250, -0.9, 0.9), midpoints(250, -0.9, 0.9))
    v = group.log(g)
    window = (1 - v.square().sum(-1)).clamp_min(0) ** 2
    assert window.reshape(250, 250)[[0, -1]].max() < 1e-4  # the box holds the support
    assert window.reshape(250, 250)[:, [0, -1]].max() == 0
    cell = (1.8 / 250) ** 2 / float(group.scale.prod())
    constant = 3 / torch.pi  # the window of the disc has integral pi / 3
    values = f(g)
    return constant * cell * torch.tensordot(window * (-g[:, 0]).exp(), values, ([0], [0]))


class TestConvolution:
    def made(self, count: int, seed: int = 0) -> GroupConvolution:
        convolution = GroupConvolution(affine_line([0.9, 0.5]), count, 2, 3, 6, seeded(seed))
        initialise(convolution, seeded(4))
        convolution.kernel.phase.weight.data *= 0.2  # or it takes many more elements to find what cancels
        return convolution.double()

    @staticmethod
    def functions(g: Tensor) -> Tensor:
        """Two functions on Aff(1)."""
        return torch.stack([(g[..., 0] - g[..., 1]).exp(), (3 * g[..., 1]).sin() + g[..., 0]], -1)

    def test_against_dense_quadrature(self) -> None:
        group = affine_line([0.9, 0.5])
        at = torch.tensor([[0.0, 0.0], [0.4, -0.3]], dtype=torch.float64)
        kernel = self.made(1).kernel

        def integrand(h: Tensor) -> Tensor:
            f = self.functions(group.compose(at, h.unsqueeze(1)))
            return torch.einsum("hec,hco->heo", f, kernel(group.log(h)))

        with torch.no_grad():
            expected = dense_integral(group, integrand)
            errors = {}
            for count in (50, 3_200):
                sums = []
                for seed in range(10):
                    convolution = self.made(count, seed)
                    sums.append(convolution(self.functions(convolution.neighbours(at))))
                error = (torch.stack(sums) - expected).square().mean().sqrt()
                errors[count] = float(error / expected.square().mean().sqrt())
        assert errors[3_200] < 0.03
        assert 4 < errors[50] / errors[3_200] < 16  # 8 for the inverse square root of the count

    def test_equivariance_is_exact(self) -> None:
        """For few elements, and on a group that is not unimodular."""
        group, convolution = affine_line([0.9, 0.5]), self.made(5)
        g0, g = torch.tensor([0.7, -1.3], dtype=torch.float64), randn(4, 2)
        before = convolution(self.functions(group.compose(group.inverse(g0), convolution.neighbours(g))))
        after = convolution(self.functions(convolution.neighbours(group.compose(group.inverse(g0), g))))
        torch.testing.assert_close(before, after, rtol=1e-10, atol=1e-12)


class TestLifting:
    @pytest.mark.parametrize("group", GROUPS, ids=repr)
    def test_against_dense_quadrature(self, group: LieGroup) -> None:
        """The image in closed form; what is left is second order in the pixels, and that of few points."""
        g = group.exp(random_vectors(group, 4, std=1.0))
        radius, angle = torch.meshgrid(midpoints(200), 2 * torch.pi * midpoints(200), indexing="ij")
        disc = torch.stack([radius * angle.cos(), radius * angle.sin()], -1).reshape(-1, 2)
        weight = (radius * (1 - radius**2) ** 2).flatten()
        with torch.no_grad():
            kernel = lifting_of(group, 1).kernel(disc).squeeze(1)
            read = blobs(group.action()(g, 0.4 * disc))
            expected = (read * weight) @ kernel / weight.sum()

            def error(side: int, points: int) -> float:
                lifted = lifting_of(group, points)(rendered(side), g)[0]
                return float((lifted - expected).norm() / expected.norm())

            coarse, fine = error(40, 20_000), error(80, 20_000)
            assert coarse < 0.1
            assert 3 < coarse / fine < 5
            few, many = error(400, 50), error(400, 800)
        assert many < 0.02
        assert few > 4 * many

    @pytest.mark.parametrize("group", GROUPS, ids=repr)
    def test_equivariance_up_to_resampling(self, group: LieGroup) -> None:
        """Few points, images moved in closed form: the error is that of pixels, second order in their size."""
        g0, g = group.exp(random_vectors(group, 2, std=0.7, seed=5)).unbind(0)
        lifting = lifting_of(group, 9)
        with torch.no_grad():
            expected = lifting(rendered(640), group.compose(group.inverse(g0), g[None]))
            errors = [float((lifting(moved_by(group, g0, side), g[None]) - expected).norm()) for side in (40, 160)]
        assert errors[0] < 0.1 * expected.norm()
        assert errors[1] < errors[0] / 8

    def test_a_point_at_infinity_is_outside_the_image(self) -> None:
        group = Projective(2)
        # (x, y) -> (-1 / x, y / x): the disc of radius 0.4 goes beyond |x| = 2.5, its centre to infinity
        g = torch.tensor([[0, 0, -1], [0, 1, 0], [1, 0, 0]], dtype=torch.float64).requires_grad_()
        x = torch.ones(1, 1, 40, 40, dtype=torch.float64, requires_grad=True)
        lifting = lifting_of(group, 30)
        lifting.points[0] = 0.0
        assert not group.action()(g, lifting.points).isfinite().all()
        lifted = lifting(x, group.project(g)[None])
        assert lifted.eq(0).all()
        gradients = torch.autograd.grad(lifted.sum(), (g, x))
        assert all(gradient.isfinite().all() for gradient in gradients)


def exact_elements(kind: type[LieGroupConv]) -> list[tuple[Tensor, Callable[[Tensor], Tensor]]]:
    """Elements that permute the pixels of an image with an empty margin, and how."""
    quarter = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.float64)
    shift = torch.tensor([[1.0, 0, 3 * 0.05], [0, 1, -2 * 0.05], [0, 0, 1]], dtype=torch.float64)
    rows = kind.group_of(1.0).element_shape[0]
    return [
        # y points down: the quarter turn takes right to down
        (quarter[:rows], lambda x: x.rot90(-1, (-2, -1))),
        (shift[:rows], lambda x: x.roll((-2, 3), (-2, -1))),
        ((shift @ quarter)[:rows], lambda x: x.rot90(-1, (-2, -1)).roll((-2, 3), (-2, -1))),
    ]


def margin_images(*batch: int) -> Tensor:
    """Noise with an empty margin of ten pixels, 40 x 40."""
    return F.pad(rand(*batch, 1, 20, 20, seed=2), (10,) * 4)


class TestNetwork:
    @pytest.mark.parametrize("kind", [*NETWORKS, RigidConv])
    def test_equivariance_is_exact_where_no_pixel_is_resampled(self, kind: type[LieGroupConv]) -> None:
        network, x = made(kind), margin_images(3)
        group, elements = network.region, network.evaluation_elements
        with torch.no_grad():
            functions, logits = network.functions(x, elements), network(x)
            for g0, permute in exact_elements(kind):
                moved = group.compose(g0, elements)
                torch.testing.assert_close(network.functions(permute(x), moved), functions, rtol=1e-9, atol=1e-11)
                # the elements of the maxima stay behind, and these change; with them they do not
                assert (network(permute(x)) - logits).abs().max() > 1e-4
                network.evaluation_elements = moved
                torch.testing.assert_close(network(permute(x)), logits, rtol=1e-9, atol=1e-11)
                network.evaluation_elements = elements

    @pytest.mark.parametrize("kind", NETWORKS)
    def test_equivariance_up_to_resampling(self, kind: type[LieGroupConv]) -> None:
        network = made(kind)
        group, g = network.region, network.evaluation_elements
        g0 = group.exp(random_vectors(group, std=0.15, seed=6))
        with torch.no_grad():
            expected = network.functions(rendered(640), group.compose(group.inverse(g0), g))
            errors = [(network.functions(moved_by(group, g0, side), g) - expected).norm() for side in (40, 160)]
        assert errors[0] < 0.1 * expected.norm()
        assert errors[1] < errors[0] / 6

    @pytest.mark.parametrize("kind", NETWORKS)
    def test_each_image_by_itself(self, kind: type[LieGroupConv]) -> None:
        network, x = made(kind), rand(2, 3, 1, 40, 40, seed=3)
        with torch.no_grad():
            y = network(x)
            assert y.shape == (2, 3, 10)
            assert torch.equal(network(x), y)  # evaluation is deterministic
            torch.testing.assert_close(network(x[1, 2]), y[1, 2])
            assert network(x[:0]).shape == (0, 3, 10)
            x[0, 1] = torch.nan
            kept = torch.ones(2, 3, dtype=torch.bool)
            kept[0, 1] = False
            broken = network(x)
        assert broken[~kept].isnan().all()
        torch.testing.assert_close(broken[kept], y[kept])
        with pytest.raises(ShapeError, match="expected images"):
            network(x[..., 0, :, :])

    @pytest.mark.parametrize("kind", NETWORKS)
    def test_maxima_over_all_elements(self, kind: type[LieGroupConv]) -> None:
        """However many are worked off at a time: one by one here."""
        network, x = made(kind, samples=4, evaluation_samples=10), margin_images(2)
        with torch.no_grad():
            functions = [network.functions(x, g[None])[:, 0] for g in network.evaluation_elements]
            expected = network.head(torch.stack(functions).max(0).values)
            torch.testing.assert_close(network(x), expected, rtol=1e-9, atol=1e-11)

    @pytest.mark.parametrize("kind", NETWORKS)
    def test_gradients(self, kind: type[LieGroupConv]) -> None:
        network, x = made(kind), rand(2, 1, 40, 40, seed=3).requires_grad_()
        direction = 1e-6 * randn(2, 1, 40, 40, seed=4)
        (gradient,) = torch.autograd.grad(network(x).sum(), x)
        with torch.no_grad():
            difference = network(x + direction).sum() - network(x - direction).sum()
        assert float(difference) == pytest.approx(2 * float((gradient * direction).sum()), rel=1e-4, abs=1e-12)
        network.train()(x).square().sum().backward()
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name

    def test_every_batch_of_training_has_its_own_elements(self) -> None:
        network, x = made(AffineConv).train(), margin_images(4)
        state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        first, second = network(x), network(x)
        assert (first - second).abs().max() > 1e-3
        resumed = AffineConv(DIGITS, **SMALL).double().train()
        resumed.load_state_dict(state)
        assert torch.equal(resumed(x), first)
        other = AffineConv(DIGITS, **SMALL, seed=1).double().eval()
        other.load_state_dict({name: t for name, t in state.items() if "weight" in name}, strict=False)
        assert not torch.equal(other.evaluation_elements, network.evaluation_elements)

    @pytest.mark.parametrize("kind", NETWORKS)
    def test_checkpoint(self, kind: type[LieGroupConv], tmp_path: Path) -> None:
        network = made(kind, scale=0.3, seed=2).float()
        path = str(tmp_path / "net.safetensors")
        save_checkpoint(network, path, {"seed": 2})
        loaded = load_checkpoint(kind, path)
        assert loaded.network.architecture == network.architecture
        assert loaded.network.architecture["scale"] == [0.3] * network.region.dim
        x = margin_images(2).float()
        with torch.no_grad():
            assert torch.equal(load_classifier(path)(x), network(x))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"channels": (4, 8)}, "channels: expected 3 numbers, .* got 2"),
            ({"channels": (4, 0, 8)}, "channels: expected an integer of at least 1, got 0"),
            ({"neighbours": (4, 0)}, "neighbours: expected an integer of at least 1, got 0"),
            ({"scale": (0.3, 0.3)}, r"scale: expected one number, \[\d\] .*, got \[2\]"),
            ({"spread": -1.0}, "scale: expected positive numbers"),
            ({"patch": 0.0}, "patch: expected a positive finite number, got 0.0"),
            ({"points": 0}, "points"),
            ({"width": 0}, "width"),
            ({"samples": 0}, "samples"),
            ({"evaluation_samples": 0}, "evaluation_samples"),
        ],
    )
    @pytest.mark.parametrize("kind", NETWORKS)
    def test_wrong_configuration(self, kind: type[LieGroupConv], options: dict[str, object], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            kind(DIGITS, **{**SMALL, **options})


@pytest.mark.parametrize(("config", "kind"), [("affconv", AffineConv), ("homconv", HomographyConv)])
class TestTraining:
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, subcommand: str, *extra: str):
        monkeypatch.setattr(sys, "argv", ["tasks"])
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TRIVGEO_CHECKPOINTS", str(tmp_path))
        return main(
            [
                subcommand,
                f"--config={CONFIGS / config}.yaml",
                "--trainer.max_epochs=1",
                "--trainer.accelerator=cpu",
                "--trainer.log_every_n_steps=1",
                "--trainer.enable_progress_bar=false",
                "--trainer.enable_model_summary=false",
                "--data.source=tasks.images.mnist.BundledSample",
                "--data.validation=20",
                *extra,
            ]
        )

    def test_a_step_lowers_the_loss(
        self, config: str, kind: type[LieGroupConv], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the configuration as it is; the trainer accepts it."""
        limits = ("--trainer.fast_dev_run=1", "--data.batch_size=4")
        module = self.run(tmp_path, monkeypatch, config, "fit", *limits).model
        assert isinstance(module.network, kind)
        digits = BundledSample().train()
        x, label = framed_digits(digits.images[:16]), digits.labels[:16]
        network = module.network.train()
        optimiser = torch.optim.SGD(network.parameters(), 1e-2)

        def loss() -> Tensor:
            network.batches.zero_()  # the same elements before and after
            return F.cross_entropy(network(x), label)

        before = loss()
        before.backward()
        optimiser.step()
        with torch.no_grad():
            assert loss() < before - 1e-3

    def test_fit_exports(
        self, config: str, kind: type[LieGroupConv], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = "model.network.init_args"
        size = [f"--{name}.{key}={list(value) if isinstance(value, tuple) else value}" for key, value in SMALL.items()]
        self.run(tmp_path, monkeypatch, config, "fit", *size, "--trainer.limit_train_batches=2", "--data.batch_size=16")
        loaded = load_checkpoint(kind, str(tmp_path / f"{config}.safetensors"))
        assert loaded.network.channels == list(SMALL["channels"])
        assert int(loaded.network.batches) == loaded.metadata["steps"] == 2
        assert 0 <= loaded.metadata["metrics"]["accuracy"] <= 1
