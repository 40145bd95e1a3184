"""Symmetries of a function that can be evaluated, such as a trained network: the null space of its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import sympy as sp
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.func import jacrev, vmap

from trivgeo.actions import Field
from trivgeo.checks import check_count, check_type
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups.ground_fields import pivot_columns
from trivgeo.symmetry.algebra.brackets import closes
from trivgeo.symmetry.equations.multi_index import multi_indices
from trivgeo.symmetry.equations.vector_fields import Symmetry
from trivgeo.symmetry.from_data.result import BrokenSymmetry, SymmetriesFromData
from trivgeo.verdict import Verdict

_SPACE_NAMES = ("x", "y", "z")
_UNKNOWN_NAMES = ("u", "v", "w", "p", "q")


class OperatorFields(NamedTuple):
    """Fields at which an operator is tested.

    Attributes:
        values: input of the operator, ``[b, c, *n]``.
        output: output of the operator, of the same shape.
        steps: steps of the grid, ``[d]``.
        variables: x, ..., t, u, ....
    """

    values: Tensor
    output: Tensor
    steps: Tensor
    variables: tuple[sp.Symbol, ...]


def operator_fields(network: Callable[[Tensor], Tensor], initial: Field) -> OperatorFields:
    """Return the input and output at which an operator is tested.

    Raises:
        ConfigurationError: the network cannot be called, or returns no floating-point tensor.
        ShapeError: see `trivgeo.symmetry.from_data.solution_operator.symmetries_of_operator`.
    """
    if not callable(network):
        raise ConfigurationError(f"network: expected a function of values [b, c, *n], got {network!r}")
    check_type("initial", initial, Field)
    dims = len(initial.counts)
    values = initial.values.flatten(0, -dims - 3).squeeze(-dims - 1)
    unknowns = values.shape[1]
    if initial.values.shape[-dims - 1] != 1 or dims > len(_SPACE_NAMES) or unknowns > len(_UNKNOWN_NAMES):
        raise ShapeError(
            f"initial: expected fields [*batch, c, 1, *n] of at most {len(_UNKNOWN_NAMES)} unknowns and "
            f"{len(_SPACE_NAMES)} axes, got {list(initial.values.shape)}"
        )
    steps = initial.grid.steps.reshape(-1, dims, dims)[0].diagonal()
    output = floating_values("network", network, values)
    if output.shape != values.shape:
        raise ShapeError(f"network: expected values {list(values.shape)}, got {list(output.shape)}")
    variables = sp.symbols((*_SPACE_NAMES[:dims], "t", *_UNKNOWN_NAMES[:unknowns]))
    return OperatorFields(values, output, steps, tuple(variables))


def floating_values(name: str, function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return the values of a function, without derivatives.

    Raises:
        ConfigurationError: they are no floating-point tensor.
    """
    with torch.no_grad():
        values = function(at)
    if not isinstance(values, Tensor) or not values.is_floating_point():
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise ConfigurationError(f"{name}: expected a floating-point tensor, got {kind}")
    return values


_MAX_NULL_SHARE = 0.05  # singular values of symmetries are below this share of the largest
MIN_GAP = 10.0
"""Ratio of the singular values on either side of the dimension."""
_ROUNDING_SHARE = 1e-12  # singular values below this share of the largest are zero
_EXACT_UNITS = 1e4  # change along a field of a function that it leaves as it is, in units of the last digit
_MIN_FRACTION_TOLERANCE = 1e-6  # coefficients within this distance of a simple fraction are replaced by it
_BROKEN_FRACTION_TOLERANCES = (0.1, 0.01, 1e-3, 1e-9)  # such distances for fields that are broken, tried in turn
MAX_BROKEN = 0.05
"""Largest breaking of an approximate symmetry."""
_MAX_DENOMINATOR = 1000  # bound of the denominators of simple fractions


