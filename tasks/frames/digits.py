"""Relative frames of the halves of written digits, from the images of MNIST.

python -m tasks.frames.digits --root FOLDER_OF_MNIST      writes digit_frames.safetensors to the folder of this file
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from trivgeo.errors import CheckpointError, ShapeError

from ..files import HOW_TO_INSTALL_NETWORKS, checksum
from ..images.mnist import MNIST
from .group import frame_group, from_affine

BUNDLED = Path(__file__).with_name("digit_frames.safetensors")
"""8,000 frames of training digits and 4,000 of test digits of MNIST (Y. LeCun, C. Cortes; CC BY-SA 3.0)."""

_NUM_IMAGES = {"train": 8000, "test": 4000}
_SELECTION_SEED = 0  # seed that chooses the images


class FrameSplit(NamedTuple):
    """Elements of `frame_group`.

    Attributes:
        train: frames of training digits, `[n, 5]`.
        test: frames of test digits, `[m, 5]`.
    """

    train: Tensor
    test: Tensor


def ink_frames(ink: Float[Tensor, "n h w"]) -> Float[Tensor, "n 2 3"]:
    """The upper-triangular map that takes the unit disc's moments to those of the ink, one image each.

    Its translation is the centroid, and A A^T the matrix of second moments; image coordinates run over [-1, 1], x to
    the right and y down. Pixels are squares: each adds its own second moment, so that no matrix is singular.
    """
    height, width = ink.shape[-2:]
    x = (2 * torch.arange(width, dtype=ink.dtype) + 1) / width - 1
    y = ((2 * torch.arange(height, dtype=ink.dtype) + 1) / height - 1).unsqueeze(-1)
    mass = ink.sum((-2, -1))

    def mean(values: Tensor) -> Tensor:
        return (ink * values).sum((-2, -1)) / mass

    cx, cy = mean(x), mean(y)
    dx, dy = x - cx[:, None, None], y - cy[:, None, None]
    xx, xy, yy = mean(dx * dx) + 1 / (3 * width**2), mean(dx * dy), mean(dy * dy) + 1 / (3 * height**2)
    h = yy.sqrt()
    shear = xy / h
    rows = [[(xx - shear**2).sqrt(), shear, cx], [torch.zeros_like(h), h, cy]]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def relative_frames(images: UInt8[Tensor, "n h w"]) -> Float[Tensor, "n 5"]:
    """The frame of the lower half of the ink seen from that of the upper half, in float64.

    The line between the halves goes through the centroid; a row of pixels on it is shared. Position, size and slant of
    the whole digit drop out: of g_upper^-1 g_lower nothing changes when both are moved.

    Raises:
        ShapeError: an image has no ink on one side, or none at all.
    """
    ink = images.double()
    rows = ink.sum(-1)
    height = ink.shape[-2]
    edge = torch.arange(height, dtype=ink.dtype)
    centre = (rows * (edge + 0.5)).sum(-1, keepdim=True) / rows.sum(-1, keepdim=True)
    above = (centre - edge).clamp(0.0, 1.0).unsqueeze(-1)
    if not bool(((rows * above[..., 0]).sum(-1) > 0).all()):
        raise ShapeError("images: expected ink on both sides of the centroid in every image")
    group = frame_group()
    upper, lower = (from_affine(ink_frames(part)) for part in (ink * above, ink * (1.0 - above)))
    return group.compose(group.inverse(upper), lower)


def bundled_frames() -> FrameSplit:
    """The frames that come with the library, float32.

    Raises:
        CheckpointError: the file is missing.
    """
    if not BUNDLED.is_file():
        raise CheckpointError(f"{BUNDLED}: expected the frames; {HOW_TO_INSTALL_NETWORKS}; or run python -m {__name__}")
    checksum(BUNDLED)
    with safe_open(BUNDLED, framework="pt") as file:
        return FrameSplit(file.get_tensor("train"), file.get_tensor("test"))


def extract(root: str | None, path: Path) -> None:
    """Write the frames of random training and test digits."""
    source = MNIST(root)
    source.prepare()
    generator = torch.Generator().manual_seed(_SELECTION_SEED)
    tensors = {}
    for name, digits in (("train", source.train()), ("test", source.test())):
        chosen = torch.randperm(len(digits.images), generator=generator)[: _NUM_IMAGES[name]]
        tensors[name] = relative_frames(digits.images[chosen].squeeze(1)).float().contiguous()
    about = (
        "relative frames of the halves of MNIST digits (Y. LeCun and C. Cortes, CC BY-SA 3.0); tasks/frames/digits.py"
    )
    save_file(tensors, path, metadata={"source": about})


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(prog="python -m tasks.frames.digits", description=__doc__)
    parser.add_argument("--root", default=None, help="folder of the four files of MNIST (default: as for other tasks)")
    parser.add_argument("--out", type=Path, default=BUNDLED)
    options = parser.parse_args(arguments)
    extract(options.root, options.out)


if __name__ == "__main__":
    main()
