"""Training of the image networks from the command line, on the sample that comes with the code."""

from pathlib import Path

import pytest
import torch

from tasks.checkpoints import load_checkpoint
from tasks.images.convnet import ConvNet
from tasks.images.data import ImageBatch
from tasks.images.mnist import BundledSample
from tasks.images.regulariser import AdversarialRegulariser
from tasks.images.training import ClassifierTraining, RegulariserTraining, VAETraining
from tasks.images.transformations import NoTransformation, affine_noise, homography_noise
from tasks.images.vae import VAE
from tests.helpers import seeded
from tests.tasks.sample_runs import DIGITS, framed_digits, run_on_sample
from trivgeo.errors import CheckpointError, ConfigurationError

pytestmark = pytest.mark.usefixtures("workplace")


def test_a_classifier_learns_exports_and_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--model.network.init_args.channels=[8,16,32]", "--data.batch_size=25", "--model.learning_rate=0.01")
    metrics = run_on_sample("fit", "mnist/small_cnn", *settings, "--model.export=straight").trainer.callback_metrics
    assert metrics["val/accuracy"] > 0.5  # chance is 0.1
    assert "checkpoints/straight.safetensors\n" in capsys.readouterr().out
    first, last = (f"runs/mnist/small_cnn/version_0/checkpoints/epoch={epoch}.ckpt" for epoch in (0, 1))
    run_on_sample("fit", "mnist/small_cnn", *settings, "--model.export=resumed", f"--ckpt_path={first}")
    straight, resumed = (load_checkpoint(ConvNet, f"checkpoints/{n}.safetensors") for n in ("straight", "resumed"))
    assert straight.network.channels == [8, 16, 32]
    for name, tensor in straight.network.state_dict().items():
        assert torch.equal(tensor, resumed.network.state_dict()[name]), name
    tested = run_on_sample("test", "mnist/small_cnn", *settings, f"--ckpt_path={last}").trainer.callback_metrics
    assert straight.metadata["metrics"]["accuracy"] == pytest.approx(tested["test/accuracy"].item())
    assert straight.metadata["steps"] == 2 * (1_800 // 25)
    assert straight.metadata["seed"] == 0
    digits = BundledSample().test()
    with torch.no_grad():
        accuracy = (straight.network(framed_digits(digits.images)).argmax(-1) == digits.labels).float().mean()
    assert straight.metadata["metrics"]["accuracy"] == pytest.approx(accuracy.item())


def test_a_training_that_could_not_be_exported_does_not_start() -> None:
    Path("file").touch()
    with pytest.raises(CheckpointError, match="expected a file that can be written"):
        run_on_sample("fit", "mnist/vae", "--data.batch_size=50", "--model.export=file/below.safetensors")
    assert not list(Path().rglob("*.ckpt"))


def test_an_autoencoder_learns() -> None:
    size = ("--model.network.init_args.hidden=[64]", "--data.batch_size=50")
    run_on_sample("fit", "mnist/vae", *size, "--model.learning_rate=0.005", epochs=12)
    loaded = load_checkpoint(VAE, "checkpoints/vae.safetensors")
    images = framed_digits(BundledSample().test().images)
    trained = loaded.network.elbo_energy(images)
    assert trained.mean().item() == pytest.approx(loaded.metadata["metrics"]["energy"], rel=1e-4)
    # better than the best constant image with no information in the latent variable
    mean_image = framed_digits(BundledSample().train().images).mean(0)
    assert trained.mean() < 0.1 * (images - mean_image).square().sum((1, 2, 3)).mean() * 0.9


@pytest.mark.parametrize(
    "name",
    [
        "regulariser_affine",
        pytest.param("regulariser_homography", marks=pytest.mark.slow(reason="the other regulariser stays")),
    ],
)
def test_a_regulariser_learns(name: str) -> None:
    size = ("--model.network.init_args.channels=[8,16]", "--model.network.init_args.width=16", "--data.batch_size=50")
    metrics = run_on_sample("fit", f"mnist/{name}", *size, "--model.learning_rate=0.003").trainer.callback_metrics
    assert metrics["val/auc"] > 0.7  # chance is 0.5
    loaded = load_checkpoint(AdversarialRegulariser, f"checkpoints/{name}.safetensors")
    assert loaded.metadata["metrics"]["auc"] > 0.7
    assert loaded.metadata["metrics"]["gap"] > 0.5


@pytest.mark.parametrize(("name", "metric", "highest"), [("features", "energy", 160.0), ("resnet18", "accuracy", 1.0)])
def test_configurations_are_complete(name: str, metric: str, highest: float) -> None:
    """With one step of training: model and data are made, and the trainer accepts them."""
    limits = ("--trainer.fast_dev_run=1", "--data.batch_size=4")
    command = run_on_sample("fit", f"mnist/{name}", *limits, epochs=1)
    assert 0 <= command.trainer.callback_metrics[f"val/{metric}"] <= highest


class TestRegulariserLoss:
    def batch(self) -> ImageBatch:
        digits = BundledSample().test()
        return ImageBatch(framed_digits(digits.images[:16]), digits.labels[:16])

    def test_no_transformation_has_no_gap(self) -> None:
        training = RegulariserTraining(AdversarialRegulariser, DIGITS, NoTransformation())
        metrics = training.measure(self.batch(), 0)
        assert metrics["gap"].item() == pytest.approx(0.0, abs=1e-5)

    def test_undefined_images_are_empty(self) -> None:
        training = RegulariserTraining(AdversarialRegulariser, DIGITS, homography_noise(perspective=5.0))
        moved = training.transformed(self.batch().image, seeded(0))
        assert moved.isfinite().all()
        assert 0 < moved.flatten(1).eq(0).all(1).sum() < 16


@pytest.mark.parametrize("options", [{"learning_rate": 0.0}, {"weight_decay": -1.0}, {"warmup": 1.0}, {"warmup": -0.1}])
def test_wrong_configuration(options: dict[str, float]) -> None:
    for make in (lambda: ClassifierTraining(ConvNet, DIGITS, **options), lambda: VAETraining(VAE, DIGITS, **options)):
        with pytest.raises(ConfigurationError):
            make()
    with pytest.raises(ConfigurationError, match="penalty"):
        RegulariserTraining(AdversarialRegulariser, DIGITS, affine_noise(), penalty=0.0)
