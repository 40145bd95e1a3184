"""Bounds of memory: how many data are evaluated at once, by the measured memory of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from trivgeo._numerics import is_traced
from trivgeo._torch import pytree
from trivgeo.checks import check_count

Bound = int | Literal["auto"] | None
"""The largest number of data evaluated at once; ``"auto"`` for one by `automatic_bound`, ``None`` for no bound."""

_CPU_BYTES = 8 * 2**20  # data that are evaluated at once on a CPU: what networks make of more leaves its caches
_CPU_MEMORY_IN_GIB = 1.0  # memory that evaluations may take on a CPU
_GPU_MEMORY_SHARE = 0.5  # share of the free memory of a GPU that evaluations may take
_GPU_BYTES_PER_DATA_BYTE = 200  # memory that networks with gradients take on a GPU for each byte of a datum
_MOVED_BYTES_PER_DATA_BYTE = 16  # memory for each byte of a datum that is moved by an action, with the points of images
_BYTES_PER_SAVED_BYTE = 2.0  # memory of an evaluation with its gradient, in units of what is saved for the gradient


def check_bound(max_evaluations: Bound) -> Bound:
    """Return ``max_evaluations`` if it is ``"auto"``, ``None`` or at least one.

    Raises:
        ConfigurationError: any other value.
    """
    if max_evaluations is None or (isinstance(max_evaluations, str) and max_evaluations == "auto"):
        return max_evaluations
    return check_count("max_evaluations", max_evaluations)


def automatic_bound(x: Any) -> int | None:
    """Return the number of data that are evaluated at once, from the size of a datum and its device's memory.

    On a CPU as many data as fit into 8 MiB, which keeps what networks make of them in its caches. On a CUDA device half
    of the free memory is for energies, each of which may take 200 times its datum. ``None`` while a program is traced.
    Where the memory of an evaluation was measured, `number_that_fits` knows better.
    """
    if is_traced():
        return None
    leaves = [leaf for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)]
    size = sum(leaf.shape[1:].numel() * leaf.element_size() for leaf in leaves)
    if size == 0:
        return None
    if leaves[0].is_cuda:
        free, _ = torch.cuda.mem_get_info(leaves[0].device)
        return max(1, int(_GPU_MEMORY_SHARE * free / (_GPU_BYTES_PER_DATA_BYTE * size)))
    return max(1, _CPU_BYTES // size)


def memory_of(x: Any, max_memory: float | None) -> float:
    """Return the memory in bytes that evaluations of data x may take at once.

    Args:
        max_memory: memory in GiB; by default 1 on a CPU, and half of what is free on a GPU.
    """
    cuda = next((leaf.device for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor) and leaf.is_cuda), None)
    if max_memory is None and cuda is not None:
        return _GPU_MEMORY_SHARE * torch.cuda.mem_get_info(cuda)[0]
    return (_CPU_MEMORY_IN_GIB if max_memory is None else max_memory) * 2**30


def number_that_fits(x: Any, bytes_each: int, max_memory: float | None) -> int | None:
    """Return the number of data x evaluated at once whose measured memory fits; ``None`` for any number.

    Args:
        bytes_each: memory of one evaluation, see `bytes_of`.
        max_memory: see `memory_of`.
    """
    on_gpu = any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in pytree.tree_leaves(x))
    # on a GPU what was measured is known better than the guess by the size of a datum
    number = None if on_gpu and max_memory is None else automatic_bound(x)
    fits = max(1, int(memory_of(x, max_memory) / bytes_each)) if bytes_each > 0 else None
    return min((bound for bound in (number, fits) if bound is not None), default=None)


def number_moved_at_once(x: Any, max_memory: float | None) -> int:
    """Return the number of data x that are drawn, moved and restored at once."""
    leaves = [leaf for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)]
    size = sum(leaf.shape[1:].numel() * leaf.element_size() for leaf in leaves)
    return max(1, int(memory_of(x, max_memory) / max(1, _MOVED_BYTES_PER_DATA_BYTE * size)))


def bytes_of(evaluate: Callable[[Any], Any], x: Any) -> int:
    """Return the memory that an evaluation of a datum with its gradient takes: twice what is saved for the gradient.

    Measured by the first of the data x, alone and beside a copy of it: parameters of networks, which all data share, do
    not count. It is more than enough for evaluations without gradients.

    Args:
        evaluate: rows of data to any outcome that keeps the graph of a gradient; `with_gradients` makes rows that have
            one.
    """
    one, two = (_saved_bytes(evaluate, x, number) for number in (1, 2))
    return int(_BYTES_PER_SAVED_BYTE * max(0, two - one))


def _saved_bytes(evaluate: Callable[[Any], Any], x: Any, number: int) -> int:
    """Return the size of the storages that are saved for the gradient of copies of the first datum."""

    def copies(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf[:1].detach().expand(number, *leaf.shape[1:]).clone()

    held: dict[int, torch.UntypedStorage] = {}
    wrapped: list[Tensor] = []

    def hold(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        try:
            held[storage.data_ptr()] = storage
        except RuntimeError:  # of an energy that calls torch.func, whose tensors have no storage of their own
            wrapped.append(tensor)
        return tensor

    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor),
    ):
        outcome = evaluate(pytree.tree_map(copies, x))  # keeps the graph until its memory is known
    size = sum(storage.nbytes() for storage in held.values()) + sum(tensor.nbytes for tensor in wrapped)
    del outcome
    return size


def with_gradients(x: Any) -> Any:
    """Return data whose floating-point tensors take part in a gradient."""
    return pytree.tree_map(
        lambda leaf: leaf.detach().requires_grad_() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf,
        x,
    )
