"""What the user of docs/examples/digits.py has already: images, and networks trained on them as usual."""

from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional


def images(channels: int = 1) -> tuple[Tensor, Tensor]:
    """The 1,797 digits in the middle of a frame of 32 x 32 pixels; with three channels on a background of colour."""
    digits = load_digits()
    x = functional.interpolate(torch.tensor(digits.images).float().unsqueeze(1) / 16, scale_factor=2, mode="bilinear")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x = functional.pad(x, (8, 8, 8, 8))[order]
    if channels == 3:
        ink, paper = torch.tensor([[0.9, 0.1, 0.2], [0.2, 0.7, 0.9]]).reshape(2, 3, 1, 1)
        x = paper + x * (ink - paper)
    return x, torch.tensor(digits.target)[order]


def trained(network: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, epochs: int) -> None:
    """Adam on clean images."""
    optimiser = torch.optim.Adam(network.parameters(), 2e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(64):
            optimiser.zero_grad()
            loss(network(x[rows]), y[rows]).backward()
            optimiser.step()
    network.eval().requires_grad_(False)


def classifier_of(x: Tensor, y: Tensor) -> nn.Module:
    """Two convolutions and two linear layers: 97 % of clean test digits."""
    torch.manual_seed(0)
    classifier = nn.Sequential(
        *(nn.Conv2d(x.shape[1], 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(2048, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    trained(classifier, functional.cross_entropy, x, y, 30)
    return classifier


class Autoencoder(nn.Module):
    """Eight numbers for an image; in training it sees noise."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        pixels = shape.numel()
        self.layers = nn.Sequential(
            *(nn.Flatten(), nn.Linear(pixels, 256), nn.ReLU(), nn.Linear(256, 8)),
            *(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, pixels), nn.Unflatten(1, shape)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The images as it remembers them."""
        return self.layers(x + 0.2 * torch.randn_like(x) if self.training else x)


def autoencoder_of(x: Tensor) -> nn.Module:
    """An autoencoder of clean images."""
    torch.manual_seed(0)
    autoencoder = Autoencoder(x.shape[1:])
    trained(autoencoder, functional.mse_loss, x, x, 40)
    return autoencoder
