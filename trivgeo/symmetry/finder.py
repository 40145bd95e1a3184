"""From equations to their symmetries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import sympy as sp

from trivgeo.errors import ConfigurationError
from trivgeo.symmetry.ansatz import AnsatzSpace
from trivgeo.symmetry.brackets import bracket
from trivgeo.symmetry.determining import LinearForm, characteristics, check, left_side, symmetry_condition
from trivgeo.symmetry.dimension import Dimension, Jets
from trivgeo.symmetry.equation import EvolutionSystem, residuals_of
from trivgeo.symmetry.equivalent import Equivalent, about_any_solution, simpler, term_matrix, with_right_sides
from trivgeo.symmetry.growth import MAX_COLUMNS, Found, grow, radicands_of_rates
from trivgeo.symmetry.numeric import vanishes
from trivgeo.symmetry.ordinary import from_solutions, is_linear_ordinary
from trivgeo.symmetry.radicals import Radicals
from trivgeo.symmetry.result import Knowledge, SuperpositionIdeal, Symmetries, Symmetry, TrivialSymmetries

__all__ = ["is_linear", "residual", "search"]

Coefficients = tuple[sp.Expr, ...]

_LARGEST_NUMBER = 30  # in a field: flows of fields with larger ones leave everything at once


def search(pde: Any, degree: int | None, time: Any, functions: Sequence[Any]) -> Symmetries:
    """Search for the infinitesimal symmetries of equations.

    Args:
        pde: the equations, see `trivgeo.symmetry.find_symmetries`.
        degree: of the polynomials that are tried; ``None`` lets the search choose.
        time: the independent variable in whose highest derivatives equations are solved, see `find_symmetries`.
        functions: factors of the polynomials beside one.

    Raises:
        ConfigurationError: as for `trivgeo.symmetry.find_symmetries`.
    """
    system, conditions = _conditions(tuple(residuals_of(pde)), None if time is None else str(time))
    extra = _ansatz_functions(system, functions)
    jets = Jets(system, conditions, is_linear(system))
    # what is easily found tells where the bound of the dimension is sharp
    spaces = (AnsatzSpace(system, conditions, jets, (sp.S.One, *extra), d, jets.linear) for d in (degree or 3, 2, 1))
    first = next((space for space in spaces if len(space.columns) <= MAX_COLUMNS), None)
    dimension = jets.dimension(first.count if first else 0)
    sizes: dict[int, int] = {}
    if degree is None and not extra and system.characteristic_field() is None:
        found = _search_all(system, conditions, jets, dimension)
    else:
        found, sizes = _search_ansatz(system, conditions, jets, extra, degree or 2, dimension)
    trivial = _trivial_fields(system, jets, found) if dimension.is_infinite else []
    if jets.linear:
        found = _about_a_solution(system, found)
    found = replace(found, generators=[_in_units(field) for field in found.generators])
    # what moves no solution is no generator
    for components in (*found.generators, *found.superposition):
        check(system, conditions, components)
    variables = (*system.variables, *system.unknowns)

    def named(fields: Sequence[Coefficients], letter: str) -> tuple[Symmetry, ...]:
        return tuple(Symmetry(f"{letter}{i + 1}", components, variables) for i, components in enumerate(fields))

    field = system.characteristic_field()
    along = None if field is None else Symmetry("C", field, variables)
    generators = _modulo(found, trivial, variables) if trivial else found.generators
    return Symmetries(
        system,
        conditions,
        Knowledge(dimension, found.degree, found.functions, sizes),
        named(generators, "X"),
        SuperpositionIdeal(system, named(found.superposition, "S")) if jets.linear else None,
        TrivialSymmetries(along, named(trivial, "C")) if along or trivial else None,
    )


def _search_all(system: EvolutionSystem, conditions: Sequence[LinearForm], jets: Jets, dimension: Dimension) -> Found:
    """Search simpler equations in other variables first, then the equations themselves.

    Args:
        system: the equations.
        conditions: their symmetry conditions.
        jets: the ranks of these.
        dimension: the number of symmetries, where the search ends.
    """
    chain: list[Equivalent] = []
    if dimension.size is not None:
        while (other := simpler(chain[-1].system if chain else system)) is not None:
            chain.append(other)
        for length in range(len(chain), 0, -1):
            other_system = chain[length - 1].system
            forms = symmetry_condition(other_system)
            found = _search_directly(other_system, forms, Jets(other_system, forms, jets.linear), dimension)
            if len(found.generators) >= dimension.size:
                return _pulled_back(found, chain[:length])
    return _search_directly(system, conditions, jets, dimension)


def _search_directly(
    system: EvolutionSystem, conditions: Sequence[LinearForm], jets: Jets, dimension: Dimension
) -> Found:
    """Search growing spaces of functions, then in terms of solutions that have no formula."""
    found = grow(system, conditions, jets, dimension)
    if dimension.size in (None, len(found.generators)):
        return found
    rooted = _with_roots(system, jets, dimension)
    if rooted is not None:
        return rooted
    if is_linear_ordinary(system):
        return replace(found, generators=from_solutions(system, found.generators, dimension.size))
    other = about_any_solution(system)
    if other is None or dimension.size is None:
        return found
    forms = symmetry_condition(other.system)
    homogeneous = grow(other.system, forms, Jets(other.system, forms, jets.linear), dimension)
    return _pulled_back(homogeneous, [other]) if len(homogeneous.generators) >= dimension.size else found


def _with_roots(system: EvolutionSystem, jets: Jets, dimension: Dimension) -> Found | None:
    """All symmetries where their rates are square roots of parameters, which become parameters; else ``None``."""
    if not system.parameters or dimension.size is None:
        return None
    names = [s.name for s in (*system.variables, *system.unknowns)]
    radicals = Radicals(radicands_of_rates(system, jets, dimension), system.parameters, names)
    if not radicals:
        return None
    other = with_right_sides(system, [sp.expand(radicals.put(right)) for right in system.right])
    forms = symmetry_condition(other)
    found = grow(other, forms, Jets(other, forms, jets.linear), dimension)
    if len(found.generators) < dimension.size:
        return None
    generators, superposition = (
        [tuple(map(radicals.back, field)) for field in part] for part in (found.generators, found.superposition)
    )
    return Found(generators, superposition, found.degree, tuple(map(radicals.back, found.functions)))


def _pulled_back(found: Found, chain: Sequence[Equivalent]) -> Found:
    """The symmetries of the last of successive equivalent equations in the variables of the first."""
    for other in reversed(chain):
        generators, superposition = (
            [other.pulled_back(field) for field in part] for part in (found.generators, found.superposition)
        )
        found = replace(found, generators=generators, superposition=superposition)
    return found


@lru_cache(maxsize=8)
def _conditions(residuals: tuple[sp.Expr, ...], time: Any) -> tuple[EvolutionSystem, list[LinearForm]]:
    """The equations in solved form and their symmetry conditions, kept for the equations asked for last."""
    system = EvolutionSystem(residuals, time)
    return system, symmetry_condition(system)


def is_linear(system: EvolutionSystem) -> bool:
    """Return True if solutions of ``system`` can be added; an ordinary equation, of finitely many, returns False."""
    return len(system.variables) > 1 and system.is_linear


def _about_a_solution(system: EvolutionSystem, found: Found) -> Found:
    r"""Generators that commute with :math:`E = (u - p) \partial_u`, p a solution of a linear equation.

    Symmetries are linear in u - p up to superposition, :math:`X - [X, E]` is what is linear of X, and such fields
    close; those of an inhomogeneous equation that are chosen otherwise close up to superposition only. E is among
    the generators; of all its p a simple one is taken.
    """
    base, unknowns = len(system.variables), system.unknowns
    variables = (*system.variables, *unknowns)
    for field in found.generators:
        slopes = sp.Matrix(field[base:]).jacobian(unknowns)
        c = slopes[0, 0]
        if not any(field[:base]) and c.is_number and c != 0 and slopes == c * sp.eye(len(unknowns)):
            scaling = _simplest(tuple(f / c for f in field), found.superposition, variables)
            break
    else:
        return found

    def linear_part(field: Coefficients) -> Coefficients:
        shift = bracket(field, scaling, variables)
        return _without_factor(tuple(sp.expand(f - a) for f, a in zip(field, shift, strict=True)))

    return replace(found, generators=[linear_part(field) for field in found.generators])


def _without_factor(field: Coefficients) -> Coefficients:
    """With numbers that are integers without a common factor, if they are rational."""
    numbers = [t.as_coeff_Mul()[0] for f in field for t in sp.Add.make_args(f) if t != 0]
    if not all(number.is_Rational for number in numbers):
        return field
    common = sp.gcd_list(numbers)
    return tuple(sp.expand(f / common) for f in field)


def _in_units(field: Coefficients) -> Coefficients:
    """With one as the largest number if that is large, as of equations with decimals."""
    numbers = [abs(t.as_coeff_Mul()[0]) for f in field for t in sp.Add.make_args(f) if t != 0]
    if not all(number.is_Rational for number in numbers) or max(numbers, default=0) <= _LARGEST_NUMBER:
        return field
    return tuple(sp.expand(f / max(numbers), power_exp=False) for f in field)


def _simplest(
    field: Coefficients, superposition: Sequence[Coefficients], variables: Sequence[sp.Symbol]
) -> Coefficients:
    """A field less members of the superposition ideal, so that its longest terms go."""
    terms, matrix = term_matrix([field, *superposition], variables)

    def order(k: int) -> tuple[int, str]:
        function = terms[k][1]
        return (-sp.total_degree(function) if function.is_polynomial() else 0, str(terms[k]))

    places = sorted(range(len(terms)), key=order)
    matrix = matrix.extract(list(range(matrix.rows)), places)
    reduced, pivots = matrix[1:, :].rref()
    left = matrix[0, :]
    for k, pivot in enumerate(pivots):
        left = left - left[pivot] * reduced[k, :]
    result = [sp.S.Zero] * len(field)
    for number, place in zip(left, places, strict=True):
        component, function = terms[place]
        result[component] += number * function
    return tuple(result)


def _search_ansatz(
    system: EvolutionSystem,
    conditions: Sequence[LinearForm],
    jets: Jets,
    functions: Sequence[sp.Expr],
    degree: int,
    dimension: Dimension,
) -> tuple[Found, dict[int, int]]:
    """The symmetries in one space of functions, and the numbers at this degree and the next."""
    every = (sp.S.One, *functions)
    spaces = {d: AnsatzSpace(system, conditions, jets, every, d, jets.linear) for d in (degree, degree + 1)}
    solution = spaces[degree].solve()
    if solution is None:
        raise ConfigurationError(f"pde: expected symmetries rational in {system.parameters}, of low degree; got others")
    found = Found(*solution, degree, tuple(functions))
    return found, {d: space.count for d, space in spaces.items()}


def _trivial_fields(system: EvolutionSystem, jets: Jets, found: Found) -> list[Coefficients]:
    """Fields in the same space that move no solution."""
    forms = characteristics(system)
    if system.characteristic_field() is None:
        return []
    trivial = Jets(system, forms, False)
    space = AnsatzSpace(system, forms, trivial, (sp.S.One, *found.functions), found.degree, False)
    solution = space.solve()
    return [] if solution is None else solution[0]


def _modulo(found: Found, trivial: Sequence[Coefficients], variables: Sequence[sp.Symbol]) -> list[Coefficients]:
    """Generators that are independent modulo trivial fields and superposition, simple ones preferred."""
    fields = [*trivial, *found.superposition, *sorted(found.generators, key=_complexity)]
    _, matrix = term_matrix(fields, variables)
    _, pivots = sp.polys.matrices.DomainMatrix.from_Matrix(matrix.T).to_field().rref()
    first = len(trivial) + len(found.superposition)
    kept = {fields[j] for j in pivots if j >= first}
    return [field for field in found.generators if field in kept]


def _complexity(field: Coefficients) -> tuple[int, int]:
    return sum(sp.count_ops(c) for c in field), len(str(field))


def _ansatz_functions(system: EvolutionSystem, functions: Sequence[Any]) -> Coefficients:
    """The functions of an ansatz as expressions of the variables."""
    result: list[sp.Expr] = []
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
    """Return the left side of the symmetry condition of a vector field, an expression of SymPy; zero for a symmetry.

    Args:
        pde: the equations, see `trivgeo.symmetry.find_symmetries`.
        field: a `Symmetry`, or its coefficients, one for each variable and each unknown.
        time: the independent variable in whose highest derivatives equations are solved, see `find_symmetries`.

    Raises:
        ConfigurationError: no coefficients, or not one for each variable and unknown.
    """
    system, conditions = _conditions(tuple(residuals_of(pde)), None if time is None else str(time))
    variables = (*system.variables, *system.unknowns)
    entries = field.components if isinstance(field, Symmetry) else field
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise ConfigurationError(f"field: expected a generator or a sequence of coefficients, got {field!r}")
    components = [system.plain(entry, "field") for entry in entries]
    if len(components) != len(variables):
        raise ConfigurationError(
            f"field: expected {len(variables)} coefficients for {variables}, got {len(components)}"
        )
    left = [left_side(system, condition, components) for condition in conditions]
    if all(map(vanishes, left)):
        return sp.S.Zero
    results = [sp.simplify(sp.expand(value)) for value in left]
    return results[0] if len(results) == 1 else sp.Tuple(*results)
