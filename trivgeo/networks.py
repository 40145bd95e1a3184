"""Networks in files: safetensors, with all that rebuilds the network in the header."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trivgeo._applications import importable, is_ours, portable
from trivgeo.checks import checked
from trivgeo.errors import CheckpointError, TrivgeoError

_FACTORY_NAMES = ("empty", "zeros", "ones", "full", "rand", "randn", "randint")  # each has a variant "..._like"
_FACTORIES = frozenset(
    {
        *(getattr(torch, name) for name in (*_FACTORY_NAMES, *(f"{name}_like" for name in _FACTORY_NAMES))),
        *(getattr(torch, name) for name in ("arange", "linspace", "logspace", "eye", "empty_strided", "randperm")),
        *(getattr(Tensor, name) for name in ("new_empty", "new_zeros", "new_ones", "new_full")),
    }
)


class AllocationError(Exception):
    """More memory was asked for than is allowed."""


class BoundedAllocation(TorchFunctionMode):
    """Context in which torch's factories raise before they create more or larger tensors; results do not count.

    Args:
        num_bytes: largest size of all tensors together.
        num_tensors: largest number of tensors.

    Raises:
        AllocationError: (inside) a factory would exceed a bound.
    """

    def __init__(self, num_bytes: int, num_tensors: int) -> None:
        super().__init__()
        self._bytes, self._tensors = num_bytes, num_tensors

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in _FACTORIES:
            kept = {name: x for name, x in given.items() if name not in ("generator", "out", "pin_memory")}
            with suppress(RuntimeError, TypeError, ValueError):  # bad arguments: the call below raises, too
                self._bytes -= func(*args, **{**kept, "device": "meta"}).nbytes  # the meta device allocates nothing
            self._tensors -= 1
            if self._bytes < 0 or self._tensors < 0:
                raise AllocationError(f"{func.__name__}{tuple(args)}")
        return func(*args, **given)


_CHECKSUM_KEY = "checksum"  # key of the header
# A network may create tables beside its weights: number and bytes of its tensors are bounded by `_TABLE_FACTOR` times
# the number and bytes of the tensors in the file plus these allowances.
_TABLE_FACTOR = 8
_ALLOWED_TENSORS = 100
_ALLOWED_BYTES = 2**24
_FLOAT_DTYPES = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
_FILE_DTYPES = _FLOAT_DTYPES | {torch.int64, torch.int32, torch.uint8, torch.bool}


@checked
class Network(nn.Module, ABC):
    """Network that a file can hold: `architecture` has the arguments that rebuild it."""

    @property
    @abstractmethod
    def architecture(self) -> dict[str, Any]:
        """Constructor arguments that rebuild a network of this shape (plain types)."""

    def initialise(self, seed: int) -> None:
        """Draw initial weights in place by the function `initialise`; they depend on the seed alone."""
        initialise(self, torch.Generator().manual_seed(seed))


def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Draw initial weights in place: normal with variance 2 / fan_in (He et al. 2015), biases zero.

    Other parameters of one dimension, those of normalisation, keep their values. Numbers are drawn on the device of the
    generator, so that they are the same for a network on any device.
    """
    for name, parameter in network.named_parameters():
        if parameter.ndim > 1:
            drawn = torch.empty_like(parameter, device=generator.device, requires_grad=False)
            nn.init.kaiming_normal_(drawn, nonlinearity="relu", generator=generator)
            parameter.detach().copy_(drawn)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


