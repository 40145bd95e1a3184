"""Devices of modules and data: a module stays where ``.to`` put it, and data are moved to it."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from trivgeo._torch import pytree


def module_device(*modules: nn.Module | None) -> torch.device | None:
    """Return the device of the parameters and buffers of modules, the first that is not the CPU if there are several.

    ``None`` if the modules have no tensors. An empty tensor on the CPU does not count: modules without weights hold one
    to know that they were moved elsewhere.
    """
    found: torch.device | None = None
    for module in modules:
        if module is None:
            continue
        for x in itertools.chain(module.parameters(), module.buffers()):
            if x.device.type != "cpu":
                return x.device
            if x.numel():
                found = x.device
    return found


def tree_device(data: Any) -> torch.device:
    """Return the device of the first tensor of data."""
    first: Tensor = next(leaf for leaf in pytree.tree_leaves(data) if isinstance(leaf, Tensor))
    return first.device


def on_device(data: Any, device: torch.device | None) -> Any:
    """Return the data with their tensors on a device; ``None`` leaves them where they are."""
    if device is None:
        return data
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, data)
