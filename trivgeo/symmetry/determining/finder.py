"""The search for the symmetries of equations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import sympy as sp

from trivgeo.errors import ConfigurationError
from trivgeo.symmetry.algebra.brackets import bracket
from trivgeo.symmetry.determining.ansatz import AnsatzSpace
from trivgeo.symmetry.determining.conditions import LinearForm, characteristics, check, left_side, symmetry_condition
from trivgeo.symmetry.determining.dimension import Dimension, Jets
from trivgeo.symmetry.determining.growth import MAX_COLUMNS, Found, grow, radicands_of_rates
from trivgeo.symmetry.equations.equation import EvolutionSystem, free_name, residuals_of
from trivgeo.symmetry.equations.equivalent import Equivalent, about_any_solution, simpler, term_matrix, with_right_sides
from trivgeo.symmetry.equations.formulas import antiderivative
from trivgeo.symmetry.equations.numeric import Radicals, vanishes
from trivgeo.symmetry.equations.unnamed_functions import fundamental
from trivgeo.symmetry.equations.vector_fields import SuperpositionIdeal, Symmetry, TrivialSymmetries
from trivgeo.symmetry.result import Knowledge, Symmetries

Coefficients = tuple[sp.Expr, ...]


def _is_linear_ordinary(system: EvolutionSystem) -> bool:
    """Whether equations are ordinary, linear, and solved for the highest derivative of each unknown."""
    is_solved = [a for a, _ in system.leaders] == list(range(len(system.unknowns)))
    return len(system.variables) == 1 and is_solved and system.is_linear


def _from_solutions(system: EvolutionSystem, found: Sequence[Coefficients], size: int | None) -> list[Coefficients]:
    r"""All symmetries of a linear ordinary equation with as many as possible, else the found ones and superposition.

    With solutions :math:`y_1, y_2` of :math:`y'' = a y' + b y`, their Wronskian W, a solution p of the inhomogeneous
    equation :math:`y'' = a y' + b y + c` and :math:`v = y - p`, they are (Lie 1883)

    .. math::
        y_i \partial_y, \quad v \partial_y, \quad
        \frac{y_i y_j}{W} \partial_x + \frac{(y_i y_j)'}{2 W} v \partial_v, \quad
        \frac{y_i v}{W} \partial_x + \frac{y_i'}{W} v^2 \partial_v,

    where :math:`\partial_x` in the coordinates x and v is :math:`\partial_x + p' \partial_y` in x and y; for m unknowns
    that solve the same equation their number is the dimension of sl(m + 2). An equation of higher order n has at most
    n + 4 symmetries; if it has so many, its solutions are products of solutions of one equation of second order
    (Mahomed and Leach 1990).
    """
    m, n = len(system.unknowns), system.leaders[0][1][0]
    if _is_isotropic(system) and size == ((m + 2) ** 2 - 1 if n == 2 else n + 4 if m == 1 < n else None):
        return _largest(system, found)
    superposition = [(sp.S.Zero, *(row[0] for row in _solution(system, i + 1))) for i in range(sum(_orders(system)))]
    return [*(field for field in found if not _is_solution(system, field)), *superposition]


def _is_isotropic(system: EvolutionSystem) -> bool:
    """Whether all unknowns solve the same equation, up to inhomogeneous terms."""
    first = {k: c for (_, k), c in _slopes(system, 0)[0].items()}
    every = ({(a, k): c for k, c in first.items()} for a in range(len(system.unknowns)))
    return all(_slopes(system, a)[0] == slopes for a, slopes in enumerate(every)) and len(set(_orders(system))) == 1


def _orders(system: EvolutionSystem) -> list[int]:
    return [index[0] for _, index in system.leaders]


def _is_solution(system: EvolutionSystem, field: Coefficients) -> bool:
    """Whether a field adds a solution: its components are functions of the variable alone, and it does not move x."""
    unknowns = set(system.unknowns)
    return field[0] == 0 and not any(component.free_symbols & unknowns for component in field)


def _slopes(system: EvolutionSystem, a: int) -> tuple[dict[tuple[int, int], sp.Expr], sp.Expr]:
    """The coefficients of one right side, by unknown and order of derivative, and its inhomogeneous term."""
    right = system.right[a]
    jets = system.jets_in(right)
    return {(b, k): sp.diff(right, s) for s, b, (k,) in jets}, right.xreplace({s: sp.S.Zero for s, _, _ in jets})


def _solution(system: EvolutionSystem, number: int = 1, offset: bool = False) -> list[list[sp.Expr]]:
    """A solution of the homogeneous or (``offset``) of the inhomogeneous equations, with its derivatives."""
    parts = [_slopes(system, a) for a in range(len(system.unknowns))]

    def rates(values: list[list[sp.Expr]]) -> list[sp.Expr]:
        return [
            sp.Add(*(c * values[b][k] for (b, k), c in slopes.items()), rest if offset else 0) for slopes, rest in parts
        ]

    names = [free_name(f"p_{u}" if offset else f"{u}{number}", system.names) for u in system.unknowns]
    orders = _orders(system)
    equations = "; ".join(
        f"{u}{chr(39) * k} = {sp.Add(*(c * _prime(system, *key) for key, c in slopes.items()), rest if offset else 0)}"
        for u, k, (slopes, rest) in zip(system.unknowns, orders, parts, strict=True)
    )
    return fundamental(names, system.variables[0], orders, rates, f"solution of {equations}")


def _prime(system: EvolutionSystem, a: int, k: int) -> sp.Symbol:
    return sp.Symbol(f"{system.unknowns[a]}{chr(39) * k}")


def _largest(system: EvolutionSystem, found: Sequence[Coefficients]) -> list[Coefficients]:
    """All symmetries of an equation of second order, or of higher order with the largest dimension."""
    (x,), n = system.variables, system.leaders[0][1][0]
    slopes, _ = _slopes(system, 0)
    first = slopes.get((0, n - 1), sp.S.Zero)
    wronskian = _exponential(system, "W", first) if n == 2 else sp.S.One
    factor = sp.S.One if n == 2 else _exponential(system, "E", first / n)
    if n == 2:
        linear, zeroth = first, slopes.get((0, 0), sp.S.Zero)
    else:
        # y = factor z takes the derivative of order n - 1 away; then that of order n - 2 says of which equation
        # u'' = q u the solutions are products
        second = slopes.get((0, n - 2), sp.S.Zero)
        second += sp.Rational(n - 1, 2 * n) * first**2 - sp.Rational(n - 1, 2) * sp.diff(first, x)
        linear, zeroth = sp.S.Zero, sp.simplify(second / math.comb(n + 1, 3))
    basis = _known_basis(system, found, wronskian) if n == 2 and len(system.unknowns) == 1 else None
    (one, slope), (two, other) = basis or _abstract_basis(system, linear, zeroth, wronskian)
    offsets = [_slopes(system, a)[1] for a in range(len(system.unknowns))]
    particular = _solution(system, offset=True) if any(offsets) else [[sp.S.Zero, sp.S.Zero] for _ in offsets]
    v = [y - p[0] for y, p in zip(system.unknowns, particular, strict=True)]

    def field(along: sp.Expr, up: Sequence[sp.Expr]) -> Coefficients:
        moved = (e + along * p[1] for e, p in zip(up, particular, strict=True))
        return (sp.factor_terms(along), *map(sp.factor_terms, moved))

    def upward(a: int, value: sp.Expr) -> list[sp.Expr]:
        return [value if b == a else sp.S.Zero for b in range(len(v))]

    every, stretch = range(len(v)), sp.diff(factor, x) / factor
    result = [field(sp.S.Zero, upward(a, factor * one ** (n - 1 - k) * two**k)) for a in every for k in range(n)]
    result += [field(sp.S.Zero, upward(a, v[b])) for a in every for b in every]
    for product in (one**2, one * two, two**2):
        along = product / wronskian
        growth = sp.Rational(n - 1, 2) * sp.diff(product, x) / wronskian + stretch * along
        result.append(field(along, [growth * w for w in v]))
    if n == 2:
        for a in every:
            for f, df in ((one, slope), (two, other)):
                result.append(field(v[a] * f / wronskian, [v[a] * w * df / wronskian for w in v]))
    return result


def _exponential(system: EvolutionSystem, name: str, rate: sp.Expr) -> sp.Expr:
    """The exponential of the integral of a rate, as a formula if there is one, else as a named solution."""
    (x,) = system.variables
    integral = antiderivative(sp.together(rate), x)
    if not integral.has(sp.Integral, sp.Piecewise):
        return sp.simplify(sp.exp(integral))
    name = free_name(name, system.names)
    text = f"solution of {name}' = {rate * sp.Symbol(name)}"
    return fundamental([name], x, [1], lambda z: [rate * z[0][0]], text)[0][0]


def _known_basis(
    system: EvolutionSystem, found: Sequence[Coefficients], wronskian: sp.Expr
) -> list[list[sp.Expr]] | None:
    """A solution that was found and one by the Wronskian, with derivatives; ``None`` if there is no formula."""
    (x,) = system.variables
    for _, one in (field for field in found if _is_solution(system, field)):
        rate = sp.cancel(wronskian / one**2)
        if rate.is_rational_function(x):
            integral = antiderivative(rate, x)
            if not integral.has(sp.Integral, sp.RootSum, sp.Piecewise):
                # logarithms of squares are real on both sides of a pole
                terms = sp.Add.make_args(integral.replace(sp.log, lambda e: sp.log(e**2) / 2))
                two = sp.Add(*(sp.cancel(one * t) if t.is_rational_function(x) else one * t for t in terms))
                return [[one, sp.diff(one, x)], [two, sp.diff(two, x)]]
    return None


def _abstract_basis(
    system: EvolutionSystem, linear: sp.Expr, zeroth: sp.Expr, wronskian: sp.Expr
) -> list[list[sp.Expr]]:
    """Two solutions without formulas of an equation of second order, with their derivatives and a given Wronskian."""
    (x,), stem = system.variables, str(system.unknowns[0])
    if system.leaders[0][1][0] > 2:  # the solutions are those of another equation than the system's
        stem = "v" if stem == "u" else "u"
    first, second = (free_name(f"{stem}{k}", system.names) for k in (1, 2))
    right = linear * sp.Symbol(f"{stem}'") + zeroth * sp.Symbol(stem)
    text = f"solutions of {stem}'' = {right}, with {first}*{second}' - {first}'*{second} = {wronskian}"
    (one,), (two,) = (
        fundamental([name], x, [2], lambda z: [linear * z[0][1] + zeroth * z[0][0]], text) for name in (first, second)
    )
    type(two[1]).relation = (wronskian + one[1] * two[0]) / one[0]
    return [one, two]


_MAX_FIELD_COEFFICIENT = 30  # flows of fields with larger coefficients leave every domain in a short time


def search(pde: Any, degree: int | None, time: Any, functions: Sequence[Any]) -> Symmetries:
    """Search for infinitesimal symmetries, see `trivgeo.symmetry.find_symmetries`, whose ansatz is ``functions``.

    Raises:
        ConfigurationError: as for `trivgeo.symmetry.find_symmetries`.
    """
    system, conditions = _conditions(tuple(residuals_of(pde)), None if time is None else str(time))
    extra = ansatz_functions(system, functions)
    jets = Jets(system, conditions, is_linear(system))
    # the number of polynomial symmetries is a lower bound of the dimension, and shows where the upper bound is sharp
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
    for components in (*found.generators, *found.superposition):
        check(system, conditions, components)
    variables = system.coordinates

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
    """Search simpler equations in other variables first, then the equations themselves."""
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
    """Search growing spaces of functions, then for symmetries in terms of solutions that have no formula."""
    found = grow(system, conditions, jets, dimension)
    if dimension.size in (None, len(found.generators)):
        return found
    rooted = _with_roots(system, jets, dimension)
    if rooted is not None:
        return rooted
    if _is_linear_ordinary(system):
        return replace(found, generators=_from_solutions(system, found.generators, dimension.size))
    other = about_any_solution(system)
    if other is None or dimension.size is None:
        return found
    forms = symmetry_condition(other.system)
    homogeneous = grow(other.system, forms, Jets(other.system, forms, jets.linear), dimension)
    return _pulled_back(homogeneous, [other]) if len(homogeneous.generators) >= dimension.size else found


def _with_roots(system: EvolutionSystem, jets: Jets, dimension: Dimension) -> Found | None:
    """All symmetries if their eigenvalues are square roots of parameters, which become parameters; else ``None``."""
    if not system.parameters or dimension.size is None:
        return None
    names = [s.name for s in system.coordinates]
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
    """Symmetries of the last of a chain of equivalent equations, in the variables of the first."""
    for other in reversed(chain):
        generators, superposition = (
            [other.pulled_back(field) for field in part] for part in (found.generators, found.superposition)
        )
        found = replace(found, generators=generators, superposition=superposition)
    return found


@lru_cache(maxsize=8)
def _conditions(residuals: tuple[sp.Expr, ...], time: Any) -> tuple[EvolutionSystem, list[LinearForm]]:
    """The equations in solved form and their symmetry conditions, cached for the last few equations."""
    system = EvolutionSystem(residuals, time)
    return system, symmetry_condition(system)


def is_linear(system: EvolutionSystem) -> bool:
    """Return True for linear partial equations; ordinary ones, which have finitely many symmetries, return False."""
    return len(system.variables) > 1 and system.is_linear


def _about_a_solution(system: EvolutionSystem, found: Found) -> Found:
    r"""Generators that commute with :math:`E = (u - p) \partial_u`, p a solution of a linear equation.

    Symmetries X are linear in u - p up to superposition; their linear parts :math:`X - [X, E]` close under the bracket,
    while other representatives close up to superposition only. E is among the generators, with many p, of which a
    simple one is taken.
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
    """The field with coprime integers for coefficients, if they are rational."""
    numbers = [t.as_coeff_Mul()[0] for f in field for t in sp.Add.make_args(f) if t != 0]
    if not all(number.is_Rational for number in numbers):
        return field
    common = sp.gcd_list(numbers)
    return tuple(sp.expand(f / common) for f in field)


def _in_units(field: Coefficients) -> Coefficients:
    """The field with one as its largest coefficient if that is large, as it may be for equations with decimals."""
    numbers = [abs(t.as_coeff_Mul()[0]) for f in field for t in sp.Add.make_args(f) if t != 0]
    if not all(number.is_Rational for number in numbers) or max(numbers, default=0) <= _MAX_FIELD_COEFFICIENT:
        return field
    return tuple(sp.expand(f / max(numbers), power_exp=False) for f in field)


def _simplest(
    field: Coefficients, superposition: Sequence[Coefficients], variables: Sequence[sp.Symbol]
) -> Coefficients:
    """A field less members of the superposition ideal that cancel its most complicated terms."""
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
    """The symmetries in one space of functions, and their numbers at this degree and the next."""
    every = (sp.S.One, *functions)
    spaces = {d: AnsatzSpace(system, conditions, jets, every, d, jets.linear) for d in (degree, degree + 1)}
    solution = spaces[degree].solve()
    if solution is None:
        raise ConfigurationError(
            f"equation: expected symmetries rational in {system.parameters}, found none of low degree"
        )
    found = Found(*solution, degree, tuple(functions))
    return found, {d: space.count for d, space in spaces.items()}


def _trivial_fields(system: EvolutionSystem, jets: Jets, found: Found) -> list[Coefficients]:
    """Fields in the space that was searched that move no solution."""
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


def ansatz_functions(
    system: EvolutionSystem, functions: Sequence[Any], derivatives: Sequence[sp.Symbol] = ()
) -> Coefficients:
    """Return the functions of an ansatz as different expressions of the variables, none of them a polynomial.

    Args:
        derivatives: symbols of derivatives that the functions may hold.

    Raises:
        ConfigurationError: a function is a polynomial, is given twice, or holds other names.
    """
    result: list[sp.Expr] = []
    variables = (*system.coordinates, *derivatives)
    known = {*variables, *system.parameters}
    for function in functions:
        expression = system.plain(function, "ansatz", derivatives)
        unknown = expression.free_symbols - known
        if unknown or expression.is_polynomial(*variables):
            raise ConfigurationError(
                f"ansatz: expected functions of {variables} that are no polynomials, got {expression}"
            )
        if expression in result:
            raise ConfigurationError(f"ansatz: expected different functions, got {expression} twice")
        result.append(expression)
    return tuple(result)


def left_sides(pde: Any, field: Sequence[Any], time: Any) -> tuple[list[sp.Expr], EvolutionSystem]:
    """Return the symmetry conditions of a field, not simplified, and the equations solved for leading derivatives."""
    system, conditions = _conditions(tuple(residuals_of(pde)), None if time is None else str(time))
    components = [system.plain(entry, "field") for entry in field]
    return [left_side(system, condition, components) for condition in conditions], system


def residual(pde: Any, field: Any, time: Any) -> Any:
    """Return the left side of the symmetry condition of a vector field, see `trivgeo.symmetry.verify`.

    Raises:
        ConfigurationError: ``field`` has not one coefficient for each variable and unknown.
    """
    system, conditions = _conditions(tuple(residuals_of(pde)), None if time is None else str(time))
    variables = system.coordinates
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