NetworkT = TypeVar("NetworkT", bound=Network)
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class HeaderEntry(dict[str, Any]):
    """An entry of a file's header, a JSON object, whose numbers are checked where they are read.

    Args:
        source: what messages call the file.
        key: name of the entry.
        entry: the object.
    """

    def __init__(self, source: object, key: str, entry: Mapping[str, Any]) -> None:
        super().__init__(entry)
        self.source, self.key = source, key

    def number(self, name: str, wanted: str, holds: Callable[[float], bool], default: float | None = None) -> float:
        """Return a number of the entry.

        Args:
            name: its key.
            wanted: what is expected, for the message.
            holds: whether a number, which is not NaN but may be infinite, is as expected.
            default: the number where there is none, as in files of older versions; ``None`` to refuse these.

        Raises:
            CheckpointError: there is no such number.
        """
        value: Any = self.get(name, default)
        if not _is_number(value) or not holds(value):
            raise self._error(name, wanted, value)
        return float(value)

    def count(self, name: str, least: int = 0) -> int:
        """Return a whole number of the entry, at least ``least``; see `number`."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._error(name, f"a whole number, at least {least},", value)
        return value

    def numbers(
        self,
        name: str,
        wanted: str,
        holds: Callable[[float], bool] = math.isfinite,
        lengths: Sequence[int] = (),
    ) -> list[Any]:
        """Return a list of numbers of the entry, or of lists of them; see `number`.

        Args:
            lengths: lengths of the list that are allowed; empty for any.
        """
        value = self.get(name)
        if not isinstance(value, list) or (lengths and len(value) not in lengths) or not _all_numbers(value, holds):
            raise self._error(name, wanted, value)
        return value

    def counts(self, name: str) -> list[int]:
        """Return a list of whole numbers of the entry that are not negative; see `number`."""
        value = self.get(name)
        if not isinstance(value, list) or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in value):
            raise self._error(name, "whole numbers that are not negative", value)
        return value

    def check_finite(self, name: str) -> None:
        """Check that no number in a part of the entry is NaN or infinite; see `number`."""
        value = self.get(name)
        if not _all_numbers(value, math.isfinite, is_plain=False):
            raise self._error(name, "finite numbers", value)

    def _error(self, name: str, wanted: str, value: Any) -> CheckpointError:
        return CheckpointError(
            f"{self.source}: expected {wanted} for {name!r} of {self.key!r} in the header, got {value!r:.200}"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _all_numbers(value: Any, holds: Callable[[float], bool], is_plain: bool = True) -> bool:
    """Whether all numbers in lists and objects are as expected, and, of a plain list, nothing else is there."""
    if isinstance(value, list):
        return all(_all_numbers(x, holds, is_plain) for x in value)
    if isinstance(value, dict) and not is_plain:
        return all(_all_numbers(x, holds, is_plain) for x in value.values())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _is_number(value) and holds(value)
    return not is_plain


@dataclass(frozen=True)
class NetworkFile:
    """Contents of a safetensors file of a network.

    Attributes:
        path: path of the file.
        header: entries of text, all but ``network`` in JSON, see `entry`.
        tensors: the weights and buffers by name.
    """

    path: Path
    header: dict[str, str]
    tensors: dict[str, Tensor]

    def entry(self, key: str) -> HeaderEntry:
        """Return the entry ``key`` of the header, a JSON object.

        Raises:
            CheckpointError: the entry is missing, or no JSON object.
        """
        if key not in self.header:
            raise CheckpointError(
                f"{self.path}: expected {key!r} in the safetensors header, got a file of another kind"
            )
        try:
            value = json.loads(self.header[key])
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{self.path}: expected {key!r} in the safetensors header, as JSON: {error}"
            ) from error
        if not isinstance(value, dict):
            raise CheckpointError(
                f"{self.path}: expected header entry {key!r} to be an object, got {type(value).__name__}"
            )
        return HeaderEntry(self.path, key, value)

    def split(self, prefix: str) -> tuple[NetworkFile, dict[str, Tensor]]:
        """Return the file without the tensors of another module in it, and these tensors by names without the prefix.

        Args:
            prefix: beginning of the names of the other module's tensors, without the dot.
        """
        start = f"{prefix}."
        mine = {name: tensor for name, tensor in self.tensors.items() if not name.startswith(start)}
        others = {name.removeprefix(start): tensor for name, tensor in self.tensors.items() if name.startswith(start)}
        return replace(self, tensors=mine), others

    def build(self, kind: type[NetworkT]) -> NetworkT:
        """The network, an instance of ``kind``, in evaluation mode, with parameters that need no gradients.

        Raises:
            CheckpointError: the file holds a network of another class, or its tensors do not fit its architecture.
        """
        found, architecture = self._class(kind), self.entry("architecture")
        for name in architecture:
            architecture.check_finite(name)
        try:
            with self.bounded():
                network = found(**architecture)
        except TrivgeoError as error:
            raise CheckpointError(
                f"{self.path}: expected an architecture in the header, {architecture} is no {found.__name__}: {error}"
            ) from error
        return self.fill(network)

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Context that refuses to create a network that is far larger than the tensors of the file.

        Raises:
            CheckpointError: (inside) much more memory is asked for, or a network of these sizes cannot be made.
        """
        size = sum(tensor.nbytes for tensor in self.tensors.values())
        try:
            with BoundedAllocation(
                _TABLE_FACTOR * (size + _ALLOWED_BYTES), _TABLE_FACTOR * (len(self.tensors) + _ALLOWED_TENSORS)
            ):
                yield
        except AllocationError as error:
            raise CheckpointError(
                f"{self.path}: expected a header for tensors of {size} bytes, got that of a larger network: {error}"
            ) from error
        except TrivgeoError:
            raise
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:  # bad sizes
            reason, *_ = str(error).splitlines() or [type(error).__name__]
            raise CheckpointError(f"{self.path}: expected the header of a network: {reason}") from error

    def fill(self, network: ModuleT) -> ModuleT:
        """Put the tensors into a network, and return it in evaluation mode, with parameters that need no gradients.

        Raises:
            CheckpointError: tensors are missing, or have other names, shapes or dtypes.
        """
        dtypes = {tensor.dtype for tensor in self.tensors.values() if tensor.is_floating_point()}
        if len(dtypes) == 1:
            network.to(dtypes.pop())
        expected = {name: (list(tensor.shape), tensor.dtype) for name, tensor in network.state_dict().items()}
        found = {name: (list(tensor.shape), tensor.dtype) for name, tensor in self.tensors.items()}
        faults = [f"missing {name} {expected[name]}" for name in expected.keys() - found.keys()]
        faults += [f"unexpected {name} {found[name]}" for name in found.keys() - expected.keys()]
        faults += [
            f"{name}: expected {expected[name]}, got {found[name]}"
            for name in expected.keys() & found.keys()
            if expected[name] != found[name]
        ]
        if faults:
            raise CheckpointError(
                f"{self.path}: tensors do not fit the header's architecture: " + "; ".join(sorted(faults))
            )
        network.load_state_dict(dict(self.tensors))
        return network.eval().requires_grad_(False)

    def _class(self, kind: type[NetworkT]) -> type[NetworkT]:
        """The class of the network in the header, which must be a ``kind``."""
        name = self.header.get("network")
        if name is None:
            raise CheckpointError(
                f"{self.path}: expected a network of class {kind.__name__}, got no network of this library"
            )
        module, _, attribute = importable(name).rpartition(".")
        # importing runs code: modules of this project are imported, others must have been imported by the program
        if is_ours(module) and module not in sys.modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise CheckpointError(
                    f"{self.path}: expected a network of class {kind.__name__}, got {name}: {error}"
                ) from error
        if module not in sys.modules:
            raise CheckpointError(
                f"{self.path}: expected a network of class {kind.__name__}, got {name[:80]}, whose module this "
                f"program has not imported: write 'import {module[:80]}' first, or 'imports: [{module[:80]}]' in a "
                "configuration"
            )
        found = vars(sys.modules[module]).get(attribute)
        if not isinstance(found, type) or not issubclass(found, kind):
            raise CheckpointError(f"{self.path}: expected a network of class {kind.__name__}, got {attribute}")
        return found