def of_function(
    function: Callable[[Tensor], Tensor], points: Float[Tensor, "p n"], library: int, tolerance: float | None
) -> SymmetriesFromData:
    """Find vector fields along which a function is constant, see `trivgeo.symmetry.symmetries_from_data`.

    Raises:
        ConfigurationError: no points, too few, or no gap in the singular values; or values that are no floating-point
            tensor, or not finite.
    """
    if not isinstance(points, Tensor) or points.ndim != 2 or not points.is_floating_point():
        got = f"{points.dtype} {list(points.shape)}" if isinstance(points, Tensor) else type(points).__name__
        raise ConfigurationError(f"grid: expected floating-point points [p, n] for a function, got {got}")
    check_count("library", library, 0)
    values = floating_values("samples", function, points)
    if not (bool(points.isfinite().all()) and bool(values.isfinite().all())):
        raise ConfigurationError("samples: expected finite values at finite points, got NaN or infinity")
    n = points.shape[1]
    slopes = vmap(jacrev(lambda point: function(point.unsqueeze(0)).reshape(-1)))(points).detach().double().cpu()
    exponents = list(multi_indices(n, library))
    places = points.detach().double().cpu()
    monomials = torch.stack([places.pow(torch.tensor(e)).prod(-1) for e in exponents], -1)
    scale = monomials.square().mean(0).sqrt()
    columns = torch.einsum("pkn,pm->pknm", slopes, monomials / scale).reshape(-1, n * len(exponents))
    if len(columns) < 2 * columns.shape[1]:
        raise ConfigurationError(
            f"grid: expected at least {2 * columns.shape[1]} values for {columns.shape[1]} unknown coefficients, got "
            f"{len(columns)}"
        )
    if not bool(columns.isfinite().all()) or bool((columns == 0).all()):
        fault = "a constant" if bool(columns.isfinite().all()) else "NaN or infinity"
        raise ConfigurationError(f"samples: expected a function with finite derivatives, not constant, got {fault}")
    _, sizes, right = torch.linalg.svd(columns, full_matrices=False)
    ratios = (sizes / sizes[0]).flip(0).tolist()
    basis = (right.flip(0).reshape(-1, n, len(exponents)) / scale).reshape(len(ratios), -1).numpy()
    variables = tuple(sp.symbols(f"x1:{n + 1}"))
    terms = [sp.Mul(*(v**k for v, k in zip(variables, e, strict=True))) for e in exponents]
    slope = slopes.square().sum((1, 2)).sqrt()

    def measure(coefficients: NDArray[np.float64]) -> float:
        """The change along a field, relative to the change along gradients of the same length."""
        field = monomials @ torch.as_tensor(coefficients).reshape(n, -1).T  # [p, n]
        change = torch.einsum("pkn,pn->pk", slopes, field)
        return float(change.norm() / (slope * field.norm(dim=1)).norm())

    fields, verdict = closed_fields(basis, ratios, _null_dimension(ratios, tolerance), terms, variables)
    size = len(fields)
    change = ratios[size - 1] if size else 0.0
    if tolerance is None and change > _EXACT_UNITS * torch.finfo(values.dtype).eps:
        left = f"they change it by {change:.1e} of the largest change, more than rounding: tolerance= allows as much"
        verdict = Verdict((*verdict.reasons, left), verdict.assumptions)
    words = f"{size} of {len(ratios)} fields of degree {library} leave the function as it is, up to "
    words += f"{ratios[size - 1] if size else 0.0:.1e} of the largest change; the next changes it by {ratios[size]:.1e}"
    near = basis[: max(sum(r < _MAX_NULL_SHARE for r in ratios), size)]
    broken = broken_fields(near, size, measure, terms, variables)
    words = "; ".join((words, *verdict.reasons))
    return SymmetriesFromData(fields, words, verdict, singular_values=ratios, approximate=broken)


def _null_dimension(ratios: list[float], tolerance: float | None) -> int:
    """The number of singular values that count as zero: those below a tolerance, or below the largest gap."""
    if tolerance is not None:
        return sum(r < tolerance for r in ratios)
    small = [k for k in range(1, len(ratios)) if ratios[k - 1] < _MAX_NULL_SHARE]
    gaps = {k: ratios[k] / max(ratios[k - 1], _ROUNDING_SHARE) for k in small}
    best = max(gaps, key=lambda k: gaps[k], default=0)
    return best if best and gaps[best] >= MIN_GAP else 0


