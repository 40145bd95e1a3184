"""Energies from the features of networks: against formulas written out, in every way that networks come."""

import copy
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from tests.helpers import assert_relative, randn, seeded
from trivgeo.actions import ImageWarp
from trivgeo.errors import CheckpointError, ConfigurationError, DomainError, ShapeError
from trivgeo.features import FeatureEnergy, LearnedEnergy, UprightHead
from trivgeo.features.feature_scores import MahalanobisDistance
from trivgeo.groups import SE, SO, Similarity
from trivgeo.inversion import Inverter, ReverseDiffusionSearch, TestTimeEquivariant, check_energy
from trivgeo.inversion.stages import Descend, GaussianSearch
from trivgeo.inversion.transformations import composed, rotations, shifts


class Classifier(nn.Module):
    """Convolution, normalisation, dropout, and a last linear layer that two layers of a branch follow by name only."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 5, stride=2)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(6, 3)

    def features(self, x: Tensor) -> Tensor:
        """What the last layer reads."""
        return self.drop(torch.relu(self.norm(self.stem(x))).mean((-2, -1)))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(self.features(x))


@pytest.fixture(scope="module")
def network() -> Classifier:
    torch.manual_seed(0)
    network = Classifier()
    network(torch.rand(64, 1, 20, 20))  # statistics of the normalisation
    return network.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(30, 1, 20, 20, generator=seeded(1))


def bars(count: int, generator: torch.Generator) -> Tensor:
    """Upright images: a bright bar above a dim one, of random widths."""
    images = torch.zeros(count, 1, 24, 24)
    width = torch.randint(4, 9, (count, 2), generator=generator)
    for image, (top, bottom) in zip(images[:, 0], width.tolist(), strict=True):
        image[6:9, 12 - top // 2 : 12 + top // 2] = 1.0
        image[12:18, 12 - bottom // 4 : 12 + bottom // 4] = 0.5
    return images + 0.01 * torch.randn(images.shape, generator=generator)


def moments(x: Tensor) -> Tensor:
    """Features of an image: what it shows in four parts of the frame, and its first moments."""
    y = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype, device=x.device)
    parts = nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)
    along = torch.stack([(x * y).mean((1, 2, 3)), (x * y[:, None]).mean((1, 2, 3))], -1)
    return torch.cat([parts, along], -1)


class TestClassCosine:
    def test_is_the_cosine_to_the_nearest_class(self, network: Classifier, images: Tensor) -> None:
        f, w = network.features(images).numpy(), network.fc.weight.detach().numpy()
        cosines = f @ w.T / np.linalg.norm(f, axis=1, keepdims=True) / np.linalg.norm(w, axis=1)
        expected = torch.tensor(-cosines.max(1))
        energy = FeatureEnergy(network)
        assert energy.layer == "fc"
        assert_relative(energy(images), expected, 1e-5)
        assert_relative(FeatureEnergy(network, "fc")(images), expected, 1e-5)
        by_function = FeatureEnergy(network.features, weights=network.fc.weight)
        assert_relative(by_function(images), expected, 1e-5)
        assert isinstance(by_function.features.owner, Classifier)  # it moves with the energy

    def test_layers_with_space_are_averaged(self, network: Classifier, images: Tensor) -> None:
        weights = randn(4, 6).float()
        unit = weights / weights.norm(dim=-1, keepdim=True)
        for layer, module in (("norm", nn.Sequential(network.stem, network.norm)), ("stem", network.stem)):
            f = module(images).mean((-2, -1))
            expected = -((f / f.norm(dim=-1, keepdim=True)) @ unit.mT).amax(-1)
            assert_relative(FeatureEnergy(network, layer, weights=weights)(images), expected, 1e-5)

    def test_tokens_are_averaged(self) -> None:
        """Channels of linear layers and normalisations are last."""
        network = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7))
        x, weights = randn(3, 11, 5).float(), randn(2, 7).float()
        f = network(x).mean(1)
        expected = -nn.functional.cosine_similarity(f.unsqueeze(1), weights, dim=-1).amax(-1)
        assert_relative(FeatureEnergy(network, "1", weights=weights)(x), expected, 1e-5)

    def test_gradient(self, network: Classifier, images: Tensor) -> None:
        """Against differences, in double precision."""
        energy = FeatureEnergy(copy.deepcopy(network).double())
        x, direction = images[:2].double().requires_grad_(), randn(2, 1, 20, 20)
        (gradient,) = torch.autograd.grad(energy(x).sum(), x)
        h = 1e-6
        numeric = (energy(x + h * direction) - energy(x - h * direction)).sum() / (2 * h)
        assert_relative((gradient * direction).sum(), numeric.detach(), 1e-6)
        by_transform = torch.func.vmap(torch.func.grad(lambda one: energy(one.unsqueeze(0)).sum()))(x.detach())
        assert_relative(by_transform, gradient, 1e-10)

    def test_training_mode_changes_nothing(self, network: Classifier, images: Tensor) -> None:
        """Neither the energy, nor the statistics of normalisations, nor the mode; and no hook stays."""
        trained = copy.deepcopy(network)
        energy = FeatureEnergy(trained)
        expected = energy(images)
        state = copy.deepcopy(trained.state_dict())
        trained.train()
        assert torch.equal(energy(images), expected)
        assert all(part.training for part in trained.modules())
        assert all(torch.equal(x, state[name]) for name, x in trained.state_dict().items())
        with pytest.raises(RuntimeError):
            energy(images[:, :, :2])
        assert not any(part._forward_hooks for part in trained.modules())

    def test_half_precision(self, network: Classifier, images: Tensor) -> None:
        expected = FeatureEnergy(network)(images)
        for dtype in (torch.bfloat16, torch.float16):
            energy = FeatureEnergy(copy.deepcopy(network).to(dtype))
            assert energy(images).dtype == torch.float32
            assert float((energy(images) - expected).abs().max()) < 0.02
        with torch.autocast("cpu", torch.bfloat16):
            rounded = FeatureEnergy(network)(images)
        assert rounded.dtype == torch.float32
        assert float((rounded - expected).abs().max()) < 0.02
        assert FeatureEnergy(network)(images.double()).dtype == torch.float64

    def test_state_is_kept(self, network: Classifier, images: Tensor, tmp_path: Path) -> None:
        energy = FeatureEnergy.from_data(network, images[:20])
        torch.save(energy.state_dict(), tmp_path / "state.pt")
        other = FeatureEnergy.from_data(network, images[5:25])
        assert not torch.equal(other(images), energy(images))
        other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert torch.equal(other(images), energy(images))
        energy.save(tmp_path / "energy.safetensors")
        assert torch.equal(FeatureEnergy.load(tmp_path / "energy.safetensors", network)(images), energy(images))
        with pytest.raises(CheckpointError, match="LearnedEnergy"):
            LearnedEnergy.load(tmp_path / "energy.safetensors", network)


class TestCleanData:
    def test_mahalanobis(self, network: Classifier, images: Tensor) -> None:
        """Against scikit-learn's covariance, also with fewer data than features."""
        f = network.features(images[:12]).double().numpy()
        model = OAS().fit(f)
        other = network.features(images).double().numpy()
        expected = torch.tensor(model.mahalanobis(other) / (2 * f.shape[1]))
        energy = FeatureEnergy.from_data(copy.deepcopy(network).double(), images[:12].double())
        assert_relative(energy(images.double()), expected, 1e-6)
        few = randn(5, 40)
        wanted = torch.tensor(OAS().fit(few.numpy()).mahalanobis(randn(3, 40, seed=1).numpy()) / 80)
        assert_relative(MahalanobisDistance.of(few)(randn(3, 40, seed=1)), wanted, 1e-6)

    def test_classes_have_centres(self) -> None:
        """Far classes: the distance is to the own centre, in the covariance about the centres."""
        labels = torch.arange(2).repeat(20)
        f = randn(40, 3) + 100.0 * labels.unsqueeze(-1)
        energy = FeatureEnergy.from_data(lambda x: x, f, labels=labels)
        centred = f - torch.stack([f[labels == c].mean(0) for c in range(2)])[labels]
        model = OAS(assume_centered=True).fit(centred.numpy())
        assert_relative(energy(f), torch.tensor(model.mahalanobis(centred.numpy()) / 6), 1e-6)

    def test_neighbours(self, network: Classifier, images: Tensor) -> None:
        energy = FeatureEnergy.from_data(network, images[:20], distance="neighbours", neighbours=2)
        f = network.features(images).numpy()
        tree = NearestNeighbors(n_neighbors=2, metric="cosine").fit(f[:20])
        expected = torch.tensor(tree.kneighbors(f[20:])[0].mean(1))
        assert_relative(energy(images[20:]), expected, 1e-4)

    def test_network_without_classes(self, images: Tensor) -> None:
        network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU())
        assert FeatureEnergy.from_data(network, images)(images).shape == (30,)
        assert FeatureEnergy.from_data(network, images, "0").layer == "0"


