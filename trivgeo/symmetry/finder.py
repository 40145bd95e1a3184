"""The polynomial ansatz, and exact linear algebra."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy as sp
from sympy.polys.matrices import DomainMatrix

from trivgeo.errors import ConfigurationError
from trivgeo.symmetry.determining import LinearForm, collect, symmetry_condition
from trivgeo.symmetry.equation import EvolutionSystem, Index, multi_indices
from trivgeo.symmetry.result import SuperpositionIdeal, Symmetries, Symmetry

__all__ = ["residual", "search"]

Term = tuple[tuple[Any, ...], Any, Any]  # powers of the variables, other factors, coefficient


def search(pde: Any, degree: int, time: Any) -> Symmetries:
    """See `trivgeo.symmetry.find_symmetries`."""
    system = EvolutionSystem(pde, time)
    equations = collect(system, symmetry_condition(system))
    ansatz = _Ansatz(system, equations)
    generators, superposition = ansatz.solve(degree)
    sizes = {degree: len(generators), degree + 1: len(ansatz.solve(degree + 1)[0])}
    if sizes[degree + 1] > sizes[degree]:
        sizes[degree + 2] = len(ansatz.solve(degree + 2)[0])
    ideal = None
    if ansatz.linear:
        ideal = SuperpositionIdeal(system, tuple(_symmetries(system, superposition, "S")))
    return Symmetries(system, equations, degree, tuple(_symmetries(system, generators, "X")), ideal, sizes)


def residual(pde: Any, field: Any, time: Any) -> Any:
    """See `trivgeo.symmetry.verify`."""
    system = EvolutionSystem(pde, time)
    variables = (*system.variables, *system.unknowns)
    components = [system.plain(c) for c in (field.components if isinstance(field, Symmetry) else field)]
    if len(components) != len(variables):
        raise ConfigurationError(
            f"field: expected {len(variables)} coefficients for {variables}, got {len(components)}"
        )
    results = []
    for condition in symmetry_condition(system):
        total = sp.S.Zero
        for (c, k), value in condition.items():
            derivative = components[c]
            for variable, count in zip(variables, k, strict=True):
                derivative = sp.diff(derivative, variable, count) if count else derivative
            total += value * derivative
        results.append(sp.simplify(sp.expand(total)))
    if all(r == 0 for r in results):
        return sp.S.Zero
    return results[0] if len(results) == 1 else sp.Tuple(*results)


class _Ansatz:
    """Fields with polynomial coefficients in the determining equations."""

    def __init__(self, system: EvolutionSystem, equations: Sequence[LinearForm]) -> None:
        self._system = system
        self._variables = (*system.variables, *system.unknowns)
        domain = sp.QQ.frac_field(*system.parameters) if system.parameters else sp.QQ
        self._domain: Any = domain
        # floating-point numbers are read as the decimals that they were written as
        exact = [{key: sp.nsimplify(value, rational=True) for key, value in form.items()} for form in equations]
        self._equations = [{key: self._terms(value) for key, value in form.items()} for form in exact]
        slopes = [sp.diff(f, s) for f in system.right for s, _, _ in system.jets_in(f)]
        self.linear = not any(system.jets_in(slope) for slope in slopes)
        self._solved: dict[int, tuple[list[Any], list[Any]]] = {}

    def _terms(self, expression: sp.Expr) -> list[Term]:
        """A coefficient as a sum of powers of the variables, exponentials of them, and numbers."""
        terms = []
        for term in sp.Add.make_args(sp.expand(sp.powsimp(sp.expand(expression), force=True))):
            powers = dict.fromkeys(self._variables, sp.S.Zero)
            number, other = sp.S.One, sp.S.One
            for base, exponent in term.as_powers_dict().items():
                factor = base**exponent
                depends = factor.free_symbols & set(self._variables)
                if base in powers and not exponent.free_symbols & set(self._variables):
                    powers[base] += exponent
                elif not depends:
                    number *= factor
                elif self._is_exponential(factor):
                    other *= factor
                else:
                    raise ConfigurationError(
                        f"pde: expected coefficients of powers and exponentials of {self._variables}, got {factor}"
                    )
            terms.append((tuple(powers.values()), sp.powsimp(other), self._number(number)))
        return terms

    def _number(self, number: sp.Expr) -> Any:
        try:
            return self._domain.from_sympy(sp.together(number))
        except (sp.CoercionFailed, ValueError) as error:
            raise ConfigurationError(f"pde: expected coefficients rational in the parameters, got {number}") from error

    def _is_exponential(self, factor: sp.Expr) -> bool:
        base, exponent = factor.as_base_exp()
        if isinstance(factor, sp.exp):
            base, exponent = sp.E, factor.args[0]
        linear = all(sp.diff(exponent, v, w) == 0 for v in self._variables for w in self._variables)
        return not base.free_symbols & set(self._variables) and linear

    def solve(self, degree: int) -> tuple[list[Any], list[Any]]:
        """Coefficient tuples of a basis: those beside superposition, and those of superposition."""
        n = len(self._variables)
        unknowns = [(c, e) for c in range(n) for e in multi_indices(n, degree)]
        first_unknown = len(self._system.variables)
        pure = [self.linear and c >= first_unknown and not any(e[first_unknown:]) for c, e in unknowns]
        # superposition last, so that row reduction separates it
        order = sorted(range(len(unknowns)), key=lambda i: pure[i])
        unknowns = [unknowns[i] for i in order]
        impure = len(unknowns) - sum(pure)
        null = self._matrix(unknowns).nullspace()
        reduced, pivots = null.rref()
        rows = reduced.to_sdm().to_dok() if hasattr(reduced, "to_sdm") else reduced.to_dok()
        table: list[dict[int, Any]] = [{} for _ in pivots]
        for (i, j), value in rows.items():
            if i < len(pivots):
                table[i][j] = value
        fields = [self._field(entries, unknowns) for entries in table]
        count = sum(p < impure for p in pivots)
        return fields[:count], fields[count:]

    def _matrix(self, unknowns: Sequence[tuple[int, Index]]) -> DomainMatrix:
        """One row for each independent function of the variables in each equation, one column for each unknown."""
        by_component: dict[int, list[tuple[int, Index]]] = {}
        for column, (c, e) in enumerate(unknowns):
            by_component.setdefault(c, []).append((column, e))
        rows: dict[tuple[Any, ...], dict[int, Any]] = {}
        zero = self._domain.zero
        for index, form in enumerate(self._equations):
            for (c, k), terms in form.items():
                for column, e in by_component[c]:
                    if any(a < b for a, b in zip(e, k, strict=True)):
                        continue
                    falling = math.prod(math.perm(a, b) for a, b in zip(e, k, strict=True))
                    for powers, other, number in terms:
                        shifted = tuple(p + a - b for p, a, b in zip(powers, e, k, strict=True))
                        row = rows.setdefault((index, shifted, other), {})
                        row[column] = row.get(column, zero) + number * self._domain.convert(falling)
        kept = {i: {j: v for j, v in row.items() if v} for i, row in enumerate(rows.values())}
        kept = {i: row for i, row in kept.items() if row}
        compact = dict(enumerate(kept.values()))
        return DomainMatrix(compact, (max(1, len(compact)), len(unknowns)), self._domain)

    def _field(self, entries: dict[int, Any], unknowns: Sequence[tuple[int, Index]]) -> tuple[sp.Expr, ...]:
        """The field of one solution, without common denominators or factors."""
        values = {j: self._domain.to_sympy(v) for j, v in entries.items()}
        denominator = sp.lcm_list([sp.denom(sp.together(v)) for v in values.values()])
        values = {j: sp.cancel(v * denominator) for j, v in values.items()}
        common = sp.gcd_list(list(values.values()))
        if values[min(values)].could_extract_minus_sign() != common.could_extract_minus_sign():
            common = -common
        components = [sp.S.Zero] * len(self._variables)
        for j, value in values.items():
            c, e = unknowns[j]
            monomial = sp.Mul(*(v**p for v, p in zip(self._variables, e, strict=True)))
            components[c] += sp.cancel(value / common) * monomial
        return tuple(sp.expand(component) for component in components)


def _symmetries(system: EvolutionSystem, fields: Sequence[tuple[sp.Expr, ...]], letter: str) -> list[Symmetry]:
    variables = (*system.variables, *system.unknowns)
    return [Symmetry(f"{letter}{i + 1}", components, variables) for i, components in enumerate(fields)]
