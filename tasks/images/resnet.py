"""ResNet18 for images of any size."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from .models import ImageClassifier

_STAGE_CHANNELS_AND_STRIDES = ((64, 1), (128, 2), (256, 2), (512, 2))
_BLOCKS_PER_STAGE = 2


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut.

    Args:
        inputs: channels in.
        outputs: channels out.
        stride: stride of the first convolution and of the shortcut.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Evaluate the block."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(ImageClassifier):
    """The 18-layer residual network of K. He et al., "Deep residual learning for image recognition", 2016.

    The stem is that for large photographs: a 7 x 7 convolution of stride 2, then maximum pooling of stride 2.

    Args:
        images: see `tasks.images.convnet.ConvNet`.
    """

    def __init__(self, images: Sequence[int]) -> None:
        super().__init__(images, any_size=True)
        channels = _STAGE_CHANNELS_AND_STRIDES[0][0]
        self.stem = nn.Sequential(
            nn.Conv2d(self.images.channels, channels, 7, 2, 3, bias=False),
            nn.BatchNorm2d(channels),
            nn.MaxPool2d(3, 2, 1),
            nn.ReLU(),  # after pooling, with which it commutes: on a quarter of the numbers
        )
        blocks: list[nn.Module] = []
        for outputs, stride in _STAGE_CHANNELS_AND_STRIDES:
            for place in range(_BLOCKS_PER_STAGE):
                blocks.append(ResidualBlock(channels, outputs, stride if place == 0 else 1))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, self.images.classes)

    @property
    def architecture(self) -> dict[str, Any]:
        return {"images": list(self.images)}

    def _logits(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((-2, -1)))
