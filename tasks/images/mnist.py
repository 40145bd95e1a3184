"""Where digits come from: the four files of MNIST, downloaded when they are missing, or the sample beside this file."""

import os
import tempfile
import urllib.request
from contextlib import suppress
from pathlib import Path

import torch
from tqdm import tqdm

from ..files import HOW_TO_INSTALL_NETWORKS, recording
from .idx import DataError, read_idx
from .sources import ImageSource, LabelledImages

ROOT_VARIABLE = "TRIVGEO_MNIST"
"""Environment variable that names the folder of the files."""

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
"""Where the files are downloaded from; each is tried in turn."""

CHECKSUMS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""SHA-256 of the four files before compression."""

_IMAGE_SIDE = 28
_NUM_CLASSES = 10
_TIMEOUT_SECONDS = 30.0  # time without an answer after which a download fails
_BLOCK_BYTES = 1 << 16
_MAX_HEAD_BYTES = 1 << 10  # more than the head of any IDX file


class DigitSource(ImageSource):
    """Digits in the middle of a frame in which they can move."""

    channels = 1
    classes = _NUM_CLASSES
    frame = (40, 40)


class MNIST(DigitSource):
    """The 60,000 training and 10,000 test digits of MNIST, in their published order.

    Args:
        root: folder of the four IDX files, compressed or not; when None, the environment variable TRIVGEO_MNIST,
            and without that `trivgeo/mnist` in the user's cache folder. Files that are missing are downloaded there.
    """

    def __init__(self, root: str | None = None) -> None:
        self.root = Path(root or os.environ.get(ROOT_VARIABLE) or cache_folder() / "mnist")

    def prepare(self) -> None:
        """Download the files that are missing.

        Raises:
            DataError: no mirror gave a file with the right checksum.
        """
        for name in CHECKSUMS:
            if self._find(name) is None:
                download(name, self.root)

    def train(self) -> LabelledImages:
        return self._read("train", 60_000)

    def test(self) -> LabelledImages:
        return self._read("t10k", 10_000)

    def _read(self, part: str, count: int) -> LabelledImages:
        names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
        paths = [self._find(name) or self.root / f"{name}.gz" for name in names]
        return read_digits(*paths, count=count, checksums=(CHECKSUMS[names[0]], CHECKSUMS[names[1]]))

    def _find(self, name: str) -> Path | None:
        return next((p for p in (self.root / f"{name}.gz", self.root / name) if p.exists()), None)


class BundledSample(DigitSource):
    """2,000 training and 512 test digits that come with the code: for tests and first runs, with no download."""

    _folder = Path(__file__).parent / "sample"

    def train(self) -> LabelledImages:
        """The first 2,000 training digits of MNIST."""
        return self._read("train", 2_000)

    def test(self) -> LabelledImages:
        """The first 512 test digits of MNIST."""
        return self._read("t10k", 512)

    def _read(self, part: str, count: int) -> LabelledImages:
        paths = (self._folder / f"{part}-images-idx3-ubyte.gz", self._folder / f"{part}-labels-idx1-ubyte.gz")
        if not paths[0].exists():
            raise DataError(f"{paths[0]}: expected the digits of the sample; {HOW_TO_INSTALL_NETWORKS}")
        return read_digits(*paths, count=count)


def read_digits(
    images: Path, labels: Path, *, count: int, checksums: tuple[str | None, str | None] = (None, None)
) -> LabelledImages:
    """Read a file of images and the file of their labels.

    Args:
        images: IDX file `[count, 28, 28]`.
        labels: IDX file `[count]`.
        count: number of images that there must be.
        checksums: checksums of the two files, see `read_idx`.

    Raises:
        DataError: a file is damaged, the counts or sizes are not as expected, or a label is none of 0 to 9.
    """
    pixels = read_idx(images, ndim=3, sha256=checksums[0], largest=_MAX_HEAD_BYTES + count * _IMAGE_SIDE**2)
    classes = read_idx(labels, ndim=1, sha256=checksums[1], largest=_MAX_HEAD_BYTES + count)
    if pixels.shape != (count, _IMAGE_SIDE, _IMAGE_SIDE):
        raise DataError(f"{images}: expected {[count, _IMAGE_SIDE, _IMAGE_SIDE]} images, got {list(pixels.shape)}")
    if classes.shape != (count,):
        raise DataError(f"{labels}: expected {count} labels, got {len(classes)}")
    if count and classes.max() >= _NUM_CLASSES:
        raise DataError(f"{labels}: expected labels 0 to {_NUM_CLASSES - 1}, got {classes.max()}")
    return LabelledImages(torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(classes).long())


def download(name: str, folder: Path, mirrors: tuple[str, ...] = MIRRORS) -> Path:
    """Download one of the four files, compressed, with a progress bar; it appears in the folder whole or not at all.

    Args:
        name: a key of `CHECKSUMS`.
        folder: folder of the file; made if missing.
        mirrors: addresses to try, one after another.

    Returns:
        The file.

    Raises:
        DataError: the folder cannot be written, or no mirror gave a file with the right checksum.
    """
    target = folder / f"{name}.gz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}-")
        os.close(handle)
    except OSError as error:
        raise DataError(f"{folder}: expected a folder to download {target.name} to: {error}") from error
    part = Path(temporary)
    faults = []
    try:
        for mirror in mirrors:
            try:
                _fetch(f"{mirror}{target.name}", part)
                with recording():  # recorded apart: no later run reads a file of this name
                    read_idx(part, ndim=3 if "images" in name else 1, sha256=CHECKSUMS[name])
            except (OSError, DataError) as error:
                faults.append(f"{mirror}: {error}")
            else:
                part.chmod(0o644)
                part.replace(target)
                return target
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
    raise DataError(
        f"{target}: expected a file, which is missing, and no mirror gave it ({'; '.join(faults)}). Download the four "
        f"MNIST files by hand and name their folder in {ROOT_VARIABLE}"
    )


def cache_folder() -> Path:
    """The folder of downloads: `trivgeo` in XDG_CACHE_HOME, by default `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trivgeo"


def _fetch(url: str, path: Path) -> None:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response, path.open("wb") as file:
        size = int(response.headers.get("Content-Length") or 0) or None
        with tqdm(total=size, unit="B", unit_scale=True, desc=url.rsplit("/", 1)[-1]) as bar:
            while block := response.read(_BLOCK_BYTES):
                file.write(block)
                bar.update(len(block))
