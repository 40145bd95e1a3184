"""Images of one's own: folders of pictures, one folder for each class."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from trivgeo.checks import check_choice, check_count
from trivgeo.errors import ConfigurationError

from ..files import read_bytes
from .idx import DataError
from .sources import ImageSource, LabelledImages

_SUFFIXES = (".png", ".jpg", ".jpeg")
_MODES = {1: "L", 3: "RGB"}
_NO_PICTURE = (UnidentifiedImageError, Image.DecompressionBombError, Image.DecompressionBombWarning)
_MOST_PIXELS = 2**26  # of a picture, 200 MB of colours; a small file can hold any number


class ImageFolder(ImageSource):
    """PNG and JPEG files in folders named after their classes, such as `train/cat/1.png`.

    All are brought to one size, turned as their camera says, and those of 16 bits to eight. Classes have the numbers of
    their names in alphabetical order.

    Args:
        train: folder of the class folders for training.
        test: the same for tests; it may lack classes.
        size: height and width to which images are brought.
        channels: 3 for colours, 1 for grey values.
        frame: height and width of the empty frame around them, in which they can move; default their size.

    Raises:
        ConfigurationError: a number is out of range, or the frame is smaller than the images.
        DataError: a folder is missing, holds no class folders, or has classes that training lacks; or (when read) a
            class without pictures, a file that is no picture, or one that is transparent in part.
    """

    def __init__(
        self,
        train: str,
        test: str,
        size: Sequence[int],
        channels: Literal[1, 3] = 3,
        frame: Sequence[int] | None = None,
    ) -> None:
        self.size = _pair("size", size)
        self.frame = self.size if frame is None else _pair("frame", frame)
        if any(outer < inner for outer, inner in zip(self.frame, self.size, strict=True)):
            raise ConfigurationError(f"frame: expected at least {list(self.size)} pixels, got {list(self.frame)}")
        self.channels = check_choice("channels", channels, tuple(_MODES))
        self._train, self._test = Path(train), Path(test)
        self.names = _classes(self._train)
        self.classes = len(self.names)
        if unknown := set(_classes(self._test)) - set(self.names):
            raise DataError(f"{test}: expected classes of {train}, got also {', '.join(sorted(unknown))}")

    def train(self) -> LabelledImages:
        """The images for training."""
        return self._read(self._train)

    def test(self) -> LabelledImages:
        """The images for tests."""
        return self._read(self._test)

    def _read(self, root: Path) -> LabelledImages:
        images, labels = [], []
        for name in _classes(root):
            files = sorted(file for file in (root / name).iterdir() if file.suffix.lower() in _SUFFIXES)
            if not files:
                raise DataError(f"{root / name}: expected files {', '.join(_SUFFIXES)}, got none")
            images += [self._picture(file) for file in files]
            labels += [self.names.index(name)] * len(files)
        return LabelledImages(torch.stack(images), torch.tensor(labels))

    def _picture(self, file: Path) -> torch.Tensor:
        height, width = self.size
        try:
            with Image.open(io.BytesIO(read_bytes(file))) as opened:
                if opened.width * opened.height > _MOST_PIXELS:
                    raise DataError(
                        f"{file}: expected at most {_MOST_PIXELS} pixels, got {opened.width} x {opened.height}"
                    )
                upright = ImageOps.exif_transpose(opened)
                if upright.has_transparency_data and upright.convert("RGBA").getextrema()[-1] != (255, 255):
                    raise DataError(f"{file}: expected a picture on a ground, got one that is transparent in part")
                whole = _in_bytes(upright) if upright.mode.startswith("I") else upright
                picture = whole.convert(_MODES[self.channels]).resize((width, height), Image.Resampling.BILINEAR)
        except (OSError, *_NO_PICTURE) as error:
            raise DataError(f"{file}: expected a picture: {error}") from error
        return torch.from_numpy(np.array(picture)).reshape(height, width, self.channels).movedim(-1, 0)


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
