"""A bound on the memory that code creates, for sizes that come from a file of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["AllocationError", "bounded_allocation"]

_NAMES = ("empty", "zeros", "ones", "full", "rand", "randn", "randint")  # also of functions that take a tensor's shape
_FACTORIES = frozenset(
    {
        *(getattr(torch, name) for name in (*_NAMES, *(f"{name}_like" for name in _NAMES))),
        *(getattr(torch, name) for name in ("arange", "linspace", "logspace", "eye", "empty_strided", "randperm")),
        *(getattr(Tensor, name) for name in ("new_empty", "new_zeros", "new_ones", "new_full")),
    }
)


class AllocationError(Exception):
    """More memory was asked for than is allowed."""


class _AllocationCount(TorchFunctionMode):
    """Counts tensors that are created, and their bytes, and raises beyond a bound of either."""

    def __init__(self, num_bytes: int, num_tensors: int) -> None:
        super().__init__()
        self._bytes, self._tensors = num_bytes, num_tensors

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in _FACTORIES:
            self._bytes -= _num_bytes(func, args, given)
            self._tensors -= 1
            if self._bytes < 0 or self._tensors < 0:
                raise AllocationError(f"{func.__name__}{tuple(args)}")
        return func(*args, **given)


def _num_bytes(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Size of a tensor that is not created yet; zero where the arguments are none."""
    kept = {name: value for name, value in kwargs.items() if name not in ("generator", "out", "pin_memory")}
    try:
        created: Tensor = function(*args, **{**kept, "device": "meta"})  # there a tensor of any size costs nothing
    except (RuntimeError, TypeError, ValueError):
        return 0  # the call itself raises, with its own message
    return created.nbytes


@contextmanager
def bounded_allocation(num_bytes: int, num_tensors: int) -> Iterator[None]:
    """Raise before more or larger tensors are created inside.

    What the factories of torch create is counted, not what is computed.

    Args:
        num_bytes: of all tensors.
        num_tensors: how many.

    Raises:
        AllocationError: more is asked for.
    """
    with _AllocationCount(num_bytes, num_tensors):
        yield
