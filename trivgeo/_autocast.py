"""Full precision where a user's autocast would round: it is for networks, not for the arithmetic of groups."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from trivgeo._torch import is_any_autocast_enabled

P = ParamSpec("P")
R = TypeVar("R")
AuxT = TypeVar("AuxT")

_DEVICE_TYPES = ("cpu", "cuda", "xpu", "mps")
"""Types of devices whose autocast is looked at."""


def full_precision(f: Callable[P, R]) -> Callable[P, R]:
    """Return the function with ``torch.autocast`` off, on every device, while it runs.

    Products of matrices in float32 would come back in bfloat16 under it.

    Args:
        f: a function that calls no network.
    """

    @functools.wraps(f)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        if is_any_autocast_enabled():
            for kind in _DEVICE_TYPES:
                if torch.is_autocast_enabled(kind):
                    with torch.autocast(kind, enabled=False):
                        return call(*arguments, **named)
        return f(*arguments, **named)

    return call


def grad_and_aux(f: Callable[[Tensor], tuple[Tensor, AuxT]], x: Tensor) -> tuple[Tensor, AuxT]:
    """Return ``torch.func.grad(f, has_aux=True)(x)``, under autocast with the backward pass in full precision.

    Networks in ``f`` are rounded as autocast says, and so are their gradients, whose dtypes are those of the forward
    pass. Under autocast the backward pass of all other operations would be rounded, too.
    """
    if not is_any_autocast_enabled():
        return torch.func.grad(f, has_aux=True)(x)
    value, pull_back, aux = torch.func.vjp(f, x, has_aux=True)  # type: ignore[misc]
    return full_precision(pull_back)(torch.ones_like(value))[0], aux


matmul = full_precision(torch.matmul)
"""`torch.matmul` in the precision of its arguments, for functions that call networks."""
einsum = full_precision(torch.einsum)
"""`torch.einsum` in the precision of its arguments, for functions that call networks."""
