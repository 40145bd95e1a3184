r"""One-dimensional subalgebras up to inner automorphisms.

A line through v is moved by the group as :math:`v \mapsto \mathrm{Ad}(g) v`. Lines are told apart along a chain of
subspaces: what keeps v modulo a subspace i acts on the next coefficient, that in i / j, by affine maps. Either some are
translations, and the coefficient can be made 0; or they have one fixed point, and it is that, or one more, or one less;
or nothing moves, and the coefficient tells lines apart. If weights are real that is all; half turns, which keep v or
send it to -v, are applied to the list afterwards (Patera and Winternitz 1977; Olver 1993, section 3.3).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import overload

import numpy as np
import sympy as sp
import torch
from numpy.typing import NDArray

from trivgeo.errors import AlgebraError
from trivgeo.groups.exact_algebra import RationalAlgebra

__all__ = [
    "Floats",
    "Line",
    "LineKind",
    "LineNode",
    "LineSearch",
    "NonzeroFactors",
    "OptimalSystem",
    "RationalConstants",
    "Row",
    "Rows",
    "combination",
    "coordinates",
    "exponential_of_ad",
    "float_coordinates",
    "null_space",
    "optimal_system",
    "row_echelon",
    "to_floats",
    "transpose",
]

Floats = NDArray[np.float64]
Row = list[sp.Expr]
Rows = list[Row]
NonzeroFactors = set[sp.Expr]
"""Expressions of the parameters that were taken not to vanish."""


def combination(weights: Sequence[sp.Expr], rows: Rows) -> Row:
    """Return the sum of ``rows``, each times its factor in ``weights``."""
    columns = zip(*rows, strict=True)
    return [sp.cancel(sp.Add(*(w * c for w, c in zip(weights, column, strict=True)))) for column in columns]


def transpose(rows: Rows) -> Rows:
    """Return the columns of ``rows`` as rows."""
    return [list(column) for column in zip(*rows, strict=True)]


def row_echelon(rows: Rows, assumed: NonzeroFactors) -> tuple[Rows, list[int]]:
    """Return the reduced echelon form without zero rows, and its pivot columns.

    Args:
        rows: the matrix, with parameters.
        assumed: receives pivots with parameters, which are taken as nonzero; numbers are preferred as pivots.
    """
    left = [list(row) for row in rows]
    done: Rows = []
    pivots: list[int] = []
    for column in range(len(left[0]) if left else 0):
        candidates = [row for row in left if row[column] != 0]
        if not candidates:
            continue
        chosen = min(candidates, key=lambda row: len(row[column].free_symbols))
        left.remove(chosen)
        if chosen[column].free_symbols:
            assumed.add(chosen[column])
        unit = [sp.cancel(c / chosen[column]) for c in chosen]
        for other in (left, done):
            for i, row in enumerate(other):
                if row[column] != 0:
                    other[i] = [sp.cancel(a - row[column] * b) for a, b in zip(row, unit, strict=True)]
        done.append(unit)
        pivots.append(column)
    return done, pivots


def null_space(rows: Rows, assumed: NonzeroFactors, width: int = 0) -> Rows:
    """Return a basis of the columns that a matrix sends to zero; a matrix without rows needs its ``width``.

    Args:
        rows: the matrix.
        assumed: factors that are taken not to vanish, see `row_echelon`.
        width: number of columns.
    """
    reduced, pivots = row_echelon(rows, assumed)
    width = len(rows[0]) if rows else width
    basis = []
    for j in (j for j in range(width) if j not in pivots):
        vector = [sp.Integer(i == j) for i in range(width)]
        for row, pivot in zip(reduced, pivots, strict=True):
            vector[pivot] = -row[j]
        basis.append(vector)
    return basis


def coordinates(basis: Rows, target: Row, assumed: NonzeroFactors) -> Row:
    """Return the coordinates of ``target`` in a basis of a space that holds it; see `row_echelon` for ``assumed``."""
    reduced, pivots = row_echelon(transpose([*basis, target]), assumed)
    assert pivots == list(range(len(basis))), "a vector off the space"
    return [row[-1] for row in reduced]


def to_floats(row: Row, numbers: dict[sp.Symbol, float]) -> Floats:
    """Return a row in floating point, at values ``numbers`` of the parameters."""
    return np.array([float(c.subs(numbers) if c.free_symbols else c) for c in map(sp.sympify, row)])


def float_coordinates(basis: Rows, v: Floats, numbers: dict[sp.Symbol, float]) -> Floats:
    """Return the coordinates of v in a basis of rows, at values ``numbers`` of the parameters."""
    matrix = np.stack([to_floats(row, numbers) for row in basis], axis=1)
    return np.asarray(np.linalg.lstsq(matrix, v, rcond=None)[0])


def exponential_of_ad(constants: Floats, y: Floats) -> Floats:
    """Return the matrix of Ad(exp(y)) for structure constants ``constants``."""
    return np.asarray(torch.linalg.matrix_exp(torch.from_numpy(np.einsum("i,ijk->kj", y, constants))).numpy())


_ZERO_TOLERANCE = 1e-7


@dataclass
class LineNode:
    """Lines that are the same modulo a subspace, and the choice for the next coefficient.

    Attributes:
        vector: what the lines have in common.
        parameters: on which it may depend.
        block: the direction of the next coefficient, or two.
        below: a basis of what is left.
        movers: what moves the coefficient, to first order by ``rates``.
        children: one if the coefficient is made 0; three for a fixed point, more, and less; one if it is free.
        special: children for some values of the coefficient.
        kind: choice for the coefficient.
        line: number of a line at the end of the search.
    """

    vector: Row
    parameters: tuple[sp.Symbol, ...]
    block: Rows = field(default_factory=list)
    below: Rows = field(default_factory=list)
    movers: Rows = field(default_factory=list)
    rates: list[Row] = field(default_factory=list)
    children: list[LineNode] = field(default_factory=list)
    special: dict[sp.Expr, LineNode] = field(default_factory=dict)
    kind: str = "end"
    line: int = -1

    def leaves(self) -> Iterator[tuple[LineNode, dict[sp.Symbol, tuple[sp.Expr, ...]]]]:
        """The lines, with the values of parameters that are excluded."""
        if self.kind == "end":
            yield self, {}
        for child in self.children:
            for leaf, excluded in child.leaves():
                own = {child.parameters[-1]: tuple(self.special)} if self.kind == "free" else {}
                yield leaf, own | excluded
        for child in self.special.values():
            yield from child.leaves()


@dataclass
class LineKind:
    """Start of a search for lines: the first coefficient that does not vanish.

    Attributes:
        root: the lines of this kind.
        prepare: moves a vector so that it is of this kind, ``None`` if it is of a later one.
        turns: automorphisms that keep the kind.
    """

    root: LineNode
    prepare: Callable[[Floats], Floats | None]
    turns: list[Floats]


class RationalConstants:
    """Structure constants of a Lie algebra in rational numbers, with brackets of rows of coordinates."""

    def __init__(self, constants: Sequence[Sequence[Sequence[sp.Expr]]]) -> None:
        self.size = len(constants)
        numbers = [[[Fraction(int(c.p), int(c.q)) for c in row] for row in block] for block in constants]
        self.rational = RationalAlgebra(numbers)
        self.floats = np.array([[[float(c) for c in row] for row in block] for block in numbers]).reshape(
            (self.size,) * 3
        )
        self._terms = [
            (i, j, k, sp.sympify(constants[i][j][k]))
            for i, j, k in itertools.product(range(self.size), repeat=3)
            if constants[i][j][k] != 0
        ]

    def bracket(self, x: Row, y: Row) -> Row:
        """Return the bracket [x, y] of elements x and y, rows of rational coordinates."""
        result = [sp.S.Zero] * self.size
        for i, j, k, c in self._terms:
            if x[i] != 0 and y[j] != 0:
                result[k] += c * x[i] * y[j]
        return [sp.cancel(entry) for entry in result]


class LineSearch:
    """Search for all lines of an ``algebra`` up to inner automorphisms."""

    def __init__(self, algebra: RationalConstants) -> None:
        self._algebra = algebra
        self._whole = [[sp.Integer(i == j) for j in range(algebra.size)] for i in range(algebra.size)]
        rational = algebra.rational
        radical = rational.radical()
        self._radical = [[sp.Rational(x.numerator, x.denominator) for x in row] for row in radical]
        levi = rational.levi_factor(radical)
        self._levi = [[sp.Rational(x.numerator, x.denominator) for x in row] for row in levi]
        self._turns = self._is_beside_rotations()
        self._triple = self._split_triple() if levi and not self._turns else None

    def _is_beside_rotations(self) -> bool:
        """Whether the algebra is the direct sum of so(3) and its radical."""
        bracket = self._algebra.bracket
        if len(self._levi) != 3 or any(any(bracket(x, y)) for x in self._levi for y in self._radical):
            return False
        return bool((np.linalg.eigvalsh(self._angles()) > 0).all())

    def _angles(self) -> Floats:
        """The form on the Levi factor that is the square of the angle by which ``exp`` turns it, for so(3)."""
        ad = [[coordinates(self._levi, self._algebra.bracket(x, y), set()) for y in self._levi] for x in self._levi]
        ads = np.array([[to_floats(row, {}) for row in rows] for rows in ad])
        return np.asarray(-0.5 * np.einsum("iab,jba->ij", ads, ads))

    def _split_triple(self) -> Rows:
        """h, e, f of a Levi factor sl(2, R), with rational numbers.

        Raises:
            AlgebraError: it is none, or none was found.
        """
        bracket = self._algebra.bracket
        every = itertools.product(range(3), range(-2, 3), range(-2, 3)) if len(self._levi) == 3 else ()
        for weights in sorted(every, key=lambda w: sum(map(abs, w))):
            x = combination(weights, self._levi)
            ad = sp.Matrix([coordinates(self._levi, bracket(x, row), set()) for row in self._levi]).T
            root = sp.sqrt((ad * ad).trace() / 8)
            if root == 0 or not root.is_Rational:
                continue
            ends = [(ad / root - sign * 2 * sp.eye(3)).nullspace()[0] for sign in (1, -1)]
            h, e, f = [c / root for c in x], *(combination(list(end), self._levi) for end in ends)
            # [e, f] = s h
            s = coordinates([h], bracket(e, f), set())[0]
            return [h, e, [c / s for c in f]]
        raise AlgebraError(
            "expected a solvable algebra, one with the Levi factor sl(2, R) in a split basis, or the sum of so(3) and "
            "a solvable one"
        )

    def starts(self) -> Iterator[LineKind]:
        """The kinds of lines, by the first coefficient that does not vanish."""
        left = self._whole
        if self._triple is not None:
            yield from self._semisimple(*self._triple)
            left = self._radical
        if self._turns:
            yield self._axis()
            left = self._radical
        while left:
            block, below = self._quotient(self._whole, left, set())
            yield self._first(block, below)
            left = below

    def _semisimple(self, h: Row, e: Row, f: Row) -> Iterator[LineKind]:
        """Lines that are not in the radical: those of a scaling, a shear and a turn."""
        turn = [a - b for a, b in zip(e, f, strict=True)]
        c = self._algebra.floats
        quarter, half = (exponential_of_ad(c, t * to_floats(turn, {})) for t in (math.pi / 2, math.pi))
        basis = [h, e, f, *self._radical]
        stretch, eighth = to_floats(h, {}), exponential_of_ad(c, -math.pi / 4 * to_floats(turn, {}))

        def prepared(kind: str, v: Floats) -> Floats | None:
            a, b, d = float_coordinates(basis, v, {})[:3]
            size = max(abs(a), abs(b), abs(d))
            if size <= _ZERO_TOLERANCE:
                return None
            # turned until there is no scaling: what is left is symmetric or not
            angle = math.atan2(a, (b + d) / 2) / 2
            turned = [exponential_of_ad(c, t * to_floats(turn, {})) @ v for t in (angle, -angle)]
            v = min(turned, key=lambda w: abs(float_coordinates(basis, w, {})[0]))
            b, d = float_coordinates(basis, v, {})[1:3]
            if abs(b * d) <= _ZERO_TOLERANCE**1.5 * size**2:
                return (v if abs(b) > abs(d) else quarter @ v) if kind == "shear" else None
            if kind == "shear" or (b * d < 0) != (kind == "turn"):
                return None
            v = exponential_of_ad(c, math.log(abs(d / b)) / 4 * stretch) @ v
            return np.asarray(v if kind == "turn" else eighth @ v)

        for kind, vector, turns in (
            ("scaling", h, [quarter, half, quarter @ half]),
            ("shear", e, [half]),
            ("turn", turn, []),
        ):
            keeping = self._keeping(vector, self._radical, self._whole, set())
            root = self._resolved(vector, self._radical, keeping, ())
            yield LineKind(root, lambda v, kind=kind: prepared(kind, v), turns)  # type: ignore[misc]

    def _axis(self) -> LineKind:
        """Lines that are not in the radical, beside so(3): each axis can be turned to any other, and upside down."""
        axis, levi, c, form = self._levi[0], self._levi, self._algebra.floats, self._angles()
        basis, frame = [*levi, *self._radical], np.stack([to_floats(row, {}) for row in levi])
        first = np.array([1.0, 0.0, 0.0]) / math.sqrt(form[0, 0])
        across = np.array([0.0, 1.0, 0.0]) - form[1] @ first * first
        half = exponential_of_ad(c, math.pi * (across / math.sqrt(across @ form @ across)) @ frame)

        def prepared(v: Floats) -> Floats | None:
            p = float_coordinates(basis, v, {})[:3]
            if np.abs(p).max() <= _ZERO_TOLERANCE:
                return None
            # p turns to the axis about [p, axis]
            p = p / math.sqrt(p @ form @ p)
            about = float_coordinates(basis, np.einsum("i,j,ijk->k", p @ frame, first @ frame, c), {})[:3]
            sine, cosine = math.sqrt(about @ form @ about), float(p @ form @ first)
            if sine <= _ZERO_TOLERANCE:
                return v if cosine > 0 else np.asarray(half @ v)
            return np.asarray(exponential_of_ad(c, math.atan2(sine, cosine) / sine * (about @ frame)) @ v)

        keeping = self._keeping(axis, self._radical, self._whole, set())
        return LineKind(self._resolved(axis, self._radical, keeping, ()), prepared, [half])

    def _first(self, block: Rows, below: Rows) -> LineKind:
        """Lines with a coefficient in a block of one or two dimensions."""
        vector = block[0]
        keeping = self._keeping(vector, below, self._whole, set())
        root = self._resolved(vector, below, keeping, ())
        basis, size = [*block, *below], len(block)
        c = self._algebra.floats
        if size == 1:

            def unmoved(v: Floats) -> Floats | None:
                return v if abs(float_coordinates(basis, v, {})[0]) > _ZERO_TOLERANCE else None

            return LineKind(root, unmoved, [])
        y, frequency = self._rotation(block, below)
        spin = np.array([float_coordinates(basis, to_floats(self._algebra.bracket(y, b), {}), {})[:2] for b in block]).T

        def prepared(v: Floats) -> Floats | None:
            p = float_coordinates(basis, v, {})[:2]
            if np.abs(p).max() <= _ZERO_TOLERANCE:
                return None
            # exp(t M) p = (cos(w t) + sin(w t) / w M) p up to a factor, of which the second number is to vanish
            traceless = spin - np.trace(spin) / 2 * np.eye(2)
            time = math.atan2(-frequency * p[1], float((traceless @ p)[1])) / frequency
            return np.asarray(exponential_of_ad(c, time * to_floats(y, {})) @ v)

        return LineKind(root, prepared, [exponential_of_ad(c, math.pi / frequency * to_floats(y, {}))])

    def _rotation(self, block: Rows, below: Rows) -> tuple[Row, float]:
        """What turns a block of two dimensions, and how fast."""
        candidates = list(self._whole)
        if self._triple is not None:
            candidates.insert(0, [a - b for a, b in zip(self._triple[1], self._triple[2], strict=True)])
        for y in candidates:
            columns = [coordinates([*block, *below], self._algebra.bracket(y, b), set())[:2] for b in block]
            matrix = sp.Matrix(columns)
            square = matrix.det() - matrix.trace() ** 2 / 4
            if square > 0:
                return y, math.sqrt(float(square))
        raise AlgebraError("expected weights that are real, or turn a plane, got others")

    # Exact steps ---------------------------------------------------------------------------------------------

    def _keeping(self, vector: Row, below: Rows, among: Rows, assumed: NonzeroFactors) -> Rows:
        """What sends a vector to multiples of it, modulo a subspace."""
        brackets = [self._algebra.bracket(y, vector) for y in among]
        relations = null_space(transpose([*brackets, vector, *below]), assumed)
        return row_echelon([combination(r[: len(among)], among) for r in relations], assumed)[0]

    def _solvable(self, keeping: Rows, assumed: NonzeroFactors) -> Rows:
        """All, or if there is a whole Levi factor without its lowering operator, or rotations, which move nothing."""
        if self._triple is None and not self._turns:
            return keeping
        basis = [*(self._triple or self._levi), *self._radical]
        rows = [coordinates(basis, y, assumed) for y in keeping]
        if len(row_echelon([row[:3] for row in rows], assumed)[0]) < 3:
            return keeping
        if self._turns:
            return [combination(w, keeping) for w in null_space([[row[i] for row in rows] for i in range(3)], assumed)]
        return [combination(weights, keeping) for weights in null_space([[row[2] for row in rows]], assumed)]

    def _quotient(self, keeping: Rows, inside: Rows, assumed: NonzeroFactors) -> tuple[Rows, Rows]:
        """A largest proper subspace that is kept, by Lie's theorem, and one or two vectors beside it.

        Raises:
            AlgebraError: it has more dimensions less, or weights are not rational.
        """
        bracket = self._algebra.bracket

        def transposed(y: Row) -> sp.Matrix:
            return sp.Matrix([coordinates(inside, bracket(y, z), assumed) for z in inside])

        solvable = [transposed(y) for y in self._solvable(keeping, assumed)]
        every = [transposed(y) for y in keeping]
        commutators = [a * b - b * a for a, b in itertools.combinations(solvable, 2)]
        functionals = null_space([list(m.row(i)) for m in commutators for i in range(m.rows)], assumed, len(inside))
        for matrix in solvable:
            images = [list(matrix * sp.Matrix(f)) for f in functionals]
            acted = sp.Matrix([coordinates(functionals, image, assumed) for image in images]).T
            z = sp.Dummy("z")
            factors = [f for f, _ in sp.factor_list(acted.charpoly().as_expr(z), z)[1]]
            factor = sp.Poly(min(factors, key=lambda f: sp.degree(f, z)), z)
            value = sp.zeros(acted.rows)
            for coefficient in factor.all_coeffs():
                value = value * acted + coefficient * sp.eye(acted.rows)
            kernel = null_space([list(value.row(i)) for i in range(value.rows)], assumed, acted.rows)
            functionals = [combination(weights, functionals) for weights in kernel]
        chosen = [functionals[0]]
        for functional in chosen:  # which grows
            for matrix in every:
                image = [sp.cancel(c) for c in matrix * sp.Matrix(functional)]
                if len(row_echelon([*chosen, image], assumed)[0]) > len(chosen):
                    chosen.append(image)
        if len(chosen) > 2:
            raise AlgebraError(f"expected parts of one or two dimensions, got one of {len(chosen)}")
        below = [combination(weights, inside) for weights in null_space(chosen, assumed)]
        _, pivots = row_echelon(chosen, assumed)
        block = [inside[p] for p in pivots]
        return (self._highest(block, below, assumed) if len(block) == 2 and self._triple else block), below

    def _highest(self, block: Rows, below: Rows, assumed: NonzeroFactors) -> Rows:
        """Two vectors, of which the raising operator takes the first away if it acts at all."""
        assert self._triple is not None
        images = [coordinates([*block, *below], self._algebra.bracket(self._triple[1], b), assumed)[:2] for b in block]
        kernel = null_space(transpose(images), assumed)
        if len(kernel) != 1:
            return block
        return [combination(kernel[0], block), block[1] if kernel[0][0] != 0 else block[0]]

    def _resolved(self, vector: Row, inside: Rows, keeping: Rows, parameters: tuple[sp.Symbol, ...]) -> LineNode:
        node, assumed = self._node(vector, inside, keeping, parameters)
        if any(e.free_symbols for e in assumed):
            raise AlgebraError(f"expected conditions on one parameter at a time, got {assumed}")
        return node

    def _node(
        self, vector: Row, inside: Rows, keeping: Rows, parameters: tuple[sp.Symbol, ...]
    ) -> tuple[LineNode, NonzeroFactors]:
        """Lines that are a vector modulo a subspace, and what was assumed of the parameters."""
        if not inside:
            return LineNode(vector, parameters), set()
        assumed: NonzeroFactors = set()
        block, below = self._quotient(keeping, inside, assumed)
        size, basis = len(block), [vector, *block, *below]
        rates, slopes = [], []
        for y in keeping:
            image = coordinates(basis, self._algebra.bracket(y, vector), assumed)
            rates.append(image[1 : 1 + size])
            moved = [coordinates(basis, self._algebra.bracket(y, b), assumed)[1 : 1 + size] for b in block]
            square = itertools.product(range(size), repeat=2)
            slopes.append([sp.cancel(moved[j][i] - (image[0] if i == j else 0)) for i, j in square])
        node = LineNode(vector, parameters, block, below)
        still = null_space(transpose(slopes), assumed, len(keeping))
        shifts = [(combination(w, keeping), combination(w, rates)) for w in still]
        shifts.sort(key=lambda shift: any(r.free_symbols for r in shift[1]))
        independent: list[tuple[Row, Row]] = []
        for shift in shifts:
            rows = [rate for _, rate in (*independent, shift)]
            if len(row_echelon(rows, assumed)[0]) > len(independent):
                independent.append(shift)
        branches: list[tuple[Row, Rows]] = []
        if len(independent) == size:
            # all of them: where the rate of one vanishes for some parameters, others move
            node.kind, node.movers, node.rates = "zero", [y for y, _ in shifts], [r for _, r in shifts]
            kept = null_space(transpose(rates), assumed, len(keeping))
            branches = [(vector, [combination(w, keeping) for w in kept])]
        elif size == 1 and any(s[0] != 0 for s in slopes):
            chosen = min((k for k, s in enumerate(slopes) if s[0] != 0), key=lambda k: len(slopes[k][0].free_symbols))
            assumed.add(slopes[chosen][0])
            fixed = sp.cancel(-rates[chosen][0] / slopes[chosen][0])
            node.kind, node.movers, node.rates = "sign", [keeping[chosen]], [slopes[chosen]]
            rest = [combination(w, keeping) for w in still]
            for step, kept in ((0, keeping), (1, rest), (-1, rest)):
                branches.append((combination([1, fixed + step], [vector, block[0]]), kept))
        elif size == 1:
            return self._family(node, keeping, assumed)
        else:
            raise AlgebraError("expected planes whose points are moved to each other, got others")
        for moved, kept in branches:
            child, more = self._node(moved, below, kept, parameters)
            node.children.append(child)
            assumed |= more
        return node, assumed

    def _family(self, node: LineNode, keeping: Rows, assumed: NonzeroFactors) -> tuple[LineNode, NonzeroFactors]:
        """Every number as the coefficient is another line."""
        symbol = sp.Symbol("abcd"[len(node.parameters)], real=True)

        def at(value: sp.Expr) -> Row:
            return combination([1, value], [node.vector, node.block[0]])

        node.kind = "free"
        child, more = self._node(at(symbol), node.below, keeping, (*node.parameters, symbol))
        node.children = [child]
        values: set[sp.Expr] = set()
        for expression in more:
            if expression.has(symbol):
                top, bottom = sp.fraction(sp.cancel(expression))
                for part in (top, bottom):
                    values |= {v for v in sp.roots(sp.Poly(part, symbol)) if v.is_real is not False}
                    if sp.Poly(part, symbol).degree() > sum(sp.roots(sp.Poly(part, symbol)).values()):
                        raise AlgebraError(f"expected exceptional parameters that are rational, got {part} = 0")
        for value in sorted(values, key=sp.default_sort_key):
            other, rest = self._node(at(value), node.below, keeping, node.parameters)
            assumed |= rest
            if not _is_alike(child, other, {symbol: value}):
                node.special[value] = other
        return node, assumed | {e for e in more if not e.has(symbol)}


def _is_alike(generic: LineNode, other: LineNode, value: dict[sp.Symbol, sp.Expr]) -> bool:
    """Whether a special value of a parameter has the same lines as others."""
    vector = [c.subs(value) for c in generic.vector]
    same = generic.kind == other.kind and len(generic.children) == len(other.children) and vector == other.vector
    rows = [[c.subs(value) for c in row] for row in (*generic.movers, *generic.rates)]
    if any(c.has(sp.nan, sp.zoo) for row in rows for c in row):
        return False
    # what moves the others has to move these as well
    rates = rows[len(generic.movers) :]
    if rates and len(row_echelon(rates, set())[0]) < len(generic.block):
        return False
    special = {sp.sympify(key).subs(value): node for key, node in generic.special.items()}
    return (
        same
        and special.keys() == other.special.keys()
        and all(_is_alike(a, b, value) for a, b in zip(generic.children, other.children, strict=True))
        and all(_is_alike(node, other.special[key], value) for key, node in special.items())
    )


_MAX_DIMENSION = 6


@dataclass(frozen=True)
class Line:
    """A one-dimensional subalgebra, or a family of them.

    Attributes:
        coefficients: of the generators, with symbols for parameters.
        parameters: the symbols: any real numbers, but for those that are excluded.
        excluded: for each parameter the values that are other lines of the list.
        is_even: whether parameters and minus them are the same line: then the first that is not zero is positive.
    """

    coefficients: tuple[sp.Expr, ...]
    parameters: tuple[sp.Symbol, ...]
    excluded: tuple[tuple[sp.Expr, ...], ...]
    is_even: bool

    def text(self, names: Sequence[str]) -> str:
        """Return the line in text with ``names`` of the generators, such as ``X1 + a*X3, a >= 0``."""
        conditions = []
        for symbol, is_even, values in self._conditions():
            conditions += [f"{symbol} >= 0"] if is_even else [f"any {symbol}"] if not values else []
            conditions += [f"{symbol} != {value}" for value in values]
        return ", ".join([str(self._total(names)), *conditions])

    def latex(self, names: Sequence[str]) -> str:
        """Return the line as a formula of LaTeX with ``names`` of the generators, without dollar signs."""
        conditions = []
        for symbol, is_even, values in self._conditions():
            conditions += [f"{sp.latex(symbol)} \\ge 0"] if is_even else []
            conditions += [f"{sp.latex(symbol)} \\in \\mathbb{{R}}"] if not (is_even or values) else []
            conditions += [f"{sp.latex(symbol)} \\ne {sp.latex(value)}" for value in values]
        return ",\\ ".join([f"\\langle {sp.latex(self._total(names))} \\rangle", *conditions])

    def _conditions(self) -> Iterator[tuple[sp.Symbol, bool, list[sp.Expr]]]:
        """Parameters, whether each is the same line as minus it, and the values that it does not take."""
        for place, (symbol, values) in enumerate(zip(self.parameters, self.excluded, strict=True)):
            is_even = self.is_even and not place
            yield symbol, is_even, [value for value in values if not (is_even and value.is_negative)]

    def _total(self, names: Sequence[str]) -> sp.Expr:
        return sp.Add(*(c * sp.Symbol(n) for c, n in zip(self.coefficients, names, strict=True)))


class OptimalSystem(Sequence[Line]):
    """Optimal system: every line of the algebra is an image of exactly one of these under inner automorphisms.

    Args:
        algebra: structure constants.
        starts: searches that found the lines.

    Attributes:
        lines: the representatives.
        names: those of the generators.
    """

    def __init__(self, algebra: RationalConstants, names: Sequence[str], starts: Sequence[LineKind]) -> None:
        self._algebra, self._starts = algebra, starts
        self.names = tuple(names)
        self._same: dict[int, int] = {}
        lines: list[Line] = []
        count = 0
        for start in starts:
            for leaf, _ in start.root.leaves():
                leaf.line, count = count, count + 1
                self._same[leaf.line] = leaf.line
        even = {leaf.line for start in starts for leaf, _ in start.root.leaves() if self._turned(start, leaf)}
        for start in starts:
            for leaf, excluded in start.root.leaves():
                if self._same[leaf.line] == leaf.line:
                    values = tuple(excluded.get(p, ()) for p in leaf.parameters)
                    lines.append(Line(tuple(leaf.vector), leaf.parameters, values, leaf.line in even))
        kept = sorted(set(self._same.values()))
        self._place = {line: kept.index(same) for line, same in self._same.items()}
        self.lines = tuple(lines)

    def _turned(self, start: LineKind, leaf: LineNode) -> bool:
        """Notes with which other line a half turn identifies one; whether it changes the sign of its parameter."""
        numbers = dict(zip(leaf.parameters, (0.37, 0.83, 1.29), strict=False))
        is_even = False
        for turn in start.turns:
            line, values = self._descend(start, turn @ to_floats(leaf.vector, numbers))
            first, last = sorted((self._same[line], self._same[leaf.line]))
            self._same = {k: first if same == last else same for k, same in self._same.items()}
            old, new = np.array(list(numbers.values())), np.array(values)
            if line == leaf.line and len(old) and not np.allclose(old, new):
                if not np.allclose(old, -new):
                    raise AlgebraError(f"expected half turns that change all signs of parameters, got {old} to {new}")
                is_even = True
        return is_even

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: int) -> Line: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Line]: ...

    def __getitem__(self, index: int | slice) -> Line | Sequence[Line]:
        return self.lines[index]

    def find(self, coefficients: Sequence[float]) -> tuple[int, tuple[float, ...]]:
        """Return the representative of a line, and its parameters.

        Args:
            coefficients: of a combination of the generators, on the line.

        Returns:
            The number of the representative, and values of its parameters.

        Raises:
            AlgebraError: the combination is zero.
        """
        v = np.asarray(coefficients, dtype=np.float64)
        for start in self._starts:
            ready = start.prepare(v / max(float(np.abs(v).max()), 1e-300))
            if ready is not None:
                found = [self._descend(start, turn @ ready) for turn in (np.eye(len(v)), *start.turns)]
                # the line that is kept of those that are the same, with the largest parameters
                kept = [(line, values) for line, values in found if self._same[line] == line] or found
                return self._place[kept[0][0]], max(values for _, values in kept)
        raise AlgebraError(f"expected a combination other than zero, got {tuple(coefficients)}")

    def _descend(self, start: LineKind, v: Floats) -> tuple[int, tuple[float, ...]]:
        """Follow a vector, moving it as the nodes say."""
        node, numbers = start.root, dict[sp.Symbol, float]()
        below = start.root.below + start.root.block
        v = v / float_coordinates([node.vector, *below], v, numbers)[0]
        while node.kind != "end":
            basis = [node.vector, *node.block, *node.below]
            size = len(node.block)
            coefficient = float_coordinates(basis, v, numbers)[1 : 1 + size]
            rates = np.array([to_floats(rate, numbers) for rate in node.rates]).reshape(len(node.rates), size)
            movers = [to_floats(mover, numbers) for mover in node.movers]
            if node.kind == "zero":
                times = np.linalg.lstsq(rates.T, -coefficient, rcond=None)[0]
                v = self._moved(sum(t * y for t, y in zip(times, movers, strict=True)), v)
                node, v = node.children[0], v / float_coordinates(basis, v, numbers)[0]
            elif node.kind == "sign":
                fixed = float_coordinates(basis, to_floats(node.children[0].vector, numbers), numbers)[1]
                distance = float(coefficient[0] - fixed)
                if abs(distance) > _ZERO_TOLERANCE:
                    v = self._moved(-math.log(abs(distance)) / rates[0, 0] * movers[0], v)
                    v = v / float_coordinates(basis, v, numbers)[0]
                node = node.children[0 if abs(distance) <= _ZERO_TOLERANCE else 1 if distance > 0 else 2]
            else:
                value = float(coefficient[0])
                near = [child for a, child in node.special.items() if abs(float(a) - value) <= _ZERO_TOLERANCE]
                if not near:
                    numbers[node.children[0].parameters[-1]] = value
                node = near[0] if near else node.children[0]
        if np.abs(v - to_floats(node.vector, numbers)).max() > _ZERO_TOLERANCE * (1 + np.abs(v).max()):
            raise AlgebraError(f"expected a line that is moved to {node.vector}, got one moved to {v}")
        return node.line, tuple(numbers[p] for p in node.parameters)

    def _moved(self, y: Floats, v: Floats) -> Floats:
        return np.asarray(exponential_of_ad(self._algebra.floats, y) @ v)

    def latex(self) -> str:
        """The lines as formulas of LaTeX, without dollar signs."""
        rows = " \\\\ ".join(f"&{line.latex(self.names)}" for line in self.lines)
        return f"\\begin{{aligned}} {rows} \\end{{aligned}}"

    def _repr_latex_(self) -> str:
        return f"${self.latex()}$"

    def __repr__(self) -> str:
        return "\n".join(line.text(self.names) for line in self.lines)


def optimal_system(constants: Sequence[Sequence[Sequence[sp.Expr]]], names: Sequence[str]) -> OptimalSystem:
    """Subalgebras of dimension one, one for each class under inner automorphisms.

    Args:
        constants: structure constants c[i][j][k] of ``[e_i, e_j] = sum_k c[i][j][k] e_k``, rational numbers.
        names: of the generators e_i.

    Raises:
        AlgebraError: structure constants that are not rational, or too many generators.
    """
    n = len(names)
    if n > _MAX_DIMENSION or not all(c.is_Rational for block in constants for row in block for c in row):
        raise AlgebraError(f"expected rational structure constants and at most {_MAX_DIMENSION} generators, got {n}")
    algebra = RationalConstants(constants)
    return OptimalSystem(algebra, names, list(LineSearch(algebra).starts()))
