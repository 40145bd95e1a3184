"""Several processes that train one model: their number, the share of each in a batch, and what they have together."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, distributed

from trivgeo._devices import on_device
from trivgeo._torch import pytree
from trivgeo.errors import ConfigurationError


def join(device: torch.device) -> int:
    """Join the processes that ``torchrun`` started, unless this process is in a group already; return their number.

    Args:
        device: device of the model, which selects the backend of the group.
    """
    is_launched = distributed.is_available() and distributed.is_torchelastic_launched()
    if is_launched and not distributed.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return num_processes()


def num_processes() -> int:
    """The number of processes in the group of this one."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """The number of this process in its group."""
    return distributed.get_rank() if num_processes() > 1 else 0


def share(data: Any) -> Any:
    """Every W-th row of all tensors of a tree, from that of the rank on, for W processes."""
    number = num_processes()
    if number == 1:
        return data
    return pytree.tree_map(lambda x: x[rank() :: number] if isinstance(x, Tensor) else x, data)


def gathered_shares(data: Any) -> Any:
    """The shares of all processes in one tree, whose rows take turns: where all had the same data, these data."""
    number = num_processes()
    if number == 1:
        return data
    parts: list[Any] = [None] * number
    distributed.all_gather_object(parts, on_device(share(data), torch.device("cpu")))

    def joined(own: Any, *leaves: Any) -> Any:
        if not isinstance(own, Tensor):
            return own
        places = [torch.arange(len(leaf)) * number + turn for turn, leaf in enumerate(leaves)]
        return torch.cat(leaves)[torch.cat(places).argsort()].to(own.device)

    return pytree.tree_map(joined, data, *parts)


def check_same(name: str, text: str) -> None:
    """Raise `ConfigurationError`, whose message begins with ``name``, unless a text is the same in all processes."""
    if num_processes() == 1:
        return
    texts: list[Any] = [None] * num_processes()
    distributed.all_gather_object(texts, text)
    other = next((x for x in texts if x != texts[0]), None)
    if other is not None:
        raise ConfigurationError(f"{name}: expected the same in all processes, got {texts[0]!r} and {other!r}")
