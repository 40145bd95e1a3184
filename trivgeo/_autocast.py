"""Full precision under a user's autocast, which is for networks, not for the arithmetic of groups."""

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

_DEVICE_TYPES = ("cpu", "cuda", "xpu", "mps")  # types of devices whose autocast is turned off


def full_precision(f: Callable[P, R]) -> Callable[P, R]:
    """Return ``f``, which calls no network, with ``torch.autocast`` off on every device while it runs.

    Under autocast products of matrices in float32 would be returned in bfloat16.
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

    Networks in ``f`` are rounded by autocast, and so are their gradients, which have the dtypes of the forward pass.
    Under autocast the backward pass of all other operations would be rounded, too.
    """
    if not is_any_autocast_enabled():
        return torch.func.grad(f, has_aux=True)(x)
    value, pull_back, aux = torch.func.vjp(f, x, has_aux=True)  # type: ignore[misc]
    return full_precision(pull_back)(torch.ones_like(value))[0], aux


matmul = full_precision(torch.matmul)
"""`torch.matmul` in the precision of its arguments, for functions that call networks."""
einsum = full_precision(torch.einsum)
"""`torch.einsum` in the precision of its arguments, for functions that call networks."""
