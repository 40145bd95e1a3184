"""Equations solved for one symbol, where a formula is to be expected."""

from __future__ import annotations

from random import Random

import sympy as sp

from trivgeo.symmetry.solutions import with_symbols

__all__ = ["is_mixed", "solution_for"]

_REAL_POINTS = 200


def solution_for(equation: sp.Expr, symbol: sp.Symbol) -> sp.Expr | None:
    """Return one branch of an irreducible ``equation`` solved for ``symbol``; all have the same symmetries."""
    numerator = sp.together(equation).as_numer_denom()[0]
    if numerator.is_polynomial(symbol):
        factors = [f for f, _ in sp.factor_list(numerator)[1] if f.has(symbol)]
        if len(factors) != 1:
            return None
        numerator = factors[0]
        slope = sp.diff(numerator, symbol)
        if not slope.has(symbol):
            return sp.expand(-numerator.subs(symbol, 0) / slope)
    if is_mixed(numerator, symbol):
        return None
    try:
        solutions = sp.solve(numerator, symbol)
    except NotImplementedError:
        return None
    solutions = [solution for solution in solutions if _is_real_somewhere(solution)]
    return sp.expand(solutions[-1]) if solutions else None


def is_mixed(expression: sp.Expr, symbol: sp.Symbol) -> bool:
    """Return True if ``symbol`` is inside a function and outside, or inside two, in ``expression``.

    No formula solves that, and SymPy may hang.
    """
    inside = [f for f in expression.atoms(sp.Function, sp.exp) if f.has(symbol)]
    outer = [f for f in inside if not any(f != other and other.has(f) for other in inside)]
    return bool(outer) and (len(outer) > 1 or expression.xreplace({outer[0]: sp.Dummy()}).has(symbol))


def _is_real_somewhere(expression: sp.Expr) -> bool:
    """Whether an expression has a real value at one of many real points, of sizes from a hundredth to a hundred."""
    expression = with_symbols(expression)
    symbols = sorted(expression.free_symbols, key=str)
    values = sp.lambdify(symbols, expression, "mpmath")
    random = Random(0)
    for _ in range(_REAL_POINTS):
        point = [random.choice((-1.0, 1.0)) * 10 ** random.uniform(-2.0, 2.0) for _ in symbols]
        try:
            if abs(complex(values(*point)).imag) == 0.0:
                return True
        except (ZeroDivisionError, ValueError, OverflowError):
            continue  # a pole
    return False