class TestErrors:
    @pytest.mark.parametrize(
        ("make", "error", "match"),
        [
            (lambda n, x: FeatureEnergy(n, "head"), ConfigurationError, "'stem', 'norm', 'drop', 'fc', got 'head'"),
            (lambda n, x: FeatureEnergy(nn.Conv2d(1, 1, 1)), ConfigurationError, "linear layer"),
            (lambda n, x: FeatureEnergy(n.features, "fc"), ConfigurationError, "no layers"),
            (lambda n, x: FeatureEnergy(n, "stem")(x), ShapeError, None),
            (lambda n, x: FeatureEnergy(n, weights=torch.ones(3, 5))(x), ShapeError, r"\[b, 5\]"),
            (lambda n, x: FeatureEnergy(n, weights=torch.ones(3)), ShapeError, "weights"),
            (lambda n, x: FeatureEnergy(n, weights=torch.zeros(3, 6)), DomainError, "zero"),
            (lambda n, x: FeatureEnergy(3), ConfigurationError, "network"),
            (lambda n, x: FeatureEnergy.from_data(n, x[:1]), ShapeError, "at least 2"),
            (lambda n, x: FeatureEnergy.from_data(n, x[:0]), ShapeError, "at least"),
            (lambda n, x: FeatureEnergy.from_data(n, x[:1].repeat(4, 1, 1, 1)), DomainError, "same"),
            (lambda n, x: FeatureEnergy.from_data(n, x / 0.0), DomainError, "finite"),
            (lambda n, x: FeatureEnergy.from_data(n, x, distance="cosine"), ConfigurationError, "mahalanobis"),
            (lambda n, x: FeatureEnergy.from_data(n, x, labels=torch.zeros(3).long()), ShapeError, "labels"),
            (lambda n, x: FeatureEnergy(nn.Sequential(nn.LazyLinear(3))), ConfigurationError, "without weights"),
            (
                lambda n, x: LearnedEnergy.fit(n, x, lambda c, g: torch.eye(2).repeat(c, 1, 1)),
                ConfigurationError,
                "action",
            ),
            (
                lambda n, x: LearnedEnergy.fit(FeatureEnergy(n), x, rotations(SO(2)), layer="fc"),
                ConfigurationError,
                "layer",
            ),
        ],
    )
    def test_is_refused(
        self,
        network: Classifier,
        images: Tensor,
        make: Callable[[Classifier, Tensor], object],
        error: type[Exception],
        match: str | None,
    ) -> None:
        if match is None:  # class weights of as many features as the layer has channels
            assert make(network, images) is not None
            return
        with pytest.raises(error, match=match):
            make(network, images)

    def test_layer_that_is_not_called(self, images: Tensor) -> None:
        network = Classifier()
        network.extra = nn.Conv2d(1, 6, 1)
        with pytest.raises(ConfigurationError, match="got 'extra'"):
            FeatureEnergy(network, "extra")(images)


