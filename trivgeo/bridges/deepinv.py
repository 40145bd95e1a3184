"""A transform of deepinv: the elements of a group for equivariant imaging and for averages over a group.

```python
import deepinv
from trivgeo.bridges.deepinv import RandomTransformation

loss = deepinv.loss.EILoss(RandomTransformation(ImageWarp(SE(2)), transformations))
```
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.actions import ImageWarp
from trivgeo.bridges.base import base_class
from trivgeo.checks import check_type
from trivgeo.inversion.transformations import Transformations, sample_elements

__all__ = ["RandomTransformation"]

_Transform: Any = base_class("deepinv.transform", "Transform", "deepinv")


class RandomTransformation(_Transform):
    r"""Transform of deepinv that moves images by random elements of any group of the plane, or volumes by one of space.

    The parameters of a transform are the elements g, ``[n_trans, *element_shape]``, by the name ``g``; their inverse is
    that of the group. So ``inverse``, ``symmetrize``, products and sums of transforms are right also where the
    inverse is not the negative, as for affine maps and homographies.

    Args:
        action: the warp of images.
        transformations: distribution of the elements, a function (count, generator) to ``[count, *element_shape]``,
            see `trivgeo.inversion.transformations`.
        n_trans: number of elements that move each image.
        rng: source of random numbers; default: a generator of its own, as in deepinv.
        **settings: further arguments of ``deepinv.transform.Transform``.

    Raises:
        ConfigurationError: deepinv is not installed, or the action is no `ImageWarp`.
    """

    def __init__(
        self,
        action: ImageWarp,
        transformations: Transformations,
        *,
        n_trans: int = 1,
        rng: torch.Generator | None = None,
        **settings: Any,
    ) -> None:
        check_type("action", action, ImageWarp)
        super().__init__(n_trans=n_trans, rng=rng, **settings)
        self.action, self.transformations = action, transformations
        if action.dims == 3:
            self.flatten_video_input = False  # five dimensions are volumes

    def _get_params(self, x: Tensor) -> dict[str, Any]:
        from deepinv.transform.base import TransformParam

        g = sample_elements(self.action.group, self.transformations, self.n_trans, self.rng)
        return {"g": TransformParam(g.to(x.device), neg=self.action.group.inverse)}

    def _transform(self, x: Float[Tensor, "b ..."], g: Any = (), **params: Any) -> Float[Tensor, "n ..."]:
        """Return all images moved by the first element, then by the second, ..., ``[n_trans * b, ...]``."""
        elements = torch.as_tensor(g).as_subclass(Tensor).to(x.device)
        return self.action(elements.unsqueeze(1), x.unsqueeze(0)).flatten(0, 1)
