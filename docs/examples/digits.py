"""A classifier of one's own made equivariant to similarity transformations, in two ways: `digits.py [channels]`."""

import sys

import torch
from digits_networks import autoencoder_of, classifier_of, images

from trivgeo.actions import ImageWarp
from trivgeo.groups import SO, Similarity
from trivgeo.inversion import TIED, LearnedInverter, TestTimeEquivariant, check_energy

x, y = images(*map(int, sys.argv[1:]))
clean, labels, x, y = x[:1297], y[:1297], x[1297:], y[1297:]
classifier, autoencoder = classifier_of(clean, labels), autoencoder_of(clean)
group = Similarity(2)
action = ImageWarp(group, fill=clean[0, :, 0, 0].tolist())  # outside an image is what its corner shows


def transformations(count: int, generator: torch.Generator) -> torch.Tensor:
    u = torch.rand(count, 4, generator=generator, dtype=torch.float64)
    return group.from_parts(SO(2).exp(torch.pi * (u[:, :1] - 0.5)), 0.6 * (1.6 / 0.6) ** u[:, 1], 0.8 * u[:, 2:] - 0.4)


def energy(z: torch.Tensor) -> torch.Tensor:  # the share of the ink that the autoencoder does not know
    unknown, ink = (autoencoder(z) - z).square(), (z - z[..., :1, :1]).square()
    return 10 * unknown.sum((1, 2, 3)) / (1 + ink.sum((1, 2, 3)))


moved = action(transformations(len(x), torch.Generator().manual_seed(1)).to(x), x)
print(check := check_energy(action, energy, clean, transformations, network=classifier, labels=labels))
search = TIED(action, energy, transformations, clean)
restored = search(moved, generator=torch.Generator().manual_seed(0)).restore(moved)
model = TestTimeEquivariant(classifier, LearnedInverter(action, seed=0).fit(clean, transformations, steps=1000))
logits = {"alone": classifier(moved), "TIED": classifier(restored), "learned": model(moved)}
accuracy = {name: float((z.argmax(-1) == y).float().mean()) for name, z in logits.items()}
print(accuracy)
