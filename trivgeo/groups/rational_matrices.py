"""Matrices of fractions: reduced row echelon form, subspaces, and the semisimple part of a matrix.

By hand: `trivgeo.groups.from_generators` decomposes the algebra of torch functions exactly where neither SymPy nor
python-flint is installed. `tests/groups/test_bases.py` compares with SymPy's matrices. Subspaces are lists of
row-reduced rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

__all__ = [
    "Row",
    "Rows",
    "combination",
    "complement",
    "identity",
    "intersection",
    "inverse",
    "null_space",
    "product",
    "row_echelon",
    "row_space",
    "semisimple_part",
    "trace_of_product",
    "transpose",
]

Row = list[Fraction]
Rows = list[Row]
_ZERO, _ONE = Fraction(0), Fraction(1)


def row_echelon(rows: Iterable[Sequence[Fraction]]) -> tuple[Rows, list[int]]:
    """Return the reduced row echelon form of ``rows`` without its zero rows, and the columns of its pivots."""
    done: dict[int, dict[int, Fraction]] = {}
    for given in rows:
        row = {k: x for k, x in enumerate(given) if x}
        width = len(given)
        for k in sorted(row):
            if k in done and row.get(k):
                _subtract(row, done[k], row[k])
        if not row:
            continue
        pivot = min(row)
        scale = 1 / row[pivot]
        row = {k: x * scale for k, x in row.items()}
        for other in done.values():
            if other.get(pivot):
                _subtract(other, row, other[pivot])
        done[pivot] = row
    pivots = sorted(done)
    return [[done[p].get(k, _ZERO) for k in range(width)] for p in pivots], pivots


def _subtract(row: dict[int, Fraction], other: dict[int, Fraction], factor: Fraction) -> None:
    for k, x in other.items():
        value = row.get(k, _ZERO) - factor * x
        if value:
            row[k] = value
        else:
            row.pop(k, None)


def row_space(rows: Iterable[Sequence[Fraction]]) -> Rows:
    """Return reduced rows with the span of ``rows``."""
    return row_echelon(rows)[0]


def null_space(rows: Iterable[Sequence[Fraction]], n: int) -> Rows:
    """Return rows that span ``{x : rows x = 0}`` in dimension n."""
    matrix, pivots = row_echelon(rows)
    free = [k for k in range(n) if k not in pivots]
    result = []
    for f in free:
        x = [_ZERO] * n
        x[f] = _ONE
        for row, p in zip(matrix, pivots, strict=True):
            x[p] = -row[f]
        result.append(x)
    return row_space(result)


def complement(inside: Rows, candidates: Rows) -> Rows:
    """Return those of the rows ``candidates`` that complete the span of ``inside`` to the span of both, earlier
    ones first.
    """
    columns = [list(c) for c in zip(*inside, *candidates, strict=True)]
    _, pivots = row_echelon(columns)
    return [candidates[p - len(inside)] for p in pivots if p >= len(inside)]


def intersection(a: Rows, b: Rows) -> Rows:
    """Return rows that span the intersection of the row spans of a and b."""
    if not (a and b):
        return []
    columns = [list(c) for c in zip(*a, *b, strict=True)]
    return row_space(combination(x[: len(a)], a) for x in null_space(columns, len(a) + len(b)))


def combination(weights: Sequence[Fraction], rows: Rows) -> Row:
    """Return the sum of ``rows``, each times its number in ``weights``."""
    total = [_ZERO] * len(rows[0])
    for w, row in zip(weights, rows, strict=True):
        if w:
            total = [s + w * x if x else s for s, x in zip(total, row, strict=True)]
    return total


def product(a: Rows, b: Rows) -> Rows:
    """Return the matrix product of a and b."""
    return [combination(row, b) for row in a]


def inverse(a: Rows) -> Rows:
    """Return the inverse of the matrix a.

    Raises:
        ZeroDivisionError: the matrix is singular.
    """
    n = len(a)
    matrix, pivots = row_echelon([[*row, *unit] for row, unit in zip(a, identity(n), strict=True)])
    if pivots[:n] != list(range(n)):
        raise ZeroDivisionError("singular matrix")
    return [row[n:] for row in matrix]


def identity(n: int) -> Rows:
    """Return the identity matrix of size n."""
    return [[_ONE if i == k else _ZERO for k in range(n)] for i in range(n)]


def transpose(a: Rows) -> Rows:
    """Return the columns of a as rows."""
    return [list(column) for column in zip(*a, strict=True)]


def _trace(a: Rows) -> Fraction:
    return sum((row[i] for i, row in enumerate(a)), _ZERO)


def semisimple_part(matrix: Rows) -> Rows:
    """Return S of the Jordan decomposition S + N of ``matrix``.

    Newton's iteration for the square-free part of the characteristic polynomial.
    """
    p = _square_free(_characteristic_polynomial(matrix))
    slope = [k * x for k, x in enumerate(p)][1:]
    while any(map(any, value := _evaluate(p, matrix))):
        step = product(value, inverse(_evaluate(slope, matrix)))
        matrix = [[x - y for x, y in zip(r, s, strict=True)] for r, s in zip(matrix, step, strict=True)]
    return matrix


def _characteristic_polynomial(a: Rows) -> Row:
    """Coefficients from the constant on, by the recursion of Faddeev and Le Verrier."""
    n = len(a)
    coefficients = [_ONE]
    m = [[_ZERO] * n for _ in range(n)]
    for k in range(1, n + 1):
        m = [[x + coefficients[-1] * (i == j) for j, x in enumerate(row)] for i, row in enumerate(m)]
        m = product(a, m)
        coefficients.append(-_trace(m) / k)
    return coefficients[::-1]


def _square_free(p: Row) -> Row:
    q = [k * x for k, x in enumerate(p)][1:]
    a, b = p, q
    while any(b):
        a, b = b, _divide(a, b)[1]
    return _divide(p, a)[0]


def _divide(a: Row, b: Row) -> tuple[Row, Row]:
    """Quotient and remainder of polynomials."""
    b = b[: max(k for k, x in enumerate(b) if x) + 1]
    rest, quotient = list(a), []
    while len(rest) >= len(b):
        factor = rest[-1] / b[-1]
        quotient.append(factor)
        shift = len(rest) - len(b)
        rest = [x - factor * b[k - shift] if k >= shift else x for k, x in enumerate(rest)][:-1]
    return quotient[::-1] or [_ZERO], rest


def _evaluate(p: Row, matrix: Rows) -> Rows:
    unit = identity(len(matrix))
    total = [[p[-1] * x for x in row] for row in unit]
    for x in reversed(p[:-1]):
        total = product(total, matrix)
        total = [[y + x * (i == j) for j, y in enumerate(row)] for i, row in enumerate(total)]
    return total


def trace_of_product(a: Rows, b_transposed: Rows) -> Fraction:
    """Return the trace of a times b, where b is given as ``b_transposed``."""
    return sum((x * y for r, s in zip(a, b_transposed, strict=True) for x, y in zip(r, s, strict=True) if x), _ZERO)
