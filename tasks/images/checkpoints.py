"""Files of trained image networks: safetensors with the architecture in the header, found by name.

A name stands for the file in `tasks/checkpoints/` where the repository holds one, else for the file in the folder of
trained checkpoints: TRIVGEO_CHECKPOINTS, by default `runs/checkpoints` in the checkout. The file
`tasks/checkpoints/manifest.json` lists every name with the configuration that trains it, what was measured, and the
checksum of the file measured.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from lightning.pytorch.utilities import rank_zero_info
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tasks.images.models import ImageNetwork
from trivgeo.errors import CheckpointError

FOLDER_VARIABLE = "TRIVGEO_CHECKPOINTS"
"""Environment variable that names the folder of trained checkpoints."""

_ROOT = Path(__file__).parents[2]
_COMMITTED = _ROOT / "tasks" / "checkpoints"
_MANIFEST = _COMMITTED / "manifest.json"
_SUFFIX = ".safetensors"
_NETWORK_KEY = "image.network"
_ARCHITECTURE_KEY = "image.architecture"
_METADATA_KEY = "image.metadata"

NetworkT = TypeVar("NetworkT", bound=ImageNetwork)


@dataclass(frozen=True)
class Loaded(Generic[NetworkT]):
    """A trained network.

    Attributes:
        network: on the CPU, in evaluation mode, its parameters constant (no gradients).
        metadata: what it was saved with: metrics, seed, versions.
        sha256: checksum of the file.
        listed: whether that is the checksum in the manifest; a network trained again has another.
    """

    network: NetworkT
    metadata: dict[str, Any]
    sha256: str
    listed: bool


def checkpoint_path(name: str) -> Path:
    """Where the file of a name is, or would be.

    Args:
        name: a name of the manifest, or the path of a file that ends in `.safetensors`.
    """
    if name.endswith(_SUFFIX):
        return Path(name)
    committed = _COMMITTED / f"{name}{_SUFFIX}"
    return committed if committed.exists() else trained_path(name)


def trained_path(name: str) -> Path:
    """Where training puts the file of a name (or the path itself, if it ends in `.safetensors`)."""
    if name.endswith(_SUFFIX):
        return Path(name)
    return Path(os.environ.get(FOLDER_VARIABLE) or _ROOT / "runs" / "checkpoints") / f"{name}{_SUFFIX}"


def manifest() -> dict[str, dict[str, Any]]:
    """The entries of the manifest: `config`, `sha256` and `metrics` for every name."""
    return json.loads(_MANIFEST.read_text())


def save_checkpoint(network: ImageNetwork, path: str | Path, metadata: Mapping[str, Any]) -> None:
    """Write a network to a safetensors file with its architecture and metadata in the header.

    Args:
        network: the network.
        path: the file; missing parent folders are created.
        metadata: what JSON can hold.

    Raises:
        CheckpointError: the metadata cannot be written as JSON.
    """
    try:
        header = {
            _NETWORK_KEY: type(network).__name__,
            _ARCHITECTURE_KEY: json.dumps(network.architecture),
            _METADATA_KEY: json.dumps(dict(metadata)),
        }
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"metadata must be plain JSON types: {error}") from error
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    temporary = path.with_suffix(".tmp")
    save_file(tensors, temporary, metadata=header)
    temporary.replace(path)


def load_checkpoint(kind: type[NetworkT], name: str) -> Loaded[NetworkT]:
    """Read a trained network.

    Args:
        kind: the class that it must have.
        name: a name of the manifest, or the path of a `.safetensors` file.

    Raises:
        CheckpointError: the file is missing (the message says which command trains it) or unreadable, holds a
            network of another class, or its tensors do not fit the architecture of its header.
    """
    path = checkpoint_path(name)
    if not path.exists():
        raise CheckpointError(_missing(name, path))
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header: dict[str, str] = file.metadata() or {}
            tensors: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: expected a readable safetensors file: {error}") from error
    if header.get(_NETWORK_KEY) != kind.__name__:
        raise CheckpointError(
            f"{path}: expected a {kind.__name__}, got {header.get(_NETWORK_KEY) or 'no image network'}"
        )
    architecture, metadata = (_read_header(path, header, key) for key in (_ARCHITECTURE_KEY, _METADATA_KEY))
    try:
        network = kind(**architecture)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: the header's architecture {architecture} is no {kind.__name__}: {error}"
        ) from error
    _fit(path, network, tensors)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    entry = None if name.endswith(_SUFFIX) else manifest().get(name)
    listed = entry is not None and entry["sha256"] == sha256
    if entry is not None and not listed:
        rank_zero_info(f"{path}: not the file of the manifest but one trained again; its figures may differ a little")
    return Loaded(network.eval().requires_grad_(False), metadata, sha256, listed)


def _fit(path: Path, network: ImageNetwork, tensors: Mapping[str, Tensor]) -> None:
    expected = {name: (list(tensor.shape), tensor.dtype) for name, tensor in network.state_dict().items()}
    found = {name: (list(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    faults = [f"missing {name} {expected[name]}" for name in expected.keys() - found.keys()]
    faults += [f"unexpected {name} {found[name]}" for name in found.keys() - expected.keys()]
    faults += [
        f"{name}: expected {expected[name]}, got {found[name]}"
        for name in expected.keys() & found.keys()
        if expected[name] != found[name]
    ]
    if faults:
        raise CheckpointError(f"{path}: tensors do not fit the header's architecture: " + "; ".join(sorted(faults)))
    network.load_state_dict(dict(tensors))


def _missing(name: str, path: Path) -> str:
    if name.endswith(_SUFFIX):
        return f"{path}: expected a readable safetensors file, there is none"
    entries = manifest()
    if name not in entries:
        return (
            f"checkpoint: expected one of {', '.join(sorted(entries))}, or the path of a {_SUFFIX} file, got {name!r}"
        )
    return f"{name}: {path} is missing; train it with: python -m tasks fit --config {entries[name]['config']}"


def _read_header(path: Path, header: Mapping[str, str], key: str) -> dict[str, Any]:
    try:
        value = json.loads(header[key])
    except (KeyError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: expected {key!r} in the safetensors header, as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected header entry {key!r} to be an object, got {type(value).__name__}")
    return value
