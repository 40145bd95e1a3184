"""A network that sees how an image was moved."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trivgeo.inversion.learned import ImageBackbone

from ..learned import NoiseNetwork
from .data import ImageBatch
from .energies import Precision
from .models import ImageFormat


class PoseNetwork(ImageBackbone, NoiseNetwork):
    """An `ImageBackbone` for the images of a data set.

    Args:
        dim: see `ImageBackbone`, also for ``channels``, ``width``, ``precision`` and what is raised.
        images: see `tasks.images.models.ImageNetwork`.
    """

    def __init__(
        self,
        dim: int,
        images: Sequence[int],
        channels: Sequence[int] = (32, 64, 64),
        width: int = 96,
        precision: Precision = "bfloat16",
    ) -> None:
        self.images = ImageFormat(*images)
        super().__init__(dim, self.images.shape, channels, width, precision)

    @property
    def architecture(self) -> dict[str, Any]:
        own = super().architecture
        return {"images": list(self.images)} | {key: own[key] for key in ("dim", "channels", "width", "precision")}

    def data(self, batch: ImageBatch) -> Tensor:
        return batch.image
