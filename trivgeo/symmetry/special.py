"""Values of a parameter for which an equation has more symmetries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from trivgeo.errors import ConfigurationError
from trivgeo.expressions import exact
from trivgeo.symmetry.determining import symmetry_condition
from trivgeo.symmetry.dimension import Dimension, Jets
from trivgeo.symmetry.equation import EvolutionSystem, residuals_of
from trivgeo.symmetry.finder import is_linear

__all__ = ["larger_dimensions", "simple_fractions"]


def simple_fractions() -> list[sp.Rational]:
    """Numbers that exponents and coefficients of textbooks are: halves up to 3, thirds up to 2, integers up to 6."""
    found = {sp.Rational(p, q) for q, top in ((1, 6), (2, 6), (3, 6)) for p in range(-top, top + 1)}
    return sorted(found)


def larger_dimensions(pde: Any, parameter: Any, values: Sequence[Any]) -> dict[sp.Expr, Dimension]:
    """See `trivgeo.symmetry.special_values`."""
    residuals = residuals_of(pde)
    symbols = {s.name: s for e in residuals for s in e.free_symbols}
    symbol = symbols.get(str(parameter))
    if symbol is None or symbol not in EvolutionSystem(residuals).parameters:
        raise ConfigurationError(f"parameter: expected a parameter of the equations, got {parameter}")
    generic = _dimension(residuals)
    result = {}
    for value in map(exact, values):
        try:
            dimension = _dimension([sp.expand(e.subs(symbol, value).doit()) for e in residuals])
        except ConfigurationError:
            continue  # the equations are no longer of their kind there
        if _rank(dimension) > _rank(generic):
            result[value] = dimension
    return result


def _dimension(residuals: Sequence[sp.Expr]) -> Dimension:
    system = EvolutionSystem(residuals)
    return Jets(system, symmetry_condition(system), is_linear(system)).dimension()


def _rank(dimension: Dimension) -> tuple[int, ...]:
    """Larger algebras have larger ones; what is unknown is the smallest."""
    return (dimension.arguments, dimension.functions, -1 if dimension.size is None else dimension.size)
