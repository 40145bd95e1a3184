"""Compile a function by `torch.compile` and compare its first result with the eager one.

Compiled groups (`trivgeo.groups.compiled`) and inverters with ``compiled=True`` share the rules: a function whose
compilation fails, or whose first result differs, stays eager and one warning says why; nothing is compiled in a forked
process; if a file in torch's cache is broken, the function is compiled anew in a folder below the cache.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from trivgeo._torch import mark_dynamic, pytree

Result = TypeVar("Result")

_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # torch reads it at every compilation, and sets it at the first
_SPARE_FOLDER = "trivgeo_spare"  # below the cache of torch
_PROCESS_ID = os.getpid()  # the process that imported this module; a forked child has another number
_COMPILER_LOCK = threading.RLock()  # torch traces one function at a time
_CODE_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Compilation:
    """Outcome of compiling one operation.

    Attributes:
        operation: name of the operation.
        dtype: dtype of the first argument.
        derivatives: whether this is the code of derivatives.
        seconds: time of the compilation, zero if there was none.
        reason: why the operation stays eager, empty if it is compiled.
    """

    operation: str
    dtype: torch.dtype
    derivatives: bool
    seconds: float = 0.0
    reason: str = ""

    def __str__(self) -> str:
        kind = f"{self.operation} in {self.dtype}{', derivatives' if self.derivatives else ''}"
        return f"{kind}: eager, {self.reason}" if self.reason else f"{kind}: compiled in {self.seconds:.1f} s"


class ForkedProcessError(Exception):
    """Compiling in a process that was forked: its parent may have started workers of the compiler, which stay there."""


class DifferentResultError(Exception):
    """The first compiled result is not the eager one."""


def compile_and_compare(
    operation: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    agree: Callable[[Any], bool],
    *,
    derivatives: bool = False,
    varying_batch: bool = False,
) -> tuple[Callable[..., Any] | None, Compilation]:
    """Compile a function of tensors as one graph, for arguments like these, and compare its first result.

    Args:
        operation: name of the operation in the report and the warning.
        function: a function without default values, which has just succeeded on the arguments.
        arguments: tensors, or containers of tensors, the first a tensor.
        agree: whether a result is near enough to the eager one.
        derivatives: whether the function computes derivatives, for the report.
        varying_batch: whether code is made for any size of the last dimension, the batch; all arguments are tensors
            then. Otherwise all sizes are fixed: with symbolic sizes convolutions are slower.

    Returns:
        The compiled function, ``None`` if it stays eager, and the report. If it stays eager, a warning says why.
    """
    arguments = pytree.tree_map(lambda x: x.detach(), arguments)
    dtype = arguments[0].dtype
    start = time.perf_counter()

    def compiled() -> Callable[..., Any]:
        with _COMPILER_LOCK, torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own code; failures raise
            fast = fuse(_with_own_code(function), dynamic=None if varying_batch else False)
            for x in arguments if varying_batch else ():
                mark_dynamic(x, x.ndim - 1)
            result = fast(*arguments)
        if not agree(result):
            raise DifferentResultError
        return fast

    try:
        fast = _call_compiled(compiled)
    except DifferentResultError:
        reason = "since its compiled result differed"
    except Exception as error:  # the compiler, or its absence, may raise anything; the eager call has succeeded
        reason = f"since compilation failed: {type(error).__name__}: {_first_line(error)}"
    else:
        return fast, Compilation(operation, dtype, derivatives, seconds=time.perf_counter() - start)
    outcome = Compilation(operation, dtype, derivatives, reason=reason)
    warnings.warn(f"{outcome}", RuntimeWarning, stacklevel=_caller_level())
    return None, outcome


def environment(x: Tensor) -> tuple[Hashable, ...]:
    """Return all that compiled code depends on except the operation and the shapes and layouts of its arguments.

    Args:
        x: the first argument of the code.
    """
    return x.dtype, x.device, torch.is_inference_mode_enabled(), torch.get_num_threads()


def fuse(function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
    """Compile a function of tensors as one graph by `torch.compile`, which takes ``dynamic``."""
    return torch.compile(function, fullgraph=True, dynamic=dynamic)


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function with a code object of its own, on which `torch.compile` counts its compilations."""
    code = function.__code__.replace(co_name=f"trivgeo_operation_{next(_CODE_NUMBERS)}")
    return types.FunctionType(code, function.__globals__, code.co_name, None, function.__closure__)


def _call_compiled(call: Callable[[], Result]) -> Result:
    """Return the result of a function that compiles, in a folder of its own where the cache may be broken.

    A damaged file in the cache of `torch.compile` makes compilation fail in every process that reads it. A failed
    compilation is repeated with an empty cache, in a folder below the first, for this process and later ones; a warning
    names both. The function may be called three times.

    Raises:
        ForkedProcessError: this process was forked from one that imported the library.
        Exception: the error of the first call, if the other calls raise, too.
    """
    if os.getpid() != _PROCESS_ID:
        raise ForkedProcessError("torch's compiler may hang here; start processes by spawn or forkserver")
    try:
        return call()
    except Exception as error:  # whatever the compiler raises
        found = _call_in_spare(call)
        if found is None:
            raise
        cache = os.environ.get(_CACHE_VARIABLE)
        warnings.warn(
            f"torch.compile: a file in its cache {cache} seems to be broken ({type(error).__name__}: "
            f"{_first_line(error)[:200]}); compiled anew in {_SPARE_FOLDER} below it. "
            "Delete the folder to be rid of this warning",
            RuntimeWarning,
            stacklevel=_caller_level(),
        )
        return found[0]


def _call_in_spare(call: Callable[[], Result]) -> tuple[Result] | None:
    """The result with the cache of the spare folder, or with an empty cache if that is broken, too."""
    cache = os.environ.get(_CACHE_VARIABLE)
    if cache is None:  # torch has not set it: compilation failed before
        return None
    spare = Path(cache) / _SPARE_FOLDER
    was_there = spare.exists()
    for _ in range(1 + was_there):
        try:
            with _cache_folder(spare):
                return (call(),)
        except Exception:  # the cache is not the reason, or the spare folder is as broken
            shutil.rmtree(spare, ignore_errors=True)
    return None


@contextmanager
def _cache_folder(folder: Path) -> Iterator[None]:
    before = os.environ[_CACHE_VARIABLE]
    os.environ[_CACHE_VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ[_CACHE_VARIABLE] = before


def _caller_level() -> int:
    """The level, for warnings of the calling function, of the first frame outside the library and torch."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(("trivgeo.", "torch.")):
        frame, level = frame.f_back, level + 1
    return level


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")
