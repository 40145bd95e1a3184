"""IDX files, the format in which MNIST is published, plain or compressed with gzip."""

import hashlib
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivgeo.errors import TrivgeoError

from ..files import decompressed, read_bytes

_UNSIGNED_BYTE_TYPE = 0x08
_MAX_BYTES = 2**28  # bytes of a decompressed file, five times the training images of MNIST


class DataError(TrivgeoError):
    """A data file is missing, damaged, or not what it should be."""


def read_idx(path: str | Path, *, ndim: int, sha256: str | None = None, largest: int = _MAX_BYTES) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes.

    The format: two zero bytes, the type of the entries, the number of dimensions, each dimension as a big-endian
    32-bit integer, then the entries row by row. Y. LeCun, "The MNIST database of handwritten digits".

    Args:
        path: the file, compressed with gzip or not.
        ndim: the number of dimensions that it must have.
        sha256: the checksum of its content before compression, so that it does not depend on who compressed it;
            not checked when None.
        largest: bytes that the content may have before compression.

    Returns:
        The entries, a writable array of `ndim` dimensions.

    Raises:
        DataError: the file is missing, damaged or larger, or has another checksum, magic number or size.
    """
    content = _content(Path(path), largest)
    if sha256 is not None:
        found = hashlib.sha256(content).hexdigest()
        if found != sha256:
            raise DataError(
                f"{path}: expected content with SHA-256 {sha256}, got {found}; "
                "delete the file to have it downloaded again"
            )
    head = 4 + 4 * ndim
    magic = bytes((0, 0, _UNSIGNED_BYTE_TYPE, ndim))
    if content[:4] != magic:
        raise DataError(
            f"{path}: expected the magic number 0x{magic.hex()} of an IDX file with {ndim} dimensions of unsigned "
            f"bytes, got 0x{content[:4].hex()}"
        )
    if len(content) < head:
        raise DataError(f"{path}: expected a header of {head} bytes, got {len(content)}; the file is truncated")
    shape = np.frombuffer(content, dtype=">u4", count=ndim, offset=4).tolist()
    size = math.prod(shape)
    if len(content) - head != size:
        fault = "truncated" if len(content) - head < size else "too long"
        raise DataError(
            f"{path}: expected {size} entries for the shape {shape}, got {len(content) - head}; the file is {fault}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape).copy()


def _content(path: Path, largest: int) -> bytes:
    try:
        raw = read_bytes(path)
    except OSError as error:
        raise DataError(f"{path}: expected a readable file: {error}") from error
    try:
        return decompressed(raw, largest)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: expected a whole gzip file of at most {largest} bytes: {error}") from error
