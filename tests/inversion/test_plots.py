"""Pictures of inversions: what is drawn is what was found."""

from __future__ import annotations

import math

import pytest
import torch
from matplotlib import pyplot as plt

from tests.helpers import assert_relative, rand
from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SO, Affine, Projective, Similarity, Translation
from trivgeo.inversion import InversionResult, check_energy
from trivgeo.inversion.plots import angle_and_scale

ANGLES = torch.tensor([-2.0, 0.3, 3.0]).double()
SCALES = torch.tensor([0.5, 1.0, 1.8]).double()


def moved() -> torch.Tensor:
    return Similarity(2).from_parts(SO(2).exp(ANGLES.unsqueeze(-1)), SCALES, torch.tensor([0.2, -0.1]).double())


def test_angle_and_scale() -> None:
    """Those that an element was made of, whatever its shift; a stretch diag(2, 1/2) has neither."""
    for name, found in zip(("angle", "scale"), angle_and_scale(ImageWarp(Similarity(2)), moved()), strict=True):
        assert_relative(found, {"angle": ANGLES, "scale": SCALES}[name], 1e-12)
    stretch = Affine(2).join(torch.diag(torch.tensor([2.0, 0.5])), torch.zeros(2))
    angle, scale = angle_and_scale(ImageWarp(Affine(2)), stretch)
    assert abs(float(angle)) < 1e-6
    assert abs(float(scale) - 1) < 1e-6
    matrix = torch.cat([moved(), torch.tensor([0.0, 0.0, 1.0]).double().expand(3, 1, 3)], -2)
    angle, scale = angle_and_scale(ImageWarp(Projective(2)), Projective(2).from_matrix(matrix))
    assert_relative(angle, ANGLES, 1e-12)
    with pytest.raises(ConfigurationError, match="ImageWarp"):
        angle_and_scale(SO(2).action(), SO(2).identity(1))


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_images(channels: int) -> None:
    """Given images as they are, restored ones by the best element, a mark at its angle and scale."""
    x, elements = rand(2, channels, 6, 6), moved().expand(2, 3, 2, 3)
    energies = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 2.0]]).double()
    failures = torch.zeros(2, 3, dtype=torch.long)
    result = InversionResult(ImageWarp(Similarity(2)), elements, energies, failures, 0, 0)
    figure = result.plot(x, num_images=7)
    axes = torch.arange(6).reshape(3, 2)
    low, high = x.min(), x.max()
    for i, best in enumerate((1, 0)):
        for row, images in enumerate((x, result.restore(x))):
            drawn = torch.as_tensor(figure.axes[axes[row, i]].images[0].get_array())
            expected = (images[i].movedim(0, -1).clamp(low, high) - low) / (high - low)
            expected = expected if channels == 3 else expected.mean(-1)
            assert_relative(drawn.float(), expected.float(), 1e-6)
        points, mark = figure.axes[axes[2, i]].collections
        expected = torch.stack([ANGLES.rad2deg(), SCALES], -1)
        assert_relative(torch.from_numpy(points.get_offsets().data), expected, 1e-9)
        assert_relative(torch.from_numpy(mark.get_offsets().data), expected[best : best + 1], 1e-9)
        assert figure.axes[axes[2, i]].get_ylim() == pytest.approx((0.45, 1.98))  # a tenth beyond what was found
    plt.close(figure)
    with pytest.raises(ShapeError, match="2 data"):
        result.plot(x[:1])
    with pytest.raises(ConfigurationError, match="num_images"):
        result.plot(x, num_images=0)


def test_well() -> None:
    """The median rise over the distance, and what lies below in the title."""

    def transformations(number: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(number, 2, generator=generator, dtype=torch.float64)

    clean = torch.zeros(4, 1, 2).double()
    check = check_energy(Translation(2).action(), lambda y: y.square().sum((-2, -1)), clean, transformations)
    axes = check.plot()
    radii, rises = (torch.from_numpy(values) for values in axes.lines[0].get_data())
    # steps of length r sqrt(2) in units of the spread, which is one up to what 4096 samples say
    assert_relative(rises, 2 * radii.square(), 0.1, floor=0.0)
    assert axes.get_title().startswith("0%")
    assert math.isclose(axes.lines[2].get_ydata()[0], check.profile.depth)
    plt.close(axes.figure)
