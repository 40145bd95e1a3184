"""The Fréchet distance between sets of images, in the features of an autoencoder of digits."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance

from .vae import VAE


class _Features(nn.Module):
    """The features of a network as the metric wants them."""

    def __init__(self, network: VAE) -> None:
        super().__init__()
        self.network = network
        self.num_features = network.latent

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
        network: the autoencoder; not one that an energy under test is made of.
    """

    def __init__(self, network: VAE) -> None:
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
