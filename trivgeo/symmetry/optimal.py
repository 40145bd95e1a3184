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
from trivgeo.groups.exact import RationalAlgebra

__all__ = ["Line", "OptimalSystem", "optimal_system"]

Floats = NDArray[np.float64]
Row = list[sp.Expr]
Rows = list[Row]
Assumed = set[sp.Expr]  # expressions of the parameters that were taken not to vanish

_LARGEST = 6
_SMALL = 1e-7


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
        """As it is written, such as ``X1 + a*X3, a >= 0``."""
        conditions = []
        for place, (symbol, values) in enumerate(zip(self.parameters, self.excluded, strict=True)):
            is_even = self.is_even and not place
            conditions += [f"{symbol} >= 0"] if is_even else [f"any {symbol}"] if not values else []
            conditions += [f"{symbol} != {value}" for value in values if not (is_even and value.is_negative)]
        total = sp.Add(*(c * sp.Symbol(n) for c, n in zip(self.coefficients, names, strict=True)))
        return ", ".join([str(total), *conditions])


@dataclass
class _Node:
    """Lines that are the same modulo a subspace, and how the next coefficient is dealt with.

    Attributes:
        vector: what the lines have in common.
        parameters: on which it may depend.
        block: the direction of the next coefficient, or two.
        below: a basis of what is left.
        movers: what moves the coefficient, to first order by ``rates``.
        children: one if the coefficient is made 0; three for a fixed point, more, and less; one if it is free.
        special: children for some values of the coefficient.
    """

    vector: Row
    parameters: tuple[sp.Symbol, ...]
    block: Rows = field(default_factory=list)
    below: Rows = field(default_factory=list)
    movers: Rows = field(default_factory=list)
    rates: list[Row] = field(default_factory=list)
    children: list[_Node] = field(default_factory=list)
    special: dict[sp.Expr, _Node] = field(default_factory=dict)
    kind: str = "end"
    line: int = -1

    def ends(self) -> Iterator[tuple[_Node, dict[sp.Symbol, tuple[sp.Expr, ...]]]]:
        """The lines, with the values of parameters that are excluded."""
        if self.kind == "end":
            yield self, {}
        for child in self.children:
            for end, excluded in child.ends():
                own = {child.parameters[-1]: tuple(self.special)} if self.kind == "free" else {}
                yield end, own | excluded
        for child in self.special.values():
            yield from child.ends()


@dataclass
class _Start:
    """Where the search begins: the first coefficient that does not vanish.

    Attributes:
        root: the lines of this kind.
        prepare: moves a vector so that it is of this kind, ``None`` if it is of a later one.
        turns: automorphisms that keep the kind.
    """

    root: _Node
    prepare: Callable[[Floats], Floats | None]
    turns: list[Floats]


