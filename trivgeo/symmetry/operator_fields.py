"""Fields at which a solution operator is tested for symmetries."""

from __future__ import annotations

import sympy as sp
from torch import Tensor

from trivgeo.actions import Field
from trivgeo.checks import check_type
from trivgeo.errors import ConfigurationError, ShapeError

__all__ = ["operator_variables"]

_SPACE = ("x", "y", "z")
_UNKNOWNS = ("u", "v", "w", "p", "q")


def operator_variables(network: object, initial: Field) -> tuple[Tensor, Tensor, tuple[sp.Symbol, ...]]:
    """Return what an operator is tested at: values ``[b, c, *n]``, steps ``[d]``, and the variables x, ..., t, u, ....

    Args:
        network: the operator.
        initial: periodic fields at one time, see `trivgeo.symmetry.from_operator.symmetries_of_operator`.

    Raises:
        ConfigurationError: the network cannot be called.
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
    return values, steps, tuple(sp.symbols((*_SPACE[:dims], "t", *_UNKNOWNS[:unknowns])))
