"""Registration of volumes against motions of functions of space, which no interpolation has touched."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import ndimage
from scipy.stats import chi2
from torch import Tensor

from tests.helpers import assert_relative, randn, seeded
from trivgeo.actions import ImageWarp, Volume
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import SE, SO, Affine, LieGroup, Similarity, Translation
from trivgeo.registration import Registration, register
from trivgeo.registration.inverse_compositional import Grid, Picture, smoothed
from trivgeo.registration.volumes import BLUR_VARIANCE, soft


class Head:
    """Brightness between zero and one at points in millimetres: bells of several widths, without symmetry."""

    def __init__(self, seed: int) -> None:
        self.centres = randn(14, 3, seed=seed) * torch.tensor([14.0, 18.0, 14.0], dtype=torch.float64)
        self.widths = 4.0 + 5.0 * torch.rand(14, generator=seeded(seed + 1), dtype=torch.float64)
        self.heights = 0.4 + torch.rand(14, generator=seeded(seed + 2), dtype=torch.float64)

    def __call__(self, points: Tensor) -> Tensor:
        distance = torch.cdist(points, self.centres) / self.widths
        return 1.0 - torch.exp(-(self.heights * torch.exp(-0.5 * distance.square())).sum(-1))


head = Head(5)


def affine(
    spacing: tuple[float, ...], turn: tuple[float, ...], size: tuple[int, ...], shift: tuple[float, ...]
) -> Tensor:
    """The affine of a turned grid whose middle is at ``shift``."""
    matrix = torch.eye(4, dtype=torch.float64)
    linear = SO(3).action().homogeneous(SO(3).exp(torch.tensor(turn, dtype=torch.float64)))[:3, :3]
    matrix[:3, :3] = linear @ torch.diag(torch.tensor(spacing, dtype=torch.float64))
    middle = torch.tensor([0.5 * (n - 1) for n in size[::-1]], dtype=torch.float64)
    matrix[:3, 3] = torch.tensor(shift, dtype=torch.float64) - matrix[:3, :3] @ middle
    return matrix


def points_of(matrix: Tensor, size: tuple[int, ...]) -> Tensor:
    """Points of the voxels of a grid, row by row."""
    index = torch.stack(torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in size), indexing="ij")[::-1], -1)
    return index.flatten(0, 2) @ matrix[:3, :3].mT + matrix[:3, 3]


MOVING = (24, 30, 26), affine((2.5, 2.2, 2.8), (0.1, -0.2, 0.1), (24, 30, 26), (3.0, -2.0, 1.0))
FIXED = (34, 33, 28), affine((2.2, 2.4, 2.0), (0.0, 0.1, 0.05), (34, 33, 28), (0.0, 0.0, 0.0))


def pair(
    group: LieGroup, g: Tensor, seed: int = 0, noise: float = 0.02, head: Callable[[Tensor], Tensor] = head
) -> tuple[Volume, Volume]:
    """A moving volume, and a fixed one that shows it moved by g."""
    volumes = []
    for number, ((size, matrix), h) in enumerate(((MOVING, group.identity(dtype=g.dtype)), (FIXED, group.inverse(g)))):
        values = head(group.action()(h, points_of(matrix, size))).reshape(1, *size)
        volumes.append(Volume((values + noise * randn(1, *size, seed=2 * seed + number)).float(), matrix))
    return volumes[0], volumes[1]


def error(group: LieGroup, r: Registration, g: Tensor) -> float:
    """Largest distance in millimetres between points moved by what was found and by the truth."""
    return float((group.action()(r.element.double(), head.centres) - group.action()(g, head.centres)).norm(dim=1).max())


def square_in_stds(r: Registration, g: Tensor) -> float:
    group = r.group
    v = group.log(group.compose(group.inverse(r.element.double()), g))
    return float(v @ torch.linalg.solve(r.covariance.double(), v))


MOTIONS = [
    (SE(3), [0.3, -0.3, 0.25, 12.0, -9.0, 8.0]),
    (SE(3), [1.2, 1.0, -1.3, 5.0, 4.0, -6.0]),
    (Similarity(3), [0.2, -0.3, 0.1, 0.15, 6.0, -8.0, 4.0]),
    (Affine(3), [0.08, -0.1, 0.05, 0.09, -0.07, 0.06, -0.05, 0.1, 0.04, 6.0, -4.0, 5.0]),
    (Translation(3), [9.0, -7.0, 5.0]),
    (SO(3), [0.3, -0.2, 0.4]),
]


@pytest.mark.parametrize(("group", "v"), MOTIONS, ids=lambda value: str(value) if isinstance(value, LieGroup) else "")
def test_in_millimetres(group: LieGroup, v: list[float]) -> None:
    """Grids of other spacings, sizes and orientations; voxels are more than two millimetres wide."""
    g = group.exp(torch.tensor(v, dtype=torch.float64))
    moving, fixed = pair(group, g)
    r = register(moving, fixed, group)
    assert r.trusted, r.reasons
    assert error(group, r, g) < 0.35
    assert square_in_stds(r, g) < chi2.ppf(0.9999, group.dim)
    assert float(r.modes.weights[0, 0]) == 1.0
    assert_relative(
        group.log(group.compose(group.inverse(g), r.modes.elements[0, 0])), torch.zeros(group.dim).double(), 0.1
    )
    on_fixed = r.action(r.element.double(), moving).resampled(fixed)
    seen = on_fixed.data.abs() > 0
    assert float((on_fixed.data - fixed.data)[seen].square().mean().sqrt()) < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_tensors(dtype: torch.dtype) -> None:
    """Voxels of one size, in the frame of `ImageWarp`."""
    group, size = SE(3), (28, 30, 26)
    warp = ImageWarp(group)
    g = group.exp(torch.tensor([0.2, -0.3, 0.25, 0.1, -0.15, 0.1], dtype=torch.float64))
    frame = warp.source_points(group.identity(dtype=torch.float64), *size), warp.source_points(g, *size)
    moving, fixed = (head(40.0 * points).reshape(1, *size).to(dtype) for points in frame)
    r = register(moving, fixed, group)
    assert r.trusted, r.reasons
    assert r.element.dtype == torch.promote_types(dtype, torch.float32)
    off = warp.to_pixels(r.element.double(), size) @ torch.linalg.inv(warp.to_pixels(g, size)) - torch.eye(4).double()
    assert float((off[:3, :3] @ torch.tensor([13.0, 15.0, 14.0]).double() + off[:3, 3]).norm()) < 0.05


MODALITIES = {
    "rises and falls": lambda values: torch.sin(math.pi * values) + 0.3 * values,
    "inverted": lambda values: 1.0 - values,
    "labels": lambda values: (4.0 * values).floor(),
}


@pytest.mark.parametrize("name", MODALITIES)
def test_another_modality(name: str) -> None:
    """A gain and an offset do not take one to the other."""
    group = SE(3)
    g = group.exp(torch.tensor([0.3, -0.2, 0.25, 10.0, -9.0, 8.0], dtype=torch.float64))
    moving, fixed = pair(group, g)
    other = fixed._replace(data=MODALITIES[name](fixed.data))
    r = register(moving, other, group, similarity="mutual_information")
    assert any("held fixed" in assumption for assumption in r.verdict.assumptions)
    assert r.trusted, r.reasons
    assert error(group, r, g) < 0.6
    assert square_in_stds(r, g) < chi2.ppf(0.9999, 6)
    # the other way round gives the inverse
    back = register(other, moving, group, similarity="mutual_information")
    assert error(group, back, group.inverse(g)) < 0.6
    for one, (first, second) in ((r, (moving, other)), (back, (other, moving))):
        matrix = torch.linalg.inv(second.affine) @ group.homogeneous(one.element.double()) @ first.affine
        assert_relative(one.to_pixels(), matrix, 1e-6)


def test_masks() -> None:
    """What one volume shows beside the other one does not count."""
    group = SE(3)
    g = group.exp(torch.tensor([0.2, -0.2, 0.1, 6.0, -4.0, 5.0], dtype=torch.float64))
    moving, fixed = pair(group, g)
    fixed.data[:, :12] = torch.rand(1, 12, *fixed.data.shape[2:], generator=seeded(3))
    counted = torch.ones(fixed.data.shape[1:], dtype=torch.bool)
    counted[:12] = False
    r = register(moving, fixed, group, fixed_mask=counted)
    assert r.trusted, r.reasons
    assert error(group, r, g) < 0.5
    few = torch.zeros_like(counted)
    few[5:-5, 5:-5, 5:-5] = True
    assert not register(moving, fixed, group, fixed_mask=few).trusted


def turned(volume: Volume) -> Volume:
    """The same volume with other axes first, one of them backwards."""
    data = volume.data.permute(0, 2, 3, 1).flip(1)
    to_voxels = torch.zeros(4, 4, dtype=torch.float64)
    to_voxels[2, 0] = to_voxels[0, 1] = to_voxels[3, 3] = 1.0
    to_voxels[1, 2], to_voxels[1, 3] = -1.0, volume.data.shape[2] - 1
    return Volume(data.contiguous(), volume.affine @ to_voxels)


@pytest.mark.parametrize("kind", ["turned axes", "one window", "whole numbers", "NaN around"])
def test_volumes_as_they_are(kind: str) -> None:
    group = SE(3)
    g = group.exp(torch.tensor([0.3, -0.2, 0.25, 8.0, -9.0, 6.0], dtype=torch.float64))
    moving, fixed = pair(group, g)
    if kind == "turned axes":
        moving = turned(moving)
    elif kind == "one window":  # its descents end late
        fixed = fixed._replace(data=fixed.data.clamp(0.2, 0.6))
    elif kind == "whole numbers":
        moving, fixed = (volume._replace(data=(1000.0 * volume.data).to(torch.int16)) for volume in (moving, fixed))
    else:
        fixed.data[:, :5] = math.nan
    r = register(moving, fixed, group)
    assert r.trusted, r.reasons
    assert error(group, r, g) < 0.5
    assert square_in_stds(r, g) < chi2.ppf(0.9999, 6)


class TestVerdicts:
    @pytest.mark.parametrize("strength", [0.1, 0.2])
    def test_a_smooth_field_of_brightness_is_admitted_or_said(self, strength: float) -> None:
        group = SE(3)
        g = group.exp(torch.tensor([0.3, -0.2, 0.25, 8.0, -9.0, 6.0], dtype=torch.float64))
        moving, fixed = pair(group, g)
        depth, height, width = (torch.linspace(-strength, strength, side) for side in fixed.data.shape[1:])
        fixed = fixed._replace(data=fixed.data * (depth[:, None, None] + height[:, None] - width).exp())
        r = register(moving, fixed, group)
        assert not r.trusted or square_in_stds(r, g) < chi2.ppf(0.9999, 6)

    def test_a_ball_does_not_say_how_it_turned(self) -> None:
        size = (24, 24, 24)
        matrix = affine((2.0, 2.0, 2.0), (0.0, 0.0, 0.0), size, (0.0, 0.0, 0.0))
        ball = Volume(torch.exp(-points_of(matrix, size).norm(dim=1).square() / 200).reshape(1, *size).float(), matrix)
        noisy = [ball._replace(data=ball.data + 0.01 * randn(1, *size, seed=seed).float()) for seed in (1, 2)]
        r = register(*noisy, SE(3))
        assert not r.trusted
        assert register(*noisy, Translation(3)).trusted

    def test_symmetric_objects_have_several_places(self) -> None:
        size = (24, 24, 24)
        matrix = affine((2.0, 2.0, 2.0), (0.0, 0.0, 0.0), size, (0.0, 0.0, 0.0))
        ellipsoid = torch.exp(-(points_of(matrix, size) / torch.tensor([8.0, 10.0, 13.0])).square().sum(-1) / 2)
        volume = Volume(ellipsoid.reshape(1, *size).float(), matrix)
        noisy = [volume._replace(data=volume.data + 0.01 * randn(1, *size, seed=seed).float()) for seed in (1, 2)]
        r = register(*noisy, SE(3))
        assert not r.trusted
        assert int(r.modes.num_modes[0]) > 1
        assert "modes" in " ".join(r.reasons)

    def test_volumes_of_nothing_in_common(self) -> None:
        size = (20, 22, 24)
        x, y = (torch.nn.functional.avg_pool3d(randn(1, *size, seed=seed), 5, 1, 2) for seed in (0, 1))
        assert not register(x, y, SE(3)).trusted
        assert not register(x, y, SE(3), similarity="mutual_information").trusted
        assert not register(x, torch.zeros_like(x), SE(3)).trusted


SPREADS = {SE(3): [0.2] * 3 + [5.0] * 3, Affine(3): [0.07] * 9 + [5.0] * 3}
# not of another modality under affine maps: most of these pairs are borne by one answer alone, see its assumption
COVERED = [(kind, group) for kind in ("alike", "shows something alone") for group in SPREADS]
COVERED.append(("another modality", next(iter(SPREADS))))


@pytest.mark.slow(reason="one motion of each group stays")
@pytest.mark.parametrize(("kind", "group"), COVERED, ids=str)
def test_regions_hold_the_truth(kind: str, group: LieGroup) -> None:
    """Of other volumes in each pair: what one volume shows alone is off alike in all pairs of it."""
    number, held = 40, 0
    for seed in range(number):
        g = group.exp(torch.tensor(SPREADS[group], dtype=torch.float64) * randn(group.dim, seed=seed))
        moving, fixed = pair(group, g, seed, 0.05, Head(1000 + 3 * seed))
        if kind != "alike":
            fixed = fixed._replace(data=torch.sin(math.pi * fixed.data))
        if kind == "shows something alone":
            alone = Head(5000 + 3 * seed)(points_of(fixed.affine, fixed.data.shape[1:]))
            fixed = fixed._replace(data=fixed.data + 0.2 * alone.reshape(fixed.data.shape).float())
        similarity = "intensity" if kind == "alike" else "mutual_information"
        at_truth = lambda count, _, g=g: g.expand(count, *g.shape)  # noqa: E731
        r = register(moving, fixed, group, similarity=similarity, transformations=at_truth, num_starts=1)
        held += square_in_stds(r, g) < chi2.ppf(0.9, group.dim)
    assert held >= 0.8 * number
    # between two modalities the covariance admits the distance of two answers, which noise makes, too
    assert held <= (0.97 if kind == "alike" else 1.0) * number


class TestKernels:
    @pytest.mark.parametrize("kernel", [[[0.6, 0.2, 0.0], [0.2, 0.5, -0.1], [0.0, -0.1, 0.9]], [[1.3, 0, 0]] * 3])
    def test_covariances_add_up(self, kernel: list[list[float]]) -> None:
        wanted = torch.tensor(kernel, dtype=torch.float64)
        wanted = wanted if torch.equal(wanted, wanted.mT) else torch.diag(wanted[0])
        size = (17, 19, 21)
        point = torch.zeros(1, *size, dtype=torch.float64)
        point[0, 8, 9, 10] = 1.0
        found = soft(Picture(point, Grid(size, torch.eye(4, dtype=torch.float64))), wanted).image[0]
        at = points_of(torch.eye(4, dtype=torch.float64), size) - torch.tensor([10.0, 9.0, 8.0], dtype=torch.float64)
        assert_relative(torch.einsum("p,pi,pj->ij", found.flatten(), at, at), wanted, 1e-9)

    def test_noise_between_voxels_is_that_at_voxels(self) -> None:
        """Else sums of squares draw volumes to where noise is interpolated away."""
        size = (15, 15, 15)
        point = torch.zeros(1, *size, dtype=torch.float64)
        point[0, 7, 7, 7] = 1.0
        grid = Grid(size, torch.eye(4, dtype=torch.float64))
        blur = BLUR_VARIANCE * torch.eye(3, dtype=torch.float64)
        index = points_of(torch.eye(4, dtype=torch.float64), size).mT
        variances = []
        for image in (point, soft(Picture(point, grid), blur).image):
            at, between = (smoothed(image, list((index + part)[:, None])).square().sum() for part in (0.0, 0.5))
            variances.append(float(between / at))
        assert variances[0] < 0.8
        assert variances[1] > 0.97

    def test_straight_lines_stay_up_to_the_edges(self) -> None:
        """Kernels that repeat the outermost voxels draw edges inwards, and the motion with them."""
        size = (9, 10, 11)
        line = points_of(torch.eye(4, dtype=torch.float64), size) @ torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
        picture = Picture(line.reshape(1, *size), Grid(size, torch.eye(4, dtype=torch.float64)))
        kernel = torch.tensor([[1.3, 0.2, 0.1], [0.2, 0.9, -0.3], [0.1, -0.3, 1.1]], dtype=torch.float64)
        assert_relative(soft(picture, kernel).image, picture.image, 1e-12)

    def test_splines_are_those_of_scipy(self) -> None:
        image = randn(2, 9, 10, 11, seed=1)
        places = [2.0 + (n - 5.0) * torch.rand(1, 50, generator=seeded(n), dtype=torch.float64) for n in (11, 10, 9)]
        index = torch.cat(places[::-1]).numpy()
        wanted = [ndimage.map_coordinates(channel, index, order=3, prefilter=False) for channel in image.numpy()]
        found = smoothed(image, places).reshape(2, 50)
        assert_relative(found, torch.tensor(np.stack(wanted)), 1e-9)


def test_refusals() -> None:
    good = Volume(torch.rand(1, 8, 9, 10), torch.eye(4))
    with pytest.raises(ConfigurationError, match="fixed: expected a Volume, as moving, got Tensor"):
        register(good, good.data, SE(3))
    with pytest.raises(ConfigurationError, match="points of 3 coordinates"):
        register(good, good, SE(2))
    with pytest.raises(ConfigurationError, match="similarity: expected one of intensity, mutual_information"):
        register(good, good, SE(3), similarity="mutual")
    with pytest.raises(ShapeError, match="expected 1 channels, as moving, got 2"):
        register(good, good._replace(data=torch.rand(2, 8, 9, 10)), SE(3))
    with pytest.raises(NonFiniteError, match=r"fixed: expected finite numbers, but for voxels of NaN"):
        register(good, good._replace(data=torch.full((1, 8, 9, 10), math.nan)), SE(3))
    with pytest.raises(DomainError, match=r"moving\.affine: expected a finite regular matrix"):
        register(good._replace(affine=torch.zeros(4, 4)), good, SE(3))
    with pytest.raises(ShapeError, match=r"moving_mask: expected a tensor \[8, 9, 10\], as the volume, got \[3\]"):
        register(good, good, SE(3), moving_mask=torch.ones(3))
    with pytest.raises(DomainError, match="fixed_mask: expected some voxels"):
        register(good, good, SE(3), fixed_mask=torch.zeros(8, 9, 10))
    with pytest.raises(ConfigurationError, match="matched: expected None for volumes"):
        register(good, good, SE(3), matched=True)
    with pytest.raises(ShapeError, match=r"moving: expected one volume \[c, d, h, w\]"):
        register(Volume(torch.rand(2, 1, 8, 9, 10), torch.eye(4).expand(2, 4, 4)), good, SE(3))
