"""Conditions that a user gives: their tensors, and their batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trivgeo._torch import pytree
from trivgeo.checks import check_tensor
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError

__all__ = ["batched_condition", "check_condition"]


def check_condition(condition: Any, is_vector: bool, like: Tensor) -> Any:
    """Return conditions as tensors on the device of a model, floating-point numbers in its dtype.

    Args:
        condition: vectors, or for a module a tensor or a tuple, list or dictionary of tensors; arrays and numbers are
            taken, too. Dictionaries are returned in the order of their keys.
        is_vector: whether conditions are vectors.
        like: a tensor of the model.

    Raises:
        ConfigurationError: there is something else in it.
        NonFiniteError: there is NaN or infinity in it.
    """

    def to_model(x: Any) -> Tensor:
        x = torch.as_tensor(x) if isinstance(x, np.ndarray | np.generic | int | float) else x
        if not isinstance(x, Tensor):
            raise ConfigurationError(f"condition: expected tensors, got {type(x).__name__}")
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise NonFiniteError("condition: expected finite numbers, got NaN or infinity")
        return x.to(like) if x.is_floating_point() else x.to(like.device)

    if is_vector:
        return to_model(check_tensor("condition", condition))
    return pytree.tree_map(to_model, _ordered(condition))


def batched_condition(condition: Any, ndims: tuple[int, ...], batch: torch.Size) -> Any:
    """Return conditions with one batch dimension, which has length one for a condition of all elements.

    Args:
        condition: a tensor, or a tuple, list or dictionary of tensors.
        ndims: number of dimensions of one condition, for each tensor.
        batch: batch shape of the elements.

    Raises:
        ShapeError: the condition has another structure, or another batch shape.
    """
    leaves, structure = pytree.tree_flatten(condition)
    if len(leaves) != len(ndims):
        raise ShapeError(f"condition: expected {len(ndims)} tensors, as in the training, got {len(leaves)}")
    found = []
    for x, ndim in zip(leaves, ndims, strict=True):
        if x.ndim == ndim:
            found.append(x.unsqueeze(0))
        elif x.shape[: x.ndim - ndim] == batch:
            found.append(x.reshape(-1, *x.shape[x.ndim - ndim :]))
        else:
            raise ShapeError(
                f"condition: expected one for all elements, or one for each of {list(batch)}, with {ndim} dimensions "
                f"each as in the training, got {list(x.shape)}"
            )
    return pytree.tree_unflatten(found, structure)


def _ordered(condition: Any) -> Any:
    """Dictionaries in the order of their keys, by which tensors are known."""
    if isinstance(condition, dict):
        return {key: _ordered(condition[key]) for key in sorted(condition, key=str)}
    if type(condition) in (list, tuple):
        return type(condition)(map(_ordered, condition))
    return condition
