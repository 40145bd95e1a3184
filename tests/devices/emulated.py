"""An emulated device, "emulated": values in host memory, and errors where tensors of the CPU are mixed in, as on CUDA.

It is built from `emulated.cpp` once for each version of torch, in some fifteen seconds, and kept in the user's cache.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from filelock import FileLock
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry

__all__ = ["NAME", "EmulatedAccelerator", "load"]

NAME = "emulated"
_SOURCE = Path(__file__).with_name("emulated.cpp")
_BUILD_SECONDS = 300


@functools.cache
def load() -> torch.device:
    """Return the device, built if need be; torch has one such device, for the rest of the process.

    Raises:
        RuntimeError: there is no compiler, or it fails.
    """
    torch.ops.load_library(_library())
    torch.utils.rename_privateuse1_backend(NAME)
    # what torch asks of the module of a device
    module = ModuleType(f"torch.{NAME}")
    answers = {
        "_is_in_bad_fork": False,
        "_lazy_init": None,
        "current_device": 0,
        "device_count": 1,
        "get_amp_supported_dtype": [torch.bfloat16, torch.float16],
        "is_available": True,
        "is_initialized": True,
        "manual_seed_all": None,
        "synchronize": None,
    }
    for name, answer in answers.items():
        setattr(module, name, functools.partial(_return, answer))
    torch._register_device_module(NAME, module)
    AcceleratorRegistry.register(NAME, EmulatedAccelerator)
    return torch.device(NAME, 0)


def _return(answer: object, *arguments: object) -> object:
    return answer


def _library() -> Path:
    """Build the library, unless one of this source and this torch is there."""
    key = hashlib.sha256(f"{torch.__version__} {_SOURCE.read_text()}".encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trivgeo-tests"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{NAME}-{key}.so"
    with FileLock(folder / f"{NAME}-{key}.lock"):
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                _compile(Path(temporary) / library.name).replace(library)
    return library


def _compile(library: Path) -> Path:
    torch_folder = Path(torch.__file__).parent
    command = [
        os.environ.get("CXX", "g++"),
        *("-O1", "-std=c++20", "-fPIC", "-shared", "-w", str(_SOURCE), "-o", str(library)),
        f"-I{torch_folder / 'include'}",
        f"-I{torch_folder / 'include/torch/csrc/api/include'}",
        *(f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
    if result.returncode:
        raise RuntimeError(f"the emulated device cannot be built by {command[0]}: {result.stderr[-2000:]}")
    return library


class EmulatedAccelerator(Accelerator):
    """The device, for trainers of Lightning."""

    def setup_device(self, device: torch.device) -> None:
        assert device.type == NAME

    def teardown(self) -> None:
        pass

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device(NAME, 0)]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return NAME
