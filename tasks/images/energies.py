"""Energies of images by trained networks, evaluated as fast as the device can."""

import copy
from abc import abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from trivgeo.features import FeatureEnergy
from trivgeo.inversion.energies import DataEnergy

from ..checkpoints import load_checkpoint
from ..seeds import generator_of
from .block_convolution import channels_last, with_blocks
from .models import ImageClassifier
from .regulariser import AdversarialRegulariser
from .vae import VAE

Precision = Literal["float32", "bfloat16"]


class NetworkEnergy(nn.Module, DataEnergy):
    """An energy made of networks whose parameters are constant.

    On a GPU, convolutions have their channels last in memory, and those of images are by `BlockConvolution`.

    Args:
        precision: dtype inside the networks; the energy is float32 or has that of the images. bfloat16 halves the
            time of convolutions where the processor has instructions for it.
    """

    def __init__(self, precision: Precision = "float32") -> None:
        super().__init__()
        self.precision: Precision = precision

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, " b"]:
        """One energy for each image; NaN where the image is."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            energy = self.evaluate(x)
        return energy.to(x.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "NetworkEnergy":
        """As its parent, by which a module moves to a device."""
        super()._apply(fn, recurse)
        if any(parameter.is_cuda for parameter in self.parameters()):
            channels_last(self)
        return self

    @abstractmethod
    def evaluate(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, " b"]:
        """The energy in the precision of the surrounding context."""


class ClassifierEnergy(NetworkEnergy):
    """E(x) = -logsumexp of the logits (Grathwohl et al. 2020): low where the classifier is confident.

    Args:
        classifier: see `load_classifier`.
        precision: see `NetworkEnergy`.
    """

    def __init__(self, classifier: str | ImageClassifier, precision: Precision = "float32") -> None:
        super().__init__(precision)
        self.network = with_blocks(fused(load_classifier(classifier)))

    def evaluate(self, x: Tensor) -> Tensor:
        return -torch.logsumexp(self.network(x).float(), -1)


class CosineEnergy(NetworkEnergy):
    """Minus the cosine of a classifier's features to the nearest class weight, see `trivgeo.features.FeatureEnergy`.

    For classifiers of photographs, which are often as confident of rotated pictures as of upright ones.

    Args:
        classifier: see `load_classifier`.
        precision: see `NetworkEnergy`.
    """

    def __init__(self, classifier: str | ImageClassifier, precision: Precision = "float32") -> None:
        super().__init__(precision)
        self.energy = FeatureEnergy(with_blocks(fused(load_classifier(classifier))))

    def evaluate(self, x: Tensor) -> Tensor:
        return self.energy(x)


class PredictedClass:
    """The class that a classifier predicts, for the diversity of the hypotheses of `trivgeo.inversion.ITS`.

    Args:
        classifier: see `load_classifier`.
    """

    def __init__(self, classifier: str | ImageClassifier) -> None:
        self.network = fused(load_classifier(classifier))

    def __call__(self, x: Float[Tensor, "b c h w"]) -> Int[Tensor, " b"]:
        """One class for each image; the network follows the images to their device."""
        classes: Tensor = self.network.to(x.device)(x)
        return classes.argmax(-1)


class VAEEnergy(NetworkEnergy):
    """E(x) = 0.1 (squared error + KL divergence) of an autoencoder, plus an adversarial regulariser.

    Args:
        vae: name or path of the autoencoder's checkpoint.
        regulariser: name or path of the regulariser's checkpoint; ``None`` for none.
        weight: weight of the regulariser.
        precision: see `NetworkEnergy`.
    """

    def __init__(
        self, vae: str = "vae", regulariser: str | None = None, weight: float = 1.0, precision: Precision = "float32"
    ) -> None:
        super().__init__(precision)
        self.vae = load_checkpoint(VAE, vae).network
        self.regulariser: nn.Module | None = None
        if regulariser is not None:
            self.regulariser = with_blocks(load_checkpoint(AdversarialRegulariser, regulariser).network)
        self.weight = weight

    def evaluate(self, x: Tensor) -> Tensor:
        energy = self.vae.elbo_energy(x)
        return energy if self.regulariser is None else energy + self.weight * self.regulariser(x)


def load_classifier(classifier: str | ImageClassifier) -> ImageClassifier:
    """A trained classifier, in evaluation mode, without gradients of its parameters.

    Args:
        classifier: name or path of its checkpoint, an `ImageClassifier` of any kind; or the network, trained.

    Raises:
        CheckpointError: see `load_checkpoint`.
    """
    if isinstance(classifier, ImageClassifier):
        return classifier.eval().requires_grad_(False)
    return load_checkpoint(ImageClassifier, classifier).network  # type: ignore[type-abstract]


def fused(network: ImageClassifier) -> ImageClassifier:
    """The same function with every batch normalisation that follows a convolution made part of it.

    Which one follows is told by the order of their names, and the channels. A network that calls them in another order,
    as noise shows, stays as it is.
    """
    whole, network = network, copy.deepcopy(network)
    for module in network.modules():
        children = list(module.named_children())
        for (name, first), (next_name, second) in pairwise(children):
            if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d) and _fit(first, second):
                setattr(module, name, fuse_conv_bn_eval(first, second))
                setattr(module, next_name, nn.Identity())
    parameter = next(whole.parameters())
    noise = torch.rand(2, *whole.images.shape, generator=generator_of(0)).to(parameter)
    with torch.no_grad():
        same = torch.allclose(network(noise), whole(noise), rtol=1e-2, atol=1e-3)
    return network if same else copy.deepcopy(whole)


def _fit(convolution: nn.Conv2d, normalisation: nn.BatchNorm2d) -> bool:
    return convolution.out_channels == normalisation.num_features and normalisation.running_mean is not None
