"""The transform of torchvision: against torchvision's own kernels, in its pipelines, and part against part."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from tests.helpers import seeded
from trivgeo.actions import ImageWarp
from trivgeo.bridges.torchvision import RandomTransformation
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups import SE, SO, Affine, LieGroup, Projective, from_generators
from trivgeo.inversion.transformations import composed, homographies, rotations, scales, shifts

SIZE = (40, 56)
ANGLE = 25.0


def always(group: LieGroup, matrix: Any) -> RandomTransformation:
    """The transform by one homography in pixels."""
    warp = ImageWarp(group)
    g = warp.from_pixels(torch.as_tensor(matrix, dtype=torch.float64), SIZE)
    return RandomTransformation(warp, lambda count, generator: g.expand(count, *g.shape))


def rotation(degrees: float) -> Tensor:
    """About the middle of the frame, in pixels with centres at integers; counterclockwise as torchvision has it."""
    c, s = math.cos(math.radians(-degrees)), math.sin(math.radians(-degrees))
    middle = torch.tensor([(SIZE[1] - 1) / 2, (SIZE[0] - 1) / 2], dtype=torch.float64)
    turn = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    matrix = torch.eye(3, dtype=torch.float64)
    matrix[:2, :2], matrix[:2, 2] = turn, middle - turn @ middle
    return matrix


def sample() -> dict[str, Any]:
    image = torch.rand(3, *SIZE, generator=seeded(0))
    boxes = torch.tensor([[14.0, 10.0, 30.0, 22.0], [20.0, 20.0, 26.0, 31.0]])
    return {
        "image": tv_tensors.Image(image),
        "masks": tv_tensors.Mask((torch.rand(2, *SIZE, generator=seeded(1)) > 0.5).to(torch.uint8)),
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=SIZE),
        "points": tv_tensors.KeyPoints([[15.0, 12.0], [28.0, 20.5]], canvas_size=SIZE),
        "labels": torch.tensor([3, 5]),
        "name": "a",
    }


def test_rotations_are_those_of_torchvision() -> None:
    """Its own kernels rotate image, masks, boxes and points; only rounding at edges of masks may differ."""
    given = sample()
    moved = always(SO(2), rotation(ANGLE))(given)
    expected = {
        key: functional.rotate(value, ANGLE, interpolation=v2.InterpolationMode.BILINEAR)
        for key, value in given.items()
        if isinstance(value, tv_tensors.TVTensor) and key != "masks"
    }
    inside = (slice(None), slice(8, -8), slice(12, -12))  # torchvision mixes the border with zeros
    torch.testing.assert_close(moved["image"][inside], expected["image"][inside], rtol=0.0, atol=2e-4)
    for key in ("boxes", "points"):
        assert type(moved[key]) is type(given[key])
        assert moved[key].canvas_size == SIZE
        torch.testing.assert_close(moved[key], expected[key], rtol=0.0, atol=2e-3)
    masks = functional.rotate(given["masks"], ANGLE)
    assert type(moved["masks"]) is tv_tensors.Mask
    assert float((moved["masks"] != masks).double().mean()) < 0.01
    assert moved["labels"] is given["labels"]
    assert moved["name"] == "a"


@pytest.mark.parametrize("kind", ["XYXY", "XYWH", "CXCYWH", "XYWHR", "CXCYWHR", "XYXYXYXY"])
def test_boxes_of_every_format(kind: str) -> None:
    """Rotated boxes keep their shape under rotations, as torchvision has it; others are the boxes around."""
    boxes = sample()["boxes"].double()
    boxes = tv_tensors.wrap(boxes, like=sample()["boxes"])
    if kind in ("XYWHR", "CXCYWHR", "XYXYXYXY"):
        flat = torch.tensor([[22.0, 16.0, 12.0, 8.0, 20.0], [23.0, 25.0, 6.0, 9.0, -50.0]], dtype=torch.float64)
        boxes = tv_tensors.BoundingBoxes(flat, format="CXCYWHR", canvas_size=SIZE)
    boxes = functional.convert_bounding_box_format(boxes, new_format=tv_tensors.BoundingBoxFormat[kind])
    moved = always(SO(2), rotation(ANGLE))(torch.zeros(1, *SIZE), boxes)[1]
    expected = functional.rotate(boxes, ANGLE)
    assert moved.format == boxes.format
    corners = tv_tensors.BoundingBoxFormat.XYXYXYXY if "R" in kind or len(kind) == 8 else boxes.format
    pair = [functional.convert_bounding_box_format(x, new_format=corners) for x in (moved, expected)]
    torch.testing.assert_close(*pair, rtol=0.0, atol=1e-3)


def test_a_sheared_box_with_an_angle_is_the_rectangle_around() -> None:
    shear = torch.tensor([[1.0, 0.5, -8.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    box = tv_tensors.BoundingBoxes([[24.0, 20.0, 8.0, 6.0, 0.0]], format="CXCYWHR", canvas_size=SIZE)
    moved = always(Affine(2), shear)(torch.zeros(1, *SIZE), box)[1]
    middle = 24.0 + 0.5 * (20.0 - 0.5) - 8.0
    torch.testing.assert_close(moved, type(moved).wrap(torch.tensor([[middle, 20.0, 11.0, 6.0, 0.0]]), like=box))


@pytest.mark.parametrize("name", ["affine", "homography", "curved"])
def test_all_parts_move_alike(name: str) -> None:
    """A bright disc is where the point, the mask and the box are; also where lines become curves."""
    if name == "affine":
        group: LieGroup = Affine(2)
        law = composed(group, rotations(group, 40.0), scales(group, 0.8, 1.2), shifts(group, 0.1))
    elif name == "homography":
        group, law = Projective(2), homographies(Projective(2), 0.15, SIZE)
    else:
        group = from_generators({"X": ["y^2", "0"]}, variables=("x", "y"))
        law = lambda count, generator: group.exp(  # noqa: E731
            0.5 * torch.randn(count, 1, dtype=torch.float64, generator=generator)
        )
    row, column = torch.meshgrid(*(torch.arange(n) + 0.5 for n in SIZE), indexing="ij")
    centre = (29.0, 17.0)
    disc = ((column - centre[0]).square() + (row - centre[1]).square() < 25.0).float()
    move = RandomTransformation(ImageWarp(group), law, generator=seeded(0))
    for _ in range(5):
        image, mask, point, box = move(
            tv_tensors.Image(disc[None]),
            tv_tensors.Mask(disc.bool()),
            tv_tensors.KeyPoints([centre], canvas_size=SIZE),
            tv_tensors.BoundingBoxes([[24.0, 12.0, 34.0, 22.0]], format="XYXY", canvas_size=SIZE),
        )
        assert mask.dtype == torch.bool
        assert float((image[0] > 0.5).ne(mask).double().sum()) < 0.2 * float(mask.sum())
        found = torch.stack([(mask * column).sum(), (mask * row).sum()]) / mask.sum()
        assert float((found - point[0]).norm()) < 1.0
        rows, columns = mask.nonzero().unbind(-1)
        left, top, right, bottom = box[0].tolist()
        seen = torch.stack([columns.amin(), rows.amin(), -columns.amax(), -rows.amax()])
        assert bool((seen > torch.tensor([left, top, -right, -bottom]) - 1.0).all())


def test_in_pipelines() -> None:
    """Of torchvision: PIL in, several transforms, a detection sample; uint8 stays uint8; boxes are clamped."""
    move = RandomTransformation(ImageWarp(SE(2)), composed(SE(2), rotations(SE(2)), shifts(SE(2), 0.6)))
    torch.manual_seed(0)
    pipeline = v2.Compose([v2.ToImage(), v2.RandomApply([move], p=1.0), v2.ToDtype(torch.float32, scale=True)])
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (*SIZE, 3), dtype=np.uint8))
    boxes = sample()["boxes"]
    for _ in range(5):
        image, (target, labels) = pipeline(picture, ({"boxes": boxes}, torch.tensor([1, 2])))
        assert (image.shape, image.dtype) == ((3, *SIZE), torch.float32)
        assert target["boxes"][:, 2].max() <= SIZE[1]
        assert target["boxes"].min() >= 0
        assert labels.tolist() == [1, 2]
    assert move(picture).size == picture.size
    assert move(tv_tensors.Image(picture)).dtype == torch.uint8
    assert move(tv_tensors.Video(torch.rand(4, 3, *SIZE))).shape == (4, 3, *SIZE)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "1", "F", "I;16", "CMYK"])
def test_pictures_keep_their_mode(mode: str) -> None:
    """A half turn reverses rows and columns, without interpolation."""
    array = np.random.default_rng(0).integers(0, 2 if mode in ("1", "P") else 250, (*SIZE, 4), dtype=np.uint8)
    if mode == "I;16":
        picture = Image.fromarray(array[..., 0].astype(np.uint16) * 100)
    elif mode == "P":
        picture = Image.fromarray(array[..., 0]).convert("P")
    elif mode == "1":
        picture = Image.fromarray(array[..., 0].astype(bool))
    else:
        bands = {"RGB": array[..., :3], "L": array[..., 0], "RGBA": array, "F": array[..., 0].astype(np.float32)}
        picture = Image.fromarray(bands.get(mode, array), mode="CMYK" if mode == "CMYK" else None)
    moved = always(SO(2), rotation(180.0))(picture)
    assert moved.mode == picture.mode
    np.testing.assert_allclose(np.array(moved)[1:-1, 1:-1], np.array(picture)[::-1, ::-1][1:-1, 1:-1], atol=1e-3)


def test_what_is_refused() -> None:
    move = RandomTransformation(ImageWarp(SO(2)), rotations(SO(2)))
    with pytest.raises(ConfigurationError, match="8 x 8, 40 x 56"):
        move(torch.zeros(1, 8, 8), sample()["boxes"])
    with pytest.raises(ConfigurationError, match="got nothing to move"):
        move({"labels": torch.tensor([1])})
    with pytest.raises(ConfigurationError, match="warp of the plane"):
        RandomTransformation(ImageWarp(SE(3)), rotations(SO(2)))
    far = torch.eye(3, dtype=torch.float64) + torch.tensor([[0, 0, 0], [0, 0, 0], [3.0, 0, 0]])
    group = Projective(2)
    g = group.action().from_homogeneous(far)
    never = RandomTransformation(ImageWarp(group), lambda count, generator: g.expand(count, *g.shape))
    with pytest.raises(DomainError, match="in 20 draws"):
        never(torch.zeros(1, 8, 8))
