"""Matrices in kornia's conventions, and an augmentation of kornia by the elements of a group of the plane.

```python
from kornia.augmentation import AugmentationSequential, ColorJitter
from trivgeo.bridges.kornia import RandomTransformation

move = RandomTransformation(ImageWarp(Affine(2)), transformations)
pipeline = AugmentationSequential(ColorJitter(0.1, 0.1, 0.1, 0.1), move, data_keys=["input", "mask", "keypoints"])
```

Homographies in pixels are those of `ImageWarp.to_pixels` and `ImageWarp.from_pixels`: kornia's ``warp_perspective``,
``warp_affine`` (its first two rows) and ``transform_matrix`` have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.actions import ImageWarp
from trivgeo.actions.image import check_sides
from trivgeo.bridges.base import base_class
from trivgeo.checks import check_choice, check_tensor, check_type, checked
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.transformations import Transformations, sample_elements

__all__ = ["RandomTransformation", "from_normalized", "to_normalized"]

_GeometricAugmentation: Any = base_class("kornia.augmentation", "GeometricAugmentationBase2D", "kornia")

Padding = Literal["zeros", "border", "reflection"]


@checked
def to_normalized(action: ImageWarp, g: Tensor, size: Sequence[int]) -> Float[Tensor, "*batch 3 3"]:
    """Return homographies of elements in kornia's normalised coordinates, from the image I to ``g.I``.

    There the centres of the first and the last pixel of a row are at -1 and 1, and those of a column. kornia's
    ``homography_warp`` takes the inverse, from ``g.I`` to I.

    Args:
        action: the warp of images, of a group whose elements are homographies.
        g: elements ``[*batch, *element_shape]``.
        size: height and width in pixels, at least two.

    Raises:
        ConfigurationError: elements are no homographies, or a side has one pixel.
    """
    pixels = action.to_pixels(g, size).double()
    normal = _normalized_from_pixels(size, pixels)
    matrix = normal @ pixels @ torch.linalg.inv(normal)
    last = matrix[..., -1:, -1:]
    return (matrix / torch.where(last == 0, 1.0, last)).to(g.dtype)


@checked
def from_normalized(action: ImageWarp, matrix: Float[Tensor, "*batch 3 3"], size: Sequence[int]) -> Tensor:
    """Return the elements of homographies in kornia's normalised coordinates, the inverse of `to_normalized`.

    Args:
        action: see `to_normalized`.
        matrix: any multiples of the matrices.
        size: see `to_normalized`.

    Raises:
        ConfigurationError: see `to_normalized`.
        DomainError: a matrix is not in the group, see `ImageWarp.from_pixels`.
    """
    matrix = check_tensor("matrix", matrix)
    normal = _normalized_from_pixels(size, matrix)
    return action.from_pixels(torch.linalg.inv(normal) @ matrix.double() @ normal, size).to(matrix.dtype)


def _normalized_from_pixels(size: Sequence[int], reference: Tensor) -> Float[Tensor, "3 3"]:
    height, width = check_sides(size)
    if min(height, width) < 2:
        raise ConfigurationError(f"size: expected sides of at least two pixels, got {height} x {width}")
    rows = [[2.0 / (width - 1), 0.0, -1.0], [0.0, 2.0 / (height - 1), -1.0], [0.0, 0.0, 1.0]]
    return torch.tensor(rows, dtype=torch.float64, device=reference.device)


class RandomTransformation(_GeometricAugmentation):
    """Augmentation of kornia that moves images, masks, boxes and key points by random elements of a group.

    Each image of a batch has an element of its own. Images are warped by kornia; what is moved out of the frame is
    lost. ``transform_matrix`` and ``inverse`` are those of kornia.

    Args:
        action: the warp of images, of a group whose elements are homographies; its padding is taken, and its fill.
        transformations: distribution of the elements, a function (count, generator) to ``[count, *element_shape]``,
            see `trivgeo.inversion.transformations`.
        generator: source of random numbers; default: the global one of torch, as in kornia.
        resample: interpolation of images, ``bilinear`` or ``nearest``.
        p: probability that an image is moved.
        same_on_batch: whether all images of a batch have the same element.
        keepdim: whether an image without a batch dimension stays so.

    Raises:
        ConfigurationError: kornia is not installed, the action is no `ImageWarp`, or its elements are no homographies.
    """

    def __init__(
        self,
        action: ImageWarp,
        transformations: Transformations,
        *,
        generator: torch.Generator | None = None,
        resample: Literal["bilinear", "nearest"] = "bilinear",
        p: float = 1.0,
        same_on_batch: bool = False,
        keepdim: bool = False,
    ) -> None:
        check_type("action", action, ImageWarp).to_pixels(action.group.identity(), (2, 2))
        check_choice("resample", resample, ("bilinear", "nearest"))
        super().__init__(p=p, same_on_batch=same_on_batch, keepdim=keepdim)
        self.action, self.transformations, self.generator = action, transformations, generator
        padding = action.padding if not any(action.fill) else "fill"
        # kornia looks at these names
        from kornia.constants import Resample, SamplePadding

        self.flags = {
            "resample": Resample.get(resample),
            "padding_mode": SamplePadding.get(padding),
            "align_corners": True,
            "fill_value": torch.tensor(action.fill) if padding == "fill" else None,
        }

    def generate_parameters(self, batch_shape: tuple[int, ...]) -> dict[str, Tensor]:
        """Return the homographies in pixels, ``[b, 3, 3]``, by the name ``matrix``.

        Args:
            batch_shape: shape ``[b, c, h, w]`` of the images.
        """
        count = 1 if self.same_on_batch else int(batch_shape[0])
        g = sample_elements(self.action.group, self.transformations, max(1, count), self.generator)
        matrix = self.action.to_pixels(g, batch_shape[-2:])
        return {"matrix": matrix.expand(batch_shape[0], 3, 3).contiguous()}

    def compute_transformation(self, input: Tensor, params: dict[str, Tensor], flags: dict[str, Any]) -> Tensor:
        """Return the homographies in pixels of moved images, ``[b, 3, 3]``.

        Args:
            input: images ``[b, c, h, w]``.
            params: what `generate_parameters` returned.
            flags: settings of kornia.
        """
        return params["matrix"].to(input)

    def apply_transform(
        self, input: Tensor, params: dict[str, Tensor], flags: dict[str, Any], transform: Tensor | None = None
    ) -> Tensor:
        """Return the images ``[b, c, h, w]`` warped by kornia.

        Args:
            input: images ``[b, c, h, w]``.
            params: see `compute_transformation`.
            flags: settings of kornia: interpolation and padding.
            transform: homographies in pixels.
        """
        from kornia.geometry.transform import warp_perspective

        assert transform is not None
        return warp_perspective(
            input,
            transform,
            (input.shape[-2], input.shape[-1]),
            mode=flags["resample"].name.lower(),
            padding_mode=flags["padding_mode"].name.lower(),
            align_corners=flags["align_corners"],
            **({} if flags["fill_value"] is None else {"fill_value": flags["fill_value"].to(input)}),
        )

    def inverse_transform(
        self, input: Tensor, flags: dict[str, Any], transform: Tensor | None = None, size: Any = None
    ) -> Tensor:
        """Return the images warped back.

        Args:
            input: see `apply_transform`.
            flags: see `apply_transform`.
            transform: the inverse homographies.
            size: the size of the images before, which stays.
        """
        return self.apply_transform(input, self._params, flags, transform)