def class_path(network: nn.Module) -> str:
    """Return the dotted path of the class of a network that files hold."""
    kind = type(network)
    return portable(f"{kind.__module__}.{kind.__qualname__}")


def write_file(
    network: nn.Module,
    path: str | Path,
    entries: Mapping[str, Mapping[str, Any]],
    others: Mapping[str, nn.Module] = MappingProxyType({}),
) -> None:
    """Write the state of a network to a safetensors file; a `Network` with its class and architecture.

    An existing file is replaced only by a complete one.

    Args:
        path: the file; missing parent folders are created.
        entries: further entries of the header, of plain types.
        others: further modules by name whose state the file holds, see `NetworkFile.split`.

    Raises:
        CheckpointError: an entry cannot be written as JSON, or the path is a folder or cannot be written to.
    """
    path = Path(path)
    if isinstance(network, Network):
        entries = {"architecture": network.architecture, **entries}
    header = {"network": class_path(network)} if isinstance(network, Network) else {}
    try:
        header |= {name: json.dumps(dict(entry)) for name, entry in entries.items()}
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: expected {', '.join(entries)} of plain JSON types: {error}") from error
    states = dict(network.state_dict())
    for prefix, module in others.items():
        states |= {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in states.items()}
    places: set[int] = set()
    for name, tensor in tensors.items():  # the format refuses tensors that share memory, such as tied weights
        place = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if place in places else tensor
        places.add(place)
    with beside(path) as temporary:
        save_file(tensors, temporary, metadata={**header, _CHECKSUM_KEY: content_hash(header, tensors)})
        temporary.replace(path)


