"""Image networks: shapes, energies against their formulas, files, the Fréchet distance."""

import hashlib
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.linalg import sqrtm
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from tasks.checkpoints import checkpoint_path, load_checkpoint, manifest, save_checkpoint, trained_path
from tasks.config_inheritance import read
from tasks.images.convnet import ConvNet
from tasks.images.fid import FrechetDistance
from tasks.images.mnist import BundledSample
from tasks.images.models import ImageNetwork
from tasks.images.regulariser import AdversarialRegulariser
from tasks.images.resnet import ResNet18
from tasks.images.vae import VAE
from tests.tasks.sample_runs import DIGITS, framed_digits
from trivgeo.errors import CheckpointError, ConfigurationError, ShapeError
from trivgeo.networks import initialise

ROOT = Path(__file__).parents[3]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(*batch: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*batch, 1, 40, 40, generator=generator(seed), dtype=dtype)


def drawn(network: ImageNetwork) -> ImageNetwork:
    initialise(network, generator())
    return network.double().eval()


def outputs() -> list:
    net, resnet, vae, regulariser = (
        ConvNet(DIGITS, (4, 8)),
        ResNet18(DIGITS),
        VAE(DIGITS, hidden=(12,), latent=3),
        AdversarialRegulariser(DIGITS),
    )
    return [
        pytest.param(net, net.__call__, (10,), id="ConvNet"),
        pytest.param(net, net.energy, (), id="ConvNet.energy"),
        pytest.param(resnet, resnet.__call__, (10,), id="ResNet18"),
        pytest.param(vae, vae.elbo_energy, (), id="VAE"),
        pytest.param(vae, vae.features, (3,), id="VAE.features"),
        pytest.param(regulariser, regulariser.__call__, (), id="AdversarialRegulariser"),
    ]


class TestNetworks:
    @pytest.mark.parametrize(("network", "function", "shape"), outputs())
    def test_each_image_by_itself(self, network: ImageNetwork, function, shape: tuple[int, ...]) -> None:
        drawn(network)
        x = images(2, 3)
        y = function(x)
        assert y.shape == (2, 3, *shape)
        assert torch.equal(function(x), y)  # evaluation is deterministic
        torch.testing.assert_close(function(x[1, 2]), y[1, 2])
        assert function(x[:0]).shape == (0, 3, *shape)
        x[0, 1] = torch.nan
        broken = function(x)
        assert broken[0, 1].isnan().all()
        kept = torch.ones(2, 3, dtype=torch.bool)
        kept[0, 1] = False
        torch.testing.assert_close(broken[kept], y[kept])
        for shape_of_x in ((40, 40), (3, 40, 40)):
            with pytest.raises(ShapeError, match=r"expected images \[\*batch, 1, .*, got"):
                function(torch.zeros(shape_of_x, dtype=torch.float64))

    @pytest.mark.parametrize(("network", "function", "shape"), outputs())
    def test_gradients(self, network: ImageNetwork, function, shape: tuple[int, ...]) -> None:
        drawn(network)
        x = images(seed=3).requires_grad_()
        direction = 1e-6 * torch.randn(1, 40, 40, generator=generator(4), dtype=torch.float64)
        (gradient,) = torch.autograd.grad(function(x).sum(), x)
        with torch.no_grad():
            difference = function(x + direction).sum() - function(x - direction).sum()
        assert float(difference) == pytest.approx(2 * float((gradient * direction).sum()), rel=1e-4, abs=1e-12)

    def test_initial_weights_are_those_of_their_seed(self) -> None:
        def weights(seed: int) -> Tensor:
            network = ConvNet(DIGITS, (4, 8))
            initialise(network, generator(seed))
            return torch.cat([p.detach().flatten() for p in network.parameters()])

        assert torch.equal(weights(1), weights(1))
        assert not torch.equal(weights(1), weights(2))
        network = VAE(DIGITS)
        initialise(network, generator())
        assert float(network.encoder[0].weight.detach().var()) == pytest.approx(2 / 1600, rel=0.01)
        assert not network.decoder[0].bias.detach().any()

    def test_resnet18_is_the_published_one(self) -> None:
        network = ResNet18(DIGITS)
        # 11,689,512 with 3 colours and 1,000 classes; 7 x 7 x 64 less a colour, 513 less a class
        expected = 11_689_512 - 2 * 49 * 64 - 990 * 513
        assert sum(p.numel() for p in network.parameters()) == expected
        sizes = [network.stem(torch.zeros(1, 1, 224, 224)).shape]
        assert sizes[0] == (1, 64, 56, 56)
        assert network.blocks(torch.zeros(sizes[0])).shape == (1, 512, 7, 7)
        assert sum(1 for m in network.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)) == 18 + 3

    def test_confidence(self) -> None:
        network = drawn(ConvNet(DIGITS, (4, 8)))
        x = images(5)
        logits = network(x)
        torch.testing.assert_close(network.energy(x), -logits.exp().sum(-1).log())

    def test_size_of_the_published_vae(self) -> None:
        sizes = [1600, 512, 256]
        shapes = [(o, i) for i, o in pairwise([*sizes, 20])] + [(o, i) for i, o in pairwise([10, *sizes[::-1]])]
        assert [tuple(p.shape) for p in VAE(DIGITS).parameters() if p.ndim == 2] == shapes

    def test_bound(self) -> None:
        vae = drawn(VAE(DIGITS, hidden=(12,), latent=3))
        x, noise = images(4), torch.randn(4, 3, generator=generator(), dtype=torch.float64)
        mean, log_variance = vae.encoder(x.flatten(1)).chunk(2, -1)
        posterior = Normal(mean, log_variance.exp().sqrt())
        prior = Normal(torch.zeros(3, dtype=torch.float64), 1.0)
        error, divergence = vae.bound(x, noise)
        torch.testing.assert_close(divergence, kl_divergence(posterior, prior).sum(-1))
        decoded = vae.decoder(posterior.mean + noise * posterior.stddev).sigmoid()
        # with variance 1/2 the log-likelihood is minus the squared error, up to a constant
        likelihood = Normal(decoded, 0.5**0.5).log_prob(x.flatten(1)).sum(-1) + 800 * np.log(np.pi)
        torch.testing.assert_close(error, -likelihood)
        error, _ = vae.bound(x)
        torch.testing.assert_close(vae.elbo_energy(x), 0.1 * (error + divergence))
        torch.testing.assert_close(error, vae.bound(x, torch.zeros_like(noise))[0])

    @pytest.mark.parametrize(
        "make",
        [
            lambda: ConvNet(DIGITS, ()),
            lambda: ConvNet(DIGITS, (4, 0)),
            lambda: VAE(DIGITS, latent=0),
            lambda: VAE(DIGITS, hidden=(0,)),
            lambda: AdversarialRegulariser((1, 0, 40, 10)),
            lambda: AdversarialRegulariser(DIGITS, channels=(1,) * 6),
        ],
    )
    def test_wrong_configuration(self, make) -> None:
        with pytest.raises(ConfigurationError):
            make()


