r"""Decompositions of Lie algebras with rational structure constants, in exact arithmetic.

Every rank is certain, whatever the basis. Subspaces are lists of row-reduced rows of `fractions.Fraction`, see
`trivgeo.groups.exact_algebra`.

Sources: W. A. de Graaf, Lie Algebras: Theory and Algorithms (2000), sections 2.2, 2.3, 3.2, 4.13; for algebras that do
not split over their nilradical, the splittable hull of A. I. Malcev (1945), see C. Chevalley, Theorie des groupes de
Lie III (1955).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from trivgeo.errors import AlgebraError

__all__ = [
    "RationalAlgebra",
    "RationalLeviDecomposition",
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


_MAX_TRIALS = 20  # of random elements, each of which fails on a set of measure zero


@dataclass(frozen=True)
class RationalLeviDecomposition:
    """Levi decomposition in rational numbers, as `trivgeo.groups.structure.LeviDecomposition`.

    Attributes:
        semisimple: rows that span the Levi factor.
        torus: rows that span a torus which commutes with it.
        ideal: rows that span the nilpotent ideal.
        derivations: matrices of the torus on the ideal, ``None`` for a torus in the algebra.
    """

    semisimple: Rows
    torus: Rows
    ideal: Rows
    derivations: list[Rows] | None


class RationalAlgebra:
    """A Lie algebra over the rational numbers.

    Args:
        constants: ``[e_i, e_j] = sum_k constants[i][j][k] e_k``.

    Raises:
        AlgebraError: they are not antisymmetric, or fail the Jacobi identity.
    """

    def __init__(self, constants: Sequence[Sequence[Sequence[Fraction]]]) -> None:
        self.dim = n = len(constants)
        self._constants = constants
        self._table = [[{k: x for k, x in enumerate(row) if x} for row in block] for block in constants]
        self._everything = identity(n)
        self._ad = [transpose([list(row) for row in block]) for block in constants]
        for i, j in itertools.combinations_with_replacement(range(n), 2):
            if any(x + y for x, y in zip(constants[i][j], constants[j][i], strict=True)):
                raise AlgebraError("expected antisymmetric structure constants, got others")
        e = self._everything
        for i, j, k in itertools.combinations(range(n), 3):
            cycle = (self.bracket(e[a], self.bracket(e[b], e[c])) for a, b, c in ((i, j, k), (j, k, i), (k, i, j)))
            if any(sum(terms) for terms in zip(*cycle, strict=True)):
                raise AlgebraError("expected structure constants that satisfy the Jacobi identity, got others")

    def floats(self) -> list[list[list[float]]]:
        """The constants in floating point."""
        return [[[float(x) for x in row] for row in block] for block in self._constants]

    def bracket(self, a: Row, b: Row) -> Row:
        """Return the bracket [a, b] of rows of coordinates a and b."""
        total = [_ZERO] * self.dim
        right = [(j, y) for j, y in enumerate(b) if y]
        for i, x in enumerate(a):
            if x:
                for j, y in right:
                    for k, c in self._table[i][j].items():
                        total[k] += x * y * c
        return total

    def ad(self, x: Row) -> Rows:
        """Return the matrix of ad(x) for a row of coordinates x; the matrix acts on columns."""
        return transpose([self.bracket(x, e) for e in self._everything])

    def _brackets(self, a: Rows, b: Rows) -> Rows:
        return row_space(self.bracket(x, y) for x, y in itertools.product(a, b))

    def _centralizer(self, of: Rows, inside: Rows) -> Rows:
        """The elements of ``inside`` that commute with ``of``."""
        if not of or not inside:
            return inside
        columns = [[x for y in of for x in self.bracket(v, y)] for v in inside]
        return row_space(combination(w, inside) for w in null_space(transpose(columns), len(inside)))

    def _series(self, start: Rows) -> list[Rows]:
        """Derived series down to zero, or to what repeats."""
        series = [start]
        while series[-1] and len(following := self._brackets(series[-1], series[-1])) < len(series[-1]):
            series.append(following)
        return series

    def _is_nilpotent(self, rows: Rows) -> bool:
        lower = rows
        while lower:
            following = self._brackets(rows, lower)
            if len(following) == len(lower):
                return False
            lower = following
        return True

    def radical(self) -> Rows:
        """The orthogonal complement of [g, g] under the Killing form."""
        derived = self._brackets(self._everything, self._everything)
        sparse = [[(k, j, x) for k, row in enumerate(m) for j, x in enumerate(row) if x] for m in self._ad]
        killing = [[sum((x * b[j][k] for k, j, x in a), _ZERO) for b in self._ad] for a in sparse]
        return null_space(product(derived, killing), self.dim) if derived else self._everything

    def nilradical(self, radical: Rows) -> Rows:
        """Return the elements x of the radical with tr(ad(x) ad(y)^k) = 0 for all k and one y in general position.

        All of ad(radical) is triangular in one complex basis (Lie). Therefore these traces are sums over its weights.

        Raises:
            AlgebraError: no y that was tried is in general position.
        """
        for y in self._random(radical):
            ad = self.ad(y)
            power, equations = identity(self.dim), []
            for _ in range(self.dim):
                back = transpose(power)
                equations.append([trace_of_product(self._ad_of(x), back) for x in radical])
                power = product(power, ad)
            found = row_space(combination(w, radical) for w in null_space(equations, len(radical)))
            if self._is_nilpotent(found):
                return found
        raise AlgebraError("expected a nilradical, found none")

    def _ad_of(self, x: Row) -> Rows:
        total = [[_ZERO] * self.dim for _ in range(self.dim)]
        for w, m in zip(x, self._ad, strict=True):
            if w:
                total = [[s + w * y for s, y in zip(r, q, strict=True)] for r, q in zip(total, m, strict=True)]
        return total

    def _random(self, rows: Rows) -> Iterable[Row]:
        generator = random.Random(0)
        for trial in range(_MAX_TRIALS):
            size = 11 * 2**trial
            yield combination([Fraction(generator.randint(1, size)) for _ in rows], rows) if rows else []

    def levi_factor(self, radical: Rows) -> Rows:
        """Return a semisimple complement of the radical, by linear equations down its derived series.

        Raises:
            AlgebraError: the equations have no solution: the rows are not those of the radical.
        """
        x = complement(radical, self._everything)
        r = len(x)
        if not r:
            return []
        series = self._series(radical)
        pairs = list(itertools.combinations(range(r), 2))
        gamma = None
        for larger, smaller in itertools.pairwise([*series, []] if series[-1] else series):
            # y_i in a complement of the smaller ideal, with [x_i + y_i, x_j + y_j] = gamma (x + y) modulo it
            layer = complement(smaller, larger)
            below = [*x, *layer, *smaller]
            back = inverse([*below, *complement(below, self._everything)])
            size = len(layer)

            def within(v: Row, back: Rows = back, size: int = size) -> tuple[Row, Row]:
                w = combination(v, back)
                return w[:r], w[r : r + size]

            if gamma is None:
                gamma = {(i, j): within(self.bracket(x[i], x[j]))[0] for i, j in pairs}
            act = [[within(self.bracket(a, b))[1] for b in layer] for a in x]
            system = []
            for i, j in pairs:
                g = gamma[i, j]
                rest = within([p - q for p, q in zip(self.bracket(x[i], x[j]), combination(g, x), strict=True)])[1]
                for k in range(size):
                    equation = [_ZERO] * (r * size + 1)
                    for b in range(size):
                        equation[j * size + b] += act[i][b][k]
                        equation[i * size + b] -= act[j][b][k]
                    for c in range(r):
                        equation[c * size + k] -= g[c]
                    equation[-1] = -rest[k]
                    system.append(equation)
            matrix, pivots = row_echelon(system) if system else ([], [])
            if pivots and pivots[-1] == r * size:
                raise AlgebraError("expected a Levi factor, found none")
            y = [_ZERO] * (r * size)
            for row, p in zip(matrix, pivots, strict=True):
                y[p] = row[-1]
            for i in range(r):
                shift = combination(y[i * size : (i + 1) * size], layer) if size else [_ZERO] * self.dim
                x[i] = [p + q for p, q in zip(x[i], shift, strict=True)]
        return row_space(x)

    def cartan_subalgebra(self, rows: Rows) -> Rows:
        """Return a Cartan subalgebra of the span of rows: where a regular element, with few coordinates, is nilpotent.

        Raises:
            AlgebraError: no element that was tried is regular.
        """
        pairs = itertools.combinations(range(len(rows)), 2)
        few = [*rows, *([a + 2 * b for a, b in zip(rows[i], rows[j], strict=True)] for i, j in pairs)]
        dense = list(itertools.islice(self._random(rows), 3))
        regular = min(len(self._fitting_null(rows, x)) for x in dense)
        for x in itertools.chain(few, dense):
            found = self._fitting_null(rows, x)
            if len(found) == regular and self._is_nilpotent(found):
                return found
        raise AlgebraError("expected a Cartan subalgebra, found none")

    def _fitting_null(self, rows: Rows, x: Row) -> Rows:
        """The elements of a subalgebra that powers of ad(x) annihilate."""
        space: Rows = []
        while True:
            # what ad(x) maps into the space found so far
            images = [self.bracket(x, y) for y in rows]
            columns = [list(c) for c in zip(*images, *space, strict=True)]
            grown = row_space(combination(w[: len(rows)], rows) for w in null_space(columns, len(rows) + len(space)))
            if len(grown) == len(space):
                return space
            space = grown

    def split(self) -> RationalLeviDecomposition:
        """Levi factor, torus and nilradical; derivations where the torus does not split off."""
        radical = self.radical()
        ideal = self.nilradical(radical)
        levi = self.levi_factor(radical)
        missing = len(radical) - len(ideal)
        if not missing:
            return RationalLeviDecomposition(levi, [], ideal, None)
        cartan = self.cartan_subalgebra(self._centralizer(levi, radical))
        central = self._centralizer(cartan, cartan)
        torus = complement(intersection(ideal, central), central)
        if len(torus) == missing:
            return RationalLeviDecomposition(levi, torus, ideal, None)
        torus = complement(intersection(ideal, cartan), cartan)
        if not any(any(self.bracket(x, y)) for x, y in itertools.combinations(torus, 2)):
            return RationalLeviDecomposition(levi, torus, ideal, None)
        return RationalLeviDecomposition(levi, torus, ideal, [semisimple_part(self.ad(x)) for x in torus])
