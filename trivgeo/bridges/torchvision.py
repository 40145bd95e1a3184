"""A transform of torchvision (``transforms.v2``): a picture with its boxes, masks and key points moved together.

```python
from torchvision.transforms import v2
from trivgeo.bridges.torchvision import RandomTransformation

move = RandomTransformation(ImageWarp(Affine(2)), transformations)
pipeline = v2.Compose([v2.ToImage(), move, v2.ToDtype(torch.float32, scale=True)])
image, target = pipeline(image, {"boxes": boxes, "masks": masks, "labels": labels})
```

torchvision need not be installed: its types are known where a sample holds them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._torch import pytree
from trivgeo.actions import ImageWarp
from trivgeo.checks import check_type, checked
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.inversion.transformations import Transformations, sample_elements

__all__ = ["RandomTransformation"]

_MAX_DRAWS = 20  # elements that are drawn for a sample until one is defined on its frame
_POINTS_OF_AN_EDGE = 16  # points of each edge of a box that are moved: images of edges may be curved
_LABEL_MODES = ("1", "P")  # modes of PIL whose numbers are labels, not intensities
_CORNERS = (0, 1, 2, 1, 2, 3, 0, 3)  # of a box (left, top, right, bottom), clockwise from the left upper one


@checked
class RandomTransformation(nn.Module):
    r"""Moves a sample by a random element of a group of the plane: :math:`(g \cdot I)(p) = I(g^{-1} p)`, points by g.

    A sample is what transforms of torchvision take: an image, or any nesting of tuples, lists and dictionaries, of
    which one element moves all parts. By their types,

    - images and videos (``tv_tensors.Image``, ``Video``, PIL) are interpolated as the warp says; without any of them
      the first plain tensor ``[..., c, h, w]`` is an image, as in torchvision;
    - masks (``tv_tensors.Mask``, images of PIL with palettes or bits) get the nearest value, and zero outside;
    - boxes (``tv_tensors.BoundingBoxes``) become the smallest boxes around what is moved, along the axes, or along the
      first edge for formats with an angle; corners of ``XYXYXYXY`` are moved as they are. Then they are clamped as
      their ``clamping_mode`` says;
    - key points (``tv_tensors.KeyPoints``) are moved. As torchvision's ``affine`` has it, boxes and key points count
      from the outer corner of the first pixel, whose centre is (0.5, 0.5);
    - everything else is returned as it is.

    Args:
        action: the warp of images, of a group of the plane, with its interpolation, padding and fill.
        transformations: distribution of the elements, a function (count, generator) to ``[count, *element_shape]``,
            see `trivgeo.inversion.transformations`.
        generator: source of random numbers; default: the global one of torch, which workers of a loader seed.

    Raises:
        ConfigurationError: the action is no `ImageWarp` of the plane; or (when called) the parts of a sample have
            several sizes, or there is nothing to move.
        DomainError: (when called) hardly any element is defined on the whole frame.

    Example:
        >>> move = RandomTransformation(ImageWarp(SO(2)), rotations(SO(2), 30.0))
        >>> move(torch.rand(3, 32, 48)).shape
        torch.Size([3, 32, 48])
    """

    def __init__(
        self, action: ImageWarp, transformations: Transformations, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        if check_type("action", action, ImageWarp).dims != 2:
            raise ConfigurationError(f"action: expected a warp of the plane, got {action!r}")
        self.action, self.transformations, self.generator = action, transformations, generator

    def extra_repr(self) -> str:
        return repr(self.action)

    def forward(self, *inputs: Any) -> Any:
        """Return the sample ``inputs`` moved, of the same nesting and types; raises as the class says."""
        types = sys.modules.get("torchvision.tv_tensors")  # imported by whoever made a sample of its types
        leaves, spec = pytree.tree_flatten(inputs if len(inputs) > 1 else inputs[0])
        kinds = _kinds(leaves, types)
        sizes = {_size(leaf, kind) for leaf, kind in zip(leaves, kinds, strict=True) if kind is not None}
        if len(sizes) != 1:
            found = ", ".join(f"{h} x {w}" for h, w in sorted(sizes)) or "nothing to move"
            raise ConfigurationError(f"inputs: expected images, boxes and points of one height and width, got {found}")
        size = sizes.pop()
        g = self._element(size)
        moved = [
            leaf if kind is None else getattr(self, f"_{kind}")(g, leaf, size)
            for leaf, kind in zip(leaves, kinds, strict=True)
        ]
        return pytree.tree_unflatten(moved, spec)

    def _element(self, size: tuple[int, int]) -> Tensor:
        """Return a random element ``[*element_shape]`` that is defined on the frame."""
        for _ in range(_MAX_DRAWS):
            g = sample_elements(self.action.group, self.transformations, 1, self.generator)
            if bool(self.action.is_valid(g, g.new_zeros(1, 1, *size)).all()):
                return g[0]
        raise DomainError(
            f"transformations: expected elements that are defined on a frame of {size[0]} x {size[1]} pixels, got none "
            f"in {_MAX_DRAWS} draws"
        )

    def _image(self, g: Tensor, x: Tensor, size: tuple[int, int]) -> Tensor:
        plain = x.as_subclass(Tensor)
        values = plain if plain.is_floating_point() else plain.to(torch.promote_types(torch.float32, plain.dtype))
        g = g.to(values.device, torch.promote_types(values.dtype, torch.float32))
        moved = self.action(g, values)
        if not plain.is_floating_point():
            bounds = torch.iinfo(plain.dtype) if plain.dtype != torch.bool else None
            moved = moved.round().clamp(bounds.min, bounds.max) if bounds else moved > 0.5
        return _wrapped(moved.to(plain.dtype), x)

    def _mask(self, g: Tensor, x: Tensor, size: tuple[int, int]) -> Tensor:
        plain, (height, width) = x.as_subclass(Tensor), size
        source = self.action.source_points(g, *size).to(plain.device)
        last = source.new_tensor([width - 1, height - 1])
        column, row = (0.5 * (max(size) * source + last)).round().long().unbind(-1)
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        found = plain[..., row.clamp(0, height - 1), column.clamp(0, width - 1)]
        return _wrapped(torch.where(inside, found, torch.zeros((), dtype=plain.dtype, device=plain.device)), x)

    def _points(self, g: Tensor, x: Tensor, size: tuple[int, int]) -> Tensor:
        plain = x.as_subclass(Tensor)
        moved = self._moved(g, plain.reshape(-1, 2), size).reshape(plain.shape)
        return _wrapped((moved if plain.is_floating_point() else moved.round()).to(plain.dtype), x)

    def _boxes(self, g: Tensor, x: Any, size: tuple[int, int]) -> Tensor:
        from torchvision.transforms.v2 import functional

        plain, kind = x.as_subclass(Tensor), type(x.format)
        rotated = x.format.value.endswith("R") or x.format == kind.XYXYXYXY
        through = kind.XYXYXYXY if rotated else kind.XYXY
        corners = functional.convert_bounding_box_format(plain.double(), old_format=x.format, new_format=through)
        corners = (corners if rotated else corners[:, _CORNERS]).unflatten(-1, (4, 2))
        if x.format == kind.XYXYXYXY:
            moved = self._moved(g, corners.flatten(0, 1), size).reshape(-1, 8)
        else:
            outline = self._moved(g, _outline(corners).flatten(0, 1), size).reshape(len(corners), -1, 2)
            moved = _around(outline, outline[:, _POINTS_OF_AN_EDGE] - outline[:, 0]) if rotated else _along(outline)
        moved = functional.convert_bounding_box_format(moved, old_format=through, new_format=x.format)
        moved = moved if plain.is_floating_point() else moved.round()
        return functional.clamp_bounding_boxes(_wrapped(moved.to(plain.dtype), x))

    def _picture(self, g: Tensor, x: Any, size: tuple[int, int]) -> Any:
        values = torch.from_numpy(np.array(x))
        if x.mode in _LABEL_MODES:
            moved = self._mask(g, values, size)
        else:
            channels = values.movedim(-1, 0) if values.ndim == 3 else values[None]
            moved = self._image(g, channels, size).movedim(0, -1).reshape(values.shape)
        pictures = sys.modules["PIL.Image"]
        if x.mode == "1":
            return pictures.fromarray(moved.numpy())
        picture = pictures.frombytes(x.mode, x.size, moved.contiguous().numpy().tobytes())
        if x.mode == "P":
            picture.putpalette(x.getpalette())
        return picture

    def _moved(self, g: Tensor, points: Float[Tensor, "p 2"], size: tuple[int, int]) -> Float[Tensor, "p 2"]:
        """Return points that count from the corner of the first pixel, moved."""
        height, width = size
        middle = 0.5 * torch.tensor([width, height], dtype=torch.float64, device=points.device)
        half = 0.5 * max(size)
        moved = self.action.point_action(g.double().to(points.device), (points.double() - middle) / half)
        return moved * half + middle


def _kinds(leaves: Sequence[Any], types: ModuleType | None) -> list[str | None]:
    """Return the name of the method that moves each leaf, ``None`` for what stays as it is."""
    kinds: list[str | None] = []
    for leaf in leaves:
        if type(leaf).__module__.partition(".")[0] == "PIL" and hasattr(leaf, "getpalette"):
            kinds.append("picture")
        elif types is None or not isinstance(leaf, types.TVTensor):
            kinds.append(None)
        elif isinstance(leaf, types.Mask):
            kinds.append("mask")
        elif isinstance(leaf, types.BoundingBoxes):
            kinds.append("boxes")
        else:
            points = getattr(types, "KeyPoints", None)  # since torchvision 0.23
            is_points = points is not None and isinstance(leaf, points)
            kinds.append("points" if is_points else "image" if isinstance(leaf, (types.Image, types.Video)) else None)
    if not any(kind in ("image", "picture") for kind in kinds):
        plain = (i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and kinds[i] is None)
        first = next((i for i in plain if leaves[i].ndim >= 3), None)
        if first is not None:
            kinds[first] = "image"
    return kinds


def _size(leaf: Any, kind: str) -> tuple[int, int]:
    """Return the height and width of the picture that a leaf belongs to."""
    if kind == "picture":
        return leaf.height, leaf.width
    height, width = leaf.canvas_size if kind in ("boxes", "points") else leaf.shape[-2:]
    return int(height), int(width)


def _wrapped(x: Tensor, original: Tensor) -> Tensor:
    """Return a tensor in the class of the original."""
    if type(original) is Tensor:
        return x
    wrapped: Tensor = sys.modules["torchvision.tv_tensors"].wrap(x, like=original)
    return wrapped


def _outline(corners: Float[Tensor, "n 4 2"]) -> Float[Tensor, "n p 2"]:
    """Return points on the edges of quadrilaterals, each edge from its first corner on."""
    t = torch.arange(_POINTS_OF_AN_EDGE, dtype=corners.dtype, device=corners.device) / _POINTS_OF_AN_EDGE
    return torch.lerp(corners.unsqueeze(2), corners.roll(-1, 1).unsqueeze(2), t[:, None]).flatten(1, 2)


def _along(points: Float[Tensor, "n p 2"]) -> Float[Tensor, "n 4"]:
    """Return the smallest boxes (left, top, right, bottom) that hold the points."""
    return torch.cat([points.amin(1), points.amax(1)], -1)


def _around(points: Float[Tensor, "n p 2"], edge: Float[Tensor, "n 2"]) -> Float[Tensor, "n 8"]:
    """Return the corners of the smallest rectangles along an edge that hold the points."""
    along = edge / edge.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(edge.dtype).tiny)
    across = torch.stack([-along[:, 1], along[:, 0]], -1)
    axes = torch.stack([along, across], 1)  # [n, 2, 2]
    inside = points @ axes.mT
    box = _along(inside)[:, _CORNERS].unflatten(-1, (4, 2))
    return (box @ axes).flatten(1)
