"""deepinv: our groups as its transforms, in its arithmetic, its averages and its loss of equivariant imaging."""

import deepinv
import pytest
import torch
from torch import Tensor, nn

from tests.helpers import seeded
from trivgeo.actions import ImageWarp
from trivgeo.bridges.deepinv import RandomTransformation
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE, SO, Affine
from trivgeo.inversion.transformations import composed, rotations, scales, shifts

GROUP = Affine(2)
WARP = ImageWarp(GROUP)
TRANSFORMATIONS = composed(GROUP, rotations(GROUP, 40.0), scales(GROUP, 0.8, 1.25), shifts(GROUP, 0.1))


def blob(batch: int = 2, side: int = 32) -> Tensor:
    axis = torch.linspace(-1, 1, side)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    shift = torch.linspace(-0.1, 0.1, batch)[:, None, None, None]
    return torch.exp(-8 * ((x - 0.2 + shift) ** 2 + (y + 0.1) ** 2)).reshape(batch, 1, side, side)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 5, padding=2)

    def forward(self, x: Tensor, sigma: object = None) -> Tensor:
        return self.layer(x)


def test_a_transform_and_its_inverse() -> None:
    """Images by elements, in deepinv's order; the inverse is that of the group, not minus the parameters."""
    x = blob()
    transform = RandomTransformation(WARP, TRANSFORMATIONS, n_trans=3, rng=seeded(0))
    parameters = transform.get_params(x)
    moved = transform.transform(x, **parameters)
    assert moved.shape == (6, 1, 32, 32)
    g = TRANSFORMATIONS(3, seeded(0))
    torch.testing.assert_close(moved, torch.cat([WARP(h.float(), x) for h in g]), atol=1e-5, rtol=0.0)
    back = transform.inverse(moved, batchwise=False, **parameters)
    torch.testing.assert_close(back, x.repeat(3, 1, 1, 1), rtol=0.0, atol=0.05)
    assert float((moved - x.repeat(3, 1, 1, 1)).abs().max()) > 0.1


def test_arithmetic_and_averages_of_deepinv() -> None:
    """A denoiser that is no function of places alone becomes nearly equivariant by the average over a group."""
    x = blob(1)
    turn = RandomTransformation(ImageWarp(SO(2)), rotations(SO(2)), n_trans=64, rng=seeded(1))
    shift = deepinv.transform.Shift(n_trans=2, rng=seeded(2))
    assert (turn + shift)(x).shape == (66, 1, 32, 32)
    assert (turn * shift)(x).shape == (128, 1, 32, 32)
    ramp = torch.linspace(0, 1, 32)
    function = lambda y: ramp * y  # noqa: E731
    average = turn.symmetrize(function, average=True)
    quarter = lambda y: torch.rot90(y, 1, (-2, -1))  # noqa: E731
    errors = [float((quarter(f(x)) - f(quarter(x))).norm() / f(x).norm()) for f in (function, average)]
    assert errors[1] < 0.3 * errors[0]
    expected = 0.5 * x  # the mean of the ramp over all rotations about the middle
    torch.testing.assert_close(average(x), expected, rtol=0.0, atol=0.1)


def test_equivariant_imaging() -> None:
    """The loss falls while a network is trained from measurements alone; volumes are moved in space."""
    torch.manual_seed(0)
    physics = deepinv.physics.Inpainting((1, 32, 32), mask=0.6, rng=seeded(3))
    x = blob(4)
    y = physics(x)
    network = deepinv.models.ArtifactRemoval(Denoiser())
    loss = deepinv.loss.EILoss(RandomTransformation(WARP, TRANSFORMATIONS, rng=seeded(4)), apply_noise=False)
    consistency = deepinv.loss.MCLoss()
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    values = []
    for _ in range(60):
        restored = network(y, physics)
        total = loss(x_net=restored, physics=physics, model=network).mean()
        total = total + consistency(y=y, x_net=restored, physics=physics).mean()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        values.append(float(total.detach()))
    assert sum(values[-5:]) < 0.5 * sum(values[:5])
    space = RandomTransformation(ImageWarp(SE(3)), lambda count, generator: SE(3).random(count, generator=generator))
    assert space(torch.rand(2, 1, 8, 8, 8)).shape == (2, 1, 8, 8, 8)
    assert RandomTransformation(WARP, TRANSFORMATIONS)(torch.rand(2, 1, 5, 8, 8)).shape == (2, 1, 5, 8, 8)
    with pytest.raises(ConfigurationError, match="action"):
        RandomTransformation(GROUP.action(), TRANSFORMATIONS)  # type: ignore[arg-type]