def check_destination(path: str | Path) -> None:
    """Check that `write_file` can write to a path, before long work.

    Raises:
        CheckpointError: the path is a folder or cannot be written to.
    """
    with beside(path) as temporary:
        temporary.touch()


@contextmanager
def beside(path: str | Path) -> Iterator[Path]:
    """A temporary file in a new folder beside the path, to be written first and then moved to the path.

    Raises:
        CheckpointError: (inside) an ``OSError``, a ``ValueError`` or a ``SafetensorError`` is raised.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise CheckpointError(f"{path}: expected a file, got a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as folder:
            yield Path(folder) / path.name
    except CheckpointError:
        raise
    except (OSError, ValueError, SafetensorError) as error:  # a path with NUL is a ValueError
        raise CheckpointError(f"{path}: expected a file that can be written: {error}") from error


def read_file(path: str | Path, *, has_checksum: bool = False) -> NetworkFile:
    """Read a safetensors file on the CPU, without running code in it.

    Args:
        path: the file.
        has_checksum: whether the file must have a checksum, as files of `write_file` have since version 0.2.

    Raises:
        CheckpointError: the file is missing, unreadable or damaged, or a tensor in it holds NaN or infinity.
    """
    path = Path(path)
    if not os.path.isfile(path):  # false where `Path.is_file` raises: names too long
        raise CheckpointError(f"{path}: expected a readable safetensors file, there is none")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header: dict[str, str] = file.metadata() or {}
            tensors: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: expected a readable safetensors file: {error}") from error
    if strange := {x.dtype for x in tensors.values()} - _FILE_DTYPES:
        raise CheckpointError(f"{path}: expected tensors of the usual dtypes, got {', '.join(map(str, strange))}")
    tensors = check_weights(path, tensors)
    written = header.pop(_CHECKSUM_KEY, None)
    if written is None and has_checksum:
        raise CheckpointError(f"{path}: expected a file with its checksum, got a file without its checksum")
    if written is not None and written != content_hash(header, tensors):
        raise CheckpointError(f"{path}: expected a file that matches its checksum, got a damaged one")
    return NetworkFile(path, header, tensors)


def content_hash(header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of header and tensors: a single changed bit of a weight or a setting makes another hash."""
    digest = hashlib.sha256(json.dumps(dict(header), sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        digest.update(tensors[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_weights(source: object, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a state by name if all numbers in its tensors are finite.

    Weights that are not finite would make a network predict NaN, or one class for all data. Messages call the state
    ``source``.

    Raises:
        CheckpointError: a tensor holds NaN or infinity.
    """
    for name, x in tensors.items():
        if isinstance(x, Tensor) and (bad := int((~torch.isfinite(x)).sum())):
            raise CheckpointError(f"{source}: expected finite weights, got {bad} NaN or infinite numbers in {name}")
    return dict(tensors)