class OptimalSystem(Sequence[Line]):
    """Lines such that every line of the algebra is an image of exactly one of them under inner automorphisms.

    Attributes:
        lines: the representatives.
        names: those of the generators.
    """

    def __init__(self, algebra: _Exact, names: Sequence[str], starts: Sequence[_Start]) -> None:
        self._algebra, self._starts = algebra, starts
        self.names = tuple(names)
        self._same: dict[int, int] = {}
        lines: list[Line] = []
        count = 0
        for start in starts:
            for end, _ in start.root.ends():
                end.line, count = count, count + 1
                self._same[end.line] = end.line
        even = {end.line for start in starts for end, _ in start.root.ends() if self._turned(start, end)}
        for start in starts:
            for end, excluded in start.root.ends():
                if self._same[end.line] == end.line:
                    values = tuple(excluded.get(p, ()) for p in end.parameters)
                    lines.append(Line(tuple(end.vector), end.parameters, values, end.line in even))
        kept = sorted(set(self._same.values()))
        self._place = {line: kept.index(same) for line, same in self._same.items()}
        self.lines = tuple(lines)

    def _turned(self, start: _Start, end: _Node) -> bool:
        """Notes with which other line a half turn identifies one; whether it changes the sign of its parameter."""
        numbers = dict(zip(end.parameters, (0.37, 0.83, 1.29), strict=False))
        is_even = False
        for turn in start.turns:
            line, values = self._descend(start, turn @ _floats(end.vector, numbers))
            first, last = sorted((self._same[line], self._same[end.line]))
            self._same = {k: first if same == last else same for k, same in self._same.items()}
            old, new = np.array(list(numbers.values())), np.array(values)
            if line == end.line and len(old) and not np.allclose(old, new):
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
        """Of which line that through a combination of the generators is an image, and its parameters.

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

    def _descend(self, start: _Start, v: Floats) -> tuple[int, tuple[float, ...]]:
        """Follow a vector, moving it as the nodes say."""
        node, numbers = start.root, dict[sp.Symbol, float]()
        below = start.root.below + start.root.block
        v = v / _coordinates([node.vector, *below], v, numbers)[0]
        while node.kind != "end":
            basis = [node.vector, *node.block, *node.below]
            size = len(node.block)
            coefficient = _coordinates(basis, v, numbers)[1 : 1 + size]
            rates = np.array([_floats(rate, numbers) for rate in node.rates]).reshape(len(node.rates), size)
            movers = [_floats(mover, numbers) for mover in node.movers]
            if node.kind == "zero":
                times = np.linalg.lstsq(rates.T, -coefficient, rcond=None)[0]
                v = self._moved(sum(t * y for t, y in zip(times, movers, strict=True)), v)
                node, v = node.children[0], v / _coordinates(basis, v, numbers)[0]
            elif node.kind == "sign":
                fixed = _coordinates(basis, _floats(node.children[0].vector, numbers), numbers)[1]
                distance = float(coefficient[0] - fixed)
                if abs(distance) > _SMALL:
                    v = self._moved(-math.log(abs(distance)) / rates[0, 0] * movers[0], v)
                    v = v / _coordinates(basis, v, numbers)[0]
                node = node.children[0 if abs(distance) <= _SMALL else 1 if distance > 0 else 2]
            else:
                value = float(coefficient[0])
                near = [child for a, child in node.special.items() if abs(float(a) - value) <= _SMALL]
                if not near:
                    numbers[node.children[0].parameters[-1]] = value
                node = near[0] if near else node.children[0]
        if np.abs(v - _floats(node.vector, numbers)).max() > _SMALL * (1 + np.abs(v).max()):
            raise AlgebraError(f"expected a line that is moved to {node.vector}, got one moved to {v}")
        return node.line, tuple(numbers[p] for p in node.parameters)

    def _moved(self, y: Floats, v: Floats) -> Floats:
        return np.asarray(_exponential(self._algebra.floats, y) @ v)

    def __repr__(self) -> str:
        return "\n".join(line.text(self.names) for line in self.lines)


def optimal_system(constants: Sequence[Sequence[Sequence[sp.Expr]]], names: Sequence[str]) -> OptimalSystem:
    """See `trivgeo.symmetry.result.SymmetryAlgebra.optimal_system`."""
    n = len(names)
    if n > _LARGEST or not all(c.is_Rational for block in constants for row in block for c in row):
        raise AlgebraError(f"expected rational structure constants and at most {_LARGEST} generators, got {n}")
    algebra = _Exact(constants)
    return OptimalSystem(algebra, names, list(_Search(algebra).starts()))


class _Exact:
    """Rational structure constants."""

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
        """The bracket of two elements."""
        result = [sp.S.Zero] * self.size
        for i, j, k, c in self._terms:
            if x[i] != 0 and y[j] != 0:
                result[k] += c * x[i] * y[j]
        return [sp.cancel(entry) for entry in result]


class _Search:
    """All kinds of lines."""

    def __init__(self, algebra: _Exact) -> None:
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
        ad = [[_solved(self._levi, self._algebra.bracket(x, y), set()) for y in self._levi] for x in self._levi]
        ads = np.array([[_floats(row, {}) for row in rows] for rows in ad])
        return np.asarray(-0.5 * np.einsum("iab,jba->ij", ads, ads))

    def _split_triple(self) -> Rows:
        """h, e, f of a Levi factor sl(2, R), with rational numbers.

        Raises:
            AlgebraError: it is none, or none was found.
        """
        bracket = self._algebra.bracket
        every = itertools.product(range(3), range(-2, 3), range(-2, 3)) if len(self._levi) == 3 else ()
        for weights in sorted(every, key=lambda w: sum(map(abs, w))):
            x = _sum(weights, self._levi)
            ad = sp.Matrix([_solved(self._levi, bracket(x, row), set()) for row in self._levi]).T
            root = sp.sqrt((ad * ad).trace() / 8)
            if root == 0 or not root.is_Rational:
                continue
            ends = [(ad / root - sign * 2 * sp.eye(3)).nullspace()[0] for sign in (1, -1)]
            h, e, f = [c / root for c in x], *(_sum(list(end), self._levi) for end in ends)
            # [e, f] = s h
            s = _solved([h], bracket(e, f), set())[0]
            return [h, e, [c / s for c in f]]
        raise AlgebraError(
            "expected a solvable algebra, one with the Levi factor sl(2, R) in a split basis, or the sum of so(3) and "
            "a solvable one"
        )

    def starts(self) -> Iterator[_Start]:
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

    def _semisimple(self, h: Row, e: Row, f: Row) -> Iterator[_Start]:
        """Lines that are not in the radical: those of a scaling, a shear and a turn."""
        turn = [a - b for a, b in zip(e, f, strict=True)]
        c = self._algebra.floats
        quarter, half = (_exponential(c, t * _floats(turn, {})) for t in (math.pi / 2, math.pi))
        basis = [h, e, f, *self._radical]
        stretch, eighth = _floats(h, {}), _exponential(c, -math.pi / 4 * _floats(turn, {}))

        def prepared(kind: str, v: Floats) -> Floats | None:
            a, b, d = _coordinates(basis, v, {})[:3]
            size = max(abs(a), abs(b), abs(d))
            if size <= _SMALL:
                return None
            # turned until there is no scaling: what is left is symmetric or not
            angle = math.atan2(a, (b + d) / 2) / 2
            turned = [_exponential(c, t * _floats(turn, {})) @ v for t in (angle, -angle)]
            v = min(turned, key=lambda w: abs(_coordinates(basis, w, {})[0]))
            b, d = _coordinates(basis, v, {})[1:3]
            if abs(b * d) <= _SMALL**1.5 * size**2:
                return (v if abs(b) > abs(d) else quarter @ v) if kind == "shear" else None
            if kind == "shear" or (b * d < 0) != (kind == "turn"):
                return None
            v = _exponential(c, math.log(abs(d / b)) / 4 * stretch) @ v
            return np.asarray(v if kind == "turn" else eighth @ v)

        for kind, vector, turns in (
            ("scaling", h, [quarter, half, quarter @ half]),
            ("shear", e, [half]),
            ("turn", turn, []),
        ):
            keeping = self._keeping(vector, self._radical, self._whole, set())
            root = self._resolved(vector, self._radical, keeping, ())
            yield _Start(root, lambda v, kind=kind: prepared(kind, v), turns)  # type: ignore[misc]

    def _axis(self) -> _Start:
        """Lines that are not in the radical, beside so(3): each axis can be turned to any other, and upside down."""
        axis, levi, c, form = self._levi[0], self._levi, self._algebra.floats, self._angles()
        basis, frame = [*levi, *self._radical], np.stack([_floats(row, {}) for row in levi])
        first = np.array([1.0, 0.0, 0.0]) / math.sqrt(form[0, 0])
        across = np.array([0.0, 1.0, 0.0]) - form[1] @ first * first
        half = _exponential(c, math.pi * (across / math.sqrt(across @ form @ across)) @ frame)

        def prepared(v: Floats) -> Floats | None:
            p = _coordinates(basis, v, {})[:3]
            if np.abs(p).max() <= _SMALL:
                return None
            # p turns to the axis about [p, axis]
            p = p / math.sqrt(p @ form @ p)
            about = _coordinates(basis, np.einsum("i,j,ijk->k", p @ frame, first @ frame, c), {})[:3]
            sine, cosine = math.sqrt(about @ form @ about), float(p @ form @ first)
            if sine <= _SMALL:
                return v if cosine > 0 else np.asarray(half @ v)
            return np.asarray(_exponential(c, math.atan2(sine, cosine) / sine * (about @ frame)) @ v)

        keeping = self._keeping(axis, self._radical, self._whole, set())
        return _Start(self._resolved(axis, self._radical, keeping, ()), prepared, [half])

    def _first(self, block: Rows, below: Rows) -> _Start:
        """Lines with a coefficient in a block of one or two dimensions."""
        vector = block[0]
        keeping = self._keeping(vector, below, self._whole, set())
        root = self._resolved(vector, below, keeping, ())
        basis, size = [*block, *below], len(block)
        c = self._algebra.floats
        if size == 1:
            return _Start(root, lambda v: v if abs(_coordinates(basis, v, {})[0]) > _SMALL else None, [])
        y, frequency = self._rotation(block, below)
        spin = np.array([_coordinates(basis, _floats(self._algebra.bracket(y, b), {}), {})[:2] for b in block]).T

        def prepared(v: Floats) -> Floats | None:
            p = _coordinates(basis, v, {})[:2]
            if np.abs(p).max() <= _SMALL:
                return None
            # exp(t M) p = (cos(w t) + sin(w t) / w M) p up to a factor, of which the second number is to vanish
            traceless = spin - np.trace(spin) / 2 * np.eye(2)
            time = math.atan2(-frequency * p[1], float((traceless @ p)[1])) / frequency
            return np.asarray(_exponential(c, time * _floats(y, {})) @ v)

        return _Start(root, prepared, [_exponential(c, math.pi / frequency * _floats(y, {}))])

    def _rotation(self, block: Rows, below: Rows) -> tuple[Row, float]:
        """What turns a block of two dimensions, and how fast."""
        candidates = list(self._whole)
        if self._triple is not None:
            candidates.insert(0, [a - b for a, b in zip(self._triple[1], self._triple[2], strict=True)])
        for y in candidates:
            columns = [_solved([*block, *below], self._algebra.bracket(y, b), set())[:2] for b in block]
            matrix = sp.Matrix(columns)
            square = matrix.det() - matrix.trace() ** 2 / 4
            if square > 0:
                return y, math.sqrt(float(square))
        raise AlgebraError("expected weights that are real, or turn a plane, got others")

    # Exact steps ---------------------------------------------------------------------------------------------

    def _keeping(self, vector: Row, below: Rows, among: Rows, assumed: Assumed) -> Rows:
        """What sends a vector to multiples of it, modulo a subspace."""
        brackets = [self._algebra.bracket(y, vector) for y in among]
        relations = _null_space(_transposed([*brackets, vector, *below]), assumed)
        return _reduced([_sum(r[: len(among)], among) for r in relations], assumed)[0]

    def _solvable(self, keeping: Rows, assumed: Assumed) -> Rows:
        """All, or if there is a whole Levi factor without its lowering operator, or rotations, which move nothing."""
        if self._triple is None and not self._turns:
            return keeping
        basis = [*(self._triple or self._levi), *self._radical]
        rows = [_solved(basis, y, assumed) for y in keeping]
        if len(_reduced([row[:3] for row in rows], assumed)[0]) < 3:
            return keeping
        if self._turns:
            return [_sum(w, keeping) for w in _null_space([[row[i] for row in rows] for i in range(3)], assumed)]
        return [_sum(weights, keeping) for weights in _null_space([[row[2] for row in rows]], assumed)]

    def _quotient(self, keeping: Rows, inside: Rows, assumed: Assumed) -> tuple[Rows, Rows]:
        """A largest proper subspace that is kept, by Lie's theorem, and one or two vectors beside it.

        Raises:
            AlgebraError: it has more dimensions less, or weights are not rational.
        """
        bracket = self._algebra.bracket

        def transposed(y: Row) -> sp.Matrix:
            return sp.Matrix([_solved(inside, bracket(y, z), assumed) for z in inside])

        solvable = [transposed(y) for y in self._solvable(keeping, assumed)]
        every = [transposed(y) for y in keeping]
        commutators = [a * b - b * a for a, b in itertools.combinations(solvable, 2)]
        functionals = _null_space([list(m.row(i)) for m in commutators for i in range(m.rows)], assumed, len(inside))
        for matrix in solvable:
            images = [list(matrix * sp.Matrix(f)) for f in functionals]
            acted = sp.Matrix([_solved(functionals, image, assumed) for image in images]).T
            z = sp.Dummy("z")
            factors = [f for f, _ in sp.factor_list(acted.charpoly().as_expr(z), z)[1]]
            factor = sp.Poly(min(factors, key=lambda f: sp.degree(f, z)), z)
            value = sp.zeros(acted.rows)
            for coefficient in factor.all_coeffs():
                value = value * acted + coefficient * sp.eye(acted.rows)
            kernel = _null_space([list(value.row(i)) for i in range(value.rows)], assumed, acted.rows)
            functionals = [_sum(weights, functionals) for weights in kernel]
        chosen = [functionals[0]]
        for functional in chosen:  # which grows
            for matrix in every:
                image = [sp.cancel(c) for c in matrix * sp.Matrix(functional)]
                if len(_reduced([*chosen, image], assumed)[0]) > len(chosen):
                    chosen.append(image)
        if len(chosen) > 2:
            raise AlgebraError(f"expected parts of one or two dimensions, got one of {len(chosen)}")
        below = [_sum(weights, inside) for weights in _null_space(chosen, assumed)]
        _, pivots = _reduced(chosen, assumed)
        block = [inside[p] for p in pivots]
        return (self._highest(block, below, assumed) if len(block) == 2 and self._triple else block), below

    def _highest(self, block: Rows, below: Rows, assumed: Assumed) -> Rows:
        """Two vectors, of which the raising operator takes the first away if it acts at all."""
        assert self._triple is not None
        images = [_solved([*block, *below], self._algebra.bracket(self._triple[1], b), assumed)[:2] for b in block]
        kernel = _null_space(_transposed(images), assumed)
        if len(kernel) != 1:
            return block
        return [_sum(kernel[0], block), block[1] if kernel[0][0] != 0 else block[0]]

    def _resolved(self, vector: Row, inside: Rows, keeping: Rows, parameters: tuple[sp.Symbol, ...]) -> _Node:
        node, assumed = self._node(vector, inside, keeping, parameters)
        if any(e.free_symbols for e in assumed):
            raise AlgebraError(f"expected conditions on one parameter at a time, got {assumed}")
        return node

    def _node(
        self, vector: Row, inside: Rows, keeping: Rows, parameters: tuple[sp.Symbol, ...]
    ) -> tuple[_Node, Assumed]:
        """Lines that are a vector modulo a subspace, and what was assumed of the parameters."""
        if not inside:
            return _Node(vector, parameters), set()
        assumed: Assumed = set()
        block, below = self._quotient(keeping, inside, assumed)
        size, basis = len(block), [vector, *block, *below]
        rates, slopes = [], []
        for y in keeping:
            image = _solved(basis, self._algebra.bracket(y, vector), assumed)
            rates.append(image[1 : 1 + size])
            moved = [_solved(basis, self._algebra.bracket(y, b), assumed)[1 : 1 + size] for b in block]
            square = itertools.product(range(size), repeat=2)
            slopes.append([sp.cancel(moved[j][i] - (image[0] if i == j else 0)) for i, j in square])
        node = _Node(vector, parameters, block, below)
        still = _null_space(_transposed(slopes), assumed, len(keeping))
        shifts = [(_sum(w, keeping), _sum(w, rates)) for w in still]
        shifts.sort(key=lambda shift: any(r.free_symbols for r in shift[1]))
        independent: list[tuple[Row, Row]] = []
        for shift in shifts:
            rows = [rate for _, rate in (*independent, shift)]
            if len(_reduced(rows, assumed)[0]) > len(independent):
                independent.append(shift)
        branches: list[tuple[Row, Rows]] = []
        if len(independent) == size:
            # all of them: where the rate of one vanishes for some parameters, others move
            node.kind, node.movers, node.rates = "zero", [y for y, _ in shifts], [r for _, r in shifts]
            kept = _null_space(_transposed(rates), assumed, len(keeping))
            branches = [(vector, [_sum(w, keeping) for w in kept])]
        elif size == 1 and any(s[0] != 0 for s in slopes):
            chosen = min((k for k, s in enumerate(slopes) if s[0] != 0), key=lambda k: len(slopes[k][0].free_symbols))
            assumed.add(slopes[chosen][0])
            fixed = sp.cancel(-rates[chosen][0] / slopes[chosen][0])
            node.kind, node.movers, node.rates = "sign", [keeping[chosen]], [slopes[chosen]]
            rest = [_sum(w, keeping) for w in still]
            for step, kept in ((0, keeping), (1, rest), (-1, rest)):
                branches.append((_sum([1, fixed + step], [vector, block[0]]), kept))
        elif size == 1:
            return self._family(node, keeping, assumed)
        else:
            raise AlgebraError("expected planes whose points are moved to each other, got others")
        for moved, kept in branches:
            child, more = self._node(moved, below, kept, parameters)
            node.children.append(child)
            assumed |= more
        return node, assumed

    def _family(self, node: _Node, keeping: Rows, assumed: Assumed) -> tuple[_Node, Assumed]:
        """Every number as the coefficient is another line."""
        symbol = sp.Symbol("abcd"[len(node.parameters)], real=True)

        def at(value: sp.Expr) -> Row:
            return _sum([1, value], [node.vector, node.block[0]])

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


def _is_alike(generic: _Node, other: _Node, value: dict[sp.Symbol, sp.Expr]) -> bool:
    """Whether a special value of a parameter has the same lines as others."""
    vector = [c.subs(value) for c in generic.vector]
    same = generic.kind == other.kind and len(generic.children) == len(other.children) and vector == other.vector
    rows = [[c.subs(value) for c in row] for row in (*generic.movers, *generic.rates)]
    if any(c.has(sp.nan, sp.zoo) for row in rows for c in row):
        return False
    # what moves the others has to move these as well
    rates = rows[len(generic.movers) :]
    if rates and len(_reduced(rates, set())[0]) < len(generic.block):
        return False
    special = {sp.sympify(key).subs(value): node for key, node in generic.special.items()}
    return (
        same
        and special.keys() == other.special.keys()
        and all(_is_alike(a, b, value) for a, b in zip(generic.children, other.children, strict=True))
        and all(_is_alike(node, other.special[key], value) for key, node in special.items())
    )


# Linear algebra with parameters ----------------------------------------------------------------------------------


def _sum(weights: Sequence[sp.Expr], rows: Rows) -> Row:
    columns = zip(*rows, strict=True)
    return [sp.cancel(sp.Add(*(w * c for w, c in zip(weights, column, strict=True)))) for column in columns]


def _transposed(rows: Rows) -> Rows:
    return [list(column) for column in zip(*rows, strict=True)]


def _reduced(rows: Rows, assumed: Assumed) -> tuple[Rows, list[int]]:
    """The reduced echelon form without zero rows; pivots that hold parameters are noted, numbers are preferred."""
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


def _null_space(rows: Rows, assumed: Assumed, width: int = 0) -> Rows:
    """A basis of the columns that a matrix sends to zero; a matrix without rows needs its width."""
    reduced, pivots = _reduced(rows, assumed)
    width = len(rows[0]) if rows else width
    basis = []
    for j in (j for j in range(width) if j not in pivots):
        vector = [sp.Integer(i == j) for i in range(width)]
        for row, pivot in zip(reduced, pivots, strict=True):
            vector[pivot] = -row[j]
        basis.append(vector)
    return basis


def _solved(basis: Rows, target: Row, assumed: Assumed) -> Row:
    """The coordinates of a vector in a basis of a space that holds it."""
    reduced, pivots = _reduced(_transposed([*basis, target]), assumed)
    assert pivots == list(range(len(basis))), "a vector off the space"
    return [row[-1] for row in reduced]


def _floats(row: Row, numbers: dict[sp.Symbol, float]) -> Floats:
    return np.array([float(c.subs(numbers) if c.free_symbols else c) for c in map(sp.sympify, row)])


def _coordinates(basis: Rows, v: Floats, numbers: dict[sp.Symbol, float]) -> Floats:
    matrix = np.stack([_floats(row, numbers) for row in basis], axis=1)
    return np.asarray(np.linalg.lstsq(matrix, v, rcond=None)[0])


def _exponential(constants: Floats, y: Floats) -> Floats:
    """Ad(exp(y))."""
    return np.asarray(torch.linalg.matrix_exp(torch.from_numpy(np.einsum("i,ijk->kj", y, constants))).numpy())
