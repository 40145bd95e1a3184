"""Determining equations: linear conditions on the coefficients of a vector field and their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry.equations.equation import EvolutionSystem
from trivgeo.symmetry.equations.multi_index import Index, derivative, shifted
from trivgeo.symmetry.equations.numeric import vanishes

LinearForm = dict[tuple[int, Index], sp.Expr]
"""Factors of derivatives of a field, by the number of its component and the multi-index of the derivative."""


def symmetry_condition(system: EvolutionSystem) -> list[LinearForm]:
    """Return :math:`D_J Q^a - F_*[Q]` on solutions for each equation :math:`u^a_J = F`: forms linear in the field."""
    derivatives = _Characteristics(system)
    conditions = []
    for (a, index), right in zip(system.leaders, system.right, strict=True):
        condition = dict(derivatives.of(a, index))
        for symbol, b, inner in system.jets_in(right):
            factor = sp.diff(right, symbol)
            for key, value in derivatives.of(b, inner).items():
                condition[key] = condition.get(key, sp.S.Zero) - factor * value
        expanded = {key: sp.expand(value) for key, value in condition.items()}
        conditions.append({key: value for key, value in expanded.items() if value != 0})
    return conditions


def characteristics(system: EvolutionSystem) -> list[LinearForm]:
    """Return the characteristics Q^a on solutions: fields for which all vanish move no solution."""
    derivatives = _Characteristics(system)
    return [derivatives.of(a, system.zero) for a in range(len(system.unknowns))]


class _Characteristics:
    """Total derivatives of the characteristics Q^a, each computed once."""

    def __init__(self, system: EvolutionSystem) -> None:
        self._system = system
        self._known: dict[tuple[int, Index], LinearForm] = {}
        self._none: Index = (0,) * (len(system.variables) + len(system.unknowns))
        for a in range(len(system.unknowns)):
            form: LinearForm = {(len(system.variables) + a, self._none): sp.S.One}
            for i in range(len(system.variables)):
                form[i, self._none] = -system.value(a, shifted(system.zero, i))
            self._known[a, system.zero] = form

    def of(self, a: int, index: Index) -> LinearForm:
        """The total derivative D_J Q^a."""
        key = (a, index)
        if key not in self._known:
            direction = next(i for i, k in enumerate(index) if k)
            lower = shifted(index, direction, -1)
            self._known[key] = self._total(self.of(a, lower), direction)
        return self._known[key]

    def _total(self, form: LinearForm, direction: int) -> LinearForm:
        system, n = self._system, len(self._system.variables)
        result: LinearForm = {}

        def add(key: tuple[int, Index], value: sp.Expr) -> None:
            result[key] = result.get(key, sp.S.Zero) + value

        for (c, k), value in form.items():
            add((c, k), system.total(value, direction))
            add((c, shifted(k, direction)), value)
            for a in range(len(system.unknowns)):
                add((c, shifted(k, n + a)), value * system.value(a, shifted(system.zero, direction)))
        expanded = {key: sp.expand(value) for key, value in result.items()}
        return {key: value for key, value in expanded.items() if value != 0}


def collect(system: EvolutionSystem, conditions: Sequence[LinearForm]) -> list[LinearForm]:
    """Split conditions by monomials in the derivatives of u, into forms whose factors depend on (x, t, u) alone.

    Raises:
        ConfigurationError: the equations are not polynomial in the derivatives.
    """
    found: dict[tuple[Any, ...], LinearForm] = {}
    for condition in conditions:
        symbols = {s for value in condition.values() for s in value.free_symbols if system.is_derivative(s)}
        generators = sorted(symbols, key=str)
        split: dict[Index, LinearForm] = {}
        for key, value in condition.items():
            try:
                terms = sp.Poly(value, *generators).terms() if generators else [((), value)]
            except sp.PolynomialError:
                terms = None
            if terms is None or any(system.is_derivative(s) for _, e in terms for s in sp.sympify(e).free_symbols):
                raise ConfigurationError(
                    f"equation: expected a polynomial in the derivatives of {', '.join(map(str, system.unknowns))}, "
                    f"got {', '.join(map(str, system.right))}"
                )
            for monomial, coefficient in terms:
                split.setdefault(monomial, {})[key] = sp.expand(coefficient)
        for form in split.values():
            normal = _normalized(form)
            found.setdefault(tuple(sorted(normal.items(), key=lambda item: item[0])), normal)
    return sorted(found.values(), key=lambda form: (len(form), sorted(form)))


def left_side(system: EvolutionSystem, condition: LinearForm, components: Sequence[sp.Expr]) -> sp.Expr:
    """Return the value of a linear form at a field."""
    total = []
    for (c, k), value in condition.items():
        total.append(value * derivative(components[c], system.coordinates, k))
    return sp.Add(*total)


def check(system: EvolutionSystem, conditions: Sequence[LinearForm], components: Sequence[sp.Expr]) -> None:
    """Check that a field satisfies the symmetry conditions.

    Raises:
        AlgebraError: the field is no symmetry.
    """
    if not all(vanishes(left_side(system, condition, components)) for condition in conditions):
        raise AlgebraError(
            f"expected a solution of the determining equations, got {components} for "
            f"{system.coordinates}, which is no symmetry"
        )


def _normalized(form: LinearForm) -> LinearForm:
    """A linear form divided by its first factor, without denominators: equal equations then compare equal."""
    if any(
        power.exp.is_Rational and not power.exp.is_Integer for value in form.values() for power in value.atoms(sp.Pow)
    ):
        return form  # polynomials in a tenth root have ten times the degree: not worth it
    first = form[min(form)]
    quotient = {key: sp.cancel(value / first) for key, value in form.items()}
    denominator = sp.S.One
    for value in quotient.values():
        denominator = sp.lcm(denominator, sp.denom(value))
    return {key: sp.expand(sp.cancel(value * denominator)) for key, value in quotient.items()}