class TestCheckpoints:
    NETWORKS = (
        ConvNet((1, 40, 40, 3), (4, 8)),
        ResNet18((3, 40, 40, 4)),
        VAE(DIGITS, hidden=(5,)),
        AdversarialRegulariser(DIGITS, width=7),
    )

    @pytest.mark.parametrize("network", NETWORKS, ids=lambda n: type(n).__name__)
    def test_round_trip(self, network: ImageNetwork, tmp_path: Path) -> None:
        initialise(network, generator())
        path, metadata = tmp_path / "new" / "net.safetensors", {"metrics": {"accuracy": 0.5}, "seed": 3}
        save_checkpoint(network, path, metadata)
        loaded = load_checkpoint(type(network), str(path))
        assert loaded.metadata == metadata
        assert loaded.network.architecture == network.architecture
        assert not loaded.network.training
        assert not any(p.requires_grad for p in loaded.network.parameters())
        assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert not loaded.listed
        for name, tensor in network.state_dict().items():
            assert torch.equal(loaded.network.state_dict()[name], tensor), name
        assert [p.name for p in path.parent.iterdir()] == ["net.safetensors"]

    def test_metadata_must_be_plain(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="JSON"):
            save_checkpoint(ConvNet(DIGITS), tmp_path / "net.safetensors", {"tensor": torch.zeros(1)})

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda tensors, header: tensors.pop("head.bias"), r"missing head.bias .*10"),
            (lambda tensors, header: tensors.update(extra=torch.zeros(2)), r"unexpected extra .*2"),
            (
                lambda tensors, header: tensors.update({"head.bias": torch.zeros(3)}),
                r"head.bias: expected .*10.* got .*3",
            ),
            (lambda tensors, header: tensors.update({"head.bias": torch.zeros(10).half()}), r"got .*float16"),
            (lambda tensors, header: header.pop("network"), "expected a network of class ConvNet, got no network"),
            (
                lambda tensors, header: header.update({"network": "tasks.images.vae.VAE"}),
                "expected a network of class ConvNet, got VAE",
            ),
            (lambda tensors, header: header.pop("metadata"), "expected 'metadata'"),
            (lambda tensors, header: header.update({"metadata": "{"}), "expected 'metadata' .* as JSON"),
            (lambda tensors, header: header.update({"metadata": "[]"}), "object, got list"),
            (lambda tensors, header: header.update({"architecture": '{"layers": 3}'}), "is no ConvNet"),
        ],
    )
    def test_misfits(self, tmp_path: Path, change, message: str) -> None:
        save_checkpoint(ConvNet(DIGITS, (4, 8)), tmp_path / "good.safetensors", {})
        tensors = load_file(tmp_path / "good.safetensors")
        architecture = json.dumps(ConvNet(DIGITS, (4, 8)).architecture)
        header = {"network": "tasks.images.convnet.ConvNet", "architecture": architecture, "metadata": "{}"}
        change(tensors, header)
        save_file(tensors, tmp_path / "bad.safetensors", metadata=header)
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(ConvNet, str(tmp_path / "bad.safetensors"))

    def test_unreadable(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="there is none"):
            load_checkpoint(ConvNet, str(tmp_path / "none.safetensors"))
        (tmp_path / "text.safetensors").write_text("not a checkpoint")
        with pytest.raises(CheckpointError, match="expected a readable safetensors file"):
            load_checkpoint(ConvNet, str(tmp_path / "text.safetensors"))

    def test_a_missing_file_says_how_to_train_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRIVGEO_CHECKPOINTS", str(tmp_path))
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(ResNet18, "resnet18")
        assert str(caught.value) == (
            f"resnet18: {tmp_path}/resnet18.safetensors is missing; train it with: trivgeo fit --config mnist/resnet18"
        )
        with pytest.raises(
            CheckpointError, match=r"expected one of .*features, .*, vae, or the path .* got 'resnet19'"
        ):
            load_checkpoint(ResNet18, "resnet19")
        (tmp_path / "mine.safetensors").touch()
        with pytest.raises(CheckpointError, match=r"expected one of .*, mine, .* got 'resnet19'"):
            load_checkpoint(ResNet18, "resnet19")

    def test_a_network_trained_again_is_welcome(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("TRIVGEO_CHECKPOINTS", str(tmp_path))
        save_checkpoint(VAE(DIGITS, hidden=(5,)), trained_path("vae"), {})
        with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
            loaded = load_checkpoint(VAE, "vae")
        assert not loaded.listed
        assert "not the file of the manifest but one trained again" in caplog.text

    @pytest.mark.parametrize("name", sorted(manifest()))
    def test_the_manifest_is_true(self, name: str) -> None:
        entry = manifest()[name]
        config = read(ROOT / entry["config"])
        assert config["model"]["init_args"]["export"] == name
        assert len(entry["sha256"]) == 64
        assert entry["metrics"]
        path = checkpoint_path(name)
        if path.is_relative_to(ROOT / "tasks"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]

    def test_committed_classifier(self) -> None:
        loaded = load_checkpoint(ConvNet, "small_cnn")
        assert loaded.listed
        test = BundledSample().test()
        with torch.no_grad():
            accuracy = (loaded.network(framed_digits(test.images)).argmax(-1) == test.labels).float().mean()
        assert accuracy > 0.98
        assert loaded.metadata["metrics"]["accuracy"] == pytest.approx(manifest()["small_cnn"]["metrics"]["accuracy"])
        assert checkpoint_path("small_cnn").stat().st_size < 250_000


class TestFrechetDistance:
    def test_closed_form(self) -> None:
        network = drawn(VAE(DIGITS, hidden=(12,), latent=3)).float()
        first, second = images(60, dtype=torch.float32), images(50, seed=2, dtype=torch.float32) ** 3
        distance = FrechetDistance(network)
        for batch in first.split(25):
            distance.add_reference(batch)
        for batch in second.split(25):
            distance.add(batch)
        a, b = (network.features(x).double().detach().numpy() for x in (first, second))
        covariances = np.cov(a.T), np.cov(b.T)
        root = sqrtm(covariances[0] @ covariances[1]).real
        expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(covariances[0] + covariances[1] - 2 * root)
        assert expected > 1e-3
        assert distance.compute() == pytest.approx(expected, rel=1e-3)
        distance.reset()
        for batch in first.split(40):
            distance.add(batch)
        assert distance.compute() == pytest.approx(0, abs=1e-4 * expected)  # the reference was kept
