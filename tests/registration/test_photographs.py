"""Verdicts and covariances of registered photographs: rendered fields and shapes, whose transformations are known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.helpers import randn, seeded
from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE, SO, Affine, LieGroup, Similarity, Translation
from trivgeo.inversion.transformations import rotations
from trivgeo.registration import Registration, register
from trivgeo.registration.blocks import BlockSums, block_estimate
from trivgeo.registration.images import _LOSS_WIDTH_IN_STDS, Found, ImageRegistration
from trivgeo.registration.inverse_compositional import Exposure, means_of_parts
from trivgeo.registration.mutual_information import _classes
from trivgeo.registration.record import UNKNOWN_STD

SIDE = 48


def positions(matrix: Tensor | None = None, side: int = SIDE) -> Tensor:
    """Pixels, or where an image moved by a homography in pixels is read, ``[2, h, w]``."""
    y, x = torch.meshgrid(*(torch.arange(side, dtype=torch.float64),) * 2, indexing="ij")
    lifted = torch.stack([x, y, torch.ones_like(x)])
    if matrix is not None:
        lifted = torch.einsum("ij,jhw->ihw", torch.linalg.inv(matrix), lifted)
    return lifted[:2] / lifted[2]


def texture(points: Tensor, seed: int = 0) -> Tensor:
    """A sum of waves of 8 to 60 pixels of variance one at positions, ``[1, h, w]``."""
    generator = seeded(seed)
    number, phase, turn = (torch.rand(80, generator=generator, dtype=torch.float64) for _ in range(3))
    wave = 2 * math.pi / 60 * (60 / 8) ** number
    across, down = (wave * part(2 * math.pi * turn) for part in (torch.cos, torch.sin))
    angle = across[:, None, None] * points[0] + down[:, None, None] * points[1] + 2 * math.pi * phase[:, None, None]
    return angle.cos().sum(0, keepdim=True) / math.sqrt(40)


def disc(points: Tensor, centre: float = 23.5, radius: float = 14.0) -> Tensor:
    """A disc with a soft edge."""
    return torch.sigmoid(2.0 * (radius - (points - centre).norm(dim=0, keepdim=True)))


def squared_distance(r: Registration, truth: Tensor) -> float:
    """The squared distance of the truth in standard deviations."""
    g = r.element.double()
    v = r.group.log(r.group.compose(r.group.inverse(g), truth))
    return float(v @ torch.linalg.solve(r.covariance.double(), v))


def near(group: LieGroup, seed: int, std: float = 0.03) -> tuple[Tensor, Tensor]:
    """An element near the identity, and its matrix in pixels."""
    g = group.exp(std * torch.randn(group.dim, generator=seeded(seed), dtype=torch.float64))
    return g, ImageWarp(group).to_pixels(g, (SIDE, SIDE))


def test_size_of_the_covariance() -> None:
    """Squared distances of the truth follow the chi-squared distribution: half or twice the covariance is seen."""
    group, number, noise, squares = Affine(2), 12, 0.05, []
    for seed in range(number):
        g, matrix = near(group, seed)
        moving, fixed = (
            texture(p, seed) + noise * randn(1, SIDE, SIDE, seed=100 + 2 * seed + k)
            for k, p in enumerate((positions(), positions(matrix)))
        )
        method = ImageRegistration(moving, fixed, group, None, 1, seeded(0))
        width = _LOSS_WIDTH_IN_STDS * math.sqrt(2) * noise
        r = method.judged(Found(group.inverse(g)[None], Exposure.none(1, moving), width))
        assert r.trusted, r.reasons
        squares.append(squared_distance(r, g) / group.dim)
    # nearer to one than to a half or to two: about two standard deviations of the mean
    assert abs(math.log2(sum(squares) / number)) < 0.5, sum(squares) / number


@pytest.mark.parametrize("noise", [0.05, pytest.param(0.15, marks=pytest.mark.slow(reason="more noise"))])
def test_what_noise_alone_determines_is_free(noise: float) -> None:
    """A disc has no angle, an edge no place along it: noise gave them standard deviations of a thousandth."""
    edge = lambda p: torch.sigmoid(p[:1] - 20.0)  # noqa: E731
    noisy = lambda image, seed: image + noise * randn(1, SIDE, SIDE, seed=seed)  # noqa: E731
    turned = register(
        noisy(disc(positions()), 1), noisy(disc(positions()), 2), SO(2), transformations=rotations(SO(2)), num_starts=32
    )
    rigid = register(noisy(disc(positions()), 3), noisy(disc(positions()), 4), SE(2), num_starts=8)
    moved = register(noisy(edge(positions()), 5), noisy(edge(positions() + 1.0), 6), Translation(2), num_starts=8)
    for r in (turned, rigid, moved):
        assert "do not determine the transformation in" in " ".join(r.reasons)
        assert float(torch.linalg.eigvalsh(r.covariance)[-1].sqrt()) > 0.5 * UNKNOWN_STD
    # what the data do show keeps its covariance
    across, along = moved.covariance.diagonal().sqrt().tolist()
    assert across < 0.01 < along
    assert abs(float(moved.element[0]) + 2.0 / SIDE) < 4 * across
    seen = register(noisy(texture(positions()), 7), noisy(texture(positions()), 8), SE(2), num_starts=8)
    assert seen.trusted, seen.reasons


def test_uneven_exposure() -> None:
    """A tone curve and a vignette: corners were off by some pixels, with standard deviations of tenths."""
    group = Similarity(2)
    for seed in range(2):
        g, matrix = near(group, seed)
        moving, plain = (texture(p, seed) for p in (positions(), positions(matrix)))
        low, high = moving.min() - 0.2, moving.max() + 0.2
        radius = (positions() - 23.5).norm(dim=0) / 33.0
        bright = ((plain - low) / (high - low)).clamp(0.0, 1.0) ** 0.45 * (1.0 - 0.4 * radius**2)
        images = ((moving - low) / (high - low), bright)
        r = register(*(image + 0.01 * randn(1, SIDE, SIDE, seed=9 + k) for k, image in enumerate(images)), group)
        off = ImageWarp(group).to_pixels(r.element, (SIDE, SIDE)) - matrix
        assert float((off @ torch.tensor([47.0, 47.0, 1.0]).double()).norm()) < 0.15
        assert not r.trusted or squared_distance(r, g) < 18.5  # the region of 99.9 %


def test_tones_between_what_most_pixels_have() -> None:
    """Edges of a disc on black have values that few pixels have: a tone curve of 0.45 is fitted to them, too."""
    shown = torch.linspace(0.6, 1.0, 400, dtype=torch.float64)
    values = torch.cat([torch.zeros(1600, dtype=torch.float64), shown, torch.linspace(0.0, 0.6, 40).double()])[None]
    bent = Exposure.none(1, values).bent(values, 2)
    edge = torch.linspace(0.02, 1.0, 200, dtype=torch.float64)[None]
    tones = bent.tones(edge)[0].mT  # [p, b]
    wanted = edge[0].pow(0.45).unsqueeze(-1)
    left = tones @ torch.linalg.lstsq(tones, wanted, driver="gelsd").solution - wanted
    assert float(left.abs().max()) < 0.03  # 0.1 with knots at shares of pixels alone


def shapes(points: Tensor, seed: int = 0) -> Tensor:
    """Discs of many sizes that hide each other, at positions, ``[3, h, w]``."""
    generator = seeded(seed)
    total = torch.full((3, *points.shape[1:]), 0.5, dtype=torch.float64)
    for _ in range(150):
        centre = 200 * torch.rand(2, 1, 1, generator=generator, dtype=torch.float64) - 50
        radius = 3.0 + 15.0 * float(torch.rand(1, generator=generator)) ** 3
        cover = torch.sigmoid(2.0 * (radius - (points - centre).norm(dim=0)))
        total = total + cover * (torch.rand(3, 1, 1, generator=generator, dtype=torch.float64) - total)
    return total


def off_at_corners(found: Tensor, matrix: Tensor, size: tuple[int, int]) -> float:
    """The largest distance between corners, in pixels."""
    height, width = size
    corners = torch.tensor([[0, 0, 1], [width, 0, 1], [0, height, 1], [width, height, 1]]).double()
    a, b = (corners @ m.mT for m in (found, matrix))
    return float((a[:, :2] / a[:, 2:] - b[:, :2] / b[:, 2:]).norm(dim=-1).max())


def similarity(angle: float, scale: float, x: float, y: float) -> Tensor:
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    return torch.tensor([[cos, -sin, x], [sin, cos, y], [0.0, 0.0, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize(("degrees", "scale"), [(180.0, 1.0), (-75.0, 1.6), (130.0, 0.6)])
def test_any_rotation_and_scale_without_a_law(degrees: float, scale: float) -> None:
    """Matches of keypoints say where to begin: without them the search stayed near the identity."""
    pytest.importorskip("cv2")
    about = similarity(0.0, 1.0, 50.0, 50.0)
    matrix = about @ similarity(math.radians(degrees), scale, 4.0, -3.0) @ torch.linalg.inv(about)
    images = (shapes(positions(None, 100)), shapes(positions(matrix, 100)))
    r = register(*(image + 0.01 * randn(3, 100, 100, seed=k) for k, image in enumerate(images)), Similarity(2))
    assert r.trusted, r.reasons
    assert off_at_corners(r.to_pixels(), matrix, (100, 100)) < 0.15


def test_any_rotation_of_a_negative() -> None:
    """Keypoints of a negative do not match: correlations of edges say where to begin."""
    about = similarity(0.0, 1.0, 50.0, 50.0)
    matrix = about @ similarity(math.radians(130.0), 1.4, 4.0, -3.0) @ torch.linalg.inv(about)
    images = (shapes(positions(None, 100)), 1.0 - shapes(positions(matrix, 100)))
    images = [image.mean(0, keepdim=True) + 0.01 * randn(1, 100, 100, seed=k) for k, image in enumerate(images)]
    r = register(*images, Similarity(2), similarity="mutual_information", num_starts=8)
    assert off_at_corners(r.to_pixels(), matrix, (100, 100)) < 0.5
    truth = ImageWarp(Similarity(2)).from_pixels(matrix, (100, 100))
    assert not r.trusted or squared_distance(r, truth) < 23.5


@pytest.mark.parametrize("size", [(96,), (7, 64), (13, 5, 11)])
def test_means_of_parts(size: tuple[int, ...]) -> None:
    """Against the integral over each part, by the overlap of each with each pixel."""
    new = tuple(max(1, round(n / 1.5)) for n in size)
    image = randn(2, *size, seed=0)
    expected = image
    for axis, (n, k) in enumerate(zip(size, new, strict=True), start=1):
        pixel, part = torch.arange(n).double(), torch.arange(k).double()[:, None] * (n / k)
        cover = (torch.minimum(pixel + 1, part + n / k) - torch.maximum(pixel, part)).clamp(min=0.0) / (n / k)
        expected = torch.tensordot(expected, cover, ([axis], [1])).movedim(-1, axis)
    assert torch.allclose(means_of_parts(image, new), expected, atol=1e-12)


@pytest.mark.parametrize(("scale", "side"), [(1.5, 128), (1.5, 160), (0.66, 128)])
def test_shrunk_pixels_stay_in_their_place(scale: float, side: int) -> None:
    """One picture is shrunk where pixels differ in size: whole pixels alone would move it by half a pixel."""
    about = similarity(0.0, 1.0, 0.5 * side, 0.5 * side)
    matrix = about @ similarity(0.05, scale, 1.0, -2.0) @ torch.linalg.inv(about)
    images = [texture(positions(m, side)) + 0.01 * randn(1, side, side, seed=k) for k, m in enumerate((None, matrix))]
    truth = ImageWarp(group := Similarity(2)).from_pixels(matrix, (side, side))
    start = lambda count, generator: truth.expand(count, -1, -1)  # noqa: E731
    r = register(*images, group, transformations=start)
    assert r.trusted, r.reasons
    assert off_at_corners(r.to_pixels(), matrix, (side, side)) < 0.05
    assert squared_distance(r, truth) < 20.0


def test_two_sizes() -> None:
    """A part of a picture in grey and as bytes, beside all of it in colours: pixels have one size in both."""
    matrix = similarity(0.1, 1.0, -28.0, -15.0)
    whole, part = shapes(positions(None, 100)), shapes(positions(matrix, 100))[:, :60, :72]
    part = (255 * part.mean(0, keepdim=True)).round().to(torch.uint8)
    r = register(whole, part, SE(2))
    assert r.trusted, r.reasons
    assert off_at_corners(r.to_pixels(), matrix, (60, 72)) < 0.1
    back = register(part, whole, SE(2))
    assert back.trusted, back.reasons
    assert off_at_corners(back.to_pixels(), torch.linalg.inv(matrix), (60, 72)) < 0.1
    assert back.mask is not None
    assert tuple(back.mask.shape) == (100, 100)


def test_edges_of_a_negative() -> None:
    """Edges of a negative are where they were; intensities fit by a falling tone curve, or are not trusted."""
    matrix = similarity(0.05, 1.02, 3.0, -2.0)
    moving, fixed = (shapes(positions(m, 100)) for m in (None, matrix))
    images = (image + 0.01 * randn(3, 100, 100, seed=k) for k, image in enumerate((moving, 1.0 - fixed)))
    r = register(*images, Similarity(2), similarity="gradient")
    assert r.trusted, r.reasons
    assert off_at_corners(r.to_pixels(), matrix, (100, 100)) < 0.3
    r = register(moving, 1.0 - fixed, Similarity(2), num_starts=8)
    assert not r.trusted or off_at_corners(r.to_pixels(), matrix, (100, 100)) < 0.02
    with pytest.raises(ConfigurationError, match="intensity, gradient, mutual_information"):
        register(moving, fixed, Similarity(2), similarity="edges")  # type: ignore[arg-type]


MODALITIES = {
    "rises and falls": lambda values: (7.0 * values).sin(),
    "negative": lambda values: 1.0 - values,
    "bright in the middle": lambda values: (2.0 * values - 1.0).abs(),
}


@pytest.mark.parametrize("name", MODALITIES)
def test_values_of_another_modality(name: str) -> None:
    """Grey values that rise and fall with those of the other."""
    matrix, group = similarity(0.05, 1.02, 3.0, -2.0), Similarity(2)
    moving, fixed = (shapes(positions(m, 100)).mean(0, keepdim=True) for m in (None, matrix))
    fixed = MODALITIES[name](fixed)
    images = [image + 0.01 * image.std() * randn(1, 100, 100, seed=k) for k, image in enumerate((moving, fixed))]
    truth = ImageWarp(group).from_pixels(matrix, (100, 100))
    r = register(*images, group, similarity="mutual_information")
    assert r.trusted, r.reasons
    assert any("held fixed" in assumption for assumption in r.verdict.assumptions)
    assert off_at_corners(r.to_pixels(), matrix, (100, 100)) < 0.5
    assert squared_distance(r, truth) < 23.5  # the region of 99.99 %
    if name == "rises and falls":
        assert not register(*images, group, num_starts=16).trusted


@pytest.mark.parametrize("of_both", [False, pytest.param(True, marks=pytest.mark.slow(reason="all pairs of classes"))])
def test_names_of_classes(of_both: bool) -> None:
    """Segmentations whose numbers mean nothing, beside a photograph and beside each other."""
    matrix, group, size = similarity(0.05, 1.02, 3.0, -2.0), Similarity(2), (100, 100)
    moving, fixed = (shapes(positions(m, 100)).mean(0, keepdim=True) for m in (None, matrix))
    bounds = moving.flatten().quantile(moving.new_tensor([0.3, 0.5, 0.8]))
    fixed = torch.tensor([7, 1, 30, 2])[torch.bucketize(fixed, bounds)]
    moving = torch.tensor([2, 0, 1, 3])[torch.bucketize(moving, bounds)] if of_both else moving
    r = register(moving, fixed, group, similarity="mutual_information")
    assert r.trusted, r.reasons
    assert off_at_corners(r.to_pixels(), matrix, size) < 0.5
    assert squared_distance(r, ImageWarp(group).from_pixels(matrix, size)) < 23.5  # the region of 99.99 %
    other = torch.tensor([7, 1, 30, 2])[torch.bucketize(shapes(positions(None, 100), 7).mean(0, keepdim=True), bounds)]
    assert not register(moving, other, group, similarity="mutual_information", num_starts=16).trusted


def test_bytes_on_a_dark_background_are_no_names() -> None:
    """Of a slice of a head most pixels are black; the others are values, whose order says more than their names."""
    p = positions(None, 100)
    inside = (1.0 - ((p - 50.0) / 24.0).square().sum(0)).clamp(min=0.0)
    slice_of_head = ((80 * shapes(p).mean(0) + 120) * inside).round().clamp(0, 255)[None]
    assert (slice_of_head == 0).float().mean() > 0.75
    assert _classes(slice_of_head) is None
    names = (slice_of_head / 40).ceil()
    assert _classes(names).shape[0] == len(names.unique())  # type: ignore[union-attr]


def test_pictures_that_say_nothing_of_each_other() -> None:
    """Noise, a plain picture, other shapes, and a pattern that is the same in many places."""
    picture, other = (shapes(positions(), seed).mean(0, keepdim=True) for seed in (0, 7))
    noise = [randn(1, SIDE, SIDE, seed=seed) for seed in (1, 2)]
    pattern = (2 * math.pi * positions() / 12.0).cos().sum(0, keepdim=True)
    pairs = [(picture, other), (picture, noise[0]), noise, (picture, torch.zeros_like(picture))]
    pairs.append((pattern + 0.02 * noise[0], pattern.square() + 0.02 * noise[1]))
    for moving, fixed in pairs:
        r = register(moving, fixed, SE(2), similarity="mutual_information", num_starts=16)
        assert not r.trusted
        assert r.reasons


def test_what_hides_a_part_is_returned() -> None:
    """Another picture over 30 % of the frame: an estimated mask, or one that is given."""
    matrix = similarity(0.05, 1.0, 3.0, -2.0)
    moving, fixed = shapes(positions(None, 100)), shapes(positions(matrix, 100))
    fixed[:, :, :30] = shapes(positions(None, 100), seed=5)[:, :, :30]
    r = register(moving, fixed, SE(2))
    assert off_at_corners(r.to_pixels(), matrix, (100, 100)) < 0.05
    assert r.mask is not None
    hidden, seen = r.mask[10:90, 3:26], r.mask[10:90, 36:90]
    assert float(hidden.double().mean()) < 0.35
    assert float(seen.double().mean()) > 0.9
    known = torch.ones(100, 100, dtype=torch.bool)
    known[:, :30] = False
    given = register(moving, fixed, SE(2), fixed_mask=known)
    assert given.trusted, given.reasons
    assert off_at_corners(given.to_pixels(), matrix, (100, 100)) < 0.05
    back = register(fixed, moving, SE(2), moving_mask=known)
    assert back.trusted, back.reasons
    assert off_at_corners(back.to_pixels(), torch.linalg.inv(matrix), (100, 100)) < 0.05


def test_kernel_of_another_library() -> None:
    """A picture warped by OpenCV's cubic kernel, which moves edges: corners were off by two hundredths of a pixel."""
    cv2 = pytest.importorskip("cv2")
    moving, matrix = shapes(positions(None, 160)), similarity(0.02, 1.01, 3.3, -2.4)
    seen = cv2.warpPerspective(moving.movedim(0, -1).numpy(), matrix.numpy(), (160, 160), flags=cv2.INTER_CUBIC)
    r = register(moving, torch.from_numpy(seen).movedim(-1, 0), Similarity(2))
    assert r.trusted, r.reasons
    assert off_at_corners(r.to_pixels(), matrix, (160, 160)) < 0.005
    truth = ImageWarp(Similarity(2)).from_pixels(matrix, (160, 160))
    assert squared_distance(r, truth) < 18.5


