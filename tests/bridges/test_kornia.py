"""kornia: its warps with our matrices are our warps, its augmentations with our groups move all parts alike."""

import pytest
import torch
from kornia.augmentation import AugmentationSequential, RandomHorizontalFlip
from kornia.geometry.transform import homography_warp, warp_affine, warp_perspective
from torch import Tensor

from tests.helpers import seeded
from trivgeo.actions import ImageWarp
from trivgeo.bridges.kornia import RandomTransformation, from_normalized, to_normalized
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups import SE, SO, Affine, LieGroup, Projective, from_generators
from trivgeo.inversion.transformations import Transformations, composed, homographies, rotations, scales, shifts

SIZE = (33, 48)
CASES = [
    (Affine(2), composed(Affine(2), rotations(Affine(2)), scales(Affine(2), 0.7, 1.3), shifts(Affine(2), 0.2))),
    (SE(2), composed(SE(2), rotations(SE(2)), shifts(SE(2), 0.2))),
    (Projective(2), homographies(Projective(2), 0.2, SIZE)),
]
IDS = ["affine", "rigid", "homography"]


def images(count: int = 4) -> Tensor:
    return torch.rand(count, 2, *SIZE, generator=seeded(0), dtype=torch.float64)


@pytest.mark.parametrize(("group", "transformations"), CASES, ids=IDS)
def test_kornia_warps_as_we_do(group: LieGroup, transformations: Transformations) -> None:
    """In pixels, by the inverse in normalised coordinates, and for affine maps by two rows."""
    warp, x = ImageWarp(group), images()
    g = transformations(4, seeded(1))
    expected = warp(g, x)
    pixels, normal = warp.to_pixels(g, SIZE), to_normalized(warp, g, SIZE)
    torch.testing.assert_close(warp_perspective(x, pixels, SIZE), expected, rtol=0.0, atol=1e-9)
    found = homography_warp(x, torch.linalg.inv(normal), SIZE, align_corners=True)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-9)
    if not isinstance(group, Projective):
        torch.testing.assert_close(warp_affine(x, pixels[:, :2], SIZE), expected, rtol=0.0, atol=1e-9)
    for back in (from_normalized(warp, 2.0 * normal, SIZE), warp.from_pixels(pixels, SIZE)):
        torch.testing.assert_close(warp(back, x), expected, rtol=0.0, atol=1e-8)


def test_matrices_that_are_not_in_the_group() -> None:
    turn = to_normalized(ImageWarp(SO(2)), SO(2).exp(torch.tensor([0.3])), SIZE)
    assert abs(float(turn[0, 1]) + float(turn[1, 0])) > 0.1  # normalised rotations are shears on other frames
    with pytest.raises(DomainError, match="not in the group"):
        from_normalized(ImageWarp(SO(2)), turn, (48, 33))
    with pytest.raises(ConfigurationError, match="at least two pixels"):
        to_normalized(ImageWarp(SO(2)), torch.eye(2), (1, 5))


@pytest.mark.parametrize(("group", "transformations"), CASES, ids=IDS)
def test_augmentation(group: LieGroup, transformations: Transformations) -> None:
    """Each image has an element of its own, whose matrix is ``transform_matrix``; ``inverse`` undoes it."""
    warp, x = ImageWarp(group), images()
    move = RandomTransformation(warp, transformations, generator=seeded(2))
    moved = move(x)
    g = transformations(4, seeded(2))
    torch.testing.assert_close(moved, warp(g, x), rtol=0.0, atol=1e-6)
    torch.testing.assert_close(move.transform_matrix, warp.to_pixels(g, SIZE), rtol=1e-6, atol=1e-6)
    smooth = torch.ones_like(x)
    again = move.inverse(move(smooth, params=move._params))
    assert float((again[..., 12:-12, 18:-18] - 1).abs().max()) < 1e-6
    same = RandomTransformation(warp, transformations, same_on_batch=True)
    moved = same(x[:1].expand(3, -1, -1, -1))
    torch.testing.assert_close(moved[0], moved[2])
    assert torch.equal(RandomTransformation(warp, transformations, p=0.0)(x), x)


def test_in_a_pipeline_of_kornia() -> None:
    """Masks, boxes and points follow the images; a point on the only bright pixel stays on it."""
    transformations = composed(Affine(2), rotations(Affine(2), 30.0), shifts(Affine(2), 0.1))
    pipeline = AugmentationSequential(
        RandomHorizontalFlip(p=1.0),
        RandomTransformation(ImageWarp(Affine(2)), transformations, generator=seeded(0)),
        data_keys=["input", "mask", "keypoints", "bbox_xyxy"],
    )
    row, column = torch.meshgrid(*(torch.arange(n) for n in SIZE), indexing="ij")
    disc = ((column - 30).square() + (row - 14).square() < 17).float().expand(3, 1, *SIZE)
    points = torch.tensor([[[30.0, 14.0]]]).expand(3, 1, 2)
    boxes = torch.tensor([[[26.0, 10.0, 34.0, 18.0]]]).expand(3, 1, 4)
    image, mask, moved, box = pipeline(disc, disc, points, boxes)
    for i in range(3):
        weight = mask[i, 0] / mask[i, 0].sum()
        found = torch.stack([(weight * column).sum(), (weight * row).sum()])
        assert float((found - moved[i, 0]).norm()) < 0.7
        assert float((image[i, 0] > 0.5).float().ne(mask[i, 0]).sum()) < 12
        middle = (box[i, 0, :2] + box[i, 0, 2:]) / 2
        assert float((middle - moved[i, 0]).norm()) < 1.0
    assert not torch.equal(image[0], image[1])


def test_fill_and_padding_are_those_of_the_warp() -> None:
    element = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]], dtype=torch.float64).repeat(2, 1, 1)
    x = images(2).float()
    for settings in ({"fill": [0.25, 0.75]}, {"padding": "border"}, {"padding": "reflection"}):
        warp = ImageWarp(Affine(2), **settings)  # type: ignore[arg-type]
        moved = RandomTransformation(warp, lambda count, generator: element)(x)
        if "fill" in settings:
            torch.testing.assert_close(moved[..., 0], torch.tensor([0.25, 0.75])[:, None].expand(2, 2, SIZE[0]))
        torch.testing.assert_close(moved[..., 16:], warp(element.float(), x)[..., 16:], rtol=0.0, atol=1e-5)
    group = from_generators({"X": ["y^2", "0"]}, variables=("x", "y"))
    with pytest.raises(ConfigurationError):
        RandomTransformation(ImageWarp(group), lambda count, generator: group.identity(count))
