"""Volumes of MONAI and TorchIO: the same voxels and affines, with the axes of arrays the other way round.

```python
from monai.transforms import LoadImage, Spacing
from trivgeo.bridges.monai import to_metatensor, to_volume

moving, fixed = (to_volume(LoadImage(ensure_channel_first=True)(name)) for name in ("moving.nii.gz", "fixed.nii.gz"))
r = register(moving, fixed, SE(3))
moved = Spacing((1.0, 1.0, 1.0))(to_metatensor(r.action(r.element, moving)))
```
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trivgeo.actions import Volume
from trivgeo.actions.volume import check_volume
from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError, ShapeError, missing_package

__all__ = ["to_metatensor", "to_volume"]

_LPS_TO_RAS = (-1.0, -1.0, 1.0, 1.0)


@checked
def to_volume(image: Any) -> Volume:
    """Return the `Volume` of an image of MONAI or TorchIO.

    Args:
        image: a ``MetaTensor`` of MONAI, ``[*batch, c, i, j, k]`` with its affine (to RAS, or to LPS if its ``space``
            says so), or an image of TorchIO.

    Raises:
        ConfigurationError: there is no affine of space.
        ShapeError: the image has fewer than four dimensions, or a batch has an affine for each and a different number.
    """
    affine = getattr(image, "affine", None)
    values = image.as_tensor() if hasattr(image, "as_tensor") else getattr(image, "data", None)
    if affine is None or not isinstance(values, Tensor) or tuple(affine.shape[-2:]) != (4, 4):
        raise ConfigurationError(
            f"image: expected a MetaTensor or an image of TorchIO with an affine [4, 4], got {type(image).__name__}"
        )
    if values.ndim < 4:
        raise ShapeError(f"image: expected [*batch, c, i, j, k], got {list(values.shape)}")
    matrix = torch.as_tensor(affine, dtype=torch.float64, device=values.device)
    if str(getattr(image, "meta", {}).get("space", "RAS")).upper().endswith("LPS"):
        matrix = torch.diag(matrix.new_tensor(_LPS_TO_RAS)) @ matrix
    volume = Volume(values.transpose(-1, -3).contiguous(), matrix)
    check_volume("image", volume)
    return volume


@checked
def to_metatensor(volume: Volume) -> Any:
    """Return the ``MetaTensor`` of MONAI of a volume, ``[*batch, c, i, j, k]``, with its affine to RAS.

    ``torchio.ScalarImage(tensor=image, affine=image.affine)`` makes an image of TorchIO of it.

    Args:
        volume: values ``[*batch, c, d, h, w]`` and affines.

    Raises:
        ConfigurationError: MONAI is not installed, or this is no volume.
    """
    check_volume("volume", volume)
    try:
        from monai.data.meta_tensor import MetaTensor
    except ImportError as error:
        raise missing_package("volume", "MONAI", "bridges") from error
    return MetaTensor(volume.data.transpose(-1, -3).contiguous(), affine=volume.affine)
