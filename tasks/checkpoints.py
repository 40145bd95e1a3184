"""Files of trained networks: safetensors with all that rebuilds the network in the header, found by name or path.

A name stands for the file in `tasks/checkpoints/` where the repository holds one, else for the file in the folder of
trained checkpoints: TRIVGEO_CHECKPOINTS, by default `runs/checkpoints` in the working folder, like all that runs write.
The file `tasks/checkpoints/manifest.json` lists every name with the configuration that trains it, measured metrics,
and the checksum of the file measured.

The header says `network`, the class path; `architecture`, its constructor arguments; `metadata`, measured metrics and
versions; and of a learned score `score`, its group and its noise.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from lightning.pytorch.utilities import rank_zero_info

from trivgeo.errors import CheckpointError
from trivgeo.networks import Network, NetworkFile, read_file, write_file

from .files import HOW_TO_INSTALL_NETWORKS, checksum

FOLDER_VARIABLE = "TRIVGEO_CHECKPOINTS"
"""Environment variable that names the folder of trained checkpoints."""

_COMMITTED = Path(__file__).with_name("checkpoints")
_MANIFEST = _COMMITTED / "manifest.json"
SUFFIX = ".safetensors"
"""Of the files of networks."""


NetworkT = TypeVar("NetworkT", bound=Network)


@dataclass(frozen=True)
class Loaded(Generic[NetworkT]):
    """A trained network.

    Attributes:
        network: on the CPU, in the dtype of the file, in evaluation mode, its parameters constant (no gradients).
        metadata: metrics, seed and versions of the training.
        score: group and noise of a learned score, see
            `trivgeo.inversion.learned.score_files.describe`; `None` for other networks.
        sha256: checksum of the file.
        listed: whether that is the checksum in the manifest; a network trained again has another.
    """

    network: NetworkT
    metadata: dict[str, Any]
    score: dict[str, Any] | None
    sha256: str
    listed: bool


def checkpoint_path(name: str) -> Path:
    """Where the file of a name is, or would be.

    Args:
        name: a name of the manifest, or the path of a file that ends in `.safetensors`.
    """
    if name.endswith(SUFFIX):
        return Path(name)
    committed = _COMMITTED / f"{name}{SUFFIX}"
    return committed if committed.exists() else trained_path(name)


def trained_path(name: str) -> Path:
    """Where training puts the file of a name (or the path itself, if it ends in `.safetensors`)."""
    if name.endswith(SUFFIX):
        return Path(name)
    return Path(os.environ.get(FOLDER_VARIABLE) or "runs/checkpoints") / f"{name}{SUFFIX}"


def manifest() -> dict[str, dict[str, Any]]:
    """The entries of the manifest: `config`, `sha256` and `metrics` for every name."""
    return json.loads(_MANIFEST.read_text())


def save_checkpoint(
    network: Network, path: str | Path, metadata: Mapping[str, Any], score: Mapping[str, Any] | None = None
) -> None:
    """Write a network to a safetensors file with its architecture and metadata in the header.

    Args:
        network: the network.
        path: see `trivgeo.networks.write_file`.
        metadata: values that JSON can hold.
        score: description of a learned score, see `trivgeo.inversion.learned.score_files.describe`.

    Raises:
        CheckpointError: the metadata cannot be written as JSON.
    """
    entries = {"metadata": metadata} if score is None else {"metadata": metadata, "score": score}
    write_file(network, path, entries)


def checkpoint_file(name: str) -> tuple[NetworkFile, str, bool]:
    """The file of a name, its checksum, and whether it is the one of the manifest.

    Raises:
        CheckpointError: the file is missing (the message says which command trains it) or unreadable.
    """
    path = checkpoint_path(name)
    if not path.exists():
        raise CheckpointError(_missing(name, path))
    file = read_file(path)
    entry, sha256 = None if name.endswith(SUFFIX) else manifest().get(name), checksum(path)
    listed = entry is not None and entry["sha256"] == sha256
    if entry is not None and not listed:
        rank_zero_info(f"{path}: not the file of the manifest but one trained again; its figures may differ a little")
    return file, sha256, listed


def load_checkpoint(kind: type[NetworkT], name: str) -> Loaded[NetworkT]:
    """Read a trained network.

    Args:
        kind: see `trivgeo.networks.NetworkFile.build`.
        name: a name of the manifest, or the path of a `.safetensors` file.

    Raises:
        CheckpointError: the file is missing (the message says which command trains it) or unreadable, holds a
            network of another class, or its tensors do not fit the architecture of its header.
    """
    file, sha256, listed = checkpoint_file(name)
    file, _ = file.split("calibration")  # left out: the calibration of an inverter that was written with the network
    network, metadata = file.build(kind), file.entry("metadata")
    score = file.entry("score") if "score" in file.header else None
    return Loaded(network, metadata, score, sha256, listed)


def _missing(name: str, path: Path) -> str:
    if name.endswith(SUFFIX):
        return f"{path}: expected a readable safetensors file, there is none"
    entries = manifest()
    if name not in entries:
        trained = {file.stem for file in path.parent.glob(f"*{SUFFIX}")}
        names = ", ".join(sorted(entries.keys() | trained))
        return f"checkpoint: expected one of {names}, or the path of a {SUFFIX} file, got {name!r}"
    apart = "" if any(_COMMITTED.glob(f"*{SUFFIX}")) else f"; {HOW_TO_INSTALL_NETWORKS}"
    config = entries[name]["config"].removeprefix("tasks/configs/").removesuffix(".yaml")
    return f"{name}: {path} is missing; train it with: trivgeo fit --config {config}{apart}"
