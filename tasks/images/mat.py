"""The published files of affNIST and homNIST."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Shaped
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.io.matlab import MatReadError
from torch import Tensor

from ..files import read_bytes
from .idx import DataError
from .models import ImageFormat

FORMAT = ImageFormat(1, 40, 40, 10)
"""Format of all published images."""

_IMAGE_SIDE = FORMAT.height
_MAX_BYTES = 2**30  # bytes of all decompressed variables, ten times those of a published file
_HEAD_BYTES, _TAG_BYTES = 128, 8  # sizes of the head of a file, and of the tag of an element, in MATLAB's format 5
_COMPRESSED_TYPE = 15  # type of an element that is compressed
_BLOCK_BYTES = 2**20  # bytes that are decompressed at once

MatImages = tuple[Shaped[Tensor, "n 40 40"], Int[Tensor, " n"]]


def read_affnist(path: str | Path) -> MatImages:
    """Read a file of affNIST: a structure `affNISTdata` with `image`, `[1600, n]`, and `label_int`, `[1, n]`.

    Args:
        path: the `.mat` file.

    Returns:
        The images, bytes or numbers in [0, 1], `[n, 40, 40]`, and their digits `[n]`.

    Raises:
        DataError: the file is missing or damaged, or its content is not as above.
    """
    (structure,) = _load(path, "affNISTdata")
    names = structure.dtype.names or ()
    if structure.size != 1 or not {"image", "label_int"} <= set(names):
        raise DataError(
            f"{path}: expected one structure affNISTdata with image and label_int, got fields {list(names)}"
        )
    images, labels = structure["image"].item(), structure["label_int"].item()
    if images.ndim != 2 or images.shape[0] != _IMAGE_SIDE**2 or not 0 < labels.size == images.shape[1]:
        raise DataError(
            f"{path}: expected images [{_IMAGE_SIDE**2}, n] and n > 0 labels, "
            f"got {list(images.shape)} and {list(labels.shape)}"
        )
    return _checked(path, images.T.reshape(-1, _IMAGE_SIDE, _IMAGE_SIDE), labels.reshape(-1))


def read_homnist(path: str | Path) -> MatImages:
    """Read a file of homNIST: images `img_data`, `[..., 40, 40]`, with their digits `labels`.

    There is a label for each image, or for each entry of the first dimension when every digit has several images. The
    matrices `hom_matrices` are not read: in which coordinates they act, and which way, is not documented.

    Args:
        path: the `.mat` file.

    Returns:
        See `read_affnist`.

    Raises:
        DataError: the file is missing or damaged, or its content is not as above.
    """
    images, labels = _load(path, "img_data", "labels")
    if images.ndim < 3 or images.shape[-2:] != (_IMAGE_SIDE, _IMAGE_SIDE):
        raise DataError(f"{path}: expected img_data [..., {_IMAGE_SIDE}, {_IMAGE_SIDE}], got {list(images.shape)}")
    pictures, labels = images.reshape(-1, _IMAGE_SIDE, _IMAGE_SIDE), labels.reshape(-1)
    if len(labels) == images.shape[0]:
        labels = labels.repeat(len(pictures) // len(labels))
    if len(labels) != len(pictures):
        raise DataError(
            f"{path}: expected a label for each image or each entry of the first dimension of img_data "
            f"{list(images.shape)}, got {len(labels)} labels"
        )
    return _checked(path, pictures, labels)


def _load(path: str | Path, *names: str) -> list[NDArray[Any]]:
    try:
        raw = read_bytes(path)
        _check_size(raw)
        content = loadmat(path, variable_names=names)
    except (OSError, ValueError, NotImplementedError, MatReadError, zlib.error) as error:
        raise DataError(f"{path}: expected a readable .mat file (version 7 or older): {error}") from error
    values = [content.get(name, np.empty(0)) for name in names]
    absent = [name for name, value in zip(names, values, strict=True) if not value.size]
    if absent:
        raise DataError(f"{path}: expected the variables {', '.join(names)}, there is no {', '.join(absent)}")
    return values


def _check_size(content: bytes) -> None:
    """Raise unless compressed variables fit memory, without holding one.

    Raises:
        OSError: they are larger.
        zlib.error: one is damaged.
    """
    order = "<" if content[_HEAD_BYTES - 2 : _HEAD_BYTES] == b"IM" else ">"
    start, left = _HEAD_BYTES, _MAX_BYTES
    while start + _TAG_BYTES <= len(content):
        kind, size = struct.unpack_from(f"{order}II", content, start)
        stop = min(start + _TAG_BYTES + size, len(content))
        if kind == _COMPRESSED_TYPE:
            stream, waiting = zlib.decompressobj(), content[start + _TAG_BYTES : stop]
            while waiting and not stream.eof:
                left -= len(stream.decompress(waiting, _BLOCK_BYTES))
                waiting = stream.unconsumed_tail
                if left < 0:
                    raise OSError(f"more than {_MAX_BYTES} bytes when decompressed")
        start = stop


def _checked(path: str | Path, images: NDArray[Any], labels: NDArray[Any]) -> MatImages:
    if images.dtype != np.uint8 and not (
        np.issubdtype(images.dtype, np.floating) and 0 <= images.min() <= images.max() <= 1
    ):
        raise DataError(
            f"{path}: expected grey values as bytes or as numbers in [0, 1], "
            f"got {images.dtype} from {images.min()} to {images.max()}"
        )
    if not (np.isin(labels, np.arange(FORMAT.classes))).all():
        raise DataError(f"{path}: expected labels 0 to {FORMAT.classes - 1}, got {sorted(set(labels.tolist()))}")
    kept = images if images.dtype == np.uint8 else images.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(kept)), torch.from_numpy(labels.astype(np.int64))
