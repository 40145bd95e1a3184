"""Convolutions by blocks of pixels are the convolutions that they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tasks.images.block_convolution import BlockConvolution, channels_last, with_blocks
from tasks.images.regulariser import AdversarialRegulariser
from tasks.images.resnet import ResNet18
from trivgeo.networks import initialise


@pytest.mark.parametrize(
    ("channels", "size", "stride", "padding", "shape"),
    [(1, 7, 2, 3, (40, 40)), (1, 4, 2, 1, (40, 32)), (3, 3, 2, 1, (8, 12)), (2, 5, 3, 1, (12, 18))],
)
def test_blocks_change_nothing(channels: int, size: int, stride: int, padding: int, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    plain = nn.Conv2d(channels, 5, size, stride, padding).double()
    initialise(plain, generator)
    nn.init.normal_(plain.bias, generator=generator)
    x = torch.randn(3, channels, *shape, generator=generator, dtype=torch.float64).requires_grad_()
    blocks = BlockConvolution(plain)
    expected, found = plain(x), blocks.by_blocks(x)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    gradients = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (found, expected))
    torch.testing.assert_close(*gradients)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(blocks(x), expected)  # by the convolution itself: this is no GPU


@pytest.mark.parametrize("shape", [(41, 40), (42, 40), (28, 30)])
def test_other_sizes_are_left_to_the_convolution(shape: tuple[int, int]) -> None:
    assert not BlockConvolution(nn.Conv2d(1, 2, 7, 2, 3))._is_filled(*shape)
    assert BlockConvolution(nn.Conv2d(1, 2, 7, 2, 3))._is_filled(40, 28)


def test_only_first_convolutions_take_steps_over_few_channels() -> None:
    for network in (ResNet18([1, 40, 40, 10]), AdversarialRegulariser([1, 40, 40, 10])):
        names = set(network.state_dict())
        x = torch.rand(2, 1, 40, 40, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            expected = network.eval()(x)
            blocks = [m for m in with_blocks(network).modules() if isinstance(m, BlockConvolution)]
            assert len(blocks) == 1
            torch.testing.assert_close(network(x), expected)
        channels_last(network)
        assert all(p.is_contiguous(memory_format=torch.channels_last) for p in network.parameters() if p.ndim == 4)
        assert len(network.state_dict()) == len(names)


def test_pooling_and_rectifying_commute() -> None:
    network = ResNet18([1, 40, 40, 10])
    x = torch.randn(2, 64, 20, 20, generator=torch.Generator().manual_seed(0))
    assert torch.equal(network.stem[2:](x), functional.max_pool2d(functional.relu(x), 3, 2, 1))
