"""Changes of variables that make equations simpler: homogeneous, linear, or free of the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy as sp

from trivgeo.symmetry.equations.equation import EvolutionSystem, free_name
from trivgeo.symmetry.equations.formulas import antiderivative
from trivgeo.symmetry.equations.multi_index import Index, derivative, multi_indices, shifted
from trivgeo.symmetry.equations.numeric import vanishes
from trivgeo.symmetry.equations.unnamed_functions import Arbitrary, Particular, arbitrary_integral

_MAX_SEEDS = 12  # functions that polynomials are multiplied with to find a particular solution
_MAX_DEGREE = 4  # largest degree of these polynomials
_MAX_COEFFICIENTS = 150  # unknown coefficients of a particular solution


@dataclass(frozen=True)
class Equivalent:
    """An equation equivalent to a given one by a change of variables.

    Attributes:
        system: the new equation.
        new: variables and unknowns of the new equation as expressions of those of the given one.
        old: the variables and unknowns of the given equation.
    """

    system: EvolutionSystem
    new: tuple[sp.Expr, ...]
    old: tuple[sp.Symbol, ...]

    def pulled_back(self, field: Sequence[sp.Expr]) -> tuple[sp.Expr, ...]:
        """Return a field in the new variables as a field in the old ones."""
        here = dict(zip(self.system.coordinates, self.new, strict=True))
        moved = sp.Matrix([component.xreplace(here) for component in field])
        slopes = sp.Matrix(self.new).jacobian(self.old)
        return tuple(sp.expand(sp.simplify(component)) for component in slopes.LUsolve(moved))


def simpler(system: EvolutionSystem) -> Equivalent | None:
    """Return the homogeneous form of a linear system, the linear form of an ordinary equation, or one free of the time.

    The result is ``None`` if there is none.
    """
    return _in_own_time(system) or _homogeneous(system) or _linearized(system, False) or _linearized(system, True)


def _in_own_time(system: EvolutionSystem) -> Equivalent | None:
    """The equations u_s = F of u_t = a(t) F for the time s, an integral of a; ``None`` for other equations."""
    t = system.variables[system.time]
    if len(system.variables) == 1 or set(system.orders) != {1}:
        return None
    parts = [sp.factor(right).as_independent(t, as_Add=False) for right in system.right]
    rate = next((moving for _, moving in parts if moving != 1), None)
    if rate is None or not rate.free_symbols <= {t, *system.parameters}:
        return None
    right = [sp.simplify(moving / rate) * still for still, moving in parts]
    if any(e.has(t) for e in right):
        return None
    constant, moving = rate.as_independent(t, as_Add=False)
    if isinstance(moving, Arbitrary) and moving.args == (t,) and "'" not in type(moving).__name__:
        name = type(moving).__name__
        own = constant * arbitrary_integral(
            free_name(f"{name[0].upper()}{name[1:]}", {*system.names, *system.arbitrary}), type(moving)
        )(t)
    else:
        own = antiderivative(rate, t)
    if own.has(sp.Integral, sp.Piecewise):
        return None
    new = tuple(own if z == t else z for z in system.coordinates)
    return Equivalent(with_right_sides(system, [sp.expand(e) for e in right]), new, system.coordinates)


# Particular solutions ----------------------------------------------------------------------------------------


def _homogeneous(system: EvolutionSystem) -> Equivalent | None:
    """The homogeneous equations, if a particular solution has a formula; else ``None``."""
    offsets = _offsets(system)
    if not any(offsets):
        return None
    particular = _particular(system, offsets, False) or _particular(system, offsets, True)
    return None if particular is None else _about(system, particular)


def about_any_solution(system: EvolutionSystem) -> Equivalent | None:
    """Return the homogeneous equations of a linear system, by a particular solution without a formula."""
    return _about(system, _abstract(system)) if any(_offsets(system)) else None


def _offsets(system: EvolutionSystem) -> list[sp.Expr]:
    """The inhomogeneous terms of the right sides of linear equations; zeros if the equations are not linear."""
    none = {symbol: sp.S.Zero for right in system.right for symbol, _, _ in system.jets_in(right)}
    return [right.xreplace(none) if system.is_linear else sp.S.Zero for right in system.right]


def _about(system: EvolutionSystem, particular: Sequence[sp.Expr]) -> Equivalent:
    r"""The homogeneous equations, which :math:`u - p` solves if p is a particular solution."""
    old = system.coordinates
    new = (*system.variables, *(u - p for u, p in zip(system.unknowns, particular, strict=True)))
    right = [sp.expand(r - o) for r, o in zip(system.right, _offsets(system), strict=True)]
    return Equivalent(with_right_sides(system, right), new, old)


def _abstract(system: EvolutionSystem) -> list[sp.Expr]:
    """A particular solution without a formula, one function for each unknown."""
    sides = zip(system.leaders, system.right, strict=True)
    words = "solution of " + "; ".join(f"{system.jet(*leader)} = {right}" for leader, right in sides)
    known: dict[tuple[int, Index], type[Particular]] = {}

    def solution(a: int, index: Index) -> sp.Expr:
        if (a, index) not in known:
            root = free_name(f"p_{system.unknowns[a]}", system.names)
            letters = "".join(str(v) * k for v, k in zip(system.variables, index, strict=True))

            def rate(position: int) -> sp.Expr:
                value = system.value(a, shifted(index, position))
                return value.xreplace({s: solution(b, inner) for s, b, inner in system.jets_in(value)})

            own = {"rate": staticmethod(rate), "index": index, "root": root, "equation": words}
            known[a, index] = type(root + f"_{letters}" * any(index), (Particular,), own)
        return known[a, index](*system.variables)

    return [solution(a, system.zero) for a in range(len(system.unknowns))]


def with_right_sides(system: EvolutionSystem, right: Sequence[sp.Expr]) -> EvolutionSystem:
    """Return equations for the same leading derivatives with other right sides, expressions of free derivatives."""
    values = {}
    for expression, leader in zip(right, system.leaders, strict=True):
        for symbol, a, index in (*system.jets_in(expression), (system.jet(*leader), *leader)):
            values[symbol] = derivative(system.functions[a], system.variables, index, sp.Derivative)
    leading = [system.jet(*leader) for leader in system.leaders]
    residuals = [(z - r).xreplace(values) for z, r in zip(leading, right, strict=True)]
    return EvolutionSystem(residuals, system.variables[system.time])


def _particular(system: EvolutionSystem, offsets: Sequence[sp.Expr], integrals: bool) -> list[sp.Expr] | None:
    """A particular solution among polynomials times the functions in the inhomogeneous terms, or ``None``.

    With ``integrals`` also among polynomials times antiderivatives of these functions.
    """
    variables = system.variables
    if any(_is_large_fraction(offset, variables) for offset in offsets):
        return None  # terms of sums with such denominators cancel only over a common one
    seeds = _seeds(offsets, variables, integrals)
    for degree in range(_MAX_DEGREE + 1):
        monomials = [
            sp.Mul(*(v**k for v, k in zip(variables, powers, strict=True)))
            for powers in multi_indices(len(variables), degree)
        ]
        functions = list(dict.fromkeys(sp.expand(m * seed) for m in monomials for seed in seeds))
        columns = [(a, f) for f in functions for a in range(len(system.unknowns))]
        if len(columns) > _MAX_COEFFICIENTS:
            return None
        solution = _solution_among(system, offsets, columns)
        if solution is not None:
            return solution
    return None


def _seeds(offsets: Sequence[sp.Expr], variables: Sequence[sp.Symbol], integrals: bool) -> list[sp.Expr]:
    """The functions in the inhomogeneous terms with their derivatives, and with antiderivatives if asked for."""
    seeds = list(dict.fromkeys(function for offset in offsets for function in _functions(offset, variables)))
    if integrals:
        seeds = [*(_without_powers(seed, variables) for seed in seeds), *seeds]
        seeds = list(dict.fromkeys([*seeds, *_antiderivatives(seeds, variables)]))
    for seed in seeds:  # the list grows
        more = (function for v in variables for function in _functions(sp.diff(seed, v), variables))
        seeds += [function for function in more if function not in seeds][: _MAX_SEEDS - len(seeds)]
    return seeds


def _antiderivatives(functions: Sequence[sp.Expr], variables: Sequence[sp.Symbol]) -> list[sp.Expr]:
    """The functions in antiderivatives that have a formula, without polynomials."""
    has_logarithms = any(function.has(sp.log) for function in functions)
    found = []
    for integral in (antiderivative(f, v, manual=True) for f in functions for v in variables if f.has(v)):
        if not has_logarithms:  # logarithms of squares are real on both sides of a pole
            integral = integral.replace(sp.log, lambda e: sp.log(e**2) / 2)
        if not integral.has(sp.Integral, sp.Piecewise, sp.I):
            found += [f for f in _functions(integral, variables) if not f.is_polynomial()]
    return found


def _solution_among(
    system: EvolutionSystem, offsets: Sequence[sp.Expr], columns: Sequence[tuple[int, sp.Expr]]
) -> list[sp.Expr] | None:
    """A particular solution that is a combination of functions, each of one unknown; ``None`` if there is none."""
    images = []
    for a, f in columns:
        trial = {u: f if b == a else sp.S.Zero for b, u in enumerate(system.unknowns)}
        images.append([sp.expand(e + o) for e, o in zip(system.residuals_at(trial), offsets, strict=True)])
    _, matrix = term_matrix([*images, list(offsets)], system.variables)
    symbols = [sp.Dummy() for _ in columns]
    solutions = sp.linsolve((matrix[:-1, :].T, matrix[-1, :].T), symbols)
    if not solutions:
        return None
    (solution,) = solutions
    result = [sp.S.Zero] * len(system.unknowns)
    for (a, f), coefficient in zip(columns, solution, strict=True):
        result[a] += coefficient.xreplace(dict.fromkeys(symbols, sp.S.Zero)) * f
    return result


def _functions(expression: sp.Expr, variables: Sequence[sp.Symbol]) -> list[sp.Expr]:
    """The functions of the variables in the terms of an expression, without constant factors."""
    terms = sp.Add.make_args(sp.expand(expression))
    return [term.as_independent(*variables, as_Add=False)[1] for term in terms if term != 0]


def _is_large_fraction(expression: sp.Expr, variables: Sequence[sp.Symbol]) -> bool:
    """Whether a denominator is a polynomial other than a monomial or a linear function."""
    bases = (power.base for power in expression.atoms(sp.Pow) if power.exp.is_negative and power.base.is_Add)
    return any(base.is_polynomial(*variables) and sp.total_degree(base, *variables) > 1 for base in bases)


def _without_powers(function: sp.Expr, variables: Sequence[sp.Symbol]) -> sp.Expr:
    """A product without its polynomial factors."""
    return sp.Mul(*(factor for factor in sp.Mul.make_args(function) if not factor.is_polynomial(*variables)))


def term_matrix(
    fields: Sequence[Sequence[sp.Expr]], variables: Sequence[sp.Symbol]
) -> tuple[list[tuple[int, sp.Expr]], sp.Matrix]:
    """Return the terms of all fields, as (component, function of the variables), and a row of coefficients a field."""
    terms: dict[tuple[int, sp.Expr], int] = {}
    rows = []
    for field in fields:
        row: dict[int, sp.Expr] = {}
        for i, component in enumerate(field):
            for term in sp.Add.make_args(sp.expand(component)):
                number, function = term.as_independent(*variables, as_Add=False)
                place = terms.setdefault((i, function), len(terms))
                row[place] = row.get(place, sp.S.Zero) + number
        rows.append(row)
    matrix = sp.zeros(len(fields), len(terms))
    for j, row in enumerate(rows):
        for i, value in row.items():
            matrix[j, i] = value
    return list(terms), matrix


# Linear ordinary equations of second order -------------------------------------------------------------------


def _linearized(system: EvolutionSystem, swapped: bool) -> Equivalent | None:
    r"""A linear equation for :math:`w = G(x, y)`, or with x and y exchanged, equivalent to one of second order.

    For :math:`y'' + f(x, y) y'^2 + \dots = 0` G must satisfy :math:`G_{yy} = f G_y` (Lie 1883), up to changes that keep
    an equation linear. Then :math:`w'' = A w' + B w + C` determines A, B and C, which must depend on x alone.
    """
    if system.is_linear or len(system.variables) > 1 or system.leaders != ((0, (2,)),):
        return None
    (x,), (y,) = system.variables, system.unknowns
    slope = system.jet(0, (1,))
    (right,) = system.right
    if swapped:
        right = sp.expand(-(slope**3) * right.xreplace({slope: 1 / slope}))
        x, y = y, x
    square = sp.simplify(sp.diff(right, slope, 2) / 2)
    if square.has(slope) or (square == 0 and not swapped):
        return None
    new = antiderivative(sp.simplify(sp.exp(-antiderivative(square, y))), y)
    first = sp.simplify(sp.diff(right, slope).subs(slope, 0))
    rest = sp.simplify(right.subs(slope, 0))
    along = sp.diff(new, y)
    if new.has(sp.Integral) or along == 0:
        return None
    a = sp.simplify(2 * sp.diff(new, x, y) / along + first)
    value = sp.diff(new, x, 2) - a * sp.diff(new, x) + rest * along
    b = sp.simplify(sp.diff(value, y) / along)
    c = sp.simplify(value - b * new)
    if not all(vanishes(sp.diff(number, y)) for number in (a, b, c)):
        return None
    function = sp.Function(str(y))(x)
    linear = function.diff(x, 2) - a * function.diff(x) - b * function - c
    return Equivalent(EvolutionSystem(linear), (x, new), system.coordinates)
