"""Volumes with the affine of their file: which point of space, in millimetres, a voxel shows."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from trivgeo._text import described
from trivgeo.checks import check_tensor
from trivgeo.errors import ConfigurationError, DomainError, ShapeError, missing_package

_MAX_POINTS_IN_MEMORY = 2**20  # points at which a volume is interpolated at once
_LPS = (-1.0, -1.0, 1.0, 1.0)  # ITK's axes point left, posterior, superior; those of NIfTI right, anterior, superior


class Volume(NamedTuple):
    r"""A volume and the affine that takes its voxels to points of space, as a NIfTI file holds them.

    Point :math:`A\, (i, j, k, 1)`, in millimetres along right, anterior, superior (RAS), is the centre of the voxel
    ``data[..., k, j, i]``: i counts along w, j along h, k along d. An array of nibabel, ``[i, j, k]``, has its axes the
    other way round; `load` turns them.

    ```python
    moving, fixed = Volume.load("moving.nii.gz"), Volume.load("fixed.nii.gz")
    r = register(moving, fixed, SE(3))
    r.action(r.element, moving).resampled(fixed).save("moving_on_fixed.nii.gz")
    ```

    Attributes:
        data: values ``[*batch, c, d, h, w]``.
        affine: A, ``[*batch, 4, 4]``, with last row (0, 0, 0, 1).
    """

    data: Float[Tensor, "*batch c d h w"]
    affine: Float[Tensor, "*batch 4 4"]

    def __repr__(self) -> str:
        return described(self)

    @classmethod
    def load(cls, source: Any, dtype: torch.dtype = torch.float32) -> Volume:
        """The volume of a file that nibabel reads (NIfTI, MGH, Analyze), or of an image of nibabel.

        Values of a fourth dimension, such as times, are channels.

        Args:
            source: path of the file, or the image.
            dtype: dtype of the data; that of the affine is float64.

        Raises:
            ConfigurationError: neither the path of a whole file that nibabel reads nor an image of it, or one of
                numbers that are not real; or nibabel is not installed.
            OSError: there is no such file.
            ShapeError: the image has neither three nor four dimensions.
        """
        image = _read(source) if isinstance(source, str | Path) else source
        if not hasattr(image, "dataobj") or not hasattr(image, "affine"):
            raise ConfigurationError(f"source: expected a path or an image of nibabel, got {type(source).__name__}")
        if image.ndim not in (3, 4):
            raise ShapeError(f"source: expected an image of three or four dimensions, got shape {list(image.shape)}")
        try:
            array = np.asarray(image.dataobj)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise ConfigurationError(f"source: expected a whole file, got {source}: {error}") from error
        if array.dtype.kind not in "biuf":
            raise ConfigurationError(f"source: expected an image of real numbers, got {array.dtype}")
        values = torch.from_numpy(np.ascontiguousarray(np.atleast_1d(array).T, dtype=np.float64)).to(dtype)
        return cls(values if values.ndim == 4 else values[None], torch.from_numpy(np.array(image.affine, dtype=float)))

    def save(self, path: str | Path) -> None:
        """Write the volume as NIfTI, in its dtype; several channels become the fourth dimension.

        Args:
            path: of a file ``.nii`` or ``.nii.gz``.

        Raises:
            ConfigurationError: the path is not that of such a file, or nibabel is not installed.
            ShapeError: there are batch dimensions.
        """
        check_volume("volume", self)
        if self.data.ndim != 4:
            raise ShapeError(f"volume: expected one, [c, d, h, w], got {list(self.data.shape)}")
        values = self.data.detach().to(torch.promote_types(self.data.dtype, torch.float32)).cpu()
        array = (values[0] if len(values) == 1 else values).numpy().T
        nibabel = _nibabel()
        try:
            nibabel.save(nibabel.Nifti1Image(array, self.affine.detach().double().cpu().numpy()), path)
        except nibabel.filebasedimages.ImageFileError as error:
            raise ConfigurationError(f"path: expected a file such as scan.nii.gz, got {path}: {error}") from error

    @property
    def spacing(self) -> Float[Tensor, "*batch 3"]:
        """Distances of neighbouring voxels along w, h, and d, in millimetres, ``[*batch, 3]``."""
        return self.affine[..., :3, :3].norm(dim=-2)

    def resampled(self, like: Volume) -> Volume:
        """Return this volume at the voxels of another one: linear between voxels, zero outside.

        Nothing is averaged where the voxels of the other one are larger.

        Args:
            like: the volume whose size and affine the result has; its data are not read. Batches broadcast.

        Raises:
            ShapeError: the batches do not broadcast.
            DomainError: this volume is flat.
        """
        check_volume("volume", self)
        check_volume("like", like)
        data, affine = self.data, self.affine.double()
        size = like.data.shape[-3:]
        try:
            batch = torch.broadcast_shapes(data.shape[:-4], like.affine.shape[:-2])
        except RuntimeError as error:
            raise ShapeError(
                f"like: expected a batch that broadcasts with {list(data.shape[:-4])}, got "
                f"{list(like.affine.shape[:-2])}"
            ) from error
        inverse, singular = torch.linalg.inv_ex(affine)
        if bool(singular.any()):
            raise DomainError(f"affine: expected a regular matrix, got {self.affine}")
        matrix = (inverse @ like.affine.to(affine)).expand(*batch, 4, 4).reshape(-1, 4, 4)
        values = data.expand(*batch, *data.shape[-4:]).reshape(-1, *data.shape[-4:])
        rows = [sample_affine(x[None], m, size) for x, m in zip(values, matrix, strict=True)]
        moved = torch.cat(rows) if rows else values.new_zeros(0, values.shape[1], *size)
        return Volume(moved.reshape(*batch, data.shape[-4], *size), like.affine.expand(*batch, 4, 4))


def itk_matrix(matrix: Float[Tensor, "*batch 4 4"]) -> Float[Tensor, "*batch 4 4"]:
    """Return the matrix of the transform of ITK, from points of the fixed volume to those of the moving one (LPS).

    A transform of ITK says where a resampled volume is read, along left, posterior, superior: the inverse of what moves
    points. ``SimpleITK.AffineTransform(m[:3, :3].flatten().tolist(), m[:3, 3].tolist())`` takes it.

    Args:
        matrix: motion of points in millimetres (RAS), such as ``SE(3).homogeneous(r.element)`` of a registration.

    Raises:
        ShapeError: the matrices are not 4 x 4.

    Example:
        >>> right = torch.eye(4)
        >>> right[0, 3] = 2.0
        >>> itk_matrix(right)[:3, 3] + 0.0
        tensor([2., 0., 0.])
    """
    matrix = check_tensor("matrix", matrix)
    if matrix.ndim < 2 or matrix.shape[-2:] != (4, 4):
        raise ShapeError(f"matrix: expected [*batch, 4, 4], got {list(matrix.shape)}")
    turn = matrix.new_tensor(_LPS)
    return turn.unsqueeze(-1) * torch.linalg.inv(matrix) * turn


def check_volume(name: str, volume: Any) -> None:
    """Raise a typed error unless ``volume`` is a `Volume` with an affine for each of its data."""
    if not isinstance(volume, Volume):
        raise ConfigurationError(f"{name}: expected a Volume, got {type(volume).__name__}")
    data, affine = volume
    for part, value in (("data", data), ("affine", affine)):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            got = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise ConfigurationError(f"{name}.{part}: expected a floating-point tensor, got {got}")
    if data.ndim < 4 or 0 in data.shape[-4:]:
        hint = "; see Tensor.unsqueeze for one channel" if data.ndim == 3 else ""
        raise ShapeError(f"{name}.data: expected [*batch, c, d, h, w], got {list(data.shape)}{hint}")
    if affine.shape != (*data.shape[:-4], 4, 4):
        wanted = ", ".join(map(str, (*data.shape[:-4], 4, 4)))
        raise ShapeError(f"{name}.affine: expected [{wanted}], got {list(affine.shape)}")


def sample_affine(
    x: Float[Tensor, "b c d h w"], matrix: Float[Tensor, "4 4"], size: tuple[int, ...]
) -> Float[Tensor, "b c p q r"]:
    """Interpolate volumes at the voxels of another grid: linear between voxels, zero outside; slab by slab.

    Args:
        x: volumes.
        matrix: takes voxels (i, j, k, 1) of the other grid to voxels of these volumes.
        size: depth, height and width of the other grid.
    """
    depth, height, width = x.shape[-3:]
    own = matrix.new_tensor([width, height, depth])
    # to torch the frame is [-1, 1]
    scaled = (2.0 / own).unsqueeze(-1) * matrix[:3]
    scaled = torch.cat([scaled[:, :3], scaled[:, 3:] + (1.0 / own - 1.0).unsqueeze(-1)], 1).to(x.dtype)
    k, j, i = (torch.arange(side, dtype=x.dtype, device=x.device) for side in size)
    plane = j[:, None, None] * scaled[:, 1] + i[:, None] * scaled[:, 0] + scaled[:, 3]  # [height, width, 3]
    slab = max(1, _MAX_POINTS_IN_MEMORY // (size[1] * size[2]))
    parts = []
    for start in range(0, size[0], slab):
        grid = plane + k[start : start + slab, None, None, None] * scaled[:, 2]
        grid = grid.expand(len(x), *grid.shape)
        parts.append(functional.grid_sample(x, grid, "bilinear", "zeros", align_corners=False))
    return torch.cat(parts, 2)


def _read(path: str | Path) -> Any:
    nibabel = _nibabel()
    try:
        return nibabel.load(path)
    except nibabel.filebasedimages.ImageFileError as error:
        raise ConfigurationError(f"source: expected a file such as scan.nii.gz, got {path}: {error}") from error


def _nibabel() -> Any:
    try:
        import nibabel
    except ImportError as missing:
        raise missing_package("path", "nibabel", "volumes") from missing
    return nibabel
