"""Pictures of registrations show one datum on the other, and errors that are those of samples of the covariance."""

import math
from dataclasses import replace

import torch
from matplotlib import pyplot as plt
from torch import Tensor

from trivgeo.actions import Volume
from trivgeo.groups import SE, Similarity
from trivgeo.registration import register
from trivgeo.registration.pictures import draw_grids, standard_deviation


def waves(*size: int) -> Tensor:
    """A picture of any number of dimensions without symmetry, in float64."""
    places = torch.meshgrid(*(torch.arange(float(n)).double() for n in size), indexing="ij")
    return sum(torch.sin(x / (2.0 + i) + x * places[0] / 40.0) for i, x in enumerate(places))[None]


def number_in(title: str) -> float:
    return float(title.rpartition("±")[2].split()[0])


def test_the_standard_deviation_is_that_of_drawn_elements() -> None:
    group = Similarity(2)
    generator = torch.Generator().manual_seed(0)
    g = group.random(generator=generator, dtype=torch.float64)
    root = 0.01 * torch.randn(4, 4, generator=generator, dtype=torch.float64)
    points = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    v = torch.randn(20000, 4, generator=generator, dtype=torch.float64) @ root.T
    drawn = group.action()(group.perturb(g, v), points)
    expected = (drawn - drawn.mean(0)).square().sum(-1).mean().sqrt()
    assert math.isclose(standard_deviation(group.action(), g, root @ root.T, points), float(expected), rel_tol=0.03)


def test_a_checkerboard_of_a_shifted_picture_is_the_picture() -> None:
    """Its tiles continue each other: a homography of whole pixels interpolates nothing."""
    fixed, shift = waves(24, 32), torch.eye(3, dtype=torch.float64)
    moving = fixed.roll((-3, -5), (1, 2))
    shift[0, 2], shift[1, 2] = 5.0, 3.0
    axes = draw_grids(moving, fixed, shift, "both").axes
    shown, there = (axis.images[0].get_array()[3:, 5:] for axis in axes[2:0:-1])
    assert abs(shown - there).max() < 0.02  # exposures are fitted on what both show
    wrong = draw_grids(moving, fixed, torch.eye(3, dtype=torch.float64), "both").axes[2].images[0].get_array()
    assert abs(wrong[3:, 5:] - there).max() > 0.3
    plt.close("all")


def test_photographs_volumes_and_clouds() -> None:
    generator = torch.Generator().manual_seed(0)
    cloud = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    g = SE(3).random(generator=generator, dtype=torch.float64)
    noisy = SE(3).action()(g, cloud) + 0.01 * torch.randn(40, 3, generator=generator, dtype=torch.float64)
    found = register(cloud, noisy, SE(3), matched=True)
    figure = found.plot(cloud, noisy)
    before, after = figure.axes
    assert before.get_title() == "before"
    assert after.get_title().startswith("trusted")
    assert 0.002 < number_in(after.get_title()) < 0.02  # noise .01 of forty points
    offsets = torch.tensor(after.collections[0]._offsets3d[0]) - noisy[:, 0]
    assert float(offsets.abs().max()) < 0.1

    photograph = waves(40, 50)
    of_photographs = register(photograph, photograph + 0.01 * torch.randn(1, 40, 50, generator=generator), SE(2))
    assert of_photographs.plot(photograph, photograph).axes[2].get_title().endswith(" pixels")

    affine = torch.diag(torch.tensor([2.0, 2.0, 2.0, 1.0], dtype=torch.float64))
    volume = Volume(waves(12, 14, 16), affine)
    of_volumes = replace(found, covariance=0.01 * torch.eye(6), frames=(affine, affine))
    assert of_volumes.plot(volume, volume).axes[2].get_title().endswith(" mm")
    plt.close("all")
