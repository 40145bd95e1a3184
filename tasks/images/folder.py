"""Images of one's own: folders of pictures, one folder for each class."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from trivgeo.checks import check_choice, check_count
from trivgeo.errors import ConfigurationError

from ..files import read_bytes
from .idx import DataError
from .sources import ImageSource, LabelledImages

_PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg")
_PILLOW_MODES = {1: "L", 3: "RGB"}  # names of colour modes by number of channels
_PICTURE_ERRORS = (UnidentifiedImageError, Image.DecompressionBombError, Image.DecompressionBombWarning)
_MAX_PIXELS = 2**26  # pixels of a picture, 200 MB of colours; a small file can ask for any number


class ImageFolder(ImageSource):
    """PNG and JPEG files in folders named after their classes, such as `train/cat/1.png`.

    All are brought to one size, turned as their camera says, and those of 16 bits to eight. Classes have the numbers of
    their names in alphabetical order.

    Args:
        train: folder of the class folders for training; ``None`` for tests of a pretrained network, with ``classes``.
        test: the same for tests; it may lack classes.
        size: height and width to which images are brought.
        channels: 3 for colours, 1 for grey values.
        frame: height and width of the empty frame around them, in which they can move; default their size.
        keep_aspect: keep the ratio of height and width of every picture, with black margins, instead of stretching it.
        classes: number of classes of a pretrained network. Folders are then named by the numbers of the classes, from
            0 on, such as `test/207/1.png`.

    Raises:
        ConfigurationError: a number is out of range, the frame is smaller than the images, or neither ``train`` nor
            ``classes`` is given.
        DataError: a folder is missing, holds no class folders, has classes that training lacks, or names that are no
            numbers of ``classes``; or (when read) a class without pictures, a file that is no picture, one that is
            transparent in part, or there is no folder for training.
    """

    def __init__(
        self,
        train: str | None,
        test: str,
        size: Sequence[int],
        channels: Literal[1, 3] = 3,
        frame: Sequence[int] | None = None,
        keep_aspect: bool = False,
        classes: int | None = None,
    ) -> None:
        self.size = _pair("size", size)
        self.frame = self.size if frame is None else _pair("frame", frame)
        if any(outer < inner for outer, inner in zip(self.frame, self.size, strict=True)):
            raise ConfigurationError(f"frame: expected at least {list(self.size)} pixels, got {list(self.frame)}")
        self.channels = check_choice("channels", channels, tuple(_PILLOW_MODES))
        self.keep_aspect = bool(keep_aspect)
        self._train, self._test = None if train is None else Path(train), Path(test)
        if classes is not None:
            self.names = [str(number) for number in range(check_count("classes", classes))]
        elif self._train is not None:
            self.names = _classes(self._train)
        else:
            raise ConfigurationError("train: expected a folder, or the number of `classes` of a pretrained network")
        self.classes = len(self.names)
        for folder in (self._train, self._test):
            if folder is not None and (unknown := set(_classes(folder)) - set(self.names)):
                expected = f"classes of {train}" if classes is None else f"folders named 0 to {classes - 1}"
                raise DataError(f"{folder}: expected {expected}, got also {', '.join(sorted(unknown))}")

    def train(self) -> LabelledImages:
        """The images for training.

        Raises:
            DataError: there is no folder for training; see also `ImageFolder`.
        """
        if self._train is None:
            raise DataError("train: expected a folder of pictures for training, got None")
        return self._read(self._train)

    def test(self) -> LabelledImages:
        return self._read(self._test)

    def _read(self, root: Path) -> LabelledImages:
        images, labels = [], []
        for name in _classes(root):
            files = sorted(file for file in (root / name).iterdir() if file.suffix.lower() in _PICTURE_SUFFIXES)
            if not files:
                raise DataError(f"{root / name}: expected files {', '.join(_PICTURE_SUFFIXES)}, got none")
            images += [read_picture(file, self.size, self.channels, self.keep_aspect) for file in files]
            labels += [self.names.index(name)] * len(files)
        return LabelledImages(torch.stack(images), torch.tensor(labels))


def read_picture(file: Path, size: tuple[int, int], channels: int, keep_aspect: bool) -> UInt8[torch.Tensor, "c h w"]:
    """A picture of a file as its camera says, brought to a size.

    Args:
        file: PNG or JPEG.
        size: height and width.
        channels: see `ImageFolder`.
        keep_aspect: keep its ratio of height and width, in the middle of a black picture, instead of stretching it.

    Raises:
        DataError: no picture, one that is too large, or transparent in part.
    """
    try:
        with Image.open(io.BytesIO(read_bytes(file))) as opened:
            if opened.width * opened.height > _MAX_PIXELS:
                raise DataError(f"{file}: expected at most {_MAX_PIXELS} pixels, got {opened.width} x {opened.height}")
            upright = ImageOps.exif_transpose(opened)
            if upright.has_transparency_data and upright.convert("RGBA").getextrema()[-1] != (255, 255):
                raise DataError(f"{file}: expected a picture on a ground, got one that is transparent in part")
            whole = _in_bytes(upright) if upright.mode.startswith("I") else upright
            coloured, (height, width) = whole.convert(_PILLOW_MODES[channels]), size
            if keep_aspect:
                picture = ImageOps.pad(coloured, (width, height), Image.Resampling.BILINEAR)
            else:
                picture = coloured.resize((width, height), Image.Resampling.BILINEAR)
    except UnidentifiedImageError as error:
        raise DataError(f"{file}: expected a picture, got a file of another kind") from error
    except (OSError, *_PICTURE_ERRORS) as error:
        raise DataError(f"{file}: expected a picture: {error}") from error
    return torch.from_numpy(np.array(picture)).reshape(height, width, channels).movedim(-1, 0)


def _in_bytes(picture: Image.Image) -> Image.Image:
    """Grey values of 16 bits as those of 8."""
    values = np.asarray(picture).astype(np.int64)
    return Image.fromarray(((values.clip(0, 65535) + 128) // 257).astype(np.uint8))


def _classes(root: Path) -> list[str]:
    """The names of the class folders."""
    if not root.is_dir():
        raise DataError(f"{root}: expected a folder of class folders, found none")
    names = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise DataError(f"{root}: expected a folder for each class, found none")
    return names


def _pair(name: str, sides: Sequence[int]) -> tuple[int, int]:
    if len(sides) != 2:
        raise ConfigurationError(f"{name}: expected height and width, got {list(sides)}")
    height, width = (check_count(name, side) for side in sides)
    return height, width
