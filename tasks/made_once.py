"""Tensors that are costly to make, such as solutions by a solver: one process makes the file, all others read it."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors.torch import load_file, save_file
from torch import Tensor

from .files import storage
from .run_identity import source

FOLDER_VARIABLE = "TRIVGEO_CACHE"
"""Environment variable that names the folder of the files; default: `runs/cache` in the working folder."""


def made_once(
    kind: str,
    made_from: Any,
    make: Callable[[], dict[str, Tensor]],
    classes: Iterable[type] = (),
    cache: str | Path | None = None,
) -> dict[str, Tensor]:
    """Tensors by name, from a file if there is one, else made, and written for other processes and later runs.

    Processes that need them at the same time wait for the one that makes them. The name of the file holds a hash of all
    that they depend on, with the source of this library, and of the modules of the classes if these are the user's.

    Args:
        kind: beginning of the name of the file.
        made_from: numbers, texts, tensors and data classes that determine the tensors. They are made anew each time if
            it holds something else.
        make: function that makes the tensors.
        classes: classes whose source they depend on.
        cache: folder of the file; default: that of `FOLDER_VARIABLE`.

    Raises:
        StorageError: the file cannot be written.
    """
    try:
        text = json.dumps([made_from, source([x.__module__ for x in classes])], sort_keys=True, default=_plain_values)
    except TypeError:
        return make()
    folder = Path(os.environ.get(FOLDER_VARIABLE) or "runs/cache") if cache is None else Path(cache)
    path = folder / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                temporary = path.with_suffix(".tmp")
                save_file({name: x.contiguous() for name, x in make().items()}, temporary)
                temporary.replace(path)
    return load_file(path)


def _plain_values(value: Any) -> Any:
    """Numbers and texts that determine a tensor or an instance of a data class.

    Raises:
        TypeError: the value is something else.
    """
    if isinstance(value, Tensor):
        return [str(value.dtype), value.tolist()]
    if is_dataclass(value) and not isinstance(value, type):
        return [str(type(value)), vars(value)]
    raise TypeError(f"expected something made of numbers and texts, got {value!r}")
