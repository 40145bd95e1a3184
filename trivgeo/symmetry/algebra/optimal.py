r"""One-dimensional subalgebras up to inner automorphisms.

A line through v is moved by the group as :math:`v \mapsto \mathrm{Ad}(g) v`. Lines are distinguished along a chain of
invariant subspaces. The stabilizer of the line modulo a subspace i acts on the next coefficient, the one in j / i, by
affine maps. If some of these are translations, the coefficient can be made 0. If they have one fixed point c, there are
three lines: c, c + 1 and c - 1. If the action is trivial, each coefficient is a line of its own. With real weights that
is all; half turns, which keep v or send it to -v, are applied to the list afterwards (Patera and Winternitz 1977; Olver
1993, section 3.3).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import sympy as sp
import torch
from numpy.typing import NDArray

from trivgeo.errors import AlgebraError
from trivgeo.groups.ground_fields import RATIONALS, Array, RationalFunctions
from trivgeo.groups.structure import rational_structure
from trivgeo.symmetry.equations.vector_fields import FoundSequence

Floats = NDArray[np.float64]


def _to_floats(row: Array, numbers: dict[sp.Symbol, float]) -> Floats:
    """A row in floating point, at given values of the parameters."""
    return np.array([float(c.subs(numbers) if c.free_symbols else c) for c in row])


def _float_coordinates(basis: Sequence[Array], v: Floats, numbers: dict[sp.Symbol, float]) -> Floats:
    """Coordinates of v in a basis of rows, at given values of the parameters."""
    matrix = np.stack([_to_floats(row, numbers) for row in basis], axis=1)
    return np.asarray(np.linalg.lstsq(matrix, v, rcond=None)[0])


def _exponential_of_ad(constants: Floats, y: Floats) -> Floats:
    """The matrix of Ad(exp(y))."""
    return np.asarray(torch.linalg.matrix_exp(torch.from_numpy(np.einsum("i,ijk->kj", y, constants))).numpy())


_ZERO_TOLERANCE = 1e-7  # coefficients below it are zero


@dataclass
class _LineNode:
    """Lines that are the same modulo a subspace, and the choice for the next coefficient.

    Attributes:
        vector: the representative of the lines modulo the subspace.
        parameters: parameters that the vector may depend on.
        block: basis of the next quotient, one or two vectors: the directions of the next coefficient.
        below: a basis of the next subspace.
        movers: elements of the algebra that move the coefficient, to first order by ``rates``.
        children: one if the coefficient is made 0; three for a fixed point, more, and less; one if it is free.
        special: children for exceptional values of a free coefficient.
        kind: choice for the coefficient: ``zero``, ``sign`` (fixed point), ``free``, or ``end`` for a single line.
        line: number of the line if the kind is ``end``.
    """

    vector: Array
    parameters: tuple[sp.Symbol, ...]
    block: Array | Sequence[Array] = ()
    below: Array | Sequence[Array] = ()
    movers: Sequence[Array] = ()
    rates: Sequence[Array] = ()
    children: list[_LineNode] = field(default_factory=list)
    special: dict[sp.Expr, _LineNode] = field(default_factory=dict)
    kind: str = "end"
    line: int = -1

    def leaves(self) -> Iterator[tuple[_LineNode, dict[sp.Symbol, tuple[sp.Expr, ...]]]]:
        """Nodes of single lines, each with the values that its parameters do not take."""
        if self.kind == "end":
            yield self, {}
        for child in self.children:
            for leaf, excluded in child.leaves():
                own = {child.parameters[-1]: tuple(self.special)} if self.kind == "free" else {}
                yield leaf, own | excluded
        for child in self.special.values():
            yield from child.leaves()


@dataclass
class _LineKind:
    """Lines with the same first coefficient that does not vanish, where a search starts.

    Attributes:
        root: the tree of these lines.
        prepare: moves a vector onto the line of the root modulo its subspace; ``None`` if it is of a later kind.
        turns: automorphisms that keep the kind.
    """

    root: _LineNode
    prepare: Callable[[Floats], Floats | None]
    turns: list[Floats]


class _LineSearch:
    """Search for all lines of an algebra, given by rational structure constants, up to inner automorphisms."""

    def __init__(self, constants: Sequence[Sequence[Sequence[sp.Expr]]]) -> None:
        structure = rational_structure(constants)
        n = self._size = structure.dim
        self.constants: Floats = np.asarray(structure.constants.astype(np.float64))
        self._exact = np.array([[list(map(sp.sympify, row)) for row in block] for block in constants], dtype=object)
        self._whole = RationalFunctions().identity(n)
        self._radical, self._levi = (
            RationalFunctions().array(RATIONALS.fractions(rows), n)
            for rows in (structure.radical, structure.levi_factor)
        )
        self._turns = self._is_beside_rotations()
        self._triple = self._split_triple() if len(self._levi) and not self._turns else None

    def bracket(self, x: Array, y: Array) -> Array:
        result = [sp.S.Zero] * self._size
        for i, j in itertools.product(np.flatnonzero(x != 0), np.flatnonzero(y != 0)):
            for k in np.flatnonzero(self._exact[i, j] != 0):
                result[k] += self._exact[i, j, k] * x[i] * y[j]
        return np.array([sp.cancel(entry) for entry in result], dtype=object)

    def _is_beside_rotations(self) -> bool:
        """Whether the algebra is the direct sum of so(3) and its radical."""
        if len(self._levi) != 3 or any(self.bracket(x, y).any() for x in self._levi for y in self._radical):
            return False
        return bool((np.linalg.eigvalsh(self._angles()) > 0).all())

    def _angles(self) -> Floats:
        """The quadratic form on a Levi factor so(3) whose value at x is the squared angle of the rotation exp(x)."""
        brackets = np.array([[self.bracket(x, y) for y in self._levi] for x in self._levi])
        ads = RationalFunctions().coordinates(brackets, self._levi).astype(np.float64)
        return np.asarray(-0.5 * np.einsum("iab,jba->ij", ads, ads))

    def _split_triple(self) -> list[Array]:
        """The triple h, e, f of a Levi factor sl(2, R), with rational coordinates.

        Raises:
            AlgebraError: the Levi factor is another, or no rational triple was found.
        """
        field, levi = RationalFunctions(), self._levi
        every = itertools.product(range(3), range(-2, 3), range(-2, 3)) if len(levi) == 3 else ()
        for weights in sorted(every, key=lambda w: sum(map(abs, w))):
            x = field.product(np.array(weights), levi)
            ad = sp.Matrix(field.coordinates(np.array([self.bracket(x, row) for row in levi]), levi)).T
            root = sp.sqrt((ad * ad).trace() / 8)
            if root == 0 or not root.is_Rational:
                continue
            ends = [(ad / root - sign * 2 * sp.eye(3)).nullspace()[0] for sign in (1, -1)]
            h, e, f = x / root, *(field.product(np.array(list(end), dtype=object), levi) for end in ends)
            # [e, f] = s h
            s = field.coordinates(self.bracket(e, f), h[None])[0]
            return [h, e, f / s]
        raise AlgebraError(
            "expected a solvable algebra, one with the Levi factor sl(2, R) in a split basis, or the sum of so(3) and "
            "a solvable one"
        )

    def starts(self) -> Iterator[_LineKind]:
        """The kinds of lines, by the first coefficient that does not vanish."""
        left = self._whole
        if self._triple is not None:
            yield from self._semisimple(*self._triple)
            left = self._radical
        if self._turns:
            yield self._axis()
            left = self._radical
        while len(left):
            block, below = self._quotient(self._whole, left, RationalFunctions())
            yield self._first(block, below)
            left = below

    def _semisimple(self, h: Array, e: Array, f: Array) -> Iterator[_LineKind]:
        """Lines outside of the radical, in a semidirect sum with sl(2, R): of a scaling, a shear or a turn."""
        turn = e - f
        c = self.constants
        quarter, half = (_exponential_of_ad(c, t * _to_floats(turn, {})) for t in (math.pi / 2, math.pi))
        basis = [h, e, f, *self._radical]
        stretch, eighth = _to_floats(h, {}), _exponential_of_ad(c, -math.pi / 4 * _to_floats(turn, {}))

        def prepared(kind: str, v: Floats) -> Floats | None:
            a, b, d = _float_coordinates(basis, v, {})[:3]
            size = max(abs(a), abs(b), abs(d))
            if size <= _ZERO_TOLERANCE:
                return None
            # a turn removes the scaling: the rest is symmetric (b d > 0) or not
            angle = math.atan2(a, (b + d) / 2) / 2
            turned = [_exponential_of_ad(c, t * _to_floats(turn, {})) @ v for t in (angle, -angle)]
            v = min(turned, key=lambda w: abs(_float_coordinates(basis, w, {})[0]))
            b, d = _float_coordinates(basis, v, {})[1:3]
            if abs(b * d) <= _ZERO_TOLERANCE**1.5 * size**2:
                return (v if abs(b) > abs(d) else quarter @ v) if kind == "shear" else None
            if kind == "shear" or (b * d < 0) != (kind == "turn"):
                return None
            v = _exponential_of_ad(c, math.log(abs(d / b)) / 4 * stretch) @ v
            return np.asarray(v if kind == "turn" else eighth @ v)

        for kind, vector, turns in (
            ("scaling", h, [quarter, half, quarter @ half]),
            ("shear", e, [half]),
            ("turn", turn, []),
        ):
            keeping = self._keeping(vector, self._radical, self._whole, RationalFunctions())
            root = self._resolved(vector, self._radical, keeping, ())
            yield _LineKind(root, lambda v, kind=kind: prepared(kind, v), turns)  # type: ignore[misc]

    def _axis(self) -> _LineKind:
        """Lines outside of the radical, in a direct sum with so(3), which moves each axis to any other."""
        axis, levi, c, form = self._levi[0], self._levi, self.constants, self._angles()
        basis, frame = [*levi, *self._radical], np.stack([_to_floats(row, {}) for row in levi])
        first = np.array([1.0, 0.0, 0.0]) / math.sqrt(form[0, 0])
        across = np.array([0.0, 1.0, 0.0]) - form[1] @ first * first
        half = _exponential_of_ad(c, math.pi * (across / math.sqrt(across @ form @ across)) @ frame)

        def prepared(v: Floats) -> Floats | None:
            p = _float_coordinates(basis, v, {})[:3]
            if np.abs(p).max() <= _ZERO_TOLERANCE:
                return None
            # p turns to the axis about [p, axis]
            p = p / math.sqrt(p @ form @ p)
            about = _float_coordinates(basis, np.einsum("i,j,ijk->k", p @ frame, first @ frame, c), {})[:3]
            sine, cosine = math.sqrt(about @ form @ about), float(p @ form @ first)
            if sine <= _ZERO_TOLERANCE:
                return v if cosine > 0 else np.asarray(half @ v)
            return np.asarray(_exponential_of_ad(c, math.atan2(sine, cosine) / sine * (about @ frame)) @ v)

        keeping = self._keeping(axis, self._radical, self._whole, RationalFunctions())
        return _LineKind(self._resolved(axis, self._radical, keeping, ()), prepared, [half])

    def _first(self, block: Array, below: Array) -> _LineKind:
        """Lines in the radical whose first coefficient is in a block of one or two dimensions."""
        vector = block[0]
        keeping = self._keeping(vector, below, self._whole, RationalFunctions())
        root = self._resolved(vector, below, keeping, ())
        basis, size = [*block, *below], len(block)
        c = self.constants
        if size == 1:

            def unmoved(v: Floats) -> Floats | None:
                return v if abs(_float_coordinates(basis, v, {})[0]) > _ZERO_TOLERANCE else None

            return _LineKind(root, unmoved, [])
        y, frequency = self._rotation(block, below)
        spin = np.array([_float_coordinates(basis, _to_floats(self.bracket(y, b), {}), {})[:2] for b in block]).T

        def prepared(v: Floats) -> Floats | None:
            p = _float_coordinates(basis, v, {})[:2]
            if np.abs(p).max() <= _ZERO_TOLERANCE:
                return None
            # exp(t M) p = (cos(w t) + sin(w t) / w M) p up to a factor; its second coordinate is to vanish
            traceless = spin - np.trace(spin) / 2 * np.eye(2)
            time = math.atan2(-frequency * p[1], float((traceless @ p)[1])) / frequency
            return np.asarray(_exponential_of_ad(c, time * _to_floats(y, {})) @ v)

        return _LineKind(root, prepared, [_exponential_of_ad(c, math.pi / frequency * _to_floats(y, {}))])

    def _rotation(self, block: Array, below: Array) -> tuple[Array, float]:
        """An element of the algebra that rotates a block of two dimensions, and the angular frequency."""
        candidates = list(self._whole)
        if self._triple is not None:
            candidates.insert(0, self._triple[1] - self._triple[2])
        for y in candidates:
            matrix = sp.Matrix(self._acted(y, block, np.array([*block, *below]), RationalFunctions())[:, :2])
            square = matrix.det() - matrix.trace() ** 2 / 4
            if square > 0:
                return y, math.sqrt(float(square))
        raise AlgebraError("expected an element that turns the plane of a pair of complex weights, found none")

    # Exact steps ---------------------------------------------------------------------------------------------

    def _acted(self, y: Array, vectors: Array, basis: Array, field: RationalFunctions) -> Array:
        """The coordinates of [y, v] in a basis for each of the vectors v, ``[len(vectors), len(basis)]``."""
        return field.coordinates(np.array([self.bracket(y, v) for v in vectors]), basis)

    def _keeping(self, vector: Array, below: Array, among: Array, field: RationalFunctions) -> Array:
        """A basis of the stabilizer of a line: elements that send its vector to multiples of it, modulo a subspace."""
        brackets = [self.bracket(y, vector) for y in among]
        relations = field.null_space(np.array([*brackets, vector, *below]).T)
        return field.row_space(field.product(relations[:, : len(among)], among))

    def _solvable(self, keeping: Array, field: RationalFunctions) -> Array:
        """A solvable subalgebra with the same invariant subspaces.

        It is the whole stabilizer if that is solvable; else it lacks the lowering operator of the Levi factor, or the
        rotations, which move nothing of the radical.
        """
        if self._triple is None and not self._turns:
            return keeping
        rows = field.coordinates(keeping, np.array([*(self._triple or self._levi), *self._radical]))
        if len(field.row_space(rows[:, :3])) < 3:
            return keeping
        moving = rows[:, :3] if self._turns else rows[:, 2:3]
        return field.product(field.null_space(moving.T), keeping)

    def _quotient(self, keeping: Array, inside: Array, field: RationalFunctions) -> tuple[Array, Array]:
        """One or two vectors, and a largest proper invariant subspace, to which they are complementary (Lie's theorem).

        Raises:
            AlgebraError: the complement has more dimensions, or weights are not rational.
        """
        # matrices that act on functionals, as columns
        solvable = [self._acted(y, inside, inside, field) for y in self._solvable(keeping, field)]
        every = [self._acted(y, inside, inside, field) for y in keeping]
        commutators = [a @ b - b @ a for a, b in itertools.combinations(solvable, 2)]
        functionals = field.null_space(np.concatenate([field.zeros(0, len(inside)), *commutators]))
        for matrix in solvable:
            acted = sp.Matrix(field.coordinates(field.product(functionals, matrix.T), functionals)).T
            z = sp.Dummy("z")
            factors = [f for f, _ in sp.factor_list(acted.charpoly().as_expr(z), z)[1]]
            factor = sp.Poly(min(factors, key=lambda f: sp.degree(f, z)), z)
            value = sp.zeros(acted.rows)
            for coefficient in factor.all_coeffs():
                value = value * acted + coefficient * sp.eye(acted.rows)
            kernel = field.null_space(field.array(value.tolist(), acted.rows))
            functionals = field.product(kernel, functionals)
        chosen = [functionals[0]]
        for functional in chosen:  # the list grows
            for matrix in every:
                image = field.product(matrix, functional)
                if len(field.row_space(np.array([*chosen, image]))) > len(chosen):
                    chosen.append(image)
        if len(chosen) > 2:
            raise AlgebraError(f"expected parts of one or two dimensions, got one of {len(chosen)}")
        reduced, pivots = field.row_echelon(np.array(chosen))
        block, below = inside[pivots], field.product(field.kernel(reduced, pivots), inside)
        return (self._highest(block, below, field) if len(block) == 2 and self._triple else block), below

    def _highest(self, block: Array, below: Array, field: RationalFunctions) -> Array:
        """Two vectors of the same span, the first annihilated by the raising operator if that acts at all."""
        assert self._triple is not None
        images = self._acted(self._triple[1], block, np.array([*block, *below]), field)[:, :2]
        kernel = field.null_space(images.T)
        if len(kernel) != 1:
            return block
        return np.array([field.product(kernel[0], block), block[1] if kernel[0][0] != 0 else block[0]])

    def _resolved(self, vector: Array, inside: Array, keeping: Array, parameters: tuple[sp.Symbol, ...]) -> _LineNode:
        node, assumed = self._node(vector, inside, keeping, parameters)
        if any(e.free_symbols for e in assumed):
            raise AlgebraError(f"expected conditions on one parameter at a time, got {assumed}")
        return node

    def _node(
        self, vector: Array, inside: Array, keeping: Array, parameters: tuple[sp.Symbol, ...]
    ) -> tuple[_LineNode, set[sp.Expr]]:
        """The node of a vector modulo a subspace, and the expressions of parameters that were assumed not to vanish."""
        if not len(inside):
            return _LineNode(vector, parameters), set()
        field = RationalFunctions()
        assumed = field.assumed
        block, below = self._quotient(keeping, inside, field)
        size, basis = len(block), np.array([vector, *block, *below])
        rates, slopes = field.zeros(len(keeping), size), field.zeros(len(keeping), size * size)
        for row, y in enumerate(keeping):
            image, *moved = self._acted(y, basis[: 1 + size], basis, field)
            rates[row] = image[1 : 1 + size]
            square = itertools.product(range(size), repeat=2)
            slopes[row] = [sp.cancel(moved[j][1 + i] - (image[0] if i == j else 0)) for i, j in square]
        node = _LineNode(vector, parameters, block, below)
        still = field.null_space(slopes.T)
        shifts = [(field.product(w, keeping), field.product(w, rates)) for w in still]
        shifts.sort(key=lambda shift: any(r.free_symbols for r in shift[1]))
        independent: list[Array] = []
        for _, rate in shifts:
            if len(field.row_space(np.array([*independent, rate]))) > len(independent):
                independent.append(rate)
        branches: list[tuple[Array, Array]] = []
        if len(independent) == size:
            # all movers are kept: where the rate of one vanishes for some parameters, others move
            node.kind, node.movers, node.rates = "zero", [y for y, _ in shifts], [r for _, r in shifts]
            branches = [(vector, field.product(field.null_space(rates.T), keeping))]
        elif size == 1 and any(s[0] != 0 for s in slopes):
            chosen = min((k for k, s in enumerate(slopes) if s[0] != 0), key=lambda k: len(slopes[k][0].free_symbols))
            assumed.add(slopes[chosen][0])
            fixed = sp.cancel(-rates[chosen][0] / slopes[chosen][0])
            node.kind, node.movers, node.rates = "sign", [keeping[chosen]], [slopes[chosen]]
            rest = field.product(still, keeping)
            for step, kept in ((0, keeping), (1, rest), (-1, rest)):
                branches.append((field.product(np.array([1, fixed + step]), basis[:2]), kept))
        elif size == 1:
            return self._family(node, keeping, field)
        else:
            raise AlgebraError("expected a plane whose points are moved to each other, got smaller orbits")
        for line, kept in branches:
            child, more = self._node(line, below, kept, parameters)
            node.children.append(child)
            assumed |= more
        return node, assumed

    def _family(self, node: _LineNode, keeping: Array, field: RationalFunctions) -> tuple[_LineNode, set[sp.Expr]]:
        """The node of a coefficient that nothing moves: every number is another line."""
        assumed, below = field.assumed, np.asarray(node.below)
        symbol = sp.Symbol("abcd"[len(node.parameters)], real=True)

        def at(value: sp.Expr) -> Array:
            return field.product(np.array([1, value]), np.array([node.vector, node.block[0]]))

        node.kind = "free"
        child, more = self._node(at(symbol), below, keeping, (*node.parameters, symbol))
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
            other, rest = self._node(at(value), below, keeping, node.parameters)
            assumed |= rest
            if not _is_alike(child, other, {symbol: value}):
                node.special[value] = other
        return node, assumed | {e for e in more if not e.has(symbol)}


def _is_alike(generic: _LineNode, other: _LineNode, value: dict[sp.Symbol, sp.Expr]) -> bool:
    """Whether the lines at a special value of a parameter are the generic lines at this value."""
    vector = [c.subs(value) for c in generic.vector]
    same = generic.kind == other.kind and len(generic.children) == len(other.children)
    same = same and vector == list(other.vector)
    rows = [[c.subs(value) for c in row] for row in (*generic.movers, *generic.rates)]
    if any(c.has(sp.nan, sp.zoo) for row in rows for c in row):
        return False
    # the generic movers have to move the coefficient at this value as well
    rates = rows[len(generic.movers) :]
    if rates and len(RationalFunctions().row_space(np.array(rates))) < len(generic.block):
        return False
    special = {sp.sympify(key).subs(value): node for key, node in generic.special.items()}
    return (
        same
        and special.keys() == other.special.keys()
        and all(_is_alike(a, b, value) for a, b in zip(generic.children, other.children, strict=True))
        and all(_is_alike(node, other.special[key], value) for key, node in special.items())
    )


_MAX_DIMENSION = 6  # algebras of more generators are refused


@dataclass(frozen=True)
class Line:
    """A one-dimensional subalgebra, or a family of them.

    Attributes:
        coefficients: coefficients of the generators, with symbols for parameters.
        parameters: the symbols, which stand for any real numbers that are not excluded.
        excluded: for each parameter the values that are other lines of the list.
        is_even: whether a change of all signs of the parameters gives the same line: the first that is not zero is then
            positive.
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
        """Each parameter, whether its sign is without effect, and the values that it does not take."""
        for place, (symbol, values) in enumerate(zip(self.parameters, self.excluded, strict=True)):
            is_even = self.is_even and not place
            yield symbol, is_even, [value for value in values if not (is_even and value.is_negative)]

    def _total(self, names: Sequence[str]) -> sp.Expr:
        return sp.Add(*(c * sp.Symbol(n) for c, n in zip(self.coefficients, names, strict=True)))


class OptimalSystem(FoundSequence[Line]):
    """Optimal system: every line of the algebra is an image of exactly one of these under inner automorphisms.

    Args:
        search: the search that finds the lines.
        names: names of the generators.

    Attributes:
        constants: structure constants in floating point, ``[n, n, n]``.
        lines: the representatives.
        names: names of the generators.
    """

    def __init__(self, search: _LineSearch, names: Sequence[str]) -> None:
        starts = list(search.starts())
        self.constants, self._starts = search.constants, starts
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
        super().__init__(lines)

    def _turned(self, start: _LineKind, leaf: _LineNode) -> bool:
        """Record the lines that half turns identify with this one; return whether its parameters may change signs."""
        numbers = dict(zip(leaf.parameters, (0.37, 0.83, 1.29), strict=False))
        is_even = False
        for turn in start.turns:
            line, values = self._descend(start, turn @ _to_floats(leaf.vector, numbers))
            first, last = sorted((self._same[line], self._same[leaf.line]))
            self._same = {k: first if same == last else same for k, same in self._same.items()}
            old, new = np.array(list(numbers.values())), np.array(values)
            if line == leaf.line and len(old) and not np.allclose(old, new):
                if not np.allclose(old, -new):
                    raise AlgebraError(f"expected half turns that change all signs of parameters, got {old} to {new}")
                is_even = True
        return is_even

    def find(self, coefficients: Sequence[float]) -> tuple[int, tuple[float, ...]]:
        """Return the representative of a line, and its parameters.

        Args:
            coefficients: coefficients of the generators in a vector on the line.

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
                # the list has one line for all that are the same; its largest parameters are returned
                kept = [(line, values) for line, values in found if self._same[line] == line] or found
                return self._place[kept[0][0]], max(values for _, values in kept)
        raise AlgebraError(f"expected a combination other than zero, got {tuple(coefficients)}")

    def _descend(self, start: _LineKind, v: Floats) -> tuple[int, tuple[float, ...]]:
        """The number of the line of a vector and its parameters: the vector is moved down the tree of nodes."""
        node, numbers = start.root, dict[sp.Symbol, float]()
        below = [*start.root.below, *start.root.block]
        v = v / _float_coordinates([node.vector, *below], v, numbers)[0]
        while node.kind != "end":
            basis = [node.vector, *node.block, *node.below]
            size = len(node.block)
            coefficient = _float_coordinates(basis, v, numbers)[1 : 1 + size]
            rates = np.array([_to_floats(rate, numbers) for rate in node.rates]).reshape(len(node.rates), size)
            movers = [_to_floats(mover, numbers) for mover in node.movers]
            if node.kind == "zero":
                times = np.linalg.lstsq(rates.T, -coefficient, rcond=None)[0]
                v = self._moved(sum(t * y for t, y in zip(times, movers, strict=True)), v)
                node, v = node.children[0], v / _float_coordinates(basis, v, numbers)[0]
            elif node.kind == "sign":
                fixed = _float_coordinates(basis, _to_floats(node.children[0].vector, numbers), numbers)[1]
                distance = float(coefficient[0] - fixed)
                if abs(distance) > _ZERO_TOLERANCE:
                    v = self._moved(-math.log(abs(distance)) / rates[0, 0] * movers[0], v)
                    v = v / _float_coordinates(basis, v, numbers)[0]
                node = node.children[0 if abs(distance) <= _ZERO_TOLERANCE else 1 if distance > 0 else 2]
            else:
                value = float(coefficient[0])
                near = [child for a, child in node.special.items() if abs(float(a) - value) <= _ZERO_TOLERANCE]
                if not near:
                    numbers[node.children[0].parameters[-1]] = value
                node = near[0] if near else node.children[0]
        if np.abs(v - _to_floats(node.vector, numbers)).max() > _ZERO_TOLERANCE * (1 + np.abs(v).max()):
            raise AlgebraError(f"expected a line that is moved to {node.vector}, got one moved to {v}")
        return node.line, tuple(numbers[p] for p in node.parameters)

    def _moved(self, y: Floats, v: Floats) -> Floats:
        return np.asarray(_exponential_of_ad(self.constants, y) @ v)

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
        constants: structure constants of ``[e_i, e_j] = sum_k c[i][j][k] e_k``, rational numbers.

    Raises:
        AlgebraError: the structure constants are not rational, or there are too many generators.
    """
    n = len(names)
    if n > _MAX_DIMENSION or not all(c.is_Rational for block in constants for row in block for c in row):
        raise AlgebraError(f"expected rational structure constants and at most {_MAX_DIMENSION} generators, got {n}")
    return OptimalSystem(_LineSearch(constants), names)
