"""Images of several sizes in a list: each as it is found in a batch of its size."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from tests.helpers import assert_relative, rand, random_elements, seeded
from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.groups import SE
from trivgeo.inversion import Inverter, TestTimeEquivariant
from trivgeo.inversion.stages import Descend, GaussianSearch
from trivgeo.sde import NoiseStreams

WARP = ImageWarp(SE(2))
IMAGES = [rand(2, *size, seed=seed) for seed, size in enumerate([(9, 7), (6, 8), (9, 7), (5, 5)])]


def energy(x: Tensor) -> Tensor:
    return (x - 0.5).square().mean((1, 2, 3))


@pytest.fixture(scope="module")
def inverter() -> Inverter:
    return Inverter(WARP, energy, [GaussianSearch(6, 2, 0.3), Descend(2)], progress=False)


def test_images_are_warped_one_by_one() -> None:
    g = random_elements(SE(2), 4, std=0.2, seed=1)
    for h, image, moved in zip(g, IMAGES, WARP(g, IMAGES), strict=True):
        assert torch.equal(moved, WARP(h, image))
    assert torch.equal(WARP(g[0], IMAGES)[3], WARP(g[0], IMAGES[3]))


def test_found_is_what_is_found_in_a_batch_of_one_size(inverter: Inverter) -> None:
    r = inverter(IMAGES, generator=seeded(3))
    pair = inverter(torch.stack([IMAGES[0], IMAGES[0], IMAGES[2]]), generator=seeded(3))
    assert_relative(r.elements[[0, 2]], pair.elements[[0, 2]], 1e-12)
    assert_relative(r.energies[[0, 2]], pair.energies[[0, 2]], 1e-12)
    assert (r.energy_evaluations, r.gradient_evaluations) == (pair.energy_evaluations, pair.gradient_evaluations)
    assert r.kept is not None
    assert pair.kept is not None
    assert_relative(r.kept[[0, 2]], pair.kept[[0, 2]], 1e-12)
    for g, image, restored in zip(r.best(), IMAGES, r.restore(IMAGES), strict=True):
        assert_relative(restored, WARP(SE(2).inverse(g), image), 1e-12)


def test_streams_and_initial_elements(inverter: Inverter) -> None:
    """Data 7, 3, 9, 4: the noise is that of the numbers; each starts from its own element."""
    streams = NoiseStreams(torch.tensor([7, 3, 9, 4]), 1)
    start = random_elements(SE(2), 4, 1, std=0.3, seed=2)
    r = inverter(IMAGES, generator=streams, initial=start)
    alone = inverter(IMAGES[1][None], generator=NoiseStreams(torch.tensor([3]), 1), initial=start[1:2])
    assert_relative(r.elements[1:2], alone.elements, 1e-12)


def test_refusals(inverter: Inverter) -> None:
    spoilt = [IMAGES[0], IMAGES[1] * math.nan]
    for error, images in (
        (ShapeError, []),
        (ShapeError, [IMAGES[0], IMAGES[0][0]]),
        (ConfigurationError, [IMAGES[0], IMAGES[1].long()]),
        (NonFiniteError, spoilt),
    ):
        with pytest.raises(error):
            inverter(images)
    with pytest.raises(ShapeError, match="initial"):
        inverter(IMAGES, initial=SE(2).identity(3, 1))
    with pytest.raises(ShapeError, match="4 images"):
        WARP(SE(2).identity(2), IMAGES)
    with pytest.raises(ShapeError, match="4 images"):
        inverter(IMAGES).restore(IMAGES[:2])
    model = TestTimeEquivariant(energy, inverter)
    with pytest.raises(ShapeError, match="4 images"):
        model.predict(IMAGES[:2], inverter(IMAGES))
    with pytest.raises(ShapeError, match="expected images"):
        model([])
    with pytest.raises(ConfigurationError, match="tensor"):
        model(["a picture"])


@pytest.mark.parametrize("ensemble", ["best", "mean"])
def test_predictions_are_those_of_batches_of_one_size(ensemble: Literal["best", "mean"]) -> None:
    """Labels are put together; outputs that are images come as a list. The frame gives each search its start."""
    search = Inverter(WARP, energy, [GaussianSearch(6, 2, 0.3)], progress=False)

    def frame(x: Tensor) -> Tensor:
        return WARP.group.exp(0.2 * x.mean((1, 2, 3))[:, None] * torch.ones(3, dtype=x.dtype))

    for network, output_action in ((lambda x: x.mean((2, 3)), None), (lambda x: 2.0 * x, WARP)):
        model = TestTimeEquivariant(network, search, output_action, ensemble, frame)
        outputs = model(IMAGES, generator=seeded(3))
        pair = model(torch.stack([IMAGES[0], IMAGES[0], IMAGES[2]]), generator=seeded(3))
        assert [tuple(y.shape) for y in outputs] == [tuple(network(x[None]).shape[1:]) for x in IMAGES]
        assert isinstance(outputs, list) == (output_action is not None)
        for row, place in ((0, 0), (2, 2)):
            assert_relative(outputs[place], pair[row], 1e-12)


def test_equivariance_errors_in_the_order_of_the_images() -> None:
    """An inverter that returns the identity leaves the error of the network itself."""
    found = Inverter(WARP, energy, [], progress=False)
    error = TestTimeEquivariant(lambda x: x.sum((1, 2, 3))[:, None], found).equivariance_error(
        IMAGES, 3, transformations=lambda n, generator: random_elements(SE(2), n, std=0.2, seed=1)
    )
    moved = WARP(random_elements(SE(2), 3, std=0.2, seed=1)[1], IMAGES)
    wanted = torch.stack([(y.sum() / x.sum() - 1.0).abs() for x, y in zip(IMAGES, moved, strict=True)])
    assert error.errors.shape == (3, 4)
    assert_relative(error.errors[1], wanted, 1e-12)
    assert error.worst == float(error.errors.max())
