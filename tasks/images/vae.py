"""A variational autoencoder, and the evidence lower bound as an energy."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.checks import check_count

from .models import ImageNetwork

ENERGY_SCALE = 0.1
"""Factor of the bound in the energy."""


class VAE(ImageNetwork):
    r"""Fully connected encoder and decoder around a normal latent variable (Kingma and Welling, 2014).

    The encoder gives mean and log-variance of q(z | x), the decoder the mean of p(x | z) = N(mean, I / 2), so that
    -log p(x | z) is the sum of squared errors up to a constant; the prior of z is N(0, I).

    Args:
        images: `ImageFormat` of the images.
        hidden: widths of the encoder; the decoder has them in reverse.
        latent: dimension of z.

    Raises:
        ConfigurationError: a number below one.
    """

    def __init__(self, images: Sequence[int], hidden: Sequence[int] = (512, 256), latent: int = 10) -> None:
        super().__init__(images)
        self.latent = check_count("latent", latent)
        self.hidden = [check_count("hidden", width) for width in hidden]
        sizes = [math.prod(self.images.shape), *self.hidden]
        self.encoder = _perceptron([*sizes, 2 * latent])
        self.decoder = _perceptron([latent, *reversed(sizes)])

    @property
    def architecture(self) -> dict[str, Any]:
        return {"images": list(self.images), "hidden": self.hidden, "latent": self.latent}

    @property
    def num_features(self) -> int:
        """The number of `features` of an image."""
        return self.latent

    def bound(
        self, x: Float[Tensor, "b c h w"], noise: Float[Tensor, "b l"] | None = None
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """The two parts of the negative evidence lower bound: squared error, and KL divergence of q(z | x) from p(z).

        Args:
            x: images.
            noise: standard normal numbers that make a sample of q(z | x); its mean is taken when None.

        Returns:
            The sum over pixels of the squared error of the reconstruction, and the divergence.
        """
        pixels = x.flatten(1)
        mean, log_variance = self.encoder(pixels).chunk(2, -1)
        z = mean if noise is None else mean + noise * (0.5 * log_variance).exp()
        error = (torch.sigmoid(self.decoder(z)) - pixels).square().sum(-1)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(-1)
        return error, divergence

    def features(self, x: Float[Tensor, "*batch c h w"]) -> Float[Tensor, "*batch f"]:
        """The mean of q(z | x), `f = latent`: shape and pose of the digit, and little of its sharpness.

        Raises:
            ShapeError: see `per_image`.
        """
        return self.per_image(self._features, x)

    def elbo_energy(self, x: Float[Tensor, "*batch c h w"]) -> Float[Tensor, "*batch"]:
        """E(x) = 0.1 (squared error + KL divergence), with the reconstruction from the mean of q(z | x).

        So it is a deterministic function of the image, a little below the bound, which averages over q(z | x).

        Raises:
            ShapeError: see `per_image`.
        """
        return self.per_image(self._energy, x)

    def _features(self, x: Tensor) -> Tensor:
        return self.encoder(x.flatten(1))[..., : self.latent]

    def _energy(self, x: Tensor) -> Tensor:
        error, divergence = self.bound(x)
        return ENERGY_SCALE * (error + divergence)


def _perceptron(sizes: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
