r"""One-dimensional subalgebras up to inner automorphisms.

A line through v is moved by the group as :math:`v \mapsto \mathrm{Ad}(g) v`. Lines are told apart along a chain of
subspaces: what keeps v modulo a subspace i acts on the next coefficient, that in i / j, by affine maps. Either some are
translations, and the coefficient can be made 0; or they have one fixed point, and it is that, or one more, or one less;
or nothing moves, and the coefficient tells lines apart. If weights are real that is all; half turns, which keep v or
send it to -v, are applied to the list afterwards (Patera and Winternitz 1977; Olver 1993, section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import sympy as sp

from trivgeo.errors import AlgebraError
from trivgeo.symmetry.optimal_search import LineKind, LineNode, LineSearch, RationalConstants
from trivgeo.symmetry.parametric_matrices import Floats, exponential_of_ad, float_coordinates, to_floats

__all__ = ["Line", "OptimalSystem", "optimal_system"]

_MAX_DIMENSION = 6
_ZERO_TOLERANCE = 1e-7  # beside numbers of size one: what is taken for zero


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
