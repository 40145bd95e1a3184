"""The span of vector fields: constants of their brackets, and bases in which these are simple or well conditioned.

`fit_brackets` finds the constants by least squares, which leave no rounding errors in place of zeros and simple
fractions (`least_squares`). `simple_basis` reads a basis, and for polynomials the exact algebra, off SymPy expressions;
`evaluation_basis` is well conditioned for any fields.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from trivgeo._random import integers
from trivgeo.errors import AlgebraError
from trivgeo.expressions import require_sympy
from trivgeo.groups.from_generators.fields import VectorFields, sample_points, values_and_jacobians
from trivgeo.groups.ground_fields import RATIONALS, Array, pivot_columns
from trivgeo.groups.structure import LieStructure, describe, rational_structure

SUM_ROUNDING = 1e-13  # rounding error of a sum, relative to the sizes of its terms
DENOMINATOR = 12  # denominator of the simple fractions that constants are taken for
_LSTSQ_RANK_TOLERANCE = 1e-15  # singular values below this share of the largest are rounding errors
_FRACTION_ROUNDING = 1e-11  # relative distance of a number from the fraction that it is taken for
_MAX_SHARE_OFF_SPAN = 1e-8  # length of the part of a bracket off the span, relative to the bracket, that counts as zero
_BRACKET_ROUNDING = 1e-12  # rounding error of a bracket, relative to its terms
_RANK_TOLERANCE = 1e-9  # singular values below this share of the largest belong to dependent fields
_MAX_EXACT_DENOMINATOR = 10**6  # denominator of an exact number
_MAX_SIMPLE_DENOMINATOR = 1000  # denominator of a fraction that a rounded number is taken for
_BASIS_ROUNDING = 1e-10  # rounding error of a rounded number, relative to one plus the largest


def least_squares(design: Tensor, target: Tensor, size: Tensor, denominator: int = 1) -> Tensor:
    """Coefficients with ``design x = target``, ``[k, c]``, without rounding errors in place of zeros and fractions.

    The rounding error of a coefficient depends on the condition of the design: far from the origin, where 1, x and
    x^2 are nearly dependent, it is much larger than the target's. A coefficient within this error of zero or a simple
    fraction is set to it if the others then fit the target as well; a small one that the target needs is kept.

    Args:
        design: ``[e, k]``.
        target: ``[e, c]``.
        size: the sizes of the terms whose sum each target is, as norms over the equations, ``[c]``.
        denominator: denominator of the simple fractions.
    """
    length = design.norm(dim=0)
    length = torch.where(length > 0, length, 1.0).unsqueeze(-1)
    unit = design / length.T
    _, singular, rows = torch.linalg.svd(unit, full_matrices=False)
    kept = singular > _LSTSQ_RANK_TOLERANCE * singular[0]
    # the shift of each coefficient by a shift of length one of the target
    spread = (rows[kept] / singular[kept, None]).norm(dim=0).unsqueeze(-1) / length
    x = _solve(unit, target) / length
    missed = (design @ x - target).norm(dim=0)
    allowed = SUM_ROUNDING * (size + (x.abs() * length).sum(0)) + 2.0 * missed
    for d in (0, denominator):
        near = (d * x).round() / max(1, d)
        close = (x - near).abs() <= spread * allowed
        trial = torch.where(close, near, 0.0)
        rest = target - design @ trial
        patterns, of = torch.unique(close, dim=1, return_inverse=True)
        for index, pattern in enumerate(patterns.T):
            columns, free = (of == index).nonzero().squeeze(-1), (~pattern).nonzero().squeeze(-1)
            if len(free):
                trial[free[:, None], columns] = _solve(unit[:, free], rest[:, columns]) / length[free]
        x = torch.where((design @ trial - target).norm(dim=0) <= allowed, trial, x)
    return snap(x, denominator)


def _solve(design: Tensor, target: Tensor) -> Tensor:
    return torch.linalg.lstsq(design, target, driver="gelsd").solution


def without_cancelled(x: Tensor, terms: Tensor) -> Tensor:
    """Set numbers x to zero where they are rounding errors of sums of terms of these total sizes."""
    return torch.where(x.abs() <= SUM_ROUNDING * terms, 0.0, x)


def snap(x: Tensor, denominator: int = 1) -> Tensor:
    """Round entries of x that are within rounding of an integer over ``denominator``; only zero becomes zero."""
    near = (denominator * x).round() / denominator
    return torch.where((x - near).abs() < _FRACTION_ROUNDING * x.abs(), near, x)


def fit_brackets(fields: VectorFields, sampler: Callable[[int], Tensor] | None) -> Tensor:
    """Fit the constants of the brackets ``[X_i, X_j] = DX_j X_i - DX_i X_j`` of vector fields, ``[n, n, n]``.

    Least squares at random points, normal ones without a ``sampler``, are tested at as many others.

    Raises:
        AlgebraError: the fields are dependent over R (the relation is named), or a bracket leaves their span (the
            bracket is named, with the share of it that does).
    """
    n, m = len(fields), fields.dim
    left, right = torch.triu_indices(n, n, 1)
    count = 3 * n // m + 4
    points = sample_points(fields, 2 * count, sampler)
    values, jacobians = values_and_jacobians(fields, points)
    products = torch.einsum("pjab,pib->paij", jacobians, values)
    brackets = (products - products.mT)[..., left, right]
    # the sizes of terms that may cancel: rounding is relative to them
    terms = torch.einsum("pjab,pib->paij", *reversed(fields.sizes(points)))
    whole = (terms + terms.mT)[..., left, right].reshape(2, count * m, len(left)).norm(dim=1)
    design = values.transpose(1, 2).reshape(2, -1, n)  # halves, equations, fields
    targets = brackets.reshape(2, count * m, len(left))
    length = design[0].norm(dim=0)
    if bool((length == 0).any()):
        zero = fields.names[int((length == 0).int().argmax())]
        raise AlgebraError(f"fields: expected independent ones, but {zero} vanishes identically")
    _, singular, rows = torch.linalg.svd(design[0] / length)
    if float(singular[-1]) < _RANK_TOLERANCE * float(singular[0]):
        relation = rows[-1] / length
        relation = relation / relation[relation.abs().argmax()]
        raise AlgebraError(f"fields: expected independent ones over R, got {describe(relation, fields.names)} = 0")
    c = torch.zeros(n, n, n, dtype=torch.float64)
    if n == 1:
        return c
    solution = least_squares(design[0], targets[0], whole[0], denominator=DENOMINATOR)
    residual = (design[1] @ solution - targets[1]).norm(dim=0)
    share = residual / targets[1].norm(dim=0).clamp(min=1e-300)
    share = torch.where(residual > _BRACKET_ROUNDING * whole[1], share, 0.0)
    if float(share.max()) > _MAX_SHARE_OFF_SPAN:
        worst = int(share.argmax())
        raise AlgebraError(
            f"fields: expected brackets in their span, but [{fields.names[int(left[worst])]}, "
            f"{fields.names[int(right[worst])]}] is off the span by {100 * float(share.max()):.1f} %: the fields do "
            "not close under the bracket"
        )
    c[left, right] = solution.T
    return c - c.transpose(0, 1)


Coefficients = Mapping[Any, Fraction]


@dataclass(frozen=True)
class SimpleBasis:
    """Fields Y with the span of the given X.

    Attributes:
        vectors: the fields Y, as vectors of expressions.
        mixing: X in terms of Y, ``X = mixing Y``, ``[n, n]``.
        algebra: the exact algebra, with the sign of the group, if the Y are rational polynomials, else ``None``.
    """

    vectors: list[tuple[Any, ...]]
    mixing: Tensor
    algebra: LieStructure[Array] | None


def simple_basis(vectors: Sequence[Sequence[Any]], variables: Sequence[Any]) -> SimpleBasis | None:
    """The fields themselves if each has a term that no other has, else their row-reduced combinations.

    ``None`` if a coefficient is not rational, or there is a linear relation between the fields.
    """
    # products are not expanded unless they have to be: expanded ones lose digits by cancellation
    return _simple(vectors, variables, expanded=False) or _simple(vectors, variables, expanded=True)


def _simple(vectors: Sequence[Sequence[Any]], variables: Sequence[Any], *, expanded: bool) -> SimpleBasis | None:
    """The simple basis in terms of products, or of their expanded terms."""
    n = len(vectors)
    monomials: dict[Any, Any] = {}  # (component, key) to the expression of the function
    rows = []
    for vector in vectors:
        row: dict[Any, Fraction] = {}
        for component, entry in enumerate(vector):
            for function, number in _terms(entry, variables, expanded):
                if not number.is_Rational:
                    return None
                key = (component, function)
                monomials.setdefault(key, function)
                row[key] = row.get(key, Fraction(0)) + Fraction(int(number.p), int(number.q))
        rows.append({key: x for key, x in row.items() if x})
    keys = list(monomials)
    owners = {key: [i for i, row in enumerate(rows) if key in row] for key in keys}
    private = {owner[0]: key for key, owner in reversed(owners.items()) if len(owner) == 1}
    if len(private) == n:
        pivots = [private[i] for i in range(n)]
        fields: list[tuple[Any, ...]] = [tuple(vector) for vector in vectors]
        mixing = torch.eye(n, dtype=torch.float64)
    else:
        table = [[row.get(key, Fraction(0)) for key in keys] for row in rows]
        found = _reduced_decimals(table)
        if found is None and not expanded and _looks_rounded(table):
            return None
        if found is None:
            reduced, columns = RATIONALS.row_echelon(RATIONALS.array(table))
            matrix = RATIONALS.fractions(reduced)
        else:
            matrix, columns = found
        if len(matrix) < n:
            return None
        pivots = [keys[c] for c in columns]
        mixing = torch.tensor([[float(row[c]) for c in columns] for row in table], dtype=torch.float64)
        rows = [{key: x for key, x in zip(keys, row, strict=True) if x} for row in matrix]
        fields = [_expressions(row, len(variables)) for row in rows]
    scales = [row[p] for row, p in zip(rows, pivots, strict=True)]
    return SimpleBasis(fields, mixing, _algebra(fields, variables, pivots, scales))


def _reduced_decimals(table: Sequence[Sequence[Fraction]]) -> tuple[list[list[Fraction]], list[int]] | None:
    """Row-reduced form of rounded numbers, by floating-point pivots: small numbers are rounding errors.

    ``None`` if no number looks rounded, or the result is not rational.
    """
    n = len(table)
    if len(table[0]) < n or not _looks_rounded(table):
        return None
    a = torch.tensor([[float(x) for x in row] for row in table], dtype=torch.float64)
    order, ratio = pivot_columns(a.numpy())
    if ratio <= _RANK_TOLERANCE:
        return None
    columns = sorted(order)
    rows = torch.linalg.solve(a[:, columns], a)
    matrix = [[Fraction(x).limit_denominator(_MAX_SIMPLE_DENOMINATOR) for x in row] for row in rows.tolist()]
    exact = torch.tensor([[float(x) for x in row] for row in matrix], dtype=torch.float64)
    if float((exact - rows).abs().max()) > _BASIS_ROUNDING * (1.0 + float(rows.abs().max())):
        return None
    return matrix, columns


def _looks_rounded(table: Sequence[Sequence[Fraction]]) -> bool:
    return any(x.denominator > _MAX_EXACT_DENOMINATOR for row in table for x in row)


def _terms(expression: Any, variables: Sequence[Any], expanded: bool) -> list[tuple[Any, Any]]:
    """The terms of a sum, as pairs of the factor that depends on the variables and its coefficient."""
    sp = require_sympy()
    if expression.is_polynomial(*variables):
        terms = sp.Poly(expression, *variables).terms()
        return [(sp.Mul(*(x**k for x, k in zip(variables, m, strict=True))), c) for m, c in terms if c]
    terms = sp.Add.make_args(sp.expand(expression) if expanded else expression)
    parts = (term.as_independent(*variables, as_Add=False) for term in terms)
    return [(function, number) for number, function in parts]


def _expressions(row: Coefficients, count: int) -> tuple[Any, ...]:
    """The vector field of ``count`` components with the coefficients ``row``."""
    sp = require_sympy()
    parts: list[list[Any]] = [[] for _ in range(count)]
    for (component, function), x in row.items():
        parts[component].append(sp.Rational(x.numerator, x.denominator) * function)
    return tuple(sp.Add(*part) for part in parts)


def _algebra(
    fields: Sequence[Sequence[Any]], variables: Sequence[Any], pivots: Sequence[Any], scales: Sequence[Fraction]
) -> LieStructure[Array] | None:
    """The exact algebra of polynomial fields: coordinates of a bracket are its coefficients at the pivots.

    ``None`` if the fields are not polynomials, or do not close.
    """
    sp = require_sympy()
    if not all(entry.is_polynomial(*variables) for field in fields for entry in field):
        return None
    ring, *symbols = sp.ring(list(variables), sp.QQ)
    n = len(fields)
    polynomials = [[ring.from_expr(sp.sympify(entry)) for entry in field] for field in fields]
    slopes = [[[p.diff(x) for x in symbols] for p in field] for field in polynomials]
    places = [(component, tuple(sp.Poly(function, *variables).monoms()[0])) for component, function in pivots]
    constants = [[[Fraction(0)] * n for _ in range(n)] for _ in range(n)]
    for i, j in itertools.combinations(range(n), 2):
        bracket = [
            sum((x * d for x, d in zip(polynomials[i], slopes[j][a], strict=True) if x and d), ring.zero)
            - sum((x * d for x, d in zip(polynomials[j], slopes[i][a], strict=True) if x and d), ring.zero)
            for a in range(len(symbols))
        ]
        for k, (component, monomial) in enumerate(places):
            number = bracket[component].get(monomial, ring.domain.zero)
            if not number:
                continue
            value = Fraction(int(number.numerator), int(number.denominator)) / scales[k]
            constants[i][j][k], constants[j][i][k] = -value, value  # brackets of a group are minus those of its fields
            exact = ring.domain(value.numerator) / ring.domain(value.denominator)
            bracket = [b - exact * p for b, p in zip(bracket, polynomials[k], strict=True)]
        if any(bracket):
            return None
    return rational_structure(constants)


def evaluation_basis(fields: VectorFields, points: Tensor) -> Tensor:
    """Weights ``[n, n]`` of the basis ``weights X`` of which n components at chosen points are the unit matrix.

    This basis is well conditioned whatever that of the X. The points are taken from a coarse grid if the fields are
    finite there, so that constants that are rational in some basis come out as small fractions.

    Args:
        points: other points where they are finite, ``[p, m]``.

    Raises:
        AlgebraError: the fields are dependent.
    """
    n, m = len(fields), fields.dim
    generator = torch.Generator().manual_seed(0)
    grid = 0.5 * integers(5, (8 * n, m), points, generator).double() - 1.0
    for places in (grid, points):
        values, derivatives = values_and_jacobians(fields, places)
        finite = torch.isfinite(values).flatten(1).all(-1) & torch.isfinite(derivatives).flatten(1).all(-1)
        table = values[finite].transpose(0, 1).reshape(n, -1)
        if table.shape[-1] < n:
            continue
        order, ratio = pivot_columns(table.numpy())
        if ratio > _RANK_TOLERANCE:
            return torch.linalg.inv(table[:, order])
    raise AlgebraError("fields: expected independent ones over R")