def closed_fields(
    basis: NDArray[np.float64],
    ratios: Sequence[float],
    count: int,
    terms: list[sp.Expr],
    variables: tuple[sp.Symbol, ...],
    moved: Sequence[int] | None = None,
) -> tuple[list[Symmetry], Verdict]:
    """The largest number of first fields that close under the bracket, and whether these are all.

    Args:
        basis: coefficients, see `_simple_fields`, also for ``terms``, ``variables`` and ``moved``.
        ratios: the errors of the rows of the basis, increasing.
        count: the number of fields that count as symmetries.
    """
    for size in range(count, -1, -1):
        fields = _simple_fields(basis[:size], ratios[size - 1] if size else 0.0, terms, variables, moved)
        if size < 2 or closes([f.components for f in fields], variables):
            break
    left = f"{count - size} more are as small but do not close under the bracket"
    return fields, Verdict((left,) if size < count else (), ("fields are polynomials of the given degree",))


def _simple_fields(
    basis: NDArray[np.float64],
    error: float,
    terms: list[sp.Expr],
    variables: tuple[sp.Symbol, ...],
    moved: Sequence[int] | None = None,
) -> list[Symmetry]:
    """Fields with simple coefficients that span the same space, within the error.

    Args:
        basis: coefficients of all terms in one component after another, ``[k, n]``.
        error: relative error of the basis.
        terms: functions that the coefficients multiply.
        moved: numbers of the variables whose components the basis has; default: all.
    """
    tolerance = max(_MIN_FRACTION_TOLERANCE, 10 * error)
    rows = ([_simple(float(value), tolerance) for value in row] for row in _reduced(basis)[0])
    return [_field(f"X{i + 1}", row, terms, variables, moved) for i, row in enumerate(rows)]


def broken_fields(
    basis: NDArray[np.float64],
    exact: int,
    measure: Callable[[NDArray[np.float64]], float],
    terms: list[sp.Expr],
    variables: tuple[sp.Symbol, ...],
    moved: Sequence[int] | None = None,
) -> list[BrokenSymmetry]:
    """Approximate symmetries modulo symmetries, the least broken first.

    Args:
        basis: coefficients, see `_simple_fields`, also for ``terms``, ``variables`` and ``moved``.
        exact: number of symmetries, the first rows of the basis.
        measure: the breaking of a field, from its coefficients ``[n]``.
    """
    symmetries, pivots = _reduced(basis[:exact])
    rest, _ = _reduced(basis[exact:] - basis[exact:][:, pivots] @ symmetries)
    found = []
    for row in rest:
        size = measure(row)
        # the simplest coefficients that break it no more than twice as much
        choices = ([_simple(float(value), tolerance) for value in row] for tolerance in _BROKEN_FRACTION_TOLERANCES)
        chosen = next((c for c in choices if any(c) and measure(np.array(c, dtype=float)) <= 2 * size), None)
        if chosen is not None and size < MAX_BROKEN:
            numbers = np.array(chosen, dtype=float)
            found.append((chosen, measure(numbers)))
    found.sort(key=lambda pair: pair[1])
    return [
        BrokenSymmetry(_field(f"B{i + 1}", row, terms, variables, moved), size) for i, (row, size) in enumerate(found)
    ]


def _reduced(basis: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[int]]:
    """A basis of the same space in which well-conditioned columns are the identity, and their numbers."""
    if not len(basis):
        return basis, []
    pivots = sorted(pivot_columns(basis)[0])
    return np.asarray(np.linalg.solve(basis[:, pivots], basis), dtype=np.float64), pivots


def _field(
    name: str,
    numbers: Sequence[sp.Rational],
    terms: list[sp.Expr],
    variables: tuple[sp.Symbol, ...],
    moved: Sequence[int] | None,
) -> Symmetry:
    """The field with given coefficients, see `_simple_fields`."""
    components = [sp.S.Zero] * len(variables)
    parts = np.array(numbers, dtype=object).reshape(-1, len(terms))
    for place, part in zip(range(len(variables)) if moved is None else moved, parts, strict=True):
        components[place] = sp.Add(*(c * e for c, e in zip(part, terms, strict=True)))
    return Symmetry(name, tuple(components), variables)


def _simple(value: float, tolerance: float) -> sp.Rational:
    """The fraction of smallest denominator within a tolerance."""
    for denominator in range(1, _MAX_DENOMINATOR):
        nearest = Fraction(round(value * denominator), denominator)
        if abs(float(nearest) - value) <= tolerance:
            return sp.Rational(nearest.numerator, nearest.denominator)
    return sp.Rational(str(round(value, 9)))
