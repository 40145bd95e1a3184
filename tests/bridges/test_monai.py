"""MONAI and TorchIO: files are read as MONAI reads them, points of space stay where they are through its transforms."""

from pathlib import Path
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import Flip, LoadImage, Orientation

from tests.helpers import seeded
from trivgeo.actions import ImageWarp, Volume
from trivgeo.bridges.monai import to_metatensor, to_volume
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SE


def random_affine() -> np.ndarray:
    g = SE(3).random(generator=seeded(0), dtype=torch.float64)
    return (SE(3).action().homogeneous(g) @ torch.diag(torch.tensor([1.0, 2.0, 3.0, 1.0]).double())).numpy()


def brightest(volume: Volume) -> torch.Tensor:
    """The point of space of the brightest voxel."""
    k, j, i = np.unravel_index(int(volume.data[0].argmax()), volume.data.shape[-3:])
    return volume.affine @ torch.tensor([i, j, k, 1.0]).double()


def test_files_are_the_same(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((5, 6, 7)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(values, random_affine()), tmp_path / "a.nii")
    ours = Volume.load(tmp_path / "a.nii")
    theirs = LoadImage(image_only=True, ensure_channel_first=True)(str(tmp_path / "a.nii"))
    read = to_volume(theirs)
    torch.testing.assert_close(read.data, ours.data)
    torch.testing.assert_close(read.affine, ours.affine, rtol=0.0, atol=1e-6)
    back = to_metatensor(ours)
    torch.testing.assert_close(back.as_tensor(), theirs.as_tensor())
    torch.testing.assert_close(back.affine, theirs.affine, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("transform", [Flip(0), Flip(2), Orientation("SPL", labels=None)], ids=["i", "k", "axes"])
def test_points_stay_in_space(transform: object) -> None:
    """MONAI reorders voxels and mends the affine; the point that the brightest voxel shows is the same."""
    image = MetaTensor(torch.rand(1, 4, 5, 6, generator=seeded(1)), affine=torch.from_numpy(random_affine()))
    moved = transform(image)  # type: ignore[operator]
    torch.testing.assert_close(brightest(to_volume(moved)), brightest(to_volume(image)), rtol=0.0, atol=1e-5)
    g = SE(3).random(generator=seeded(2), dtype=torch.float64)
    warped = to_metatensor(ImageWarp(SE(3))(g, to_volume(image)))
    expected = SE(3).action().homogeneous(g) @ image.affine
    torch.testing.assert_close(warped.affine, expected, rtol=0.0, atol=1e-9)


def test_other_spaces_and_images() -> None:
    affine = torch.from_numpy(random_affine())
    image = MetaTensor(torch.rand(1, 4, 5, 6), affine=affine)
    image.meta["space"] = "LPS"
    assert torch.equal(to_volume(image).affine[:2], -affine[:2])
    torchio = SimpleNamespace(data=torch.rand(2, 4, 5, 6), affine=affine.numpy())  # as torchio.ScalarImage has them
    assert to_volume(torchio).data.shape == (2, 6, 5, 4)
    batch = MetaTensor(torch.rand(3, 1, 4, 5, 6), affine=affine.repeat(3, 1, 1))
    assert to_volume(batch).affine.shape == (3, 4, 4)
    with pytest.raises(ConfigurationError, match="got Tensor"):
        to_volume(torch.rand(1, 4, 5, 6))
    with pytest.raises(ShapeError, match="c, i, j, k"):
        to_volume(MetaTensor(torch.rand(4, 5, 6), affine=affine))
    with pytest.raises(ConfigurationError, match="volume"):
        to_metatensor(torch.rand(1, 4, 5, 6))