@pytest.mark.parametrize("kernel", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("noise", "pixels"), [(0.0, 0.01), (0.02, 0.3)])
def test_kernel_of_small_and_sharp_pictures(kernel: str, noise: float, pixels: float) -> None:
    """Errors of interpolation, alike over large parts, were taken for noise: .1 pixels, and regions too small."""
    side, squares = 64, []
    for seed in range(4):
        moving = randn(1, side, side, seed=seed).double()
        for dim in (1, 2):  # detail of two pixels
            moving = 0.5 * moving + 0.25 * (moving.roll(1, dim) + moving.roll(-1, dim))
        matrix = similarity(0.03, 1.02, 1.3, -0.6)
        grid = 2.0 * positions(matrix, side).movedim(0, -1) / (side - 1) - 1.0
        seen = torch.nn.functional.grid_sample(moving[None], grid[None], mode=kernel, align_corners=True)[0]
        pair = (p + noise * randn(1, side, side, seed=10 + 2 * seed + k) for k, p in enumerate((moving, seen)))
        r = register(*pair, Affine(2))
        assert r.trusted, r.reasons
        assert off_at_corners(r.to_pixels(), matrix, (side, side)) < pixels
        squares.append(squared_distance(r, ImageWarp(Affine(2)).from_pixels(matrix, (side, side))))
    assert sum(squares) < 51.2  # 99.9 % of chi-squared with 24 degrees of freedom


