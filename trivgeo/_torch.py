"""The only module that touches names of torch that are not public; a test lists them.

Each entry says what happens where a version of torch lacks the name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree  # required: nested containers; kept by torch since 1.8

__all__ = ["dynamo_errors", "in_forward_mode", "is_any_autocast_enabled", "mark_dynamic", "pytree"]


_ANY_AUTOCAST: Callable[[], bool] | None = getattr(torch._C, "_is_any_autocast_enabled", None)


def is_any_autocast_enabled() -> bool:
    """Return whether ``torch.autocast`` is on for some device.

    Without ``torch._C._is_any_autocast_enabled``, whether it is on for the CPU or CUDA.
    """
    if _ANY_AUTOCAST is None:
        return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    return _ANY_AUTOCAST()


def mark_dynamic(x: Tensor, dim: int) -> None:
    """Mark one dimension of an argument of `torch.compile` as varying from call to call.

    Without ``torch._dynamo.mark_dynamic``, code is compiled once more when the size changes.
    """
    mark: Any = getattr(getattr(torch, "_dynamo", None), "mark_dynamic", None)
    if mark is not None:
        mark(x, dim)


def in_forward_mode() -> bool:
    """Whether derivatives in forward mode may be taken of what is computed now.

    Without ``torch.autograd.forward_ad._current_level``, False.
    """
    return getattr(forward_ad, "_current_level", -1) >= 0


def dynamo_errors() -> tuple[type[Exception], ...]:
    """Return the errors that tracing by `torch.compile` and `torch.export` raises.

    Without ``torch._dynamo.exc``, ``RuntimeError`` alone, from which they derive.
    """
    error: Any = getattr(getattr(getattr(torch, "_dynamo", None), "exc", None), "TorchDynamoException", None)
    return (RuntimeError,) if error is None else (RuntimeError, error)
