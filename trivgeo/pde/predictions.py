"""Predictions of networks that step: from the values of fields to those some times later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.errors import ConfigurationError, ShapeError


def prediction_times(times: Sequence[float]) -> list[float]:
    """Return times of predictions as numbers.

    Raises:
        ConfigurationError: they do not increase from above zero.
    """
    nodes = [float(t) for t in times]
    if not nodes or not nodes[0] > 0 or nodes != sorted(set(nodes)):
        raise ConfigurationError(f"times: expected increasing ones above zero, got {nodes}")
    return nodes


def predicted(
    network: Callable[..., Tensor],
    values: Float[Tensor, "b c ..."],
    number: int,
    parameters: Tensor | None = None,
) -> Float[Tensor, "b c s ..."]:
    """Return the predictions of a network from values of fields, computed in the network's own dtype.

    Args:
        number: number s of its times; the dimension may be missing for one.
        parameters: further input of the network.

    Raises:
        ConfigurationError: the network returns no floating-point tensor.
        ShapeError: it returns another shape.
    """
    known = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    given = values if known is None else values.to(known.dtype)
    out = network(given) if parameters is None else network(given, parameters)
    if not isinstance(out, Tensor) or not out.is_floating_point():
        kind = out.dtype if isinstance(out, Tensor) else type(out).__name__
        raise ConfigurationError(f"network: expected a floating-point tensor of predictions, got {kind}")
    if number == 1 and out.shape == values.shape:
        out = out.unsqueeze(2)
    wanted = (*values.shape[:2], number, *values.shape[2:])
    if out.shape != wanted:
        raise ShapeError(f"network: expected predictions {list(wanted)}, got {list(out.shape)}")
    return out.to(values.dtype)
