"""From equations to their symmetries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy as sp

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry.ansatz import Ansatz
from trivgeo.symmetry.determining import LinearForm, characteristics, collect, symmetry_condition
from trivgeo.symmetry.equation import EvolutionSystem
from trivgeo.symmetry.numeric import vanishes
from trivgeo.symmetry.result import SuperpositionIdeal, Symmetries, Symmetry, TrivialSymmetries

__all__ = ["residual", "search"]


def search(pde: Any, degree: int, time: Any, functions: Sequence[Any]) -> Symmetries:
    """See `trivgeo.symmetry.find_symmetries`."""
    system = EvolutionSystem(pde, time)
    conditions = symmetry_condition(system)
    equations = collect(system, conditions)
    extra = _checked(system, functions)
    ansatz = Ansatz(system, equations, collect(system, characteristics(system)), extra)
    solution = ansatz.solve(degree)
    sizes = {degree: len(solution.generators), degree + 1: len(ansatz.solve(degree + 1).generators)}
    if sizes[degree + 1] > sizes[degree]:
        sizes[degree + 2] = len(ansatz.solve(degree + 2).generators)
    variables = (*system.variables, *system.unknowns)
    for components in (*solution.generators, *solution.superposition, *solution.trivial):
        if not all(vanishes(_left(system, condition, components)) for condition in conditions):
            raise AlgebraError(f"{components} of {variables} came out of the determining equations but is no symmetry")

    def named(fields: Sequence[tuple[sp.Expr, ...]], letter: str) -> tuple[Symmetry, ...]:
        return tuple(Symmetry(f"{letter}{i + 1}", components, variables) for i, components in enumerate(fields))

    field = system.characteristic_field()
    along = None if field is None else Symmetry("C", field, variables)
    return Symmetries(
        system,
        equations,
        degree,
        extra,
        named(solution.generators, "X"),
        SuperpositionIdeal(system, named(solution.superposition, "S")) if ansatz.linear else None,
        TrivialSymmetries(along, named(solution.trivial, "C")) if along or solution.trivial else None,
        sizes,
    )


def _checked(system: EvolutionSystem, functions: Sequence[Any]) -> tuple[sp.Expr, ...]:
    """The functions of an ansatz as expressions of the variables."""
    result = []
    known = {*system.variables, *system.unknowns, *system.parameters}
    for function in functions:
        expression = system.plain(function, "ansatz")
        unknown = expression.free_symbols - known
        if unknown or expression.is_polynomial(*system.variables, *system.unknowns):
            raise ConfigurationError(
                f"ansatz: expected functions of {(*system.variables, *system.unknowns)} that are no polynomials, got "
                f"{expression}"
            )
        if expression in result:
            raise ConfigurationError(f"ansatz: expected different functions, got {expression} twice")
        result.append(expression)
    return tuple(result)


def residual(pde: Any, field: Any, time: Any) -> Any:
    """See `trivgeo.symmetry.verify`."""
    system = EvolutionSystem(pde, time)
    variables = (*system.variables, *system.unknowns)
    entries = field.components if isinstance(field, Symmetry) else field
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise ConfigurationError(f"field: expected a generator or a sequence of coefficients, got {field!r}")
    components = [system.plain(entry, "field") for entry in entries]
    if len(components) != len(variables):
        raise ConfigurationError(
            f"field: expected {len(variables)} coefficients for {variables}, got {len(components)}"
        )
    left = [_left(system, condition, components) for condition in symmetry_condition(system)]
    if all(map(vanishes, left)):
        return sp.S.Zero
    results = [sp.simplify(sp.expand(value)) for value in left]
    return results[0] if len(results) == 1 else sp.Tuple(*results)


def _left(system: EvolutionSystem, condition: LinearForm, components: Sequence[sp.Expr]) -> sp.Expr:
    """A linear form in the coefficients of a field, at a given field."""
    variables = (*system.variables, *system.unknowns)
    total = []
    for (c, k), value in condition.items():
        counts = [(variable, count) for variable, count in zip(variables, k, strict=True) if count]
        total.append(value * (sp.diff(components[c], *counts) if counts else components[c]))
    return sp.Add(*total)
