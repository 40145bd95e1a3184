"""Predictions of networks that step: from the values of fields to those some times later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.errors import ConfigurationError, ShapeError

_LEAST_DEVIATION = 1e-3  # of a solution from a constant, in units of its size


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


def mean_field(x: Float[Tensor, "b c s ..."]) -> Float[Tensor, "b c s ..."]:
    """Return fields that have the mean of given ones at each point."""
    return x.flatten(3).mean(-1).reshape(*x.shape[:3], *[1] * (x.ndim - 3)).expand_as(x)


def deviation(x: Float[Tensor, "b c s ..."], constant: Float[Tensor, "b c t ..."]) -> Float[Tensor, "b c s"]:
    """Return root mean square distances from constants, at least a thousandth of the root mean squares of ``x``.

    Unlike these they are as large in a moving frame, which adds a constant to all values. The bound is for fields that
    are constant, so that rounding is not large beside them.
    """
    square = torch.maximum(_mean_square(x - constant), _LEAST_DEVIATION**2 * _mean_square(x))
    return square.clamp(min=torch.finfo(x.dtype).tiny).sqrt()


def prediction_error(
    answers: Float[Tensor, "b c s ..."], solution: Float[Tensor, "b c s ..."], given: Float[Tensor, "b c ..."]
) -> Float[Tensor, " b"]:
    r"""Return the errors of answers in units of the error of the simplest answer: the mean of the given field.

    .. math:: e = \max_t \|f(t) - u(t)\| \,/\, \|u(t) - \bar u_0\|

    Norms are root mean squares over the points, see `deviation`. Several unknowns count in units of their largest
    deviations from the means. Constants that are added to all values, and factors, do not change e.

    Args:
        answers: values at several times.
        solution: the true values.
        given: the initial values.
    """
    start = given.unsqueeze(2)
    mean = mean_field(start)
    away = deviation(solution, mean)
    unit = torch.maximum(away.amax(-1, keepdim=True), deviation(start, mean))
    off, whole = ((x / unit).square().sum(1) for x in (_mean_square(answers - solution).sqrt(), away))
    return (off / whole).sqrt().amax(-1)


def _mean_square(x: Float[Tensor, "b c s ..."]) -> Float[Tensor, "b c s"]:
    """Return mean squares over the points."""
    return x.flatten(3).square().mean(-1)
