"""Values of a parameter, or forms of a function, for which an equation has more symmetries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from trivgeo.errors import ConfigurationError
from trivgeo.expressions import exact
from trivgeo.symmetry.determining.conditions import symmetry_condition
from trivgeo.symmetry.determining.dimension import Dimension, Jets
from trivgeo.symmetry.determining.finder import is_linear, search
from trivgeo.symmetry.equations.equation import EvolutionSystem, residuals_of
from trivgeo.symmetry.equations.unnamed_functions import Arbitrary
from trivgeo.symmetry.result import Symmetries


def simple_fractions() -> list[sp.Rational]:
    """Fractions that textbooks have as exponents: integers up to 6, halves up to 3, thirds up to 2, of both signs."""
    found = {sp.Rational(p, q) for q, top in ((1, 6), (2, 6), (3, 6)) for p in range(-top, top + 1)}
    return sorted(found)


def larger_algebras(pde: Any, function: str, candidates: Sequence[Any]) -> dict[sp.Expr, Symmetries]:
    """Symmetries by the form of an arbitrary function, see `trivgeo.symmetry.special_functions`.

    Raises:
        ConfigurationError: the equations hold no such function of one argument, or a candidate is no function of it.
    """
    residuals = residuals_of(pde)
    system = EvolutionSystem(residuals)
    calls = {f for e in residuals for f in e.atoms(Arbitrary) if type(f).__name__.rstrip("'") == function}
    arguments = {system.in_jets(f.args[0]) for f in calls}
    if len(arguments) != 1:
        raise ConfigurationError(f"function: expected one of {system.arbitrary} with one argument, got {function}")
    (argument,) = arguments
    z = argument if argument.is_Symbol else sp.Dummy("z")
    taken = {*system.coordinates, *system.parameters}
    n = next(s for s in (*sp.symbols("n k m q"), sp.Dummy("n")) if s not in taken)
    if candidates:
        forms = [[_candidate(entry, argument, z, system)] for entry in candidates]
    else:
        powers = [z**value for value in simple_fractions() if value != 0]
        forms = [[sp.S.One], [sp.exp(z)], [sp.log(z)], [z * sp.log(z)], [z**n, *powers]]
    generic = _Member(residuals)
    result: dict[sp.Expr, Symmetries] = {}
    for family in forms:
        least = generic
        for value in family:  # a member with no more symmetries than the family is not listed
            put = [_put(e, function, z, value, system) for e in residuals]
            try:
                member = _Member(put, least)
            except ConfigurationError:
                continue  # with this value the equations are of no kind that is supported
            if member.is_larger:
                result[value.xreplace({z: argument})] = search(put, None, None, ())
                least = member if value is family[0] else least
    return result


def _candidate(entry: Any, argument: sp.Expr, z: sp.Symbol, system: EvolutionSystem) -> sp.Expr:
    """A candidate as a function of z, which stands for the argument, and of parameters, old or new."""
    given = system.plain(entry, "candidates", argument.free_symbols)
    value = given.subs(argument, z)
    others = value.free_symbols - set(system.parameters)
    strange = others & {*system.coordinates, *argument.free_symbols} - {z}
    if strange or (others and z not in others):
        raise ConfigurationError(f"candidates: expected functions of {argument}, got {given}")
    return value


def _put(expression: sp.Expr, function: str, z: sp.Symbol, value: sp.Expr, system: EvolutionSystem) -> sp.Expr:
    """An expression with ``value``, a function of z, in place of the arbitrary function of this name."""
    own = dict(zip(system.unknowns, system.functions, strict=True))
    puts = {}
    for call in expression.atoms(Arbitrary):
        name = type(call).__name__
        if name.rstrip("'") == function:
            derivative = sp.diff(value, (z, name.count("'")))
            puts[call] = derivative.xreplace({z: call.args[0]}).xreplace(own)
    return sp.expand(expression.xreplace(puts))


def larger_dimensions(pde: Any, parameter: Any, values: Sequence[Any]) -> dict[sp.Expr, Dimension]:
    """Dimensions by the value of one parameter, see `trivgeo.symmetry.special_values`.

    Raises:
        ConfigurationError: the equations have no such parameter.
    """
    residuals = residuals_of(pde)
    symbols = {s.name: s for e in residuals for s in e.free_symbols}
    symbol = symbols.get(str(parameter))
    if symbol is None or symbol not in EvolutionSystem(residuals).parameters:
        raise ConfigurationError(f"parameter: expected a parameter of the equations, got {parameter}")
    generic = _Member(residuals)
    result = {}
    for value in map(exact, values):
        try:
            put = [sp.expand(e.subs(symbol, value).doit()) for e in residuals]
            member = _Member(put, generic)
        except ConfigurationError:
            continue  # with this value the equations are of no kind that is supported
        if member.is_larger:
            result[value] = member.dimension
    return result


class _Member:
    """The dimension of the symmetries of equations, without superposition, compared with that of their family.

    A member has all symmetries of the family; if the member alone is linear, some of them may be part of superposition,
    so that the comparison counts superposition.
    """

    def __init__(self, residuals: Sequence[sp.Expr], family: _Member | None = None) -> None:
        system = EvolutionSystem(residuals)
        conditions = symmetry_condition(system)
        self.linear = is_linear(system)
        alike = family is not None and family.linear == self.linear
        known = family.dimension.size if family is not None and alike else None
        self.dimension: Dimension = Jets(system, conditions, self.linear).dimension(known or 0)
        self.is_larger = False
        if family is not None:
            total = self.dimension if alike else Jets(system, conditions, False).dimension()
            self.is_larger = _rank(total) > _rank(family.dimension)


def _rank(dimension: Dimension) -> tuple[int, ...]:
    """A key that grows with the algebra; an unknown dimension has the smallest."""
    return (dimension.arguments, dimension.functions, -1 if dimension.size is None else dimension.size)
