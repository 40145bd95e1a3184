"""Fields whose coefficients are polynomials times given functions, and exact linear algebra."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp
from sympy.polys.matrices import DomainMatrix

from trivgeo.errors import ConfigurationError
from trivgeo.symmetry.determining import LinearForm
from trivgeo.symmetry.equation import EvolutionSystem, Index, multi_indices

__all__ = ["Ansatz", "Solution"]

Coefficients = tuple[sp.Expr, ...]
Term = tuple[tuple[Any, ...], Any, Any]  # powers of the variables, other factors, number
Unknown = tuple[int, Index, int]  # component, powers of the variables, which function
Row = dict[int, Any]
Form = dict[tuple[int, Index], list[Term]]


@dataclass(frozen=True)
class Solution:
    """A basis of the symmetries within an ansatz, in three parts.

    Attributes:
        generators: those beside the other two.
        superposition: those that add a solution of a linear equation.
        trivial: those that move no solution.
    """

    generators: list[Coefficients]
    superposition: list[Coefficients]
    trivial: list[Coefficients]


class Ansatz:
    """Fields with such coefficients in the determining equations.

    Args:
        system: the equations.
        equations: the determining equations.
        trivial: equations for the fields that move no solution.
        functions: what polynomials are multiplied with, beside 1.
    """

    def __init__(
        self,
        system: EvolutionSystem,
        equations: Sequence[LinearForm],
        trivial: Sequence[LinearForm],
        functions: Sequence[sp.Expr],
    ) -> None:
        self._system = system
        self._variables = (*system.variables, *system.unknowns)
        self._functions = (sp.S.One, *functions)
        self._domain: Any = sp.QQ.frac_field(*system.parameters) if system.parameters else sp.QQ
        self._derivatives: dict[tuple[int, Index], list[Term]] = {}
        self._products: dict[tuple[Any, Any], Any] = {}
        self._equations = self._all_terms(equations, "pde")
        self._trivial = self._all_terms(trivial, "pde")
        for index in range(1, len(self._functions)):
            self._derivative(index, (0,) * len(self._variables))
        slopes = [sp.diff(f, s) for f in system.right for s, _, _ in system.jets_in(f)]
        self.linear = not any(system.jets_in(slope) for slope in slopes)

    # Functions as sums of independent ones -------------------------------------------------------------------

    def _all_terms(self, forms: Sequence[LinearForm], what: str) -> list[Form]:
        return [{key: self._terms(value, what) for key, value in form.items()} for form in forms]

    def _terms(self, expression: sp.Expr, what: str) -> list[Term]:
        """A function as a sum of powers of the variables times exponentials and logarithms of them, with numbers.

        Different such products are independent over the numbers.
        """
        terms = []
        for term in sp.Add.make_args(sp.expand(sp.powsimp(sp.expand(expression), force=True))):
            powers = dict.fromkeys(self._variables, sp.S.Zero)
            number, other = sp.S.One, sp.S.One
            for base, exponent in term.as_powers_dict().items():
                factor = base**exponent
                if base in powers and not self._depends(exponent):
                    powers[base] += exponent
                elif not self._depends(factor):
                    number *= factor
                elif self._is_exponential(factor) or (self._is_logarithm(base) and exponent.is_Integer):
                    other *= factor
                else:
                    raise ConfigurationError(
                        f"{what}: expected sums of products of powers, exponentials of polynomials and logarithms of "
                        f"{self._variables}, got {factor}"
                    )
            terms.append((tuple(powers.values()), sp.powsimp(other), self._number(number, what)))
        return terms

    def _depends(self, expression: sp.Expr) -> bool:
        return bool(expression.free_symbols & set(self._variables))

    def _number(self, number: sp.Expr, what: str) -> Any:
        try:
            return self._domain.from_sympy(sp.together(number))
        except (sp.CoercionFailed, ValueError) as error:
            raise ConfigurationError(
                f"{what}: expected coefficients rational in the parameters, got {number}"
            ) from error

    def _is_exponential(self, factor: sp.Expr) -> bool:
        base, exponent = (sp.E, factor.args[0]) if isinstance(factor, sp.exp) else factor.as_base_exp()
        return not self._depends(base) and exponent.is_polynomial(*self._variables)

    def _is_logarithm(self, factor: sp.Expr) -> bool:
        return isinstance(factor, sp.log) and factor.args[0] in self._variables

    def _derivative(self, function: int, index: Index) -> list[Term]:
        """The terms of a derivative of one of the functions."""
        key = (function, index)
        if key not in self._derivatives:
            counts = [(v, k) for v, k in zip(self._variables, index, strict=True) if k]
            value = self._functions[function]
            self._derivatives[key] = self._terms(sp.diff(value, *counts) if counts else value, "ansatz")
        return self._derivatives[key]

    def _times(self, a: sp.Expr, b: sp.Expr) -> sp.Expr:
        if a == 1 or b == 1:
            return a * b
        if (a, b) not in self._products:
            self._products[a, b] = sp.powsimp(a * b)
        return self._products[a, b]

    # Linear algebra ------------------------------------------------------------------------------------------

    def solve(self, degree: int) -> Solution:
        """A basis of the symmetries whose polynomials have at most the given degree."""
        unknowns = self._unknowns(degree)
        impure = sum(not self._is_pure(unknown) for unknown in unknowns)
        rows = self._null_space(self._equations, unknowns)
        trivial = self._null_space(self._trivial, unknowns)
        pure = [row for row in rows if min(row) >= impure]
        others = sorted((row for row in rows if min(row) < impure), key=lambda row: self._complexity(row, unknowns))
        kept = sorted((others[i] for i in self._independent([*trivial, *pure], others, len(unknowns))), key=min)
        return Solution(*([self._field(row, unknowns) for row in part] for part in (kept, pure, trivial)))

    def _unknowns(self, degree: int) -> list[Unknown]:
        """Superposition last, so that row reduction separates it."""
        n = len(self._variables)
        unknowns = [(c, e, f) for c in range(n) for f in range(len(self._functions)) for e in multi_indices(n, degree)]
        return sorted(unknowns, key=self._is_pure)

    def _is_pure(self, unknown: Unknown) -> bool:
        """Whether the term adds a function of the independent variables to an unknown of linear equations."""
        component, powers, function = unknown
        first, names = len(self._system.variables), set(self._system.unknowns)
        free = not any(powers[first:]) and not self._functions[function].free_symbols & names
        return self.linear and component >= first and free

    @staticmethod
    def _complexity(row: Row, unknowns: Sequence[Unknown]) -> tuple[int, int, int]:
        return sum(unknowns[j][2] > 0 for j in row), max(sum(unknowns[j][1]) for j in row), len(row)

    def _null_space(self, forms: Sequence[Form], unknowns: Sequence[Unknown]) -> list[Row]:
        """A reduced basis of the solutions of linear forms, by column."""
        rows = self._rows(forms, unknowns)
        # Equations for one unknown alone make it zero. With parameters, elimination without this first step drowns in
        # rational functions.
        left = set(range(len(unknowns)))
        while single := {j for row in rows if len(row) == 1 for j in row}:
            left -= single
            rows = [short for row in rows if (short := {j: v for j, v in row.items() if j not in single})]
        columns = sorted(left)
        place = {j: k for k, j in enumerate(columns)}
        entries = dict(enumerate({place[j]: v for j, v in row.items()} for row in sorted(rows, key=len)))
        matrix = DomainMatrix(entries, (max(1, len(rows)), len(columns)), self._domain)
        reduced, pivots = matrix.nullspace().rref()
        table: list[Row] = [{} for _ in pivots]
        for (i, k), value in reduced.to_dok().items():
            if i < len(pivots):
                table[i][columns[k]] = value
        return table

    def _independent(self, given: Sequence[Row], candidates: Sequence[Row], width: int) -> list[int]:
        """Which candidates enlarge the span of the given rows and of the candidates before."""
        rows = [*given, *candidates]
        if not given or not candidates:
            return list(range(len(candidates)))
        matrix = DomainMatrix(dict(enumerate(rows)), (len(rows), width), self._domain)
        _, pivots = matrix.transpose().rref()
        return [p - len(given) for p in pivots if p >= len(given)]

    def _rows(self, forms: Sequence[Form], unknowns: Sequence[Unknown]) -> list[Row]:
        """One equation for each independent function of the variables in each form."""
        by_component: dict[int, list[tuple[int, Index, int]]] = {}
        for column, (c, e, f) in enumerate(unknowns):
            by_component.setdefault(c, []).append((column, e, f))
        rows: dict[tuple[Any, ...], Row] = {}
        zero = self._domain.zero
        for index, form in enumerate(forms):
            for (c, k), terms in form.items():
                for column, e, f in by_component[c]:
                    for powers, other, number in self._differentiated(e, f, k):
                        for shift, factor, coefficient in terms:
                            total = tuple(a + b for a, b in zip(powers, shift, strict=True))
                            row = rows.setdefault((index, total, self._times(other, factor)), {})
                            row[column] = row.get(column, zero) + number * coefficient
        kept = [{j: value for j, value in row.items() if value} for row in rows.values()]
        return [row for row in kept if row]

    def _differentiated(self, powers: Index, function: int, by: Index) -> Iterator[Term]:
        """The terms of a derivative of a monomial times a function, by Leibniz' rule."""
        ranges = [range(k + 1) for k in by] if function else [range(1)] * len(by)
        for inner in itertools.product(*ranges):
            outer = tuple(k - j for k, j in zip(by, inner, strict=True))
            if any(a < b for a, b in zip(powers, outer, strict=True)):
                continue
            falling = math.prod(math.perm(a, b) for a, b in zip(powers, outer, strict=True))
            count = falling * math.prod(math.comb(k, j) for k, j in zip(by, inner, strict=True))
            left = tuple(a - b for a, b in zip(powers, outer, strict=True))
            for shift, other, number in self._derivative(function, inner):
                total = tuple(a + b for a, b in zip(left, shift, strict=True))
                yield total, other, number * self._domain.convert(count)

    def _field(self, entries: Row, unknowns: Sequence[Unknown]) -> Coefficients:
        """The field of one solution, without common denominators or factors."""
        values = {j: self._domain.to_sympy(v) for j, v in entries.items()}
        denominator = sp.lcm_list([sp.denom(sp.together(v)) for v in values.values()])
        values = {j: sp.cancel(v * denominator) for j, v in values.items()}
        common = sp.gcd_list(list(values.values()))
        if values[min(values)].could_extract_minus_sign() != common.could_extract_minus_sign():
            common = -common
        components = [sp.S.Zero] * len(self._variables)
        for j, value in values.items():
            c, e, f = unknowns[j]
            monomial = sp.Mul(*(v**p for v, p in zip(self._variables, e, strict=True)))
            components[c] += sp.cancel(value / common) * monomial * self._functions[f]
        # exponentials stay as the user wrote them
        return tuple(sp.expand(component, power_exp=False) for component in components)
