"""Files of a run: checksums of files read, atomic writes, JSON lines with checksums, a folder locked by one run."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from trivgeo.errors import ConfigurationError, TrivgeoError

_read: ContextVar[dict[str, str]] = ContextVar("_read", default={})  # noqa: B039  outside of `recording`: the process's


_CHECKSUM = "checksum"  # key of the checksum in a document

_GZIP_MAGIC = b"\x1f\x8b"  # first bytes of a gzip file

HOW_TO_INSTALL_NETWORKS = "networks and digits are in a wheel beside the library's: pip install trivgeo_networks-*.whl"
"""What to do where trained networks and digits of a release are missing."""

_PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".pdf", ".svg")


class StorageError(TrivgeoError):
    """A file cannot be written: the disk is full, or the folder is write-protected."""


class FolderInUseError(ConfigurationError):
    """Another run writes to the folder."""


@contextmanager
def recording() -> Iterator[dict[str, str]]:
    """Collect the checksums of all files that are read inside, by path."""
    found: dict[str, str] = {}
    token = _read.set(found)
    try:
        yield found
    finally:
        _read.reset(token)


def files_read() -> dict[str, str]:
    """Path and SHA-256 of every file read so far."""
    return dict(_read.get())


def read_bytes(path: str | Path) -> bytes:
    """The content of a file; its checksum is recorded, for the results depend on it.

    Raises:
        OSError: the file cannot be read.
    """
    content = Path(path).read_bytes()
    _read.get()[str(path)] = hashlib.sha256(content).hexdigest()
    return content


def decompressed(content: bytes, limit: int) -> bytes:
    """Content as it was before gzip, if it was compressed.

    Args:
        content: content of a file.
        limit: bytes that it may have; a small file can grow to any size.

    Raises:
        OSError: it is no whole gzip file (also ``EOFError`` or ``zlib.error``), or longer.
    """
    if not content.startswith(_GZIP_MAGIC):
        return content
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        found = file.read(limit + 1)
    if len(found) > limit:
        raise OSError(f"more than {limit} bytes when decompressed")
    return found


def checksum(path: str | Path) -> str:
    """The SHA-256 of a file that a library reads by its path; recorded as by `read_bytes`.

    Raises:
        OSError: the file cannot be read.
    """
    with Path(path).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    _read.get()[str(path)] = found
    return found


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader, or a kill at any moment, finds the old content or the new, nothing between.

    Raises:
        StorageError: it cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    with storage(path):
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def append(path: Path, text: str) -> None:
    """Add lines to a file and wait until they are on the disk.

    Raises:
        StorageError: they cannot be written; the lines before them stay.
    """
    with storage(path), path.open("a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def encoded(document: Mapping[str, Any], indent: int | None = None) -> str:
    """A mapping as JSON, with the checksum of the rest in it."""
    check = zlib.crc32(json.dumps(document).encode())
    return json.dumps({**document, _CHECKSUM: check}, indent=indent)


def decoded(text: str) -> dict[str, Any] | None:
    """The mapping behind a text of `encoded`; `None` for any other text."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and _is_intact(document, document.pop(_CHECKSUM, None)) else None


def _is_intact(document: Mapping[str, Any], check: object) -> bool:
    return check == zlib.crc32(json.dumps(document).encode())


def read_document(path: Path) -> dict[str, Any]:
    """The results of a test: those of a run, with their checksum, or those kept in the repository, without.

    Raises:
        ConfigurationError: they are damaged, or something else, or cannot be read.
    """
    try:
        document = json.loads(path.read_bytes().decode(errors="replace"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: expected the results of a test, whole: {error}") from error
    if isinstance(document, dict) and _CHECKSUM in document and not _is_intact(document, document.pop(_CHECKSUM)):
        raise ConfigurationError(
            f"{path}: expected the results of a test as they were written, got a file that does not match its checksum"
        )
    if not isinstance(document, dict) or "device" not in document or not _are_metrics(document.get("metrics")):
        raise ConfigurationError(f"{path}: expected the results of a test")
    rows = document.get("rows", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError(f"{path}: rows: expected the rows of a test")
    return document


def _are_metrics(metrics: object) -> bool:
    return isinstance(metrics, dict) and all(
        isinstance(spread, dict) and all(isinstance(spread.get(name), int | float) for name in ("mean", "std"))
        for spread in metrics.values()
    )


def make_folder(directory: Path) -> None:
    """Make a folder to write to, where there is none. Whoever made it may have put links there that lead elsewhere.

    Raises:
        ConfigurationError: a symbolic link lies in it.
        StorageError: it cannot be made, or is a file.
    """
    if directory.is_file():
        raise StorageError(f"{directory}: expected a folder to write to, got a file")
    with storage(directory):
        directory.mkdir(parents=True, exist_ok=True)
        linked = sorted(path.name for path in directory.iterdir() if path.is_symlink())
    if linked:
        raise ConfigurationError(f"{directory}: expected a folder without symbolic links, got one with {linked[0]!r}")


def hold(directory: Path, name: str = ".lock") -> FileLock:
    """Make a folder this run's own until the lock is released or the process ends, however it ends.

    Args:
        directory: the folder.
        name: name of the file of the lock; runs with other names may write to the same folder.

    Raises:
        FolderInUseError: another process holds it.
        ConfigurationError: it holds a symbolic link.
        StorageError: it cannot be written to.
    """
    make_folder(directory)
    with storage(directory):
        lock = FileLock(directory / name, thread_local=False)
        try:
            lock.acquire(blocking=False)
        except Timeout as error:
            raise FolderInUseError(
                f"{directory}: expected a folder that no other run writes to, got one that is in use"
            ) from error
    return lock


def check_picture_name(name: str, value: str | None) -> str | None:
    """The name of a picture inside the folder of a run.

    Raises:
        ConfigurationError: it names another folder, or none, or its suffix is none of a picture.
    """
    if value is not None and (value != Path(value).name or "\\" in value or "\0" in value or value in ("", ".", "..")):
        raise ConfigurationError(f"{name}: expected the name of a file, without folders, got {value!r}")
    if value is not None and not value.lower().endswith(_PICTURE_SUFFIXES):
        raise ConfigurationError(f"{name}: expected a name that ends in {', '.join(_PICTURE_SUFFIXES)}, got {value!r}")
    return value


def write_picture(figure: Any, path: str | Path, dpi: int) -> None:
    """Write a figure of Matplotlib to a file, which is whole or as it was.

    Raises:
        StorageError: it cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    with storage(path):
        figure.savefig(temporary, dpi=dpi, format=path.suffix.removeprefix(".").lower())
        temporary.replace(path)


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` inside into a `StorageError` about this path."""
    try:
        yield
    except TrivgeoError:
        raise
    except (OSError, ValueError) as error:  # a path with NUL is a ValueError
        with contextlib.suppress(OSError, ValueError):
            path.with_name(path.name + ".tmp").unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise StorageError(f"{path}: expected a file that can be written: {reason}") from error
