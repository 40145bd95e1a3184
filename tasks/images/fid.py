"""The Fréchet distance between sets of images, in the features of a network of digits."""

import io
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics.image.fid import FrechetInceptionDistance

from ..checkpoints import load_checkpoint
from ..released import read_published
from .vae import VAE

_PUBLISHED_SIZE = 28  # pixels along each side that the published network sees


class PublishedFeatures(nn.Module):
    """The features of Kim et al. (2026): 84 tanh units of a LeNet, of images brought to 28 x 28 pixels.

    Args:
        state: the weights, by their published names.

    Raises:
        KeyError: one is missing.
    """

    num_features = 84

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        parts = [f"convnet.c{i}" for i in (1, 3, 5)] + ["fc.f6"]
        self.layers = nn.ParameterList(state[f"{part}.{kind}"] for part in parts for kind in ("weight", "bias"))
        self.requires_grad_(False)

    def features(self, x: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b 84"]:
        """One row for each image with values in [0, 1]."""
        first, second, third, last = zip(self.layers[::2], self.layers[1::2], strict=True)
        x = functional.interpolate(x, size=(_PUBLISHED_SIZE, _PUBLISHED_SIZE), mode="bilinear", align_corners=False)
        for layer in (first, second):
            x = functional.max_pool2d(torch.tanh(functional.conv2d(x, *layer)), 2, padding=1)
        x = torch.tanh(functional.conv2d(x, *third)).flatten(1)
        return torch.tanh(functional.linear(x, *last))


def load_features(name: str) -> VAE | PublishedFeatures:
    """The network of the features.

    Args:
        name: name or path of the checkpoint of a `VAE`, or the path of the published weights, which ends in `.pth`.

    Raises:
        CheckpointError: the file is missing or holds no such network.
    """
    if Path(name).suffix != ".pth":
        return load_checkpoint(VAE, name).network

    def network_of(content: bytes) -> PublishedFeatures:
        return PublishedFeatures(torch.load(io.BytesIO(content), weights_only=True, map_location="cpu"))

    return read_published(name, network_of, "the published features")


class _Features(nn.Module):
    """The features of a network as the metric wants them."""

    def __init__(self, network: VAE | PublishedFeatures) -> None:
        super().__init__()
        self.network = network
        self.num_features = network.num_features

    def forward(self, x: Tensor) -> Tensor:
        return self.network.features(x)


class FrechetDistance(nn.Module):
    r"""Squared Fréchet distance of two normal distributions with the means and covariances of the features.

    :math:`|m_1 - m_2|^2 + \mathrm{tr}(C_1 + C_2 - 2 (C_1 C_2)^{1/2})`; M. Heusel et al., "GANs trained by a two
    time-scale update rule", 2017, with the latent means of an autoencoder of clean digits in the place of the features
    of Inception. They say what is drawn and in which pose. Features of a digit classifier would not do: they are made
    not to depend on the pose, and tell restored images from clean ones by the blur of two interpolations. Values
    compare with each other and not with those of other features.

    Args:
        network: the autoencoder, not one that an energy under test is made of; or the published features.
    """

    def __init__(self, network: VAE | PublishedFeatures) -> None:
        super().__init__()
        self._metric = FrechetInceptionDistance(_Features(network), reset_real_features=False)

    @torch.no_grad()
    def add_reference(self, images: Float[Tensor, "b c h w"]) -> None:
        """Add images of the set that is compared with."""
        self._metric.update(images, real=True)

    @torch.no_grad()
    def add(self, images: Float[Tensor, "b c h w"]) -> None:
        """Add images of the other set."""
        self._metric.update(images, real=False)

    def compute(self) -> float:
        """The distance; both sets need at least two images."""
        return float(self._metric.compute())

    def reset(self) -> None:
        """Forget all images but the reference."""
        self._metric.reset()
