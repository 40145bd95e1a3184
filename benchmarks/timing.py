"""Measuring: medians of repeated calls, copy bandwidth, and a description of the machine."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

_PACKAGES = ("trivgeo", "torch", "numpy", "pypose", "geomstats", "kornia", "torchlie")

__all__ = [
    "Budget",
    "copying",
    "environment",
    "give_back_memory",
    "median_seconds",
    "steady_allocator",
    "version_of",
]


class Budget:
    """Seconds that a suite may still take."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    def left(self) -> float:
        """Seconds left, negative when used up."""
        return self._end - time.perf_counter()


def steady_allocator() -> bool:
    """Keep freed memory in the process, where the C library is glibc; whether that worked.

    By default glibc gives large blocks back to the system, and takes the largest from it each time: the page faults of
    taking them again multiply the time of operations on large batches, for which other allocators (that of CUDA) keep
    their blocks.
    """
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD, M_MMAP_MAX of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(trim_threshold, 2**31 - 1)) and bool(mallopt(mmap_max, 0))


def give_back_memory() -> None:
    """Give freed memory back to the system, which `steady_allocator` keeps: in pieces, it adds up."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_seconds(f: Callable[[], Any], device: torch.device, seconds: float = 0.1, least: int = 3) -> float:
    """Median time of a call after one warm-up, over as many calls as fit into ``seconds``, at least ``least``.

    On one thread of a CPU the time that this process was given, which leaves out that of others on the machine.
    """
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    f()
    _synchronize(device)
    times: list[float] = []
    start = clock()
    while len(times) < least or (clock() - start < seconds and len(times) < 1000):
        before = clock()
        f()
        _synchronize(device)
        times.append(clock() - before)
    return statistics.median(times)


def copying(device: torch.device, size: int = 64_000_000) -> Callable[[], float]:
    """What measures the bytes read and written per second by ``Tensor.copy_`` of this many bytes, beyond all caches."""
    source = torch.ones(size // 8, dtype=torch.float64, device=device)
    target = torch.empty_like(source)
    return lambda: 2 * size / median_seconds(lambda: target.copy_(source), device, 0.0)


def version_of(package: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment(device: torch.device) -> dict[str, Any]:
    """Device, versions and threads."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {
        "device": str(device),
        "device_name": name,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {
            p: version_of(p) for p in ("trivgeo", "torch", "numpy", "pypose", "geomstats", "kornia", "torchlie")
        },
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
