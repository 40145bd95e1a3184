"""What every image network shares: its shape as plain data, its initial weights, and the energy of a classifier."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.errors import ShapeError


class ImageNetwork(nn.Module, ABC):
    """A network on images `[*batch, 1, h, w]`, with any batch dimensions, that sees each image by itself.

    Args:
        side: pixels a side that the images must have; None where any size will do.
    """

    def __init__(self, side: int | None = None) -> None:
        super().__init__()
        self.side = side

    @property
    @abstractmethod
    def architecture(self) -> dict[str, Any]:
        """Constructor arguments that rebuild a network of this shape (plain types)."""

    def per_image(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """A function `[b, 1, h, w] -> [b, *out]` at images with any batch dimensions, `[*batch, *out]`.

        Raises:
            ShapeError: the tensor does not hold images of one channel, or they have another size than `side`.
        """
        side = self.side
        if x.ndim < 3 or x.shape[-3] != 1 or (side is not None and tuple(x.shape[-2:]) != (side, side)):
            size = "h, w" if side is None else f"{side}, {side}"
            raise ShapeError(f"x: expected images [*batch, 1, {size}], got {list(x.shape)}")
        y = function(x.reshape(-1, *x.shape[-3:]))
        return y.reshape((*x.shape[:-3], *y.shape[1:]))


class ImageClassifier(ImageNetwork):
    """A network from images to logits, and its confidence as an energy."""

    @abstractmethod
    def _logits(self, x: Tensor) -> Tensor:
        """Logits `[b, classes]` of images `[b, 1, h, w]`."""

    def forward(self, x: Float[Tensor, "*batch 1 h w"]) -> Float[Tensor, "*batch classes"]:
        """The logits.

        Raises:
            ShapeError: see `per_image`.
        """
        return self.per_image(self._logits, x)

    def energy(self, x: Float[Tensor, "*batch 1 h w"]) -> Float[Tensor, "*batch"]:
        """E(x) = -logsumexp of the logits: low where the classifier is confident. Grathwohl et al., 2020.

        Raises:
            ShapeError: see `per_image`.
        """
        return -torch.logsumexp(self(x), -1)


def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Draw initial weights in place: normal with variance 2 / fan_in (He et al., 2015), biases zero.

    Parameters of one dimension that are no biases, those of normalisation, keep what their constructor gave.
    """
    for name, parameter in network.named_parameters():
        if parameter.ndim > 1:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu", generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
