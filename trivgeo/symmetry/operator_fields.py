"""Fields at which a solution operator is tested for symmetries."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import sympy as sp
import torch
from torch import Tensor

from trivgeo.actions import Field
from trivgeo.checks import check_type
from trivgeo.errors import ConfigurationError, ShapeError

__all__ = ["OperatorFields", "floating_values", "operator_fields"]

_SPACE = ("x", "y", "z")
_UNKNOWNS = ("u", "v", "w", "p", "q")


class OperatorFields(NamedTuple):
    """Fields at which an operator is tested.

    Attributes:
        values: ``[b, c, *n]``.
        output: the values that the operator returns, of the same shape.
        steps: of the grid, ``[d]``.
        variables: x, ..., t, u, ....
    """

    values: Tensor
    output: Tensor
    steps: Tensor
    variables: tuple[sp.Symbol, ...]


def operator_fields(network: Callable[[Tensor], Tensor], initial: Field) -> OperatorFields:
    """Return what an operator is tested at, and its output there.

    Args:
        network: the operator.
        initial: periodic fields at one time, see `trivgeo.symmetry.from_operator.symmetries_of_operator`.

    Raises:
        ConfigurationError: the network cannot be called, or returns no floating-point tensor.
        ShapeError: see `trivgeo.symmetry.from_operator.symmetries_of_operator`.
    """
    if not callable(network):
        raise ConfigurationError(f"network: expected a function of values [b, c, *n], got {network!r}")
    check_type("initial", initial, Field)
    dims = len(initial.counts)
    values = initial.values.flatten(0, -dims - 3).squeeze(-dims - 1)
    unknowns = values.shape[1]
    if initial.values.shape[-dims - 1] != 1 or dims > len(_SPACE) or unknowns > len(_UNKNOWNS):
        raise ShapeError(
            f"initial: expected fields [*batch, c, 1, *n] of {len(_UNKNOWNS)} unknowns and {len(_SPACE)} axes at most, "
            f"got {list(initial.values.shape)}"
        )
    steps = initial.grid.steps.reshape(-1, dims, dims)[0].diagonal()
    output = floating_values("network", network, values)
    if output.shape != values.shape:
        raise ShapeError(f"network: expected values {list(values.shape)}, got {list(output.shape)}")
    return OperatorFields(values, output, steps, tuple(sp.symbols((*_SPACE[:dims], "t", *_UNKNOWNS[:unknowns]))))


def floating_values(name: str, function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return the values of a function, without derivatives, if they are a floating-point tensor.

    Args:
        name: of the function.
        function: the function.
        at: its argument.

    Raises:
        ConfigurationError: they are none.
    """
    with torch.no_grad():
        values = function(at)
    if not isinstance(values, Tensor) or not values.is_floating_point():
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise ConfigurationError(f"{name}: expected a floating-point tensor, got {kind}")
    return values