@pytest.mark.parametrize("gain", [(1.0, 1.0, 1.0), (1.3, 0.9, 0.6)])
def test_combinations_of_channels(gain: tuple[float, float, float]) -> None:
    """Brightness is registered of pictures with little colour, whatever the light: as well as all channels."""
    side, noise, matrix = 270, 0.02, similarity(0.02, 1.01, 3.3, -2.4)
    grey = [shapes(positions(m, side)).mean(0, keepdim=True) + 0.1 * shapes(positions(m, side)) for m in (None, matrix)]
    fixed = torch.tensor(gain).double()[:, None, None] * grey[1] + 0.1
    moving, fixed = (image + noise * randn(3, side, side, seed=k) for k, image in enumerate((grey[0], fixed)))
    r = register(moving, fixed, Similarity(2))
    assert r.trusted, r.reasons
    truth = ImageWarp(Similarity(2)).from_pixels(matrix, (side, side))
    assert squared_distance(r, truth) < 18.5
    # a quarter more than one channel alone would tell, of three
    alone = register(moving[:1], fixed[:1], Similarity(2))
    spread, of_one = (torch.logdet(part.covariance) for part in (r, alone))
    assert float(spread) < float(of_one) - 4 * math.log(1.5)


def test_other_places_that_fit_as_well() -> None:
    """A square has four angles, a pattern many places; with a mark on it the square has one."""
    square = lambda p: torch.sigmoid(3.0 * (12.0 - (p - 23.5).abs().amax(0, keepdim=True)))  # noqa: E731
    pattern = lambda p: (2 * math.pi * p[:1] / 12.0).cos() + (2 * math.pi * p[1:] / 16.0).cos()  # noqa: E731
    marked = lambda p: square(p) - disc(p, 17.5, 3.0)  # noqa: E731
    turn = SO(2).exp(torch.tensor([0.4], dtype=torch.float64))
    seen = positions(ImageWarp(SO(2)).to_pixels(turn, (SIDE, SIDE)))
    noise = [0.03 * randn(1, SIDE, SIDE, seed=seed) for seed in (1, 2)]
    options = {"transformations": rotations(SO(2)), "num_starts": 32}
    r = register(square(positions()) + noise[0], square(seen) + noise[1], SO(2), **options)
    angle = torch.atan2(r.modes.elements[0, :, 1, 0], r.modes.elements[0, :, 0, 0])
    assert int(r.modes.num_modes) == 4
    assert not r.trusted
    assert torch.equal(r.modes.elements[0, 0], r.element)
    assert float((4.0 * (angle - 0.4)).sin().abs().max()) < 0.05
    assert r.modes.weights.tolist() == [[0.25] * 4]
    r = register(marked(positions()) + noise[0], marked(seen) + noise[1], SO(2), **options)
    assert r.trusted, r.reasons
    assert float((r.element - turn).abs().max()) < 0.02
    shift = torch.tensor([12.0 / SIDE, 0.0], dtype=torch.float64)  # half a period
    r = register(
        pattern(positions()) + noise[0],
        pattern(positions() - 24.0 * shift[:, None, None]) + noise[1],
        Translation(2),
        num_starts=8,
    )
    assert not r.trusted
    assert float((r.modes.elements[0] - shift).abs().amax(-1).min()) < 0.02


