"""Frames of images of any shape: what is turned keeps its size; matrices in pixels against SciPy; coverage.

Users of torchvision (#2553), Lasagne (#782) and airlab (#8) asked for rotations that do not shear.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from tests.helpers import assert_relative, numeric_jacobian, rand, randn, random_elements
from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import (
    SE,
    SL,
    SO,
    Affine,
    GLPlus,
    HeatSymmetry,
    LieGroup,
    Projective,
    Similarity,
    Translation,
)

FRAMES = [(32, 64), (64, 32), (48, 48), (40, 56), (57, 41), (30, 90)]
HOMOGRAPHIES = [SO(2), SE(2), Similarity(2), Affine(2), Projective(2), GLPlus(2), SL(2), Translation(2)]


def shape_of(kind: str, height: int, width: int) -> Tensor:
    """A bar of 20 x 2 pixels, a disc of radius 8, or a block of 12 x 6, about the middle."""
    y, x = np.mgrid[:height, :width]
    x, y = x - (width - 1) / 2, y - (height - 1) / 2
    inside = {
        "bar": (abs(x) < 10) & (abs(y) < 1.1),
        "disc": x**2 + y**2 < 64,
        "block": (abs(x) < 6) & (abs(y) < 3.1),
    }[kind]
    return torch.from_numpy(inside.astype(float))[None]


def sides_of(image: Tensor) -> tuple[int, int]:
    """Height and width of what is brighter than a half."""
    bright = image[0] > 0.5
    return int(bright.any(1).sum()), int(bright.any(0).sum())


class TestQuarterTurns:
    @pytest.mark.parametrize("group", [SO(2), SE(2), Similarity(2)], ids=str)
    @pytest.mark.parametrize("size", FRAMES, ids=str)
    @pytest.mark.parametrize("kind", ["bar", "disc", "block"])
    def test_keep_areas_and_sides(self, kind: str, size: tuple[int, int], group: LieGroup) -> None:
        image = shape_of(kind, *size)
        v = torch.zeros(4, group.dim, dtype=torch.float64)
        v[:, 0] = 0.5 * math.pi * torch.arange(4)
        turned = ImageWarp(group)(group.exp(v), image)
        height, width = sides_of(image)
        sides = [(height, width), (width, height)] * 2
        # both sides are even, or both odd: the lattice goes to itself
        assert_relative(turned.flatten(1).sum(-1), image.sum().expand(4), 1e-12)
        assert [sides_of(one) for one in turned] == sides

    @pytest.mark.parametrize("size", FRAMES, ids=str)
    def test_a_shift_is_in_units_of_half_the_longer_side(self, size: tuple[int, int]) -> None:
        shift = torch.tensor([6.0, -4.0], dtype=torch.float64) / max(size)
        expected = ndimage.shift(shape_of("block", *size)[0].numpy(), (-2, 3), order=1)
        assert_relative(ImageWarp(Translation(2))(shift, shape_of("block", *size))[0], torch.from_numpy(expected), 1e-9)


class TestPixels:
    @pytest.mark.parametrize("group", HOMOGRAPHIES, ids=str)
    @pytest.mark.parametrize("size", FRAMES[:3], ids=str)
    def test_warps_are_those_of_scipy(self, group: LieGroup, size: tuple[int, int]) -> None:
        """SciPy reads pixel p at the matrix times p; the library at the inverse, of elements from `from_pixels` too."""
        height, width = size
        y, x = np.mgrid[:height, :width].astype(float)
        picture = np.sin(x / 5) + np.cos(y / 7) + np.sin((x + y) / 9)
        warp, image = ImageWarp(group), torch.from_numpy(picture)[None]
        g = random_elements(group, 3, std=0.1, seed=4)
        matrices = warp.to_pixels(g, size)
        again = warp.from_pixels(-3.0 * matrices, size)
        assert_relative(again, g, 1e-10)
        covered = warp.coverage(g, size)
        assert float(covered.double().mean()) > 0.6
        for matrix, moved, inside in zip(matrices, warp(again, image)[:, 0], covered, strict=True):
            px, py, pw = np.einsum("ij,jhw->ihw", torch.linalg.inv(matrix).numpy(), np.stack([x, y, np.ones_like(x)]))
            expected = ndimage.map_coordinates(picture, [py / pw, px / pw], order=1, mode="nearest")
            assert float((moved - torch.from_numpy(expected))[inside].abs().max()) < 1e-9

    def test_affine_transform_of_scipy(self) -> None:
        """Its matrix and offset are those of rows and columns, read at: the inverse with axes exchanged."""
        warp, picture = ImageWarp(Affine(2)), rand(24, 37).numpy()
        matrix = torch.tensor([[1.1, 0.2, -3.0], [-0.1, 0.9, 2.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
        g = warp.from_pixels(matrix, (24, 37))
        back = torch.linalg.inv(matrix).numpy()[:2]
        expected = ndimage.affine_transform(picture, back[::-1, 1::-1], back[::-1, 2], order=1, mode="nearest")
        inside = warp.coverage(g, (24, 37))
        error = (warp(g, torch.from_numpy(picture)[None])[0] - torch.from_numpy(expected))[inside]
        assert float(error.abs().max()) < 1e-9

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_where_points_go(self, dtype: torch.dtype) -> None:
        """A rotation by 30 degrees about pixel (10, 20), written out."""
        warp, c, s = ImageWarp(SE(2)), math.cos(math.pi / 6), math.sin(math.pi / 6)
        rows = [[c, -s, 10 - 10 * c + 20 * s], [s, c, 20 - 10 * s - 20 * c], [0.0, 0.0, 1.0]]
        g = warp.from_pixels(torch.tensor(rows, dtype=dtype), (50, 70))
        assert g.dtype == dtype
        assert_relative(SE(2).split(g)[0], torch.tensor([[c, -s], [s, c]], dtype=dtype), 1e-6)
        fixed = warp.to_pixels(g, (50, 70)) @ torch.tensor([10.0, 20.0, 1.0], dtype=dtype)
        assert_relative(fixed, torch.tensor([10.0, 20.0, 1.0], dtype=dtype), 1e-5)

    @pytest.mark.parametrize(
        ("group", "rows"),
        [
            (SE(2), [[1.0, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
            (SE(2), [[1.1, 0.0, 0.0], [0.0, 1.1, 0.0], [0.0, 0.0, 1.0]]),
            (SE(2), [[1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]]),
            (SO(2), [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
            (Similarity(2), [[1.0, 0.0, 0.0], [0.0, 1.1, 0.0], [0.0, 0.0, 1.0]]),
            (Affine(2), [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1e-3, 0.0, 1.0]]),
            (Affine(2), [[1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]]),
            (Projective(2), [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]),
            (Projective(2), [[math.nan, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        ],
    )
    def test_other_matrices_are_refused(self, group: LieGroup, rows: list[list[float]]) -> None:
        warp, good = ImageWarp(group), torch.eye(3)
        with pytest.raises(DomainError, match="got 1 that are not in the group"):
            warp.from_pixels(torch.stack([good, torch.tensor(rows)]), (20, 30))
        assert_relative(warp.from_pixels(good, (20, 30)), group.identity(), 1e-6)

    def test_derivatives_of_matrices(self) -> None:
        """Through both conversions, under transforms too, where no matrix can be looked at: v to v."""
        group, warp = Similarity(2), ImageWarp(Similarity(2))
        v = 0.3 * randn(3, group.dim, seed=5)

        def again(v: Tensor) -> Tensor:
            return group.log(warp.from_pixels(warp.to_pixels(group.exp(v), (30, 40)), (30, 40)))

        eye = torch.eye(group.dim, dtype=torch.float64).expand(3, -1, -1)
        for jacobian in (torch.func.jacrev, torch.func.jacfwd):
            assert_relative(torch.func.vmap(jacobian(again))(v), eye, 1e-9)
        with pytest.raises(DomainError, match="not in the group"):
            torch.func.jacrev(lambda m: warp.from_pixels(m, (30, 40)))(torch.ones(3, 3, dtype=torch.float64))

    def test_refusals(self) -> None:
        warp = ImageWarp(HeatSymmetry(0.1))
        with pytest.raises(ConfigurationError, match="homographies"):
            warp.to_pixels(warp.group.identity(), (4, 4))
        with pytest.raises(ConfigurationError, match="homographies"):
            warp.from_pixels(torch.eye(3), (4, 4))
        with pytest.raises(ShapeError, match=r"\[\*batch, 3, 3\]"):
            ImageWarp(SE(2)).from_pixels(torch.eye(2), (4, 4))
        with pytest.raises(ConfigurationError, match="height"):
            ImageWarp(SE(2)).coverage(SE(2).identity(), (0, 4))


class TestCoverage:
    @pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
    @pytest.mark.parametrize("group", [SE(2), Projective(2)], ids=str)
    def test_what_is_covered_does_not_depend_on_the_outside(self, group: LieGroup, mode: str) -> None:
        """Of a constant image under zeros the covered pixels keep the constant; in the bilinear case no others do."""
        warp = ImageWarp(group, mode)  # type: ignore[arg-type]
        g = random_elements(group, 5, std=0.2, seed=2)
        moved = warp(g, torch.ones(1, 21, 34, dtype=torch.float64))[:, 0]
        covered = warp.coverage(g, (21, 34))
        assert 0.2 < float(covered.double().mean()) < 0.95
        assert_relative(moved[covered], torch.ones(int(covered.sum()), dtype=torch.float64), 1e-3)
        if mode == "bilinear":
            assert float(moved[~covered].max()) < 1.0 - 1e-4

    def test_none_where_a_homography_is_not_defined(self) -> None:
        matrix = torch.eye(3, dtype=torch.float64)
        matrix[2, 0] = 1.5
        g = Projective(2).from_matrix(matrix)
        assert not bool(ImageWarp(Projective(2)).coverage(g, (8, 8)).any())


@pytest.mark.parametrize("size", [(20, 32), (32, 20)])
def test_guard_keeps_to_the_frame(size: tuple[int, int]) -> None:
    """A bright pixel costs nothing inside a frame that is not square, and log(1 + (d / 0.1)^2) d beyond its edge."""
    image = torch.zeros(1, 1, *size, dtype=torch.float64)
    image[0, 0, size[0] // 2, size[1] // 2] = 1.0
    half = torch.tensor([size[1], size[0]], dtype=torch.float64) / 32
    edge = half - 1 / 32  # takes the centre of the pixel to the corner of the frame
    away = torch.stack([edge, edge + torch.tensor([0.2, 0.0], dtype=torch.float64)])
    guard = ImageWarp(Translation(2)).guard
    assert guard is not None
    content = guard.content(image)
    shrunk = 2 * math.log(4 * 3)  # the box of a pixel is a third of its area
    expected = torch.tensor([shrunk, shrunk + math.log1p(4.0)], dtype=torch.float64)
    assert_relative(guard.departure(away, content), expected, 1e-9)
    assert guard.kept(away - 1e-9, content).gt(0.0).tolist() == [True, False]


class TestForwardMode:
    """torch's kernel has no derivative in forward mode."""

    @pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
    @pytest.mark.parametrize("group", [SE(2), Projective(2)], ids=str)
    def test_jacobian(self, group: LieGroup, padding: str) -> None:
        warp, x = ImageWarp(group, padding=padding), rand(1, 2, 7, 9)  # type: ignore[arg-type]
        v = 0.3 * randn(group.dim, seed=3)

        def moved(v: Tensor) -> Tensor:
            return warp(group.exp(v), x).flatten()

        forward = torch.func.jacfwd(moved)(v)
        leaf = v.clone().requires_grad_()  # by rows: jacrev of grid_sample needs torch 2.12
        rows = [torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in moved(leaf)]
        assert_relative(forward, torch.stack(rows), 1e-12)
        assert_relative(forward, numeric_jacobian(moved, v, 1e-6), 1e-6)  # within the kinks of interpolation
        assert_relative(moved(v), torch.func.jvp(moved, (v,), (v,))[0], 1e-12)
        by_row = torch.func.vmap(lambda v, x: warp(group.exp(v), x), (None, 0))
        by_row_tangent = torch.func.jvp(lambda v: by_row(v, x), (v,), (torch.ones_like(v),))[1]
        assert_relative(by_row_tangent.flatten(), forward.sum(-1), 1e-12)

    def test_bicubic_says_what_has_them(self) -> None:
        warp, x = ImageWarp(SE(2), "bicubic"), rand(1, 5, 5)
        with pytest.raises(ConfigurationError, match="expected bilinear"):
            torch.func.jacfwd(lambda v: warp(SE(2).exp(v), x))(torch.zeros(3, dtype=torch.float64))
