"""Files of trained networks: safetensors with all that rebuilds the network in the header, found by name or path.

A name stands for the file in `tasks/checkpoints/` where the repository holds one, else for the file in the folder of
trained checkpoints: TRIVGEO_CHECKPOINTS, by default `runs/checkpoints` in the working folder, like all that runs write.
The file `tasks/checkpoints/manifest.json` lists every name with the configuration that trains it, what was measured,
and the checksum of the file measured.

The header says `network`, the class path; `architecture`, its constructor arguments; `metadata`, what was measured and
with what; and of a learned score `score`: its group and its noise. Files of earlier releases are read as well, and
`python -m tasks convert FILE ...` writes them anew.
"""

import importlib
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from lightning.pytorch.utilities import rank_zero_info
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tasks.files import checksum
from tasks.legacy import modern_header
from trivgeo.errors import CheckpointError

FOLDER_VARIABLE = "TRIVGEO_CHECKPOINTS"
"""Environment variable that names the folder of trained checkpoints."""

_COMMITTED = Path(__file__).with_name("checkpoints")
_MANIFEST = _COMMITTED / "manifest.json"
_SUFFIX = ".safetensors"


class Network(nn.Module, ABC):
    """A network that a checkpoint can hold."""

    @property
    @abstractmethod
    def architecture(self) -> dict[str, Any]:
        """Constructor arguments that rebuild a network of this shape (plain types)."""

    def initialise(self, seed: int) -> None:
        """Draw initial weights in place, a function of the seed alone, by `initialise`."""
        initialise(self, torch.Generator().manual_seed(seed))


def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Draw initial weights in place: normal with variance 2 / fan_in (He et al., 2015), biases zero.

    Parameters of one dimension that are no biases, those of normalisation, keep what their constructor gave.
    """
    for name, parameter in network.named_parameters():
        if parameter.ndim > 1:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu", generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


NetworkT = TypeVar("NetworkT", bound=Network)


@dataclass(frozen=True)
class Loaded(Generic[NetworkT]):
    """A trained network.

    Attributes:
        network: on the CPU, in the dtype of the file, in evaluation mode, its parameters constant (no gradients).
        metadata: what it was saved with: metrics, seed, versions.
        score: what a learned score was saved with, see `tasks.learned.describe`; `None` for other networks.
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
    if name.endswith(_SUFFIX):
        return Path(name)
    committed = _COMMITTED / f"{name}{_SUFFIX}"
    return committed if committed.exists() else trained_path(name)


def trained_path(name: str) -> Path:
    """Where training puts the file of a name (or the path itself, if it ends in `.safetensors`)."""
    if name.endswith(_SUFFIX):
        return Path(name)
    return Path(os.environ.get(FOLDER_VARIABLE) or "runs/checkpoints") / f"{name}{_SUFFIX}"


def manifest() -> dict[str, dict[str, Any]]:
    """The entries of the manifest: `config`, `sha256` and `metrics` for every name."""
    return json.loads(_MANIFEST.read_text())


def save_checkpoint(
    network: Network, path: str | Path, metadata: Mapping[str, Any], score: Mapping[str, Any] | None = None
) -> None:
    """Write a network to a safetensors file with its architecture and metadata in the header.

    Args:
        network: the network.
        path: the file; missing parent folders are created.
        metadata: what JSON can hold.
        score: of a learned score, see `tasks.learned.describe`.

    Raises:
        CheckpointError: the metadata cannot be written as JSON.
    """
    kind = type(network)
    entries = {"architecture": network.architecture, "metadata": dict(metadata)}
    if score is not None:
        entries["score"] = dict(score)
    try:
        header = {"network": f"{kind.__module__}.{kind.__qualname__}"}
        header |= {name: json.dumps(entry) for name, entry in entries.items()}
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
        kind: the class that it must have, or one that this is derived from.
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
    header = modern_header(path, header)
    found = _class(path, header.get("network"), kind)
    architecture, metadata = (_read_header(path, header, key) for key in ("architecture", "metadata"))
    score = _read_header(path, header, "score") if "score" in header else None
    try:
        network = found(**architecture)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: the header's architecture {architecture} is no {found.__name__}: {error}"
        ) from error
    _fit(path, network, tensors)
    sha256 = checksum(path)
    entry = None if name.endswith(_SUFFIX) else manifest().get(name)
    listed = entry is not None and entry["sha256"] == sha256
    if entry is not None and not listed:
        rank_zero_info(f"{path}: not the file of the manifest but one trained again; its figures may differ a little")
    return Loaded(network.eval().requires_grad_(False), metadata, score, sha256, listed)


def convert(path: str | Path) -> None:
    """Write a file of an earlier release in the form of today; the tensors and what was measured stay.

    Args:
        path: the file, which is replaced.

    Raises:
        CheckpointError: see `load_checkpoint`.
    """
    loaded = load_checkpoint(Network, str(path))  # type: ignore[type-abstract]
    save_checkpoint(loaded.network, path, loaded.metadata, loaded.score)


def _class(path: Path, name: str | None, kind: type[NetworkT]) -> type[NetworkT]:
    """The class of a class path, if it is a `kind`."""
    if name is None:
        raise CheckpointError(f"{path}: expected a {kind.__name__}, got no network of this library")
    module, _, attribute = name.rpartition(".")
    try:
        found = vars(importlib.import_module(module)).get(attribute)
    except (ImportError, ValueError) as error:
        raise CheckpointError(f"{path}: expected a {kind.__name__}, got {name}: {error}") from error
    if not isinstance(found, type) or not issubclass(found, kind):
        raise CheckpointError(f"{path}: expected a {kind.__name__}, got {attribute}")
    return found


def _fit(path: Path, network: Network, tensors: Mapping[str, Tensor]) -> None:
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:
        network.to(dtypes.pop())
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


def main(files: Sequence[str]) -> None:
    """Convert files and say so.

    Args:
        files: the command line after `convert`.
    """
    for file in files:
        convert(file)
        sys.stdout.write(f"{file}: sha256 {checksum(file)}\n")