def test_what_the_group_lacks_and_what_moves_otherwise() -> None:
    """A scale that rotations and shifts lack, and a second motion in a window, are said; else there is trust."""
    noise = [0.02 * randn(3, 100, 100, seed=seed) for seed in (1, 2)]

    def registered(scale: float, window: bool) -> Registration:
        back = similarity(0.05, scale, 3.0, -2.0)
        moving, fixed = shapes(positions(None, 100)), shapes(positions(back, 100))
        if window:
            front = similarity(-0.04, 1.0, -3.0, 2.0)
            other = [shapes(positions(matrix, 100), seed=5)[:, 20:80, 20:80] for matrix in (None, front)]
            moving[:, 20:80, 20:80], fixed[:, 20:80, 20:80] = other
        return register(moving + noise[0], fixed + noise[1], SE(2))

    assert registered(1.0, False).trusted
    r = registered(1.06, False)
    assert r.reasons == ("a homography that is not of SE(2) fits better",)
    r = registered(1.0, True)
    assert not r.trusted
    assert any("moves otherwise" in reason for reason in r.reasons), r.reasons


def test_free_directions_of_sums() -> None:
    """Two directions, one whose shared curvature is as small as that of noise; scores move the other one alone."""
    generator = seeded(0)
    shared = torch.diag(torch.tensor([4.0, 0.0], dtype=torch.float64)).repeat(50, 1, 1)
    shared[:, 1, 1] = 0.3 * torch.randn(50, generator=generator, dtype=torch.float64)
    own = torch.eye(2, dtype=torch.float64).repeat(50, 1, 1) * torch.tensor([4.0, 1.0]).double()
    scores = torch.ones(50, 2, dtype=torch.float64)
    spread = torch.diag(torch.tensor([8.0, 2.0], dtype=torch.float64))
    noise = torch.eye(2, dtype=torch.float64).repeat(50, 1, 1)
    found = block_estimate(BlockSums(scores, own, shared, own, noise, spread, spread, 1e6, 0.0), 0.0)
    assert found.free.abs().tolist() == [[0.0, 1.0]]
    assert found.step.tolist() == pytest.approx([50 / 200, 0.0], abs=1e-6)
    assert float(found.covariance[0, 0]) == pytest.approx(8.0 / 200**2, rel=1e-6)
    assert float(found.covariance[1, 1]) == pytest.approx(UNKNOWN_STD**2, rel=1e-6)
