"""How a group's operation is evaluated on a batch: eagerly, or by code compiled for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trivgeo._numerics import in_single, is_traced

__all__ = ["EAGER", "EagerEvaluator", "Evaluator", "own_memory"]

_FULL_PRECISION = (torch.float64, torch.float32)


class Evaluator(ABC):
    """Evaluates operations of a group on batches."""

    @abstractmethod
    def __call__(self, f: Callable[..., Tensor], ranks: Sequence[int], arguments: Sequence[Tensor]) -> Tensor:
        """Evaluate ``f`` on checked arguments.

        Args:
            f: a method of a group, of one or two tensors.
            ranks: the number of dimensions of one element of each argument.
            arguments: tensors whose batches broadcast.
        """


class EagerEvaluator(Evaluator):
    """Calls the operation."""

    def __call__(self, f: Callable[..., Tensor], ranks: Sequence[int], arguments: Sequence[Tensor]) -> Tensor:
        """Evaluate ``f``; the result shares no memory with an argument.

        Arguments without a batch become a batch of one. Then no entry is a tensor without dimensions: forward mode of
        torch 2.13 gives the product of such a float32 tensor with a Python number a float64 derivative.
        """
        if arguments[0].ndim > ranks[0] and arguments[-1].ndim > ranks[-1]:
            value = f(*arguments) if arguments[0].dtype in _FULL_PRECISION else in_single(f, *arguments)
        else:
            single = [x.ndim == rank for x, rank in zip(arguments, ranks, strict=True)]
            value = in_single(f, *(x.unsqueeze(0) if one else x for x, one in zip(arguments, single, strict=True)))
            value = value.squeeze(0) if all(single) else value
        return value if is_traced() else own_memory(value, arguments)


EAGER = EagerEvaluator()


def own_memory(value: Tensor, arguments: Sequence[Tensor]) -> Tensor:
    """Return a result that may be changed in place: a copy if it shares memory with an argument, or with itself."""
    if 0 in value.stride() or any(_share_memory(value, x) for x in arguments):
        return value.clone()
    return value


def _share_memory(a: Tensor, b: Tensor) -> bool:
    a, b = torch.func.debug_unwrap(a), torch.func.debug_unwrap(b)
    return a is b or a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
