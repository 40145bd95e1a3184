"""What a user's functions promise, held against differences: derivatives of fields, and flows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trivgeo._random import normal
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups.generated.vector_fields import VectorFields, values_and_jacobians

__all__ = ["check_derivatives", "check_flow"]

_STEP = 1e-3
_CONVERGED, _WRONG = 1e-5, 1e-3  # what two steps may differ by to be trusted, and what a derivative may miss
_LENGTH = 0.05


def check_derivatives(fields: VectorFields, points: Tensor) -> None:
    """Raise `AlgebraError` if forward-mode derivatives of a field are not those of its values.

    Brackets are made from derivatives: a field that detaches, rounds or looks up would seem constant.
    """
    values, jacobians = values_and_jacobians(fields, points)
    axes = torch.eye(fields.dim, dtype=torch.float64)

    def difference(step: float) -> Tensor:
        near, far = (
            torch.stack([fields(points + k * step * a) - fields(points - k * step * a) for a in axes], -1)
            for k in (1, 2)
        )
        return (8.0 * near - far) / (12.0 * step)

    size = values.abs().amax((-2, -1)) + jacobians.abs().amax((-3, -2, -1))  # at each point
    coarse, fine = difference(_STEP), difference(0.5 * _STEP)
    size = (size + fine.abs().nan_to_num(0.0, 0.0).amax((-3, -2, -1))).clamp(min=1e-300)[:, None, None, None]
    known = (coarse - fine).abs() <= _CONVERGED * size
    wrong = (known & ((jacobians - fine).abs() > _WRONG * size)).any(-1)  # point, field, component
    if bool(wrong.any()):
        _, field, component = (int(i) for i in wrong.nonzero()[0])
        raise AlgebraError(
            f"field {fields.names[field]}: expected derivatives of its component {fields.coordinates[component]} that "
            "agree with differences of its values, got others. Does it detach, round, or leave torch?"
        )


def check_flow(flow: Callable[[Tensor, Tensor], Tensor], fields: VectorFields, points: Tensor) -> None:
    """Raise `ConfigurationError` unless a flow starts along the fields, and its times add up.

    Args:
        flow: see `from_generators`.
        fields: the fields.
        points: where, ``[p, m]``.
    """
    n, (count, m) = len(fields), points.shape
    generator = torch.Generator().manual_seed(0)
    unit = torch.eye(n, dtype=torch.float64)
    vectors = torch.cat([unit, normal((2, n), unit, generator)]).repeat_interleave(count, 0)
    start = points.repeat(n + 2, 1)

    def run(time: float, x: Tensor) -> Tensor:
        y = flow(time * vectors, x)
        if not isinstance(y, Tensor) or y.shape != (len(vectors), m):
            got = list(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise ConfigurationError(f"flow: expected points {[len(vectors), m]} for as many vectors, got {got}")
        return y

    slope = (8.0 * (run(_STEP, start) - run(-_STEP, start)) - run(2 * _STEP, start) + run(-2 * _STEP, start)) / (
        12.0 * _STEP
    )
    once, twice = run(_LENGTH, run(_LENGTH, start)), run(2.0 * _LENGTH, start)
    expected = fields.combination(vectors, start)
    size = 1.0 + start.abs().amax(-1, keepdim=True)
    for what, left, right, bound in (
        ("to leave points where they are at time zero", run(0.0, start), start, size),
        ("to start along the fields", slope, expected, size + expected.abs().amax(-1, keepdim=True)),
        ("to be followed twice in twice the time", once, twice, size + twice.abs().amax(-1, keepdim=True)),
    ):
        finite = (torch.isfinite(left) & torch.isfinite(right)).all(-1)
        missed = torch.where(finite, ((left - right).abs() / bound).amax(-1), 0.0)
        if not bool(finite.any()):
            raise ConfigurationError("flow: expected finite values at sample points, got none")
        if float(missed.max()) > _WRONG:
            raise ConfigurationError(f"flow: expected it {what}, got one that misses by {float(missed.max()):.2g}")
