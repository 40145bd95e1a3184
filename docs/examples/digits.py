"""Digits of scikit-learn under similarity transformations: a classifier of one's own made equivariant, in two ways.

python docs/examples/digits.py
"""

import math
import sys
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from trivgeo.actions import ImageWarp
from trivgeo.groups import Similarity
from trivgeo.inversion import TIED, LearnedInverter, TestTimeEquivariant, check_energy


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


def trained(network: nn.Module, loss: object, x: Tensor, y: Tensor, epochs: int, noise: float = 0.0) -> nn.Module:
    """A network of the user, trained as usual on clean images."""
    optimiser = torch.optim.Adam(network.parameters(), 2e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(64):
            optimiser.zero_grad()
            noisy = x[rows] + noise * torch.randn(x[rows].shape, generator=generator)
            loss(network(noisy), y[rows]).backward()  # type: ignore[operator]
            optimiser.step()
    return network.eval().requires_grad_(False)


def networks(x: Tensor, y: Tensor) -> tuple[nn.Module, nn.Module]:
    """A classifier, and an autoencoder that was shown noise."""
    torch.manual_seed(0)
    channels, pixels = x.shape[1], x[0].numel()
    classifier = nn.Sequential(
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(2048, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    layers = (
        nn.Linear(pixels, 256),
        nn.ReLU(),
        nn.Linear(256, 8),
        nn.Linear(8, 256),
        nn.ReLU(),
        nn.Linear(256, pixels),
    )
    autoencoder = nn.Sequential(nn.Flatten(), *layers, nn.Unflatten(1, x.shape[1:]))
    return (
        trained(classifier, functional.cross_entropy, x, y, 30),
        trained(autoencoder, functional.mse_loss, x, x, 40, 0.2),
    )


def main(channels: int = 1, steps: int = 1200) -> dict[str, float]:
    """Accuracies on 500 digits under random similarity transformations."""
    x, y = images(channels)
    clean, labels, x, y = x[:1297], y[:1297], x[1297:], y[1297:]
    classifier, autoencoder = networks(clean, labels)

    # what a user of trivgeo writes ------------------------------------------------------------------------------
    group = Similarity(2)
    action = ImageWarp(group, fill=clean.amax((0, 2, 3)).tolist() if channels == 3 else 0.0)

    def law(count: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(count, 4, generator=generator, dtype=torch.float64)
        angle = math.pi * (u[:, 0] - 0.5)
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).unflatten(-1, (2, 2))
        return group.from_parts(turn, 0.6 * (1.6 / 0.6) ** u[:, 1], 0.8 * (u[:, 2:] - 0.5))

    def energy(z: Tensor) -> Tensor:  # how much of an image the autoencoder does not know
        ink = z - z[..., :1, :1]
        return 10 * (autoencoder(z) - z).square().sum((1, 2, 3)) / (1 + ink.square().sum((1, 2, 3)))

    g = law(len(x), torch.Generator().manual_seed(1)).float()
    moved = action(g, x)
    print(check_energy(action, lambda z: -classifier(z).logsumexp(-1), clean, law))
    print(check := check_energy(action, energy, clean, law))
    searched = TIED.for_data(action, energy, clean, law, seconds=60)
    began = time.process_time(), time.time()
    found = searched(moved, generator=torch.Generator().manual_seed(0)).restore(moved)
    print("search", time.process_time() - began[0], time.time() - began[1])
    began = time.process_time(), time.time()
    inverter = LearnedInverter(action, seed=0).fit(clean, law, steps=steps)
    print("fit", time.process_time() - began[0], time.time() - began[1])
    model = TestTimeEquivariant(classifier, inverter)
    # ------------------------------------------------------------------------------------------------------------

    logits = {"clean": classifier(x), "alone": classifier(moved), "TIED": classifier(found), "learned": model(moved)}
    logits["true transformation"] = classifier(action(group.inverse(g), moved))
    return {name: float((z.argmax(-1) == y).float().mean()) for name, z in logits.items()} | {
        "below": check.share_below
    }


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:])))
