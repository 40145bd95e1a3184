"""Phase 2 of `from_generators`: sample points, and the user's functions compared with differences there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo._random import normal
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups.generated.parsing import ParsedFields
from trivgeo.groups.generated.symbolic import check_terms
from trivgeo.groups.generated.vector_fields import VectorFields, sample_points, values_and_jacobians

__all__ = ["SampledFields", "check_derivatives", "check_flow", "sample_fields"]

_CHECKED_POINTS = 8  # points at which functions are compared with differences
_TIME_STEP = 1e-3  # of differences
_CHECKED_TIME = 0.05  # for which a flow is followed twice
_CONVERGED = 1e-5  # largest relative change of a difference between two steps that is trusted
_MAX_ERROR = 1e-3  # of a derivative or a flow, relative


@dataclass(frozen=True)
class SampledFields:
    """Fields, and where they were evaluated.

    Attributes:
        parsed: the fields.
        points: sample points, ``[p, m]``.
        sampler: the user's sampler, see `from_generators`.
    """

    parsed: ParsedFields
    points: Tensor
    sampler: Callable[[int], Tensor] | None


def sample_fields(
    parsed: ParsedFields,
    sampler: Callable[[int], Tensor] | None,
    flow: Callable[[Tensor, Tensor], Tensor] | None,
) -> SampledFields:
    """Points where the fields are finite.

    Args:
        parsed: the fields.
        sampler: function from a number to points ``[count, m]``; ``None`` for a box around zero.
        flow: function (v, x) to the points moved for unit time, see `from_generators`; or ``None``.

    Raises:
        AlgebraError: derivatives of a torch function are not its own.
        ConfigurationError: too few points were found, a term of an expression is too small there, or the flow is not
            that of the fields.
    """
    generators, expressions = parsed.generators, parsed.basis.expressions
    if expressions is None:
        check_derivatives(generators, sample_points(generators, _CHECKED_POINTS, sampler))
    points = sample_points(generators, 4 * (generators.dim + 1) ** 2 + 8, sampler)
    if expressions is not None:
        check_terms(expressions.vectors, expressions.symbols, points)
    if flow is not None:
        check_flow(flow, generators, points[:_CHECKED_POINTS])
    return SampledFields(parsed, points, sampler)


def check_derivatives(fields: VectorFields, points: Tensor) -> None:
    """Check forward-mode derivatives of ``fields`` by differences of their values at ``points``, ``[p, m]``.

    Brackets are made from derivatives: a field that detaches, rounds or looks up would seem constant.

    Raises:
        AlgebraError: a derivative is wrong.
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
    coarse, fine = difference(_TIME_STEP), difference(0.5 * _TIME_STEP)
    size = (size + fine.abs().nan_to_num(0.0, 0.0).amax((-3, -2, -1))).clamp(min=1e-300)[:, None, None, None]
    known = (coarse - fine).abs() <= _CONVERGED * size
    wrong = (known & ((jacobians - fine).abs() > _MAX_ERROR * size)).any(-1)  # point, field, component
    if bool(wrong.any()):
        _, field, component = (int(i) for i in wrong.nonzero()[0])
        raise AlgebraError(
            f"field {fields.names[field]}: expected derivatives of its component {fields.coordinates[component]} that "
            "agree with differences of its values, got others. Does it detach, round, or leave torch?"
        )


def check_flow(flow: Callable[[Tensor, Tensor], Tensor], fields: VectorFields, points: Tensor) -> None:
    """Check that a flow starts along the fields, and that its times add up.

    Args:
        flow: function (v, x) to the points moved for unit time, see `from_generators`; or ``None``.
        fields: the fields.
        points: where, ``[p, m]``.

    Raises:
        ConfigurationError: one of both fails, or the flow returns no finite points of the right shape.
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

    near = run(_TIME_STEP, start) - run(-_TIME_STEP, start)
    far = run(2 * _TIME_STEP, start) - run(-2 * _TIME_STEP, start)
    slope = (8.0 * near - far) / (12.0 * _TIME_STEP)
    once, twice = run(_CHECKED_TIME, run(_CHECKED_TIME, start)), run(2.0 * _CHECKED_TIME, start)
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
        if float(missed.max()) > _MAX_ERROR:
            raise ConfigurationError(f"flow: expected it {what}, got one that misses by {float(missed.max()):.2g}")