@pytest.fixture(scope="module")
def learned() -> LearnedEnergy:
    return LearnedEnergy.fit(moments, bars(60, seeded(0)), rotations(SO(2)), steps=300, num_samples=400)


class TestLearnedEnergy:
    def test_learns_what_is_upright(self, learned: LearnedEnergy) -> None:
        known = learned.validation
        assert known is not None
        assert known.chance == 0.125
        assert known.accuracy > 0.6
        assert known.loss < 0.6 * math.log(8)
        fresh = bars(8, seeded(5))
        action = ImageWarp(SO(2))
        turns = action.group.exp(torch.linspace(0.7, 5.5, 9).unsqueeze(-1))
        turned = action(turns.repeat_interleave(8, 0), fresh.repeat(9, 1, 1, 1))
        # one in seventy is nearly the same upside down
        assert float((learned(turned).reshape(9, 8) > learned(fresh)).double().mean()) > 0.95
        assert abs(float(learned(fresh).mean())) < 3.0

    def test_finds_turns(self, learned: LearnedEnergy) -> None:
        """Any angle, by a search and a descent, and with the classes of a network after it."""
        action = ImageWarp(SO(2))
        fresh = bars(6, seeded(6))
        turn = action.group.exp(torch.linspace(-3.0, 3.0, 6).unsqueeze(-1))
        moved = action(turn, fresh)
        inverter = Inverter(action, learned, [GaussianSearch(64, 2, 2.0), Descend(15)])
        result = inverter(moved, generator=seeded(0))
        off = action.group.log(action.group.compose(action.group.inverse(turn), result.best())).abs()
        assert float(off.max()) < 0.35
        shown = TestTimeEquivariant(moments, inverter)(moved, generator=seeded(0))
        assert float((shown - moments(fresh)).abs().max()) < 0.5 * float((moments(moved) - moments(fresh)).abs().max())
        assert bool(ReverseDiffusionSearch(action, learned, steps=5, num_hypotheses=4)(moved[:2]).has_usable.all())

    def test_is_a_function_of_the_seed(self, network: Classifier, images: Tensor, tmp_path: Path) -> None:
        base = FeatureEnergy(network)
        group = SE(2)
        transformations = composed(group, rotations(group, 90.0), shifts(group, 0.1))
        first, second = (
            LearnedEnergy.fit(base, images, transformations, num_samples=16, steps=10, seed=3) for _ in range(2)
        )
        assert torch.equal(first(images), second(images))
        other = LearnedEnergy.fit(base, images, transformations, num_samples=16, steps=10, seed=4)
        assert not torch.equal(first(images), other(images))
        first.save(tmp_path / "learned.safetensors")
        loaded = LearnedEnergy.load(tmp_path / "learned.safetensors", network)
        assert torch.equal(loaded(images), first(images))
        assert loaded.validation == first.validation

    def test_check_and_compiled_gradients(self, learned: LearnedEnergy, network: Classifier) -> None:
        """The measures of an energy take both kinds; by one graph they are what they are eagerly."""
        action, clean = ImageWarp(SO(2)), bars(6, seeded(7))
        check = check_energy(action, learned, clean, rotations(SO(2), 40.0))
        assert check.profile.temperature > 0
        g = SO(2).exp(torch.linspace(-0.5, 0.5, 6)[:, None, None])
        energies: tuple[FeatureEnergy, ...] = (learned, FeatureEnergy(network))
        for energy in energies:
            eager = Inverter(action, energy, [])
            fast = eager.replace(compiled=True)
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                values = [
                    one.problem.given(clean).gradient(lambda v: SO(2).retract(g, v), torch.zeros(6, 1, 1))
                    for one in (fast, eager)
                ]
            for found, expected in zip(*values, strict=True):
                assert_relative(found, expected, 1e-3, floor=float(expected.abs().max()))

    def test_any_data(self) -> None:
        """Clouds, drawn by a function, under a group of another action, with the right restorations undone exactly."""
        group = Similarity(2)
        shape = torch.tensor([[0.0, -1.0], [1.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [0.3, 0.4]])

        def draw(count: int, generator: torch.Generator) -> Tensor:
            return shape + 0.05 * torch.randn(count, 5, 2, generator=generator)

        transformations = composed(group, rotations(group), shifts(group, 0.2))
        energy = LearnedEnergy.fit(
            lambda x: x.flatten(1), draw, transformations, action=group.action(), num_samples=300, steps=300, seed=1
        )
        assert energy.validation is not None
        assert energy.validation.accuracy > 0.5


def test_a_head_refuses_other_features() -> None:
    head = UprightHead(5)
    with pytest.raises(ShapeError, match=r"features: expected \[b, 5\], got \[3, 4\]"):
        head.with_base(torch.zeros(3, 4), None)
    with pytest.raises(ShapeError, match="base"):
        head.with_base(torch.zeros(3, 5), torch.zeros(4))
