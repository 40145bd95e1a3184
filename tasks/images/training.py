"""Training of the image networks: classifiers, autoencoders, adversarial regularisers."""

import math
from abc import ABC, abstractmethod
from typing import Any, Generic

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.nn import functional as F

from tasks.images.checkpoints import NetworkT, save_checkpoint, trained_path
from tasks.images.data import ImageBatch
from tasks.images.laws import TransformationLaw
from tasks.images.models import ImageClassifier, initialise
from tasks.images.regulariser import AdversarialRegulariser
from tasks.images.seeds import generator_of
from tasks.images.vae import VAE
from tasks.results import versions
from trivgeo.actions import ImageWarp
from trivgeo.checks import check_positive
from trivgeo.errors import ConfigurationError


class NetworkTraining(pl.LightningModule, ABC, Generic[NetworkT]):
    """One network, AdamW with linear warm-up and cosine decay, export to safetensors with what was measured.

    Args:
        network: what is trained; its initial weights are drawn anew from the seed.
        learning_rate: peak step size.
        weight_decay: of AdamW.
        warmup: share of the steps over which the step size rises.
        seed: of the initial weights.
        export: a name in the folder of trained checkpoints, or the path of a `.safetensors` file; nowhere when None.

    Raises:
        ConfigurationError: a number is out of range.
    """

    def __init__(
        self,
        network: NetworkT,
        learning_rate: float,
        weight_decay: float,
        warmup: float,
        seed: int,
        export: str | None,
    ) -> None:
        super().__init__()
        if not 0 <= warmup < 1:
            raise ConfigurationError(f"warmup: expected a share of the steps from 0 to below 1, got {warmup}")
        if not weight_decay >= 0:
            raise ConfigurationError(f"weight_decay: expected at least 0, got {weight_decay}")
        self.network = network
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.weight_decay = weight_decay
        self.warmup = warmup
        self.seed = seed
        self.export = export
        initialise(network, torch.Generator().manual_seed(seed))

    @abstractmethod
    def measure(self, batch: ImageBatch) -> dict[str, Tensor]:
        """Metrics of one batch, means over its images."""

    def step_generator(self) -> torch.Generator:
        """Random numbers of this training step, a function of (seed, step) alone, so that training resumes exactly."""
        return generator_of(self.seed, self.global_step)

    def validation_step(self, batch: ImageBatch, batch_idx: int) -> None:
        """Log the metrics on digits that were held out."""
        metrics = {f"val/{name}": value for name, value in self.measure(batch).items()}
        self.log_dict(metrics, prog_bar=True, batch_size=len(batch.label))

    def test_step(self, batch: ImageBatch, batch_idx: int) -> None:
        """Log the metrics on the test digits."""
        metrics = {f"test/{name}": value for name, value in self.measure(batch).items()}
        self.log_dict(metrics, batch_size=len(batch.label))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW; the step size changes step by step."""
        optimizer = torch.optim.AdamW(self.network.parameters(), self.learning_rate, weight_decay=self.weight_decay)
        total = int(self.trainer.estimated_stepping_batches)
        rise = max(1, round(self.warmup * total))

        def factor(step: int) -> float:
            if step < rise:
                return (step + 1) / rise
            return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - rise) / max(1, total - rise))))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_end(self) -> None:
        """Export the network."""
        if self.export is not None and self.trainer.is_global_zero:
            save_checkpoint(self.network, trained_path(self.export), self.export_metadata())

    def export_metadata(self) -> dict[str, Any]:
        """What goes into the header of the exported file: metrics on the test digits, training, seed, versions."""
        return {
            "metrics": self.test_metrics(),
            "epochs": self.trainer.current_epoch,
            "steps": self.trainer.global_step,
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
            "seed": self.seed,
            "versions": versions(),
        }

    @torch.no_grad()
    def test_metrics(self) -> dict[str, float]:
        """The metrics on all test digits of the data module, in evaluation mode."""
        training = self.training
        self.eval()
        sums: dict[str, float] = {}
        count = 0
        for batch in self.trainer.datamodule.test_dataloader():  # type: ignore[attr-defined]
            size = len(batch.label)
            for name, value in self.measure(self.transfer_batch_to_device(batch, self.device, 0)).items():
                sums[name] = sums.get(name, 0.0) + size * float(value)
            count += size
        self.train(training)
        return {name: total / count for name, total in sums.items()}


class ClassifierTraining(NetworkTraining[ImageClassifier]):
    """Cross-entropy on clean digits: no augmentation, so that the network is not invariant to anything by training.

    Args:
        network: the classifier.
        options: see `NetworkTraining`.
    """

    def __init__(
        self,
        network: ImageClassifier,
        learning_rate: float = 2e-3,
        weight_decay: float = 0.05,
        warmup: float = 0.2,
        seed: int = 0,
        export: str | None = None,
    ) -> None:
        super().__init__(network, learning_rate, weight_decay, warmup, seed, export)

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """Cross-entropy of one batch."""
        loss = F.cross_entropy(self.network(batch.image), batch.label)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def measure(self, batch: ImageBatch) -> dict[str, Tensor]:
        """Accuracy and cross-entropy."""
        logits = self.network(batch.image)
        return {
            "accuracy": (logits.argmax(-1) == batch.label).float().mean(),
            "cross_entropy": F.cross_entropy(logits, batch.label),
        }


class VAETraining(NetworkTraining[VAE]):
    """The negative evidence lower bound, squared error plus KL divergence, on clean digits.

    Args:
        network: the autoencoder.
        options: see `NetworkTraining`.
    """

    def __init__(
        self,
        network: VAE,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        warmup: float = 0.1,
        seed: int = 0,
        export: str | None = None,
    ) -> None:
        super().__init__(network, learning_rate, weight_decay, warmup, seed, export)

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """The bound, with one sample of the latent variable for each image."""
        noise = torch.randn(len(batch.label), self.network.latent, generator=self.step_generator())
        error, divergence = self.network.bound(batch.image, noise.to(batch.image))
        loss = (error + divergence).mean()
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def measure(self, batch: ImageBatch) -> dict[str, Tensor]:
        """The energy and its two parts, before their common factor."""
        error, divergence = self.network.bound(batch.image)
        return {
            "energy": self.network.elbo_energy(batch.image).mean(),
            "squared_error": error.mean(),
            "divergence": divergence.mean(),
        }


class RegulariserTraining(NetworkTraining[AdversarialRegulariser]):
    r"""Mean of R over clean digits less its mean over transformed ones, and a penalty on steep gradients.

    The penalty is :math:`w \, (|\nabla R| - 1)_+^2` at random points between a clean image and a transformed one, so
    that R becomes a difference of distances: about one per unit of Euclidean distance between images. S. Lunz et al.,
    "Adversarial regularizers in inverse problems", 2018; the penalty in one-sided form, H. Petzka et al., 2018.

    Args:
        network: the regulariser.
        law: of the transformations; an image on whose frame one is not defined becomes empty.
        penalty: weight w.
        options: see `NetworkTraining`.
    """

    def __init__(
        self,
        network: AdversarialRegulariser,
        law: TransformationLaw,
        penalty: float = 10.0,
        learning_rate: float = 5e-4,
        weight_decay: float = 0.0,
        warmup: float = 0.1,
        seed: int = 0,
        export: str | None = None,
    ) -> None:
        super().__init__(network, learning_rate, weight_decay, warmup, seed, export)
        self.law = law
        self.action = ImageWarp(law.group)
        self.penalty = check_positive("penalty", penalty)

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """The loss, clean and transformed images being the same digits."""
        generator = self.step_generator()
        clean = batch.image
        moved = self.transformed(clean, generator)
        share = torch.rand(len(clean), 1, 1, 1, generator=generator).to(clean)
        between = torch.lerp(moved, clean, share).requires_grad_()
        slope = torch.autograd.grad(self.network(between).sum(), between, create_graph=True)[0]
        steep = (slope.flatten(1).norm(dim=1) - 1.0).clamp_min(0.0).square().mean()
        gap = self.network(moved).mean() - self.network(clean).mean()
        self.log_dict({"train/gap": gap, "train/steep": steep}, prog_bar=True)
        return self.penalty * steep - gap

    def transformed(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The images moved by random elements."""
        elements = self.law.draw(images.cpu(), [generator] * len(images)).to(images)
        return self.action(elements, images).nan_to_num(0.0)

    def measure(self, batch: ImageBatch) -> dict[str, Tensor]:
        """Mean difference of R, and the probability that a transformed image scores above a clean one (AUC)."""
        moved = self.network(self.transformed(batch.image, generator_of(self.seed, 0)))
        clean = self.network(batch.image)
        above = (moved.unsqueeze(-1) > clean).float()
        return {"gap": moved.mean() - clean.mean(), "auc": above.mean()}
