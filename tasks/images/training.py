"""Training of the image networks: classifiers, autoencoders, adversarial regularisers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trivgeo.actions import ImageWarp
from trivgeo.checks import check_positive

from ..seeds import generator_of
from ..training import NetworkTraining
from .data import ImageBatch
from .models import ImageClassifier
from .regulariser import AdversarialRegulariser
from .transformations import RandomTransformations
from .vae import VAE


class ClassifierTraining(NetworkTraining[ImageClassifier]):
    """Cross-entropy on clean digits: no augmentation, so that the network is not invariant to anything by training.

    Args:
        network: makes the classifier from the format of the images.
        inputs: `ImageFormat` of the images, from the data.
        options: see `NetworkTraining`.
    """

    def __init__(
        self,
        network: Callable[[Sequence[int]], ImageClassifier],
        inputs: Sequence[int],
        **options: Any,
    ) -> None:
        super().__init__(network(inputs), **options)

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """Cross-entropy of one batch."""
        loss = F.cross_entropy(self.network(batch.image), batch.label)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def measure(self, batch: ImageBatch, number: int) -> dict[str, Tensor]:
        """Accuracy and cross-entropy."""
        logits = self.network(batch.image)
        return {
            "accuracy": (logits.argmax(-1) == batch.label).float().mean(),
            "cross_entropy": F.cross_entropy(logits, batch.label),
        }


class VAETraining(NetworkTraining[VAE]):
    """The negative evidence lower bound, squared error plus KL divergence, on clean digits.

    Args:
        network: makes the autoencoder, see `ClassifierTraining`.
        inputs: see there.
        options: see `NetworkTraining`.
    """

    def __init__(
        self,
        network: Callable[[Sequence[int]], VAE],
        inputs: Sequence[int],
        **options: Any,
    ) -> None:
        super().__init__(network(inputs), **options)

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """The bound, with one sample of the latent variable for each image."""
        noise = torch.randn(len(batch.label), self.network.latent, generator=self.step_generator(), device=self.device)
        error, divergence = self.network.bound(batch.image, noise.to(batch.image))
        loss = (error + divergence).mean()
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def measure(self, batch: ImageBatch, number: int) -> dict[str, Tensor]:
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
        network: makes the regulariser, see `ClassifierTraining`.
        inputs: see there.
        transformations: distribution of the elements; an image on whose frame one is not defined becomes empty.
        penalty: weight w.
        options: see `NetworkTraining`.
    """

    def __init__(
        self,
        network: Callable[[Sequence[int]], AdversarialRegulariser],
        inputs: Sequence[int],
        transformations: RandomTransformations,
        penalty: float = 10.0,
        **options: Any,
    ) -> None:
        super().__init__(network(inputs), **options)
        self.transformations = transformations
        self.action = ImageWarp(transformations.group)
        self.penalty = check_positive("penalty", penalty)

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """The loss, clean and transformed images being the same digits."""
        generator = generator_of(self.seed, self.global_step)
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
        elements = self.transformations.draw(images.cpu(), [generator] * len(images)).to(images)
        return self.action(elements, images).nan_to_num(0.0)

    def measure(self, batch: ImageBatch, number: int) -> dict[str, Tensor]:
        """Mean difference of R, and the probability that a transformed image scores above a clean one (AUC)."""
        moved = self.network(self.transformed(batch.image, generator_of(self.seed, 0, number)))
        clean = self.network(batch.image)
        above = (moved.unsqueeze(-1) > clean).float()
        return {"gap": moved.mean() - clean.mean(), "auc": above.mean()}
