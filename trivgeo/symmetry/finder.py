"""From equations to their symmetries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from trivgeo.errors import ConfigurationError
from trivgeo.symmetry.ansatz import Ansatz
from trivgeo.symmetry.determining import characteristics, collect, symmetry_condition
from trivgeo.symmetry.equation import EvolutionSystem
from trivgeo.symmetry.result import SuperpositionIdeal, Symmetries, Symmetry, TrivialSymmetries

__all__ = ["residual", "search"]


def search(pde: Any, degree: int, time: Any, functions: Sequence[Any]) -> Symmetries:
    """See `trivgeo.symmetry.find_symmetries`."""
    system = EvolutionSystem(pde, time)
    equations = collect(system, symmetry_condition(system))
    extra = _checked(system, functions)
    ansatz = Ansatz(system, equations, collect(system, characteristics(system)), extra)
    solution = ansatz.solve(degree)
    sizes = {degree: len(solution.generators), degree + 1: len(ansatz.solve(degree + 1).generators)}
    if sizes[degree + 1] > sizes[degree]:
        sizes[degree + 2] = len(ansatz.solve(degree + 2).generators)
    variables = (*system.variables, *system.unknowns)

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
        expression = system.plain(function)
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
